"""A split whose models come and go: none is sent what its endpoints can't take while another model's can."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.values.actions import Evict, Fail, Reject
from penstock.core.values.catalogue import Reason
from penstock.gateway.proxy.arrival import Fallback
from tests.gateway.conftest import Answer, World, fault
from tests.gateway.epp.test_messages import places, pool

SPLIT = {"qwen": {"split": {"old": 1, "new": 1}}}


def body(model: str = "qwen", *, tokens: int = 3, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, **more}


async def ask(world: World, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    return await world.ask(body=body(**more), headers=headers)


async def models(world: World, count: int = 10, headers: dict[str, str] | None = None, **more: Any) -> Counter[str]:
    """Which models answered so many requests, one after the other."""
    answers = [await ask(world, headers, **more) for _ in range(count)]
    assert [answer.status for answer in answers] == [200] * count
    return Counter(answer.json()["model"] for answer in answers)


async def both(world: World, *, slots: int = 4, **settings: Any) -> None:
    """An engine for the model `old`, and one for `new`."""
    await world.engine(model="old")
    await world.engine(model="new")
    await world.gateway(slots=slots, **{"models": SPLIT, **settings})
    await world.until(lambda: all(endpoint.state == "up" for endpoint in world.picture().endpoints))


def state(world: World, at: int) -> str:
    return world.picture().endpoints[at].state


def name(world: World, at: int) -> str:
    return world.picture().endpoints[at].name


async def under_load(world: World, each: int, *, asks_again: int = 0) -> int:
    """Have eight callers send `each` requests while `new` dies and returns twice. All are answered.

    Returns how many were asked again after a 502, each `asks_again` times at most.
    """
    statuses: Counter[int] = Counter()
    answered: Counter[str] = Counter()
    again = 0

    async def caller() -> None:
        nonlocal again
        for _ in range(each):
            answer = await ask(world)
            for _ in range(asks_again):
                if answer.status == 502:
                    again += 1
                    answer = await ask(world)
            statuses[answer.status] += 1
            answered[answer.json().get("model", "")] += 1

    async def dies_and_returns() -> None:
        for _ in range(2):
            await world.engines[1].close()
            await world.until(lambda: state(world, 1) == "down")
            await world.restart(world.engines[1])
            await world.until(lambda: state(world, 1) == "up")

    await asyncio.gather(dies_and_returns(), *(caller() for _ in range(8)))
    assert statuses == {200: 8 * each}
    assert answered["old"] > answered["new"] > 0
    return again


async def fails(world: World) -> None:
    """Let the second engine fail until it is ejected."""
    fault(world.engines[1], "error")
    for _ in range(20):
        await ask(world, model="new")
        if state(world, 1) == "ejected":
            return
    raise AssertionError("it is not ejected")


@pytest.mark.virtual_time
@pytest.mark.parametrize("away", ["down", "ejected", "drained", "paused", "model drained"])
async def test_a_model_that_takes_nothing_has_no_share_and_gets_it_back(world: World, away: str) -> None:
    await both(world, retry={"max_attempts": 1}, health={"probe_interval": 0.1, "eject_after": 3, "eject_for": "5s"})
    assert await models(world) == {"old": 5, "new": 5}
    if away == "down":
        await world.engines[1].close()
        await world.until(lambda: state(world, 1) == "down")
    elif away == "ejected":
        await fails(world)
    elif away == "drained":
        await world.ask("POST", f"/admin/endpoints/{name(world, 1)}/drain")
    else:
        await world.ask("POST", "/admin/pause" if away == "paused" else "/admin/drain", body={"model": "new"})
    await asyncio.sleep(0.5)  # virtual: workers have heard of it
    assert await models(world) == {"old": 10}
    if away == "down":
        await world.restart(world.engines[1])
        await world.until(lambda: state(world, 1) == "up")
    elif away == "ejected":
        fault(world.engines[1], "none")
        await asyncio.sleep(5.0)
    elif away == "drained":
        await world.ask("POST", f"/admin/endpoints/{name(world, 1)}/resume")
    else:
        await world.ask("POST", "/admin/resume", body={"model": "new"})
    await asyncio.sleep(0.5)
    assert await models(world) == {"old": 5, "new": 5}


@pytest.mark.virtual_time
async def test_a_model_whose_engine_never_came_up_gets_nothing(world: World) -> None:
    engine = await world.engine(model="old")
    never = {"url": "http://127.0.0.1:9", "models": ["new"], "slots": 4}
    await world.gateway(endpoints=[{"url": engine.url, "slots": 4}, never], models=SPLIT)
    assert await models(world) == {"old": 10}


@pytest.mark.virtual_time
async def test_a_session_moves_when_its_model_goes_and_returns_with_it(world: World) -> None:
    await both(world, routing={"session": {"header": "x-session-id"}})
    sessions = [{"x-session-id": f"s{number}"} for number in range(40)]
    of_new = [session for session in sessions if await models(world, 1, session) == {"new": 1}]
    assert 10 < len(of_new) < 30
    await world.ask("POST", f"/admin/endpoints/{name(world, 1)}/drain")
    await asyncio.sleep(0.5)
    assert [await models(world, 2, session) for session in of_new] == [{"old": 2}] * len(of_new)
    await world.ask("POST", f"/admin/endpoints/{name(world, 1)}/resume")
    await asyncio.sleep(0.5)
    assert [await models(world, 2, session) for session in of_new] == [{"new": 2}] * len(of_new)


@pytest.mark.virtual_time
@pytest.mark.parametrize("stream", [False, True])
async def test_queued_requests_of_a_model_that_goes_are_served_by_the_other(world: World, *, stream: bool) -> None:
    await both(world, slots=1)
    new = await world.client_for(body("new", tokens=20_000, stream=True))
    await new.begun()
    waiting = [world.soon(ask(world, stream=stream)) for _ in range(6)]
    await world.until(lambda: sum(queue.requests for queue in world.picture().queues) >= 3)
    await world.engines[1].close()
    answers = [await answer for answer in waiting]
    assert [answer.status for answer in answers] == [200] * 6
    assert all(b'"model":"old"' in answer.body.replace(b" ", b"") for answer in answers)
    assert await world.metric("penstock_fallbacks_total") == 0, "they have what they asked for"


@pytest.mark.virtual_time
async def test_without_any_endpoint_a_request_waits_for_the_first_that_comes_whatever_its_share(world: World) -> None:
    await both(world)
    old, new = world.engines
    await old.close()
    await new.close()
    await world.until(lambda: (state(world, 0), state(world, 1)) == ("down", "down"))
    waiting = [world.soon(ask(world)) for _ in range(4)]
    await world.until(lambda: world.picture().waiting == 4)
    await world.restart(old)
    assert [(await answer).json()["model"] for answer in waiting] == ["old"] * 4


@pytest.mark.virtual_time
async def test_without_any_endpoint_it_waits_no_longer_than_for_one_model(world: World) -> None:
    await both(world, queue={"max_wait": "2s"})
    for engine in world.engines:
        await engine.close()
    await world.until(lambda: (state(world, 0), state(world, 1)) == ("down", "down"))
    began = asyncio.get_running_loop().time()
    refused = await ask(world)
    assert (refused.status, refused.header("x-penstock-reason")) == (503, "no_endpoint")
    assert 2.0 <= asyncio.get_running_loop().time() - began <= 2.5


@pytest.mark.virtual_time
async def test_a_model_that_fails_every_attempt_is_left_for_another_and_a_poisoned_request_ends(world: World) -> None:
    await both(world, retry={"max_attempts": 2}, health={"eject_after": 1000})
    fault(world.engines[1], "error")
    assert await models(world, 4) == {"old": 4}
    fault(world.engines[0], "error")
    before = len(world.seen())
    answer = await ask(world)
    assert (answer.status, answer.header("x-penstock-reason")) == (500, "upstream_error")
    assert len(world.seen()) - before == 4, "two attempts at each model"


@pytest.mark.virtual_time
async def test_the_body_has_the_name_of_the_model_that_answers_also_where_the_split_has_its_own(world: World) -> None:
    await world.engine(model="qwen")
    await world.engine(model="new")
    await world.gateway(models={"qwen": {"split": {"qwen": 1, "new": 1}}}, retry={"max_attempts": 1})
    fault(world.engines[1], "error")
    long: dict[str, Any] = {"user": "u" * 300_000}  # read in slices, changed in place
    answers = [await ask(world, None, **more) for more in ({}, {}, long, long)]
    assert [(answer.status, answer.json()["model"]) for answer in answers] == [(200, "qwen")] * 4


@pytest.mark.virtual_time
async def test_after_the_models_of_a_split_come_its_fallbacks(world: World) -> None:
    await world.engine(model="spare")
    await both(world, models={"qwen": {**SPLIT["qwen"], "fallback": ["spare"]}})
    for engine in world.engines[1:]:
        await engine.close()
    await world.until(lambda: (state(world, 1), state(world, 2)) == ("down", "down"))
    answer = await ask(world)
    assert (answer.json()["model"], answer.header("x-penstock-model")) == ("spare", "spare")
    await world.restart(world.engines[1])
    await world.until(lambda: state(world, 1) == "up")
    assert await models(world, 4) == {"old": 4}


async def test_under_load_nobody_notices_that_a_model_dies_and_returns(world: World) -> None:
    await both(world, slots=8)
    assert await under_load(world, 40) == 0


async def test_the_picker_names_no_endpoint_of_a_model_that_takes_nothing(world: World) -> None:
    await world.engine(model="old")
    await world.engine(model="new")
    async with pool(world, 0, models=SPLIT) as its:

        async def picked() -> tuple[str, str]:
            stream = its.stream()
            await stream.head()
            await stream.body(json.dumps(body()).encode())
            place = await stream.picked()
            model = str(json.loads(await stream.hears_body("request_body"))["model"])
            await stream.answered()
            await stream.answer_body(b'{"choices": []}', b"")
            await stream.hears()
            await stream.hears_body("response_body")
            await stream.call.done_writing()
            return place, model

        old, new = places(world)
        assert Counter([await picked() for _ in range(6)]) == {(old, "old"): 3, (new, "new"): 3}
        await world.engines[1].close()
        await world.until(lambda: state(world, 1) == "down")
        assert Counter([await picked() for _ in range(6)]) == {(old, "old"): 6}
        await world.restart(world.engines[1])
        await world.until(lambda: state(world, 1) == "up")
        assert Counter([await picked() for _ in range(6)]) == {(old, "old"): 3, (new, "new"): 3}


async def test_a_request_that_waits_for_the_picker_moves_with_its_body(world: World) -> None:
    await world.engine(model="old")
    await world.engine(model="new")
    async with pool(world, 0, models=SPLIT) as its:
        for engine in world.engines:
            await engine.close()
        await world.until(lambda: (state(world, 0), state(world, 1)) == ("down", "down"))
        stream = its.stream()
        await stream.head()
        await stream.body(json.dumps(body()).encode())
        await world.until(lambda: world.picture().waiting == 1)
        old = await world.restart(world.engines[0])
        assert await stream.picked() == old.url.removeprefix("http://")
        assert json.loads(await stream.hears_body("request_body"))["model"] == "old"
        await stream.call.done_writing()


# --- which model is asked next --------------------------------------------------------------------------------------


def takes(fallback: Fallback, model: str, others: tuple[str, ...], ended: Reject | Evict | Fail) -> bool:
    fallback.asks(model, others)
    return fallback.takes(ended) and fallback.next() != ""


GONE, FAILED = Evict("r", Reason.NO_ENDPOINT, elsewhere=True), Fail("r", Reason.UPSTREAM_ERROR)


def test_a_model_whose_endpoints_went_is_asked_again_later_but_not_for_ever() -> None:
    fallback, moves = Fallback("s"), 0
    model, other = "a", "b"
    fallback.asks(model, (other,))
    while fallback.others:
        assert takes(fallback, model, (other,), GONE)
        assert fallback.left == {model}
        model, other, moves = other, model, moves + 1
    assert moves == 8
    assert fallback.patient


def test_a_request_that_waited_its_time_for_an_endpoint_asks_no_other_model() -> None:
    assert not takes(Fallback("s"), "a", ("b",), Evict("r", Reason.NO_ENDPOINT))


def test_a_model_that_failed_the_request_is_not_asked_again() -> None:
    fallback = Fallback("s")
    assert takes(fallback, "a", ("b", "c"), FAILED)
    assert takes(fallback, "b", ("a", "c"), FAILED)
    assert fallback.left == {"a", "b"}
    assert not takes(fallback, "c", ("a", "b"), FAILED)
    assert fallback.answer(FAILED) is FAILED, "the last one's own end"


@pytest.mark.parametrize("reason", [Reason.QUEUE_FULL, Reason.OVERLOAD, Reason.QUEUE_TIMEOUT, Reason.TENANT_LIMIT])
def test_a_full_queue_or_a_limit_is_no_reason_to_break_the_shares(reason: Reason) -> None:
    assert not takes(Fallback("s"), "a", ("b",), Reject("r", reason))


@pytest.mark.slow
async def test_of_2000_requests_none_fails_while_a_model_dies_and_returns(world: World) -> None:
    await both(world, slots=8)
    answered: list[Counter[str]] = [Counter()]  # a new one in each phase
    statuses: Counter[int] = Counter()

    async def client() -> None:
        for _ in range(50):
            answer = await ask(world)
            statuses[answer.status] += 1
            answered[-1][answer.json().get("model", "none")] += 1

    def asked(count: int) -> Callable[[], bool]:
        return lambda: statuses.total() >= count

    async def fate() -> None:
        for done in (400, 1_200):
            await world.until(asked(done))
            answered.append(Counter())
            await world.engines[1].close()
            await world.until(asked(done + 400))
            await world.restart(world.engines[1])
            await world.until(lambda: state(world, 1) == "up")
            answered.append(Counter())

    await asyncio.gather(fate(), *(client() for _ in range(40)))
    assert statuses == {200: 2_000}
    assert min(answered[0]["new"], answered[2]["new"], answered[4]["new"]) > 20, "its share returns with it"
    assert max(answered[1]["new"], answered[3]["new"]) <= 40, "only what had been answered"
