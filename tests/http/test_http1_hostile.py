"""What hostile, broken and slow clients get from the HTTP/1.1 server: one defined outcome each, no leftovers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial

import pytest
import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.http.server.server import Refusal, ServerLimits, SocketExchange
from tests.fuzz.targets import requests_read
from tests.http.http1_world import Client, World, answer, chunked, on_both_loops, request

HOST = b"Host: penstock\r\n"
POST = b"POST /v1/x HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def status_of(answered: bytes) -> int:
    return int(answered.split(b" ", 2)[1])


# ---- shapes: each is refused with 400 and a close, and never reaches `complete`

BAD_REQUESTS = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00garbage",
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF after a header": b"GET / HTTP/1.1\r\nHost: a\nB: c\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: a\rB: c\r\n\r\n",
    "obs-fold": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "space before the first header": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "empty header name": b"GET / HTTP/1.1\r\n" + HOST + b": a\r\n\r\n",
    "header name with a parenthesis": b"GET / HTTP/1.1\r\n" + HOST + b"a(b: c\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "control byte in a header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x01b\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n",
    "two Hosts in 1.0": b"GET / HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\n" + HOST + b"\r\n",
    "lower-case method": b"get / HTTP/1.1\r\n" + HOST + b"\r\n",
    "tabs in the request line": b"GET\t/\tHTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "asterisk target": b"GET * HTTP/1.1\r\n" + HOST + b"\r\n",
    "CONNECT": b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "fragment in the query": b"GET /a?b#c HTTP/1.1\r\n" + HOST + b"\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in the target": b"GET /a\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
    "high byte in the target": b"GET /a\xff HTTP/1.1\r\n" + HOST + b"\r\n",
    "target of another scheme": b"GET ftp://h/x HTTP/1.1\r\n" + HOST + b"\r\n",
    "relative target": b"GET a HTTP/1.1\r\n" + HOST + b"\r\n",
    "absolute target without a host": b"GET http:///x HTTP/1.1\r\n" + HOST + b"\r\n",
    **{
        f"Content-Length {value!r}": POST + b"Content-Length: " + value + b"\r\n\r\nhello"
        for value in (b"+5", b"-5", b"5,5", b"5, 5", b"5 5", b"0x5", b"5.0", b"", b"five", b"9" * 30)
    },
    "two equal Content-Lengths": POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "two Content-Lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "length, then coding": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding, then length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    **{
        f"Transfer-Encoding {value!r}": POST + b"Transfer-Encoding: " + value + b"\r\n\r\n0\r\n\r\n"
        for value in (
            *(b"chunked, identity", b"chunked, chunked", b"gzip, chunked", b"identity", b"xchunked", b"gzip"),
            *(b'"chunked"', b"chunked;q=1", b"chunked,", b"", b"\x0bchunked", b"chunked\r\n\tgzip"),
        )
    },
    "two codings": POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    **{
        f"chunk {chunk!r}": CHUNKED + chunk + b"\r\n0\r\n\r\n"
        for chunk in (
            *(b"-5\r\nhello", b"+5\r\nhello", b"0x5\r\nhello", b" 5\r\nhello", b"5 \r\nhello", b"5\nhello"),
            *(b"5\r\nhell", b"5\r\nhello!", b"\r\n", b"F" * 17 + b"\r\nhello", b"5;a\nb\r\nhello"),
            *(b"g\r\nhello", b"5\r\nhello\n"),
        )
    },
    "a length in a trailer": CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n",
    "bare LF at the end of chunks": CHUNKED + b"0\n\n",
}  # fmt: skip


@on_both_loops
async def test_a_malformed_request_gets_400_and_a_close(world: World) -> None:
    await world.serve()
    for name, data in BAD_REQUESTS.items():
        answered = await world.ask(data)
        assert answered.startswith(b"HTTP/1.1 400 Bad Request\r\n"), name
        assert b"\r\nconnection: close\r\n" in answered, name
        assert answered.endswith(b"\r\n\r\nbad_request"), name  # one answer, nothing after it
    assert world.handler.completed == []
    assert len(world.handler.refusals) == len(BAD_REQUESTS)
    assert world.handler.gone == []


@on_both_loops
async def test_a_malformed_request_behind_a_good_one_does_not_harm_it(world: World) -> None:
    await world.serve()
    for name, data in BAD_REQUESTS.items():
        answered = await world.ask(request(body=b"good") + data)
        good, _, bad = answered[5:].partition(b"HTTP/1.1 ")
        assert good.endswith(b"POST /v1/x  good"), name
        assert bad.startswith(b"400 "), name


@on_both_loops
async def test_odd_but_valid_requests_are_served(world: World) -> None:
    await world.serve()
    client = await world.client()
    for data, body in (
        (b"\r\n\r\n" + request(body=b"a"), b"a"),
        (POST + b"Content-Length: 0005 \r\n\r\nhello", b"hello"),
        (POST + b"tRANSFER-eNCODING: \tChunked\r\n\r\n0005;ext=1\r\nhello\r\n000\r\n\r\n", b"hello"),
        (b"POST  /v1/x  HTTP/1.1\r\nHost:\r\nContent-Length: 1\r\n\r\na", b"a"),
        (POST + b"X: \xff\r\nEmpty:\r\nContent-Length: 1\r\n\r\na", b"a"),
        (POST + b"\r\n", b""),
    ):
        client.send(data)
        assert (await client.response())[2] == b"POST /v1/x  " + body


@on_both_loops
async def test_websockets_are_refused(world: World) -> None:
    await world.serve()
    upgrade = b"Connection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n"
    answered = await world.ask(request(method="GET", extra=upgrade) + b"\x81\x85frames")
    assert status_of(answered) == 426
    assert world.handler.begun == []


@on_both_loops
async def test_other_expectations_get_417(world: World) -> None:
    await world.serve()
    answered = await world.ask(request(body=b"hello", extra=b"Expect: a-miracle\r\n"))
    assert status_of(answered) == 417


# ---- too much


@on_both_loops
async def test_a_hundred_thousand_headers_get_431(world: World) -> None:
    await world.serve()
    head = request(extra=b"".join(b"x-%d: y\r\n" % n for n in range(100_000)))
    assert status_of(await world.ask(head)) == 431
    await world.server.wait_closed(1)
    await world.serve(header_bytes_max=10_000_000)
    assert status_of(await world.ask(head)) == 431
    assert world.handler.begun == []


@on_both_loops
async def test_a_header_of_one_megabyte_gets_431(world: World) -> None:
    await world.serve()
    for data in (request(extra=b"x: " + b"y" * 1_000_000 + b"\r\n"), request("/" + "y" * 1_000_000)):
        assert status_of(await world.ask(data)) == 431
    client = await world.client(POST + b"x: ")
    for _ in range(66):
        client.send(b"y" * 1000)
        await client.writer.drain()
    assert (await client.response())[0] == 431
    assert {Refusal.HEADER_TOO_LARGE} == {refusal for refusal, _ in world.handler.refusals}


@on_both_loops
async def test_the_header_limit_is_exact(world: World) -> None:
    await world.serve(header_bytes_max=1000, header_count_max=4)
    fill = b"y" * (1000 - len(request(extra=b"x: \r\n")))
    client = await world.client(request(body=b"", extra=b"x: " + fill + b"\r\n"))
    assert (await client.response())[0] == 200
    assert status_of(await world.ask(request(extra=b"x: " + fill + b"y\r\n"))) == 431
    assert status_of(await world.ask(request(extra=b"a: b\r\nc: d\r\n", version="1.0"))) == 200
    assert status_of(await world.ask(request(extra=b"a: b\r\nc: d\r\ne: f\r\n"))) == 431


async def push(client: Client, pieces: int) -> int:
    """Send megabytes for as long as the server takes them; returns how many it took."""
    megabyte = b"%x\r\n%b\r\n" % (1_000_000, b"x" * 1_000_000)
    for sent in range(pieces):
        try:
            client.send(megabyte)
            await asyncio.wait_for(client.writer.drain(), 0.2)
        except (ConnectionError, TimeoutError):
            return sent
    return pieces


@on_both_loops
async def test_200_megabytes_are_refused_without_being_read(world: World) -> None:
    await world.serve(linger_timeout_s=0.2)
    head = POST + b"Content-Length: 200000000\r\n\r\n"
    client = await world.client(head)
    assert (await client.response())[0] == 413  # before a single byte of the body
    assert await client.rest() == b""
    client = await world.client(head)
    assert await push(client, 200) < 40
    await world.until(lambda: world.server.connections == 0)
    await world.server.wait_closed(1)
    await world.serve(body_bytes_max=3_000_000, linger_timeout_s=0.2)
    client = await world.client(CHUNKED)
    assert await push(client, 200) < 40
    assert [refusal for refusal, _ in world.handler.refusals] == [Refusal.REQUEST_TOO_LARGE] * 3
    assert world.handler.gone == world.handler.completed == []


@on_both_loops
async def test_a_client_that_sends_all_before_it_reads_still_gets_the_answer(world: World) -> None:
    await world.serve(body_bytes_max=100_000)
    assert status_of(await world.ask(request(body=b"x" * 900_000))) == 413
    assert status_of(await world.ask(chunked(*[b"x" * 10_000] * 90))) == 413
    world.handler.on_begin = lambda exchange: exchange.respond(404, [], b"not here")
    answered = await world.ask(request(body=b"x" * 900_000))
    assert status_of(answered) == 404
    assert b"\r\nconnection: close\r\n" in answered


@on_both_loops
async def test_a_refusal_in_begin_of_a_request_without_a_body_keeps_the_connection(world: World) -> None:
    await world.serve()
    world.handler.on_begin = lambda exchange: exchange.respond(404, [], b"")
    client = await world.client(request(method="GET") * 3)
    for _ in range(3):
        assert (await client.response())[0] == 404
    assert world.handler.completed == []


@on_both_loops
async def test_chunk_framing_is_bounded_by_its_payload(world: World) -> None:
    await world.serve()
    client = await world.client(chunked(*[b"x"] * 100_000))  # small chunks are slow, not hostile
    assert (await client.response())[2] == b"POST /v1/x  " + b"x" * 100_000
    for data in (
        CHUNKED + b"5;" + b"e" * 1_000_000 + b"\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nhello\r\n0\r\n" + b"trailer: value\r\n" * 100_000 + b"\r\n",
        CHUNKED + b"0" * 1_000_000 + b"5\r\nhello\r\n0\r\n\r\n",
    ):
        assert status_of(await world.ask(data)) == 400
    assert len(world.handler.completed) == 1


# ---- too slow


@on_both_loops
async def test_slow_clients_are_timed_out(world: World) -> None:
    await world.serve(header_timeout_s=0.1, body_timeout_s=0.1, first_request_timeout_s=0.1)
    silent, slow_head, slow_body, slow_chunks = await asyncio.gather(
        world.ask(b""),
        world.ask(b"GET / HT"),
        world.ask(request(body=b"hello")[:-1]),
        world.ask(chunked(b"hello")[:-1]),
    )
    assert silent == b""
    assert [status_of(answered) for answered in (slow_head, slow_body, slow_chunks)] == [408] * 3
    assert [refusal for refusal, _ in world.handler.refusals] == [Refusal.CLIENT_TIMEOUT] * 3


@on_both_loops
async def test_a_client_may_connect_long_before_it_asks(world: World) -> None:
    """A client's library connects, and comes to writing when its own loop lets it, on a busy machine 14 s later. It was
    cut off after 10 s and told its user of a lost connection: no answer, and no error that has a name."""
    await world.serve(header_timeout_s=0.05)
    client = await world.client(b"")
    await asyncio.sleep(0.2)
    client.send(request())
    assert (await client.response())[0] == 200
    client.send(b"GET / HT")
    assert (await client.response())[0] == 408


async def drip(client: Client, data: bytes, every_s: float) -> None:
    for at in range(len(data)):
        client.send(data[at : at + 1])
        await asyncio.sleep(every_s)


@on_both_loops
async def test_a_slow_loris_is_bounded_in_all(world: World) -> None:
    await world.serve(header_timeout_s=0.15, body_timeout_s=0.1, body_timeout_total_s=0.2)
    for start in (POST + b"x", POST + b"Content-Length: 1000\r\n\r\n"):
        client = await world.client(start)
        dripping = asyncio.ensure_future(drip(client, b"x" * 800, 0.01))
        assert (await client.response())[0] == 408
        dripping.cancel()
        client.close()


@on_both_loops
async def test_a_second_request_gets_the_header_timeout_too(world: World) -> None:
    await world.serve(header_timeout_s=0.1)
    client = await world.client(request())
    assert (await client.response())[0] == 200
    client.send(b"POST /")
    assert (await client.response())[0] == 408


@on_both_loops
async def test_a_body_that_keeps_coming_is_not_timed_out(world: World) -> None:
    await world.serve(body_timeout_s=0.4)
    client = await world.client(POST + b"Content-Length: 50\r\n\r\n")
    await drip(client, b"x" * 50, 0.01)
    assert (await client.response())[0] == 200


def flood(exchange: SocketExchange) -> None:
    exchange.start(200, [], length=None)
    paused: list[bool] = []
    exchange.on_pause = lambda: paused.append(True)
    while not paused:
        exchange.write(b"x" * 65536)


def never_reading(client: Client) -> None:
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]


@on_both_loops
async def test_a_client_that_stops_reading_is_cut_off(world: World) -> None:
    await world.serve(write_timeout_s=0.1)
    world.handler.on_complete = flood
    client = await world.client(request(), limit=4096)
    never_reading(client)
    await world.until(lambda: world.handler.gone)
    await world.until(lambda: world.server.connections == 0)


@on_both_loops
async def test_a_client_that_does_not_take_the_end_is_cut_off(world: World) -> None:
    await world.serve(write_timeout_s=0.1, keepalive_timeout_s=0.1)
    world.handler.on_complete = lambda exchange: exchange.respond(200, [], b"x" * 20_000_000)
    for extra in (b"", b"Connection: close\r\n"):
        client = await world.client(request(extra=extra), limit=4096)
        never_reading(client)
        await world.until(lambda: world.handler.completed)
        await world.until(lambda: world.server.connections == 0)
        world.handler.completed.clear()
    assert world.handler.gone == []  # the exchange was over


@on_both_loops
async def test_pipelined_requests_wait_until_the_client_reads(world: World) -> None:
    await world.serve()
    world.handler.on_complete = lambda exchange: exchange.respond(200, [], b"x" * 1_000_000)
    client = await world.client(request() * 100, limit=4096)
    never_reading(client)
    await world.until(lambda: world.handler.completed)
    for _ in range(20):  # turns of the loop in which more would be served
        await asyncio.sleep(0)
    assert len(world.handler.completed) < 20
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(100):
        assert len((await client.response())[2]) == 1_000_000


# ---- cut off


@on_both_loops
async def test_a_request_cut_at_any_byte_leaves_nothing(world: World) -> None:
    await world.serve()
    for data in (request(body=b"hello", extra=b"Expect: 100-continue\r\n"), chunked(b"hello", b"\r\n\r\n")):
        cuts = [await world.client(data[:at]) for at in range(len(data))]
        for n, client in enumerate(cuts):
            if n % 3 == 0:
                reset(client)
            elif n % 3 == 1:
                client.writer.write_eof()
            else:
                client.close()
        await world.until(lambda: world.server.connections == 0)
    assert not world.handler.completed
    assert not world.handler.refusals
    assert {id(exchange) for exchange in world.handler.begun} == {id(exchange) for exchange in world.handler.gone}


def reset(client: Client) -> None:
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


@on_both_loops
async def test_a_reset_in_mid_response_is_a_disconnect(world: World) -> None:
    await world.serve()
    world.handler.on_complete = flood
    client = await world.client(request())
    await client.reader.readexactly(1000)
    reset(client)
    await world.until(lambda: world.handler.gone)
    for _ in range(100):
        world.handler.gone[0].write(b"x" * 65536)
    assert len(world.handler.gone) == 1


@on_both_loops
async def test_a_flood_behind_a_pending_response_is_not_read(world: World) -> None:
    await world.serve()
    world.handler.on_complete = lambda exchange: None
    client = await world.client(request())
    await world.until(lambda: world.handler.completed)
    assert await push(client, 200) < 40
    assert len(world.handler.begun) == 1
    world.handler.on_complete = answer
    answer(world.handler.completed[0])
    assert (await client.response())[0] == 200
    try:
        status = (await client.response())[0]
    except ConnectionError:  # the client's own broken pipe came first: what it was told is here all the same
        status = int(bytes(vars(client.reader)["_buffer"]).split()[1])
    assert status == 431, "it was no request"
    client.writer.transport.abort()


@on_both_loops
async def test_a_hang_up_with_pipelined_requests_left_drops_them(world: World) -> None:
    await world.serve()
    world.handler.on_complete = lambda exchange: None
    client = await world.client(request() * 10)
    await world.until(lambda: world.handler.completed)
    client.close()
    await world.until(lambda: world.handler.gone)
    await world.until(lambda: world.server.connections == 0)
    assert len(world.handler.begun) == 1


@on_both_loops
async def test_a_handler_that_fails_costs_one_connection(world: World) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
    await world.serve()

    def fail(exchange: SocketExchange) -> None:
        raise RuntimeError("a bug of ours")

    world.handler.on_complete = fail
    assert await world.ask(request()) == b""
    assert [RuntimeError] == [type(error) for error in told]
    assert world.handler.gone == world.handler.completed


# ---- many


@on_both_loops
async def test_hundreds_of_connections_come_and_go(world: World) -> None:
    server = await world.serve()
    clients = [await world.client(request(f"/{n}")) for n in range(400)]
    answers = await asyncio.gather(*(client.response() for client in clients))
    assert [f"POST /{n}  ".encode() for n in range(400)] == [body for _, _, body in answers]
    assert server.connections == 400
    for n, client in enumerate(clients):
        (reset if n % 2 else Client.close)(client)
    await world.until(lambda: server.connections == 0)


# ---- fuzz

FRAGMENTS = st.sampled_from(
    [
        *(b"GET / HTTP/1.1\r\n", b"POST /a?b HTTP/1.1\r\n", b"POST / HTTP/1.0\r\n", b"Host: a\r\n", b"\r\n", b"\r"),
        *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"hello", b"\n"),
        *(b"5\r\nhello\r\n", b"0\r\n\r\n", b"0\r\n", b"X: y\r\n", b"Expect: 100-continue\r\n", b"1\r\n"),
        *(b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"5;a=b\r\nhello\r\n", b" "),
        *(b"\x00", b"\r\n\r\n"),
        *(request(body=b"hello"), request(method="GET"), chunked(b"hello", b"\r\n\r\n")),
    ]
)  # fmt: skip
STREAMS = st.one_of(st.lists(FRAGMENTS | st.binary(max_size=8), max_size=14).map(b"".join), st.binary(max_size=200))
GOOD = st.sampled_from(
    [
        request(body=b"hello"),
        request("/?\r\n\r\n".strip(), b"\r\n\r\n\r\n"),
        request(method="GET"),
        chunked(b"hello", b"\r\n\r\n", b"\r"),
        chunked(b"x")[:-2] + b"T: v\r\n\r\n",
        request(body=b"hello", extra=b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    ]
)


def read_all(pieces: list[bytes]) -> list[tuple[object, ...]]:
    return requests_read(pieces, ServerLimits())


@pytest.mark.interpreted  # it has a head of its own read into
@settings(max_examples=500, deadline=None)
@given(STREAMS | st.lists(GOOD, max_size=5).map(b"".join), st.lists(st.integers(1, 40), max_size=30))
@example(request(method="GET") * 2, [len(request(method="GET")) - 3, 1, 1])  # a blank line in four reads
def test_how_the_bytes_are_split_changes_nothing(stream: bytes, sizes: list[int]) -> None:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(stream[at : at + size])
        at += size
    whole = read_all([stream])
    assert read_all([*pieces, stream[at:]]) == whole
    assert read_all([stream[n : n + 1] for n in range(len(stream))]) == whole


@pytest.mark.interpreted  # it has a head of its own read into
@settings(max_examples=100, deadline=None)
@given(st.lists(GOOD, max_size=6))
def test_valid_requests_are_all_found_in_any_order(stream: list[bytes]) -> None:
    apart = [seen for one in stream for seen in read_all([one])]
    assert read_all([b"".join(stream)]) == apart
    assert len(apart) == 2 * len(stream)


def fuzz(world: World, drive: Callable[..., object]) -> None:
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
    @given(STREAMS, st.integers(0, 300), st.booleans())
    @example(b"", 0, True)
    def run(stream: bytes, split: int, later: bool) -> None:
        drive(one(world, stream, split, later))

    run()


async def one(world: World, stream: bytes, split: int, later: bool) -> None:
    """Send in two parts, end, and require an answer or a close; a disconnect if the handler was kept waiting."""
    loop = asyncio.get_running_loop()
    world.handler.on_complete = (lambda exchange: void(loop.call_soon(answer, exchange))) if later else answer
    client = await world.client(stream[:split])
    await asyncio.sleep(0)
    client.send(stream[split:])
    client.writer.write_eof()
    answered = await client.rest()
    client.close()
    assert answered == b"" or answered.startswith(b"HTTP/1.1 ")
    await world.until(lambda: world.server.connections == 0)


def void(_: object) -> None:
    pass


@pytest.mark.parametrize("uv", [False, True])
def test_any_bytes_end_in_an_answer_or_a_close(uv: bool, caplog: pytest.LogCaptureFixture) -> None:
    told: list[object] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uv else asyncio.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: told.append(context))
        world = World()
        runner.run(world.serve())
        fuzz(world, runner.get_loop().run_until_complete)
        runner.run(world.leave())
    assert told == []
    assert caplog.records == []


# ---- too much in all, and clients that nobody reads from


@on_both_loops
async def test_all_bodies_under_way_together_are_bounded(world: World) -> None:
    await world.serve(bodies_bytes_max=500_000)
    head = POST + b"Content-Length: 400000\r\n\r\n"
    slow = await world.client(head + b"x" * 300_000)
    await world.until(lambda: world.server.bodies_bytes == 300_000)
    too_much = await world.client(head + b"x" * 300_000)
    assert (await too_much.response())[0] == 429
    assert await too_much.rest() == b""
    assert world.server.bodies_bytes == 300_000
    small = await world.client(request(body=b"y" * 1000))  # here at once, so it is never under way
    assert (await small.response())[0] == 200
    slow.send(b"x" * 100_000)
    assert (await slow.response())[0] == 200
    assert world.server.bodies_bytes == 0


@on_both_loops
async def test_a_body_that_is_given_up_no_longer_counts(world: World) -> None:
    await world.serve()
    client = await world.client(CHUNKED + b"186a0\r\n" + b"x" * 90_000)
    await world.until(lambda: world.server.bodies_bytes == 90_000)
    client.close()
    await world.until(lambda: world.server.bodies_bytes == 0)


@on_both_loops
async def test_a_client_that_sent_much_ahead_is_missed_when_it_leaves(world: World) -> None:
    await world.serve(gone_look_s=0.02)
    pending: list[SocketExchange] = []
    world.handler.on_complete = pending.append
    clients = []
    for count in (1, 2, 3):
        clients.append(await world.client(request() + request(body=b"x" * 100_000)))
        await world.until(partial(_so_many, pending, count))
    closes, resets, stays = clients
    closes.close()
    await world.until(lambda: world.handler.gone == pending[:1])
    resets.writer.transport.abort()
    await world.until(lambda: world.handler.gone == pending[:2])
    pending[2].respond(200, [], b"still here")
    assert (await stays.response())[2] == b"still here"
    await world.until(lambda: len(pending) == 4)
    pending[3].respond(200, [], b"")


def _so_many(things: list[SocketExchange], count: int) -> bool:
    return len(things) == count
