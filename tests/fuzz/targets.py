"""What is fuzzed: each target takes any bytes and raises where a reader does what it must not.

A reader must not raise anything but its own refusal, must say the same however its bytes are cut into pieces, and must
pass on what it accepts unchanged but for what it was told to change. The first byte of an input decides about the cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Generator, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

import msgspec

from penstock.batch.input_file import InputReader
from penstock.batch.values import NewItem
from penstock.config.load import ConfigError, endpoints_from_text
from penstock.gateway.openai import body as bodies
from penstock.gateway.openai.answers.answer import AnswerReader
from penstock.gateway.openai.answers.opening import Opening
from penstock.gateway.openai.answers.stream_end import ended_well
from penstock.gateway.openai.body import BadBody, Read
from penstock.gateway.openai.dialects import Asked
from penstock.gateway.openai.forms import read_form
from penstock.gateway.openai.multipart import BadForm, Form
from penstock.gateway.openai.splice import Body, Spliced
from penstock.http.client.answer_turns import AnswerTurns
from penstock.http.client.call import Call
from penstock.http.client.upstream_connection import UpstreamConnection
from penstock.http.client.values import Headers, UpstreamError, UpstreamLimits, UpstreamTimeouts
from penstock.http.inflate import BadPacking, Inflater, InflatesTooFar, TooMuchAtOnce, inflate
from penstock.http.server import proxy_header as proxy_headers
from penstock.http.server.connection import Connection
from penstock.http.server.limits import Refusal, ServerLimits
from penstock.http.server.proxy_header import Peer, ProxyHeaderError
from penstock.http.server.reader import RefusedError, RequestReader
from penstock.http.server.server import Header, HttpServer, SocketExchange

T = TypeVar("T")

#: Raises where something is wrong. What it returns is the same in every build.
Target = Callable[[bytes], object]
CUTS_MAX = 12
HEAD_BYTES_MAX = 2_000
_LOOP = asyncio.new_event_loop()  # never runs
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_FORM = b"multipart/form-data; boundary=edge"


def cut(data: bytes) -> tuple[bytes, list[bytes]]:
    """The input without its first byte, and the same in pieces that this byte decides about."""
    if not data:
        return b"", []
    random, rest = Random(data[0]), data[1:]
    places = sorted(random.randrange(len(rest) + 1) for _ in range(data[0] % CUTS_MAX)) if data[0] else range(len(rest))
    pieces, at = [], 0
    for place in places:
        pieces.append(rest[at:place])
        at = place
    return rest, [piece for piece in (*pieces, rest[at:]) if piece]


def _told(refusal: Exception) -> None:
    assert str(refusal), "a refusal says why"


# --- HTTP -----------------------------------------------------------------------------------------------------------


class _Handler:
    """Is asked nothing: the reader alone is driven."""

    def begin(self, exchange: SocketExchange) -> int | None: ...
    def complete(self, exchange: SocketExchange) -> None: ...
    def refused(
        self, exchange: SocketExchange | None, refusal: Refusal, detail: str
    ) -> tuple[int, Sequence[Header], bytes]:
        raise AssertionError


def _head() -> SocketExchange:
    """What the reader reads a head into."""
    connection = Connection(HttpServer(_Handler(), ServerLimits()), _LOOP)
    return SocketExchange(connection, _Transport())


def requests_read(pieces: Sequence[bytes], limits: ServerLimits) -> list[tuple[object, ...]]:
    """What the reader makes of a client's bytes, driven as the connection drives it."""
    reader = RequestReader(limits)
    seen: list[tuple[object, ...]] = []
    for piece in pieces:
        at = 0
        try:
            while at < len(piece):
                before = at
                at = reader.feed(piece, at)
                assert before < at <= len(piece), "it goes on"
                if reader.head_done:
                    head = _head()
                    reader.read_head(head)
                    assert head.target_path.startswith("/")
                    assert head.http_version in ("1.0", "1.1")
                    seen.append((head.method, head.target_path, head.query, head.headers, reader.keep_alive))
                    if reader.in_head:
                        seen.append((reader.take_body(),))
                elif reader.body_done:
                    seen.append((reader.take_body(),))
        except RefusedError as error:
            return [*seen, (error.refusal,)]
        reader.remember_tail(piece)
    return seen


def _requests(pieces: Sequence[bytes]) -> object:
    """A client's bytes. What is too large and no HTTP either is refused as what is seen first: the cuts decide that."""
    seen = requests_read(pieces, ServerLimits(body_bytes_max=10_000, header_bytes_max=HEAD_BYTES_MAX))
    if sum(map(len, pieces)) > HEAD_BYTES_MAX:
        return [("refused",) if isinstance(one[0], Refusal) else one for one in seen]
    return seen


def _brought(pieces: Sequence[bytes]) -> tuple[Peer | None, bytes] | str:
    """Whom a balancer's bytes name, and what is left of them; driven as the listener drives it."""
    coming, data = b"".join(pieces), b""
    sizes = [len(piece) for piece in pieces]
    try:
        while wanted := proxy_headers.missing(data):
            taken = min([wanted, *sizes[:1]])  # a socket gives what has come, and no more than is asked for
            if not taken:
                return "ended"
            data += coming[len(data) : len(data) + taken]
            sizes = [sizes[0] - taken, *sizes[1:]] if sizes[0] > taken else sizes[1:]
            if not sizes and proxy_headers.missing(data):
                return "ended"
        return proxy_headers.read(data), coming[len(data) :]
    except ProxyHeaderError as error:
        _told(error)
        return "refused"


class _Sink:
    """Notes what comes of an answer, and holds it to the order that is promised."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.over: str | None = None

    def on_response(self, status: int, headers: Headers, /) -> None:
        assert self.over is None
        assert not self.status
        assert 200 <= status <= 999
        self.status, self.headers = status, headers

    def on_data(self, data: bytes, /) -> None:
        assert self.over is None
        assert self.status
        assert data
        self.body += data

    def on_end(self) -> None:
        assert self.over is None
        assert self.status
        self.over = "end"

    def on_error(self, error: UpstreamError, /) -> None:
        assert self.over is None
        self.over = error.kind.value


class _Pool:
    """What a connection needs of its pool."""

    timeouts, limits = UpstreamTimeouts(), UpstreamLimits(header_bytes_max=HEAD_BYTES_MAX)

    def __init__(self) -> None:
        self.released = self.was_stale = False
        self.turns = AnswerTurns()

    def time(self) -> float:
        return 0.0

    def opened(self, connection: UpstreamConnection, /) -> None: ...
    def forget(self, connection: UpstreamConnection, /) -> None: ...

    def release(self, connection: UpstreamConnection, /) -> None:
        self.released = True

    def close_idle(self) -> None:
        self.was_stale = True


class _Transport(asyncio.Transport):
    """One that takes everything and tells nothing."""

    def write(self, data: object) -> None: ...
    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


def _answer_to(pieces: Sequence[bytes]) -> object:
    """What a connection makes of an engine's bytes, which end with its closing. Of what carries no payload one read may
    pass the bound, so above it the cuts decide.
    """
    if sum(map(len, pieces)) > HEAD_BYTES_MAX:
        return None
    sink, pool = _Sink(), _Pool()
    call = Call(b"POST / HTTP/1.1\r\n\r\n", b"{}", sink, is_head_request=False)
    connection = UpstreamConnection(pool, call)
    connection.connection_made(_Transport())
    for piece in pieces:
        if sink.over is not None:
            break
        connection.data_received(piece)
    if sink.over is None and not connection.is_closed:
        connection.connection_lost(None)
    assert sink.over is not None
    assert not pool.was_stale, "only a connection that was used before can have been stale"
    return sink.status, sink.headers, sink.body if sink.over == "end" else b"", sink.over


def _stream(pieces: Sequence[bytes]) -> object:
    """A stream of events on its way through."""
    answer = AnswerReader(streamed=True, hides_usage=False)
    passed = b"".join([*map(answer.take, pieces), answer.rest()])
    assert passed == b"".join(pieces), "nothing is lost, changed or moved"
    if not _is_usual(passed):
        return None
    ends = ended_well("/v1/chat/completions", passed[-4096:])
    return ends, answer.usage(), answer.tells_error(), answer.tells_abort(), answer.cut_off()


def _is_usual(data: bytes) -> bool:
    """Each line is a field. Of anything else the cuts may decide how it is read."""
    return all(not line or line.startswith(_FIELDS) for line in data.splitlines())


def _hidden(pieces: Sequence[bytes]) -> object:
    """The same, its extra usage taken out."""
    answer = AnswerReader(streamed=True, hides_usage=True)
    return b"".join([*map(answer.take, pieces), answer.rest()]), answer.usage()


def _opening(pieces: Sequence[bytes]) -> list[tuple[bytes, bytes | None, bool]]:
    """A stream up to its first token: what passes at once, and the answer."""
    found = []
    for lines in (False, True):
        opening, asides, left = Opening(lines=lines), b"", list(pieces)
        begun: bytes | None = None
        while left and begun is None:
            passed, begun = opening.take(left.pop(0))
            asides += passed
        answer = opening.end() if begun is None else begun + b"".join(left)
        assert answer is None or sorted(asides + answer) == sorted(b"".join(pieces)), "nothing is lost or changed"
        found.append((asides, answer, opening.stillborn))
    return found


def _either_way(name: str, data: bytes) -> object:
    """Of a stream that is none as engines write it, the cuts may decide what is seen first."""
    whole, pieces = cut(data)
    return READINGS[name]([whole]), READINGS[name](pieces)


def _packed(pieces: Sequence[bytes]) -> object:
    """A packed answer as it passes, and the same bytes as a request's body."""
    read: list[object] = []
    for coding in ("gzip", "deflate"):
        reader = Inflater(coding)
        try:
            read.append((b"".join(map(reader.take, pieces)), reader.breaks_off))
        except (BadPacking, InflatesTooFar) as problem:
            _told(problem)
            read.append("refused")
        try:
            read.append(all_steps(inflate(b"".join(pieces), coding, 100_000, lambda size: size < 50_000)))
        except (BadPacking, InflatesTooFar, TooMuchAtOnce) as problem:
            read.append(type(problem).__name__)
    return read


# --- bodies ---------------------------------------------------------------------------------------------------------


def body(data: bytes) -> object:
    """A request's body: read in one go and in steps, and fields of it replaced."""
    try:
        small = bodies.read(data, pooled=False)
    except BadBody as problem:
        _told(problem)
        with contextlib.suppress(BadBody):
            all_steps(bodies.read_large(data, pooled=False))
        return str(problem)
    large = all_steps(bodies.read_large(data, pooled=False))
    assert _facts(large) == _facts(small)
    peek = small.peek
    if peek.model is None:
        return _facts(small)
    written = []
    for read in (small, large):
        renamed = bodies.replace_model(read.body, "other")
        asks = bodies.asks_usage(peek)
        changed = _written(renamed if asks is None else asks(renamed))
        assert bodies.peek(changed).model == "other"
        before, after = _json(data), _json(changed)
        if before is not None:
            assert after is not None
            for value in (before, after):
                value.pop("model", None)
                value.pop("stream_options", None)
            assert before == after, "all else is as it was"
        written.append((changed, _bounded(read.body)))
    return _facts(small), written


def _bounded(body: Body) -> object:
    """The body for a key that may have so many tokens."""
    try:
        asked = Asked(body)
        return list(asked.names()), _written(asked.bound(body, "/v1/completions", 100, 2, is_known=True)[0])
    except BadBody as problem:
        _told(problem)
        return str(problem)


def _facts(read: Read) -> tuple[object, ...]:
    """What was read of a body, without what may be too large to be built."""
    peek = read.peek
    return peek.model, peek.stream, peek.output_tokens_max, peek.answers, read.contents


def _written(body: Body) -> bytes:
    return b"".join(body.pieces()) if isinstance(body, Spliced) else body


def all_steps(steps: Generator[None, None, T]) -> T:
    """All steps of some work, and what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _json(data: bytes) -> dict[str, Any] | None:
    """The object, where Python's own reader takes it, too; NaN equals itself here."""
    try:
        value = json.loads(data, parse_constant=str, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _upload(pieces: Sequence[bytes]) -> object:
    """A form with a file, as it comes. Which of two faults is seen first, the cuts decide."""
    file: list[bytes] = []
    form = Form(_FORM, "file", file.append)
    try:
        for piece in pieces:
            form.feed(piece)
    except BadForm as problem:
        _told(problem)
        return "refused"
    return form.fields, form.filename, form.ended, b"".join(file)


def form(data: bytes) -> object:
    """A form that is here: its field `model`."""
    try:
        read = all_steps(read_form(data, _FORM, "/v1/audio/transcriptions", pooled=False))
    except BadBody as problem:
        return str(problem)
    if read.peek.model is None:
        return read.contents
    renamed = _written(bodies.replace_model(read.body, "other"))
    again = all_steps(read_form(renamed, _FORM, "/v1/audio/transcriptions", pooled=False))
    assert again.peek.model == "other"
    return read.contents, read.peek.model


def _lines(pieces: Sequence[bytes]) -> object:
    """An input file of a batch."""
    items: list[NewItem] = []
    reader = InputReader(
        urls=lambda url: url.startswith("/v1/"), lines_max=20, line_bytes_max=1_000, on_item=items.append
    )
    for piece in pieces:
        reader.feed(piece)
    reader.end()
    for item in items:
        assert b"".join(pieces)[item.at : item.at + item.size].strip()
    return items, reader.problems, reader.requests, reader.models


def settings(data: bytes) -> object:
    """A file that lists endpoints, as discovery reads it while the gateway runs."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    try:
        found = endpoints_from_text(text, "fuzz", {"SET": "value"})
    except ConfigError as error:
        _told(error)
        return str(error)
    return msgspec.json.encode([endpoint.name for endpoint in found])


#: Readers of bytes that come in pieces: the same comes of them, however these are cut.
READINGS: dict[str, Callable[[Sequence[bytes]], object]] = {
    "request_parser": _requests,
    "proxy_header": _brought,
    "response_parser": _answer_to,
    "stream": _stream,
    "hidden": _hidden,
    "opening": _opening,
    "packed": _packed,
    "multipart": _upload,
    "batch_lines": _lines,
}


def _however_cut(name: str, data: bytes) -> object:
    whole, pieces = cut(data)
    if not whole:
        return None
    seen = READINGS[name]([whole])
    assert READINGS[name](pieces) == seen
    return seen


TARGETS: dict[str, Target] = {
    **{name: partial(_however_cut, name) for name in READINGS},
    **{name: partial(_either_way, name) for name in ("hidden", "opening")},
    **{target.__name__: target for target in (body, form, settings)},
}
