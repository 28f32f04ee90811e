"""The bill: a month of three teams is what their answers reported, for operators and for each team alone."""

from __future__ import annotations

import asyncio
import csv
import json
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.batch.store.sqlite import SqliteStore
from penstock.batch.values import UsageRow
from penstock.cli.main import main
from penstock.gateway.admin.routes import AdminError
from penstock.gateway.identity.callers import key_hash
from penstock.gateway.usage.report import question
from tests.gateway.conftest import Answer, World, chat, fault
from tests.gateway.usage.test_usage import until_used

TEAMS = ("chat", "research", "nightly")
KEYS = {team: f"pk-{team}-key" for team in TEAMS}
TENANTS: list[dict[str, Any]] = [
    {"name": team, "keys": [{"hash": key_hash(key), "name": f"{team}-key"}]} for team, key in KEYS.items()
]
OPEN = {"name": "open"}  # a tenant without keys
PRICES = {"sim": {"prompt": 250_000, "cached_prompt": 0, "completion": 1_000_000}}
FIGURES = ("prompt_tokens", "completion_tokens")


def by(team: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[team]}", **more}


def this_month() -> str:
    return datetime.now(UTC).strftime("%Y-%m")


async def gateway(world: World, folder: Path, **settings: Any) -> None:
    await world.gateway(**{"store": str(folder), "tenants": [*TENANTS, OPEN], "usage": {"prices": PRICES}, **settings})


async def printed(capsys: pytest.CaptureFixture[str], world: World, *arguments: str) -> list[dict[str, str]]:
    assert await asyncio.to_thread(main, ["usage", "--url", world.url, "--csv", *arguments]) == 0
    return list(csv.DictReader(capsys.readouterr().out.splitlines()))


async def own(world: World, team: str, query: str = "") -> Answer:
    return await world.ask("GET", f"/usage?{query}", headers=by(team))


async def one(world: World, team: str, number: int, *, streams: bool) -> dict[str, int]:
    """Ask once; returns the usage that the answer reports."""
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
    client = await world.client_for(chat(f"{team} {number % 3} " * 20, tokens=1 + number % 5, **more), by(team))
    answer = await client.answer()
    client.hang_up()
    assert answer.status == 200, answer
    usage: dict[str, int] = (answer.events()[-1] if streams else answer.json())["usage"]
    return usage


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_month_of_three_teams_as_csv_is_what_their_answers_reported(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    for _ in range(2):
        await world.engine()
    await gateway(world, tmp_path, workers=workers)
    draw = random.Random(20261126)
    asked = [(draw.choices(TEAMS, (5, 3, 1))[0], number, draw.random() < 0.5) for number in range(90)]
    told: dict[str, list[dict[str, int]]] = {team: [] for team in TEAMS}
    for at in range(0, len(asked), 15):
        some = asked[at : at + 15]
        answers = await asyncio.gather(*[one(world, team, number, streams=streams) for team, number, streams in some])
        for (team, _, _), usage in zip(some, answers, strict=True):
            told[team].append(usage)
    await until_used(world, 90, "month=this")
    rows = await printed(capsys, world, "--month", "this", "--by", "month,tenant")
    assert {(row["month"], row["tenant"]) for row in rows} == {(this_month(), team) for team in TEAMS}
    for row in rows:
        usages = told[row["tenant"]]
        assert int(row["requests"]) == int(row["answered"]) == len(usages)
        for figure in FIGURES:
            assert int(row[figure]) == sum(usage[figure] for usage in usages), (row["tenant"], figure)
        cached = int(row["cached_tokens"])
        assert (int(row["estimated_tokens"]), int(row["interrupted"])) == (0, 0)
        assert float(row["cost"]) == (int(row["prompt_tokens"]) - cached) / 4 + int(row["completion_tokens"])
        answer = await own(world, row["tenant"], f"month={this_month()}&format=csv")
        assert answer.header("content-type") == "text/csv; charset=utf-8; header=present"
        (mine,) = csv.DictReader(answer.body.decode().splitlines())
        assert mine == {name: value for name, value in row.items() if name != "tenant"}


def seeded(folder: Path, months: Sequence[str], teams: Sequence[str] = TEAMS) -> None:
    """A store with one request of each team on the last hour of each month, of 100, 200 … prompt tokens."""
    store = SqliteStore(folder)
    for number, month in enumerate(months, 1):
        year, at = map(int, month.split("-"))
        ends = datetime(year + at // 12, at % 12 + 1, 1, tzinfo=UTC)
        hour = int(ends.timestamp()) // 3600 - 1
        rows = [
            UsageRow(hour, team, f"{team}-key", "u", "sim", "e", "", 1, 100 * number, 0, 1, 0, 0, 1.0, 0, 0.0)
            for team in teams
        ]
        store.add_usage("w", number, rows, 0.0)
    store.close()


def before(month: str, so_many: int) -> str:
    year, at = map(int, month.split("-"))
    months = year * 12 + at - 1 - so_many
    return f"{months // 12}-{months % 12 + 1:02}"


async def test_months_are_rows_and_a_month_is_asked_for_by_name(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    months = [before(this_month(), ago) for ago in (13, 11, 2, 1)]
    seeded(tmp_path, months)
    await world.engine()
    await gateway(world, tmp_path, usage={"keep": "800d"})
    rows = await printed(capsys, world, "--by", "month", "--tenant", "chat")
    assert [(row["month"], row["prompt_tokens"]) for row in rows] == list(
        zip(months[1:], ("200", "300", "400"), strict=True)
    ), "twelve months, this one included"
    rows = await printed(capsys, world, "--by", "month", "--from", months[0], "--to", months[2])
    assert [(row["month"], row["prompt_tokens"]) for row in rows] == list(
        zip(months[:3], ("300", "600", "900"), strict=True)
    )
    assert [row["prompt_tokens"] for row in await printed(capsys, world, "--month", "last", "--by", "tenant")] == [
        "400"
    ] * 3
    assert await printed(capsys, world, "--month", before(this_month(), 3)) == []
    # More than a month is divided by it, unless the operator names a time or wants the sum.
    rows = await printed(capsys, world, "--from", months[1], "--by", "tenant", "--tenant", "chat")
    assert [(row["month"], row["tenant"], row["prompt_tokens"]) for row in rows] == [
        (months[1], "chat", "200"),
        (months[2], "chat", "300"),
        (months[3], "chat", "400"),
    ]
    assert {row["month"] for row in await printed(capsys, world, "--from", months[1])} == set(months[1:])
    for words in (("--from", months[3], "--to", months[3], "--by", "tenant"), ("--from", months[0], "--by", "")):
        assert all("month" not in row for row in await printed(capsys, world, *words))
    assert "month" not in (await printed(capsys, world, "--from", months[0], "--by", "day,tenant"))[0]
    told = (await own(world, "research")).json()
    assert (told["tenant"], told["by"]) == ("research", ["month"])
    assert [(row["month"], row["requests"]) for row in told["rows"]] == [(month, 1) for month in months[1:]]


@pytest.mark.parametrize(
    ("query", "now", "since", "until"),
    [
        ("month=2026-11", "2026-11-26T12:00", "2026-11-01T00:00", "2026-12-01T00:00"),
        ("month=2026-12", "2027-01-26T12:00", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("month=2028-02", "2028-03-01T00:00", "2028-02-01T00:00", "2028-03-01T00:00"),
        ("month=last", "2027-01-01T00:00", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("month=last", "2026-12-31T23:59", "2026-11-01T00:00", "2026-12-01T00:00"),
        ("month=this", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("from=2026-09&to=2026-10", "2026-11-26T12:00", "2026-09-01T00:00", "2026-11-01T00:00"),
        ("from=2026-11", "2026-11-26T12:00", "2026-11-01T00:00", "2026-11-26T12:00"),
        ("by=month", "2026-11-26T12:30", "2025-12-01T00:00", "2026-11-26T13:00"),
        ("by=month&to=2026-06", "2026-11-26T12:30", "2025-07-01T00:00", "2026-07-01T00:00"),
        ("by=tenant", "2026-11-26T12:00", "2026-11-25T12:00", "2026-11-26T12:00"),
    ],
)
def test_months_begin_and_end_by_the_calendar(query: str, now: str, since: str, until: str) -> None:
    def hour(written: str) -> int:
        return int(datetime.fromisoformat(f"{written}+00:00").timestamp()) // 3600

    asked = question(query, datetime.fromisoformat(f"{now}+00:00").timestamp())
    assert (asked.since, asked.until) == (hour(since), hour(until))


@pytest.mark.parametrize("query", ["month=9999-12", "from=1970-01&to=1970-01", "by=month&from=999999d", "to=1970-01"])
def test_the_ends_of_time_are_months_like_others(query: str) -> None:
    asked = question(query, 1_795_000_000.0)
    assert 0 <= asked.since < asked.until


@pytest.mark.parametrize("month", ["1960-05", "2026-1", "2026-011", "", "10000-01", "２０26-01"])
def test_what_is_no_month_of_the_ledger_is_refused(month: str) -> None:
    for query in (f"month={month}", f"from={month}"):
        with pytest.raises(AdminError):
            question(query, 1_795_000_000.0)


# --- never another tenant's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer pk-nobody"}, 401),
        ({"x-tenant-id": "open"}, 401),
        ({"x-tenant-id": "chat"}, 401),
    ],
)
async def test_only_a_key_sees_the_use_of_its_tenant(
    world: World, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    seeded(tmp_path, [this_month()], [*TEAMS, "open"])
    await world.engine()
    await gateway(world, tmp_path)
    answer = await world.ask("GET", "/usage", headers=headers)
    assert (answer.status, b"prompt_tokens" in answer.body) == (status, False), answer


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("tenant=research", "`tenant` is none of `from`, `to`, `month`, `by`, `format`."),
        ("key=research-key", "`key` is none of"),
        ("user=u", "`user` is none of"),
        ("by=tenant", "by: `tenant` is none of hour, day, month, key, model, reason."),
        ("by=user", "by: `user` is none of"),
        ("by=endpoint", "by: `endpoint` is none of"),
        ("format=xml", "`format` is none of json, csv."),
        ("month=never", "month: `never` is not a month"),
    ],
)
async def test_a_key_can_not_ask_for_others(world: World, tmp_path: Path, query: str, says: str) -> None:
    seeded(tmp_path, [this_month()])
    await world.engine()
    await gateway(world, tmp_path)
    answer = await own(world, "chat", query)
    assert (answer.status, says in answer.error()["message"]) == (400, True), answer


async def test_two_tenants_that_ask_alike_get_their_own(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    used = {
        team: [await one(world, team, n, streams=False) for n in range(number)] for number, team in enumerate(TEAMS)
    }
    await until_used(world, 3)
    for team, usages in used.items():
        for headers in (by(team), by(team, **{"x-tenant-id": "research"})):
            answer = await world.ask("GET", "/usage?by=key,model", headers=headers)
            (row,) = answer.json()["rows"] or [{"key": f"{team}-key", "requests": 0, "prompt_tokens": 0}]
            assert (row["key"], row["requests"]) == (f"{team}-key", len(usages))
            assert row["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages)
    assert set(json.loads((await own(world, "chat")).body)) == {"tenant", "from", "to", "by", "rows", "total"}


async def test_each_key_reads_the_use_of_all_keys_of_its_tenant(world: World, tmp_path: Path) -> None:
    await world.engine()
    keys = {name: {"authorization": f"Bearer pk-{name}"} for name in ("ann", "bob")}
    named = [{"hash": key_hash(f"pk-{name}"), "name": name} for name in keys]
    await gateway(world, tmp_path, tenants=[{"name": "team", "keys": named}, *TENANTS])
    for name in ("ann", "bob", "bob"):
        assert (await world.chat_with(keys[name])).status == 200
    await until_used(world, 3)
    for headers in keys.values():
        answer = (await world.ask("GET", "/usage?by=key", headers=headers)).json()
        assert {row["key"]: row["requests"] for row in answer["rows"]} == {"ann": 1, "bob": 2}
        assert answer["total"]["requests"] == 3


async def test_without_a_ledger_a_key_is_told_so(world: World) -> None:
    await world.engine()
    await world.gateway(store=False, tenants=TENANTS)
    answer = await own(world, "chat")
    assert (answer.status, answer.error()["code"]) == (404, "no_ledger")


async def test_a_browser_gets_the_page_that_asks_with_a_key(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    answer = await world.ask("GET", "/usage", headers={"accept": "text/html"})
    assert (answer.status, answer.header("content-type")) == (200, "text/html; charset=utf-8")
    assert b"chat" not in answer.body


# --- answers that broke off -----------------------------------------------------------------------------------------


async def test_what_an_interrupted_answer_used_is_booked_and_priced(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    await gateway(world, tmp_path)
    client = await world.client_for(chat(tokens=500, stream=True), by("chat"))
    await client.begun()
    await client.piece()
    client.hang_up()
    await until_used(world, 1)
    await one(world, "chat", 1, streams=True)
    total = (await until_used(world, 2))["total"]
    seen = len(re.findall(rb'"content":"[^"]', client.seen))
    assert seen >= 1
    assert (total["requests"], total["answered"], total["interrupted"]) == (2, 1, 1)
    assert total["interrupted_tokens"] == total["estimated_tokens"] >= seen
    prompt_tokens = (total["interrupted_cost"] - total["interrupted_tokens"]) / (0.25 - 1.0)
    generated = total["interrupted_tokens"] - prompt_tokens
    assert prompt_tokens == int(prompt_tokens) > 0
    assert seen <= generated <= seen + 20, "what was on its way when the client hung up"
    (row,) = (await own(world, "chat", "by=month")).json()["rows"]
    assert row["interrupted_cost"] == total["interrupted_cost"]


async def test_an_engine_that_dies_in_an_answer_interrupts_it(world: World, tmp_path: Path) -> None:
    engine = await world.engine()
    await gateway(world, tmp_path)
    fault(engine, "abort", after_bytes=700)
    client = await world.client_for(chat(tokens=200, stream=True), by("chat"))
    await client.begun()
    await client.whole()
    total = (await until_used(world, 1))["total"]
    assert (total["reasons"], total["interrupted"]) == ({"stream_broken": 1}, 1)
    assert total["interrupted_tokens"] > 0
    assert total["interrupted_cost"] > 0


async def test_a_refusal_and_an_answer_without_usage_are_not_interrupted(world: World, tmp_path: Path) -> None:
    engine = await world.engine()
    await gateway(world, tmp_path)
    assert (await world.ask(body=b"{", headers=by("chat"))).status == 400
    fault(engine, "no_usage")
    await (await world.client_for(chat(tokens=6, stream=True), by("chat"))).answer()
    total = (await until_used(world, 2))["total"]
    assert total["estimated_tokens"] > 0
    assert [total[name] for name in ("interrupted", "interrupted_tokens", "interrupted_cost")] == [0, 0, 0]
