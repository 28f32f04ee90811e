"""Over HTTP: a request goes where its prompt is cached, by the engines' own word or LMCache's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.gateway.kv_cache import kv_stream
from penstock.gateway.kv_cache.kv_source import KvSource
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine.server import EngineServer
from penstock.sim.fake_engine.text import tokenize
from tests.gateway.conftest import WORKERS, Answer, World, chat
from tests.gateway.kv_cache.lmcache_services import FakeController, FakeCoordinator

ANYWHERE = "tcp://127.0.0.1:*"
KV = {"policy": "kv", "locality": "kv_events"}
PROMPTS = [f"{number} rivers run to the sea; yet the sea is not full. " * 20 for number in range(8)]


def endpoint_of(answer: Answer) -> str:
    assert answer.status == 200, answer
    name = answer.header("x-penstock-endpoint")
    assert name is not None
    return name


def cached(answer: Answer) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def publishing(world: World, *, replay: bool = True, **config: Any) -> EngineServer:
    """An engine with KV events."""
    engine = EngineServer(
        EngineConfig(**{"step_s": 0.002, **config}), kv_events=ANYWHERE, kv_replay=ANYWHERE if replay else None
    )
    await engine.start()
    world.engines.append(engine)
    return engine


async def following(world: World, **settings: Any) -> list[KvSource]:
    """A gateway that follows the events of all engines; who follows each."""
    endpoints = [{"url": engine.url, "slots": 4, "kv_events": "auto"} for engine in world.engines]
    gate = await world.gateway(endpoints=endpoints, routing=KV, **settings)
    locator = gate.endpoints.locator
    assert locator is not None
    sources = [locator.sources[engine.url.removeprefix("http://")] for engine in world.engines]
    await world.until(lambda: all(source.listening for source in sources))
    return sources


async def settled(world: World, sources: list[KvSource]) -> None:
    """Wait until all that idle engines said has been heard."""
    pools = [engine.engine.pool for engine in world.engines]

    def heard(source: KvSource) -> set[object]:
        ranks = source.blocks._ranks
        return set(ranks[0].keys) if ranks else set()

    await world.until(lambda: [set(pool._cached) for pool in pools] == [heard(source) for source in sources])


async def warm(engine: EngineServer, prompt: str, world: World) -> None:
    """Let an engine compute a prompt behind the gateway's back."""
    port, world.port = world.port, int(engine.url.rpartition(":")[2])
    assert (await world.chat(prompt, tokens=1)).status == 200
    world.port = port


# --- KV events ----------------------------------------------------------------------------------------------------


async def test_a_request_goes_to_the_engine_that_reports_its_prompt(world: World) -> None:
    engines = [await publishing(world) for _ in range(3)]
    sources = await following(world)
    for prompt, engine in zip(PROMPTS, engines, strict=False):
        await warm(engine, prompt, world)
    await settled(world, sources)
    for prompt, engine in zip(PROMPTS, engines, strict=False):
        answer = await world.chat(prompt, tokens=1)
        assert endpoint_of(answer) == engine.url.removeprefix("http://")
        assert cached(answer) > 200


@pytest.mark.interpreted  # it listens in the place of a method
async def test_predicted_cached_tokens_match_the_engines(world: World) -> None:
    """With engines that hold little, so that what was cached is soon gone again."""
    for _ in range(2):
        await publishing(world, kv_blocks=60)
    sources = await following(world)
    scheduler = world.gate.driver.scheduler
    foretold: list[tuple[str | None, int]] = []
    finished = scheduler.finished

    def listening(lease: int, *more: Any, **named: Any) -> Any:
        held = scheduler.inspect().leases[lease].leased()
        foretold.append((held.source, held.cached_tokens))
        return finished(lease, *more, **named)

    scheduler.finished = listening  # type: ignore[method-assign]
    found = []
    for number in range(60):
        found.append(cached(await world.chat(PROMPTS[number * 5 % 8], tokens=2)))
        await settled(world, sources)
    exact = [
        hit for hit, (source, tokens) in zip(found, foretold, strict=True) if source == "kv_events" and hit == tokens
    ]
    # The very first one has nobody to be asked of. Workers hear some tenths of a second later how engines cut blocks.
    assert len(exact) >= (40 if WORKERS else 58), list(zip(found, foretold, strict=True))
    assert 10 < sum(hit > 0 for hit in found) < 60


async def test_a_prompt_with_another_salt_is_another_prompt(world: World) -> None:
    engines = [await publishing(world) for _ in range(2)]
    sources = await following(world)
    await warm(engines[1], PROMPTS[0], world)
    await settled(world, sources)
    salted = await world.ask(body=chat(PROMPTS[0], tokens=1, cache_salt="mine"))
    assert cached(salted) == 0
    await settled(world, sources)
    again = await world.ask(body=chat(PROMPTS[0], tokens=1, cache_salt="mine"))
    assert (endpoint_of(again), cached(again) > 200) == (endpoint_of(salted), True)


async def test_a_restarted_engine_is_known_to_hold_nothing(world: World) -> None:
    engines = [await publishing(world) for _ in range(2)]
    sources = await following(world)
    await warm(engines[1], PROMPTS[0], world)
    await world.until(lambda: len(sources[1].blocks))
    world.engines.remove(engines[1])
    await engines[1].close()
    await world.until(lambda: not len(sources[1].blocks))


async def test_a_session_whose_blocks_its_engine_evicted_is_resident_no_longer(world: World) -> None:
    for _ in range(2):
        await publishing(world, kv_blocks=60)
    sources = await following(world)
    named = {"x-session-id": "s"}
    homes = {engine.url.removeprefix("http://"): engine for engine in world.engines}
    sessions = world.gate.driver.scheduler.inspect().gate.ledger.sessions

    def resident() -> str | None:
        (session,) = sessions.values()
        return session.home

    home = ""
    for _ in range(100):  # until how engines cut blocks is known everywhere, turns are not looked up
        home = endpoint_of(await world.ask(body=chat(PROMPTS[0], tokens=1), headers=named))
        await settled(world, sources)
        if all(session.mark is not None for session in sessions.values()):
            break
    assert resident() == home
    await warm(homes[home], PROMPTS[1], world)
    await settled(world, sources)
    assert resident() == home, "both fit"
    for prompt in PROMPTS[2:6]:
        await warm(homes[home], prompt, world)
    await settled(world, sources)
    assert resident() is None


@pytest.mark.usefixtures("impatient")
async def test_events_that_go_nowhere_cost_only_the_hit(world: World) -> None:
    """Nobody publishes, and nobody can tokenize: requests are served as if nothing had been said."""
    for _ in range(2):
        await world.engine()
    endpoints = [{"url": engine.url, "kv_events": "tcp://127.0.0.1:9"} for engine in world.engines]
    await world.gateway(endpoints=endpoints, routing=KV)
    for prompt in PROMPTS[:3]:
        answers = [await world.chat(prompt, tokens=1) for _ in range(2)]
        assert len({endpoint_of(answer) for answer in answers}) == 1  # by our own history
        assert cached(answers[1]) > 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_stream, "REPLAY_TIMEOUT_S", 0.1)


# --- LMCache ------------------------------------------------------------------------------------------------------


def tokens_of(prompt: str) -> list[int]:
    """As the simulated engine tokenizes a chat: the bytes of its messages."""
    return tokenize(json.dumps(chat(prompt)["messages"]).encode())


async def cluster(world: World, services: dict[str, str], count: int = 2, **settings: Any) -> list[str]:
    """Engines in front of which LMCache is asked; instances are called cache-0, cache-1 …; the endpoints' names."""
    engines = [await world.engine() for _ in range(count)]
    endpoints = [
        {"url": engine.url, "slots": 4, "name": f"gpu-{number}", "lmcache_instance": f"cache-{number}"}
        for number, engine in enumerate(engines)
    ]
    await world.gateway(
        endpoints=endpoints, routing={"policy": "kv", "locality": "lmcache", "lmcache": services}, **settings
    )
    return [str(endpoint["name"]) for endpoint in endpoints]


LONG = [f"{number} long rivers " * 400 for number in range(4)]  # several chunks of 256 tokens each


async def test_the_controllers_word_is_followed(world: World) -> None:
    controller = await world.beside(FakeController())
    names = await cluster(world, {"controller": controller.url}, 3)
    for number, prompt in enumerate(LONG[:3]):
        controller.holds(f"cache-{number}", tokens_of(prompt))
    assert [endpoint_of(await world.chat(prompt)) for prompt in LONG[:3]] == names


async def test_the_coordinators_longest_match_is_followed(world: World) -> None:
    coordinator = await world.beside(FakeCoordinator())
    await cluster(world, {"coordinator": coordinator.url})
    coordinator.holds("cache-0", tokens_of(LONG[0])[:512])
    coordinator.holds("cache-1", tokens_of(LONG[0]))
    assert endpoint_of(await world.chat(LONG[0])) == "gpu-1"
    assert endpoint_of(await world.chat(LONG[0])) == "gpu-1"


@pytest.mark.parametrize("broken", [b"no json at all", b'{"layout_info": {"cache-1": ["x", 1e9]}}'])
async def test_a_service_that_talks_nonsense_costs_only_the_hit(world: World, broken: bytes) -> None:
    controller = await world.beside(FakeController())
    await cluster(world, {"controller": controller.url})
    controller.broken = broken
    answers = [await world.chat(LONG[0]) for _ in range(3)]
    assert len({endpoint_of(answer) for answer in answers}) == 1


@pytest.mark.virtual_time
async def test_a_service_that_hangs_is_waited_for_once(world: World) -> None:
    controller = await world.beside(FakeController())
    await cluster(world, {"controller": controller.url})
    controller.hangs = True
    waited_ms = [int((await world.chat(prompt)).header("x-penstock-queue-ms") or "") for prompt in LONG]
    assert 450 < waited_ms[0] < 2000
    assert max(waited_ms[1:]) < 450


async def test_a_dead_service_costs_only_the_hit(world: World) -> None:
    async with FakeController() as controller:
        url = controller.url
    await cluster(world, {"controller": url})
    answers = [await world.chat(prompt) for prompt in LONG for _ in range(2)]
    assert all(answer.status == 200 for answer in answers)
    assert [endpoint_of(answer) for answer in answers[::2]] == [endpoint_of(answer) for answer in answers[1::2]]
