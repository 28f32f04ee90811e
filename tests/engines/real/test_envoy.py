"""Two real vLLM behind a real Envoy, with Penstock as its endpoint picker: what callers get through the proxy, they
get here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import openai
import pytest

from tests.engines.real.conftest import Fleet, Start, chat, direct
from tests.engines.real.processes import ACCESS_LOG, SIZE, Gateway, say, until
from tests.gateway.epp.conftest import Envoy

CLIENTS = 40


@pytest.fixture
def envoy() -> Iterator[Envoy]:
    with contextlib.closing(Envoy()) as running:
        running.wait()
        yield running


@pytest.fixture
def gateway(fleet: Fleet, serve: Start, envoy: Envoy) -> Gateway:
    """The picker, with a vLLM of four slots and one of the engine's own size."""
    endpoints = [{**fleet.a.endpoint, "slots": 4}, {**fleet.b.endpoint, "slots": SIZE}]
    return serve(endpoints, epp={"listen": f"127.0.0.1:{envoy.picker}"}, log=ACCESS_LOG)


def caller(envoy: Envoy, **headers: str) -> openai.AsyncOpenAI:
    url = f"http://127.0.0.1:{envoy.port}/v1"
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, default_headers=headers, timeout=300.0)


async def test_whole_answers_and_streams_have_the_engine_s_text(fleet: Fleet, gateway: Gateway, envoy: Envoy) -> None:
    body = chat("the river runs", tokens=24)
    async with caller(envoy) as user, direct(fleet.a) as straight:
        expected = (await straight.chat.completions.create(**body)).choices[0].message.content
        whole = await user.chat.completions.create(**body)
        stream = await user.chat.completions.create(**body, stream=True)
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].message.content == expected
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "length"
    until(gateway.is_idle, what="both leases have ended")
    assert gateway.metric("tokens_total", 'kind="completion"') == 48


async def test_slots_hold_under_load_and_every_caller_is_answered(fleet: Fleet, gateway: Gateway, envoy: Envoy) -> None:
    """40 callers for 12 slots, whole answers and streams by turns; the engines' own gauges are read meanwhile."""
    most = {"vllm-a": 0.0, "vllm-b": 0.0}
    ended = asyncio.Event()

    async def look() -> None:
        while not ended.is_set():
            for engine in (fleet.a, fleet.b):
                most[engine.name] = max(most[engine.name], sum(await asyncio.to_thread(engine.load)))
            await asyncio.sleep(0.02)

    async def ask(user: openai.AsyncOpenAI, number: int) -> str | None:
        finish: str | None = None
        if number % 2:
            finish = (await user.chat.completions.create(**chat(str(number), tokens=200))).choices[0].finish_reason
        else:
            async for chunk in await user.chat.completions.create(**chat(str(number), tokens=200), stream=True):
                finish = chunk.choices[0].finish_reason or finish
        return finish

    looking = asyncio.create_task(look())
    async with caller(envoy) as user:
        reasons = await asyncio.gather(*(ask(user, number) for number in range(CLIENTS)))
    ended.set()
    await looking
    say(f"most at once, as the engines report: {most}")
    assert reasons == ["length"] * CLIENTS
    assert most["vllm-a"] <= 4
    assert most["vllm-b"] <= SIZE
    assert sum(most.values()) >= 8, "the load was one"


async def test_a_caller_that_hangs_up_stops_vllm(fleet: Fleet, gateway: Gateway, envoy: Envoy) -> None:
    async with caller(envoy) as user:
        stream = await user.chat.completions.create(**chat(tokens=20_000), stream=True)
        await anext(aiter(stream))
        assert sum(engine.load()[0] for engine in (fleet.a, fleet.b)) == 1
        began_s = time.monotonic()
        await stream.close()
        until(lambda: fleet.a.idle and fleet.b.idle, what="vLLM has aborted it", every_s=0.002)
        say(f"hang-up to idle vLLM through Envoy: {1000 * (time.monotonic() - began_s):.0f} ms")
    until(gateway.is_idle, what="the lease has ended")


async def test_a_killed_engine_costs_what_ran_there_and_nothing_more(
    fleet: Fleet, gateway: Gateway, envoy: Envoy
) -> None:
    """A request is sent once by a picker: those in the killed engine fail, the queued ones go to the other."""
    async with caller(envoy) as user:
        body = chat("x", tokens=400)
        asked = [asyncio.create_task(user.chat.completions.create(**body)) for _ in range(CLIENTS)]
        await asyncio.to_thread(until, lambda: fleet.b.load()[0] >= 6, what="vllm-b works")
        fleet.b.process.kill()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        later = await asyncio.gather(*(user.chat.completions.create(**chat(str(n))) for n in range(8)))
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    say(f"killed under load: {len(failed)} of {CLIENTS} failed: {[getattr(one, 'code', one) for one in failed][:12]}")
    assert len(failed) <= SIZE + 3, "more than ran there, and the tries by which the picker saw it"
    assert {getattr(one, "status_code", 0) for one in failed} <= {502, 503}
    assert {answer.choices[0].finish_reason for answer in later} == {"length"}
