"""Whatever an engine answers, in whatever pieces, the client's request ends once, and as what it is."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import uvloop
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.proxy.journey import QueuedJourney
from tests.gateway.conftest import CHAT, NOT_FOUND, World, chat, request
from tests.gateway.raw_engine import Peer, RawEngine
from tests.patience import WAIT_S

SSE = b"content-type: text/event-stream\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
ABORT = STOP.replace(b"stop", b"abort")
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
ERROR = b'data: {"error":{"message":"x","code":500}}\n\n'
OWN_ERROR = ERROR.replace(b"500", b"400")
DONE = b"data: [DONE]\n\n"
WHOLE = b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'

statuses = st.sampled_from([200, 200, 200, 200, 201, 204, 301, 400, 500])  # 429 and 503 go back to the queue
types = st.sampled_from(
    [SSE, SSE, SSE, b"content-type: application/json\r\n", b"", SSE + b"content-encoding: gzip\r\n"]
)
events = st.lists(
    st.sampled_from(
        [TOKEN, TOKEN, STOP, ABORT, USAGE, ERROR, OWN_ERROR, DONE, b": x\n\n", b"data: half", b"\r\n\r\n", WHOLE]
    ),
    max_size=6,
)


def answer(status: int, kind: bytes, body: list[bytes], framing: str) -> bytes:
    head = b"HTTP/1.1 %d x\r\n" % status + kind
    if framing == "length":
        return head + b"content-length: %d\r\n\r\n" % len(b"".join(body)) + b"".join(body)
    if framing == "chunked":
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body)
        return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    return head + b"connection: close\r\n\r\n" + b"".join(body)


class Engine:
    """Answers each request by what is set, cut into pieces, whole or not."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.pieces: list[bytes] = []
        self.resets = False

    async def __call__(self, peer: Peer) -> None:
        while True:
            if (await peer.request()).startswith(b"GET "):
                await peer.send(NOT_FOUND)
                continue
            self.asked.set()
            await self.go.wait()
            await peer.send(*self.pieces)
            if self.resets:
                peer.reset()
            return  # and close


class Bench:
    """A gateway before such an engine, for many examples."""

    def __init__(self) -> None:
        self.world = World()
        self.engine = Engine()
        self.told: list[Any] = []

    async def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.told.append(context))
        raw = await self.world._stack.enter_async_context(RawEngine(self.engine))
        endpoint = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 1}
        await self.world.gateway(
            endpoints=[endpoint],
            retry={"max_attempts": 1},
            health={"eject_after": 1_000_000, "probe_interval": "1h"},
            observe={"interval": "1h", "fast_interval": "1h"},
            queue={"max_wait": "2s"},
        )

    def now(self) -> Snapshot:
        return self.world.picture()

    async def outcome(self, raw: bytes, cuts: list[int], *, stream: bool, beats: int, resets: bool) -> bytes:
        """All that a client gets of one answer."""
        engine, world = self.engine, self.world
        engine.asked.clear()
        engine.go.clear()
        places = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
        engine.pieces = [raw[a:b] for a, b in pairwise(places)]
        engine.resets = resets
        for name in world.gate.endpoints.targets:  # its answers before, which no engine gives, are forgiven
            world.gate.driver.tell(world.gate.driver.scheduler.endpoint_resumed(name, now=world.gate.driver.now()))
        client = await world.client(request(path=CHAT, headers={"connection": "close"}, body=chat(stream=stream)))
        await asyncio.wait_for(engine.asked.wait(), WAIT_S)
        for _ in range(beats):
            for journey in list(world.gate.driver.journeys()):
                assert isinstance(journey, QueuedJourney)
                journey.heartbeat(None)
        engine.go.set()
        got = await client.rest()
        world.clients.remove(client)
        client.hang_up()
        await world.until(lambda: self.now().running == self.now().waiting == 0)
        assert self.told == []
        return got


def whole_body(got: bytes) -> bytes | None:
    """The body of a response that is complete by its framing, else None."""
    head, blank, rest = got.partition(b"\r\n\r\n")
    if not blank:
        return None
    lower = head.lower()
    if b"content-length: " in lower:
        length = int(lower.split(b"content-length: ")[1].split(b"\r\n")[0])
        return rest if len(rest) == length else None
    if b"transfer-encoding: chunked" not in lower:
        return rest
    body = b""
    while True:
        size, line, rest = rest.partition(b"\r\n")
        if not line:
            return None
        if not int(size, 16):
            return body
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]


def test_whatever_an_engine_answers_the_request_ends_once_and_as_what_it_is() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        bench = Bench()
        runner.run(bench.start())

        @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            statuses,
            types,
            events,
            st.sampled_from(["chunked", "chunked", "length", "close"]),
            st.integers(0, 10_000) | st.none(),
            st.lists(st.integers(0, 10_000), max_size=4),
            st.booleans(),
            st.integers(0, 2),
            st.booleans(),
        )
        @example(200, SSE, [TOKEN, STOP, DONE], "chunked", None, [], True, 1, False)
        @example(200, SSE, [DONE], "chunked", None, [], True, 1, False)
        @example(200, SSE, [TOKEN, ABORT, DONE], "length", None, [], True, 0, False)
        @example(200, SSE, [TOKEN, TOKEN], "length", 120, [], True, 0, False)
        @example(200, SSE + b"content-encoding: gzip\r\n", [ERROR], "chunked", None, [], False, 0, False)
        @example(200, SSE, [TOKEN], "length", 80, [], True, 1, True)
        def once(
            status: int,
            kind: bytes,
            body: list[bytes],
            framing: str,
            cut: int | None,
            cuts: list[int],
            stream: bool,
            beats: int,
            resets: bool,
        ) -> None:
            beats = beats if stream else 0  # only streams are told
            raw = answer(status, kind, body, framing)
            if status == 204:
                raw = raw.partition(b"\r\n\r\n")[0].replace(b"transfer-encoding: chunked\r\n", b"") + b"\r\n\r\n"
            sent = raw if cut is None else raw[: cut % (len(raw) + 1)]
            got = runner.run(bench.outcome(sent, cuts, stream=stream, beats=beats, resets=resets))
            assert got.startswith(b"HTTP/1.1 ")
            came = whole_body(got)
            if beats:
                assert got.startswith(b"HTTP/1.1 200 OK\r\n")
                assert came is not None, "a stream that was promised is ended as a stream"
            if len(sent) < len(raw) and framing == "chunked" and came is not None and not got.startswith(b"HTTP/1.1 5"):
                assert b'"error"' in came, "what was cut short is never taken for whole"
            if sent == raw and not beats and came is not None and status == 200 and body == [TOKEN, STOP, DONE]:
                assert came == b"".join(body)

        try:
            once()
        finally:
            runner.run(bench.world.close())
