"""`/autoscale`: what scalers read, over HTTP, and how KEDA reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import pytest

from penstock.gateway.builtin.autoscale import Autoscale
from tests.gateway.conftest import World, chat

FIELDS = {
    "model", "waiting", "running", "slots", "endpoints", "saturation", "backlog_seconds", "wait_estimate_seconds",
    "endpoints_wanted", "endpoints_needed",
}  # fmt: skip


def scaler(world: World) -> Autoscale:
    found: Autoscale = world.gate.autoscale
    return found


async def row(world: World, model: str = "sim") -> dict[str, Any]:
    answer = await world.ask("GET", f"/autoscale/{model}")
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_how_a_model_stands(world: World) -> None:
    engine = await world.engine(step_s=0.05, max_num_seqs=2)
    await world.gateway(slots=2)
    scaler(world).look()
    assert (await row(world)).keys() == FIELDS
    idle = await row(world)
    assert (idle["running"], idle["waiting"], idle["slots"], idle["endpoints"], idle["saturation"]) == (0, 0, 2, 1, 0)
    clients = [await world.client_for(chat(tokens=400, stream=True)) for _ in range(5)]
    await world.until(lambda: world.picture().waiting == 3)
    scaler(world).look()
    busy = await row(world)
    assert (busy["running"], busy["waiting"], busy["saturation"]) == (2, 3, 1.0)
    assert busy["backlog_seconds"] > 0
    assert busy["wait_estimate_seconds"] > busy["backlog_seconds"]
    assert busy["endpoints_wanted"] >= busy["endpoints_needed"] > 1
    listed = (await world.ask("GET", "/autoscale")).json()["models"]
    assert [each["model"] for each in listed] == ["sim"]
    assert await world.metric("penstock_endpoints_wanted", model="sim") == busy["endpoints_wanted"]
    assert await world.metric("penstock_backlog_seconds", model="sim") == busy["backlog_seconds"]
    assert await world.metric("penstock_saturation_ratio", model="sim") == 1.0
    for client in clients:
        client.hang_up()
    assert engine.model == "sim"


async def test_a_request_for_a_model_without_an_endpoint_wakes_one_and_is_served(world: World) -> None:
    """From zero and back: the scaler sees the wait, brings an engine, and the request is answered."""
    gate = await world.gateway(endpoints=[])
    assert (await row(world))["endpoints_wanted"] == 0
    waiting = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    scaler(world).look()
    asleep = await row(world)
    assert (asleep["endpoints_wanted"], asleep["waiting"], asleep["endpoints"], asleep["saturation"]) == (1, 1, 0, 1.0)
    engine = await world.engine()
    world.document["endpoints"] = [{"url": engine.url, "slots": 4}]
    await gate.reload()
    assert (await waiting).status == 200
    scaler(world).look()
    assert (await row(world))["endpoints"] == 1


async def test_an_unknown_model_is_zeros_and_leaves_nothing_behind(world: World) -> None:
    await world.engine()
    await world.gateway()
    for number in range(20):
        assert set((await row(world, f"nobody/knows-{number}")).values()) - {f"nobody/knows-{number}"} == {0}
    await world.ask(body={"model": "not-there", "messages": []})
    scaler(world).look()
    assert list(scaler(world)._rules) == ["sim"]


async def test_an_alias_is_asked_for_by_either_name_and_slashes_may_be_escaped(world: World) -> None:
    await world.engine(model="org/name")
    await world.gateway(models={"short": {"to": "org/name"}})
    scaler(world).look()
    for name in ("org/name", "org%2Fname", "short"):
        assert (await row(world, name))["model"] == "org/name"
        assert (await row(world, name))["endpoints"] == 1


async def test_it_is_read_only_and_needs_no_key(world: World) -> None:
    await world.engine()
    tenants: list[dict[str, Any]] = [{"name": "a", "keys": ["sha256:" + "0" * 64]}]
    await world.gateway(tenants=tenants, identity={"require_key": True})
    assert (await world.ask("GET", "/autoscale/sim")).status == 200
    assert (await world.ask("POST", "/autoscale/sim", body={})).status == 405
    assert (await world.ask("GET", "/autoscaler")).status == 404


async def test_every_target_of_the_rule_is_a_setting(world: World) -> None:
    await world.engine()
    await world.gateway(autoscale={"saturation": 0.5})
    await world.until(lambda: scaler(world)._rules)
    assert scaler(world)._rules["sim"].targets.saturation == 0.5
    world.document["autoscale"] = {"target_wait": "30s", "saturation": 0.9, "start": "2m", "keep": "10m"}
    await world.gate.reload()
    targets = scaler(world)._rules["sim"].targets
    assert (targets.target_wait_s, targets.saturation, targets.start_s, targets.keep_s) == (30.0, 0.9, 120.0, 600.0)


async def test_it_looks_by_itself_once_a_second(world: World) -> None:
    await world.engine()
    await world.gateway()
    await world.until(lambda: "sim" in scaler(world)._rules)
    before = scaler(world)._rules["sim"]._at_s
    await world.until(lambda: scaler(world)._rules["sim"]._at_s > before, within_s=5.0)


def _one_waits(world: World) -> bool:
    return world.picture().waiting == 1


# --- KEDA -------------------------------------------------------------------------------------------------------------


class KedaError(Exception):
    """The scaler reports an error, and KEDA keeps what it has."""


class Keda:
    """KEDA's `metrics-api` scaler as its source behaves (pkg/scalers/metrics_api_scaler.go, v2).

    One GET per look; anything but 200 is an error. `valueLocation` is a path whose end is a number, or a text that is a
    quantity; anything else is an error. With `aggregateFromKubeServiceEndpoints` every ready address behind the Service
    is asked (scheme, port and path of the URL, not its query), those that fail are left out unless all do, and the
    default aggregate is the average. Active is what is more than `activationTargetValue`; HPA divides by `targetValue`.
    """

    def __init__(
        self,
        url: str,
        value_location: str,
        *,
        target_value: float,
        activation: float = 0.0,
        aggregation: Literal["average", "sum", "max", "min"] = "average",
    ) -> None:
        self._path = unquote(urlsplit(url).path)
        self._at = value_location.split(".")
        self._target = target_value
        self._activation = activation
        self._aggregation = aggregation

    async def look(self, pods: Sequence[World]) -> tuple[bool, int]:
        """Whether it is active, and how many replicas HPA computes."""
        values, failures = [], []
        for pod in pods:
            try:
                values.append(await self._value(pod))
            except KedaError as error:
                failures.append(error)
        if not values:
            raise failures[0]
        in_all = sum(values)
        how = {"average": in_all / len(values), "sum": in_all, "max": max(values), "min": min(values)}
        value = how[self._aggregation]
        return value > self._activation, -int(-value * 1000 // (self._target * 1000))

    async def _value(self, pod: World) -> float:
        answer = await pod.ask("GET", self._path)
        if answer.status != 200:
            raise KedaError(f"api returned {answer.status}")
        found: Any = json.loads(answer.body)
        for part in self._at:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise KedaError(f"must point to a numeric value, got {found!r}")
        return float(found)


URL = "http://penstock.llm:8080/autoscale/sim"


@pytest.mark.parametrize("field", sorted(FIELDS - {"model"}))
async def test_every_field_is_a_number_to_keda_before_during_and_after(world: World, field: str) -> None:
    keda = Keda(URL, field, target_value=1)
    await world.gateway(endpoints=[])
    assert await keda.look([world]) == (False, 0)
    waiting = await world.client_for(chat())
    await world.until(lambda: world.picture().waiting == 1)
    scaler(world).look()
    await keda.look([world])
    waiting.hang_up()


async def test_a_field_that_is_not_a_number_is_an_error(world: World) -> None:
    await world.gateway(endpoints=[])
    for field in ("model", "nothing"):
        with pytest.raises(KedaError):
            await Keda(URL, field, target_value=1).look([world])


async def test_scale_from_zero_and_back(world: World) -> None:
    keda = Keda(URL, "endpoints_wanted", target_value=1)
    await world.gateway(endpoints=[], autoscale={"keep": 0, "start": 0})
    assert await keda.look([world]) == (False, 0)
    waiting = await world.client_for(chat())
    await world.until(lambda: world.picture().waiting == 1)
    scaler(world).look()
    assert await keda.look([world]) == (True, 1)
    waiting.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    await asyncio.sleep(0.01)
    scaler(world).look()
    assert await keda.look([world]) == (False, 0)


async def test_over_several_gateways_shares_add_up(world: World) -> None:
    """Each sees its own requests: their wants, rounded up one by one, would be too many."""
    other = World()
    try:
        clients = []
        for each in (world, other):
            await each.gateway(endpoints=[])
            clients.append(await each.client_for(chat()))
            await each.until(partial(_one_waits, each))
            scaler(each).look()
        pods = [world, other]
        needed = [(await row(each))["endpoints_needed"] for each in pods]
        assert await Keda(URL, "endpoints_needed", target_value=1, aggregation="sum").look(pods) == (True, 2)
        assert sum(needed) == 2.0
        assert await Keda(URL, "backlog_seconds", target_value=30, aggregation="max").look(pods) == (True, 1)
        assert await Keda(URL, "waiting", target_value=1).look(pods) == (True, 1)
        for client in clients:
            client.hang_up()
    finally:
        await other.close()
