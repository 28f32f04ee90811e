"""Who is served next at a real engine, and how much of it waits there."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.engines.real.conftest import Fleet, Start, chat, client
from tests.engines.real.processes import SIZE, Gateway, say, until

BANDS = [{"name": "interactive", "max_engine_waiting": 50}, {"name": "batch", "max_engine_waiting": 50}]
FLOOD_S = 25.0
FLOOD_CLIENTS = 40
SETTLED_S = 12.0


async def test_the_engine_serves_by_our_priority(fleet: Fleet, serve: Start) -> None:
    """Eight run; then four of a low band are let into the engine's own queue, and after them four of a high one."""
    gateway = serve(
        [{**fleet.a.endpoint, "slots": 3 * SIZE}],
        bands=BANDS,
        default_band="batch",
        identity={"max_band": "interactive"},
        admission={"engine_priority": True, "reserved_slots": 0},
    )
    began: list[str] = []

    async def ask(band: str, user: Any) -> None:
        stream = await user.chat.completions.create(
            **chat(band, tokens=2000), stream=True, extra_headers={"x-penstock-band": band}
        )
        await anext(aiter(stream))
        began.append(band)
        await stream.close()

    async with client(gateway) as user:
        running = [
            await user.chat.completions.create(**chat(str(at), tokens=20_000), stream=True) for at in range(SIZE)
        ]
        for stream in running:
            await anext(aiter(stream))
        low = [asyncio.create_task(ask("batch", user)) for _ in range(4)]
        await asyncio.to_thread(until, lambda: fleet.a.load() == (SIZE, 4), what="four queue inside the engine")
        high = [asyncio.create_task(ask("interactive", user)) for _ in range(4)]
        await asyncio.to_thread(until, lambda: fleet.a.load() == (SIZE, 8), what="eight queue inside the engine")
        assert began == []
        await running.pop().close()
        await asyncio.gather(*low, *high)
        for stream in running:
            await stream.close()
    assert began == ["interactive"] * 4 + ["batch"] * 4


async def test_an_operator_drains_an_endpoint_and_takes_it_back(fleet: Fleet, serve: Start) -> None:
    gateway = serve(
        [{**fleet.a.endpoint, "slots": 4}, {**fleet.b.endpoint, "slots": 4}], routing={"policy": "round_robin"}
    )
    async with client(gateway) as user:
        running = [await user.chat.completions.create(**chat(str(at), tokens=6000), stream=True) for at in range(4)]
        iterators = [aiter(stream) for stream in running]
        for iterator in iterators:
            await anext(iterator)
        assert [gateway.endpoint(name)["leases"] for name in ("vllm-a", "vllm-b")] == [2, 2]
        done = await asyncio.to_thread(gateway.cli, "endpoint", "drain", "vllm-b")
        assert done.returncode == 0, done.stderr
        assert gateway.endpoint("vllm-b")["state"] == "draining"
        went = await where(user, 6)
        assert went == {"vllm-a"}
        for iterator in iterators:
            assert [c async for c in iterator][-1].choices[0].finish_reason == "length", "what runs there is finished"
        assert gateway.endpoint("vllm-b")["leases"] == 0
        done = await asyncio.to_thread(gateway.cli, "endpoint", "resume", "vllm-b")
        assert done.returncode == 0, done.stderr
        assert await where(user, 6) == {"vllm-a", "vllm-b"}


async def where(user: Any, count: int) -> set[str]:
    answers = [await user.chat.completions.with_raw_response.create(**chat()) for _ in range(count)]
    return {answer.headers["x-penstock-endpoint"] for answer in answers}


async def test_the_size_of_an_engine_is_found_out(fleet: Fleet, serve: Start) -> None:
    """Nobody says that it runs eight at a time; sixteen are sent at first. Some seconds later it is known."""
    gateway = serve([fleet.a.endpoint], observe={"interval": "500ms", "fast_interval": "250ms"})
    slots: list[int] = []
    waiting: list[float] = []
    answers: list[str] = []
    async with client(gateway) as user:
        ends_s = time.monotonic() + FLOOD_S

        async def flood(number: int) -> None:
            turn = 0
            while time.monotonic() < ends_s:
                turn += 1
                answer = await user.chat.completions.create(**chat(f"{number} {turn}", tokens=100 + 37 * number % 300))
                answers.append(answer.choices[0].finish_reason)

        tasks = [asyncio.create_task(flood(number)) for number in range(FLOOD_CLIENTS)]
        await watch(gateway, fleet, ends_s, slots, waiting)
        await asyncio.gather(*tasks)
    say(f"slots over time, of {SIZE}: {slots[:: max(1, len(slots) // 25)]}; {len(answers)} answers")
    say(f"waiting inside the engine: {shares(waiting)}, at most {max(waiting):.0f}")
    assert set(answers) == {"length"}
    assert max(slots) <= 2 * SIZE, "never more than it began with"
    settled = slots[len(slots) // 2 :]
    assert sorted(settled)[len(settled) // 10] >= SIZE - 2, "an engine is not left with room that nobody uses"
    assert sorted(settled)[-1 - len(settled) // 10] <= SIZE + 3


async def watch(gateway: Gateway, fleet: Fleet, ends_s: float, slots: list[int], waiting: list[float]) -> None:
    """What we believe and what is, ten times a second; the first seconds are for finding out."""
    settled_s = ends_s - FLOOD_S + SETTLED_S
    while time.monotonic() < ends_s:
        running_waiting = await asyncio.to_thread(fleet.a.load)
        found = await asyncio.to_thread(gateway.endpoint, "vllm-a")
        slots.append(found["slots"])
        if time.monotonic() > settled_s:
            waiting.append(running_waiting[1])
        await asyncio.sleep(0.1)  # the pace of the measurement


def shares(values: list[float]) -> str:
    kinds = sorted(set(values))
    return ", ".join(f"{kind:.0f} in {values.count(kind) / len(values):.0%}" for kind in kinds)
