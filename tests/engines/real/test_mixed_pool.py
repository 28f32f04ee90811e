"""Two vLLM and a llama.cpp behind one name: five hundred requests, a third of whose clients hang up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from random import Random
from threading import Event, Thread
from typing import Any

import openai
import pytest

from tests.engines.real.conftest import Fleet, Start, chat, client, direct
from tests.engines.real.processes import Engine, Gateway, say, until

REQUESTS = 500
CLIENTS = 48
CANCELLED = 0.35
WAITING_MAX = 2  # `max_engine_waiting` of the band
STEP_TOKENS = 2048  # of prompts, in one of vLLM's steps: its `max_num_batched_tokens`
LOOK_S = 0.02
TURNS = 30
READINGS_MIN = 100  # of each engine, or nothing was looked at


class Lookout:
    """Reads the engines' own gauges, far more often than the gateway does; on threads, for users' loops stand still.

    An engine shows as waiting, too, what has a slot but not yet its share of a step's prompt tokens: of eight prompts
    of 900 tokens, sent at once to an idle vLLM, up to five show as waiting; of eight of 180, which one step takes,
    none. `queued` is what no slot is free for.
    """

    def __init__(self, engines: list[Engine]) -> None:
        self.waiting: dict[str, Counter[int]] = {engine.name: Counter() for engine in engines}
        self.queued: dict[str, Counter[int]] = {engine.name: Counter() for engine in engines}
        self.running: dict[str, float] = dict.fromkeys(self.waiting, 0.0)
        self._over = Event()
        self._threads = [Thread(target=self._watch, args=(engine,), daemon=True) for engine in engines]

    def __enter__(self) -> Lookout:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, engine: Engine) -> None:
        while not self._over.wait(LOOK_S):
            running, waiting = engine.load()
            self.waiting[engine.name][int(waiting)] += 1
            self.queued[engine.name][int(max(0.0, running + waiting - engine.size))] += 1
            self.running[engine.name] = max(self.running[engine.name], running)

    def longest(self, counts: dict[str, Counter[int]]) -> int:
        return max(max(each) for each in counts.values())

    def readings(self, name: str) -> int:
        return self.waiting[name].total()


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


@pytest.mark.parametrize(("words", "waits"), [(60, False), (300, True)])
async def test_what_vllm_shows_as_waiting_may_have_a_slot(fleet: Fleet, words: int, waits: bool) -> None:
    """Eight at once, as many as it runs, to an idle vLLM and past the gateway: what one step does not take, waits."""
    async with direct(fleet.a) as user:
        with Lookout([fleet.a]) as lookout:
            for turn in range(TURNS):
                prompts = [f"{words} {turn} {at} " + "water " * words for at in range(fleet.a.size)]
                await asyncio.gather(*(user.chat.completions.create(**chat(each, tokens=30)) for each in prompts))
    say(f"eight prompts of {3 * words} tokens, waiting: {dict(sorted(lookout.waiting[fleet.a.name].items()))}")
    assert (lookout.longest(lookout.waiting) > 0) == waits
    assert lookout.longest(lookout.queued) == 0


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
    assert all(lookout.readings(engine.name) >= READINGS_MIN for engine in fleet.all)
    return lookout


async def through(gateway: Gateway, fleet: Fleet) -> tuple[Crowd, Lookout]:
    began_s = time.monotonic()
    async with client(gateway) as user:
        crowd = Crowd(user, seed=1)
        with Lookout(fleet.all) as lookout:
            await crowd.run()
    took_s = time.monotonic() - began_s
    zero_s = await asyncio.to_thread(until, gateway.is_idle, what="leases end at 0", within_s=10)
    say(
        f"{REQUESTS} requests in {took_s:.1f} s: {dict(crowd.outcomes)}; by {dict(crowd.went)}; "
        f"leases at 0 after {zero_s:.2f} s; requeued {gateway.metric('requeues_total'):.0f}"
    )
    for what, counts in (("waiting inside", lookout.waiting), ("of these beyond its slots", lookout.queued)):
        say(f"{what}, readings of each: { {name: dict(sorted(each.items())) for name, each in counts.items()} }")
    return crowd, lookout
