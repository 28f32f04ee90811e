"""`penstock sessions`: what an operator sees of agents' sessions, and does to them."""

from __future__ import annotations

import asyncio
import json
import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from penstock.cli import main as cli
from penstock.cli.top import views
from tests.gateway.conftest import Client, World

KV_TOKENS = 4_000
WORDS = "word " * 2_000  # 10 KB: about 2,500 tokens, so one session fits, and not two


async def run(world: World, *words: str) -> int:
    return await asyncio.to_thread(cli.main, [*words, "--url", world.url])


def turn(tenant: str, session: str) -> tuple[dict[str, Any], dict[str, str]]:
    body = {"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": f"{session} {WORDS}"}]}
    return body, {"x-session-id": session, "x-tenant-id": tenant}


async def full(world: World) -> Client:
    """One session of team-a holds the memory, and a second one waits for it."""
    engine = await world.engine()
    await world.gateway(
        endpoints=[{"url": engine.url, "name": "one", "slots": 4, "kv_tokens": KV_TOKENS}],
    )
    body, headers = turn("team-a", "first")
    assert (await (await world.client_for(body, headers)).answer()).status == 200
    waits = await world.client_for(*turn("team-a", "second"))
    await world.until(lambda: world.picture().waiting == 1)
    return waits


async def test_sessions_are_listed_with_the_memory_they_hold(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await full(world)
    assert await run(world, "sessions", "ls", "-o", "wide") == 0
    out = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[1].startswith("second team-a waiting 0 "), out
    assert lines[2].startswith("first team-a idle 1 "), out
    assert lines[3].startswith("1 hold memory, 1 wait for at most 5"), "five minutes"
    assert lines[4].startswith("one: ")
    assert "of 4,000 tokens held" in lines[4]
    assert await run(world, "sessions", "list", "--state", "idle", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(row["session"], row["endpoint"]) for row in told["sessions"]] == [("first", "one")]
    assert told["sums"]["memory"][0]["tenants"].keys() == {"team-a"}


@pytest.mark.parametrize(
    ("name", "width", "heads"),
    [
        ("refactor", 80, ["session", "tenant", "state", "turns", "tokens", "waits", "about", "endpoint"]),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", 80, ["session", "tenant", "state", "tokens", "waits"]),
        ("0f8fad5b-d9cb-469f-a165-70867728950e" * 2, 80, ["session", "state"]),
        ("0f8fad5b-d9cb-469f-a165-70867728950e" * 3, 80, ["session", "state"]),
        ("0f8fad5b-d9cb-469f-a165-70867728950e", 120, ["session", "tenant", "state", "turns", "tokens", "waits"]),
    ],
)
def test_a_list_of_sessions_has_whole_columns(name: str, width: int, heads: list[str]) -> None:
    """Eight columns beside a UUID were squeezed until none could be read."""
    row = {"session": name, "tenant": "a-long-tenant", "state": "waiting", "stopped": False, "endpoint": None}
    row |= {"origin": "gpu-0:8000", "turns": 12, "tokens": 83_000, "waits_s": 253.0, "expected_s": 47.0}
    out = StringIO()
    Console(file=out, width=width).print(views.sessions([row, row], width))
    first, *lines = out.getvalue().splitlines()
    assert first.split()[: len(heads)] == heads
    assert "…" not in out.getvalue()
    assert "".join(line.partition(" ")[0] for line in lines) == name * 2, "`sessions show` takes it"


async def test_small_sessions_are_not_called_paused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    engine = await world.engine()
    await world.gateway(endpoints=[{"url": engine.url, "name": "one", "slots": 4, "kv_tokens": 2_000_000}])
    headers = {"x-session-id": "small", "x-tenant-id": "team-a"}
    assert (await (await world.client_for(turn("team-a", "small")[0], headers)).answer()).status == 200
    assert await run(world, "sessions", "ls") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1].startswith("small team-a passing 1 ")
    assert await run(world, "sessions", "ls", "--state", "paused", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sessions"] == []


async def test_a_session_is_preferred_paused_and_resumed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    waits = await full(world)
    assert await run(world, "sessions", "show", "second") == 0
    out = capsys.readouterr().out
    assert out.startswith("second of team-a: waiting for ")
    assert "\n  waiting: " in out
    assert await run(world, "sessions", "show", "first") == 0
    out = capsys.readouterr().out
    used = re.search(r"1 turn answered; used ([\d,]+) prompt tokens \(0 cached\), 4 completion tokens;", out)
    assert used is not None
    assert int(used[1].replace(",", "")) > 2_000
    assert await run(world, "sessions", "pause", "second") == 0
    assert "waiting (an operator paused it)" in capsys.readouterr().out
    assert await run(world, "sessions", "prefer", "second") == 1
    assert "does not wait for memory: an operator paused it" in capsys.readouterr().err
    assert await run(world, "sessions", "pause", "first") == 0
    capsys.readouterr()
    assert world.picture().waiting == 1, "its memory is free, and the session is paused all the same"
    assert await run(world, "sessions", "resume", "second") == 0
    assert (await waits.answer()).status == 200
    assert await run(world, "sessions", "resume", "first") == 0
    assert await run(world, "sessions", "prefer", "first") == 1
    assert "does not wait for memory: it is paused" in capsys.readouterr().err


async def test_a_name_of_two_tenants_has_to_be_told_apart(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await full(world)
    assert (await (await world.client_for(*turn("team-b", "second"))).answer()).status == 200, "it held nothing"
    assert await run(world, "sessions", "show", "second") == 1
    assert "name one by --tenant (team-a, team-b)" in capsys.readouterr().err
    assert await run(world, "sessions", "show", "second", "--tenant", "team-b") == 0
    assert "1 turn answered" in capsys.readouterr().out
    assert await run(world, "sessions", "show", "nobody") == 1
    assert "no session `nobody` is known" in capsys.readouterr().err


async def test_what_cannot_be_asked_is_refused(world: World) -> None:
    await world.gateway(endpoints=[])
    for query in ("state=asleep", "limit=0", "limit=1001", "limit=x"):
        assert (await world.ask("GET", f"/admin/sessions?{query}")).status == 400
    assert (await world.ask("GET", "/admin/sessions/team-a/none")).status == 404
    assert (await world.ask("POST", "/admin/sessions/team-a/none/pause")).status == 404
