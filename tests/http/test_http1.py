"""What a well-behaved client sees of the HTTP/1.1 server, and what the gateway sees of it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import subprocess
from pathlib import Path

import pytest
import uvloop

from penstock.http.server.server import SocketExchange
from tests.http.http1_world import Client, World, answer, chunked, on_both_loops, request
from tests.patience import WAIT_S


def start_stream(exchange: SocketExchange, length: int | None = None) -> None:
    exchange.start(200, [(b"Content-Type", b"text/event-stream")], length=length)


# ---- requests


@on_both_loops
async def test_the_handler_sees_the_request_as_it_came(world: World) -> None:
    await world.serve()
    client = await world.client(request("/v1/a%20b?x=1&y=%3f?", b"hello", extra=b"X-Twice: one  \r\nx-tWICE: two\r\n"))
    assert (await client.response())[0] == 200
    exchange = world.handler.completed[0]
    assert (exchange.method, exchange.target_path, exchange.query) == ("POST", "/v1/a%20b", "x=1&y=%3f?")
    assert exchange.headers == [
        (b"Host", b"penstock"),
        (b"Content-Length", b"5"),
        (b"X-Twice", b"one"),
        (b"x-tWICE", b"two"),
    ]
    assert exchange.header(b"x-twice") == b"one"
    assert exchange.header(b"absent") is None
    assert (exchange.body, exchange.http_version) == (b"hello", "1.1")
    assert exchange.peer == client.writer.get_extra_info("sockname")


@on_both_loops
async def test_begin_comes_before_the_body_and_complete_after_it(world: World) -> None:
    await world.serve()
    whole = request(body=b"hello")
    client = await world.client(whole[:-3])
    await world.until(lambda: world.handler.begun)
    assert world.handler.completed == []
    client.send(whole[-3:])
    assert (await client.response())[2] == b"POST /v1/x  hello"


@on_both_loops
async def test_a_chunked_body_is_joined_and_its_trailers_are_dropped(world: World) -> None:
    await world.serve()
    client = await world.client(chunked(b"hel", b"lo\r\n\r\n", b"x")[:-2] + b"Trailer: value\r\n\r\n")
    assert (await client.response())[2] == b"POST /v1/x  hello\r\n\r\nx"
    assert all(name != b"Trailer" for name, _ in world.handler.completed[0].headers)
    client.send(chunked(b"again"))
    assert (await client.response())[2] == b"POST /v1/x  again"


@on_both_loops
async def test_a_large_body_arrives_whole(world: World) -> None:
    await world.serve()
    body = bytes(range(256)) * 40_000
    client = await world.client(request(body=body))
    assert (await client.response())[2] == b"POST /v1/x  " + body
    client.send(chunked(*(body[at : at + 7_000] for at in range(0, 2_000_000, 7_000))))
    assert len((await client.response())[2]) == len(b"POST /v1/x  ") + 2_002_000


@on_both_loops
async def test_absolute_targets_are_read_as_their_path(world: World) -> None:
    await world.serve()
    client = await world.client()
    for target, seen in (
        ("http://host/v1/x?q=1", b"/v1/x q=1"),
        ("HTTPS://host:1/", b"/ "),
        ("http://h", b"/ "),
    ):
        client.send(request(target))
        assert (await client.response())[2] == b"POST " + seen + b" "


@on_both_loops
async def test_expect_continue_is_answered_before_the_body_is_sent(world: World) -> None:
    await world.serve()
    whole = request(body=b"hello", extra=b"Expect: 100-Continue\r\n")
    client = await world.client(whole[:-5])
    assert (await client.response())[0] == 100
    client.send(whole[-5:])
    assert (await client.response())[0] == 200


@on_both_loops
async def test_a_request_refused_in_begin_gets_no_continue(world: World) -> None:
    await world.serve()
    world.handler.on_begin = lambda exchange: exchange.respond(404, [], b"no such path")
    client = await world.client(request(body=b"hello", extra=b"Expect: 100-continue\r\n")[:-5])
    assert (await client.response())[0] == 404


@on_both_loops
async def test_an_h2c_upgrade_is_ignored_and_its_body_read(world: World) -> None:
    await world.serve()
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
    client = await world.client()
    for data in (
        request(body=b"hello", extra=upgrade),
        request(method="GET", extra=upgrade),
        chunked(b"hello").replace(b"\r\n\r\n", b"\r\n" + upgrade + b"\r\n", 1),
        request(body=b"plain"),
    ):
        client.send(data)
        assert (await client.response())[0] == 200
    assert [exchange.body for exchange in world.handler.completed] == [b"hello", b"", b"hello", b"plain"]


@on_both_loops
async def test_begin_sets_the_body_limit_of_one_request(world: World) -> None:
    await world.serve(body_bytes_max=4)
    world.handler.on_begin = lambda exchange: 10 if exchange.target_path == "/files" else None
    client = await world.client(request("/files", b"0123456789"))
    assert (await client.response())[0] == 200
    client.send(request("/v1/x", b"01234"))
    assert (await client.response())[0] == 413


# ---- responses


@on_both_loops
async def test_a_response_keeps_the_order_and_case_of_its_headers(world: World) -> None:
    await world.serve()
    world.handler.on_complete = lambda exchange: exchange.respond(
        200, [(b"X-B", b"1"), (b"x-a", b"2"), (b"Content-Length", b"99"), (b"Connection", b"close")], b"ok"
    )
    client = await world.client(request())
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nX-B: 1\r\nx-a: 2\r\ncontent-length: 2\r\ndate: ")
    assert head.endswith(b"\r\nkeep-alive: timeout=620\r\nconnection: keep-alive\r\n\r\n")
    assert head.count(b"\r\n") == 8


@on_both_loops
async def test_a_date_that_was_given_is_kept(world: World) -> None:
    await world.serve()
    world.handler.on_complete = lambda exchange: exchange.respond(200, [(b"Date", b"then")], b"")
    client = await world.client(request())
    assert (await client.response())[1]["date"] == "then"


@on_both_loops
async def test_a_stream_of_unknown_length_is_chunked(world: World) -> None:
    await world.serve()
    world.handler.on_complete = start_stream
    client = await world.client(request())
    await world.until(lambda: world.handler.completed)
    exchange = world.handler.completed[0]
    pieces = [b"one", b"", *[b"%d" % (size % 7) * size for size in (15, 16, 1023, 1024, 16_383, 16_384, 100_000)]]
    for piece in pieces:
        exchange.write(piece)
    exchange.end()
    assert (await client.response())[2] == b"".join(pieces)
    client.send(request())
    await world.until(lambda: len(world.handler.completed) == 2)
    world.handler.completed[1].end()
    assert (await client.response())[2] == b""


@on_both_loops
async def test_a_stream_of_known_length_is_sent_plain(world: World) -> None:
    await world.serve()

    def stream(exchange: SocketExchange) -> None:
        start_stream(exchange, length=6)
        exchange.write(b"abc")
        exchange.write(b"def")
        exchange.end()

    world.handler.on_complete = stream
    client = await world.client(request() + request())
    for _ in range(2):
        _, headers, body = await client.response()
        assert (headers["content-length"], body) == ("6", b"abcdef")


@on_both_loops
async def test_http_1_0_gets_a_stream_that_ends_with_the_connection(world: World) -> None:
    await world.serve()

    def stream(exchange: SocketExchange) -> None:
        start_stream(exchange)
        exchange.write(b"abc")
        exchange.end()

    world.handler.on_complete = stream
    answered = await world.ask(request(version="1.0", extra=b"Connection: keep-alive\r\n"))
    head, _, body = answered.partition(b"\r\n\r\n")
    assert body == b"abc"
    assert b"chunked" not in head
    assert b"connection: close" in head


@on_both_loops
async def test_a_head_request_gets_the_headers_only(world: World) -> None:
    await world.serve()
    client = await world.client(request(method="HEAD") + request(method="GET"))
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert b"content-length: 12\r\n" in head
    assert (await client.response())[2] == b"GET /v1/x  "


@on_both_loops
async def test_204_and_304_have_no_body(world: World) -> None:
    await world.serve()

    def stream(exchange: SocketExchange) -> None:
        exchange.start(304, [], length=None)
        exchange.write(b"not sent")
        exchange.end()

    world.handler.on_complete = lambda exchange: exchange.respond(204, [], b"not sent")
    client = await world.client(request())
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 204 No Content\r\n")
    assert b"content-length" not in head
    world.handler.on_complete = stream
    client.send(request())
    assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 304 ")
    world.handler.on_complete = lambda exchange: exchange.respond(299, [], b"ok")
    client.send(request())
    assert await client.reader.readuntil(b"ok") is not None


@on_both_loops
async def test_an_aborted_stream_stays_incomplete(world: World) -> None:
    await world.serve()

    def stream(exchange: SocketExchange) -> None:
        start_stream(exchange)
        exchange.write(b"abc")
        exchange.abort()
        exchange.write(b"ignored")
        exchange.end()

    world.handler.on_complete = stream
    answered = await world.ask(request())
    assert answered.endswith(b"\r\n\r\n3\r\nabc\r\n")
    assert world.handler.gone == []
    client = await world.client(request(version="1.0"))
    with pytest.raises(ConnectionResetError):  # nothing else would tell
        await client.reader.read()


@on_both_loops
async def test_an_end_that_comes_short_of_the_length_closes_the_connection(world: World) -> None:
    await world.serve()

    def stream(exchange: SocketExchange) -> None:
        start_stream(exchange, length=6)
        exchange.write(b"abc")
        exchange.end()

    world.handler.on_complete = stream
    assert (await world.ask(request())).endswith(b"\r\n\r\nabc")


@on_both_loops
async def test_a_line_break_in_a_response_header_is_refused(world: World) -> None:
    await world.serve()

    def split(exchange: SocketExchange) -> None:
        with pytest.raises(ValueError, match="line break"):
            exchange.respond(200, [(b"x", b"1\r\nset-cookie: a")], b"")
        exchange.respond(500, [], b"")

    world.handler.on_complete = split
    client = await world.client(request())
    assert (await client.response())[0] == 500


# ---- connections


@on_both_loops
async def test_connections_are_kept_alive_as_each_version_asks(world: World) -> None:
    await world.serve()
    for version, extra, kept in (
        ("1.1", b"", True),
        ("1.1", b"Connection: close\r\n", False),
        ("1.0", b"", False),
        ("1.0", b"Connection: keep-alive\r\n", True),
    ):
        client = await world.client(request(version=version, extra=extra))
        _, headers, _ = await client.response()
        assert (headers.get("connection") == "close") is not kept
        if kept:
            client.send(request(version=version, extra=extra))
            assert (await client.response())[0] == 200
        else:
            assert await client.rest() == b""


@on_both_loops
async def test_an_idle_connection_is_closed_in_silence(world: World) -> None:
    await world.serve(keepalive_timeout_s=0.05)
    client = await world.client(request())
    assert (await client.response())[0] == 200
    assert await client.rest() == b""


@on_both_loops
async def test_fifty_pipelined_requests_are_answered_in_order(world: World) -> None:
    await world.serve()
    loop = asyncio.get_running_loop()
    running = 0

    def later(exchange: SocketExchange) -> None:
        nonlocal running
        running += 1
        assert running == 1, "one at a time"
        loop.call_soon(done, exchange)

    def done(exchange: SocketExchange) -> None:
        nonlocal running
        running -= 1
        exchange.respond(200, [], exchange.target_path.encode() + exchange.body)

    world.handler.on_complete = later
    sent = [chunked(b"a\r\n\r\n", b"b", target=f"/{n}") if n % 2 else request(f"/{n}", b"ab") for n in range(50)]
    client = await world.client(b"".join(sent))
    for n in range(50):
        assert (await client.response())[2] == (f"/{n}a\r\n\r\nb" if n % 2 else f"/{n}ab").encode()


@on_both_loops
async def test_a_flood_of_pipelined_requests_is_read_no_faster_than_it_is_answered(world: World) -> None:
    await world.serve(pipelined_bytes_max=1000)
    held: list[SocketExchange] = []
    world.handler.on_complete = held.append
    client = await world.client(request() * 20_000)
    await world.until(lambda: held)
    assert len(world.handler.begun) == 1
    world.handler.on_complete = answer_short
    answer_short(held[0])
    for _ in range(20_000):
        assert await client.reader.readexactly(len(SHORT)) == SHORT


SHORT = b"HTTP/1.1 200 OK\r\ndate: -\r\ncontent-length: 0\r\nkeep-alive: timeout=620\r\nconnection: keep-alive\r\n\r\n"


def answer_short(exchange: SocketExchange) -> None:
    exchange.respond(200, [(b"date", b"-")], b"")


@on_both_loops
async def test_a_hang_up_while_the_response_is_pending_is_noticed(world: World) -> None:
    await world.serve()
    world.handler.on_complete = lambda exchange: None
    for hang_up in (close, half_close, reset):
        client = await world.client(request(body=b"hello"))
        await world.until(lambda: world.handler.completed)
        hang_up(client)
        await world.until(lambda: world.handler.gone)
        exchange = world.handler.gone.pop()
        assert exchange.gone
        exchange.respond(200, [], b"ignored")
        exchange.start(200, [], length=None)
        exchange.write(b"ignored")
        exchange.end()
        exchange.abort()
        world.handler.completed.clear()


def close(client: Client) -> None:
    client.close()


def half_close(client: Client) -> None:
    client.writer.write_eof()


def reset(client: Client) -> None:
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


@on_both_loops
async def test_no_disconnect_is_reported_after_the_end(world: World) -> None:
    await world.serve()
    client = await world.client(request())
    await client.response()
    client.close()
    await world.until(lambda: world.server.connections == 0)
    assert world.handler.gone == []


@on_both_loops
async def test_a_slow_reader_pauses_the_engine(world: World) -> None:
    await world.serve(write_buffer_bytes_max=65536, write_buffer_bytes_low=16384)
    told: list[str] = []
    sent = 0
    piece = b"x" * 16384

    def stream(exchange: SocketExchange) -> None:
        nonlocal sent
        exchange.on_pause = lambda: told.append("pause")
        exchange.on_resume = lambda: told.append("resume")
        start_stream(exchange)
        while not told and sent < 100_000_000:
            exchange.write(piece)
            sent += len(piece)

    world.handler.on_complete = stream
    client = await world.client(request(), limit=4096)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await world.until(lambda: told == ["pause"])
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    response = asyncio.ensure_future(client.response())
    await world.until(lambda: told == ["pause", "resume"])
    world.handler.completed[0].end()
    assert len((await response)[2]) == sent


# ---- the whole server


@on_both_loops
async def test_a_draining_server_closes_the_idle_and_finishes_the_busy(world: World) -> None:
    server = await world.serve()
    idle = await world.client(request())
    await idle.response()
    fresh = await world.client()
    await world.until(lambda: server.connections == 2)
    world.handler.completed.clear()
    world.handler.on_complete = lambda exchange: None
    busy = await world.client(request())
    await world.until(lambda: world.handler.completed)
    port = server.port
    server.stop_accepting()
    assert await idle.rest() == await fresh.rest() == b""
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", port)
    world.handler.completed[0].respond(200, [], b"done")
    _, headers, body = await busy.response()
    assert (headers["connection"], body) == ("close", b"done")
    assert await busy.rest() == b""
    await server.wait_closed(1)
    assert server.connections == 0


@on_both_loops
async def test_from_the_drain_on_every_answer_closes_its_connection(world: World) -> None:
    server = await world.serve()
    kept, again = await world.client(request()), await world.client(request())
    old = await world.client(request(version="1.0", extra=b"Connection: keep-alive\r\n"))
    for client in (kept, again, old):
        assert (await client.response())[1]["connection"] == "keep-alive"
    server.drain(60.0)
    fresh = await world.client()
    kept.send(request())
    again.send(request() + request())
    old.send(request(version="1.0", extra=b"Connection: keep-alive\r\n"))
    fresh.send(request(body=b"x"))
    for client in (kept, again, old, fresh):
        status, headers, _ = await client.response()
        assert (status, headers["connection"], "keep-alive" in headers) == (200, "close", False)
        assert await client.rest() == b"", "the second of two requests is for another connection"
    assert len(world.handler.completed) == 7


@on_both_loops
async def test_a_stream_that_began_before_the_drain_ends_whole_and_then_its_connection(world: World) -> None:
    server = await world.serve()
    world.handler.on_complete = start_stream
    client, ahead = await world.client(request()), await world.client(request() + request("/second"))
    await world.until(lambda: len(world.handler.completed) == 2)
    server.drain(0.0)
    first, second = sorted(world.handler.completed, key=lambda exchange: exchange.peer != client.address)
    for stream in (first, second):
        stream.write(b"token")
    world.handler.on_complete = answer
    for stream in (first, second):
        stream.end()
    for its in (client, ahead):
        status, headers, body = await its.response()
        assert (status, headers["connection"], body) == (200, "keep-alive", b"token")
    assert await client.rest() == b""
    assert (await ahead.response())[1]["connection"] == "close", "what came on that promise is answered"
    assert await ahead.rest() == b""


@on_both_loops
async def test_connections_without_a_request_are_closed_during_the_drain(world: World) -> None:
    server = await world.serve()
    idle = await world.client(request())
    await idle.response()
    fresh = await world.client()
    await world.until(lambda: server.connections == 2)
    server.drain(0.05)
    assert await idle.rest() == await fresh.rest() == b""
    late = await world.client(request())
    assert (await late.response())[1]["connection"] == "close"


@on_both_loops
async def test_unfinished_requests_are_aborted_in_the_end(world: World) -> None:
    server = await world.serve()
    world.handler.on_complete = start_stream
    client = await world.client(request())
    await world.until(lambda: world.handler.completed)
    await server.wait_closed(0.05)
    assert server.connections == 0
    assert world.handler.gone == world.handler.completed
    assert not (await client.rest()).endswith(b"0\r\n\r\n")


@on_both_loops
async def test_one_connection_too_many_is_refused(world: World) -> None:
    server = await world.serve(connections_max=2)
    first, second = await world.client(), await world.client()
    await world.until(lambda: server.connections == 2)
    third = await world.client()
    assert (await third.response())[0] == 503
    assert await third.rest() == b""
    for client in (first, second):
        client.send(request())
        assert (await client.response())[0] == 200


@on_both_loops
async def test_at_the_bound_the_connection_that_is_idle_for_the_longest_time_makes_room(world: World) -> None:
    server = await world.serve(connections_max=3)
    fresh, oldest, idle = await world.client(), await world.client(), await world.client()
    for client in (oldest, idle, oldest):
        client.send(request())
        assert (await client.response())[0] == 200
    newcomer = await world.client(request())
    assert (await newcomer.response())[0] == 200
    assert await idle.rest() == b"", "it was idle for the longest time"
    for client in (fresh, oldest):
        client.send(request())
        assert (await client.response())[0] == 200
    assert server.connections == 3


@on_both_loops
async def test_at_the_bound_of_an_address_its_own_idle_connections_make_room(world: World) -> None:
    await world.serve(connections_per_address_max=1)
    idle = await world.client(request())
    assert (await idle.response())[0] == 200
    newcomer = await world.client()
    assert await idle.rest() == b""
    refused = await world.client()
    assert (await refused.response())[0] == 503
    newcomer.send(request())
    assert (await newcomer.response())[0] == 200


@on_both_loops
async def test_clients_hear_how_long_an_idle_connection_is_kept(world: World) -> None:
    await world.serve(keepalive_timeout_s=7.9)
    client = await world.client(request())
    assert (await client.response())[1]["keep-alive"] == "timeout=7"
    client.send(request(extra=b"connection: close\r\n"))
    _, headers, _ = await client.response()
    assert (headers["connection"], headers.get("keep-alive")) == ("close", None)


def certified(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate of its own, and one that trusts it."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    return serving, ssl.create_default_context(cafile=str(cert))


@pytest.mark.parametrize("uv", [False, True])
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificate is made by openssl")
def test_tls_is_served(tmp_path: Path, uv: bool) -> None:
    serving, trusting = certified(tmp_path)

    async def main() -> None:
        world = World()
        await world.serve(ssl=serving)
        client = await world.client(request(body=b"hello"), ssl=trusting, server_hostname="localhost")
        assert (await client.response())[2] == b"POST /v1/x  hello"
        client.send(b"garbage\r\n\r\n")
        assert (await client.response())[0] == 400
        client.close()
        plain = await world.client(request())
        assert b"200 OK" not in await plain.rest()
        await world.leave()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uv else asyncio.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("uv", [False, True])
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificate is made by openssl")
def test_over_tls_a_slow_client_gets_the_end_of_the_last_answer(tmp_path: Path, uv: bool) -> None:
    """TLS has a time-out of its own for the end of a connection: it cut off what a slow client had yet to read."""
    serving, trusting = certified(tmp_path)
    linger_s = 0.05

    async def main() -> None:
        world = World()
        await world.serve(ssl=serving, linger_timeout_s=linger_s, write_timeout_s=1000.0)
        world.handler.on_complete = lambda exchange: exchange.respond(200, [], b"x" * 20_000_000)
        slow = trusting.wrap_socket(socket.socket(), server_hostname="localhost")

        def ask() -> None:
            slow.settimeout(WAIT_S)
            slow.connect(("127.0.0.1", world.server.port))
            slow.sendall(request(extra=b"Connection: close\r\n"))

        def read() -> bytes:
            with slow, slow.makefile("rb") as answer:
                return answer.read()

        await asyncio.to_thread(ask)
        await world.until(lambda: world.handler.completed)
        await asyncio.sleep(6 * linger_s)  # it reads nothing for so long
        assert (await asyncio.to_thread(read)).endswith(b"\r\n\r\n" + b"x" * 20_000_000)
        await world.leave()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uv else asyncio.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("uv", [False, True])
@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificate is made by openssl")
def test_over_tls_a_client_that_does_not_close_holds_up_no_drain(tmp_path: Path, uv: bool) -> None:
    serving, trusting = certified(tmp_path)

    async def main() -> None:
        world = World()
        await world.serve(ssl=serving, linger_timeout_s=0.05, write_timeout_s=1000.0)
        client = await world.client(request(), ssl=trusting, server_hostname="localhost")
        await client.response()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        world.server.stop_accepting()
        await world.until(lambda: world.server.connections == 0)
        client.writer.transport.abort()
        world.clients.clear()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if uv else asyncio.new_event_loop) as runner:
        runner.run(main())
