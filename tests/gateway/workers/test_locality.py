"""Several workers, and prompts that engines or LMCache say they hold: the first process follows, each worker asks."""

from __future__ import annotations

from functools import partial

import pytest

from penstock.gateway.kv_cache.locator import Locator
from tests.gateway.conftest import World
from tests.gateway.kv_cache.lmcache_services import FakeController
from tests.gateway.kv_cache.test_locality import (
    LONG,
    PROMPTS,
    cached,
    cluster,
    endpoint_of,
    following,
    publishing,
    settled,
    tokens_of,
    warm,
)
from tests.gateway.workers.test_workers import FIRST, SECOND, _beside, inside, only

__all__ = ["_beside"]


def all_known(locator: Locator, names: list[str]) -> bool:
    return all(locator.cut_of(name) is not None for name in names)


async def test_a_request_goes_to_the_engine_that_reports_its_prompt(world: World) -> None:
    engines = [await publishing(world) for _ in range(3)]
    sources = await following(world, workers=2)
    for prompt, engine in zip(PROMPTS, engines, strict=False):
        await warm(engine, prompt, world)
    await settled(world, sources)
    names = [engine.url.removeprefix("http://") for engine in engines]
    for worker in (FIRST, SECOND):
        locator = inside(world, worker).targets.locator
        assert locator is not None
        await world.until(partial(all_known, locator, names))
        assert not locator.sources, "events come to one process"
        for prompt, name in zip(PROMPTS, names, strict=False):
            with only(world, worker):
                answer = await world.chat(prompt, tokens=1)
            assert endpoint_of(answer) == name
            assert cached(answer) > 200


@pytest.mark.parametrize("worker", [FIRST, SECOND])
async def test_lmcaches_word_is_followed(world: World, worker: str) -> None:
    controller = await world.beside(FakeController())
    names = await cluster(world, {"controller": controller.url}, 3, workers=2)
    for number, prompt in enumerate(LONG[:3]):
        controller.holds(f"cache-{number}", tokens_of(prompt))
    with only(world, worker):
        assert [endpoint_of(await world.chat(prompt)) for prompt in LONG[:3]] == names


async def test_an_endpoint_that_goes_is_asked_no_more(world: World) -> None:
    engines = [await publishing(world) for _ in range(2)]
    await following(world, workers=2)
    name = engines[1].url.removeprefix("http://")
    assert (await world.ask("DELETE", f"/admin/endpoints/{name}")).status in (200, 202)
    await world.until(lambda: name not in inside(world, FIRST).targets.targets)
    assert {endpoint_of(await world.chat(prompt, tokens=1)) for prompt in PROMPTS} == {
        engines[0].url.removeprefix("http://")
    }
