"""A body's contents: text, token ids, pictures, sounds, videos and documents.

They are found by patterns, without decoding the body. A piece is recognised by its part's type (`"type":"image_url"`,
`"input_audio"`, `"document"`, …), because text cannot contain unescaped quotes. Its data, base64 of kilobytes, is found
by looking at 64 bytes in each 4,096: text is seldom so even, and data has a data URL's head, a field's name or a file's
first bytes before it. The rest counts as text. Several inputs are counted by their separators. No answer depends on it:
a piece that is missed is a worse estimate.

Of a small body all is done in one go; of a large one in steps (`weigh`), so that others' tokens get through in between.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from penstock.core.values.request import Contents
from penstock.gateway.openai.fields import NOTHING, SEVERAL, TOKEN_IDS, Text
from penstock.gateway.openai.scan import Span

PIECES_MAX = 10_000  # counted in one go; engines take some hundreds
STRIDE_BYTES = 4096  # data that is shorter counts as text
_STEP_BYTES = 1024 * 1024
_STEP_STRIDES = 4096
_BEFORE_BYTES = 128  # in which a data URL's head or a field's name stands
_QUESTION_BYTES_MAX = 64 * 1024

_TYPE = re.compile(
    rb'"type"\s{0,9}:\s{0,9}"(?:(image|image_url|input_image|image_pil|image_embeds)'
    rb"|(audio|audio_url|input_audio|audio_embeds)|(video|video_url|input_video)|(file|input_file|document|file_url))\""
)
_DATA = re.compile(rb"[A-Za-z0-9+/=_\\-]{64}")
_DATA_TAIL = re.compile(rb"[A-Za-z0-9+/=_\\-]{8}")
_BASE64 = b";base64,"
_HEAD = re.compile(rb"data:(?:(image)|(audio)|(video)|(?:application|text))/[^,\"]{0,100};base64,$")
_NAME = re.compile(
    rb'"(?:(images?|image_data|image_url|b64_json)|(audio|audio_data)|(video|video_data)|(?:file_data|prompt_embeds|data))"'
    rb'\s{0,9}:\s{0,9}\[?\s{0,9}"$'
)
_FIRST_BYTES = re.compile(  # PNG, JPEG, GIF and WebP; WAV, MP3, OGG and FLAC; MP4 and WebM; PDF
    rb"(iVBOR|\\?/9j|R0lGOD|UklGR.{6}XRUJQ)|(UklGR|SUQz|\\?/\\?/[uv]|T2dn|ZkxhQ)|(AAAA.{3,4}Z0eX|GkXfo)|(?:JVBER)"
)
_PART = re.compile(  # not of messages, tools or calls of these
    rb'\[\s{0,9}\{\s{0,9}"(?!(?:role|content|name|id|index|function)"|type"\s{0,9}:\s{0,9}"function")'
)
_BEFORE_PART = b"{ \n\r\t"
_LISTS = 4  # looked at, which takes half a microsecond
_END_BYTES = 1024  # the address of a picture, and a short text after it
_LOOKS = 8  # for data, if it is a relevant part of the body
_BESIDE_BYTES = 1024  # beside token ids: a model's name and options, which are no prompt; more of it counts as text
_HEAD_BYTES = 256  # as much as `_SEVERAL` may match: lists come indented, too
_SEVERAL = re.compile(rb'\s{0,80}\[\s{0,80}(?:(")|(\d)|\[\s{0,80}(\d))')
_DOCUMENT = 3  # neither picture, sound nor video

#: Data found: its span, and its kind in `Pieces`.
Found = tuple[int, int, int]
#: Pictures, sounds, videos and documents.
Pieces = tuple[int, int, int, int]
#: Inputs, token ids, and the bytes of those ids.
Inputs = tuple[int, int, int]
#: Of a list: its commas, brackets that open, places between two strings, and quotes.
Counts = tuple[int, int, int, int]

_NO_PIECES: Pieces = (0, 0, 0, 0)


def contents(body: bytes, text: Text, answers: int) -> Contents:
    """Returns the contents of a small body; `answers` are wanted of each input."""
    chat = text.messages is not NOTHING  # no other field is a list of inputs
    if chat and body.find(b"[", body.find(b"[") + 1) < 0:  # that of its messages is the only list
        return Contents(len(body), 0, 0, 0, 0, 0, 1, answers)
    found: list[Found] = []
    if len(body) > STRIDE_BYTES:
        stride = max(STRIDE_BYTES, len(body) // _LOOKS)
        if stride == STRIDE_BYTES or _is_data(body, stride):
            found = _find_data(body, STRIDE_BYTES, len(body))
    if found:
        pieces = _sum([_typed(body, *gap) for gap in _beside(body, found)])
    else:
        at = _first_part(body)
        pieces = _NO_PIECES if at < 0 else _typed(body, at, len(body))
    inputs = (1, 0, 0)
    for name in TOKEN_IDS if chat else SEVERAL:
        raw: msgspec.Raw = getattr(text, name)
        if raw is not NOTHING and _SEVERAL.match(bytes(memoryview(raw)[:_HEAD_BYTES])) is not None:
            given = bytes(raw)
            kind = _SEVERAL.match(given)
            assert kind is not None, "the beginning is the same"
            inputs = _larger(inputs, _inputs(kind, len(given), _count(given, 0, len(given))))
    if chat and not found and pieces is _NO_PIECES and not inputs[1]:
        return Contents(len(body), 0, 0, 0, 0, 0, 1, answers)
    return _whole(body, found, pieces, inputs, text=text, answers=answers)


def weigh(body: bytes, text: Text, spans: Sequence[Span], answers: int) -> Generator[None, None, Contents]:
    """Find the contents of a large body, in steps. `spans`: of the fields that may hold several inputs."""
    found: list[Found] = []
    at = STRIDE_BYTES
    while at < len(body):
        until = at + _STEP_STRIDES * STRIDE_BYTES
        found += _find_data(body, at, until)
        at = max(until, found[-1][1] if found else 0)
        yield
    pieces = _NO_PIECES
    for begin, end in _beside(body, found):
        for at in range(begin, end, _STEP_BYTES):
            if sum(pieces) < PIECES_MAX:
                pieces = _sum((pieces, _typed(body, at, min(at + _STEP_BYTES, end))))
                yield
    inputs = (1, 0, 0)
    for begin, end in spans:
        kind = _SEVERAL.match(body, begin, end)
        if kind is not None:
            counts: Counts = (0, 0, 0, 0)
            for at in range(begin, end, _STEP_BYTES):
                step = _count(body, at, min(at + _STEP_BYTES, end))
                counts = (counts[0] + step[0], counts[1] + step[1], counts[2] + step[2], counts[3] + step[3])
                yield
            inputs = _larger(inputs, _inputs(kind, end - begin, counts))
    return _whole(body, found, pieces, inputs, text=text, answers=answers)


def _whole(
    body: bytes, found: Sequence[Found], pieces: Pieces, inputs: Inputs, *, text: Text, answers: int
) -> Contents:
    text_bytes = len(body)
    if inputs[1]:
        told = sum([len(memoryview(getattr(text, name))) for name in Text.__struct_fields__]) - inputs[2]
        text_bytes = max(0, told, text_bytes - inputs[2] - _BESIDE_BYTES)
    if inputs[0] > 1 and (text.query is not NOTHING or text.text_1 is not NOTHING):  # asked of each of them again
        question = max(len(bytes(text.query)), len(bytes(text.text_1)))
        text_bytes += (inputs[0] - 1) * min(question, _QUESTION_BYTES_MAX)
    if found:
        of_data = [0, 0, 0, 0]
        for begin, end, kind in found:
            text_bytes -= end - begin
            of_data[kind] += 1
        one, two, three, four = of_data
        pieces = max(pieces[0], one), max(pieces[1], two), max(pieces[2], three), max(pieces[3], four)
    return Contents(
        max(0, text_bytes), inputs[1], pieces[0], pieces[1], pieces[2], pieces[3], inputs[0], answers * inputs[0]
    )


# --- several inputs -----------------------------------------------------------------------------------------


def _count(body: bytes, begin: int, end: int) -> Counts:
    between = body.count(b'","', begin, end) + body.count(b'", "', begin, end)
    return body.count(b",", begin, end), body.count(b"[", begin, end), between, body.count(b'"', begin, end)


def _inputs(kind: re.Match[bytes], size: int, counts: Counts) -> Inputs:
    commas, brackets, between, quotes = counts
    if kind[1] is not None:
        return 1 + between, 0, 0
    if quotes:  # ids and text mixed, as llama.cpp takes them: all of it counts as text
        return 1, 0, 0
    return (1 if kind[2] is not None else max(1, brackets - 1)), commas + 1, size


def _larger(one: Inputs, other: Inputs) -> Inputs:
    return max(one[0], other[0]), one[1] + other[1], one[2] + other[2]


# --- pieces by their type -----------------------------------------------------------------------------------


def _first_part(body: bytes) -> int:
    """Returns the possible beginning of the first list of parts, or -1: a body of mere text is not searched for types,
    which would take as long as parsing it.

    The first few lists show it, or the end of the body with the last message. In Markdown and code there are brackets
    by the thousand, and to look at each would take longer still.
    """
    at = -1
    for _ in range(_LISTS):
        at = body.find(b"[", at + 1)
        if at < 0 or (body[at + 1] in _BEFORE_PART and _PART.match(body, at) is not None):
            return at
    return at if _TYPE.search(body, max(at, len(body) - _END_BYTES)) is not None else -1


def _typed(body: bytes, begin: int, end: int) -> Pieces:
    if _TYPE.search(body, begin, end) is None:
        return _NO_PIECES
    pieces = [0, 0, 0, 0]
    for found in islice(_TYPE.finditer(body, begin, end), PIECES_MAX):
        pieces[(found.lastindex or 0) - 1] += 1
    return pieces[0], pieces[1], pieces[2], pieces[3]


def _beside(body: bytes, found: Sequence[Found]) -> Iterator[Span]:
    """Yields the parts before, between and after the data."""
    at = 0
    for begin, end, _ in found:
        yield at, begin
        at = end
    yield at, len(body)


def _sum(several: Iterable[Pieces]) -> Pieces:
    one = two = three = four = 0
    for pieces in several:
        one, two, three, four = one + pieces[0], two + pieces[1], three + pieces[2], four + pieces[3]
    return one, two, three, four


# --- their data ---------------------------------------------------------------------------------------------


def _is_data(body: bytes, stride: int) -> bool:
    """Whether any of it may be data that is longer than a stride."""
    return any(_DATA.match(body, at) is not None for at in range(stride // 2, len(body), stride))


def _find_data(body: bytes, at: int, until: int) -> list[Found]:
    """Data that begins between `at` and `until`; the last piece may end after `until`."""
    found: list[Found] = []
    until = min(until, len(body))
    while at < until:
        if _DATA.match(body, at) is not None and (data := _data_at(body, at)) is not None:
            found.append(data)
            at = data[1]
        at += STRIDE_BYTES
    return found


def _data_at(body: bytes, at: int) -> Found | None:
    """The data in the middle of which these bytes are; None: they are text after all."""
    low = max(0, at - STRIDE_BYTES - _BEFORE_BYTES)
    begin = body.rfind(b'"', low, at) + 1
    head = body.rfind(_BASE64, max(low, begin), at)
    if head >= 0:
        begin = head + len(_BASE64)
    elif not begin:
        return None
    before = body[max(0, begin - _BEFORE_BYTES) : begin]
    named, first = _HEAD.search(before) or _NAME.search(before), _FIRST_BYTES.match(body, begin)
    if named is None and first is None:
        return None
    end = body.find(b'"', at)
    if end < 0:
        end = len(body)
    elif _DATA_TAIL.fullmatch(body, end - 8, end) is None:  # in the middle of a text, as Markdown has it
        bracket = body.find(b")", at, end)
        end = end if bracket < 0 else bracket
    kind = (named.lastindex if named is not None else None) or (first.lastindex if first is not None else None)
    return begin, end, _DOCUMENT if kind is None else kind - 1
