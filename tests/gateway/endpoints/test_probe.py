"""How an engine is away is told apart; a hung one is found; one that returns is used soon and not stormed."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import pytest

from penstock.core.endpoints.health import Presence
from penstock.gateway.endpoints import probe
from penstock.gateway.endpoints.observer import ObserveSettings
from penstock.gateway.endpoints.probe import ProbeAnswer, Prober
from penstock.http.client.pool import UpstreamError, UpstreamErrorKind, UpstreamException
from tests.gateway.conftest import World, chat, request
from tests.gateway.raw_engine import Peer, RawEngine

HUNG_AFTER_S = 10.0

TIMEOUT_S = 2.0
NEVER = float("-inf")


def silence(kind: UpstreamErrorKind = UpstreamErrorKind.FIRST_BYTE_TIMEOUT) -> ProbeAnswer:
    return ProbeAnswer(0, failure=UpstreamException(UpstreamError(kind, "")))


def judged(prober: Prober, answer: ProbeAnswer, at: float = 0.0, *, moved_s: float = NEVER) -> Presence:
    return prober.judged(answer, asked_s=at, now=at + TIMEOUT_S, moved_s=moved_s)


def test_what_an_answer_means_depends_on_what_was_before() -> None:
    prober = Prober(TIMEOUT_S)
    told = [
        judged(prober, ProbeAnswer(503)),  # it was never well
        judged(prober, ProbeAnswer(200)),
        judged(prober, ProbeAnswer(503)),
        judged(prober, ProbeAnswer(500, b"EngineCore encountered an issue")),
        judged(prober, silence(UpstreamErrorKind.CONNECT)),
        judged(prober, ProbeAnswer(503, b'{"error":{"code":503,"message":"Loading model"}}')),
        judged(prober, ProbeAnswer(404)),
        judged(prober, ProbeAnswer(503, b'{"error":{"code":503,"message":"Loading model"}}')),
        judged(prober, silence(UpstreamErrorKind.RESET)),
        judged(prober, ProbeAnswer(503)),
    ]
    assert told == ["loading", "up", "stopping", "stopping", "down", "loading", "up", "loading", "down", "loading"]


def test_one_slow_answer_proves_nothing_and_many_show_a_hang() -> None:
    prober = Prober(TIMEOUT_S)
    assert judged(prober, ProbeAnswer(200)) is Presence.UP
    times = [0.0, 2.5, 5.0, 7.5, 10.0]
    told = [judged(prober, silence(), at) for at in times]
    assert told == ["up", "up", "up", "up", "hung"]
    assert times[-1] + TIMEOUT_S >= HUNG_AFTER_S
    assert judged(prober, silence(), 30.0) is Presence.HUNG
    assert judged(prober, ProbeAnswer(200), 31.0) is Presence.UP


def test_an_engine_whose_answers_move_does_not_hang() -> None:
    prober = Prober(TIMEOUT_S)
    told = [judged(prober, silence(), at, moved_s=at - 1.0) for at in (10.0, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0)]
    assert set(told) == {"up"}


def test_our_own_standstill_is_not_held_against_an_engine() -> None:
    prober = Prober(TIMEOUT_S)
    told = [prober.judged(silence(), asked_s=at, now=at + 9.0, moved_s=NEVER) for at in (0.0, 10.0, 20.0, 30.0)]
    assert set(told) == {"up"}


async def test_requests_that_a_hung_engine_took_are_served_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "HUNG_AFTER_S", 0.1)
    monkeypatch.setattr(
        "penstock.gateway.endpoints.factory.ObserveSettings", functools.partial(ObserveSettings, timeout_s=0.05)
    )
    hung = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            data = await peer.request()
            if hung.is_set() or data.startswith(b"POST"):
                hung.set()
                await peer.gone()
                return
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with RawEngine(script) as raw:
        well = await world.engine()
        gate = await world.gateway(
            endpoints=[{"url": raw.url, "name": "hung", "models": ["sim"], "engine": "openai"}, {"url": well.url}]
        )
        gate.endpoints.drain(well.url.removeprefix("http://"))
        caught = world.soon(world.chat())
        await world.until(hung.is_set)
        gate.endpoints.resume(well.url.removeprefix("http://"))
        assert (await caught).header("x-penstock-endpoint") == well.url.removeprefix("http://")
        assert world.picture().endpoints[0].state == "hung"
        assert (await world.ask("GET", "/ready")).json()["states"] == {"hung": "hung"}
        assert await world.metric("penstock_endpoint_state", endpoint="hung", state="hung") == 1
        await gate.close()


async def test_a_kept_connection_does_not_hide_that_nobody_takes_new_ones(world: World) -> None:
    """A vLLM that drains answers 200 to whoever is still connected."""
    served = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            data = await peer.request()
            if data.startswith(b"POST"):
                served.set()
                event = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
                head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                await peer.send(head + b"%x\r\n%b\r\n" % (len(event), event))
                await peer.gone()
                return
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with RawEngine(script) as raw:
        gate = await world.gateway(endpoints=[{"url": raw.url, "name": "one", "models": ["sim"], "engine": "openai"}])
        client = await world.client(request(body=chat(stream=True)))
        await client.begun()
        raw._server.close()  # it listens no more
        await world.until(lambda: world.picture().endpoints[0].state == "stopping")
        client.hang_up()
        await world.until(lambda: world.picture().running == 0)
        await world.until(lambda: world.picture().endpoints[0].state == "down")
        await gate.close()


async def test_engines_that_rest_are_sent_nothing_until_they_are_up(world: World) -> None:
    condition: dict[str, Any] = {"sleeping": True, "paused": False, "status": 200, "said": b""}

    async def script(peer: Peer) -> None:
        while True:
            data = await peer.request()
            path = data.split(b" ")[1]
            if data.startswith(b"POST"):
                body, status = b'{"choices":[]}', 200
            elif path == b"/health":
                body, status = condition["said"], condition["status"]
            elif path == b"/is_paused":
                body, status = json.dumps({"is_paused": condition["paused"]}).encode(), 200
            elif path == b"/is_sleeping":
                body, status = json.dumps({"is_sleeping": condition["sleeping"]}).encode(), 200
            else:
                body, status = b"", 404
            await peer.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    def state() -> str:
        return world.picture().endpoints[0].state

    async with RawEngine(script) as raw:
        gate = await world.gateway(endpoints=[{"url": raw.url, "models": ["sim"], "engine": "vllm"}])
        await world.until(lambda: state() == "sleeping")
        waiting = world.soon(world.chat())
        await world.until(lambda: world.picture().waiting == 1)
        assert (await world.ask("GET", "/ready")).json()["models"] == []
        condition["sleeping"] = False
        assert (await waiting).status == 200
        condition["sleeping"] = True
        await world.until(lambda: state() == "sleeping")
        condition.update(sleeping=False, paused=True)
        await world.until(lambda: state() == "paused")
        waiting = world.soon(world.chat())
        await world.until(lambda: world.picture().waiting == 1)
        assert await world.metric("penstock_endpoint_state", state="paused") == 1
        condition["paused"] = False
        assert (await waiting).status == 200
        condition.update(status=503, said=b'{"error":"The model is currently scaling. Please try again later."}')
        await world.until(lambda: state() == "scaling")
        condition["said"] = b""
        await world.until(lambda: state() == "stopping")
        condition["status"] = 200
        await world.until(lambda: state() == "up")
        await gate.close()


async def test_an_engine_that_is_killed_and_returns_under_load_is_used_again_within_5_s(
    world: World,
) -> None:
    first, second = await world.engine(step_s=0.005), await world.engine(step_s=0.005)
    name = first.url.removeprefix("http://")
    await world.gateway(slots=16, health={"probe_interval": 5})
    going = True

    async def caller() -> set[int]:
        statuses = set()
        while going:
            statuses.add((await world.chat(tokens=4)).status)
        return statuses

    callers = [asyncio.ensure_future(caller()) for _ in range(40)]
    world.tasks += callers
    await world.until(lambda: len(first.log.entries) > 50 and len(second.log.entries) > 50)
    await first.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    back = await world.restart(first)
    ready_s = asyncio.get_running_loop().time()
    await world.until(lambda: back.log.entries)
    assert asyncio.get_running_loop().time() - ready_s < 5.0
    assert world.picture().endpoints[0].name == name
    await world.until(lambda: len(back.log.entries) > 40)
    going = False
    assert set().union(*await asyncio.gather(*callers)) == {200}
