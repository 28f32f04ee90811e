"""A link for a wall looks, changes nothing, and ends with the admin token of which it was made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.cli.main import main
from tests.gateway.conftest import World

TOKEN, READS, ANNA = "admins-0123456789", "reads-0123456789", "annas-0123456789"


async def printed(world: World, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = await asyncio.to_thread(main, ["admin", "wall-link", "--url", world.url, *flags])
    out, err = capsys.readouterr()
    return code, out.strip(), err


async def asked(world: World, method: str, path: str, token: str) -> int:
    answer = await world.ask(method, path, b"", {"authorization": f"Bearer {token}"})
    return answer.status


@pytest.mark.parametrize("given", [TOKEN, ANNA])
async def test_the_link_looks_and_changes_nothing(world: World, capsys: pytest.CaptureFixture[str], given: str) -> None:
    admin: dict[str, Any] = {"token": TOKEN, "operators": [{"name": "anna", "token": ANNA}]}
    await world.engine()
    await world.gateway(admin=admin)
    code, link, err = await printed(world, capsys, "--token", given, "--at", "http://gate:8080/")
    assert (code, err) == (0, "")
    address, _, token = link.partition("#wall=")
    assert address == "http://gate:8080/admin/"
    assert given not in link
    assert [await asked(world, "GET", f"/admin/{path}", token) for path in ("state", "history", "access")] == [200] * 3
    assert await asked(world, "POST", "/admin/pause", token) == 403
    assert await asked(world, "POST", "/admin/reload", token) == 403
    await world.end_gateway()
    await world.gateway(admin={"token": TOKEN[::-1] + "x"})
    assert await asked(world, "GET", "/admin/state", token) == 401, "another admin token, another link"


async def test_a_token_that_only_reads_is_the_link_itself(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    await world.gateway(admin={"token": TOKEN, "read_token": READS})
    code, link, _ = await printed(world, capsys, "--token", READS)
    assert (code, link) == (0, f"{world.url}/admin/#wall={READS}")


async def test_a_wrong_token_makes_no_link(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    await world.gateway(admin={"token": TOKEN})
    code, out, err = await printed(world, capsys, "--token", "wrong")
    assert (code, out) == (1, "")
    assert "not an admin token" in err
    code, out, err = await printed(world, capsys)
    assert (code, out) == (1, "")
    assert "no admin token is known here" in err
