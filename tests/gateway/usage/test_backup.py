"""Backup, upgrade, rollback: the page's commands, before a gateway that serves, from each older schema and back."""

from __future__ import annotations

import asyncio
import re
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.batch.store import copies, database
from penstock.batch.store.sqlite import SqliteStore
from penstock.cli.main import main
from penstock.config.load import ConfigError
from tests.gateway.conftest import World
from tests.gateway.usage.test_months import KEYS, TENANTS, by, one
from tests.gateway.usage.test_usage import until_used
from tests.tidy.test_docs import ROOT

HOUR = 490_000
MIGRATIONS = database.migrations()


def commands() -> dict[str, str]:
    """The commands of the page by their verbs, and `check` of a file by its own name."""
    page = (ROOT / "docs/operations.md").read_text()
    section = page.partition("## Backup, upgrade, rollback")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = [line.partition("  #")[0] for line in block.splitlines()]
    return {_name(shlex.split(line)): line for line in lines}


def _name(words: list[str]) -> str:
    return "check a file" if words[2] == "check" and "-c" not in words else words[2]


class Site:
    """The place of the page's commands: its settings, its store, and its backups."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.store = folder / "data"
        self.settings = folder / "penstock.yaml"
        self.settings.write_text(f"listen: 127.0.0.1:0\nendpoints: [{{url: http://gpu-0:8000}}]\nstore: {self.store}\n")
        self._capsys = capsys

    def do(self, verb: str, backup: str = "", code: int = 0) -> str:
        """Run a command of the page; `backup` is its file."""
        line = re.sub(r"/backup/.+?\.sqlite3", str(self.folder / backup), commands()[verb])
        words = shlex.split(line.replace("penstock.yaml", str(self.settings)))
        assert main(words[1:]) == code, self._capsys.readouterr().err
        return self._capsys.readouterr().out

    def rows(self) -> dict[str, list[Any]]:
        """What is in the store, by table."""
        with closing(sqlite3.connect(self.store / "batch.sqlite3")) as opened:
            names = opened.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
            tables = [name for (name,) in names.fetchall()]
            return {name: sorted(map(repr, opened.execute(f'SELECT * FROM "{name}"'))) for name in tables}


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path, capsys)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Act as the program that knew so many schemas."""

    def become(schema: int) -> None:
        for module in (database, copies):
            monkeypatch.setattr(module, "migrations", lambda: MIGRATIONS[:schema])

    return become


def filled(site: Site, schema: int) -> None:
    """A store as the program of that schema left it: a file, and a key and a row of the ledger if it had any."""
    SqliteStore(site.store).close()
    with closing(sqlite3.connect(site.store / "batch.sqlite3")) as opened, opened:
        opened.execute(
            "INSERT INTO files (id, tenant, kind, filename, bytes, lines, created_at, status, details) "
            "VALUES ('file-old', 'chat', 'batch', 'old.jsonl', 3, 1, 1.0, 'processed', '')"
        )
        opened.execute("INSERT INTO chunks VALUES ('file-old', 0, ?)", (b"{}\n",))
        if schema >= 3:
            opened.execute("INSERT INTO api_keys VALUES ('old', 'chat', 'sha256:00', '{}', 1.0, NULL)")
        if schema >= 4:
            use = (HOUR, "chat", "chat-key", "u", "sim", "e", "client_gone", 7, 70, 0, 7, 7, 14, 1.0, 0, 0.0)
            opened.execute(f"INSERT INTO usage VALUES ({', '.join('?' * len(use))})", use)


def test_the_page_has_the_four_commands() -> None:
    assert sorted(commands()) == ["backup", "check", "check a file", "restore"]


@pytest.mark.parametrize("schema", range(1, len(MIGRATIONS)))
async def test_an_older_store_comes_up_and_goes_back(
    world: World, site: Site, program: Callable[[int], None], schema: int
) -> None:
    program(schema)
    filled(site, schema)
    old = site.rows()

    program(len(MIGRATIONS))
    site.do("backup", "before.sqlite3")
    assert f"schema {schema}; rows: " in site.do("check")
    assert f"schema {schema}; rows: " in site.do("check a file", "before.sqlite3")
    assert await asyncio.to_thread(main, ["check", str(site.settings)]) == 0
    assert site.rows() == old, "neither backup nor check changes the store"
    await world.engine()
    await world.gateway(store=str(site.store), batch={"serve": True}, tenants=TENANTS, usage={"keep": 0})
    listed = await world.ask("GET", "/v1/files", headers=by("chat"))
    assert [file["id"] for file in listed.json()["data"]] == ["file-old"]
    content = await world.ask("GET", "/v1/files/file-old/content", headers=by("chat"))
    assert content.body == b"{}\n"
    await world.end_gateway()
    site.do("backup", "after.sqlite3")
    new = site.rows()
    assert new.keys() >= old.keys()
    kept = {table: len(rows) for table, rows in old.items() if table not in ("schema_version", "runners")}
    assert kept == {table: len(new[table]) for table in kept}

    program(schema)
    newer = rf"^store: the store's schema is version \d+, and this Penstock knows {schema}$"
    with pytest.raises(ConfigError, match=newer):
        await world.gateway(store=str(site.store))
    assert site.rows() == new, "an older program changes nothing in a newer store"
    site.do("check", code=1)
    site.do("restore", "after.sqlite3", code=1)
    site.do("restore", "before.sqlite3")
    SqliteStore(site.store).close()
    assert site.rows() == old

    program(len(MIGRATIONS))
    site.do("restore", "after.sqlite3")
    assert site.rows() == new


async def test_a_ledger_of_an_older_schema_counts_on(world: World, site: Site, program: Callable[[int], None]) -> None:
    program(4)
    filled(site, 4)
    program(len(MIGRATIONS))
    await world.engine()
    await world.gateway(store=str(site.store), tenants=TENANTS, usage={"keep": "87600h"})
    usage = await one(world, "chat", 1, streams=False)
    total = (await until_used(world, 8, "from=1970-01-01"))["total"]
    assert total["prompt_tokens"] == 70 + usage["prompt_tokens"]
    assert (total["estimated_tokens"], total["interrupted"]) == (14, 0), "they were not told apart then"


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_backup_under_load_is_restored_with_no_row_lost(world: World, site: Site, workers: int) -> None:
    await world.engine()
    settings: dict[str, Any] = {"tenants": TENANTS, "workers": workers}
    await world.gateway(store=str(site.store), **settings)
    told: list[dict[str, int]] = []
    enough = asyncio.Event()

    async def client(team: str) -> None:
        for number in range(30):
            told.append(await one(world, team, number, streams=number % 2 == 0))
            if len(told) >= 40:
                enough.set()

    load = asyncio.gather(*[client(team) for team in KEYS for _ in range(2)])
    await enough.wait()
    booked = (await until_used(world, 30))["total"]["requests"]
    await asyncio.to_thread(site.do, "backup", "under-load.sqlite3")
    at_backup = len(told)
    await load
    await until_used(world, len(told))
    await asyncio.to_thread(site.do, "backup", "all.sqlite3")
    assert "1 usage_writers" in site.do("check")
    site.do("restore", "all.sqlite3", code=1)
    await world.end_gateway()

    for backup, least, most in (("under-load.sqlite3", booked, at_backup + 6), ("all.sqlite3", 180, 180)):
        site.do("restore", backup)
        await world.gateway(store=str(site.store), **settings)
        total = (await until_used(world, least))["total"]
        assert least <= total["requests"] <= most
        if least == most:
            for figure in ("prompt_tokens", "completion_tokens"):
                assert total[figure] == sum(usage[figure] for usage in told)
        await world.end_gateway()
