"""How often is an endpoint read, and how soon is it seen that it does not answer? In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import World
from tests.gateway.endpoints.test_not_an_engine import COMPLETION, answer_json, http
from tests.gateway.raw_engine import Peer, RawEngine

pytestmark = pytest.mark.virtual_time
PAGE = b'vllm:num_requests_running{model_name="m"} %d\nvllm:num_requests_waiting{model_name="m"} 0\n'
LISTED = answer_json({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]})


class Engine(RawEngine):
    """Shows how many requests `run` there, notes when it is read, and answers nothing while it is `frozen`."""

    def __init__(self) -> None:
        self.run, self.read_s, self.frozen = 0, list[float](), False
        self.works = asyncio.Event()  # chats are answered from then on
        super().__init__(self._answers)

    async def _answers(self, peer: Peer) -> None:
        while True:
            line = (await peer.request()).split(b"\r\n")[0]
            if self.frozen:
                await peer.request()
            if line.startswith(b"POST"):
                await self.works.wait()
                await peer.send(COMPLETION)
            elif b" /metrics " in line:
                self.read_s.append(asyncio.get_running_loop().time())
                await peer.send(http(200, PAGE % self.run, "text/plain"))
            else:
                await peer.send(LISTED if b" /v1/models " in line else http(200))

    async def pauses(self, count: int) -> set[float]:
        """Returns the pauses between the next readings, in tenths of a second."""
        self.read_s.clear()
        while len(self.read_s) <= count:
            await asyncio.sleep(0.01)
        return {round(after - before, 1) for before, after in zip(self.read_s, self.read_s[1:], strict=False)}


async def observed(world: World, *, run: int = 0) -> Engine:
    engine = await world.beside(Engine())
    engine.run = run
    observe = {"interval": "1s", "fast_interval": "500ms"}
    await world.gateway(endpoints=[{"url": engine.url, "slots": 4}], observe=observe)
    await world.until(lambda: engine.read_s)
    return engine


async def test_an_engine_without_any_work_is_read_at_every_second_interval(world: World) -> None:
    engine = await observed(world)
    assert await engine.pauses(4) == {2.0}


async def test_an_engine_with_others_work_is_read_at_every_interval(world: World) -> None:
    engine = await observed(world, run=3)
    assert await engine.pauses(4) == {1.0}


async def test_the_first_request_to_an_engine_has_it_read_within_an_interval(world: World) -> None:
    engine = await observed(world)
    await engine.pauses(1)
    asked_s = asyncio.get_running_loop().time()
    client = await world.client_for(b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    pauses = await engine.pauses(3)
    assert engine.read_s[0] <= asked_s + 1.1
    assert pauses == {1.0}
    engine.works.set()
    assert (await client.head()).status == 200
    assert 2.0 in await engine.pauses(3)


@pytest.mark.parametrize("run", [0, 3], ids=["at rest", "at work"])
@pytest.mark.parametrize("after_s", [0.01, 0.6, 0.99, 1.5, 1.99])
async def test_a_frozen_engine_is_shown_within_three_seconds(
    world: World, run: int, after_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await observed(world, run=run)
    await engine.pauses(1)
    await asyncio.sleep(after_s)
    engine.frozen = True
    await asyncio.sleep(3.0)
    assert world.picture().endpoints[0].state == "silent"
    said = [record.levelname for record in caplog.records if "leaves questions unanswered" in record.getMessage()]
    assert said == ["WARNING"]
    engine.frozen = False
