"""What is fuzzed: each target takes any bytes and raises where a reader does what it must not.

A reader must not raise anything but its own refusal, must say the same however its bytes are cut into pieces, and must
pass on what it accepts unchanged but for what it was told to change. The first byte of an input decides about the cuts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from random import Random
from typing import Any, TypeVar

import msgspec

from penstock.batch.input_file import InputReader
from penstock.batch.values import NewItem
from penstock.config.load import ConfigError, endpoints_from_text
from penstock.gateway.openai import body as bodies
from penstock.gateway.openai.answers.answer import AnswerReader
from penstock.gateway.openai.answers.stream_end import ended_well
from penstock.gateway.openai.body import BadBody
from penstock.gateway.openai.fields import Read
from penstock.gateway.openai.forms import read_form
from penstock.gateway.openai.multipart import BadForm, Form
from penstock.gateway.openai.splice import Body, Spliced
from penstock.http.client.call import Call
from penstock.http.client.connection import UpstreamConnection
from penstock.http.client.turns import AnswerTurns
from penstock.http.client.values import Headers, UpstreamError, UpstreamLimits, UpstreamTimeouts
from penstock.http.server import proxy_header as proxy_headers
from penstock.http.server.limits import Refusal, ServerLimits
from penstock.http.server.proxy_header import Peer, ProxyHeaderError
from penstock.http.server.reader import RefusedError, RequestReader

T = TypeVar("T")

Target = Callable[[bytes], None]
CUTS_MAX = 12
HEAD_BYTES_MAX = 2_000
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


class Head:
    """The part of an exchange that the reader fills in."""

    method: str
    target_path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    lookup: dict[bytes, bytes]
    http_version: str


def requests_read(pieces: Iterable[bytes], limits: ServerLimits) -> list[tuple[object, ...]]:
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
                    head = Head()
                    reader.read_head(head)  # type: ignore[arg-type]
                    assert head.target_path.startswith("/")
                    assert head.http_version in ("1.0", "1.1")
                    seen.append((head.method, head.target_path, head.query, head.headers, reader.keep_alive))
                    if not reader.expects_body:
                        seen.append((reader.take_body(),))
                elif reader.body_done:
                    seen.append((reader.take_body(),))
        except RefusedError as error:
            return [*seen, (error.refusal,)]
        reader.remember_tail(piece)
    return seen


def request_parser(data: bytes) -> None:
    """A client's bytes. What is too large and no HTTP either is refused as what is seen first: the cuts decide that."""
    whole, pieces = cut(data)
    limits = ServerLimits(body_bytes_max=10_000, header_bytes_max=HEAD_BYTES_MAX)
    results = [requests_read(given, limits) for given in (pieces, [whole] if whole else [])]
    if len(whole) > HEAD_BYTES_MAX:
        results = [[("refused",) if isinstance(seen[0], Refusal) else seen for seen in result] for result in results]
    assert results[0] == results[1]


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


def proxy_header(data: bytes) -> None:
    """A balancer's bytes: the same client, and the same rest, however they come."""
    whole, pieces = cut(data)
    if not whole:
        return
    told = [_brought(given) for given in (pieces, [whole])]
    assert told[0] == told[1]
    if isinstance(told[0], tuple):
        assert whole.endswith(told[0][1]), "what is behind the header is left alone"


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


def _answer_to(pieces: Iterable[bytes]) -> tuple[object, ...]:
    """What a connection makes of an engine's bytes, which end with its closing."""
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


def response_parser(data: bytes) -> None:
    """An engine's bytes. Of what carries no payload one read may pass the bound, so above it the cuts decide."""
    whole, pieces = cut(data)
    if whole:
        results = [_answer_to(pieces), _answer_to([whole])]
        assert results[0] == results[1] or len(whole) > HEAD_BYTES_MAX


def stream(data: bytes) -> None:
    """A stream of events on its way through, its extra usage hidden."""
    whole, pieces = cut(data)
    results = []
    for given in ([whole], pieces):
        answer = AnswerReader(streamed=True, hides_usage=False)
        passed = b"".join([*map(answer.take, given), answer.rest()])
        assert passed == whole, "nothing is lost, changed or moved"
        results.append((answer.usage(), answer.tells_error(), answer.tells_abort(), answer.cut_off()))
    assert results[0] == results[1]
    ended_well("/v1/chat/completions", whole[-4096:])


# --- bodies ---------------------------------------------------------------------------------------------------------


def body(data: bytes) -> None:
    """A request's body: read in one go and in steps, and fields of it replaced."""
    try:
        small = bodies.read(data, pooled=False)
    except BadBody as problem:
        _told(problem)
        with contextlib.suppress(BadBody):
            all_steps(bodies.read_large(data, pooled=False))
        return
    large = all_steps(bodies.read_large(data, pooled=False))
    assert _facts(large) == _facts(small)
    peek = small.peek
    if peek.model is None:
        return
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


def multipart(data: bytes) -> None:
    """A form: an upload as it comes, and the field `model` of one that is here."""
    whole, pieces = cut(data)
    results = []
    for given in ([whole], pieces):
        file: list[bytes] = []
        form = Form(_FORM, "file", file.append)
        try:
            for piece in given:
                form.feed(piece)
            results.append((form.fields, form.filename, form.ended, b"".join(file)))
        except BadForm as problem:
            _told(problem)
            results.append((str(problem),))  # type: ignore[arg-type]
    assert results[0] == results[1] or len(results[0]) == len(results[1]) == 1
    try:
        read = all_steps(read_form(whole, _FORM, "/v1/audio/transcriptions", pooled=False))
    except BadBody:
        return
    if read.peek.model is not None:
        renamed = _written(bodies.replace_model(read.body, "other"))
        again = all_steps(read_form(renamed, _FORM, "/v1/audio/transcriptions", pooled=False))
        assert again.peek.model == "other"


def batch_lines(data: bytes) -> None:
    """An input file of a batch."""
    whole, pieces = cut(data)
    results = []
    for given in ([whole], pieces):
        items: list[NewItem] = []
        reader = InputReader(
            urls=lambda url: url.startswith("/v1/"), lines_max=20, line_bytes_max=1_000, on_item=items.append
        )
        for piece in given:
            reader.feed(piece)
        reader.end()
        results.append((items, reader.problems, reader.requests, reader.models))
        for item in items:
            assert whole[item.at : item.at + item.size].strip()
    assert results[0] == results[1]


def settings(data: bytes) -> None:
    """A file that lists endpoints, as discovery reads it while the gateway runs."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        found = endpoints_from_text(text, "fuzz", {"SET": "value"})
    except ConfigError as error:
        _told(error)
        return
    msgspec.json.encode([endpoint.name for endpoint in found])


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (request_parser, proxy_header, response_parser, stream, body, multipart, batch_lines, settings)
}
