"""The log: lines for people or programs, one per event whatever names are in it, and never a secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterable
from typing import Any

import pytest

from penstock import logs
from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import World, chat

NASTY = "<script>alert(1)</script>\u202e\n{}" + "x" * 10_000
PROMPT = "the prompt that nobody may read"
KEY = "pk-" + "s" * 43


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def access(log: io.StringIO) -> list[dict[str, Any]]:
    return [line for line in lines(log) if line["logger"] == "penstock.access"]


async def test_a_request_is_one_line_when_it_is_over(world: World, log: io.StringIO) -> None:
    engine = await world.engine()
    await world.gateway(log={"access": True, "format": "json"})
    await world.chat_with({"x-request-id": "r1", "x-tenant-id": "team"}, content=PROMPT, tokens=4)
    await world.ask(body=chat(model="nobody"), headers={"x-request-id": "r2"})
    await world.until(lambda: len(access(log)) == 2)
    first, second = access(log)
    times = {key: first.pop(key) for key in ("at", "message", "queue_ms", "ttft_ms", "total_ms")}
    assert 0 <= times["queue_ms"] <= times["ttft_ms"] <= times["total_ms"] < 10_000
    assert first == {
        "level": "info",
        "logger": "penstock.access",
        "request_id": "r1",
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "model": "sim",
        "instead_of": None,
        "tenant": "team",
        "band": "standard",
        "endpoint": engine.url[7:],
        "attempts": None,
        "outcome": "completed",
        "reason": None,
        "limit": None,
        "tokens": 4,
    }
    assert times["message"].startswith("request_id=r1 client=127.0.0.1 method=POST path=/v1/chat/completions ")
    assert (second["request_id"], second["status"], second["reason"]) == ("r2", 404, "model_not_found")


async def test_without_access_lines_there_are_none_and_a_reload_brings_them(world: World, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway()
    await world.chat()
    assert "penstock.access" not in log.getvalue()
    world.document["log"] = {"access": True, "format": "json"}
    await world.gate.reload()
    log.truncate(0)
    log.seek(0)
    await world.chat()
    await world.until(lambda: len(access(log)) == 1)


@pytest.mark.parametrize("form", ["text", "json"])
async def test_names_from_outside_stay_on_their_line(world: World, log: io.StringIO, form: logs.Format) -> None:
    await world.engine()
    await world.gateway(log={"access": True, "format": form})
    headers = {"x-tenant-id": "<b>\u00e9\u00ff", "x-request-id": "a b", "x-penstock-band": "<i>"}
    await world.ask(body={**chat(), "model": NASTY, "user": NASTY}, headers=headers)
    await world.ask("POST", "/admin/pause", {"model": NASTY})
    await world.ask("POST", "/admin/resume", {})
    logging.getLogger("x").info("two\nlines\r%s", NASTY)
    await world.until(lambda: "penstock.access" in log.getvalue())
    for line in log.getvalue().splitlines():
        assert "\u202e" not in line
        if form == "json":
            json.loads(line)
        else:
            assert line[:2] == "20", line[:80]


def record(message: str, *args: object, at_s: float, level: int = logging.WARNING, line: int = 1) -> logging.LogRecord:
    made = logging.LogRecord("penstock.x", level, "x.py", line, message, args, None)
    made.created = at_s
    return made


def shown(limit: logs.Limit, records: Iterable[logging.LogRecord]) -> list[str]:
    return [one.getMessage() for one in records if limit.filter(one)]


def test_a_statement_writes_a_burst_and_then_six_lines_a_minute_that_count_the_rest() -> None:
    limit = logs.Limit()
    lines = shown(limit, (record("a stranger came from %s", at / 100, at_s=at / 100) for at in range(6_000)))
    assert len(lines) == 20 + 5
    assert lines[19] == "a stranger came from 0.19"
    assert re.search(r" \((979|980|981) lines like this were left out\)$", lines[20])
    [much_later] = shown(limit, [record("a stranger came from %s", "x", at_s=1_000.0)])
    assert much_later.startswith("a stranger came from x (")


def test_other_statements_and_notes_are_not_held_back_by_a_flood() -> None:
    limit = logs.Limit()
    shown(limit, (record("a stranger came from %s", at, at_s=0.0) for at in range(1_000)))
    assert shown(limit, [record("the store is down: %s", "x", at_s=0.0)]) == ["the store is down: x"]
    notes = (record("endpoint %s added", at, at_s=0.0, level=logging.INFO) for at in range(900))
    assert len(shown(limit, notes)) == 900, "a large pool comes at once"


def test_messages_that_hold_names_are_told_apart_by_their_statement() -> None:
    """As asyncio writes them: text made before it is logged, of objects with addresses."""
    limit = logs.Limit()
    assert len(shown(limit, (record(f"Exception in <at {at}>", at_s=0.0, line=7) for at in range(5_000)))) == 20
    assert len(shown(limit, [record("Exception in <at 1>", at_s=0.0, line=8)])) == 1


def test_the_table_of_statements_is_bounded() -> None:
    limit = logs.Limit()
    for line in range(5_000):
        limit.filter(record("x", at_s=0.0, line=line))
    assert len(limit._buckets) <= 1_000


async def test_tracebacks_are_limited_too(log: io.StringIO) -> None:
    for _ in range(100):
        asyncio.get_running_loop().call_exception_handler({"message": "x", "exception": ValueError("y")})
    assert log.getvalue().count("ValueError: y") <= 21


async def test_no_secret_is_in_any_log_page_or_metric(world: World, log: io.StringIO) -> None:
    """Keys, tokens, prompts and answers; also where something goes wrong, and at the log's most talkative."""
    engine = await world.engine()
    secrets = {"engine": "engine-s3cret", "token": "admin-t0ken", "read": "read-t0ken", "caller": "callers-0wn"}
    await world.gateway(
        endpoints=[{"url": engine.url, "slots": 1, "api_key": secrets["engine"]}],
        tenants=[{"name": "team", "keys": [key_hash(KEY)]}],
        admin={"token": secrets["token"], "read_token": secrets["read"]},
        log={"access": True},
    )
    with_key, admin = {"authorization": f"Bearer {KEY}"}, {"authorization": f"Bearer {secrets['token']}"}
    assert (await world.chat_with(with_key, content=PROMPT)).status == 200
    assert (await world.chat_with({"x-api-key": secrets["caller"]}, content=PROMPT)).status == 200
    assert (await world.chat_with({"authorization": "Bearer pk-" + "w" * 43}, content=PROMPT)).status == 401
    assert (await world.ask(body=b'{"model": 1, "messages": ["' + PROMPT.encode() + b'"]}')).status == 400
    stream = await world.client_for(chat(PROMPT, tokens=400, stream=True), {**with_key, "x-request-id": "running"})
    await stream.begun()
    waiter = await world.client_for(chat(PROMPT), {**with_key, "x-request-id": "waiting"})
    await world.until(lambda: world.picture().waiting == 1)
    assert (await world.ask("GET", "/admin/state", headers={"authorization": "Bearer wrong-t0ken"})).status == 401
    world.document["admin"] = {"token": secrets["token"], "read_token": "other-t0ken"}
    world.document["retry"] = {"budget": "not-a-number"}
    await world.ask("POST", "/admin/reload", headers=admin)
    del world.document["retry"]
    assert (await world.ask("POST", "/admin/reload", headers=admin)).status == 200
    add = {"url": engine.url, "name": "again", "api_key": secrets["engine"]}
    assert (await world.ask("POST", "/admin/endpoints", add, admin)).status == 409
    pages = [
        (await world.ask("GET", path, headers=admin)).body.decode()
        for path in (
            *("/admin/state", "/admin/history", "/admin/endpoints", "/admin/requests/waiting"),
            *("/admin/requests/running", "/metrics", "/ready", "/version", "/v1/models", "/queue"),
        )
    ]
    stream.hang_up()
    assert (await waiter.answer()).status == 200
    assert "retry.budget" in pages[0]
    assert "not-a-number" not in pages[0], "it could be a secret, and whoever may look may look here"
    text = "\n".join([*pages, log.getvalue()])
    assert "waiting" in text, "something was said at all"
    for secret in (PROMPT, KEY, key_hash(KEY)[7:], *secrets.values(), "w" * 43, "wrong-t0ken", "other-t0ken"):
        assert secret not in text, secret


async def test_nobody_writes_fields_of_the_access_log(world: World, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway(log={"access": True})
    await world.ask(body=chat(), headers={"x-request-id": "a status=999 tenant=boss", "x-tenant-id": 'b "c" d=e'})
    await world.until(lambda: " INFO penstock.access " in log.getvalue())
    said = log.getvalue().partition(" INFO penstock.access ")[2].splitlines()[0]
    assert said.startswith('request_id="a status=999 tenant=boss" client=127.0.0.1 method=POST ')
    assert ' tenant="b \\"c\\" d=e" ' in said
    assert said.count(" status=") == 2
    assert re.findall(r"(?: |^)(\w+)=(?:\"(?:[^\"\\]|\\.)*\"|\S+)", said)[:5] == [
        "request_id",
        "client",
        "method",
        "path",
        "status",
    ]
