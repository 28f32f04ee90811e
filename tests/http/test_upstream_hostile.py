"""The transport against engines that break, lie, stall and babble: each has one outcome, and none hangs."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from dataclasses import dataclass, field

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.http.client.pool import UpstreamErrorKind, UpstreamLimits, UpstreamTimeouts
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
from tests.ports import free_port

HEAD = b"HTTP/1.1 200 OK\r\n"
LENGTH = HEAD + b"Content-Length: 10\r\nX-Y: z\r\n\r\n0123456789"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n1\r\nf\r\n0\r\nT: 1\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
QUICK_TO_CONNECT = UpstreamTimeouts(connect_s=0.1)
QUICK_TO_BEGIN = UpstreamTimeouts(connect_s=WAIT_S, first_byte_s=0.1)
QUICK_BETWEEN = UpstreamTimeouts(connect_s=WAIT_S, between_bytes_s=0.1)
QUICK = UpstreamTimeouts(connect_s=WAIT_S, first_byte_s=0.1, between_bytes_s=0.1)
Kind = UpstreamErrorKind


# --- Closing


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("answer", [LENGTH, CHUNKED], ids=["length", "chunked"])
@on_both_loops
async def test_a_loss_at_every_byte_of_an_answer_is_classified(answer: bytes, how: str) -> None:
    cut = 0

    async def script(peer: Peer) -> None:
        await peer.request()
        if cut:
            await peer.send(answer[:cut])
        if how == "rst":
            peer.reset()

    async with connected(script) as (_, upstream):
        for cut in range(len(answer)):
            recorder = await ask(upstream)
            assert recorder.kind == (Kind.BROKEN if cut else Kind.RESET), cut
            assert bool(recorder.status) == (b"\r\n\r\n" in answer[:cut])
            assert b"0123456789".startswith(recorder.body) or b"abcdef".startswith(recorder.body)
        assert upstream.statistics().connects_total == len(answer)


@on_both_loops
async def test_a_body_until_close_that_ends_in_a_reset_is_broken() -> None:
    is_read = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"\r\nabc")
        await is_read.wait()
        peer.reset()

    async with connected(script) as (_, upstream):
        recorder = Recorder()
        upstream.send("GET", "/", [], b"", recorder)
        await recorder.data()
        is_read.set()
        await recorder.over()
        assert (recorder.body, recorder.kind) == (b"abc", Kind.BROKEN)


@pytest.mark.parametrize("how", ["fin", "rst", "unread"])
@on_both_loops
async def test_a_reused_connection_that_is_lost_at_once_is_stale(how: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if how == "unread":
            await peer.reader.readexactly(1)
        else:
            await peer.request()
            if how == "rst":
                peer.reset()

    async with connected(script) as (engine, upstream):
        await ask(upstream)
        assert (await ask(upstream, "POST", "/again", [], b"body")).kind == Kind.STALE
        assert len(engine.peers) == 1, "whether to send it again is the caller's matter"


@on_both_loops
async def test_no_request_is_written_to_a_connection_that_was_closed_while_idle() -> None:
    """Even if the event loop has not reported the end of the connection yet."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.gone()

    async with connected(script) as (engine, upstream):
        await ask(upstream)
        with socket.socket(fileno=os.dup(engine.peers[0].writer.get_extra_info("socket").fileno())) as raw:
            raw.shutdown(socket.SHUT_WR)
        upstream.time = lambda: asyncio.get_running_loop().time() + 1.0  # it has been idle for a second
        assert (await ask(upstream, "POST", "/", [], b"body")).body == b"ok"
        assert [len(peer.requests) for peer in engine.peers] == [1, 1]


@on_both_loops
async def test_no_request_is_written_to_a_connection_with_unrequested_bytes() -> None:
    """Otherwise an answer that nobody asked for would be that of the next request, maybe of another tenant."""
    other = OK.replace(b"ok", b"no")

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.gone()

    async with connected(script) as (engine, upstream):
        await ask(upstream)
        with socket.socket(fileno=os.dup(engine.peers[0].writer.get_extra_info("socket").fileno())) as raw:
            raw.send(other)  # the event loop has yet to read it
        upstream.time = lambda: asyncio.get_running_loop().time() + 1.0  # it has been idle for a second
        assert (await ask(upstream, "POST", "/", [], b"body")).body == b"ok"
        assert [len(peer.requests) for peer in engine.peers] == [1, 1]


@on_both_loops
async def test_one_stale_connection_closes_the_other_idle_ones() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with connected(script) as (_, upstream):
        await asyncio.gather(*(ask(upstream) for _ in range(3)))
        assert upstream.statistics().idle == 3
        assert (await ask(upstream)).kind == Kind.STALE
        assert upstream.statistics().idle == 0
        assert (await ask(upstream)).body == b"ok"
        assert upstream.statistics().connects_total == 4


@on_both_loops
async def test_a_question_of_our_own_that_met_a_stale_connection_is_asked_once_more() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with connected(script) as (_, upstream):
        assert (await upstream.fetch("GET", "/", timeout_s=10)).body == b"ok"
        assert (await upstream.fetch("GET", "/", timeout_s=10)).body == b"ok"
        assert upstream.statistics().connects_total == 2


@pytest.mark.interpreted  # a compiled module has its constants inside
@on_both_loops
async def test_an_engine_that_dies_of_a_request_long_after_it_came_is_no_stale_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.http.client.pool.STALE_S", 0.0)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    async with connected(script) as (_, upstream):
        await ask(upstream)
        assert (await ask(upstream)).kind == Kind.RESET


@on_both_loops
async def test_a_reused_connection_lost_after_one_byte_is_broken() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"H")

    async with connected(script) as (_, upstream):
        await ask(upstream)
        assert (await ask(upstream)).kind == Kind.BROKEN


@on_both_loops
async def test_a_half_closed_engine_may_still_have_answered() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH)
        peer.writer.write_eof()
        await peer.gone()

    async def mute(peer: Peer) -> None:
        await peer.request()
        peer.writer.write_eof()
        await peer.gone()

    async with RawEngine(script) as engine, RawEngine(mute) as silent:
        with upstream_to(engine) as upstream:
            assert (await ask(upstream)).body == b"0123456789"
        with upstream_to(silent) as upstream:
            assert (await ask(upstream)).kind == Kind.RESET


# --- Not connecting


@on_both_loops
async def test_a_closed_port_and_a_hopeless_name_are_connect_errors() -> None:
    for url in (f"http://127.0.0.1:{free_port()}", f"http://{'a' * 64}.example"):
        with upstream_to(url) as upstream:
            recorder = await ask(upstream)
            assert recorder.kind == Kind.CONNECT
            assert recorder.error
            assert recorder.error.detail
            assert upstream.statistics().connecting == 0


@on_both_loops
async def test_a_port_that_does_not_accept_times_out() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        with upstream_to(f"http://127.0.0.1:{server.getsockname()[1]}", timeouts=QUICK_TO_CONNECT) as upstream:
            assert (await ask(upstream)).kind == Kind.CONNECT_TIMEOUT
        for filler in fillers:
            filler.close()


@on_both_loops
async def test_a_tls_handshake_that_is_never_answered_times_out() -> None:
    async with RawEngine(Peer.gone) as engine:
        with upstream_to(engine.url.replace("http:", "https:"), timeouts=QUICK_TO_CONNECT) as upstream:
            assert (await ask(upstream)).kind == Kind.CONNECT_TIMEOUT


@on_both_loops
async def test_an_abort_during_a_tls_handshake_hangs_up() -> None:
    async with RawEngine(Peer.gone) as engine:
        with upstream_to(engine.url.replace("http:", "https:")) as upstream:
            recorder = Recorder()
            call = upstream.send("GET", "/", [], b"", recorder)
            await until(lambda: engine.peers)
            call.abort()
            await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)
            await until(lambda: not upstream.statistics().connecting)
            assert not recorder.is_over


# --- Stalling


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", Kind.FIRST_BYTE_TIMEOUT),
        (b"HTTP/1.1 200 OK\r\n", Kind.FIRST_BYTE_TIMEOUT),
        (b"HTTP/1.1 100 Continue\r\n\r\n", Kind.FIRST_BYTE_TIMEOUT),
        (STREAM_HEAD, Kind.FIRST_BYTE_TIMEOUT),  # a stream's head comes at once, its first token is what is waited for
        (LENGTH[:-1], Kind.IDLE_TIMEOUT),
        (CHUNKED[:-1], Kind.IDLE_TIMEOUT),
        (HEAD + b"\r\nabc", Kind.IDLE_TIMEOUT),
    ],
)
@on_both_loops
async def test_an_engine_that_falls_silent_is_timed_out_and_left(answer: bytes, kind: Kind) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.gone()

    timeouts = QUICK_TO_BEGIN if kind is Kind.FIRST_BYTE_TIMEOUT else QUICK_BETWEEN
    async with connected(script, timeouts=timeouts) as (engine, upstream):
        began_s = upstream.time()
        assert (await ask(upstream)).kind == kind
        assert 0.1 <= upstream.time() - began_s < 3
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)


@on_both_loops
async def test_the_time_between_bytes_begins_with_the_first_token() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(STREAM_HEAD)
        await peer.gone()

    timeouts = UpstreamTimeouts(first_byte_s=0.3, between_bytes_s=0.05)
    async with connected(script, timeouts=timeouts) as (_, upstream):
        began_s = upstream.time()
        assert (await ask(upstream)).kind == Kind.FIRST_BYTE_TIMEOUT
        assert upstream.time() - began_s >= 0.3


@on_both_loops
async def test_dripping_a_head_does_not_extend_the_time_to_the_first_byte() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(HEAD + b"x: ")
        gone = asyncio.ensure_future(peer.gone())
        while not (await asyncio.wait([gone], timeout=0.01))[0]:
            await peer.send(b"y")

    async with connected(script, timeouts=QUICK_TO_BEGIN) as (_, upstream):
        assert (await ask(upstream)).kind == Kind.FIRST_BYTE_TIMEOUT


@on_both_loops
async def test_a_body_that_drips_is_slow_but_alive() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(LENGTH[:-10])
        for digit in LENGTH[-10:]:
            await asyncio.sleep(0.04)  # the pace is the point
            await peer.send(bytes([digit]))
        await peer.gone()

    async with connected(script, timeouts=UpstreamTimeouts(between_bytes_s=0.3)) as (_, upstream):
        recorder = await ask(upstream)
        assert (recorder.error, recorder.body) == (None, b"0123456789")


@on_both_loops
async def test_an_engine_that_does_not_read_a_large_body_is_timed_out() -> None:
    finish = asyncio.Event()

    async def script(peer: Peer) -> None:
        await finish.wait()

    async with connected(script, timeouts=QUICK_TO_BEGIN) as (_, upstream):
        recorder = await ask(upstream, "POST", "/", [], bytes(32 * 1024 * 1024))
        assert recorder.kind == Kind.FIRST_BYTE_TIMEOUT
        finish.set()


@on_both_loops
async def test_an_answer_before_the_body_was_sent_counts_and_ends_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nmuch")
        await finish.wait()

    finish = asyncio.Event()
    async with connected(script) as (_, upstream):
        recorder = await ask(upstream, "POST", "/", [], bytes(32 * 1024 * 1024))
        assert (recorder.status, recorder.error, recorder.body) == (413, None, b"much")
        assert upstream.statistics().idle == 0
        finish.set()


@on_both_loops
async def test_an_answer_that_drips_byte_by_byte_is_whole() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + CHUNKED
    async with connected(answering(*(bytes([byte]) for byte in answer))) as (_, upstream):
        for _ in range(2):
            recorder = await ask(upstream)
            assert (recorder.error, recorder.body) == (None, b"abcdef")
        assert upstream.statistics().connects_total == 1


# --- Lying and babbling


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff\x16\x03\x01",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 199 What\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00",
        HEAD + b"no colon here\r\n\r\n",
        HEAD + b"a: b\r\n folded\r\n\r\n",
        HEAD + b"a : b\r\n\r\n",
        HEAD + b"a: \x00\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1x\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nab",
        HEAD + b"Content-Length: 2, 3\r\n\r\nab",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nbad trailer\r\n\r\n",
    ],
)
@on_both_loops
async def test_bad_http_is_a_protocol_error_and_closes(answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        await peer.gone()

    async with connected(script) as (engine, upstream):
        recorder = await ask(upstream)
        assert recorder.kind == Kind.PROTOCOL
        assert recorder.error
        assert recorder.error.detail
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)


@on_both_loops
async def test_payload_before_a_bad_chunk_still_arrives() -> None:
    async with connected(answering(CHUNKED[:-12] + b"zz\r\n")) as (_, upstream):
        recorder = await ask(upstream)
        assert (recorder.status, recorder.body, recorder.kind) == (200, b"abcdef", Kind.PROTOCOL)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK + b"surplus", b"ok"),
        (OK + OK, b"ok"),
        (OK + b"\x00" * 100_000, b"ok"),
        (CHUNKED + OK, b"abcdef"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", b""),
    ],
)
@on_both_loops
async def test_bytes_after_an_answer_end_the_connection_not_the_call(answer: bytes, body: bytes) -> None:
    async with connected(answering(answer)) as (_, upstream):
        for count in range(1, 4):
            recorder = await ask(upstream)
            assert (recorder.error, recorder.body) == (None, body)
            assert (upstream.statistics().connects_total, upstream.statistics().idle) == (count, 0)


@on_both_loops
async def test_a_body_after_the_answer_to_head_is_dropped_with_its_connection() -> None:
    async with connected(answering(LENGTH)) as (_, upstream):
        recorder = await ask(upstream, "HEAD")
        assert (recorder.error, recorder.body) == (None, b"")
        assert upstream.statistics().idle == 0


LIMITS = UpstreamLimits(header_bytes_max=8192, header_count_max=50)


@pytest.mark.parametrize(
    ("start", "unit"),
    [
        (HEAD, b"a: b\r\n"),  # up to 10^6 header lines
        (HEAD + b"a: ", b"bbbbbbbbbb"),  # one line of 10 MB
        (b"", b"\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"t: u\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;", b"eeeeeeeeee"),
    ],
    ids=["lines", "line", "blank", "interim", "trailers", "extension"],
)
@on_both_loops
async def test_endless_framing_is_cut_off_at_the_limit(start: bytes, unit: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(start)
        gone = asyncio.ensure_future(peer.gone())
        for _ in range(100_000):
            await peer.send(unit * 10)
            if gone.done():
                return
            await asyncio.sleep(0)

    async with connected(script, limits=LIMITS) as (_, upstream):
        recorder = await ask(upstream)
        assert recorder.kind == Kind.PROTOCOL
        assert recorder.error
        assert "more than" in recorder.error.detail


@pytest.mark.parametrize("lines", [b"a: b\r\n" * 51, b"a: " + b"b" * 8192 + b"\r\n"])
@on_both_loops
async def test_a_large_head_in_one_read_is_refused_too(lines: bytes) -> None:
    async with connected(answering_once(HEAD + lines + b"Content-Length: 0\r\n\r\n"), limits=LIMITS) as (_, upstream):
        assert (await ask(upstream)).kind == Kind.PROTOCOL


@on_both_loops
async def test_a_head_within_the_limits_is_accepted_with_a_large_body_behind_it() -> None:
    body = b"z" * 200_000
    head = HEAD + b"a: b\r\n" * 48 + b"c: " + b"d" * 7000 + b"\r\nContent-Length: 200000\r\n\r\n"
    async with connected(answering(head + body), limits=LIMITS) as (_, upstream):
        for _ in range(2):
            recorder = await ask(upstream)
            assert (recorder.error, len(recorder.headers), recorder.body) == (None, 50, body)


@on_both_loops
async def test_an_answer_before_any_request_is_no_answer() -> None:
    """On an idle connection it ends the connection, so the next request goes elsewhere."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if peer is engine.peers[0]:
            await unasked.wait()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        await peer.gone()

    unasked = asyncio.Event()
    async with connected(script) as (engine, upstream):
        await ask(upstream)
        unasked.set()
        await asyncio.wait_for(engine.peers[0].is_gone.wait(), WAIT_S)
        assert (await ask(upstream)).body == b"ok"


@on_both_loops
async def test_a_sink_that_raises_loses_its_connection_and_no_other() -> None:
    class Faulty(Recorder):
        def on_data(self, data: bytes, /) -> None:
            raise RuntimeError("a sink's own mistake")

    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with connected(answering(OK)) as (_, upstream):
        recorder = Faulty()
        upstream.send("GET", "/", [], b"", recorder)
        assert (await recorder.over()).kind == Kind.BROKEN
        assert len(complaints) == 1
        assert (await ask(upstream)).body == b"ok"


# --- Anything at all


@dataclass
class Fuzz:
    """One event loop and one engine for all examples."""

    answer: list[bytes] = field(default_factory=list)

    async def script(self, peer: Peer) -> None:
        await peer.request()
        for piece in self.answer:
            await peer.send(piece)
            await asyncio.sleep(0)


FRAGMENTS = st.sampled_from(
    [
        HEAD,
        LENGTH,
        CHUNKED,
        OK,
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 204 N\r\n",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: x\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"5\r\nabcde\r\n",
        b"0\r\n\r\n",
        b"ffffffff\r\n",
        b"abcde",
        b":",
        b"\n",
        b"\x00",
    ]
)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    parts=st.lists(FRAGMENTS | st.binary(max_size=8), max_size=8),
    seed=st.integers(0, 2**32),
    method=st.sampled_from(["GET", "HEAD"]),
    is_paused=st.booleans(),
)
def test_a_call_ends_once_for_any_bytes_in_any_split(
    parts: list[bytes], seed: int, method: str, is_paused: bool
) -> None:
    """`Recorder` asserts the order of callbacks; the engine closes in the end, so that every call has an end."""
    rng = random.Random(seed)
    data = b"".join(parts)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    fuzz = Fuzz([piece for piece in pieces if piece])
    complaints: list[object] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with connected(fuzz.script, timeouts=QUICK) as (_, upstream):
            recorder = Recorder()
            call = upstream.send(method, "/", [], b"", recorder)
            if is_paused:
                call.pause()
                await asyncio.sleep(0)
                call.resume()
            await recorder.over()
            assert recorder.status or recorder.error
            assert len(recorder.body) <= len(data)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
    assert complaints == []
