"""What an endpoint costs, and its own thresholds beside its slots (S1, S4): over HTTP, in the file and by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock.cli import main as cli
from penstock.core.values.catalogue import Cause
from tests.gateway.conftest import CHAT, World, chat, request

LEAST_LOADED: dict[str, Any] = {"routing": {"policy": "least_loaded"}}


def places(world: World) -> list[int]:
    return [len(engine.log.entries) for engine in world.engines]


async def two_priced(world: World, *, slots: int = 2, dear: float = 10.0, **settings: Any) -> None:
    """An own engine and a hosted one, in this order."""
    for _ in range(2):
        await world.engine(step_s=0.02)
    own, hosted = world.engines
    endpoints = [{"url": hosted.url, "slots": slots, "price": dear}, {"url": own.url, "slots": slots, "price": 1}]
    await world.gateway(endpoints=endpoints, **settings)


async def running(world: World, count: int) -> list[str]:
    """Start so many streams; where each went."""
    found = []
    for at in range(count):
        stream = await world.streaming(f"{at} " * 20, tokens=400)
        found.append((await stream.begun()).header("x-penstock-endpoint") or "")
    return found


@pytest.mark.parametrize("policy", ["predicted_ttft", "least_loaded", "round_robin", "kv", "session"])
async def test_the_cheaper_endpoint_is_filled_first_and_the_dearer_gets_the_rest(world: World, policy: str) -> None:
    await two_priced(world, routing={"policy": policy})
    own, hosted = (engine.url.removeprefix("http://") for engine in world.engines)
    assert await running(world, 4) == [own, own, hosted, hosted]


async def test_with_a_weight_of_0_prices_decide_nothing(world: World) -> None:
    await two_priced(world, slots=4, routing={"policy": "least_loaded", "price_weight": 0})
    assert sorted(Counter(await running(world, 4)).values()) == [2, 2]


async def test_a_finite_weight_is_seconds_of_a_later_first_token(world: World) -> None:
    """Two endpoints of prices 1 and 3: at 50 ms a unit a long prompt before the cheap one is worth the dear one."""
    await two_priced(world, slots=8, dear=3.0, routing={"price_weight": "50ms"})
    own, hosted = (engine.url.removeprefix("http://") for engine in world.engines)
    assert await running(world, 1) == [own]
    long = chat("word " * 12_000, tokens=2)  # some three seconds of prefill at the first guess
    busy = await world.client(request(path=f"{CHAT}?id={own}", body=long))
    await world.until(lambda: places(world) == [2, 0])
    assert await running(world, 1) == [hosted]
    busy.hang_up()


@pytest.mark.parametrize("policy", ["predicted_ttft", "least_loaded", "round_robin"])
async def test_three_of_four_go_where_the_weight_is_three_beside_one(world: World, policy: str) -> None:
    off = 1 if policy == "predicted_ttft" else 0  # it learns the engines' speeds, and a stall of the machine is one
    for _ in range(2):
        await world.engine()
    first, second = ({"url": engine.url, "slots": 8, "models": ["sim"]} for engine in world.engines)
    await world.gateway(endpoints=[first, second | {"weight": 3}], routing={"policy": policy})
    for at in range(12):
        assert (await world.chat(f"{at} hello")).status == 200
    before = places(world)
    assert before[0] == pytest.approx(3, abs=off)
    world.document["endpoints"] = [first | {"weight": 3}, second]
    assert (await world.ask("POST", "/admin/reload")).status == 200
    for at in range(12):
        assert (await world.chat(f"{at} hello again")).status == 200
    assert places(world)[0] - before[0] == pytest.approx(9, abs=off), "from here on it is the other way round"
    assert sum(places(world)) == 24


async def test_what_is_sticky_stays_where_it_lives_whatever_that_costs(world: World) -> None:
    await two_priced(world, slots=1, routing={"policy": "session"})
    hold = await world.streaming(tokens=400)
    await hold.begun()
    session = {"x-session-id": "s"}
    assert (await world.chat_with(session)).header("x-penstock-endpoint") == world.engines[1].url[7:]
    hold.hang_up()
    await world.idle()
    assert (await world.chat_with(session)).header("x-penstock-endpoint") == world.engines[1].url[7:]


async def test_its_own_limit_on_what_waits_in_its_engine(world: World) -> None:
    """The engine runs 2 of its 8 slots; the standard band lets 2 wait there, the endpoint itself none."""
    engine = await world.engine(step_s=0.02, max_num_seqs=2)
    await world.gateway(endpoints=[{"url": engine.url, "slots": 8, "max_engine_waiting": 0}])
    await running(world, 2)
    await world.streaming(tokens=2)
    await world.until(lambda: world.picture().endpoints[0].engine_waiting == 1)
    await world.streaming(tokens=2)
    await world.until(lambda: world.picture().waiting == 1)
    assert world.picture().endpoints[0].closed is Cause.ENGINE_QUEUE
    assert places(world) == [3]


async def test_its_own_limit_on_kv_memory(world: World) -> None:
    engine = await world.engine(step_s=0.02, kv_blocks=64)
    other = await world.engine(step_s=0.02, kv_blocks=64)
    tight = {"url": engine.url, "slots": 8, "max_kv_usage": 0.2}
    await world.gateway(endpoints=[tight, {"url": other.url, "slots": 8}], **LEAST_LOADED)
    streams = [await world.streaming(f"{at} " + "word " * 100, tokens=100) for at in range(4)]
    for stream in streams[:3]:
        await stream.begun()
    await world.until(lambda: sum(places(world)) == 4)
    assert places(world) == [1, 3], "each takes more than a fifth of the memory"


async def test_its_own_limit_on_prompts_under_way(world: World) -> None:
    engine = await world.engine(step_s=0.05, max_num_batched_tokens=64, max_num_seqs=8)
    await world.gateway(endpoints=[{"url": engine.url, "slots": 8, "max_prefill_tokens": 300}])
    for at in range(3):
        await world.streaming(f"{at} " + "word " * 200, tokens=2)
    await world.until(lambda: world.picture().waiting > 0)
    assert world.picture().endpoints[0].closed is Cause.PREFILL_FULL


async def test_its_own_limit_on_the_time_per_output_token(world: World) -> None:
    engine = await world.engine(step_s=0.03)
    await world.gateway(endpoints=[{"url": engine.url, "slots": 8, "max_time_per_output_token": "10ms"}])
    stream = await world.streaming(tokens=300)
    await stream.begun()
    await world.until(lambda: world.picture().endpoints[0].time_per_output_token_s > 0.01)
    second = await world.streaming(tokens=2)
    await world.until(lambda: world.picture().waiting == 1)
    assert world.picture().endpoints[0].closed is Cause.PACE
    stream.hang_up()
    assert (await second.begun()).status == 200


async def test_limits_and_price_are_given_by_hand_and_shown(world: World) -> None:
    engine = await world.engine()
    await world.gateway(endpoints=[])
    limits = {"max_kv_usage": 0.5, "max_prefill_tokens": 99, "max_time_per_output_token": "20ms"}
    told = {"url": engine.url, "name": "e", "slots": 3, "price": 2.5, "max_engine_waiting": 1, **limits}
    assert (await world.ask("POST", "/admin/endpoints", told)).status == 201
    (shown,) = (await world.ask("GET", "/admin/endpoints")).json()["endpoints"]
    assert shown["price"] == 2.5
    assert shown["limits"] == {
        "kv_usage_max": 0.5,
        "prefill_tokens_max": 99,
        "time_per_output_token_s_max": 0.02,
        "engine_waiting_max": 1,
    }
    refused = await world.ask("POST", "/admin/endpoints", {"url": "http://other", "max_kv_usage": 2})
    assert (refused.status, "max_kv_usage: `2`: expected at most 1" in refused.body.decode()) == (400, True)


async def test_they_are_given_on_the_command_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    engine = await world.engine()
    await world.gateway(endpoints=[])
    flags = ["--slots", "3", "--price", "4", "--max-kv-usage", "0.5", "--max-prefill-tokens", "99"]
    flags += ["--max-time-per-output-token", "20ms", "--max-engine-waiting", "1", "--url", world.url]
    assert await asyncio.to_thread(cli.main, ["endpoint", "add", engine.url, *flags]) == 0
    capsys.readouterr()
    (endpoint,) = world.picture().endpoints
    assert (endpoint.price, endpoint.limits is not None and endpoint.limits.engine_waiting_max) == (4.0, 1)


async def test_a_reload_changes_them_and_nothing_that_runs_there_ends(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(endpoints=[{"url": engine.url, "name": "e", "slots": 4}])
    stream = await world.streaming(tokens=60)
    await stream.begun()
    world.document["endpoints"] = [{"url": engine.url, "name": "e", "slots": 4, "price": 7, "max_engine_waiting": 0}]
    assert (await world.ask("POST", "/admin/reload")).json()["changed"] == [
        "endpoints[e].price",
        "endpoints[e].max_engine_waiting",
    ]
    (endpoint,) = world.picture().endpoints
    assert (endpoint.price, endpoint.leases) == (7.0, 1)
    await stream.whole()
    assert b"[DONE]" in stream.seen
    assert (await world.ask(body=chat())).status == 200
