"""What a user notices of real engines that refuse, shut down, die and come back."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.engines.real.conftest import Fleet, Start, chat, client
from tests.engines.real.processes import ACCESS_LOG, QUEUED_MAX, SIZE, Gateway, fetch, say, until

BACK_S_MAX = 5.0
CLIENTS = 24
BROKEN = "stream, after its first byte: stream_broken"
FEW = 4


async def test_a_field_that_an_engine_refuses_is_omitted(fleet: Fleet, serve: Start) -> None:
    """It holds twelve and says 503 to the rest. Told it could take twenty, we send twenty; nobody sees a 503."""
    bands = [{"name": "standard", "max_engine_waiting": 50}]
    gateway = serve([{**fleet.b.endpoint, "slots": 20}], bands=bands, admission={"reserved_slots": 0})
    async with client(gateway) as user:
        answers = await asyncio.gather(
            *(user.chat.completions.create(**chat(str(at), tokens=400)) for at in range(2 * QUEUED_MAX))
        )
    assert {answer.choices[0].finish_reason for answer in answers} == {"length"}
    refused = gateway.metric("requeues_total")
    say(f"refused by vLLM and requeued: {refused:.0f}; dispatches {gateway.metric('dispatches_total'):.0f}")
    assert refused > 0


async def test_a_request_that_comes_before_its_engine_waits_for_it(fleet: Fleet, serve: Start) -> None:
    """llama.cpp is started while requests wait: refused connections and 503 `Loading model` are not their concern."""
    gateway = serve([fleet.c.endpoint])
    fleet.c.process.kill()
    async with client(gateway) as user:
        asked = [asyncio.create_task(user.chat.completions.create(**chat(str(at)))) for at in range(8)]
        await asyncio.to_thread(
            until, lambda: gateway.endpoint("llama-c")["state"] == "down", what="it is seen to be gone"
        )
        fleet.c.process.start()
        statuses: Counter[int] = Counter()
        await asyncio.to_thread(until, lambda: loaded(fleet, statuses), what="llama.cpp is ready", every_s=0.001)
        began_s = time.monotonic()
        answers = await asyncio.gather(*asked)
        say(f"llama.cpp while it loads: {dict(statuses)}; all served {time.monotonic() - began_s:.2f} s after")
        assert {answer.choices[0].finish_reason for answer in answers} == {"length"}


def loaded(fleet: Fleet, statuses: Counter[int]) -> bool:
    status = fetch(fleet.c.url + "/health")[0]
    statuses[status] += 1
    return status == 200


class Load:
    """Clients that ask again and again, streams and whole answers by turns, and what became of each request."""

    def __init__(self, user: openai.AsyncOpenAI) -> None:
        self._user = user
        self._stopped = False
        self._patient = asyncio.Event()  # most of them wait while it is not set
        self._patient.set()
        self.outcomes: Counter[str] = Counter()
        self.errors: list[Any] = []
        self.ended: list[tuple[float, str]] = []  # when, where
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, clients: int = CLIENTS) -> None:
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(clients)]

    def only_few(self, yes: bool) -> None:
        """So that an engine which starts gets its share of a small machine."""
        (self._patient.clear if yes else self._patient.set)()

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def _ask(self, number: int) -> None:
        turn = 0
        while not self._stopped:
            turn += 1
            if number >= FEW:
                await self._patient.wait()
            body = chat(f"{number} {turn}", tokens=600)
            if number % 2:
                await self._whole(body)
            else:
                await self._stream(body)

    async def _whole(self, body: dict[str, Any]) -> None:
        try:
            raw = await self._user.chat.completions.with_raw_response.create(**body)
        except openai.APIError as error:
            self._failed("whole", error)
            return
        self.outcomes[f"whole: {raw.parse().choices[0].finish_reason}"] += 1
        self.ended.append((time.monotonic(), raw.headers["x-penstock-endpoint"]))

    async def _stream(self, body: dict[str, Any]) -> None:
        began, finish = False, None
        try:
            stream = await self._user.chat.completions.create(**body, stream=True)
            async for chunk in stream:
                began = True
                finish = chunk.choices[0].finish_reason or finish
        except openai.APIError as error:
            self._failed("stream, after its first byte" if began else "stream, before its first byte", error)
            return
        self.outcomes[f"stream: {finish}"] += 1
        self.ended.append((time.monotonic(), stream.response.headers["x-penstock-endpoint"]))

    def _failed(self, what: str, error: openai.APIError) -> None:
        self.outcomes[f"{what}: {error.code}"] += 1
        self.errors.append((what, type(error).__name__, str(error)))

    def served_by(self, name: str) -> int:
        return sum(endpoint == name for _, endpoint in self.ended)


async def test_an_engine_that_shuts_down_loses_no_request(fleet: Fleet, serve: Start) -> None:
    """SIGTERM with a time to finish: what runs ends well; what it says 500 to meanwhile goes elsewhere."""
    gateway = serve([{**engine.endpoint, "slots": SIZE} for engine in (fleet.a, fleet.b)])
    async with client(gateway) as user:
        load = Load(user)
        load.start()
        await asyncio.to_thread(until, lambda: load.served_by("vllm-b") >= 20, what="both engines work", within_s=120)
        fleet.b.process.signal(signal.SIGTERM)
        await asyncio.to_thread(until, lambda: fleet.b.process.dead, what="vllm-b has ended", within_s=90)
        await load.stop()
    failures = gateway.metric("requeues_total")
    say(f"shut down under load: {dict(load.outcomes)}; requeued {failures:.0f}")
    assert set(load.outcomes) == {"whole: length", "stream: length"}, load.errors[:5]


async def test_an_engine_that_is_killed_and_comes_back(fleet: Fleet, serve: Start) -> None:
    """Who has no byte yet is served elsewhere, who has one gets a typed error; the engine is used again at once."""
    gateway = serve([{**engine.endpoint, "slots": SIZE} for engine in (fleet.a, fleet.b)], log=ACCESS_LOG)
    async with client(gateway) as user:
        load = Load(user)
        load.start()
        await asyncio.to_thread(until, lambda: load.served_by("vllm-b") >= 20, what="both engines work", within_s=120)
        load.only_few(True)  # who asks for one engine is refused where it has no slot left
        await asyncio.to_thread(until, lambda: under_way(gateway) <= FEW, what="the others have their answers")
        begun = [await begun_at("vllm-b", user) for _ in range(2)]
        load.only_few(False)
        await asyncio.to_thread(until, lambda: fleet.b.load()[0] >= SIZE / 2, what="much runs there", every_s=0.001)
        fleet.b.process.kill()
        killed_s = time.monotonic()
        await asyncio.to_thread(
            until, lambda: gateway.endpoint("vllm-b")["state"] != "up", what="it is seen to be gone"
        )
        noticed_s = time.monotonic() - killed_s
        for chunks in begun:
            with pytest.raises(openai.APIError) as raised:
                async for _ in chunks:
                    pass
            assert raised.value.code == "stream_broken"
        say(f"killed; noticed after {noticed_s:.2f} s; starting it again")
        load.only_few(True)
        await asyncio.to_thread(fleet.b.ensure)
        ready_s = time.time()
        load.only_few(False)
        seen = load.served_by("vllm-b")
        await asyncio.to_thread(
            until, lambda: load.served_by("vllm-b") > seen + 20, what="it answers again", within_s=120
        )
        await load.stop()
    back_s = gateway.began("vllm-b", asked_s=ready_s)[0] - ready_s
    say(
        f"killed under load: {dict(load.outcomes)}, and two that had begun before: stream_broken; "
        f"requeued {gateway.metric('requeues_total'):.0f}; used again {back_s:.2f} s after it was ready"
    )
    assert back_s <= BACK_S_MAX
    assert set(load.outcomes) <= {"whole: length", "stream: length", BROKEN}, load.errors[:5]
    assert load.outcomes[BROKEN] <= SIZE - len(begun)
    assert {name for _, name, _ in load.errors} <= {"APIError"}


def under_way(gateway: Gateway) -> int:
    """Requests that wait or run."""
    state = gateway.state()
    return int(state["waiting"] + state["running"])


async def begun_at(name: str, user: openai.AsyncOpenAI) -> AsyncIterator[Any]:
    """A stream from that engine whose first chunk is here, and which has 20 s to go: it ends at 8,192 tokens."""
    body = chat(f"begun at {name}", tokens=20_000)
    stream = await user.chat.completions.create(**body, stream=True, extra_query={"id": name})
    chunks: AsyncIterator[Any] = aiter(stream)
    await anext(chunks)
    return chunks


async def test_alone_and_killed_it_gives_no_answer_that_looks_whole(fleet: Fleet, serve: Start) -> None:
    """llama.cpp, killed in mid-stream: the user's library raises."""
    gateway = serve([fleet.c.endpoint])
    async with client(gateway) as user:
        stream = await user.chat.completions.create(**chat(tokens=20_000), stream=True)
        chunks = aiter(stream)
        await anext(chunks)
        fleet.c.process.kill()
        with pytest.raises(openai.APIError) as raised:
            async for _ in chunks:
                pass
    assert raised.value.code == "stream_broken"
