"""Classifies events of a stream: token, empty, or keep-alive.

Engines send much before, and between, tokens: SSE comments, pings, chunks with a role and no text, the announcement of
an answer. Time-outs, retries and the time to the first token go by tokens, so each event has one of three meanings:

- ASIDE: a comment or a ping. It is no part of the answer, so it may pass at any time.
- EMPTY: it belongs to the answer and has no token yet. It carries the answer's id, so it can't pass before a retry.
- TOKEN: content (text, reasoning, a tool call, audio), the end of the answer, or an error.

An event in an unknown form counts as a token. The table is in docs/behaviour.md.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

DATA = b"\ndata:"  # a space may follow
ASIDE_BYTES_MIN = 40  # a ping in one line is shorter: `data: {"type": "ping"}`
ASIDE_STARTS = (b":", b"event: ping", b"event:ping", b"id:", b"retry:", b"\n")
_END = re.compile(rb"\n\r?\n|\r\r")  # an event ends with an empty line; lines end with LF, CRLF or CR
_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?::|data|event|id|retry)")
_START_BYTES = 10  # enough to classify
_ASIDES = re.compile(
    rb'(?:(?::[^\n]*|event: ?ping\n(?:data:[^\n]*\n)?|data: ?\{ ?"type": ?"ping" ?\}|(?:id|retry):[^\n]*|)\n)+'
)
_PING = b"event: ping"
#: Fields of a part beside its content.
_LABELS = frozenset(
    {
        "role",
        "type",
        "index",
        "prompt_token_ids",
        "prompt_logprobs",
        "content_filter_results",  # Azure's
        "content_filter_offsets",
    }
)
_ANNOUNCEMENTS = frozenset({"message_start", "response.created", "response.queued", "response.in_progress"})
#: These announce a part of an answer, which may hold content already: the name of a tool.
_BEGINNINGS = {
    "content_block_start": "content_block",
    "content_block_delta": "delta",
    "response.output_item.added": "item",
    "response.content_part.added": "part",
    "response.reasoning_part.added": "part",
    "response.reasoning_summary_part.added": "part",
}
_TEXTS = frozenset({"text", "thinking", "message", "reasoning"})  # parts that are announced before they have content
_decode = msgspec.json.Decoder().decode


class Meaning(Enum):
    """The class of an event."""

    ASIDE = "aside"
    EMPTY = "empty"
    TOKEN = "token"  # noqa: S105


def split(data: bytes, since: int = 0) -> tuple[list[bytes], bytes]:
    """Returns whole events and the rest. Before `since` no event ends."""
    events, at = [], 0
    for end in _END.finditer(data, since):
        events.append(data[at : end.end()])
        at = end.end()
    return events, data[at:]


def last_end(data: bytes) -> int:
    """Returns the end of the last complete event, or 0."""
    return max(_after(data, b"\n\n"), _after(data, b"\n\r\n"), _after(data, b"\r\r"))


def may_be_events(data: bytes) -> bool:
    """True if a stream that begins like that may be one of events."""
    return len(data) < _START_BYTES or _START.match(data) is not None


def fields(event: bytes) -> tuple[bytes, bytes | None]:
    """Returns an event's name and its data in one line; None if it has no data.

    Unknown fields are ignored beside data (WHATWG, server-sent events); alone they count as data.
    """
    name, lines, others = b"", [], []
    for line in event.removeprefix(b"\xef\xbb\xbf").splitlines():
        if line.startswith(b"data:"):
            lines.append(line[5:].strip())
        elif line.startswith(b"event:"):
            name = line[6:].strip()
        elif line and not line.startswith((b":", b"id:", b"retry:")):
            others.append(line)  # an unknown field, or none
    lines = lines or others
    return name, b" ".join(lines) if lines else None


def in_one_line(name: bytes, data: bytes) -> bytes:
    """Returns the event as engines mostly write it."""
    return b"event: %b\ndata: %b\n\n" % (name, data) if name else b"data: %b\n\n" % data


def meaning(event: bytes) -> Meaning:
    """Returns the class of a complete event."""
    name, data = fields(event)
    if data is None or name == b"ping":
        return Meaning.ASIDE
    value = _object(data)
    if value is None:
        return Meaning.TOKEN
    if value.get("type") == "ping":
        return Meaning.ASIDE
    return Meaning.EMPTY if not value.get("error") and _is_empty(value) else Meaning.TOKEN


def meaning_of_line(line: bytes) -> Meaning:
    """Returns the class of a line of JSON (Ollama's)."""
    if not line.strip():
        return Meaning.EMPTY
    value = _object(line)
    if value is None or value.get("error") or value.get("done") is not False:
        return Meaning.TOKEN
    said = (value.get("response"), value.get("message"), value.get("thinking"), value.get("tool_calls"))
    return Meaning.EMPTY if _is_blank(list(said)) else Meaning.TOKEN


def only_asides(data: bytes) -> bool:
    """True if there are only comments and pings in complete events with LF line ends."""
    return _ASIDES.fullmatch(data) is not None


def begins_aside(data: bytes) -> bool:
    """True if an event that has no end yet is none but a comment or a ping, as far as it goes."""
    return data[:1] == b":" or _PING.startswith(data[: len(_PING)])


def _after(data: bytes, end: bytes) -> int:
    at = data.rfind(end)
    return 0 if at < 0 else at + len(end)


def _object(data: bytes) -> dict[str, object] | None:
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_empty(value: dict[str, object]) -> bool:
    kind = value.get("type")
    if isinstance(kind, str):
        if kind in _ANNOUNCEMENTS:
            return True
        if kind in _BEGINNINGS:
            part = value.get(_BEGINNINGS[kind])
            if not isinstance(part, dict):
                return False
            if kind == "response.output_item.added":
                return part.get("type") in _TEXTS and _is_blank([part.get("content"), part.get("summary")])
            return (kind != "content_block_start" or part.get("type") in _TEXTS) and _is_blank(part)
        if kind.endswith(".delta"):
            return "delta" in value and _is_blank(value["delta"])
    choices = value.get("choices")
    if isinstance(choices, list):
        return _is_blank(choices) if choices else not value.get("usage")
    if "stop" in value and "content" in value:  # llama.cpp's own
        return not value["stop"] and _is_blank([value["content"], value.get("tokens")])
    meta = value.get("meta_info")
    if isinstance(meta, dict):  # SGLang's own
        said = (value.get("text"), value.get("output_ids"), meta.get("finish_reason"), meta.get("completion_tokens"))
        return _is_blank(list(said))
    return False


def _is_blank(value: object) -> bool:
    """True if there is no content in it, however deep."""
    if isinstance(value, dict):
        return all(name in _LABELS or _is_blank(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(_is_blank(inner) for inner in value)
    return not value
