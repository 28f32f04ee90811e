"""A list of endpoints for the proxy, and the lease that follows the one that answered."""

from __future__ import annotations

import json

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from tests.gateway.conftest import World, chat, hurry
from tests.gateway.epp.conftest import Envoy, behind
from tests.gateway.epp.test_messages import BODY, DESTINATION, USAGE, Pool, Proxy, Request, headers, places, pool, table

SERVED = "x-gateway-destination-endpoint-served"
FALLBACK = "x-penstock-fallback-endpoint"


async def _asked(stream: Proxy, body: bytes = BODY, **more: object) -> list[str]:
    """Send a request; the endpoints named for it."""
    await stream.head(**more)  # type: ignore[arg-type]
    await stream.body(body)
    message = await stream.hears()
    named = headers(message.request_headers)[DESTINATION]
    assert message.dynamic_metadata["envoy.lb"][DESTINATION] == named
    await stream.hears_body("request_body")
    return named.split(",")


async def _answered_by(stream: Proxy, place: str, *, by_header: bool = False) -> dict[str, str]:
    """The answer's head, with the endpoint that served; the changes made to it."""
    values = {":status": b"200", "content-type": b"application/json", "x-envoy-upstream-service-time": b"1"}
    if by_header:
        values[SERVED] = place.encode()
    message = Request(response_headers=ext_proc.HttpHeaders(headers=table(values)))
    if not by_header:
        message.metadata_context.filter_metadata["envoy.lb"][SERVED] = place
    await stream.call.write(message)
    await stream.answer_body(json.dumps({"choices": [], "usage": USAGE}).encode(), b"")
    head = await stream.hears()
    assert head.WhichOneof("response") == "response_headers", head
    if by_header:
        assert SERVED in head.response_headers.response.header_mutation.remove_headers
    await stream.hears_body("response_body")
    await stream.call.done_writing()
    return headers(head.response_headers)


def _running(its: Pool) -> dict[str, int]:
    return {endpoint.name: endpoint.leases for endpoint in its.world.picture().endpoints}


async def test_only_one_endpoint_is_named_unless_fallbacks_are_on(world: World) -> None:
    async with pool(world) as its:
        stream = its.stream()
        assert len(await _asked(stream)) == 1
        await stream.call.done_writing()


@pytest.mark.parametrize(("count", "named"), [(1, 0), (2, 1), (3, 1)])
async def test_a_cluster_that_takes_one_address_finds_another_one_in_a_header_of_its_own(
    world: World, count: int, named: int
) -> None:
    async with pool(world, count) as its:
        stream = its.stream()
        await stream.head(**{FALLBACK: b"10.9.9.9:1"})  # type: ignore[arg-type]
        await stream.body(BODY)
        changes = (await stream.hears()).request_headers
        told = headers(changes)
        others = {told[FALLBACK]} if FALLBACK in told else set()
        assert len(others) == named
        assert others <= set(places(world)) - {told[DESTINATION]}
        assert (FALLBACK in changes.response.header_mutation.remove_headers) == (not named)
        await stream.call.done_writing()


async def test_another_endpoint_is_named_if_there_is_one(world: World) -> None:
    async with pool(world, 3, epp={"fallbacks": 1}) as its:
        stream = its.stream()
        named = await _asked(stream)
        assert len(set(named)) == 2
        assert set(named) <= set(places(world))
        await stream.call.done_writing()
        alone = its.stream()
        assert await _asked(alone, subset=named[:1]) == named[:1], "the subset has no other"
        await alone.call.done_writing()


async def test_a_reload_switches_fallbacks_on(world: World) -> None:
    async with pool(world) as its:
        world.document["epp"]["fallbacks"] = 1
        await world.gate.reload()
        stream = its.stream()
        assert len(await _asked(stream)) == 2
        await stream.call.done_writing()


async def test_the_last_endpoint_has_no_fallback(world: World) -> None:
    async with pool(world, 1, epp={"fallbacks": 3}) as its:
        stream = its.stream()
        assert await _asked(stream) == places(world)
        await stream.call.done_writing()


@pytest.mark.parametrize(("other", "count"), [({"api_key": "another"}, 1), ({"api_key": "mine"}, 2)])
async def test_a_request_with_one_endpoints_key_is_not_offered_to_another(
    world: World, other: dict[str, str], count: int
) -> None:
    urls = [(await world.engine()).url for _ in range(2)]
    endpoints = [{"url": urls[0], "api_key": "mine"}, {"url": urls[1], **other}]
    async with pool(world, 0, epp={"fallbacks": 1}, endpoints=endpoints) as its:
        stream = its.stream()
        assert len(await _asked(stream)) == count
        await stream.call.done_writing()


async def test_the_lease_moves_to_the_endpoint_that_served(world: World) -> None:
    async with pool(world, epp={"fallbacks": 1}, slots=2) as its:
        for by_header in (False, True):
            stream = its.stream()
            first, second = await _asked(stream)
            assert _running(its) == {first: 1, second: 0}
            changed = await _answered_by(stream, second, by_header=by_header)
            told = (await world.ask("GET", f"/admin/requests/{changed['x-request-id']}")).json()
            line = f"The proxy got no answer there, and sent it to its fallback {second}."
            assert line in told["story"]
            assert changed["x-penstock-endpoint"] == second
            assert changed["x-penstock-attempts"] == "2"
            await world.idle()
            assert _running(its) == {first: 0, second: 0}


async def test_the_slot_is_that_of_the_endpoint_that_served(world: World) -> None:
    async with pool(world, epp={"fallbacks": 1}, slots=1) as its:
        stream = its.stream()
        first, second = await _asked(stream, json.dumps(chat(stream=True)).encode())
        message = Request(
            response_headers=ext_proc.HttpHeaders(
                headers=table({":status": b"200", "content-type": b"text/event-stream"})
            )
        )
        message.metadata_context.filter_metadata["envoy.lb"][SERVED] = second
        await stream.call.write(message)
        await world.until(lambda: _running(its) == {first: 0, second: 1})
        other = its.stream()
        assert (await _asked(other))[0] == first
        assert await world.metric("penstock_dispatches_total", endpoint=second) == 1
        assert await world.metric("penstock_requeues_total", reason="reset") == 1
        stream.call.cancel()
        await other.call.done_writing()


async def test_an_unknown_endpoint_that_served_changes_nothing(world: World) -> None:
    async with pool(world, epp={"fallbacks": 1}) as its:
        stream = its.stream()
        first = (await _asked(stream))[0]
        assert (await _answered_by(stream, "10.9.9.9:1"))["x-penstock-endpoint"] == first


async def test_requests_that_have_not_begun_outlive_their_engine_with_the_shipped_settings(
    world: World, envoy: Envoy
) -> None:
    dead, alive = [await world.engine(step_s=0.02) for _ in range(2)]
    await behind(world, envoy, slots=2, health={"probe_interval": 60.0})
    begun = [await world.streaming(tokens=5_000) for _ in range(4)]
    for stream in begun:
        await stream.begun()
    waiting = [world.soon(world.chat(tokens=3, stream=number % 2 == 0)) for number in range(6)]
    await world.until(lambda: world.picture().waiting == 6)
    await dead.close()
    world.engines.remove(dead)
    for stream in begun:
        stream.hang_up()
    hurry(alive)
    answers = [await answer for answer in waiting]
    assert [answer.status for answer in answers] == [200] * 6
    assert {answer.header("x-penstock-endpoint") for answer in answers} == {alive.url.removeprefix("http://")}
    assert {answer.header(SERVED) for answer in answers} == {None}
    await world.idle()


async def test_a_client_that_names_a_fallback_itself_reaches_nobody(world: World, envoy: Envoy) -> None:
    """The only engine is dead: without a fallback of ours the header is taken out."""
    dead, other = await world.engine(), await world.engine()
    await behind(world, envoy, endpoints=[{"url": dead.url, "models": ["sim"]}], health={"probe_interval": 60.0})
    await dead.close()
    world.engines.remove(dead)
    answer = await world.chat_with({FALLBACK: other.url.removeprefix("http://")})
    assert answer.status in (502, 503)
    assert not other.log.entries


async def test_envoy_sends_a_request_on_to_the_fallback_of_a_dead_engine(world: World) -> None:
    dead, alive = await world.engine(), await world.engine()
    envoy = Envoy(engines=places(world))
    try:
        envoy.wait()
        await behind(world, envoy, health={"probe_interval": 60.0}, fallbacks=1)
        gone = dead.url.removeprefix("http://")
        await dead.close()
        world.engines.remove(dead)
        answers = [await world.chat(tokens=3, stream=True) for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 6
        assert {answer.header("x-penstock-endpoint") for answer in answers} == {alive.url.removeprefix("http://")}
        assert {answer.header(SERVED) for answer in answers} == {None}
        await world.idle()
        world.port = world.gate.port
        assert await world.metric("penstock_requeues_total", reason="reset") >= 1
        assert await world.metric("penstock_dispatches_total", endpoint=gone) >= 1
        assert len(alive.log.entries) == 6
    finally:
        envoy.close()


async def test_envoy_sends_a_request_on_if_its_engine_dies_before_the_first_token(world: World) -> None:
    engines = [await world.engine(step_s=1.0) for _ in range(2)]
    envoy = Envoy(engines=places(world))
    try:
        envoy.wait()
        await behind(world, envoy, fallbacks=1, slots=1)
        client = await world.streaming(tokens=2)
        await world.until(lambda: any(engine.log.running_max for engine in engines))
        first, second = sorted(engines, key=lambda engine: -engine.log.running_max)
        hurry(second)
        await first.close()
        world.engines.remove(first)
        answer = await client.answer()
        assert answer.status == 200
        assert answer.header("x-penstock-endpoint") == second.url.removeprefix("http://")
        assert answer.header("x-penstock-attempts") == "2"
        assert answer.body.endswith(b"data: [DONE]\n\n")
        await world.idle()
    finally:
        envoy.close()


async def test_an_answer_of_our_own_does_not_name_the_engine_that_broke_off(world: World, envoy: Envoy) -> None:
    engine = await world.engine(step_s=1.0)
    await behind(world, envoy, health={"probe_interval": 60.0})
    asked = world.soon(world.chat(tokens=3))
    await world.until(lambda: world.picture().endpoints[0].leases == 1 and len(engine.log.entries) == 1)
    await engine.close()
    world.engines.remove(engine)
    answer = await asked
    assert answer.status in (502, 503, 504)
    assert answer.header("x-penstock-reason") is not None
    assert answer.header(SERVED) is None
