"""Classifies events of a stream: what is a token, and what is sent beside tokens?

Engines send much before, and between, tokens: SSE comments, pings, chunks with a role and no text, the announcement of
an answer. Time-outs, retries, the time to the first token and accounts go by tokens, so each event has one of four
meanings:

- ASIDE: a comment or a ping. It is no part of the answer, so it may pass at any time.
- EMPTY: it belongs to the answer and has no token. It carries the answer's id, so it can't pass before a retry.
- TOKEN: content: text, reasoning, a tool call, audio.
- END: progress without a token: a finish reason, usage, `[DONE]`, the end of a part, an error.

An event in an unknown form counts as a token. The table is in docs/behaviour.md.

Nearly all events are the same few shapes of text, which `SAID`, `SAID_BY_NAME`, `SILENT`, `ENDED` and `DONE` find in
bytes; only the others are parsed as JSON. What they find, `meaning` finds, too. A model's text can't look like them,
because inside of JSON its quotes and line breaks are escaped.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import msgspec

_END: Final = re.compile(rb"\n\r?\n|\r\r")  # an event ends with an empty line; lines end with LF, CRLF or CR
_START: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?::|data|event|id|retry)")
_START_BYTES: Final = 10  # enough to classify
_CHOICE: Final = rb'"choices": ?\[\{[^{}\[\]]*'
#: At most one in an event, which is a token: a text of a chat or a completion,
SAID: Final = re.compile(
    _CHOICE + rb'(?:"delta": ?\{[^{}\[\]]*"(?:content|reasoning_content|reasoning)"|"text"): ?"[^"]'
)
#: or of a response or a message, whose events have names.
SAID_BY_NAME: Final = re.compile(
    rb'event: ?(?:response\.[a-z_.]+\.delta\n[^\n]*"delta"|content_block_delta\n[^\n]*"(?:text|thinking|partial_json)")'
    rb': ?"[^"]'
)
# Most engines write a text of a chat like this: two plain searches take fewer instructions than `SAID`.
_CHOICE_OPENED: Final = b'"choices":[{'
_CONTENT_OPENED: Final = b'"delta":{"content":"'
_QUOTE: Final = 0x22
_BLANK: Final = rb'(?:"index": ?\d+|"role": ?"\w*"|"\w+": ?(?:null|""|\[\]|\{\}))'
#: At most one in an event, which is empty: mostly a role.
SILENT: Final = re.compile(
    rb'"choices": ?\[\{(?:%b, ?)*"delta": ?\{(?:%b(?:, ?%b)*)?\}(?:, ?%b)*\}\]' % (_BLANK, _BLANK, _BLANK, _BLANK)
)
#: At most one in an event, which is the end of an answer or its usage. All begin alike, so a search is quick.
ENDED: Final = re.compile(
    rb'"choices": ?\[(?:\{[^{}\[\]]*"delta": ?\{(?:"content": ?"")?\}[^{}\[\]]*"finish_reason": ?"[^{}\[\]]*\}\]'
    rb'|\], ?"usage": ?\{)'
)
#: The same of `[DONE]`: behind another event, and as the first one.
DONE: Final = re.compile(rb"\ndata: ?\[DONE\]")
DONE_FIRST: Final = (b"data: [DONE]", b"data:[DONE]")
#: At most one in a line of JSON, whose text is a token.
LINE_SAID: Final = re.compile(rb'"(?:message": ?\{"role": ?"assistant", ?"content|response)": ?"[^"]')
_KEEP_ALIVE: Final = re.compile(r"(?:.*\.)?(?:ping|heart[-_ ]?beat|keep[-_ ]?alive)", re.IGNORECASE)
#: Fields of a part beside its content.
_LABELS: Final = frozenset(
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
_CHUNKS: Final = frozenset({"chat.completion.chunk", "text_completion"})  # whose content is in `choices`
_ANNOUNCEMENTS: Final = frozenset({"message_start", "response.created", "response.queued", "response.in_progress"})
#: Events without content of their own: what ends was sent before.
_ENDS: Final = frozenset(
    {
        *("content_block_stop", "message_delta", "message_stop", "error"),
        *("response.completed", "response.incomplete", "response.failed", "response.cancelled"),
    }
)
_REASONS: Final = frozenset(
    {"finish_reason", "native_finish_reason", "stop_reason", "matched_stop"}
)  # why a choice ends
#: These announce a part of an answer, which may hold content already: the name of a tool.
_BEGINNINGS: Final = {
    "content_block_start": "content_block",
    "content_block_delta": "delta",
    "response.output_item.added": "item",
    "response.content_part.added": "part",
    "response.reasoning_part.added": "part",
    "response.reasoning_summary_part.added": "part",
}
_TEXTS: Final = frozenset(
    {"text", "thinking", "message", "reasoning"}
)  # parts that are announced before they have content
_decode: Final = msgspec.json.Decoder().decode


class Meaning(Enum):
    """The class of an event."""

    ASIDE = "aside"
    EMPTY = "empty"
    TOKEN = "token"  # noqa: S105
    END = "end"


def says(data: bytes, end: int) -> bool:
    """True if the first `end` bytes, an event of one line, have a token of a chat or a completion, as bytes show it."""
    at = data.find(_CONTENT_OPENED, 0, end)
    begins = at + len(_CONTENT_OPENED)
    if at > 0 and begins < end and data[begins] != _QUOTE and data.find(_CHOICE_OPENED, 0, at) >= 0:
        return True
    return SAID.search(data, 0, end) is not None


def says_at_once(data: bytes) -> bool:
    """True if a stream begins with an event that has a token, as bytes show it."""
    end = data.find(b"\n\n")
    return end > 0 and data.find(b"\r", 0, end) < 0 and says(data, end)


def split(data: bytes, since: int = 0) -> tuple[list[bytes], bytes]:
    """Returns whole events and the rest. Before `since` no event ends."""
    if data.find(b"\r") < 0:
        *whole, rest = data.split(b"\n\n")
        return [event + b"\n\n" for event in whole], rest
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
    return Meaning.ASIDE if data is None else meaning_of(name, data)


def meaning_unsaid(event: bytes) -> Meaning:
    """Returns the class of a complete event in which `SAID` finds nothing."""
    return Meaning.EMPTY if SILENT.search(event) is not None else meaning(event)


def meaning_of(name: bytes, data: bytes) -> Meaning:
    """Returns the class of an event by its `fields`."""
    if not data or name == b"ping":
        return Meaning.ASIDE
    if data == b"[DONE]":
        return Meaning.END
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Meaning.EMPTY if _KEEP_ALIVE.fullmatch(data.decode("latin-1").strip('[]"')) else Meaning.TOKEN
    if isinstance(value, dict):
        return _meaning_of_object(name, value)
    return Meaning.EMPTY if _is_blank(value) else Meaning.TOKEN


def meaning_of_line(line: bytes) -> Meaning:
    """Returns the class of a line of JSON (Ollama's)."""
    if not line.strip():
        return Meaning.EMPTY
    value = _object(line)
    if value is None:
        return Meaning.TOKEN
    said = [value.get("response"), value.get("message"), value.get("thinking"), value.get("tool_calls")]
    if value.get("error"):
        return Meaning.END
    return _made(said, ended=value.get("done") is not False)


def only_usage(data: bytes) -> bool:
    """True if an event is only there to report usage."""
    value = _object(data)
    return (
        value is not None and isinstance(value.get("usage"), dict) and not (value.get("choices") or value.get("error"))
    )


def _after(data: bytes, end: bytes) -> int:
    at = data.rfind(end)
    return 0 if at < 0 else at + len(end)


def _object(data: bytes) -> dict[str, object] | None:
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _meaning_of_object(name: bytes, value: dict[str, object]) -> Meaning:
    if value.get("error") or value.get("object") == "error":
        return Meaning.END
    for kind in (value.get("type"), name.decode("latin-1"), value.get("object"), value.get("event")):
        if isinstance(kind, str) and (known := _meaning_of_kind(kind, value)) is not None:
            return known
    choices = value.get("choices")
    if isinstance(choices, list) and choices:
        return _meaning_of_choices(choices)
    if value.get("usage"):
        return Meaning.END
    if "choices" in value or value.get("object") in _CHUNKS:
        return Meaning.EMPTY
    if "stop" in value and "content" in value:  # llama.cpp's own
        return _made([value["content"], value.get("tokens")], ended=bool(value["stop"]))
    meta = value.get("meta_info")
    if isinstance(meta, dict):  # SGLang's own
        said = [value.get("text"), value.get("output_ids"), meta.get("completion_tokens")]
        return _made(said, ended=bool(meta.get("finish_reason")))
    return Meaning.EMPTY if _is_blank(value) else Meaning.TOKEN


def _meaning_of_kind(kind: str, value: dict[str, object]) -> Meaning | None:
    """Returns the class of an event that tells its kind; None: the kind is unknown."""
    if kind == "ping":
        return Meaning.ASIDE
    if kind in _ANNOUNCEMENTS or _KEEP_ALIVE.fullmatch(kind):  # one that keeps alive has its number in the answer
        return Meaning.EMPTY
    if kind in _ENDS or kind.endswith(".done"):
        return Meaning.END
    if kind in _BEGINNINGS:
        part = value.get(_BEGINNINGS[kind])
        if not isinstance(part, dict):
            return Meaning.TOKEN
        if kind == "response.output_item.added":
            empty = part.get("type") in _TEXTS and _is_blank([part.get("content"), part.get("summary")])
        else:
            empty = (kind != "content_block_start" or part.get("type") in _TEXTS) and _is_blank(part)
        return Meaning.EMPTY if empty else Meaning.TOKEN
    if kind.endswith(".delta"):
        return Meaning.EMPTY if "delta" in value and _is_blank(value["delta"]) else Meaning.TOKEN
    return None


def _meaning_of_choices(choices: list[object]) -> Meaning:
    ended = False
    for choice in choices:
        if not isinstance(choice, dict):
            if choice:
                return Meaning.TOKEN
            continue
        for name, inner in choice.items():
            if name in _REASONS:
                ended = ended or bool(inner)
            elif name not in _LABELS and not _is_blank(inner):
                return Meaning.TOKEN
    return Meaning.END if ended else Meaning.EMPTY


def _made(said: list[object], *, ended: bool) -> Meaning:
    if not _is_blank(said):
        return Meaning.TOKEN
    return Meaning.END if ended else Meaning.EMPTY


def _is_blank(value: object) -> bool:
    """True if there is no content in it, however deep."""
    if isinstance(value, dict):
        return all(name in _LABELS or _is_blank(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(_is_blank(inner) for inner in value)
    return not value
