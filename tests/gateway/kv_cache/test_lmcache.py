"""LMCache's answers: who holds the longest prefix by them, and what becomes of answers that are late, wrong or none."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.engines.lmcache import directory_prefixes, layout_prefixes
from penstock.gateway.kv_cache import lmcache
from penstock.gateway.kv_cache.lmcache import Controller, Coordinator, LmCache
from tests.gateway.kv_cache.lmcache_services import FakeController, FakeCoordinator
from tests.patience import WAIT_S

TOKENS = list(range(1000))  # three chunks and some
PROMPT = array("I", TOKENS)


@asynccontextmanager
async def asking(*services: Controller | Coordinator, **instances: str | None) -> AsyncIterator[LmCache]:
    """Endpoints by name, and their instances."""
    asked = LmCache(services)
    for number, (name, instance) in enumerate(instances.items(), start=1):
        asked.endpoint_added(name, f"http://127.0.0.{number}:8000", instance)
    try:
        yield asked
    finally:
        asked.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with other things makes no answer late."""
    monkeypatch.setattr(lmcache, "LATE_S", 10.0)
    monkeypatch.setattr(lmcache, "TIMEOUT_S", 20.0)


async def held(asked: LmCache, *, models: tuple[str, ...] = ("sim",), salt: str = "") -> dict[str, int]:
    return await asked.lookup(PROMPT, models, salt)


async def test_the_controllers_longest_match_counts_and_not_its_first_key() -> None:
    async with FakeController() as controller, asking(Controller(controller.url), a="engine-1", b="engine-2") as asked:
        controller.holds("engine-1", TOKENS[:512])
        controller.holds("engine-2", TOKENS)
        assert list(controller.answer("POST", "/lookup", {"tokens": TOKENS})[1]["layout_info"]) == [
            "engine-1",
            "engine-2",
        ]
        assert await held(asked) == {"a": 512, "b": 768}
        assert controller.asked[0] == ("/lookup", {"tokens": TOKENS})


async def test_nothing_found_is_no_failure() -> None:
    async with FakeController() as controller, asking(Controller(controller.url), a="engine-1") as asked:
        assert await held(asked) == {}
        assert asked.in_time


async def test_the_coordinator_lists_all_holders() -> None:
    async with (
        FakeCoordinator() as coordinator,
        asking(Coordinator(coordinator.url), a="mp-1", b="mp-2", c="mp-2") as asked,
    ):
        coordinator.holds("mp-1", TOKENS[:256])
        coordinator.holds("mp-2", TOKENS)
        assert await held(asked) == {"a": 256, "b": 768, "c": 768}


async def test_the_coordinator_is_asked_for_the_model_as_the_engine_knows_it_and_its_world_size() -> None:
    async with FakeCoordinator() as coordinator, asking(Coordinator(coordinator.url), a="mp-1") as asked:
        coordinator.holds("mp-1", TOKENS, model="/models/sim", world_size=2, salt="s")
        async with asyncio.timeout(WAIT_S):
            while await held(asked, models=("sim", "/models/sim"), salt="s") != {"a": 768}:
                await asyncio.sleep(0.001)  # until the directory was listed
        assert coordinator.asked[-1][1]["world_size"] == 2
        assert await held(asked, models=("sim", "/models/sim")) == {}


async def test_a_coordinator_that_lists_nothing_is_asked_for_one_rank_under_both_names() -> None:
    async with FakeCoordinator() as coordinator, asking(Coordinator(coordinator.url), a="mp-1") as asked:
        coordinator.lists = False
        coordinator.holds("mp-1", TOKENS, model="/models/sim")
        assert await held(asked, models=("sim", "/models/sim")) == {"a": 768}


async def test_of_two_services_the_longer_match_counts() -> None:
    async with FakeController() as controller, FakeCoordinator() as coordinator:
        controller.holds("x", TOKENS[:512])
        coordinator.holds("x", TOKENS[:256])
        async with asking(Coordinator(coordinator.url), Controller(controller.url), a="x") as asked:
            assert await held(asked) == {"a": 512}


async def test_an_address_names_an_instance_only_where_nobody_else_is_there() -> None:
    async with FakeController() as controller, asking(Controller(controller.url), a=None, b=None, c="named") as asked:
        for instance in ("one", "two", "three", "named"):
            controller.holds(instance, TOKENS)
        controller.held["one"].clear()  # so that every instance has a chunk of its own
        controller.ips = {"one": "127.0.0.9", "two": "127.0.0.2", "three": "127.0.0.1", "four": "127.0.0.1"}
        assert await held(asked) == {"b": 768}


async def test_endpoints_of_one_host_are_not_distinguished_by_address() -> None:
    async with FakeController() as controller, asking(Controller(controller.url), a=None) as asked:
        controller.holds("one", TOKENS)
        controller.ips = {"one": "127.0.0.1"}
        assert await held(asked) == {"a": 768}
        asked.endpoint_added("b", "http://127.0.0.1:8001", None)
        assert await held(asked) == {}
        asked.endpoint_removed("b")


@pytest.mark.parametrize("broken", [b"no json", b"[[[", b'"text"', b'{"layout_info": 7, "results": {"a": 1}}'])
async def test_nonsense_finds_nothing(broken: bytes) -> None:
    async with FakeController() as controller, FakeCoordinator() as coordinator:
        controller.broken = coordinator.broken = broken
        async with asking(Coordinator(coordinator.url), Controller(controller.url), a="x", b=None) as asked:
            assert await held(asked) == {}


async def test_no_request_waits_for_a_dead_service(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeController() as controller:
        url = controller.url
    async with asking(Controller(url), a="x") as asked:
        assert await held(asked) == {}
        assert not asked.in_time
    async with FakeController() as controller, asking(Controller(controller.url), a="x") as asked:
        monkeypatch.setattr(lmcache, "LATE_S", 0.01)
        controller.hangs = True
        asking_it = asyncio.ensure_future(held(asked))
        async with asyncio.timeout(WAIT_S):
            while asked.in_time:
                await asyncio.sleep(0.001)
        assert not asking_it.done()
        asking_it.cancel()
        monkeypatch.undo()
        controller.hangs = False
        await held(asked)
        assert asked.in_time


@pytest.mark.parametrize(
    ("layout", "found"),
    [
        ({"a": ["LocalCPUBackend", 512]}, {"a": 512}),
        ({"a": ["disk", 10**9], "b": ["cpu", 0], "c": ["cpu", -5]}, {"a": 1000}),
        ({"a": 512, "b": ["cpu"], "c": ["cpu", "512"], "d": None}, {}),
    ],
)
def test_a_layout_is_believed_as_far_as_it_can_be_true(layout: Any, found: dict[str, int]) -> None:
    assert layout_prefixes({"layout_info": layout}, 1000) == found


def directory(*chunks: list[list[tuple[str, str, bool]]], tokens: int = 256) -> dict[str, Any]:
    """An answer: for each chunk, for each part of it, who holds it: instance, tier, shared."""
    return {
        "chunks": len(chunks),
        "results": [
            {
                "key": {"chunk_hash_hex": f"{number:032x}"},
                "placements": [{"instance_id": name, "tier": tier, "shared": shared} for name, tier, shared in part],
                "token_ids": [1] * tokens,
            }
            for number, chunk in enumerate(chunks)
            for part in chunk
        ],
    }


A, B, DISK, SHARED = ("a", "l1", False), ("b", "l1", False), ("b", "l2", False), ("c", "l2", True)


def test_a_chunk_counts_when_all_its_parts_can_be_loaded() -> None:
    assert directory_prefixes(directory([[A], [A, B]], [[A, B], [A, B]]), 1000) == {"a": 512}
    assert directory_prefixes(directory([[A, B]], [[A]], [[A, B]]), 1000) == {"a": 768, "b": 256}
    assert directory_prefixes(directory([[A, DISK]]), 1000) == {"a": 256}
    assert directory_prefixes(directory([[A]], [[SHARED]]), 1000) == {"a": 512}


def test_the_length_of_a_chunk_is_told_or_lmcaches_own() -> None:
    assert directory_prefixes(directory([[A]], [[A]], tokens=128), 1000) == {"a": 256}
    assert directory_prefixes(directory([[A]], [[A]], [[A]], tokens=0), 1000) == {"a": 768}
    assert directory_prefixes(directory([[A]], [[A]], tokens=10**4), 1000) == {"a": 1000}
