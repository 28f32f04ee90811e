"""How a stream ended, by its last events.

`[DONE]` is no proof of success (docs/design.md#failure): engines send it after an error event, too, and after an abort.
Only the stream's tail is kept and parsed, once, at the end. The patterns are safe against a model's text: inside of
JSON its quotes and line breaks are escaped.

A stream without a finish reason is whole if it ends as HTTP goes: some engines give none with tool calls, others never
(docs/decisions/0111).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from penstock.gateway.openai.answers.events import fields, in_one_line
from penstock.gateway.openai.fields import AnswerFields

TAIL_BYTES: Final = 4096  # the last token, usage and [DONE] are some 600 bytes; this leaves room for many choices

_ERROR: Final = re.compile(
    rb'^(?:data: ?\{\s*"(?:error"\s*:\s*(?!null)|object"\s*:\s*"error"|type"\s*:\s*"(?:error|response\.failed)")'
    rb"|event: ?(?:error|response\.failed)\s)",
    re.MULTILINE,
)
_ABORTED: Final = re.compile(rb'"finish_reason": ?"abort"')
# 408 and 429 are the engine's: another one may answer.
_OF_CALLER: Final = re.compile(
    rb'"(?:code|status|status_code)"\s*:\s*"?4(?!08|29)\d\d\b|"error_type"\s*:\s*"validation"'
    rb'|"type"\s*:\s*"(?:invalid_request_error|BadRequestError)"'
)
_LINE_ERROR: Final = re.compile(rb'^\{"error"', re.MULTILINE)
_LINE_DONE: Final = re.compile(rb'"done": ?true|"total_duration":')  # the last line may be longer than the kept part
_decode_answer: Final = msgspec.json.Decoder(AnswerFields).decode
_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
_WITH_FINISH_REASON: Final = frozenset({"/v1/chat/completions", "/v1/completions"})


def stillborn(event: bytes, *, first: bool) -> bool:
    """True if the first real event is an error.

    Then nothing was computed, so another engine may be asked. A request that is queued inside an engine gets a bare
    `[DONE]` (`first`: nothing came before it), or an error, when the engine stops. A client error would be the same
    anywhere, so it counts as an answer.
    """
    name, data = fields(event)
    if data is None:
        return False
    failed = data == b"[DONE]" if first else False
    return failed or (_ERROR.match(in_one_line(name, data)) is not None and not of_caller(data))


def of_caller(error: bytes | bytearray) -> bool:
    """True if an error is the client's: it would be the same at any engine."""
    return _OF_CALLER.search(error) is not None


def whole_error(answer: bytes | bytearray) -> bool:
    """True if an answer that is not a stream is an error, even with status 200."""
    if answer.find(b'error"') < 0:
        return False
    try:
        told = _decode_answer(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return told.kind == "error" or bool(told.error)


def line_tells_error(tail: bytes | bytearray) -> bool:
    """True if the engine reported that its stream of JSON lines failed."""
    return _LINE_ERROR.search(tail) is not None


def lines_ended_well(tail: bytes) -> bool:
    """True if a stream of JSON lines (Ollama's), whole as HTTP goes, is an answer and not a failure."""
    return not line_tells_error(tail) and _LINE_DONE.search(tail[tail.rfind(b"\n", 0, -1) + 1 :]) is not None


def aborted(path: str, answer: bytes) -> bool:
    """True if an answer that is not a stream was cut short, because its engine went to sleep or stopped."""
    return answer.find(b'"abort"') >= 0 and path in _WITH_FINISH_REASON and _ABORTED.search(answer) is not None


def ends_itself(path: str) -> bool:
    """True if engines end streams on that path with `[DONE]`: then nothing is appended."""
    return path in _WITH_FINISH_REASON


def tells_error(tail: bytes | bytearray) -> bool:
    """True if the engine reported that its stream of events failed."""
    # Searching for a word costs a tenth of parsing each line; hardly any tail has one.
    return (b"error" in tail or b"failed" in tail) and _ERROR.search(tail) is not None


def cut_off(tail: bytes, *, within: bool = False) -> bool:
    """True if the last event has no end. It is the only sign for an answer that ends with its connection.

    `within`: the event began before `tail`.
    """
    line = tail[tail.rfind(b"\n") + 1 :]
    begun = within or (line.startswith(b"data:") and line != b"data:")
    return begun and not line.endswith((b"]", b"}", b"\r"))


def json_cut_off(text: bytes) -> bool:
    """True if an object or a list of JSON has no end."""
    if ends_open(text, text):
        return True
    try:
        _skip(text)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    return False


def ends_open(head: bytes, tail: bytes) -> bool:
    """The same by the first and the last bytes of a text, as far as they show it."""
    return head.lstrip()[:1] in (b"{", b"[") and tail.rstrip()[-1:] not in (b"}", b"]")


def tells_abort(tail: bytes) -> bool:
    """True if the engine reported that it cut the stream short."""
    return _ABORTED.search(tail) is not None


def ended_well(path: str, tail: bytes) -> bool:
    """True if a stream of server-sent events, whole as HTTP goes, is an answer and not a failure."""
    if (b"error" in tail or b"failed" in tail) and tells_error(tail):
        return False
    if b'"abort"' in tail and tells_abort(tail):
        return False
    if path == "/generate_stream":  # TGI: its last event holds the whole text, which may be longer than the tail
        return b'"generated_text":null' not in tail[tail.rfind(b"\ndata:") + 1 :].replace(b": ", b":")
    return True


def is_api_error(body: bytes | bytearray) -> bool:
    """True if an error's body is that of a known API, and not a web server's own."""
    try:
        page = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(page, dict) and (bool(page.get("error")) or page.get("object") == "error")
