"""Engines that know priorities are told the gateway's order, in their own direction, and by nobody else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.conftest import Answer, World, chat, request

BAND_RANKS = 1024

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
ON: dict[str, Any] = {"admission": {"engine_priority": True}}
BANDS = {"interactive": 0, "standard": 1, "batch": 2}


def band(name: str, tenant: str = "t") -> dict[str, str]:
    return {"x-penstock-band": name, "x-tenant-id": tenant}


def priorities(bodies: list[bytes]) -> list[Any]:
    return [json.loads(body[body.index(b"\r\n\r\n") :])["priority"] for body in bodies]


async def vllm(world: World, **settings: Any) -> list[bytes]:
    """A scripted engine that is said to be vLLM, and what it sees."""
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[{**endpoint, "engine": "vllm"}], identity={"max_band": "interactive"}, **settings)
    return requests


async def test_a_higher_band_has_a_lower_number_whatever_the_client_sends(world: World) -> None:
    requests = await vllm(world, **ON)
    for name, rank in BANDS.items():
        for extra in ({}, {"priority": -(2**31)}, {"priority": None}, {"priority": 2**63}, {"priority": {"a": [1]}}):
            assert (await world.ask(body=chat(**extra), headers=band(name))).status == 200
            assert priorities(requests[-1:]) == [rank * BAND_RANKS + 1], "one request is pending: this one"


async def test_the_number_grows_with_what_its_tenant_has_pending(world: World) -> None:
    engine = await world.engine(step_s=0.01, max_num_seqs=16)
    await world.gateway(slots=16, **ON)
    await world.until(lambda: world.gate.endpoints.targets[engine.url.removeprefix("http://")].priority)
    clients = []
    for _ in range(5):
        clients.append(
            await world.client(request(body=chat(tokens=2000, stream=True), headers=band("standard", "busy")))
        )
        await clients[-1].begun()
    assert (await world.ask(body=chat(), headers=band("standard", "quiet"))).status == 200
    assert (await world.ask(body=chat(), headers=band("batch", "quiet"))).status == 200
    assert [entry.priority - BAND_RANKS for entry in engine.log.entries] == [1, 2, 3, 4, 5, 1, BAND_RANKS + 1]
    for client in clients:
        client.hang_up()
    await world.idle()
    assert (await world.ask(body=chat(), headers=band("standard", "busy"))).status == 200
    assert engine.log.entries[-1].priority - BAND_RANKS == 1


async def test_nothing_but_the_field_is_touched(world: World) -> None:
    requests = await vllm(world, **ON)
    body = b' {"model":"sim" ,\n"pri\\u006frity" :\t[1,{"priority":2}] ,"x":{"priority":3},"y":"\\"priority\\":4"}\r\n'
    assert (await world.ask(body=body)).status == 200
    assert requests[0].endswith(b"\r\n\r\n" + body.replace(b'[1,{"priority":2}]', b"%d" % (BAND_RANKS + 1)))
    without = b'{ "model":"sim"}'
    assert (await world.ask(body=without)).status == 200
    assert requests[1].endswith(b'\r\n\r\n{"priority":%d, "model":"sim"}' % (BAND_RANKS + 1))
    assert b"content-length: %d\r\n" % len(b'{"priority":%d, "model":"sim"}' % (BAND_RANKS + 1)) in requests[1]


async def test_the_headers_that_would_override_it_stay_behind(world: World) -> None:
    requests = await vllm(world, **ON)
    overrides = {"X-Vllm-Priority": "-9", "x-override-priority": "-9", "x-priority-like": "-8"}
    assert (await world.ask(body=chat(), headers=overrides)).status == 200
    assert b": -9\r\n" not in requests[0]
    assert b"x-priority-like: -8" in requests[0]


async def test_a_form_has_no_such_field_and_passes_as_it_is(world: World) -> None:
    requests = await vllm(world, **ON)
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsim\r\n--b--\r\n'
    kind = {"content-type": "multipart/form-data; boundary=b", "x-vllm-priority": "-9"}
    assert (await world.ask(path="/v1/audio/transcriptions", body=form, headers=kind)).status == 200
    assert requests[0].endswith(b"\r\n\r\n" + form)
    assert b": -9\r\n" not in requests[0]


@pytest.mark.parametrize("engine", ["vllm", "openai"])
@pytest.mark.parametrize("settings", [{}, {"admission": {"engine_priority": False}}], ids=["default", "off"])
async def test_switched_off_a_callers_own_priority_orders_here_and_never_reaches_an_engine(
    world: World, engine: str, settings: dict[str, Any]
) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[{**endpoint, "engine": engine}], **settings)
    overrides = {"x-vllm-priority": "-9", "x-override-priority": "-9", "x-other": "-8"}
    bodies = {
        b'{"model":"sim","priority":-1000000}': b'{"model":"sim"}',
        b'{"priority" : "-7" , "model":"sim"}': b'{ "model":"sim"}',
        b'{"model":"sim" , "pri\\u006frity":7,\n"x":{"priority":3}}': b'{"model":"sim" , \n"x":{"priority":3}}',
        b'{"priority":1,"model":"sim","priority":2 }': b'{"model":"sim" }',
        b'{"model":"sim"}': b'{"model":"sim"}',
    }
    for body, left in bodies.items():
        assert (await world.ask(body=body, headers=overrides)).status == 200
        assert requests[-1].endswith(b"\r\n\r\n" + left)
        assert b": -9\r\n" not in requests[-1]
        assert b"x-other: -8" in requests[-1]


async def test_an_engine_that_is_not_known_to_order_gets_no_priority(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], **ON)
    body = b'{"model":"sim","priority":7}'
    assert (await world.ask(body=body, headers={"x-override-priority": "5"})).status == 200
    assert requests[0].endswith(b'\r\n\r\n{"model":"sim"}')
    assert b"x-override-priority" not in requests[0]


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
async def test_the_engine_serves_what_waits_inside_it_in_that_order(world: World, is_on: bool) -> None:
    """The gateway believes in far more slots than there are, so the order is the engine's own."""
    engine = await world.engine(step_s=0.005, max_num_seqs=1, priority=True)
    patient = [{"name": name, "max_engine_waiting": 100} for name in BANDS]
    await world.gateway(
        slots=64,
        bands=patient,
        identity={"max_band": "interactive"},
        admission={"engine_priority": is_on, "reserved_slots": 0.0},
    )
    await world.until(lambda: world.gate.endpoints.targets[engine.url.removeprefix("http://")].priority)
    runs = await world.client(request(body=chat(tokens=3000, stream=True)))
    await runs.begun()
    tasks: list[asyncio.Task[Answer]] = []
    order = ["batch"] * 3 + ["standard"] * 3 + ["interactive"] * 3
    for n, name in enumerate(order):
        headers = band(name, f"tenant-{n}") | {"x-request-id": f"{name}-{n}"}
        tasks.append(world.soon(world.ask(body=chat(f"number {n}"), headers=headers)))
        await world.until(lambda n=n: len(engine.log.entries) == n + 2)  # type: ignore[misc]
    runs.hang_up()
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 9
    served = sorted(list(engine.log.entries)[1:], key=lambda entry: entry.first_token or 0.0)
    expected = ["interactive"] * 3 + ["standard"] * 3 + ["batch"] * 3 if is_on else order
    assert [entry.id.partition("-")[0] for entry in served] == expected


async def test_of_one_band_the_engine_serves_the_tenant_with_less_pending_first(world: World) -> None:
    engine = await world.engine(step_s=0.005, max_num_seqs=1, priority=True)
    await world.gateway(
        slots=64,
        bands=[{"name": "standard", "max_engine_waiting": 100}],
        admission={"engine_priority": True, "reserved_slots": 0.0},
    )
    await world.until(lambda: world.gate.endpoints.targets[engine.url.removeprefix("http://")].priority)
    runs = await world.client(request(body=chat(tokens=3000, stream=True)))
    await runs.begun()
    tasks: list[asyncio.Task[Answer]] = []
    for n, tenant in enumerate(["many"] * 5 + ["few"]):
        headers = {"x-tenant-id": tenant, "x-request-id": f"{tenant}-{n}"}
        tasks.append(world.soon(world.ask(body=chat(f"number {n}"), headers=headers)))
        await world.until(lambda n=n: len(engine.log.entries) == n + 2)  # type: ignore[misc]
    runs.hang_up()
    assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 6
    served = sorted(list(engine.log.entries)[1:], key=lambda entry: entry.first_token or 0.0)
    assert [entry.id for entry in served] == ["many-0", "few-5", "many-1", "many-2", "many-3", "many-4"]
