"""Fallback models: which is asked where the one that a caller wants can't take its request, and who is told what."""

from __future__ import annotations

import gc
import io
from typing import Any

import pytest

from penstock.core.values.actions import Evict, Reject
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.callers import key_hash
from penstock.gateway.proxy.arrival import FALLS_BACK, Arrival, Fallback
from penstock.gateway.proxy.journey import QueuedJourney
from tests.gateway.conftest import Answer, Client, World, fault, request

pytestmark = pytest.mark.virtual_time

BIG_FALLS_BACK = {"big": {"fallback": ["small"]}}


def body(model: str, *, tokens: int = 3, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, **more}


async def ask(world: World, model: str, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    return await world.ask(body=body(model, **more), headers=headers)


async def hold(world: World, model: str) -> Client:
    """Take a slot, and keep it."""
    client = await world.client_for(body(model, tokens=20_000, stream=True))
    await client.begun()
    return client


def served_by(answer: Answer) -> tuple[int, str | None, str]:
    """Status, the model that the header names, and the one that the engine's own answer names."""
    return answer.status, answer.header("x-penstock-model"), answer.json()["model"]


async def both(world: World, *, slots: int = 4, **settings: Any) -> None:
    """An engine for the model `big`, and one for `small`."""
    await world.engine(model="big")
    await world.engine(model="small")
    await world.gateway(slots=slots, **{"models": BIG_FALLS_BACK, **settings})


async def test_a_model_without_endpoints_is_served_by_its_fallback_with_a_header(world: World) -> None:
    await both(world, models={"retired": {"fallback": ["gone", "small"]}})
    assert served_by(await ask(world, "retired")) == (200, "small", "small")
    assert served_by(await ask(world, "small")) == (200, None, "small"), "it is what was asked for"
    assert (await ask(world, "gone")).status == 404, "a name in a list is not a name that may be asked for"
    assert await world.metric("penstock_fallbacks_total", model="retired", to="small") == 1
    assert await world.metric("penstock_requests_total", outcome="rejected") == 1, "only what its caller was refused"


async def test_the_body_is_the_callers_own_but_for_the_name_also_by_way_of_an_alias(world: World) -> None:
    models = {"gpt": {"to": "big", "fallback": ["cheap"]}, "cheap": {"to": "small"}}
    await both(world, models=models)
    await world.engines[0].close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    assert served_by(await ask(world, "gpt", seed=7)) == (200, "small", "small")
    (seen,) = world.seen()
    assert seen.body_bytes == len(request(body=body("small", seed=7)).partition(b"\r\n\r\n")[2])
    assert served_by(await ask(world, "gpt", stream=False, user="u" * 300_000)) == (200, "small", "small"), "large ones"


async def test_if_its_engine_dies_queued_and_new_requests_go_to_the_fallback(world: World) -> None:
    await both(world, slots=1, queue={"max_wait": "60s"})
    await hold(world, "big")
    waits = world.soon(ask(world, "big"))
    patient = await world.client_for(body("small"))
    assert (await patient.answer()).status == 200
    await world.until(lambda: world.picture().waiting == 1)
    await world.engines[0].close()
    assert served_by(await waits) == (200, "small", "small")
    assert served_by(await ask(world, "big")) == (200, "small", "small")


async def test_a_full_queue_sends_to_the_fallback_and_when_that_is_full_too_the_first_one_has_the_word(
    world: World,
) -> None:
    await both(world, slots=1, queue={"max_requests": 0})
    await hold(world, "big")
    assert served_by(await ask(world, "big")) == (200, "small", "small")
    await hold(world, "small")
    refused = await ask(world, "big")
    assert (refused.status, refused.header("x-penstock-reason")) == (429, "queue_full")
    assert refused.header("retry-after") is not None
    assert (await ask(world, "small")).status == 429


async def test_where_no_model_of_the_list_has_an_endpoint_it_waits_for_its_own(world: World) -> None:
    await both(world)
    big, small = world.engines
    await big.close()
    await small.close()
    await world.until(lambda: {endpoint.state for endpoint in world.picture().endpoints} == {"down"})
    waits = world.soon(ask(world, "big"))
    await world.until(lambda: world.picture().waiting == 1)
    await world.restart(big)
    assert served_by(await waits) == (200, None, "big")


async def test_an_engine_that_fails_in_every_attempt_is_given_up_for_the_fallback(world: World) -> None:
    await both(world, retry={"max_attempts": 2})
    fault(world.engines[0], "error")
    assert served_by(await ask(world, "big")) == (200, "small", "small")
    assert len(world.engines[0].log.entries) == 2
    assert served_by(await ask(world, "big", stream=False)) == (200, "small", "small")


async def test_a_stream_that_broke_is_not_begun_again_elsewhere(world: World) -> None:
    await both(world)
    fault(world.engines[0], "die", after_bytes=600)  # beyond the role
    client = await world.client_for(body("big", tokens=50, stream=True))
    head = await client.begun()
    assert head.header("x-penstock-model") is None
    await client.whole()
    assert b"stream_broken" in client.seen
    assert not world.engines[1].log.entries


async def test_a_limit_of_the_caller_and_a_named_endpoint_are_no_reason_to_ask_another_model(world: World) -> None:
    tenants = [{"name": "a", "limits": {"requests_per_minute": 1}}]
    await both(world, slots=1, tenants=tenants)
    assert (await ask(world, "big", {"x-tenant-id": "a"})).status == 200
    limited = await ask(world, "big", {"x-tenant-id": "a"})
    assert (limited.status, limited.header("x-penstock-reason")) == (429, "tenant_limit")
    name = world.picture().endpoints[0].name
    await hold(world, "big")
    pinned = await world.ask(path=f"/v1/chat/completions?id={name}", body=body("big"))
    assert (pinned.status, pinned.header("x-penstock-reason")) == (429, "endpoint_overloaded")


async def test_a_key_falls_back_only_to_models_that_it_may_use_and_keeps_its_bounds(world: World) -> None:
    new, its_hash = "pk-narrow", key_hash("pk-narrow")
    key = {"hash": its_hash, "models": ["retired", "small"], "max_output_tokens": 5}
    models = {"retired": {"fallback": ["big", "small"]}, "other": {"fallback": ["small"]}}
    await both(world, models=models, tenants=[{"name": "a", "keys": [key]}])
    headers = {"authorization": f"Bearer {new}"}
    unbounded = {"model": "retired", "messages": [{"role": "user", "content": "hello"}]}
    answer = await world.ask(body=unbounded, headers=headers)
    assert served_by(answer) == (200, "small", "small")
    assert answer.json()["usage"]["completion_tokens"] == 5
    assert (await ask(world, "other", headers)).status == 403
    assert served_by(await ask(world, "retired")) == (200, "big", "big"), "others may"


async def test_a_request_that_fell_back_or_might_have_leaves_nothing_for_the_garbage_collector(world: World) -> None:
    await both(world, models=BIG_FALLS_BACK | {"retired": {"fallback": ["small"]}})
    for model in ("big", "retired"):
        assert (await ask(world, model)).status == 200
    await world.idle()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for model in ("big", "retired"):
            assert (await ask(world, model)).status == 200
        await world.idle()
        gc.collect()
        assert not [found for found in gc.garbage if isinstance(found, Arrival | Fallback | QueuedJourney)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def test_the_access_log_and_the_explanation_name_both(world: World, log: io.StringIO) -> None:
    await both(world, models={"retired": {"fallback": ["small"]}}, log={"access": True})
    assert (await ask(world, "retired", {"x-request-id": "r-1"})).status == 200
    await world.until(lambda: " INFO penstock.access " in log.getvalue())
    (line,) = [line for line in log.getvalue().splitlines() if " penstock.access " in line]
    assert " model=small " in line
    assert " instead_of=retired " in line
    told = (await world.ask("GET", "/admin/requests/r-1")).json()
    assert told["explanation"]["instead_of"] == "retired"
    assert any("retired was asked for" in sentence for sentence in told["story"])


async def test_a_reload_brings_fallbacks_and_takes_them_away(world: World) -> None:
    await both(world, models={})
    assert (await ask(world, "retired")).status == 404
    world.document["models"] = {"retired": {"fallback": ["small"]}}
    assert (await world.ask("POST", "/admin/reload")).status == 200
    assert (await ask(world, "retired")).status == 200
    world.document["models"] = {}
    assert (await world.ask("POST", "/admin/reload")).status == 200
    assert (await ask(world, "retired")).status == 404


def ended(reason: Reason) -> Reject | Evict:
    return Reject("r", reason, None)


def test_each_is_asked_once_in_order_and_then_the_first_has_the_word() -> None:
    asked: list[str] = []
    fallback = Fallback("a", ["b", "c"])
    first = ended(Reason.QUEUE_FULL)
    for end in (first, ended(Reason.NO_ENDPOINT)):
        assert fallback.takes(end)
        asked.append(fallback.next())
    assert asked == ["b", "c"]
    last = ended(Reason.OVERLOAD)
    assert not fallback.takes(last)
    assert fallback.answer(last) is first


def test_if_no_fallback_takes_it_a_request_waits_once_for_its_own_model() -> None:
    asked: list[str] = []
    fallback = Fallback("a", ["b"])
    for end in (ended(Reason.NO_ENDPOINT), ended(Reason.QUEUE_FULL)):
        assert not fallback.patient
        assert fallback.takes(end)
        asked.append(fallback.next())
    assert asked == ["b", "a"]
    assert fallback.patient
    late = ended(Reason.NO_ENDPOINT)
    assert not fallback.takes(late)
    assert fallback.answer(late) is late


@pytest.mark.parametrize("reason", sorted(set(Reason) - FALLS_BACK))
def test_errors_of_the_request_itself_start_no_fallback(reason: Reason) -> None:
    fallback = Fallback("a", ["b", "c"])
    assert fallback.takes(ended(Reason.QUEUE_FULL))
    assert fallback.next() == "b"
    assert not fallback.takes(ended(reason))
    assert fallback.answer(ended(reason)).reason == reason
