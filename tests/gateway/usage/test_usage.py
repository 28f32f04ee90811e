"""Who used what: the ledger adds up to what answers reported, per caller, model, endpoint and end, and survives."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.gateway.identity.callers import key_hash
from tests.batch import postgres
from tests.gateway.conftest import World, chat, fault, request
from tests.gateway.proxy.test_engine_paths import whole
from tests.gateway.raw_engine import Peer, RawEngine

KEYS = {"alpha": "pk-alpha-key", "beta": "pk-beta-key"}
TENANTS = [{"name": name, "keys": [{"hash": key_hash(key), "name": f"{name}-key"}]} for name, key in KEYS.items()]


def by_key(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}", **more}


async def gateway(world: World, folder: Path, **settings: Any) -> None:
    await world.gateway(**{"store": str(folder), "tenants": TENANTS, **settings})


async def used(world: World, query: str = "") -> dict[str, Any]:
    answer = await world.ask("GET", f"/admin/usage?{query}")
    assert answer.status == 200, answer
    told: dict[str, Any] = answer.json()
    return told


async def until_used(world: World, requests: int, query: str = "") -> dict[str, Any]:
    """The ledger once it has so many requests."""
    while (told := await used(world, query))["total"]["requests"] < requests:
        pass
    return told


def sums(answers: list[dict[str, Any]]) -> tuple[int, int]:
    usages = [answer["usage"] for answer in answers]
    return sum(one["prompt_tokens"] for one in usages), sum(one["completion_tokens"] for one in usages)


async def test_the_ledger_is_the_sum_of_what_answers_report(world: World, tmp_path: Path) -> None:
    for _ in range(2):
        await world.engine()
    await gateway(world, tmp_path)
    answers = {name: [(await world.chat_with(by_key(name), tokens=n)).json() for n in (3, 5)] for name in KEYS}
    told = await until_used(world, 4, "by=tenant,key,model")
    rows = {row["tenant"]: row for row in told["rows"]}
    assert told["by"] == ["tenant", "key", "model"]
    for name, its in answers.items():
        prompt, completion = sums(its)
        row = rows[name]
        assert (row["key"], row["model"]) == (f"{name}-key", "sim")
        assert (row["requests"], row["answered"], row["reasons"]) == (2, 2, {})
        assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt, completion)
        assert (row["unreported"], row["estimated_tokens"], row["cost"]) == (0, 0, None)
        assert row["lease_s"] > 0
    assert told["total"]["completion_tokens"] == 16
    by_endpoint = await used(world, "by=endpoint")
    ports = {entry.headers["host"]: 0 for entry in world.seen()}
    assert {row["endpoint"] for row in by_endpoint["rows"]} == set(ports)
    assert sum(row["requests"] for row in by_endpoint["rows"]) == 4


async def test_a_streams_usage_counts_even_if_its_client_did_not_ask(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    client = await world.client_for(chat(tokens=7, stream=True), by_key("alpha", **{"x-user-id": "ann"}))
    assert b"usage" not in (await client.answer()).body
    told = await until_used(world, 1, "by=user")
    assert [(row["user"], row["completion_tokens"]) for row in told["rows"]] == [("ann", 7)]
    assert told["rows"][0]["prompt_tokens"] == world.seen()[0].prompt_tokens


async def test_an_answer_without_usage_is_estimated_in_a_column_of_its_own(world: World, tmp_path: Path) -> None:
    engine = await world.engine()
    await gateway(world, tmp_path)
    fault(engine, "no_usage")
    client = await world.client_for(chat(tokens=6, stream=True), by_key("alpha"))
    await client.answer()
    total = (await until_used(world, 1))["total"]
    assert (total["unreported"], total["prompt_tokens"], total["completion_tokens"]) == (1, 0, 0)
    assert total["estimated_tokens"] >= 6
    assert (
        await world.metric("penstock_tenant_tokens_total", tenant="alpha", kind="estimated")
        == total["estimated_tokens"]
    )


SAID = "said " * 16  # 80 bytes
LONG = "word " * 200  # 1,000 bytes: some 250 tokens
CHAT_ANSWER = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": SAID}}]}


@pytest.mark.parametrize(
    ("path", "asked", "answer", "said"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}, CHAT_ANSWER, 20),
        ("completions", {"prompt": LONG}, {"choices": [{"index": 0, "text": SAID}]}, 20),
        (
            "messages",
            {"max_tokens": 99, "messages": [{"role": "user", "content": LONG}]},
            {"type": "message", "role": "assistant", "content": [{"type": "text", "text": SAID}]},
            20,
        ),
        ("embeddings", {"input": LONG}, {"object": "list", "data": [{"index": 0, "embedding": [0.5] * 99}]}, 0),
        ("rerank", {"query": "q", "documents": [LONG]}, {"results": [{"index": 0, "relevance_score": 0.5}]}, 0),
        ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}, b"no JSON", 0),
        ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}, b'{"choices": [{"inde', 0),
        ("completions", {"prompt": LONG}, b"", 0),
    ],
)
async def test_a_whole_answer_without_usage_pays_its_prompt_by_estimate(
    world: World, tmp_path: Path, path: str, asked: dict[str, Any], answer: Any, said: int
) -> None:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    then = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
    endpoint, _ = await world.scripted(whole({**CHAT_ANSWER, "usage": {"prompt_tokens": 250}}), then=then)
    await gateway(world, tmp_path, endpoints=[endpoint])
    assert (await world.chat_with(by_key("beta"), content=LONG)).status == 200, "an engine that has answered is one"
    got = await world.ask(path=f"/v1/{path}", body={"model": "sim", **asked}, headers=by_key("alpha"))
    assert (got.status, got.body) == (200, data)
    await until_used(world, 2)
    total = (await used(world, "tenant=alpha"))["total"]
    assert (total["answered"], total["unreported"]) == (1, 1)
    assert (total["prompt_tokens"], total["completion_tokens"]) == (0, 0), "nothing was reported"
    assert 150 <= total["estimated_tokens"] - said <= 400
    kinds = [await world.metric("penstock_tokens_total", model="sim", kind=kind) for kind in ("prompt", "completion")]
    assert kinds == [total["estimated_tokens"] - said + 250, said]
    for name in ("penstock_tenant_tokens_total", "penstock_tenant_service_tokens_total"):
        more = {"kind": "estimated"} if name == "penstock_tenant_tokens_total" else {}
        assert await world.metric(name, tenant="alpha", **more) == total["estimated_tokens"]


@pytest.mark.parametrize(
    ("usage", "made"),
    [
        ({"completion_tokens": 9}, 9),
        ({"prompt_tokens": 0, "completion_tokens": 9}, 9),
        ({"prompt_tokens": 0, "completion_tokens": 0}, 0),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_usage_without_the_prompt_has_it_by_estimate(
    world: World, tmp_path: Path, usage: dict[str, int], made: int, streamed: bool
) -> None:
    data = json.dumps({**CHAT_ANSWER, "usage": usage}).encode()
    kind = b"application/json"
    if streamed:
        kind, data = b"text/event-stream", b"data: " + data + b"\n\ndata: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    endpoint, _ = await world.scripted(head % (kind, len(data)) + data)
    tenants = [{**TENANTS[0], "limits": {"tokens_per_minute": 1000}}]
    await gateway(world, tmp_path, endpoints=[endpoint], tenants=tenants)
    assert (await world.chat_with(by_key("alpha"), content=LONG, stream=streamed)).status == 200
    total = (await until_used(world, 1))["total"]
    assert (total["prompt_tokens"], total["completion_tokens"], total["unreported"]) == (0, made, 1)
    assert 150 <= total["estimated_tokens"] <= 400
    left = world.picture().tenants[0].tokens_left
    assert left is not None
    assert 1000 - left == pytest.approx(total["estimated_tokens"] + made, abs=20), "the budget pays the same"


@pytest.mark.parametrize("status", [b"302 Found", b"400 Bad Request", b"404 Not Found"])
async def test_a_refusal_without_usage_costs_nothing(world: World, tmp_path: Path, status: bytes) -> None:
    endpoint, _ = await world.scripted(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")
    await gateway(world, tmp_path, endpoints=[endpoint])
    await world.chat_with(by_key("alpha"), content=LONG)
    total = (await until_used(world, 1))["total"]
    assert (total["unreported"], total["estimated_tokens"], total["prompt_tokens"]) == (0, 0, 0)


async def test_refusals_are_reported_by_reason_and_waits_in_seconds(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    await gateway(world, tmp_path, queue={"max_requests": 1})
    running = [await world.client_for(chat(tokens=3000, stream=True), by_key("alpha")) for _ in range(4)]
    for client in running:
        await client.begun()
    waiter = world.soon(world.chat_with(by_key("beta"), tokens=1))
    await world.until(lambda: world.picture().waiting == 1)
    assert (await world.chat_with(by_key("beta"))).status == 429
    assert (await world.ask(body=b"{", headers=by_key("beta"))).status == 400
    for client in running:
        client.hang_up()
    assert (await waiter).status == 200
    told = {row["tenant"]: row for row in (await until_used(world, 7, "by=tenant"))["rows"]}
    assert told["beta"]["requests"] == 3
    assert told["beta"]["answered"] == 1
    assert told["beta"]["reasons"] == {"queue_full": 1, "bad_request": 1}
    assert told["beta"]["waits"] == 1
    assert told["beta"]["wait_s"] > 0
    assert told["alpha"]["waits"] == 0


async def test_a_client_that_hangs_up_is_counted_with_what_it_got(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    await gateway(world, tmp_path)
    client = await world.client_for(chat(tokens=500, stream=True), by_key("alpha"))
    await client.begun()
    await client.piece()
    client.hang_up()
    total = (await until_used(world, 1))["total"]
    assert total["reasons"] == {"client_gone": 1}
    assert (total["answered"], total["unreported"], total["completion_tokens"]) == (0, 1, 0)
    prompt_tokens = world.seen()[0].prompt_tokens
    assert prompt_tokens // 3 < total["estimated_tokens"] - client.seen.count(b'"content":"') < 3 * prompt_tokens
    series = await world.metric("penstock_tenant_tokens_total", tenant="alpha", kind="estimated")
    assert series == await world.metric("penstock_tenant_service_tokens_total", tenant="alpha")
    assert series == total["estimated_tokens"], "the metrics have what the ledger has"


@pytest.mark.virtual_time
@pytest.mark.parametrize("waits_s", [0.0, 20.0])
async def test_a_whole_answer_given_up_after_its_predicted_prefill_is_estimated(
    world: World, tmp_path: Path, waits_s: float
) -> None:
    """Nothing of it was seen, but its engine had begun: its prompt counts, and the output that was predicted."""
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        while not (await peer.request()).startswith(b"POST"):
            await peer.send(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n")
        seen.set()
        await peer.request()  # which ends with the connection

    raw = await world.beside(RawEngine(script))
    await gateway(world, tmp_path, endpoints=[{"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 1}])
    client = await world.client_for(chat(tokens=50), by_key("alpha"))
    await seen.wait()
    await asyncio.sleep(waits_s)
    client.hang_up()
    total = (await until_used(world, 1))["total"]
    assert (total["reasons"], total["unreported"]) == ({"client_gone": 1}, 1 if waits_s else 0)
    assert (total["prompt_tokens"], total["completion_tokens"]) == (0, 0)
    counted = [await world.metric("penstock_tokens_total", model="sim", kind=kind) for kind in ("prompt", "completion")]
    assert [tokens > 0 for tokens in counted] == [waits_s > 0] * 2
    assert sum(counted) == total["estimated_tokens"]
    assert await world.metric("penstock_tenant_tokens_total", tenant="alpha", kind="estimated") == sum(counted)


async def test_a_client_that_hangs_up_before_its_first_token_used_nothing(world: World, tmp_path: Path) -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        while not (await peer.request()).startswith(b"POST"):
            await peer.send(b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n")
        seen.set()
        await peer.request()  # which ends with the connection

    raw = await world.beside(RawEngine(script))
    endpoints = [{"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 1}]
    await gateway(world, tmp_path, endpoints=endpoints)
    running = await world.client_for(chat(tokens=500, stream=True), by_key("alpha"))
    await seen.wait()
    waiting = await world.client_for(chat(tokens=500), by_key("alpha"))
    await world.until(lambda: world.picture().waiting == 1)
    waiting.hang_up()
    await world.until(lambda: world.picture().waiting == 0)
    running.hang_up()
    total = (await until_used(world, 2))["total"]
    assert total["reasons"] == {"client_gone": 1, "cancelled": 1}
    assert (total["prompt_tokens"], total["completion_tokens"], total["estimated_tokens"]) == (0, 0, 0)
    assert await world.metric("penstock_tenant_service_tokens_total", tenant="alpha") == 0


async def test_the_ledger_survives_a_restart_and_counts_on(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    await world.chat_with(by_key("alpha"), tokens=4)
    await until_used(world, 1)
    await world.end_gateway()
    await gateway(world, tmp_path)
    await world.chat_with(by_key("alpha"), tokens=4)
    total = (await until_used(world, 2))["total"]
    assert total["completion_tokens"] == 8


async def test_costs_are_the_operators_own_and_follow_a_reload(world: World, tmp_path: Path) -> None:
    await world.engine()
    prices = {"sim": {"prompt": 1_000_000, "cached_prompt": 0, "completion": 2_000_000}}
    await gateway(world, tmp_path, usage={"prices": prices})
    answer = (await world.chat_with(by_key("alpha"), tokens=4)).json()
    total = (await until_used(world, 1))["total"]
    assert total["cost"] == answer["usage"]["prompt_tokens"] - total["cached_tokens"] + 8
    world.document["usage"] = {"prices": {"*": {"completion": 500_000}}}
    assert (await world.ask("POST", "/admin/reload")).status == 200
    assert (await used(world))["total"]["cost"] == 2


async def test_callers_without_a_tenant_are_users_of_one(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    for name in ("mine", "yours"):
        await world.chat_with({"x-tenant-id": name})
    told = await until_used(world, 2, "by=tenant,user")
    assert sorted((row["tenant"], row["user"]) for row in told["rows"]) == [
        ("anonymous", "mine"),
        ("anonymous", "yours"),
    ]


async def test_a_model_that_nobody_serves_is_no_row_of_its_own(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    for name in ("x1", "x2", "x3"):
        assert (await world.chat_with(by_key("alpha"), model=name)).status == 404
    told = await until_used(world, 3, "by=model")
    assert [(row["model"], row["reasons"]) for row in told["rows"]] == [("other", {"model_not_found": 3})]


async def test_a_question_may_go_back_further_than_time(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    await world.chat_with(by_key("alpha"))
    told = await until_used(world, 1, "from=999999d&by=")
    assert (told["from"], told["rows"]) == ("1970-01-01T00:00:00Z", [{**told["total"]}])


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("from=yesterday", "from: `yesterday` is not a date or time: write 2026-11-25"),
        ("to=2026-13-01", "to: `2026-13-01` is not a date or time"),
        ("from=2026-11-25&to=2026-11-24", "`from` is not before `to`."),
        ("by=team", "by: `team` is none of hour, day, month, tenant, key, user, model, endpoint, reason."),
        ("by=hour,day", "`hour` and `day` exclude each other"),
        ("form=1h", "`form` is none of `from`, `to`, `month`, `by`, `tenant`, `key`, `user`."),
        ("by=key&by=model", "`by` is given twice."),
        ("by=month,day", "`day` and `month` exclude each other"),
        ("month=2026-13", "month: `2026-13` is not a month: write 2026-11, `this` or `last`."),
        ("month=next", "month: `next` is not a month"),
        ("month=0000-01", "month: `0000-01` is not a month"),
        ("month=last&from=7d", "`month` is given beside `from` or `to`."),
        ("to=2026-00", "to: `2026-00` is not a date or time: write 2026-11-25, 2026-11-25T14:00:00Z, 2026-11, or"),
    ],
)
async def test_a_wrong_query_gets_the_reason(world: World, tmp_path: Path, query: str, says: str) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    answer = await world.ask("GET", f"/admin/usage?{query}")
    assert answer.status == 400
    assert says in answer.error()["message"]


async def test_in_postgresql_two_gateways_add_to_one_ledger(world: World) -> None:
    postgres.require()
    with postgres.server() as url:
        postgres.fresh(url)
        await world.engine()
        for _ in range(2):
            await world.gateway(store=url, tenants=TENANTS)
            await world.chat_with(by_key("alpha"), tokens=4)
            await until_used(world, 1, "by=day,tenant,model,reason")
            await world.end_gateway()
        await world.gateway(store=url, tenants=TENANTS)
        assert (await used(world))["total"]["completion_tokens"] == 8


async def printed(capsys: pytest.CaptureFixture[str], world: World, *arguments: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, ["usage", "--url", world.url, *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(
    ("price", "cost", "shown"),
    [
        (24.5, "0.000098", "0.000098"),
        (0.5, "0.000002", "0.000002"),
        (6592.25, "0.026369", "0.0264"),
        (125_000, "0.5", "0.5"),
        (3e12, "12000000.0", "12,000,000.00"),
    ],
)
async def test_money_is_printed_without_exponents(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], price: float, cost: str, shown: str
) -> None:
    await world.engine()
    await gateway(world, tmp_path, usage={"prices": {"sim": {"completion": price}}})
    await world.chat_with(by_key("alpha"), tokens=4)
    await until_used(world, 1)
    _, table, _ = await printed(capsys, world)
    assert [line.split()[-1] for line in table.splitlines()[2:]] == [shown, shown]
    _, told, _ = await printed(capsys, world, "--csv")
    (row,) = csv.DictReader(told.splitlines())
    assert (row["cost"], row["interrupted_cost"]) == (cost, "0.0")


async def test_the_command_prints_a_table_csv_or_json(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.engine()
    await gateway(world, tmp_path, usage={"prices": {"sim": {"completion": 250_000}}})
    for name, user in (("alpha", "=cmd"), ("beta", "bo")):
        await world.chat_with(by_key(name, **{"x-user-id": user}), tokens=4)
    await until_used(world, 2)
    code, table, _ = await printed(capsys, world)
    assert code == 0
    lines = table.splitlines()
    assert lines[1].split() == [
        *("tenant", "model", "requests", "answered", "prompt", "completion", "lease", "s", "cost"),
    ]
    assert [line.split()[0] for line in lines[2:]] == ["alpha", "beta", "total"]
    assert lines[4].split()[-1] == "2.00"
    _, shown, _ = await printed(capsys, world, "--csv", "--by", "user", "--from", "7d")
    rows = list(csv.DictReader(shown.splitlines()))
    assert {row["user"]: row["completion_tokens"] for row in rows} == {"'=cmd": "4", "bo": "4"}
    _, shown, _ = await printed(capsys, world, "--json", "--tenant", "beta", "--by", "")
    assert json.loads(shown)["total"]["requests"] == 1
    code, _, wrong = await printed(capsys, world, "--by", "team")
    assert (code, wrong) == (
        1,
        "penstock: by: `team` is none of hour, day, month, tenant, key, user, model, endpoint, reason.\n",
    )


@pytest.mark.parametrize("ends", ["client_gone", "stream_broken"])
async def test_the_scheduler_charges_for_a_cut_answer_what_the_ledger_has(
    world: World, tmp_path: Path, workers: int, ends: str
) -> None:
    engine = await world.engine(step_s=0.001)
    await gateway(world, tmp_path, workers=workers)
    client = await world.client(request(body=chat(tokens=4000, stream=True), headers=by_key("alpha")))
    await client.head()
    data = b""
    while data.count(b"data: ") < 14:  # fewer than the steps in which a worker or a journey reports them
        data += await client.piece()
    if ends == "client_gone":
        client.hang_up()
    else:
        await engine.close()
        while await client.piece():
            pass
    told = await until_used(world, 1)
    assert told["total"]["reasons"] == {ends: 1}
    await world.until(lambda: not world.picture().running)
    driver = world.gate.driver
    (row,) = driver.scheduler.requests(now=driver.now())
    assert row.output_tokens >= 13
    assert row.prompt_tokens + row.output_tokens == told["total"]["interrupted_tokens"]
