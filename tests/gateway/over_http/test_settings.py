"""Settings, each on the wire: what would be otherwise without it. `test_every_setting.py` says where all others are."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.core.endpoints.ledger import Ledger
from penstock.core.values.catalogue import Cause
from tests.gateway.conftest import Answer, Client, World, chat, fault, request
from tests.patience import WAIT_S

ENDLESS = 20_000  # tokens: forty seconds
LONG = "word " * 800
TENANTS = [{"name": "a"}, {"name": "b"}]
Asked = tuple[str, str, int]  # tenant, content, tokens


async def hold(world: World, count: int = 1, **headers: str) -> list[Client]:
    """So many streams that keep their slots."""
    found = []
    for at in range(count):
        found.append(await world.client_for(chat(f"hold {at}", tokens=ENDLESS, stream=True), headers))
        await found[-1].begun()
    return found


async def served(world: World, *asked: Asked, band: str = "standard") -> list[str]:
    """The tenants in the order in which one slot serves them, where all of them wait before it is free."""
    (holder,) = await hold(world)
    order: list[str] = []

    async def one(tenant: str, content: str, tokens: int) -> Answer:
        headers = {"x-tenant-id": tenant, "x-penstock-band": band}
        answer = await world.ask(body=chat(content, tokens=tokens), headers=headers)
        order.append(tenant)
        return answer

    tasks = []
    for at, (tenant, content, tokens) in enumerate(asked):
        tasks.append(world.soon(one(tenant, content, tokens)))
        await world.until(partial(_waits, world, at + 1))
    holder.hang_up()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
    return order


def _waits(world: World, count: int) -> bool:
    return world.picture().waiting == count


# --- turns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"ordering": "shortest_first"}, {"bands": [{"name": "standard", "ordering": "shortest_first"}]}]
)
async def test_the_shortest_of_a_flow_goes_first(world: World, settings: dict[str, Any]) -> None:
    await world.engine()
    await world.gateway(slots=1, fairness={"levels": ["model"]}, **settings)
    assert await served(world, ("long", LONG, 16), ("short", "hi", 1)) == ["short", "long"]


@pytest.mark.parametrize(
    "settings", [{"fairness": {"policy": "fcfs"}}, {"bands": [{"name": "standard", "fairness": {"policy": "fcfs"}}]}]
)
async def test_requests_are_served_in_order_of_arrival(world: World, settings: dict[str, Any]) -> None:
    await world.engine()
    await world.gateway(slots=1, tenants=TENANTS, **settings)
    asked = [("a", "1", 4), ("a", "2", 4), ("a", "3", 4), ("b", "4", 4)]
    assert await served(world, *asked) == ["a", "a", "a", "b"]


FREE = {"prompt": 0, "cached_prompt": 0, "completion": 0}


@pytest.mark.parametrize("place", ["fairness", "models"])
@pytest.mark.parametrize(
    ("kind", "heavy", "light"),
    [("prompt", (LONG, 1), ("hi", 1)), ("completion", ("hi", 16), ("hi", 1))],
)
async def test_prices_decide_the_share_of_service(
    world: World, place: str, kind: str, heavy: tuple[str, int], light: tuple[str, int]
) -> None:
    """With the one price, who asks for more of it stands back; with the other, both take turns."""
    await world.engine()
    other = {"prompt": "completion", "completion": "prompt"}[kind]
    asked = [(who, f"{at} {text}", tokens) for who, (text, tokens) in (("a", heavy), ("b", light)) for at in range(3)]
    orders = []
    for priced in (kind, other):
        prices = FREE | {priced: 1}
        settings: dict[str, Any] = {"fairness": {"prices": prices}}
        if place == "models":
            settings = {"models": {"sim": {"prices": prices}}}
        await world.gateway(slots=1, tenants=TENANTS, **settings)
        orders.append(await served(world, *asked))
        await world.end_gateway()
    assert orders[0].index("b") <= 1
    assert orders[0][-2:] == ["a", "a"], "who is cheap has all its turns before"
    assert orders[1] == ["a", "b"] * 3


# --- bands ----------------------------------------------------------------------------------------------------------


async def test_a_band_fills_endpoints_up_to_its_ceiling(world: World) -> None:
    await world.engine()
    await world.gateway(slots=4, bands=[{"name": "standard", "ceiling": 0.5}])
    holders = await hold(world, 2)
    third = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    assert world.picture().endpoints[0].closed is Cause.SLOTS_FULL
    holders[0].hang_up()
    assert (await third).status == 200


async def test_a_band_gets_its_promised_share_whatever_waits_above_it(world: World) -> None:
    await world.engine()
    bands = [{"name": "standard"}, {"name": "batch", "min_share": 0.5}]
    await world.gateway(slots=1, bands=bands, default_band="standard")
    (holder,) = await hold(world)
    order: list[str] = []

    async def one(band: str) -> Answer:
        answer = await world.chat_with({"x-penstock-band": band})
        order.append(band)
        return answer

    tasks = [world.soon(one(band)) for band in ["batch"] * 6 + ["standard"] * 6]
    await world.until(lambda: world.picture().waiting == 12)
    holder.hang_up()
    await asyncio.gather(*tasks)
    assert 2 <= order[:6].count("batch") <= 4


BEST_EFFORT = {"name": "standard", "best_effort": True, "shed_target": "50ms", "max_wait": "1s"}


@pytest.mark.parametrize(
    ("band", "code"),
    [
        (BEST_EFFORT | {"max_wait": "60s"}, "overload"),
        (BEST_EFFORT, "queue_timeout"),
        ({"name": "standard", "deadline": "300ms"}, "deadline_missed"),
        ({"name": "standard", "max_wait": "300ms"}, "queue_timeout"),
    ],
)
@pytest.mark.virtual_time
async def test_how_long_it_helps_to_wait_in_a_band(world: World, band: dict[str, Any], code: str) -> None:
    await world.engine()
    await world.gateway(slots=1, bands=[band])
    holder = await world.client_for(chat(tokens=ENDLESS, stream=True))
    await holder.begun()
    refused = await world.chat()
    assert (refused.status, refused.error()["code"]) == (429, code)
    holder.hang_up()


@pytest.mark.parametrize("limit", [{"max_requests": 1}, {"max_bytes": 3000}, {"max_tokens": 500}])
@pytest.mark.parametrize("place", ["queue", "band"])
async def test_the_queue_is_bounded(world: World, place: str, limit: dict[str, int]) -> None:
    await world.engine()
    settings: dict[str, Any] = {"queue": limit}
    if place == "band":
        settings = {"bands": [{"name": "standard", **limit}]}
    await refuses_the_second(world, "queue_full", **settings)


@pytest.mark.parametrize("limit", [{"queued": 1}, {"queued_bytes": 3000}, {"queued_tokens": 500}])
@pytest.mark.parametrize("place", ["tenant", "anonymous"])
async def test_the_queue_of_a_tenant_is_bounded_in_every_measure(
    world: World, place: str, limit: dict[str, int]
) -> None:
    await world.engine()
    settings: dict[str, Any] = {"tenants": [{"name": "anonymous", "limits": limit}]}
    if place == "anonymous":
        settings = {"identity": {"anonymous": {"limits": limit}}}
    await refuses_the_second(world, "tenant_limit", **settings)


async def refuses_the_second(world: World, code: str, **settings: Any) -> None:
    await world.gateway(slots=1, **settings)
    (holder,) = await hold(world)
    first = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    refused = await world.chat(LONG)
    assert (refused.status, refused.error()["code"]) == (429, code)
    holder.hang_up()
    assert (await first).status == 200


async def test_the_default_band_and_a_custom_band_header(world: World) -> None:
    await world.engine()
    await world.gateway(default_band="interactive", identity={"band_header": "x-class"})
    assert (await world.chat()).header("x-penstock-band") == "interactive"
    assert (await world.chat_with({"x-class": "batch"})).header("x-penstock-band") == "batch"
    assert (await world.chat_with({"x-penstock-band": "batch"})).header("x-penstock-band") == "interactive"


# --- admission ------------------------------------------------------------------------------------------------------


async def test_an_engine_of_unknown_size_begins_with_slots_initial(world: World) -> None:
    await world.engine()
    endpoint = {"url": world.engines[0].url, "engine": "openai", "models": ["sim"]}
    await world.gateway(endpoints=[endpoint], admission={"slots_initial": 3})
    assert world.picture().endpoints[0].slots == 3


@pytest.mark.parametrize(
    ("engine", "limit", "cause"),
    [
        ({"step_s": 0.02, "kv_blocks": 64}, {"max_kv_usage": 0.2}, Cause.KV_FULL),
        (
            {"step_s": 0.05, "max_num_batched_tokens": 64, "max_num_seqs": 8},
            {"max_prefill_tokens": 300},
            Cause.PREFILL_FULL,
        ),
    ],
)
async def test_an_endpoint_takes_no_more_than_its_memory_and_its_prompts_allow(
    world: World, engine: dict[str, Any], limit: dict[str, Any], cause: Cause
) -> None:
    await world.engine(**engine)
    await world.gateway(slots=8, admission=limit)
    for at in range(3):
        await world.streaming(f"{at} " + "word " * 200, tokens=50)
    await world.until(lambda: world.picture().waiting > 0)
    assert world.picture().endpoints[0].closed is cause


# --- health ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "longer_s", "shorter_s"),
    [({"eject_for": "20s"}, 15.0, 25.0), ({"eject_for": "3s", "eject_for_max": "3s"}, 2.0, 4.0)],
)
async def test_after_so_many_failures_an_endpoint_is_out_for_so_long(
    world: World, health: dict[str, Any], longer_s: float, shorter_s: float
) -> None:
    bad, _ = await world.engine(), await world.engine()
    await world.gateway(health={"eject_after": 1, "probe_interval": 0.1, **health})
    fault(bad, "error", count=1)
    for _ in range(4):
        assert (await world.chat()).status == 200
    driver = world.gate.driver
    out = [
        e.health.ejected_until_s - driver.now()
        for e in driver.scheduler.inspect().pool
        if e.health.ejected(driver.now())
    ]
    assert len(out) == 1
    assert longer_s < out[0] < shorter_s


@pytest.mark.parametrize("threshold", [0, 0.5])
async def test_where_too_few_are_well_all_are_used(world: World, threshold: float) -> None:
    engine = await world.engine()
    health = {"eject_after": 1, "eject_for": "30s", "panic_threshold": threshold}
    await world.gateway(health=health, retry={"max_attempts": 1}, queue={"max_wait": "300ms"})
    fault(engine, "error", count=1)
    assert (await world.chat()).status == 500
    assert (await world.chat()).status == (200 if threshold else 429)


# --- callers --------------------------------------------------------------------------------------------------------


async def test_heads_and_connections_are_bounded(world: World) -> None:
    await world.engine()
    await world.gateway(limits={"max_header": "2KiB", "max_connections": 2})
    assert (await world.ask(body=chat(), headers={"x-long": "x" * 3000})).status == 431
    idle = [await world.client(request(body=chat())) for _ in range(2)]
    for client in idle:
        assert (await client.answer()).status == 200
    busy = [await world.client(request(body=chat())[:-1]) for _ in range(2)]  # in the place of the idle ones
    for client in idle:
        assert await client.reader.read() == b""
    refused = await (await world.client(request(body=chat()))).answer()
    assert (refused.status, refused.header("x-penstock-reason")) == (429, "overload")
    busy[0].send(request(body=chat())[-1:])
    assert (await busy[0].answer()).status == 200


@pytest.mark.parametrize(
    ("identity", "headers", "status"),
    [
        ({}, {"host": "evil.example"}, 403),
        ({"allowed_hosts": ["good.example"]}, {"host": "good.example"}, 200),
        ({}, {"origin": "https://evil.example"}, 403),
        ({"allowed_origins": ["https://good.example"]}, {"origin": "https://good.example"}, 200),
    ],
)
async def test_names_and_pages_that_may_use_it(
    world: World, identity: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    await world.engine()
    await world.gateway(identity=identity)
    asked = request(body=chat(), headers={k: v for k, v in headers.items() if k != "host"})
    if "host" in headers:
        asked = asked.replace(b"host: gateway", b"host: " + headers["host"].encode())
    assert (await (await world.client(asked)).answer()).status == status


# --- batches --------------------------------------------------------------------------------------------------------


async def test_files_are_kept_so_long_and_have_so_many_lines(world: World, tmp_path: Path) -> None:
    await world.gateway(batch={"data": str(tmp_path), "keep": "2h", "limits": {"max_lines": 1}})
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat()})
    answers = [await upload(world, "\n".join([line] * lines)) for lines in (1, 2)]
    told = answers[0].json()
    assert told["expires_at"] - told["created_at"] == 2 * 3600
    made = (
        await world.ask(
            "POST",
            "/v1/batches",
            {
                "input_file_id": answers[1].json()["id"],
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            },
        )
        if answers[1].status == 200
        else answers[1]
    )
    assert made.status >= 400 or await fails(world, made.json()["id"])


async def upload(world: World, lines: str) -> Answer:
    parts = (
        '--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        '--b\r\ncontent-disposition: form-data; name="file"; filename="f.jsonl"\r\n\r\n' + lines + "\r\n--b--\r\n"
    )
    headers = {"content-type": "multipart/form-data; boundary=b"}
    return await world.ask("POST", "/v1/files", parts.encode(), headers)


async def fails(world: World, batch: str) -> bool:
    async with asyncio.timeout(WAIT_S):
        while (told := (await world.ask("GET", f"/v1/batches/{batch}")).json())["status"] != "failed":
            assert told["status"] != "completed"
    return True


# --- locality -------------------------------------------------------------------------------------------------------

DOCUMENT = "word " * 1_200  # 1,500 tokens


@pytest.mark.parametrize("place", ["fairness", "models"])
async def test_cached_prompt_tokens_have_their_own_price(world: World, place: str) -> None:
    await world.engine()
    for price, turns in ((0, False), (1, True)):
        prices = {"prompt": 1, "cached_prompt": price, "completion": 0}
        settings: dict[str, Any] = {"models": {"sim": {"prices": prices}}}
        if place == "fairness":
            settings = {"fairness": {"prices": prices}}
        await world.gateway(slots=1, tenants=TENANTS, **settings)
        await world.chat_with({"x-tenant-id": "b"}, content=DOCUMENT, tokens=1)
        others = [("a", f"{at} " + "other " * 1_000, 1) for at in range(3)]
        order = await served(world, *others, *[("b", DOCUMENT, 1)] * 3)
        assert (order == ["a", "b"] * 3) is turns, order
        await world.end_gateway()


@pytest.mark.parametrize(("escape", "stays"), [("0s", False), ("60s", True)])
async def test_a_prefix_is_worth_so_much_of_a_wait(world: World, escape: str, stays: bool) -> None:
    for _ in range(2):
        await world.engine()
    await world.gateway(slots=8, routing={"affinity_escape": escape})
    home = (await world.chat(DOCUMENT, tokens=1)).header("x-penstock-endpoint")
    long = chat("other " * 8_000, tokens=2)
    busy = await world.client(request(path=f"/v1/chat/completions?id={home}", body=long))
    await world.until(lambda: sum(endpoint.leases for endpoint in world.picture().endpoints) == 1)
    again = await world.chat(DOCUMENT, tokens=1)
    assert (again.header("x-penstock-endpoint") == home) is stays
    busy.hang_up()


async def test_the_last_slots_are_reserved_for_tenants_under_their_share(world: World) -> None:
    await world.engine()
    tenants = [{"name": "a"}, {"name": "b", "weight": 10}]
    await world.gateway(slots=4, tenants=tenants, admission={"reserved_slots": 0.5})
    assert (await world.chat_with({"x-tenant-id": "b"})).status == 200
    await hold(world, 2, **{"x-tenant-id": "a"})
    third = await world.client_for(chat(tokens=ENDLESS, stream=True), {"x-tenant-id": "a"})
    await world.until(lambda: world.picture().waiting == 1)
    assert (await world.chat_with({"x-tenant-id": "b"})).status == 200
    third.hang_up()


# --- who it is ------------------------------------------------------------------------------------------------------


async def test_headers_that_name_callers_have_the_names_that_are_set(world: World) -> None:
    await world.engine()
    identity = {"tenant_header": "x-team", "user_header": "x-person"}
    await world.gateway(tenants=TENANTS, identity=identity, fairness={"levels": ["tenant", "user"]}, slots=1)
    (holder,) = await hold(world)
    waiting = world.soon(world.chat_with({"x-team": "b", "x-person": "kim", "x-tenant-id": "a", "x-user-id": "jo"}))
    await world.until(lambda: world.picture().waiting == 1)
    (request_id,) = [row["id"] for row in (await world.ask("GET", "/admin/state")).json()["requests"]["waiting"]]
    told = world.gate.driver.scheduler.explain(request_id, now=world.gate.driver.now())
    assert told is not None
    assert told.flow == ["b", "kim"]
    holder.hang_up()
    assert (await waiting).status == 200


@pytest.mark.parametrize("settings", [{"identity": {"max_band": "interactive"}}, {"tenants": "max_band"}])
async def test_how_high_a_caller_may_ask(world: World, settings: dict[str, Any]) -> None:
    await world.engine()
    headers = {"x-penstock-band": "interactive"}
    if "tenants" in settings:
        key = "sk-penstock-someone"
        digest = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
        settings = {"tenants": [{"name": "a", "keys": [digest], "max_band": "interactive"}]}
        assert_low = headers
        headers = headers | {"authorization": f"Bearer {key}"}
        await world.gateway(**settings)
        assert (await world.chat_with(assert_low)).header("x-penstock-band") == "standard"
    else:
        await world.gateway(**settings)
    assert (await world.chat_with(headers)).header("x-penstock-band") == "interactive"


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
async def test_callers_without_a_key_have_rates_together(world: World, limit: str) -> None:
    await world.engine()
    await world.gateway(identity={"anonymous": {"limits": {limit: 1}}})
    assert (await world.chat_with({"x-tenant-id": "one"})).status == 200
    refused = await world.chat_with({"x-tenant-id": "two"})
    assert (refused.status, refused.error()["code"]) == (429, "tenant_limit")


async def test_callers_without_a_key_run_so_many_together(world: World) -> None:
    await world.engine()
    await world.gateway(identity={"anonymous": {"limits": {"running": 1}}})
    (holder,) = await hold(world)
    second = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    holder.hang_up()
    assert (await second).status == 200


# --- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_an_engine_that_takes_no_connection_is_given_up_in_the_time_that_is_set(world: World) -> None:
    async def probed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        server = await asyncio.start_server(probed, sock=full.dup(), backlog=1)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        endpoint = {"url": url, "engine": "openai", "models": ["sim"], "slots": 1}
        await world.gateway(endpoints=[endpoint], timeouts={"connect": "200ms"}, retry={"max_attempts": 1})
        await world.until(lambda: world.picture().endpoints[0].state == "up")
        server.close()
        full.listen(0)  # the socket stays, and nobody accepts
        for client in (first, second):  # what the system takes in our place; the next one hears nothing
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        async with asyncio.timeout(4):
            assert (await world.chat()).status == 502


@pytest.mark.parametrize(("observe", "waits"), [({"interval": "20ms"}, False), ({"interval": "2s"}, True)])
async def test_gauges_are_read_as_often_as_is_set_and_faster_while_somebody_waits(
    world: World, observe: dict[str, str], waits: bool
) -> None:
    await world.engine()
    await world.gateway(slots=1, observe=observe | {"fast_interval": "20ms"})
    ledger = next(iter(world.gate.driver.scheduler.inspect().pool)).ledger
    (holder,) = await hold(world)
    if waits:
        waiting = world.soon(world.chat())
        await world.until(lambda: world.picture().waiting == 1)
    asked_s = [ledger.page.asked_s]
    for _ in range(5):
        await world.until(partial(_is_read, ledger, asked_s[-1]))
        asked_s.append(ledger.page.asked_s)
    assert min(after - before for before, after in pairwise(asked_s)) < 0.5, "a second is what it is by default"
    holder.hang_up()
    if waits:
        assert (await waiting).status == 200


def _is_read(ledger: Ledger, since_s: float) -> bool:
    return ledger.page.asked_s > since_s


async def test_a_gateway_keeps_its_state_in_its_folder(world: World, tmp_path: Path) -> None:
    await world.gateway(state_dir=str(tmp_path))
    assert list(tmp_path.rglob("*"))
