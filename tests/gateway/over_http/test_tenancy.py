"""Who a caller is decides what it gets: keys, names, bands, limits and deadlines, over real sockets."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from penstock.config.load import from_mapping
from penstock.core.scheduler import Scheduler
from penstock.core.values.request import Request
from penstock.core.values.settings import EndpointSpec
from penstock.gateway.identity.caller import PART_OF, Caller
from penstock.gateway.identity.callers import Callers, key_hash
from penstock.gateway.settings_map import scheduler_settings
from tests.gateway.conftest import CHAT, Answer, World, chat, request

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
KEY, OTHER_KEY = "pk-team-a", "pk-team-b"
BEARER = {"authorization": f"Bearer {KEY}"}
TEAM_A = {"name": "team-a", "max_band": "interactive", "keys": [key_hash(KEY)]}
TEAM_B = {"name": "team-b", "keys": [key_hash(OTHER_KEY)]}


def limited(**limits: int) -> dict[str, Any]:
    return {"tenants": [{**TEAM_A, "limits": limits}, TEAM_B]}


async def busy(world: World, tokens: int = 3000) -> Any:
    """A request that takes the only slot until its client hangs up, of nobody's tenant."""
    client = await world.streaming(tokens=tokens)
    await client.begun()
    return client


def tenant_limit(answer: Answer) -> None:
    assert (answer.status, answer.error()["code"], answer.error()["type"]) == (429, "tenant_limit", "rate_limit_error")
    assert 1 <= int(answer.header("retry-after") or "") <= 60


# --- keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer sk-elsewhere"}, {"x-api-key": "pk-revoked"}, {"api-key": "pk-revoked"}]
)
async def test_without_a_known_key_nothing_is_served_where_one_is_required(
    world: World, headers: dict[str, str]
) -> None:
    engine = await world.engine()
    await world.gateway(tenants=[TEAM_A], identity={"require_key": True})
    refused = await world.ask(body=chat(), headers=headers)
    assert (refused.status, refused.error()["code"]) == (401, "unauthorized")
    assert refused.error()["type"] == "invalid_request_error"
    assert refused.header("x-should-retry") == "false"
    assert refused.header("retry-after") is None
    assert "revoked" not in refused.body.decode()
    tokens = await world.ask(path="/tokenize", body={"prompt": "x"}, headers=headers)
    assert tokens.status == 401
    for path in ("/v1/models", "/v1/models/sim"):
        assert (await world.ask("GET", path, headers=headers)).status == 401
        assert (await world.ask("GET", path, headers=BEARER)).status == 200
    assert (await world.ask(body=chat(), headers=BEARER)).status == 200
    assert len(engine.log.entries) == 1
    assert await world.metric("penstock_rejections_total", reason="unauthorized") == 4


async def test_errors_have_anthropics_shape_for_its_client(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=[TEAM_A], identity={"require_key": True})
    refused = await world.ask(path="/v1/messages", body=chat(), headers={"x-api-key": "pk-revoked"})
    assert refused.status == 401
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "authentication_error"
    assert refused.header("x-should-retry") == "false"
    assert (await world.ask(path="/v1/messages", body=chat(), headers={"x-api-key": KEY})).status == 200


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
@pytest.mark.parametrize("engine_key", [None, "engine-key"])
async def test_a_key_of_ours_never_reaches_the_engine(world: World, path: str, engine_key: str | None) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[{**endpoint, "api_key": engine_key}], tenants=[TEAM_A])
    for headers in (
        {"Authorization": f"Bearer {KEY}"},
        {"X-Api-Key": KEY},
        {"Authorization": KEY, "X-Api-Key": "sk-elsewhere"},
        {"Authorization": "Bearer sk-elsewhere", "X-Api-Key": KEY},
        {"Api-Key": KEY},
        {"api-key": f"Bearer {KEY}"},
        {"Authorization": "Bearer sk-elsewhere", "api-key": KEY},
        {"X-Api-Key": KEY, "api-key": "sk-elsewhere"},
    ):
        assert (await world.ask(path=path, body=chat(), headers=headers)).status == 200
    for seen in requests:
        assert KEY.encode() not in seen
        assert b"sk-elsewhere" not in seen
        assert (b"authorization: Bearer engine-key\r\n" in seen) == (engine_key is not None)


async def test_a_key_twice_in_the_header_of_azures_clients_is_refused(world: World) -> None:
    engine = await world.engine()
    await world.gateway(tenants=[TEAM_A])
    twice = request(body=chat()).replace(b"\r\n", b"\r\napi-key: %b\r\nAPI-Key: other\r\n" % KEY.encode(), 1)
    assert (await (await world.client(twice)).answer()).status == 401
    assert not engine.log.entries


@pytest.mark.parametrize("tenants", [[], [TEAM_A]])
async def test_an_unknown_key_passes_to_the_engine(world: World, tenants: list[Any]) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], tenants=tenants)
    headers = {"Authorization": "Bearer sk-elsewhere", "X-Api-Key": "sk-other", "api-key": "sk-third"}
    assert (await world.ask(body=chat(), headers=headers)).status == 200
    assert b"Authorization: Bearer sk-elsewhere\r\n" in requests[0]
    assert b"X-Api-Key: sk-other\r\n" in requests[0]
    assert b"api-key: sk-third\r\n" in requests[0]


# --- limits ------------------------------------------------------------------------------------------------------


async def test_a_tenant_runs_as_many_as_it_may_and_its_others_wait_without_standing_in_the_way(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=4, **limited(running=2))
    running = [await world.client(request(body=chat(tokens=3000, stream=True), headers=BEARER)) for _ in range(2)]
    for client in running:
        await client.begun()
    held = [world.soon(world.ask(body=chat(), headers=BEARER)) for _ in range(3)]
    await world.until(lambda: world.picture().waiting == 3)
    assert (await world.chat()).status == 200, "two slots are free for others"
    assert world.picture().waiting == 3
    assert engine.log.in_engine_max == 3
    running[0].hang_up()
    assert [answer.status for answer in await asyncio.gather(*held)] == [200] * 3
    assert engine.log.in_engine_max == 3


async def test_the_queue_of_a_tenant_is_bounded(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, **limited(queued=2))
    runs = await busy(world)
    waiting = [world.soon(world.ask(body=chat(), headers=BEARER)) for _ in range(2)]
    await world.until(lambda: world.picture().waiting == 2)
    tenant_limit(await world.ask(body=chat(), headers=BEARER))
    other = world.soon(world.ask(body=chat(), headers={"x-api-key": OTHER_KEY}))
    await world.until(lambda: world.picture().waiting == 3)
    runs.hang_up()
    assert [answer.status for answer in await asyncio.gather(*waiting, other)] == [200] * 3


async def test_requests_per_minute_are_counted_and_refusals_are_not(world: World) -> None:
    await world.engine()
    await world.gateway(**limited(requests_per_minute=3))
    answers = [await world.ask(body=chat(), headers=BEARER) for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 3 + [429] * 3
    for answer in answers[3:]:
        tenant_limit(answer)
        assert 10 <= int(answer.header("retry-after") or "") <= 30, "20 s until there is one more, with jitter"
    assert (await world.ask(body=chat(), headers={"x-api-key": OTHER_KEY})).status == 200
    anthropic = await world.ask(path="/v1/messages", body=chat(), headers=BEARER)
    assert (anthropic.status, anthropic.json()["error"]["type"]) == (429, "rate_limit_error")


async def test_tokens_per_minute_are_reserved_and_settled_by_what_was_used(world: World) -> None:
    """An answer of 400 tokens is estimated at 128 at most, so the truth at its end is what empties the bucket."""
    await world.engine(step_s=0.001)
    await world.gateway(**limited(tokens_per_minute=500))

    def left() -> float:
        return world.picture().tenants[0].tokens_left or 0.0

    assert left() == 500
    assert (await world.ask(body=chat(tokens=5, stream=True), headers=BEARER)).status == 200
    used = (await world.ask(body=chat(tokens=400), headers=BEARER)).json()["usage"]["total_tokens"]
    await world.idle()
    assert 400 < used < 430
    assert left() < 500 - used + 60, "settled by the truth, not by the estimate; some flows back meanwhile"
    tenant_limit(await world.ask(body=chat("long " * 200, tokens=100), headers=BEARER))
    before = left()
    tenant_limit(await world.ask(body=chat("long " * 200, tokens=100), headers=BEARER))
    assert left() >= before, "a refusal costs nothing"


async def test_tokens_that_were_reserved_and_not_used_come_back(world: World) -> None:
    await world.engine()
    await world.gateway(slots=1, **limited(tokens_per_minute=1000))
    runs = await busy(world)
    waiter = await world.client(request(body=chat("x" * 2000, tokens=128), headers=BEARER))
    await world.until(lambda: world.picture().waiting == 1)
    assert (world.picture().tenants[0].tokens_left or 0) < 600
    waiter.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    assert (world.picture().tenants[0].tokens_left or 0) == 1000
    runs.hang_up()


# --- names -------------------------------------------------------------------------------------------------------


async def flow_of(world: World, headers: dict[str, str], **more: Any) -> tuple[str, ...]:
    """The flow that a request with these headers stands in."""
    runs = await busy(world)
    client = await world.client(request(body=chat(**more), headers=headers))
    await world.until(lambda: world.picture().waiting == 1)
    flow = world.gate.driver.scheduler.inspect().queues.bands
    entry = next(entry for band in flow for entry in band.entries.values())
    client.hang_up()
    runs.hang_up()
    await world.idle()
    return entry.request.flow


SHARED = PART_OF.format("anonymous")


async def test_a_caller_without_a_key_is_whom_its_headers_name(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, tenants=[TEAM_A, {"name": "open"}], fairness={"levels": ["tenant", "user"]})
    assert await flow_of(world, {"x-tenant-id": "open"}) == ("open", "")
    assert await flow_of(world, {"X-LLM-D-Inference-Fairness-ID": "red"}) == (SHARED, "red", "")
    assert await flow_of(world, {"x-gateway-inference-fairness-id": "blue"}) == (SHARED, "blue", "")
    assert await flow_of(world, {"x-tenant-id": "open", "x-openwebui-user-id": "ann"}) == ("open", "ann")
    assert await flow_of(world, {"x-tenant-id": "open", "x-user-id": "bo"}, user="cy") == ("open", "bo")
    assert await flow_of(world, {}, user="cy") == (SHARED, "client:127.0.0.1", "cy")
    assert await flow_of(world, {"x-tenant-id": "team-a"}) == (SHARED, "client:127.0.0.1", ""), (
        "a name that has keys needs one"
    )
    assert (await flow_of(world, {**BEARER, "x-tenant-id": "open"}))[0] == "team-a"


async def test_a_trusted_proxy_may_name_a_tenant_that_has_keys(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, tenants=[TEAM_A], identity={"trusted_proxies": ["127.0.0.0/8"]})
    assert await flow_of(world, {"x-tenant-id": "team-a"}) == ("team-a",)
    assert await flow_of(world, {"x-tenant-id": "somebody"}) == ("somebody",)
    assert await flow_of(world, {}) == (SHARED, "client:127.0.0.1")


async def test_strange_names_become_short_ones_and_too_many_share_one_flow(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, identity={"max_dynamic": 3})
    (long,) = await flow_of(world, {"x-tenant-id": "t" * 10_000})
    assert len(long) <= 128
    assert long.startswith("tttt")
    (odd,) = await flow_of(world, {"x-tenant-id": "a\tb\u0080\u00ff"})
    assert odd.isprintable()
    assert await flow_of(world, {"x-tenant-id": "third"}) == ("third",)
    assert await flow_of(world, {"x-tenant-id": "fourth"}) == ("other",)
    assert await flow_of(world, {"x-tenant-id": "third"}) == ("third",)
    page = (await world.ask("GET", "/metrics")).body.decode()
    assert "third" not in page
    assert "tttt" not in page


async def test_control_characters_in_a_header_are_refused_before_they_are_a_name(world: World) -> None:
    await world.engine()
    await world.gateway()
    client = await world.client(request(body=chat(), headers={"x-tenant-id": "a\x00b\x07"}))
    assert (await client.answer()).status == 400
    assert not world.seen()


async def test_only_the_names_of_the_settings_are_labels(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=[TEAM_A, {"name": "open"}])
    series = "penstock_tenant_service_tokens_total"
    assert [await world.metric(series, tenant=name) for name in ("team-a", "open", "other")] == [0, 0, 0]
    for n in range(20):
        assert (await world.ask(body=chat(), headers={"x-tenant-id": f"invented-{n}"})).status == 200
    assert (await world.ask(body=chat(), headers=BEARER)).status == 200
    assert (await world.ask(body=chat(), headers={"x-tenant-id": "open"})).status == 200
    of_a, of_open, of_others = [await world.metric(series, tenant=name) for name in ("team-a", "open", "other")]
    assert of_a == of_open > 0
    assert of_others == 20 * of_a
    page = (await world.ask("GET", "/metrics")).body.decode()
    assert "invented" not in page
    assert page.count(series + "{") == 3


def test_five_thousand_users_of_one_key_cost_what_a_thousand_cost() -> None:
    settings = from_mapping(
        {"tenants": [TEAM_A], "fairness": {"levels": ["tenant", "user"]}, "identity": {"max_dynamic": 1000}}
    )
    callers = Callers()
    callers.follow(settings)
    scheduler = Scheduler(scheduler_settings(settings), random=Random(1))
    scheduler.endpoint_added(EndpointSpec("e", 8, frozenset({"sim"}), {}, adaptive_slots=False), now=0.0)
    headers = {b"authorization": f"Bearer {KEY}".encode()}
    flows = set()
    for n in range(5_000):
        now = n / 1000
        key = callers.key(headers.get, lambda _: False)
        caller = callers.identify(key, headers.get, "192.0.2.1", user=f"user-{n}", now=now)
        assert isinstance(caller, Caller)
        flows.add((caller.tenant, caller.user))
        (sent,) = scheduler.arrived(
            Request(
                id=str(n),
                model="sim",
                band=caller.band,
                tenant=caller.tenant,
                flow=(caller.tenant, caller.user),
                weights=(caller.weight, 1.0),
                body_bytes=100,
            ),
            now=now,
        )
        scheduler.finished(sent.lease, None, now=now)  # type: ignore[union-attr]
    assert len(flows) == 1001
    assert len(callers._tenants["team-a"].users) == 1000
    assert (len(callers._dynamic), len(callers._dynamic_users)) == (0, 0)
    assert sum(band.tree.nodes for band in scheduler.inspect().queues.bands) <= 1100
    assert len(scheduler.inspect().entries) == len(scheduler.inspect().leases) == 0
    assert len(scheduler.inspect().estimator._learned) <= 2


# --- bands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body", "band"),
    [
        ({}, {}, "standard"),
        ({"x-penstock-band": "interactive"}, {}, "standard"),
        ({"x-penstock-band": "batch"}, {}, "batch"),
        ({"x-penstock-band": "nonsense"}, {}, "standard"),
        ({"x-llm-d-inference-objective": "batch"}, {}, "batch"),
        ({}, {"service_tier": "flex"}, "batch"),
        ({}, {"service_tier": "priority"}, "standard"),
        ({}, {"service_tier": ["priority"]}, "standard"),
        (BEARER, {}, "standard"),
        (BEARER | {"x-penstock-band": "interactive"}, {}, "interactive"),
        (BEARER | {"x-penstock-band": "batch"}, {}, "batch"),
        (BEARER, {"service_tier": "priority"}, "interactive"),
        (BEARER, {"service_tier": "fast"}, "interactive"),
        (BEARER, {"service_tier": "auto"}, "standard"),
        ({"x-api-key": OTHER_KEY, "x-penstock-band": "interactive"}, {}, "standard"),
        ({"x-tenant-id": "team-a", "x-penstock-band": "interactive"}, {}, "standard"),
    ],
)
async def test_anyone_may_lower_its_band_and_only_a_key_lets_it_rise(
    world: World, headers: dict[str, str], body: dict[str, Any], band: str
) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], tenants=[TEAM_A, TEAM_B])
    answer = await world.ask(body=chat(**body), headers=headers)
    assert answer.header("x-penstock-band") == band
    assert await world.metric("penstock_requests_total", band=band, outcome="completed") == 1
    if body:
        assert b'"service_tier"' in requests[0], "it passes on as it came"


async def test_a_priority_orders_within_the_callers_own_flow_and_any_value_passes(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    runs = await busy(world)
    values = {"late": 2**63, "text": "7", "early": -(2**63), "null": None, "half": 1.5, "true": True, "one": 1}
    tasks = []
    for n, (word, value) in enumerate(values.items()):
        tasks.append(world.soon(world.chat(word, priority=value)))
        await world.until(lambda n=n: world.picture().waiting == n + 1)  # type: ignore[misc]
    elsewhere = world.soon(world.ask(body=chat("elsewhere"), headers={"x-tenant-id": "other-team"}))
    await world.until(lambda: world.picture().waiting == len(values) + 1)
    runs.hang_up()
    await asyncio.gather(*tasks, elsewhere)
    bodies = [bytes(entry.body or b"") for entry in list(engine.log.entries)[1:]]
    words = [next(w for w in (*values, "elsewhere") if f'"{w}"'.encode() in body) for body in bodies]
    own = [word for word in words if word != "elsewhere"]
    assert own == ["early", "text", "null", "half", "true", "one", "late"]
    assert words.index("elsewhere") <= 1, "another tenant's turn does not depend on it"
    assert b"priority" not in bodies[words.index("late")], "it orders here, and no engine is told"


# --- deadlines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"])
async def test_a_request_that_cannot_meet_its_deadline_is_refused_at_once(world: World, header: str) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    assert (await world.chat(tokens=200)).status == 200, "from it the gateway knows how long a lease lasts"
    runs = await busy(world)
    waiting = [world.soon(world.chat()) for _ in range(5)]
    await world.until(lambda: world.picture().waiting == 5)
    refused = await world.ask(body=chat(), headers={header: "50"})
    assert (refused.status, refused.error()["code"]) == (429, "deadline_infeasible")
    assert 1 <= int(refused.header("retry-after") or "") <= 60
    assert world.picture().waiting == 5
    runs.hang_up()
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 5
    assert (await world.ask(body=chat(), headers={header: "60000"})).status == 200


async def test_a_request_past_its_deadline_is_not_sent(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=1)
    for _ in range(3):
        assert (await world.chat(tokens=1)).status == 200, "short ones, so a wait of a second seems feasible"
    runs = await busy(world)
    late = await world.ask(body=chat(), headers={"x-slo-ttft-ms": "1500"})
    assert (late.status, late.error()["code"]) == (429, "deadline_missed")
    assert 1 <= int(late.header("retry-after") or "") <= 60
    assert late.header("x-penstock-band") == "standard"
    assert len(engine.log.entries) == 4
    runs.hang_up()


@pytest.mark.parametrize("value", ["-5", "0", "soon", "1e3", "nan", "", "9" * 40])
async def test_a_deadline_without_sense_is_none(world: World, value: str) -> None:
    await world.engine()
    await world.gateway()
    assert (await world.ask(body=chat(), headers={"x-slo-ttft-ms": value})).status == 200


async def test_an_unknown_band_is_reported_beside_the_one_in_use(world: World) -> None:
    await world.engine()
    await world.gateway()
    for headers, told in (
        ({"x-penstock-band": "fast"}, "there is no band 'fast'; this request is in standard"),
        ({"x-llm-d-inference-objective": "gold"}, "there is no band 'gold'; this request is in standard"),
        ({"x-penstock-band": "fast", "x-llm-d-inference-objective": "batch"}, None),
        ({"x-penstock-band": "batch"}, None),
        ({"x-penstock-band": "  "}, None),
        ({}, None),
    ):
        answer = await world.chat_with(headers)
        assert (answer.status, answer.header("x-penstock-warning")) == (200, told)
    strange = await world.chat_with({"x-penstock-band": "f\u00e4st" + "x" * 500})
    warning = strange.header("x-penstock-warning") or ""
    assert warning.startswith("there is no band 'f")
    assert warning.isascii()
    assert len(warning) < 200
    refused = await world.ask(body=chat(model="nobody"), headers={"x-penstock-band": "fast"})
    assert (refused.status, refused.header("x-penstock-warning") is not None) == (404, True)


async def test_an_unknown_key_is_refused_before_the_body_is_read(world: World) -> None:
    await world.engine()
    await world.gateway(identity={"require_key": True}, tenants=[{"name": "a", "keys": [key_hash("pk-a")]}])
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50000000\r\n"
    head += b"authorization: Bearer pk-b\r\n\r\n"
    client = await world.client(head)
    answer = await client.answer()
    assert answer.status == 401
    assert answer.header("x-penstock-reason") == "unauthorized"


@pytest.mark.parametrize("asked", [b"POST /v1/chat/completions", b"GET /queue"])
async def test_a_credential_that_is_given_twice_is_refused(world: World, asked: bytes) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "a", "keys": [key_hash("pk-a")]}])
    twice = b"authorization: Bearer other\r\nAuthorization: Bearer pk-a\r\n"
    client = await world.client(asked + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n" + twice + b"\r\n{}")
    answer = await client.answer()
    assert answer.status == 401
