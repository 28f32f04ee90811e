"""Reading a request's body for scheduling.

The body is read once, only for the relevant fields; everything else passes as bytes, and no unbounded value is decoded.
Anything but a JSON object with a model is refused before it reaches an engine. A small body is read in one go, a large
one in steps (`read_large`), others' tokens in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from penstock.core.values.request import Contents
from penstock.gateway.openai import scan
from penstock.gateway.openai.contents import contents, weigh
from penstock.gateway.openai.fields import NOTHING, OF_CHATS, SEVERAL, TOKENS_MAX, Fields, Named, Own, Plain
from penstock.gateway.openai.splice import Body, Spliced, add_first, set_field, set_in_bytes, values_of

VALUE_BYTES_MAX: Final = 4096  # of a decoded field: names, numbers, a few options
OWN_BYTES_MAX: Final = 64 * 1024  # of an engine's own parameters, which may have limits
ANSWERS_MAX: Final = 128  # engines refuse more, or have a bound of their own
_decode: Final = msgspec.json.Decoder(Fields).decode
_decode_plain: Final = msgspec.json.Decoder(Plain).decode
_decode_own: Callable[[msgspec.Raw], Own | list[Own]] = msgspec.json.Decoder(Own | list[Own]).decode
_value: Final = msgspec.json.Decoder().decode
QUERY_FIELDS_MAX: Final = 100
FLAG_BYTES_MAX: Final = 8  # `"false"` has seven; a longer value is none
# Engines read flags as pydantic does, which takes these, strings in any case.
_TRUE: Final = frozenset({b"true", b"1", b"1.0", b"yes", b"on", b"t", b"y"})
_FALSE: Final = frozenset({b"false", b"0", b"0.0", b"no", b"off", b"f", b"n"})
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ASKING: Final = {"include_usage": b"true"}
_ASKING_ONCE: Final = {**_ASKING, "continuous_usage_stats": b"false"}  # vLLM adds usage to each chunk if both are true


#: Returns the same body with one field more, or another value of it.
AskUsage = Callable[[Body], Body]


class Peek:
    """A body's values for scheduling."""

    __slots__ = (
        "answers", "background", "model", "output_tokens_max", "previous_response", "priority", "service_tier",
        "stream", "stream_options", "text", "user", "whole",
    )  # fmt: skip

    def __init__(
        self,
        model: str | None,
        *,
        stream: bool,
        whole: bool = False,
        output_tokens_max: int | None = None,
        answers: int = 1,
        stream_options: object = msgspec.UNSET,
        user: object = None,
        service_tier: object = None,
        priority: object = None,
        previous_response: object = None,
        text: Named | None = None,
        background: bool = False,
    ) -> None:
        self.model = model  #: a path may have another field for it
        self.stream: Final = stream
        self.whole: Final = whole  #: streaming is explicitly off
        self.output_tokens_max = output_tokens_max  #: its key may allow less
        self.answers: Final = answers  #: wanted of each input
        self.stream_options: Final = stream_options  #: these five as they came, of any type
        self.user: Final = user
        self.service_tier: Final = service_tier
        self.priority: Final = priority
        self.previous_response: Final = previous_response  #: the answer this one goes on from
        self.text: Final = text  #: the prompt's fields; None: not JSON
        self.background: Final = background  #: it may be computed after it was answered


class Read:
    """A body that was read."""

    __slots__ = ("body", "contents", "peek")

    def __init__(
        self,
        peek: Peek,
        body: Body,
        contents: Contents,
    ) -> None:
        self.peek: Final = peek
        self.body: Final = body
        self.contents: Final = contents


class BadBody(Exception):  # noqa: N818 - it says what it is
    """The body can't be scheduled; the text is for the client."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def peek(body: bytes) -> Peek:
    """Read the fields that scheduling needs. Raises `BadBody`."""
    if not body:
        raise BadBody("The request has no body; a JSON object is expected.")
    try:
        try:
            fields: Plain | Fields = _decode_plain(body)
        except (msgspec.DecodeError, RecursionError):
            fields = _decode(body)  # which raises the error, if any
        if not body.isascii():
            str(body, "utf-8")
    except RecursionError:
        raise BadBody("The body is nested too deeply.") from None
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise _unreadable(body, error) from None
    return _peek_plain(fields) if isinstance(fields, Plain) else _peek(fields)


def _unreadable(body: bytes, error: Exception) -> BadBody:
    """Returns the problem of an unreadable body: first its encoding, if not UTF-8."""
    if body[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in body[:2]:
        return BadBody("The body is not valid UTF-8: it looks like UTF-16 or UTF-32. JSON is sent as UTF-8.")
    if isinstance(error, UnicodeDecodeError):
        return BadBody(f"The body is not valid UTF-8 (byte {_first_bad(body, error)}).")
    if isinstance(error, scan.Malformed):
        return BadBody(str(error))
    if isinstance(error, msgspec.ValidationError):
        return BadBody("The body is not a JSON object.")
    try:
        scan.at_once(scan.check_surrogates(body))
    except scan.Malformed as half:
        return BadBody(str(half))
    return BadBody(f"The body is not valid JSON: {error}.")


def _first_bad(body: bytes, error: UnicodeDecodeError) -> int:
    """Returns where UTF-8 ends in the body; `error` may be about a part of it."""
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as whole:
        return whole.start
    return error.start


def unmarked(body: bytes) -> bytes:
    """Returns the body without a byte order mark, which most engines' parsers skip and some refuse (RFC 8259, 8.1)."""
    return body[len(_BYTE_ORDER_MARK) :] if body.startswith(_BYTE_ORDER_MARK) else body


def read(body: bytes, *, pooled: bool) -> Read:
    """Read a small body. `pooled`: its answer is no text. Raises `BadBody`."""
    if body.startswith(_BYTE_ORDER_MARK):
        body = unmarked(body)
    found = peek(body)
    assert found.text is not None
    return Read(found, body, contents(body, found.text, 0 if pooled else found.answers))


def read_large(body: bytes, *, pooled: bool) -> Generator[None, None, Read]:
    """Read a large body, in steps. `pooled`: its answer is no text. Raises `BadBody`."""
    try:
        fields = yield from scan.scan(body)
    except scan.Malformed as error:
        raise _unreadable(body, error) from None
    spliced = Spliced(body, fields)
    found = _peek(spliced.fields(Fields))
    assert found.text is not None
    names = SEVERAL if found.text.messages is NOTHING else OF_CHATS
    spans = [span for name in names if (span := fields.last(name)) is not None]
    weighed = yield from weigh(body, found.text, spans, 0 if pooled else found.answers)
    return Read(found, spliced, weighed)


def _peek_plain(plain: Plain) -> Peek:
    """Returns the same fields as `_peek`."""
    if plain.model == "":
        raise BadBody("`model` must be a non-empty string.", "model")
    limit = 0  # of several the largest, which is the most that an engine may take
    for given in (plain.max_completion_tokens, plain.max_tokens, plain.max_output_tokens):
        if given is not None and given > limit:
            limit = given
    options = plain.stream_options
    return Peek(
        plain.model,
        stream=plain.stream is True,
        whole=plain.stream is False,
        output_tokens_max=limit or None,
        stream_options=msgspec.UNSET if options is NOTHING else _built("stream_options", options),
        user=plain.user,
        service_tier=plain.service_tier,
        priority=plain.priority,
        previous_response=plain.previous_response_id,
        text=plain,
    )


def _peek(fields: Fields) -> Peek:
    model = None if fields.model is NOTHING else _built("model", fields.model)
    if model is not None and not (isinstance(model, str) and model):
        raise BadBody("`model` must be a non-empty string.", "model")
    limit = 0
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict"):
        limit = max(limit, _tokens(name, getattr(fields, name)))
    answers = 1
    if fields.n is not NOTHING or fields.best_of is not NOTHING:
        answers = max(_count("n", fields.n), _count("best_of", fields.best_of))
    for raw in (fields.parameters, fields.sampling_params, fields.options):
        for own in () if raw is NOTHING else _own(raw):
            for name in ("max_new_tokens", "num_predict", "max_tokens"):
                limit = max(limit, _tokens(name, getattr(own, name)))
            answers = max(answers, _count("n", own.n), _count("best_of", own.best_of))
    stream = bytes(memoryview(fields.stream)[:FLAG_BYTES_MAX]).strip(b'"').lower()
    return Peek(
        model=model,
        stream=stream in _TRUE,
        whole=stream in _FALSE,
        output_tokens_max=limit or None,
        answers=answers,
        stream_options=msgspec.UNSET
        if fields.stream_options is NOTHING
        else _built("stream_options", fields.stream_options),
        user=None if fields.user is NOTHING else _built("user", fields.user),
        service_tier=None if fields.service_tier is NOTHING else _built("service_tier", fields.service_tier),
        priority=None if fields.priority is NOTHING else _built("priority", fields.priority),
        previous_response=None
        if fields.previous_response_id is NOTHING
        else _built("previous_response_id", fields.previous_response_id),
        text=fields,
        # Parsers of engines take more than `true` for true, and a response that is done at once costs one question.
        background=fields.background is not NOTHING
        and bytes(memoryview(fields.background)[:6]) not in (b"false", b"null"),
    )


def _built(name: str, raw: msgspec.Raw) -> object:
    """Returns a field's value; `raw` itself, which matches no type, if it is too large to decode."""
    whole = memoryview(raw)
    if len(whole) > VALUE_BYTES_MAX:
        if bytes(whole[:1]) in b"-0123456789":
            raise BadBody(f"A number in `{name}` is out of range.", name)
        return raw
    try:
        return _value(raw)
    except RecursionError:
        raise BadBody("The body is nested too deeply.") from None
    except msgspec.DecodeError as error:
        if "out of range" in str(error):
            raise BadBody(f"A number in `{name}` is out of range.", name) from None
        raise BadBody(f"The body is not valid JSON: {error}.") from None


def _count(name: str, raw: msgspec.Raw) -> int:
    """How many answers are asked for, as far as that makes sense."""
    if raw is NOTHING:
        return 1
    count = _built(name, raw)
    return min(max(count, 1), ANSWERS_MAX) if type(count) is int else 1


def _tokens(name: str, raw: msgspec.Raw) -> int:
    """Returns a field's limit of the answer's length, or 0."""
    if raw is NOTHING:
        return 0
    given = _built(name, raw)
    return min(max(0, given), TOKENS_MAX) if type(given) is int else 0


def _own(raw: msgspec.Raw) -> list[Own]:
    if not 0 < len(memoryview(raw)) <= OWN_BYTES_MAX:
        return []
    try:
        own = _decode_own(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    return own if isinstance(own, list) else [own]


def replace_model(body: Body, model: str, field: str = "model") -> Body:
    """Returns the same body with another name in the field that names its model."""
    if isinstance(body, Spliced):
        return body.with_model(model, field)
    return set_in_bytes(body, {field: msgspec.json.encode(model)})


def renamed(body: Body, query: str, model: str, field: str) -> tuple[Body, str]:
    """Returns body and query of the same request for another model. The query names it if there is no body."""
    if len(body):
        return replace_model(body, model, field), query
    given = parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    return body, urlencode([(name, model if name == field else value) for name, value in given])


def named_in(body: Body, field: str) -> str | None:
    """Returns the model that a field of JSON names; None: it is absent. Raises `BadBody`."""
    given = list(values_of(body, (field,)))
    if len(given) > 1:  # parsers differ in which of them counts
        raise BadBody(f"`{field[:40]}` is given more than once.", field)
    model = _built(field, msgspec.Raw(given[0][1])) if given else None
    if given and not (isinstance(model, str) and model):
        raise BadBody(f"`{field[:40]}` must be a non-empty string.", field)
    return model if isinstance(model, str) else None


def without_body(model: str | None, *, pooled: bool) -> Read:
    """Returns what is known of a request without a body, for `model`."""
    return Read(Peek(model, stream=False), b"", Contents(0, answers=0 if pooled else 1))


def asks_usage(peek: Peek) -> AskUsage | None:
    """Returns the change that makes a body ask for the usage of a stream; None if the client asks for it, or its value
    is not an object.
    """
    options, asking = peek.stream_options, _ASKING
    raw: bytes | msgspec.Raw = b"{}"
    if options is msgspec.UNSET:
        return _ask_usage_alone
    if isinstance(options, dict):
        if options.get("include_usage") not in (None, False):
            return None
        if options.get("continuous_usage_stats"):
            asking = _ASKING_ONCE
        assert isinstance(peek.text, Plain | Fields)
        raw = peek.text.stream_options
    elif options is not None:
        return None
    return partial(set_field, name="stream_options", value=set_in_bytes(bytes(raw), asking))


def _ask_usage_alone(body: Body) -> Body:
    if isinstance(body, Spliced):
        return set_field(body, "stream_options", b'{"include_usage":true}')
    return add_first(body, b'"stream_options":{"include_usage":true}')


def is_multipart(content_type: bytes | None) -> bool:
    """True if a body with this content type is a form, and no JSON."""
    return (content_type or b"")[:19].lower() == b"multipart/form-data"
