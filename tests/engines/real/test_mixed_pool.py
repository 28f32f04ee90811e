"""Two vLLM and a llama.cpp behind one name: five hundred requests, a third of whose clients hang up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random
from typing import Any

import openai

from tests.engines.real.conftest import Fleet, Start, chat, client
from tests.engines.real.processes import Engine, Gateway, say, until

REQUESTS = 500
CLIENTS = 48
CANCELLED = 0.35
WAITING_MAX = 2  # `max_engine_waiting` of the band
STEP_TOKENS = 2048  # of prompts, in one of vLLM's steps: its `max_num_batched_tokens`
LOOK_S = 0.02


class Lookout:
    """Reads the engines' own gauges, far more often than the gateway does.

    An engine shows as waiting, too, what has a slot but not yet its share of a step's prompt tokens: the first eight of
    a run were seen as 4 running, 4 waiting. `queued` is what no slot is free for.
    """

    def __init__(self, engines: list[Engine]) -> None:
        self.waiting: dict[str, Counter[int]] = {engine.name: Counter() for engine in engines}
        self.queued: dict[str, Counter[int]] = {engine.name: Counter() for engine in engines}
        self.running: dict[str, float] = dict.fromkeys(self.waiting, 0.0)
        self._engines = engines

    async def run(self) -> None:
        await asyncio.gather(*(self._watch(engine) for engine in self._engines))

    async def _watch(self, engine: Engine) -> None:
        while True:
            running, waiting = await asyncio.to_thread(engine.load)
            self.waiting[engine.name][int(waiting)] += 1
            self.queued[engine.name][int(max(0.0, running + waiting - engine.size))] += 1
            self.running[engine.name] = max(self.running[engine.name], running)
            await asyncio.sleep(LOOK_S)  # the pace of the measurement

    def longest(self, counts: dict[str, Counter[int]]) -> int:
        return max(max(each) for each in counts.values())


class Crowd:
    """Users of all kinds: streams and whole answers, short and long, patient and not."""

    def __init__(self, user: openai.AsyncOpenAI, seed: int) -> None:
        self._user = user
        self._random = Random(seed)
        self._left = iter(range(REQUESTS))
        self.outcomes: Counter[str] = Counter()
        self.went: Counter[str] = Counter()

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        for number in self._left:
            random = self._random
            prompt = f"{number} " + "water " * random.randint(1, 600)
            body = {**chat(prompt, tokens=random.randint(1, 700)), "model": "mixed"}
            impatient = random.random() < CANCELLED
            ask = self._stream if random.random() < 0.6 else self._whole
            patience_s = random.uniform(0.0, 1.5) if impatient else None
            try:
                async with asyncio.timeout(patience_s):
                    await ask(body)
            except TimeoutError:
                self.outcomes["hung up"] += 1
            except openai.APIError as error:
                self.outcomes[f"failed: {error!r}, {error.__cause__!r}"] += 1

    async def _whole(self, body: dict[str, Any]) -> None:
        raw = await self._user.chat.completions.with_raw_response.create(**body)
        self._ended(raw.headers["x-penstock-endpoint"], raw.parse().choices[0].finish_reason)

    async def _stream(self, body: dict[str, Any]) -> None:
        stream = await self._user.chat.completions.create(**body, stream=True)
        finish = None
        try:
            async for chunk in stream:
                finish = chunk.choices[0].finish_reason or finish
        finally:
            await stream.close()
        self._ended(stream.response.headers["x-penstock-endpoint"], finish)

    def _ended(self, endpoint: str, finish: str | None) -> None:
        self.outcomes[str(finish)] += 1
        self.went[endpoint] += 1


async def test_five_hundred_requests_with_random_cancels(fleet: Fleet, serve: Start) -> None:
    lookout = await held(fleet, serve)
    assert lookout.longest(lookout.queued) <= WAITING_MAX


async def test_the_same_with_no_more_prompts_under_way_than_a_step_takes(fleet: Fleet, serve: Start) -> None:
    """What has a slot does not wait for its first step then, either."""
    lookout = await held(fleet, serve, admission={"max_prefill_tokens": STEP_TOKENS})
    assert lookout.longest(lookout.waiting) <= WAITING_MAX


async def held(fleet: Fleet, serve: Start, **settings: Any) -> Lookout:
    told = [{**engine.endpoint, "slots": engine.size} for engine in (fleet.a, fleet.b)]
    gateway = serve([*told, fleet.c.endpoint], models={"mixed": {"to": "tiny-llama"}}, **settings)
    crowd, lookout = await through(gateway, fleet)
    assert sum(crowd.outcomes.values()) == REQUESTS
    assert set(crowd.outcomes) == {"length", "hung up"}
    assert crowd.outcomes["hung up"] > REQUESTS * CANCELLED / 2
    assert set(crowd.went) == {engine.name for engine in fleet.all}
    assert all(lookout.running[engine.name] <= engine.size for engine in fleet.all)
    return lookout


async def through(gateway: Gateway, fleet: Fleet) -> tuple[Crowd, Lookout]:
    lookout = Lookout(fleet.all)
    began_s = time.monotonic()
    async with client(gateway) as user:
        crowd = Crowd(user, seed=1)
        watch = asyncio.create_task(lookout.run())
        await crowd.run()
        watch.cancel()
        (ended,) = await asyncio.gather(watch, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
    took_s = time.monotonic() - began_s
    zero_s = await asyncio.to_thread(until, gateway.is_idle, what="leases end at 0", within_s=10)
    say(
        f"{REQUESTS} requests in {took_s:.1f} s: {dict(crowd.outcomes)}; by {dict(crowd.went)}; "
        f"leases at 0 after {zero_s:.2f} s"
    )
    for what, counts in (("waiting inside", lookout.waiting), ("of these beyond its slots", lookout.queued)):
        say(f"{what}, readings of each: { {name: dict(sorted(each.items())) for name, each in counts.items()} }")
    return crowd, lookout
