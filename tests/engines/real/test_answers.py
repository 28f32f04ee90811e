"""What users get of real engines through the gateway, and what it knows of them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.engines.real.conftest import Fleet, Start, chat, client, direct
from tests.engines.real.processes import MODEL, SIZE, Engine, fetch, say, until

LONG = 20_000  # tokens: many seconds, whatever else runs on the machine
EACH = pytest.mark.parametrize("name", ["a", "c"], ids=["vllm", "llamacpp"])


def named(fleet: Fleet, name: str) -> Engine:
    engine: Engine = getattr(fleet, name)
    return engine


@EACH
async def test_a_whole_answer_and_a_stream_come_as_the_engine_made_them(fleet: Fleet, serve: Start, name: str) -> None:
    engine = named(fleet, name)
    gateway = serve([engine.endpoint])
    async with client(gateway) as user:
        raw = await user.chat.completions.with_raw_response.create(**chat(tokens=20))
        assert raw.headers["x-penstock-endpoint"] == engine.name
        whole = raw.parse()
        assert whole.usage is not None
        assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 20)
        chunks = [c async for c in await user.chat.completions.create(**chat(tokens=20), stream=True)]
        assert len(chunks) > 5
        assert all(chunk.choices for chunk in chunks), "the usage that was asked for is not shown to who did not ask"
        assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        assert text == whole.choices[0].message.content
        done = await user.completions.create(model=MODEL, prompt="Hello", max_tokens=5, temperature=0)
        assert done.choices[0].text
        assert [model.id async for model in user.models.list()] == [MODEL]
    until(lambda: gateway.metric("tokens_total", 'kind="completion"') >= 45, what="all three were accounted")
    assert gateway.metric("tokens_total", 'kind="completion"') == 45


@EACH
async def test_the_bytes_are_the_engine_s_own(fleet: Fleet, serve: Start, name: str) -> None:
    """A refusal of the engine's, and an answer: keys, order and all, but for what differs between any two answers."""
    engine = named(fleet, name)
    gateway = serve([engine.endpoint])
    for body in (chat(tokens=4), {**chat(), "messages": 7}):
        direct, through = (fetch(base + "/v1/chat/completions", body=body) for base in (engine.url, gateway.url))
        assert through[0] == direct[0]
        assert shape(json.loads(through[1])) == shape(json.loads(direct[1]))


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


@EACH
async def test_a_client_that_hangs_up_stops_the_engine(fleet: Fleet, serve: Start, name: str) -> None:
    engine = named(fleet, name)
    gateway = serve([{**engine.endpoint, "slots": engine.size}])
    async with client(gateway) as user:
        streams = [await user.chat.completions.create(**chat(str(at), tokens=LONG), stream=True) for at in range(3)]
        for stream in streams:
            assert await anext(aiter(stream))
        until(lambda: engine.load() == (3, 0), what="three run at the engine")
        assert gateway.endpoint(engine.name)["leases"] == 3
        await streams[0].close()
        took_s = until(lambda: engine.load() == (2, 0), what="one less runs", within_s=10)
        until(lambda: gateway.endpoint(engine.name)["leases"] == 2, what="its lease ended", within_s=5)
        for stream in streams[1:]:
            await stream.close()
        idle_s = until(lambda: engine.idle, what="the engine is idle", within_s=10)
    say(f"{engine.name}: stopped {took_s * 1000:.0f} ms after its client hung up, all idle in {idle_s * 1000:.0f} ms")
    until(gateway.is_idle, what="no lease is held", within_s=5)


async def test_a_client_that_hangs_up_on_a_whole_answer_stops_vllm(fleet: Fleet, serve: Start) -> None:
    gateway = serve([{**fleet.a.endpoint, "slots": SIZE}])
    async with client(gateway) as user:
        whole = asyncio.create_task(user.chat.completions.create(**chat(tokens=LONG)))
        await asyncio.to_thread(until, lambda: fleet.a.load() == (1, 0), what="it runs")
        whole.cancel()
        await asyncio.gather(whole, return_exceptions=True)
        await asyncio.to_thread(until, lambda: fleet.a.idle, what="the engine is idle", within_s=10)
    until(gateway.is_idle, what="no lease is held", within_s=5)


async def test_a_hang_up_in_the_queue_is_never_sent(fleet: Fleet, serve: Start) -> None:
    gateway = serve([{**fleet.a.endpoint, "slots": 1}])
    async with client(gateway) as user:
        first = await user.chat.completions.create(**chat(tokens=LONG), stream=True)
        await anext(aiter(first))
        waiting = [asyncio.create_task(user.chat.completions.create(**chat(str(at)))) for at in range(3)]
        await asyncio.to_thread(until, lambda: gateway.state()["waiting"] == 3, what="three wait")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.to_thread(until, lambda: gateway.state()["waiting"] == 0, what="they left the queue")
        await first.close()
    assert gateway.metric("dispatches_total") == 1
    assert gateway.metric("queue_cancellations_total") == 3


async def test_others_load_counts_and_holds_our_own_back(fleet: Fleet, serve: Start) -> None:
    """Its gauges and our own leases make one picture: what others sent there is seen, and not added to."""
    gateway = serve([{**fleet.a.endpoint, "slots": SIZE}])
    async with client(gateway) as user, direct(fleet.a) as other:
        foreign = [await other.chat.completions.create(**chat(f"f{at}", tokens=LONG), stream=True) for at in range(5)]
        for stream in foreign:
            await anext(aiter(stream))
        until(lambda: gateway.endpoint("vllm-a")["load"] == 5, what="five of others are seen", within_s=10)
        ours = [await user.chat.completions.create(**chat(f"o{at}", tokens=LONG), stream=True) for at in range(3)]
        for stream in ours:
            await anext(aiter(stream))
        late = asyncio.create_task(user.chat.completions.create(**chat("late")))
        await asyncio.to_thread(until, lambda: gateway.state()["waiting"] == 1, what="the ninth waits with us")
        await asyncio.to_thread(
            until, lambda: gateway.endpoint("vllm-a")["engine_running"] == SIZE, what="the page was read", within_s=10
        )
        seen = gateway.endpoint("vllm-a")
        assert (seen["leases"], seen["load"], seen["engine_waiting"]) == (3, SIZE, 0)
        assert fleet.a.load() == (SIZE, 0)
        assert gateway.metric("endpoint_running") == SIZE
        await foreign[0].close()
        assert (await late).choices[0].finish_reason == "length"
        for stream in (*foreign[1:], *ours):
            await stream.close()


async def test_kv_events_predict_cached_tokens(fleet: Fleet, serve: Start) -> None:
    endpoints = [{**engine.endpoint, "slots": 4, "kv_events": "auto"} for engine in (fleet.a, fleet.b)]
    gateway = serve(endpoints, routing={"policy": "kv", "locality": "kv_events"})
    talks = [f"{at} " + "the water comes down the pipe and turns the wheel " * 30 for at in range(4)]
    found = 0
    went: dict[int, set[str]] = {at: set() for at in range(len(talks))}
    async with client(gateway) as user:
        for turn in range(3):
            for at, talk in enumerate(talks):
                raw = await user.chat.completions.with_raw_response.create(**chat(talk, tokens=4))
                went[at].add(raw.headers["x-penstock-endpoint"])
                details = raw.parse().usage.prompt_tokens_details
                assert details is not None
                assert ((details.cached_tokens or 0) > 300) == (turn > 0)
                found += (details.cached_tokens or 0) if turn else 0
    foretold = gateway.metric("prefix_predicted_tokens_total", 'source="kv_events"')
    hit = gateway.metric("prefix_hit_tokens_total", 'source="kv_events"')
    say(f"KV events: {foretold:.0f} tokens foretold, {hit:.0f} of them found; {found} found in all, by all sources")
    assert all(len(endpoints) == 1 for endpoints in went.values()), "each talk stayed where its blocks are"
    assert foretold == hit
    assert hit >= 0.5 * found, "on a busy machine a look-up comes too late now and then, and history is believed"


def test_doctor_knows_them(fleet: Fleet) -> None:
    urls = [argument for engine in fleet.all for argument in ("--endpoint", engine.url)]
    command = [sys.executable, "-m", "penstock", "doctor", "--json", "--try", "--timeout", "30", *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    a, b, c = json.loads(done.stdout)["endpoints"]
    assert [each["title"] for each in (a, b, c)] == ["vLLM", "vLLM", "llama.cpp"]
    assert all(each["models"][0]["name"] == MODEL for each in (a, b, c))
    assert a["version"] == "0.32.0"
    states = {each["title"]: {offer["what"]: offer["state"] for offer in each["offers"]} for each in (a, c)}
    say(f"doctor: {states}")
    assert states["vLLM"]["metrics"] == states["vLLM"]["cached_tokens"] == states["vLLM"]["kv_events"] == "offered"
    assert states["llama.cpp"]["metrics"] == states["llama.cpp"]["slots"] == "offered"
