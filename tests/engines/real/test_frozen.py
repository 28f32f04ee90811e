"""A real vLLM that stands still for a while, and one that is restarted while requests wait."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import openai

from tests.engines.real.conftest import Fleet, Start, chat, client
from tests.engines.real.processes import SIZE, Gateway, say, until

CLIENTS = 6  # fewer than one engine runs, so the other one can serve them all
FROZEN_S = 15.0
LATE_S = 3.0
LATE_SHARE_MAX = 0.02
TOLD_S_MAX = 3.0


class Streams:
    """Clients that ask for short streams again and again; when each was asked, and its time to the first token."""

    def __init__(self, user: openai.AsyncOpenAI, *, clients: int, tokens: int = 16) -> None:
        self._user = user
        self._tokens = tokens
        self._stopped = False
        self.asked: list[tuple[float, float]] = []  # when, seconds to the first token
        self.errors: list[str] = []
        self.by_endpoint: dict[str, int] = {}
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(clients)]

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def _ask(self, number: int) -> None:
        turn = 0
        while not self._stopped:
            turn += 1
            began_s, first_s = time.monotonic(), None
            try:
                body = chat(f"{number} {turn}", tokens=self._tokens)
                stream = await self._user.chat.completions.create(**body, stream=True)
                async for chunk in stream:
                    if first_s is None and chunk.choices and chunk.choices[0].delta.content:
                        first_s = time.monotonic() - began_s
            except openai.APIError as error:
                self.errors.append(f"{error.code}: {error}")
                continue
            assert first_s is not None
            self.asked.append((began_s, first_s))
            name = stream.response.headers["x-penstock-endpoint"]
            self.by_endpoint[name] = self.by_endpoint.get(name, 0) + 1


async def test_few_requests_are_late_beside_an_engine_frozen_for_a_while(fleet: Fleet, serve: Start) -> None:
    """All processes of one engine are stopped: its connections stay open, and nothing comes."""
    gateway = serve([{**engine.endpoint, "slots": SIZE} for engine in (fleet.a, fleet.b)])
    async with client(gateway) as user:
        load = Streams(user, clients=CLIENTS)
        await asyncio.to_thread(until, lambda: load.by_endpoint.get("vllm-b", 0) >= 20, what="both work", within_s=120)
        fleet.b.process.signal(signal.SIGSTOP, group=True)
        frozen_s = time.monotonic()
        try:
            told_s = await asyncio.to_thread(
                until, lambda: state_of(gateway, "vllm-b") != "up", what="the state says so", within_s=FROZEN_S
            )
            state, line = state_of(gateway, "vllm-b"), gateway.cli("status").stdout.splitlines()[0]
            await asyncio.sleep(max(0.0, frozen_s + FROZEN_S - time.monotonic()))  # the freeze is the test's input
        finally:
            fleet.b.process.signal(signal.SIGCONT, group=True)
        seen = load.by_endpoint["vllm-b"]
        thawed_s = time.monotonic()
        await asyncio.to_thread(
            until, lambda: load.by_endpoint["vllm-b"] > seen + 20, what="it is used again", within_s=120
        )
        await load.stop()
    beside = [first_s for asked_s, first_s in load.asked if frozen_s - LATE_S <= asked_s <= thawed_s]
    late = sum(first_s > LATE_S for first_s in beside)
    say(
        f"frozen {FROZEN_S:.0f} s: {state} after {told_s:.1f} s; later than {LATE_S:.0f} s: {late} of {len(beside)}, "
        f"longest {max(beside):.2f} s; broken {len(load.errors)}; status: {line}"
    )
    assert told_s <= TOLD_S_MAX
    assert late <= LATE_SHARE_MAX * len(beside)


async def test_a_restarted_engine_gets_its_slots_back_while_requests_wait(fleet: Fleet, serve: Start) -> None:
    """Nobody said how many requests the engines run: what was found of one before its restart holds after it."""
    gateway = serve([engine.endpoint for engine in (fleet.a, fleet.b)])
    async with client(gateway) as user:
        load = Streams(user, clients=3 * SIZE, tokens=64)
        await asyncio.to_thread(
            until, lambda: load.by_endpoint.get("vllm-b", 0) >= 5 * SIZE, what="both work", within_s=180
        )
        before = slots_of(gateway, "vllm-b")
        fleet.b.process.kill()
        await asyncio.to_thread(until, lambda: state_of(gateway, "vllm-b") != "up", what="it is seen to be gone")
        await asyncio.to_thread(fleet.b.ensure)
        await asyncio.to_thread(until, lambda: state_of(gateway, "vllm-b") == "up", what="it is seen to be back")
        after = slots_of(gateway, "vllm-b")
        say(f"restarted under load: {before} slots before, {after} when it is back")
        await load.stop()
    assert after >= min(before, SIZE)


def state_of(gateway: Gateway, name: str) -> Any:
    return gateway.endpoint(name)["state"]


def slots_of(gateway: Gateway, name: str) -> int:
    return int(gateway.endpoint(name)["slots"])
