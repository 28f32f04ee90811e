"""Many requests over one connection, as a proxy sends them: each one is its own sender's."""

from __future__ import annotations

import io
import re
from pathlib import Path

from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import Client, World, chat, request
from tests.gateway.over_http.test_tenancy import OK, TEAM_A, TEAM_B
from tests.patience import WAIT_S, looks

KEYS = {"team-a": "pk-team-a", "team-b": "pk-team-b"}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def logged(log: io.StringIO, name: str) -> list[str]:
    """Of each line of the access log, the field of this name."""
    found: list[str] = re.findall(rf" INFO penstock\.access .* {name}=(\S+)", log.getvalue())
    return found


async def again(client: Client, headers: dict[str, str]) -> int:
    client.send(request(body=chat(), headers=headers))
    return (await client.answer()).status


async def test_pipelined_requests_are_each_their_own_tenants(world: World, workers: int, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway(workers=workers, tenants=[TEAM_A, TEAM_B], log={"access": True})
    names = ["team-a", "team-a", "team-b", "team-b", "team-a"]
    client = await world.client(b"".join([request(body=chat(), headers=bearer(KEYS[name])) for name in names]))
    assert [(await client.answer()).status for _ in names] == [200] * 5
    await world.until(lambda: len(logged(log, "tenant")) == 5)
    assert logged(log, "tenant") == names


async def test_a_proxys_connection_carries_many_clients(world: World, workers: int, log: io.StringIO) -> None:
    await world.engine()
    proxies = ["127.0.0.0/8"]
    await world.gateway(workers=workers, client_address={"proxies": proxies}, log={"access": True})
    addresses = ["203.0.113.7", "203.0.113.7", "203.0.113.8", "203.0.113.7"]
    client = await world.client()
    for address in addresses:
        assert await again(client, {"x-forwarded-for": address}) == 200
    await world.until(lambda: len(logged(log, "tenant")) == 4)
    assert logged(log, "client") == addresses
    assert logged(log, "tenant") == [f"client:{address}" for address in addresses]


async def test_a_balancers_connections_are_each_of_their_client(world: World, workers: int, log: io.StringIO) -> None:
    await world.engine()
    brought = {"proxy_protocol": ["127.0.0.0/8"]}
    await world.gateway(workers=workers, client_address=brought, log={"access": True})
    for address in ("203.0.113.7", "203.0.113.8"):
        client = await world.client(f"PROXY TCP4 {address} 192.0.2.1 56324 443\r\n".encode())
        assert [await again(client, {}) for _ in range(2)] == [200, 200]
    await world.until(lambda: len(logged(log, "tenant")) == 4)
    assert logged(log, "tenant") == ["client:203.0.113.7"] * 2 + ["client:203.0.113.8"] * 2


async def test_a_revoked_key_stops_on_a_connection_that_has_used_it(world: World, workers: int, tmp_path: Path) -> None:
    await world.engine()
    await world.gateway(
        workers=workers,
        tenants=[TEAM_A],
        identity={"made_keys": True},
        batch={"data": str(tmp_path), "serve": False},
    )
    made = (await world.ask("POST", "/admin/keys", {"tenant": "team-a", "name": "ci"})).json()
    client = await world.client()
    async for _ in looks(WAIT_S):
        if await again(client, bearer(made["key"])) == 200:
            break
        client = await world.client()
    assert await again(client, bearer(made["key"])) == 200
    assert (await world.ask("DELETE", "/admin/keys/ci")).status == 200
    async for _ in looks(1.0):
        if (status := await again(client, bearer(made["key"]))) == 401:
            break
        assert status == 200


async def test_a_reload_counts_on_open_connections(world: World, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway(tenants=[TEAM_A], log={"access": True})
    client = await world.client()
    assert await again(client, bearer("pk-team-a")) == 200
    world.document["tenants"] = [{**TEAM_B, "keys": [key_hash("pk-team-a")]}]
    await world.gate.reload()
    assert await again(client, bearer("pk-team-a")) == 200
    world.document["tenants"] = [TEAM_B]
    world.document["identity"] = {"require_key": True}
    await world.gate.reload()
    assert await again(client, bearer("pk-team-a")) == 401
    await world.until(lambda: len(logged(log, "tenant")) >= 2)
    assert logged(log, "tenant")[:2] == ["team-a", "team-b"]


async def test_what_goes_upstream_is_each_requests_own(world: World) -> None:
    endpoint, requests = await world.scripted(OK)
    await world.gateway(endpoints=[endpoint], tenants=[TEAM_A])
    client = await world.client()
    headers = {**bearer(KEYS["team-a"]), "accept-encoding": "gzip", "x-mine": "1"}
    for stream in (False, True, False):
        client.send(request(body=chat(stream=stream), headers=headers))
        assert (await client.answer()).status == 200
    assert [b"accept-encoding: gzip\r\n" in seen for seen in requests] == [True, False, True]
    assert len({re.search(rb"x-request-id: (\S+)", seen)[1] for seen in requests}) == 3  # type: ignore[index]
    for seen in requests:
        assert b"x-mine: 1\r\n" in seen
        assert KEYS["team-a"].encode() not in seen
