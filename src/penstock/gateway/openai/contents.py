"""A body's contents: text, token ids, pictures, sounds, videos and documents.

They are found by patterns, without decoding the body. A piece is recognised by its part's type (`"type":"image_url"`,
`"input_audio"`, `"document"`, …), because text cannot contain unescaped quotes. Its data, base64 of kilobytes, is found
by looking at 64 bytes in each 4,096: text is seldom so even, and data has a data URL's head, a field's name or a file's
first bytes before it. The rest counts as text. Fields that no model reads (`UNREAD`) do not count, unless data was
found, which may be theirs. No answer depends on it: a piece that is missed is a worse estimate.

A list may hold texts, token ids, lists of ids, or ids and texts mixed. Without its strings only its separators are
left, and these are counted: a list with a number is one prompt, any other has as many prompts as elements.

Of a small body all is done in one go; of a large one in steps (`weigh`), so that others' tokens get through in between.
A step counts what begins in it, also if that ends in the next one, so both ways find the same.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from penstock.core.values.request import Contents
from penstock.gateway.openai.fields import NOTHING, OF_CHATS, SEVERAL, UNREAD, Named, Text
from penstock.gateway.openai.scan import STRING, Span, at_once, string_end

PIECES_MAX: Final = 10_000  # counted in one go; engines take some hundreds
STRIDE_BYTES: Final = 4096  # data that is shorter counts as text
_STEP_BYTES: Final = 1024 * 1024
_STEP_STRIDES: Final = 4096
_LIST_STEP_BYTES: Final = 16 * 1024  # of short strings: a millisecond
_ELEMENTS_MAX: Final = (
    500_000  # strings and lists in a list, counted: a quarter of a second; engines take some thousands
)
_BEFORE_BYTES: Final = 128  # in which a data URL's head or a field's name stands
_QUESTION_BYTES_MAX: Final = 64 * 1024

_TYPE: Final = re.compile(
    rb'"type"\s{0,9}:\s{0,9}"(?:(image|image_url|input_image|image_pil|image_embeds)'
    rb"|(audio|audio_url|input_audio|audio_embeds)|(video|video_url|input_video)|(file|input_file|document|file_url))\""
)
_TYPE_BYTES: Final = 64  # as much as it may match, and more
_DATA: Final = re.compile(rb"[A-Za-z0-9+/=_\\-]{64}")
_DATA_TAIL: Final = re.compile(rb"[A-Za-z0-9+/=_\\-]{8}")
_BASE64: Final = b";base64,"
_HEAD: Final = re.compile(rb"data:(?:(image)|(audio)|(video)|(?:application|text))/[^,\"]{0,100};base64,$")
_NAME: Final = re.compile(
    rb'"(?:(images?|image_data|image_url|b64_json)|(audio|audio_data)|(video|video_data)|(?:file_data|prompt_embeds|data))"'
    rb'\s{0,9}:\s{0,9}\[?\s{0,9}"$'
)
_FIRST_BYTES: Final = re.compile(  # PNG, JPEG, GIF and WebP; WAV, MP3, OGG and FLAC; MP4 and WebM; PDF
    rb"(iVBOR|\\?/9j|R0lGOD|UklGR.{6}XRUJQ)|(UklGR|SUQz|\\?/\\?/[uv]|T2dn|ZkxhQ)|(AAAA.{3,4}Z0eX|GkXfo)|(?:JVBER)"
)
_PART: Final = re.compile(  # not of messages, tools or calls of these
    rb'\[\s{0,9}\{\s{0,9}"(?!(?:role|content|name|id|index|function)"|type"\s{0,9}:\s{0,9}"function")'
)
_BEFORE_PART: Final = b"{ \n\r\t"
_LISTS: Final = 4  # looked at, which takes half a microsecond
_END_BYTES: Final = 1024  # the address of a picture, and a short text after it
_LOOKS: Final = 8  # for data, if it is a relevant part of the body
_BESIDE_BYTES: Final = (
    1024  # beside token ids: a model's name and options, which are no prompt; more of it counts as text
)
_HEAD_BYTES: Final = 256  # as much as `_SEVERAL` may match: lists come indented, too
_SEVERAL: Final = re.compile(  # the last one: conversations
    rb'\s{0,80}\[\s{0,80}(?:["\d]|\[\s{0,80}["\d{])'
)
_UNPARTED: Final = re.compile(rb'(?>(?:[^"]++|' + STRING + rb")*)", re.DOTALL)  # as far as no string is cut
_STRINGS: Final = re.compile(STRING, re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]]")
_DIGIT: Final = re.compile(rb"\d")
_DOCUMENT: Final = 3  # neither picture, sound nor video

#: Data found: its span, and its kind in `Pieces`.
Found = tuple[int, int, int]
#: Pictures, sounds, videos and documents.
Pieces = tuple[int, int, int, int]
#: Inputs, token ids, and the bytes of those ids.
Inputs = tuple[int, int, int]

_NO_PIECES: Pieces = (0, 0, 0, 0)


def contents(body: bytes, text: Named, answers: int) -> Contents:
    """Returns the contents of a small body; `answers` are wanted of each input."""
    chat = text.messages is not NOTHING  # then no field of text is a list of inputs
    size = len(body)
    if size > STRIDE_BYTES:
        size -= _unread_bytes(text)
    if chat and body.find(b"[", body.find(b"[") + 1) < 0:  # that of its messages is the only list
        return Contents(size, 0, 0, 0, 0, 0, 1, answers)
    found: list[Found] = []
    if len(body) > STRIDE_BYTES:
        stride = max(STRIDE_BYTES, len(body) // _LOOKS)
        if stride == STRIDE_BYTES or _is_data(body, stride):
            found, _ = _find_data(body, STRIDE_BYTES, len(body))
    if found:
        pieces = _sum([_typed(body, *gap) for gap in _beside(body, found)])
    else:
        at = _first_part(body)
        pieces = _NO_PIECES if at < 0 else _typed(body, at, len(body))
    inputs = (1, 0, 0)
    for name in OF_CHATS if chat else SEVERAL:
        raw: msgspec.Raw = getattr(text, name)
        if raw is not NOTHING and _SEVERAL.match(bytes(memoryview(raw)[:_HEAD_BYTES])) is not None:
            given = bytes(raw)
            inputs = _larger(inputs, at_once(_inputs(given, 0, len(given))))
    if chat and not found and pieces == _NO_PIECES and inputs[0] == 1 and not inputs[1]:
        return Contents(size, 0, 0, 0, 0, 0, 1, answers)
    return _whole(len(body) if found else size, found, pieces, inputs, text=text, answers=answers)


def weigh(body: bytes, text: Named, spans: Sequence[Span], answers: int) -> Generator[None, None, Contents]:
    """Find the contents of a large body, in steps. `spans`: of the fields that may hold several inputs."""
    found: list[Found] = []
    at = STRIDE_BYTES
    while at < len(body):
        more, at = _find_data(body, at, at + _STEP_STRIDES * STRIDE_BYTES)
        found += more
        yield
    pieces = _NO_PIECES
    for begin, end in _beside(body, found):
        for at in range(begin, end, _STEP_BYTES):
            if sum(pieces) < PIECES_MAX:
                cut = at + _STEP_BYTES
                pieces = _sum((pieces, _typed(body, at, min(cut + _TYPE_BYTES, end), cut)))
                yield
    inputs = (1, 0, 0)
    for begin, end in spans:
        if _SEVERAL.match(body, begin, end) is not None:
            given = yield from _inputs(body, begin, end)
            inputs = _larger(inputs, given)
    size = len(body) if found or len(body) <= STRIDE_BYTES else len(body) - _unread_bytes(text)
    return _whole(size, found, pieces, inputs, text=text, answers=answers)


def _unread_bytes(text: Named) -> int:
    return sum([len(memoryview(getattr(text, name))) for name in UNREAD])


def _whole(
    text_bytes: int, found: Sequence[Found], pieces: Pieces, inputs: Inputs, *, text: Text, answers: int
) -> Contents:
    if inputs[1]:
        names = [name for name in Text.__struct_fields__ if name not in UNREAD]
        told = sum([len(memoryview(getattr(text, name))) for name in names]) - inputs[2]
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
        max(0, text_bytes),
        token_ids=inputs[1],
        pictures=pieces[0],
        sounds=pieces[1],
        videos=pieces[2],
        documents=pieces[3],
        inputs=inputs[0],
        answers=answers * inputs[0],
    )


# --- several inputs -----------------------------------------------------------------------------------------


def _inputs(body: bytes, begin: int, end: int) -> Generator[None, None, Inputs]:
    """Count a list's inputs and its token ids, in steps. More than `_ELEMENTS_MAX` elements are not all counted."""
    seen, at = _Separators(), begin
    while at < end and seen.elements < _ELEMENTS_MAX:
        run = _UNPARTED.match(body, at, min(at + _LIST_STEP_BYTES, end))
        assert run is not None, "it matches nothing, too"
        until = run.end()
        if until == at:  # a string longer than a step
            until = yield from string_end(body, at + 1)
            seen.add(b'""', until - at - 2)
        else:
            bare = _STRINGS.sub(b'""', body[at:until])
            seen.add(bare, until - at - len(bare))
        at = until
        yield
    ids = max(0, seen.commas + 1 - seen.strings)
    return (1 if seen.has_number else seen.outer_commas + 1), ids, end - begin - seen.text_bytes


class _Separators:
    """What a list has between its strings."""

    __slots__ = ("_depth", "commas", "elements", "has_number", "outer_commas", "strings", "text_bytes")

    def __init__(self) -> None:
        self._depth = 0
        self.elements = 0  # strings and lists
        self.commas = self.strings = self.text_bytes = 0
        self.outer_commas = 0  # of the list itself, not of lists in it
        self.has_number = False  # the list itself

    def add(self, bare: bytes, text_bytes: int) -> None:
        """Count a piece of the list, whose strings held `text_bytes` and are empty now."""
        strings, at = bare.count(b'"') // 2, 0
        for bracket in _BRACKET.finditer(bare):
            self._between(bare, at, bracket.start())
            self._depth += 1 if bracket[0] == b"[" else -1
            self.elements += 1
            at = bracket.end()
        self._between(bare, at, len(bare))
        self.commas += bare.count(b",")
        self.elements += strings
        self.strings += strings
        self.text_bytes += text_bytes + 2 * strings

    def _between(self, bare: bytes, begin: int, end: int) -> None:
        if self._depth == 1 and begin < end:
            self.outer_commas += bare.count(b",", begin, end)
            self.has_number = self.has_number or _DIGIT.search(bare, begin, end) is not None


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


def _typed(body: bytes, begin: int, end: int, cut: int | None = None) -> Pieces:
    """Count the types between `begin` and `end`; of a step those that begin before its `cut`."""
    if _TYPE.search(body, begin, end) is None:
        return _NO_PIECES
    pieces = [0, 0, 0, 0]
    for found in islice(_TYPE.finditer(body, begin, end), PIECES_MAX):
        if cut is not None and found.start() >= cut:
            break
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


def _find_data(body: bytes, at: int, until: int) -> tuple[list[Found], int]:
    """Returns the data found by looks between `at` and `until`, and where to look next."""
    found: list[Found] = []
    until = min(until, len(body))
    while at < until:
        if _DATA.match(body, at) is not None and (data := _data_at(body, at)) is not None:
            found.append(data)
            at = data[1]
        at += STRIDE_BYTES
    return found, at


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
