"""The transport, as an engine and a sink see it when both behave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import shutil
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from penstock.http.client.pool import Upstream, UpstreamErrorKind, UpstreamException, UpstreamLimits, UpstreamTimeouts
from tests.gateway.raw_engine import (
    OK,
    Peer,
    RawEngine,
    Recorder,
    answering,
    answering_once,
    ask,
    connected,
    on_both_loops,
    until,
    upstream_to,
)
from tests.patience import WAIT_S

if TYPE_CHECKING:
    from pathlib import Path

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


# --- What is written


@on_both_loops
async def test_a_request_is_written_as_given_with_host_prefix_and_length() -> None:
    async with RawEngine(answering(OK)) as engine:
        with upstream_to(engine.url + "/engine/a/") as upstream:
            headers = [(b"X-One", b"1"), (b"x-two", b"a b"), (b"X-One", b"again")]
            await ask(upstream, "POST", "/v1/chat?x=%20", headers, b"{}")
            await ask(upstream, "GET", "/metrics")
            await ask(upstream, "POST", "/empty")
        host = engine.url.removeprefix("http://").encode()
        assert engine.peers[0].requests == [
            b"POST /engine/a/v1/chat?x=%20 HTTP/1.1\r\nHost: " + host + b"\r\nX-One: 1\r\nx-two: a b\r\n"
            b"X-One: again\r\ncontent-length: 2\r\n\r\n{}",
            b"GET /engine/a/metrics HTTP/1.1\r\nHost: " + host + b"\r\n\r\n",
            b"POST /engine/a/empty HTTP/1.1\r\nHost: " + host + b"\r\ncontent-length: 0\r\n\r\n",
        ]


@on_both_loops
async def test_a_body_of_many_megabytes_arrives_whole() -> None:
    body = bytes(range(256)) * 32768
    async with connected(answering(OK)) as (engine, upstream):
        recorder = await ask(upstream, "POST", "/", [], body)
        assert recorder.body == b"ok"
        assert upstream.statistics().idle == 1
        assert engine.peers[0].requests[0].endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/a\r\nX-Evil: 1", []),
        ("/a HTTP/1.1", []),
        ("/", [(b"x", b"1\r\nX-Evil: 1")]),
        ("/", [(b"x", b"1\nX-Evil: 1")]),
        ("/", [(b"x\r\ny", b"1")]),
        ("/", [(b"x", b"1\r")]),
        ("/ä", []),
    ],
)
async def test_nothing_can_be_smuggled_into_a_request_head(target: str, headers: list[tuple[bytes, bytes]]) -> None:
    with upstream_to("http://127.0.0.1:1") as upstream, pytest.raises(ValueError, match=r"."):
        upstream.send("POST", target, headers, b"", Recorder())


@pytest.mark.parametrize(
    "url",
    ["ftp://a", "http://", "a:80", "http://u:p@a", "http://a?q", "http://a#f", "http://a:99999", "http://a/b c"],
)
async def test_a_url_that_is_not_an_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Upstream(url)


@on_both_loops
async def test_an_ipv6_literal_is_an_address_and_keeps_its_brackets() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    async with connected(answering(OK), host="::1") as (engine, upstream):
        assert (await ask(upstream)).body == b"ok"
        assert b"\r\nHost: [::1]:" in engine.peers[0].requests[0]


# --- What is read


@on_both_loops
async def test_headers_reach_the_sink_as_they_came() -> None:
    head = b"HTTP/1.1 404 Nope\r\nX-B: 1\r\nx-a:  2\r\nX-B: \r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
    async with connected(answering(head)) as (_, upstream):
        recorder = await ask(upstream)
    assert recorder.status == 404
    assert recorder.headers == [
        (b"X-B", b"1"),
        (b"x-a", b"2"),
        (b"X-B", b""),
        (b"Connection", b"keep-alive"),
        (b"Content-Length", b"0"),
    ]
    assert recorder.pieces == []


@pytest.mark.parametrize(
    ("answer", "body", "is_reused"),
    [
        (OK, b"ok", True),
        (CHUNKED + b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\n\r\n", b"abcde", True),
        (CHUNKED + b"3\r\nabc\r\n0\r\nX-Trailer: 1\r\nY: 2\r\n\r\n", b"abc", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", True),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 P\r\n\r\n" + OK, b"ok", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok", b"ok", True),
    ],
)
@on_both_loops
async def test_each_shape_of_answer_arrives_and_decides_reuse(answer: bytes, body: bytes, is_reused: bool) -> None:
    async with connected(answering(answer)) as (_, upstream):
        for _ in range(3):
            recorder = await ask(upstream)
            assert (recorder.error, recorder.body) == (None, body)
            assert b"Link" not in dict(recorder.headers)
        assert upstream.statistics().connects_total == (1 if is_reused else 3)


@on_both_loops
async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with connected(answering_once(UNTIL_CLOSE, b"a", b"bc")) as (_, upstream):
        recorder = await ask(upstream)
        assert (recorder.error, recorder.body) == (None, b"abc")
        assert upstream.statistics().idle == 0


@on_both_loops
async def test_the_answer_to_head_has_no_body_for_any_length() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    async with connected(answering(head)) as (_, upstream):
        for _ in range(2):
            recorder = await ask(upstream, "HEAD")
            assert (recorder.error, recorder.status, recorder.body) == (None, 200, b"")


@on_both_loops
async def test_the_chunks_of_one_read_reach_the_sink_as_one_piece() -> None:
    async with connected(answering(CHUNKED + b"2\r\nab\r\n" * 100 + b"0\r\n\r\n")) as (_, upstream):
        recorder = await ask(upstream)
        assert recorder.pieces == [b"ab" * 100]


@on_both_loops
async def test_a_chunk_is_not_held_back_for_the_next_one() -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        for chunk in (b"1", b"2", b"3"):
            await peer.send(b"1\r\n" + chunk + b"\r\n" if chunk != b"1" else CHUNKED + b"1\r\n1\r\n")
            await go_on.wait()
            go_on.clear()
        await peer.send(b"0\r\n\r\n")
        await peer.gone()

    async with connected(script) as (_, upstream):
        recorder = Recorder()
        upstream.send("GET", "/", [], b"", recorder)
        for chunk in (b"1", b"2", b"3"):
            assert await recorder.data() == chunk
            go_on.set()
        await recorder.over()


# --- The pool


@on_both_loops
async def test_connections_are_reused_the_youngest_first() -> None:
    async with connected(answering(OK)) as (engine, upstream):
        await asyncio.gather(*(ask(upstream) for _ in range(5)))
        assert upstream.statistics().idle == 5
        for _ in range(20):
            await ask(upstream)
        now = upstream.statistics()
        assert (now.connects_total, now.requests_total) == (5, 25)
        assert sorted(len(peer.requests) for peer in engine.peers) == [1, 1, 1, 1, 21]


@on_both_loops
async def test_a_connection_is_free_again_before_the_sink_hears_the_end() -> None:
    class Twice(Recorder):
        def on_end(self) -> None:
            super().on_end()
            upstream.send("GET", "/2", [], b"", second)

    async with connected(answering(OK)) as (_, upstream):
        second = Recorder()
        upstream.send("GET", "/1", [], b"", Twice())
        await second.over()
        assert upstream.statistics().connects_total == 1


@on_both_loops
async def test_the_pool_keeps_only_so_many_idle_connections() -> None:
    async with connected(answering(OK), limits=UpstreamLimits(idle_connections_max=2)) as (_, upstream):
        await asyncio.gather(*(ask(upstream) for _ in range(6)))
        assert upstream.statistics().idle == 2


@on_both_loops
async def test_an_idle_connection_is_closed_before_the_engine_would() -> None:
    async with connected(answering(OK), timeouts=UpstreamTimeouts(idle_s=0.05)) as (engine, upstream):
        await ask(upstream)
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)
        assert upstream.statistics().idle == 0


@on_both_loops
async def test_a_call_after_a_rest_is_timed_out_as_soon_as_any() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.gone()

    async with connected(script, timeouts=UpstreamTimeouts(first_byte_s=0.1, idle_s=600.0)) as (_, upstream):
        await ask(upstream)
        await until(lambda: upstream._rests)  # the next check is when the idle connection is to be closed
        assert (await asyncio.wait_for(ask(upstream), WAIT_S)).kind == UpstreamErrorKind.FIRST_BYTE_TIMEOUT


@on_both_loops
async def test_questions_with_a_time_out_of_their_own_leave_a_pool_at_rest() -> None:
    async with connected(answering(OK), timeouts=UpstreamTimeouts(first_byte_s=0.1, idle_s=600.0)) as (_, upstream):
        await ask(upstream)
        await until(lambda: upstream._rests)
        for _ in range(3):
            assert (await upstream.fetch("GET", "/health", timeout_s=WAIT_S)).status == 200
            assert upstream._rests
        assert upstream.statistics().connects_total == 1
        probes = upstream.unpooled()
        assert (await probes.fetch("GET", "/health", timeout_s=WAIT_S)).status == 200
        assert probes._timer is None


@on_both_loops
async def test_a_shorter_idle_time_counts_for_connections_that_rest() -> None:
    async with connected(answering(OK), timeouts=UpstreamTimeouts(first_byte_s=0.1, idle_s=600.0)) as (
        engine,
        upstream,
    ):
        await ask(upstream)
        await until(lambda: upstream._rests)
        upstream.retime(UpstreamTimeouts(first_byte_s=0.1, idle_s=0.05))
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)


@pytest.mark.parametrize("how", ["fin", "rst", "surplus"])
@on_both_loops
async def test_an_idle_connection_that_the_engine_ends_leaves_the_pool_at_once(how: str) -> None:
    end = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await end.wait()
        if how == "rst":
            peer.reset()
        elif how == "surplus":
            await peer.send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
            await peer.gone()

    async with connected(script) as (_, upstream):
        await ask(upstream)
        assert upstream.statistics().idle == 1
        end.set()
        await until(lambda: not upstream.statistics().idle)


@on_both_loops
async def test_after_close_calls_end_with_an_error_and_new_ones_fail() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if len(engine.peers) == 1:
            await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.gone()

    async with connected(script) as (engine, upstream):
        streaming, waiting, connecting, late = Recorder(), Recorder(), Recorder(), Recorder()
        upstream.send("GET", "/", [], b"", streaming)
        await streaming.data()
        upstream.send("GET", "/", [], b"", waiting)
        await until(lambda: engine.peers[1:] and engine.peers[1].requests)
        upstream.send("GET", "/", [], b"", connecting)
        upstream.close()
        upstream.send("GET", "/", [], b"", late)
        for recorder, kind in (
            (streaming, UpstreamErrorKind.BROKEN),
            (waiting, UpstreamErrorKind.RESET),
            (connecting, UpstreamErrorKind.CONNECT),
            (late, UpstreamErrorKind.CONNECT),
        ):
            assert (await recorder.over()).kind == kind


# --- Aborting, pausing


@pytest.mark.parametrize("phase", ["at once", "connecting", "waiting", "streaming", "over"])
@on_both_loops
async def test_an_abort_in_any_phase_closes_the_connection_and_silences_the_sink(phase: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if phase == "streaming":
            await peer.send(CHUNKED + b"1\r\na\r\n")
        if phase == "over":
            await peer.send(OK)
        await peer.gone()

    async with connected(script) as (engine, upstream):
        recorder = Recorder()
        call = upstream.send("GET", "/", [], b"", recorder)
        if phase == "connecting":
            await asyncio.sleep(0)
        elif phase == "waiting":
            await until(lambda: engine.peers and engine.peers[0].requests)
        elif phase == "streaming":
            await recorder.data()
        elif phase == "over":
            await recorder.over()
        call.abort()
        call.abort()
        call.pause()
        call.resume()
        assert recorder.is_over == (phase == "over")
        assert upstream.statistics().idle == (1 if phase == "over" else 0)
        if phase in ("waiting", "streaming"):
            await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)
        await until(lambda: not upstream.statistics().connecting)
        assert recorder.is_over == (phase == "over")


@pytest.mark.parametrize("callback", ["on_response", "on_data"])
@on_both_loops
async def test_a_sink_may_abort_inside_a_callback(callback: str) -> None:
    class Quitter(Recorder):
        def on_response(self, status: int, headers: list[tuple[bytes, bytes]], /) -> None:
            super().on_response(status, headers)
            if callback == "on_response":
                call.abort()

        def on_data(self, data: bytes, /) -> None:
            super().on_data(data)
            call.abort()

    async with connected(answering(OK)) as (engine, upstream):
        recorder = Quitter()
        call = upstream.send("GET", "/", [], b"", recorder)
        await until(lambda: engine.peers)
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)
        assert not recorder.is_over
        assert recorder.body == (b"" if callback == "on_response" else b"ok")


@on_both_loops
async def test_a_paused_sink_stops_the_engine_and_loses_nothing() -> None:
    piece, count = b"x" * 65536, 512
    sent_bytes = 0
    is_stuck = asyncio.Event()

    async def script(peer: Peer) -> None:
        nonlocal sent_bytes
        peer.writer.transport.set_write_buffer_limits(0)
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * count))
        for _ in range(count):
            peer.writer.write(piece)
            drained = asyncio.ensure_future(peer.writer.drain())
            if not (await asyncio.wait([drained], timeout=0.2))[0]:
                is_stuck.set()
            await drained
            sent_bytes += len(piece)
        await peer.gone()

    class Pauser(Recorder):
        def on_data(self, data: bytes, /) -> None:
            super().on_data(data)
            if len(self.pieces) == 1:
                call.pause()

    # The time between bytes is shorter than the pause: being paused must not count.
    timeouts = UpstreamTimeouts(between_bytes_s=0.1)
    async with connected(script, timeouts=timeouts) as (_, upstream):
        recorder = Pauser()
        call = upstream.send("GET", "/", [], b"", recorder)
        await asyncio.wait_for(is_stuck.wait(), WAIT_S)
        assert len(recorder.pieces) == 1
        assert len(recorder.body) <= 256 * 1024
        assert sent_bytes < 16 * 1024 * 1024  # what two kernels hold
        call.resume()
        await recorder.over()
        assert recorder.error is None
        assert recorder.body == piece * count
        assert upstream.statistics().idle == 1


@on_both_loops
async def test_a_call_paused_before_it_is_connected_reads_nothing_until_resumed() -> None:
    is_answered = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        is_answered.set()
        await peer.gone()

    timeouts = UpstreamTimeouts(first_byte_s=0.05)
    async with connected(script, timeouts=timeouts) as (_, upstream):
        recorder = Recorder()
        call = upstream.send("GET", "/", [], b"", recorder)
        call.pause()
        await is_answered.wait()
        await asyncio.wait([asyncio.ensure_future(recorder._over.wait())], timeout=0.15)
        assert (recorder.status, recorder.is_over) == (0, False)
        call.resume()
        assert (await recorder.over()).body == b"ok"


@on_both_loops
async def test_a_connection_that_was_paused_at_its_end_reads_again_for_the_next_call() -> None:
    class Pauser(Recorder):
        def on_response(self, status: int, headers: list[tuple[bytes, bytes]], /) -> None:
            super().on_response(status, headers)
            call.pause()

    async with connected(answering(OK)) as (_, upstream):
        recorder = Pauser()
        call = upstream.send("GET", "/", [], b"", recorder)
        assert (await recorder.over()).body == b"ok"
        assert (await ask(upstream)).body == b"ok"
        assert upstream.statistics().connects_total == 1


# --- fetch


@on_both_loops
async def test_fetch_returns_a_whole_answer() -> None:
    async with connected(answering(CHUNKED + b"1\r\na\r\n", b"2\r\nbc\r\n0\r\n\r\n")) as (_, upstream):
        response = await upstream.fetch("GET", "/metrics", timeout_s=5)
        assert (response.status, response.body) == (200, b"abc")
        assert response.headers == [(b"Transfer-Encoding", b"chunked")]
        assert upstream.statistics().idle == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", UpstreamErrorKind.FIRST_BYTE_TIMEOUT),
        (CHUNKED + b"1\r\na\r\n", UpstreamErrorKind.IDLE_TIMEOUT),
    ],
)
@pytest.mark.virtual_time  # which ends a call only where nothing is left to be read
async def test_fetch_is_bounded_in_time(answer: bytes, kind: UpstreamErrorKind) -> None:
    async with connected(answering(answer)) as (engine, upstream):
        with pytest.raises(UpstreamException) as caught:
            await upstream.fetch("GET", "/", timeout_s=0.1, bytes_max=10)
        assert caught.value.error.kind == kind
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S) if not answer else None


@on_both_loops
async def test_fetch_is_bounded_in_size() -> None:
    async with connected(answering(CHUNKED + b"b\r\n0123456789a\r\n0\r\n\r\n")) as (_, upstream):
        with pytest.raises(UpstreamException) as caught:
            await upstream.fetch("GET", "/", timeout_s=WAIT_S, bytes_max=10)
        assert caught.value.error.kind == UpstreamErrorKind.PROTOCOL


@pytest.mark.parametrize("answer", [CHUNKED + b"4\r\nabcd\r\n", CHUNKED + b"b\r\n0123456789a\r\n0\r\n\r\n"])
@on_both_loops
async def test_nothing_of_a_fetch_that_failed_waits_for_the_garbage_collector(answer: bytes) -> None:
    async with connected(answering(answer)) as (_, upstream):
        gc.collect()
        gc.disable()  # a gateway looks for garbage rarely, and hostile pages are large
        try:
            for _ in range(3):
                with contextlib.suppress(UpstreamException):
                    await upstream.fetch("GET", "/", timeout_s=0.05, bytes_max=10)
            kept = [thing for thing in gc.get_objects() if type(thing).__name__ == "_Collector"]
        finally:
            gc.enable()
        assert kept == []


@on_both_loops
async def test_a_cancelled_fetch_closes_its_connection() -> None:
    async with connected(answering(b"")) as (engine, upstream):
        fetching = asyncio.ensure_future(upstream.fetch("GET", "/", timeout_s=60))
        await until(lambda: engine.peers and engine.peers[0].requests)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 only, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=engine"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return cert, key


def serving(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


@on_both_loops
async def test_tls_works_with_the_right_authority(certificate: tuple[Path, Path]) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    body = b"x" * 1_000_000
    async with connected(answering(OK), tls=serving(certificate), ssl_context=trusting) as (engine, upstream):
        for _ in range(3):
            recorder = await ask(upstream, "POST", "/", [], body)
            assert (recorder.error, recorder.body) == (None, b"ok")
        assert upstream.statistics().connects_total == 1
        recorder = Recorder()
        upstream.send("GET", "/", [], b"", recorder).abort()
        assert engine.peers[0].requests[0].endswith(body)


@pytest.mark.parametrize("wrong", ["authority", "name"])
@on_both_loops
async def test_tls_refuses_a_certificate_it_cannot_check(wrong: str, certificate: tuple[Path, Path]) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0]) if wrong == "name" else None
    async with RawEngine(answering(OK), tls=serving(certificate)) as engine:
        url = engine.url.replace("127.0.0.1", "localhost") if wrong == "name" else engine.url
        with upstream_to(url, ssl_context=trusting) as upstream:
            recorder = await ask(upstream)
            assert recorder.kind == UpstreamErrorKind.CONNECT
            assert "CERTIFICATE_VERIFY_FAILED" in recorder.error.detail if recorder.error else False
            assert upstream.statistics().connects_total == 0


@on_both_loops
async def test_tls_to_a_plain_server_is_a_connect_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read(10)
        await peer.send(b"HTTP/1.1 400 plain text, please\r\n\r\n")

    async with RawEngine(script) as engine:
        with upstream_to(engine.url.replace("http:", "https:")) as upstream:
            assert (await ask(upstream)).kind == UpstreamErrorKind.CONNECT


@on_both_loops
async def test_a_small_request_does_not_wait_for_an_acknowledgement() -> None:
    async with connected(answering(OK)) as (_, upstream):
        await ask(upstream)
        raw = upstream._idle[0].transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
