"""Adapters that come and go, and an engine that is put to sleep and woken, as a real vLLM has them.

Its CPU build keeps its memory while it sleeps; how it refuses, tells of it and comes back is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import openai
import pytest

from tests.engines.real.conftest import Fleet, Start, chat, client, direct, rest
from tests.engines.real.processes import ADAPTER, MODEL, SIZE, Adapted, Gateway, adapter_folder, say, until

PROBE_S = 1.0
HEALTH = {"probe_interval": f"{PROBE_S:g}s"}
SECOND = "tiny-lora-2"
TALK = "the water comes down the pipe and turns the wheel " * 20  # some 500 tokens, 16 blocks of the cache
LONG = chat("sleep", tokens=3000) | {"model": ADAPTER}


@pytest.fixture(scope="module")
def running(started: Fleet) -> Iterator[Adapted]:
    yield started.adapted
    started.adapted.process.kill()


@pytest.fixture
def adapted(running: Adapted, fleet: Fleet) -> Adapted:
    running.ensure()
    rest(running)
    return running


def names(gateway: Gateway) -> set[str]:
    """Models that the gateway knows."""
    return {model for endpoint in gateway.state()["endpoints"] for model in endpoint["models"]}


async def test_an_adapter_is_a_model_of_its_own(fleet: Fleet, adapted: Adapted, serve: Start) -> None:
    gateway = serve([fleet.a.endpoint, adapted.endpoint])
    # In development mode it tells; its first answer may take longer than it is waited for.
    until(lambda: gateway.endpoint(adapted.name)["slots"] == SIZE, what="its slots are known")
    async with client(gateway) as user, direct(adapted) as engine:
        listed = {model.id: model async for model in user.models.list()}
        assert set(listed) == {MODEL, ADAPTER}
        assert (listed[ADAPTER].model_extra or {})["parent"] == MODEL
        went, said = set(), set()
        for _ in range(6):
            raw = await user.chat.completions.with_raw_response.create(**chat(tokens=16) | {"model": ADAPTER})
            went.add(raw.headers["x-penstock-endpoint"])
            said.add(raw.parse().choices[0].message.content)
        own = await engine.chat.completions.create(**chat(tokens=16) | {"model": ADAPTER})
        base = await user.chat.completions.create(**chat(tokens=16))
    assert went == {adapted.name}
    assert said == {own.choices[0].message.content}
    assert base.choices[0].message.content not in said


async def test_an_adapter_comes_and_goes_while_the_engine_runs(adapted: Adapted, serve: Start) -> None:
    gateway = serve([adapted.endpoint], health=HEALTH)
    body = chat(tokens=4) | {"model": SECOND}
    async with client(gateway) as user:
        with pytest.raises(openai.NotFoundError) as unknown:
            await user.chat.completions.create(**body)
        assert unknown.value.code == "model_not_found"
        adapted.post("/v1/load_lora_adapter", {"lora_name": SECOND, "lora_path": str(adapter_folder(2))})
        came_s = until(lambda: SECOND in names(gateway), what="the new adapter is routable", within_s=5 * PROBE_S)
        assert (await user.chat.completions.create(**body)).choices[0].finish_reason == "length"
        adapted.post("/v1/unload_lora_adapter", {"lora_name": SECOND})
        with pytest.raises(openai.NotFoundError) as gone:
            await user.chat.completions.create(**body)
        assert gone.value.code == "model_not_found", "ours, before a probe has seen it, too"
        gone_s = until(lambda: SECOND not in names(gateway), what="it is routable no more", within_s=5 * PROBE_S)
    say(f"adapter, asked for models every {PROBE_S:g} s: routable after {came_s:.2f} s, refused after {gone_s:.2f} s")


@pytest.mark.parametrize("locality", ["history", "kv_events"])
async def test_an_adapter_has_its_own_cached_blocks(adapted: Adapted, serve: Start, locality: str) -> None:
    """The same prompt under another adapter computes other values: neither engine nor gateway takes it for cached."""
    endpoints = [adapted.endpoint]
    if locality == "kv_events":  # is asked where there is a choice: so the engine has two doors
        endpoints.append({"url": f"http://localhost:{adapted.port}", "name": "vllm-door"})
        endpoints = [{**endpoint, "slots": 4, "kv_events": "auto"} for endpoint in endpoints]
    gateway = serve(endpoints, routing={"policy": "kv", "locality": locality})
    foretold: list[float] = []
    found: list[int] = []
    async with client(gateway) as user:
        for model in (MODEL, ADAPTER, ADAPTER, MODEL):
            before = foretold_by(gateway, locality)
            answer = await user.chat.completions.create(**chat(f"{locality} {TALK}", tokens=4) | {"model": model})
            details = answer.usage.prompt_tokens_details
            assert details is not None
            found.append(details.cached_tokens or 0)
            foretold.append(foretold_by(gateway, locality) - before)
    say(f"one prompt under two models, by {locality}: foretold {foretold}, found {found}")
    assert [tokens > 300 for tokens in found] == [False, False, True, True]
    assert [tokens > 300 for tokens in foretold] == [False, False, True, True]


def foretold_by(gateway: Gateway, source: str) -> float:
    return gateway.metric("prefix_predicted_tokens_total", f'source="{source}"')


async def test_an_engine_is_put_to_sleep_and_woken(fleet: Fleet, adapted: Adapted, serve: Start) -> None:
    """What streams is told that it broke, what does not waits or goes elsewhere, and the engine is soon used again."""
    gateway = serve([{**fleet.a.endpoint, "slots": SIZE}, adapted.endpoint], health=HEALTH)
    async with client(gateway) as user:
        whole = [asyncio.create_task(whole_answer(user)) for _ in range(2)]
        streams = [asyncio.create_task(streamed_answer(user)) for _ in range(2)]
        await asyncio.to_thread(until, lambda: adapted.load() == (4, 0), what="four run")
        adapted.post("/sleep?level=1")
        asleep_s = await asyncio.to_thread(
            until, lambda: gateway.endpoint(adapted.name)["state"] == "sleeping", what="it is seen to sleep"
        )
        for broken in await asyncio.gather(*streams, return_exceptions=True):
            assert isinstance(broken, openai.APIError), broken
            assert broken.code == "stream_broken"
        base = [await user.chat.completions.with_raw_response.create(**chat()) for _ in range(4)]
        assert {raw.headers["x-penstock-endpoint"] for raw in base} == {fleet.a.name}
        assert not any(task.done() for task in whole), "nobody else has the adapter: they wait"
        adapted.post("/wake_up")
        woken_s = time.monotonic()
        await asyncio.to_thread(until, lambda: adapted.load()[0] > 0, what="it is used again")
        used_s = time.monotonic() - woken_s
        for task in whole:
            assert await task == "length"
    say(f"sleep: seen after {asleep_s:.2f} s, 2 streams broken; used again {used_s:.2f} s after it was woken")
    assert used_s <= 5.0


async def whole_answer(user: openai.AsyncOpenAI) -> str:
    return str((await user.chat.completions.create(**LONG)).choices[0].finish_reason)


async def streamed_answer(user: openai.AsyncOpenAI) -> None:
    async for _ in await user.chat.completions.create(**LONG, stream=True):
        pass
