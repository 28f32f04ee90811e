"""`client_address` over HTTP: who a balancer or a proxy names is who is written down, and gets nothing by it."""

from __future__ import annotations

import io
import re

from tests.gateway.conftest import CHAT, World, chat, request

CLIENT = "203.0.113.7"
V1 = f"PROXY TCP4 {CLIENT} 192.0.2.1 56324 443\r\n".encode()
LOCAL = b"\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
SELF = b"PROXY TCP4 127.0.0.1 127.0.0.1 56324 443\r\n"
BROUGHT = {"proxy_protocol": ["127.0.0.0/8"]}
TOLD = {"proxies": ["127.0.0.0/8"]}


def clients(log: io.StringIO) -> list[str]:
    """Of each line of the access log, the client."""
    found: list[str] = re.findall(r" INFO penstock\.access .* client=(\S+)", log.getvalue())
    return found


async def test_a_balancer_names_the_client_of_a_connection(world: World, workers: int, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway(workers=workers, client_address=BROUGHT, log={"access": True})
    for header in (V1, LOCAL):
        answer = await (await world.client(header + request(body=chat()))).answer()
        assert answer.status == 200
    assert await (await world.client(request(body=chat()))).rest() == b"", "without its header it gets no answer"
    await world.idle()
    await world.until(lambda: len(clients(log)) == 2)
    assert clients(log) == [CLIENT, "127.0.0.1"]


async def test_a_client_without_a_tenant_is_named_by_the_address_behind_the_proxy(world: World, workers: int) -> None:
    await world.engine()
    await world.gateway(workers=workers, client_address=TOLD)
    asked = await world.ask("GET", "/queue", headers={"x-forwarded-for": CLIENT})
    assert asked.json()["tenant"] == f"client:{CLIENT}"
    named = await world.ask("GET", "/queue", headers={"x-forwarded-for": CLIENT, "x-tenant-id": "mine"})
    assert named.json()["tenant"] == "mine"


async def test_a_proxy_names_the_client_of_a_request(world: World, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway(client_address=TOLD, log={"access": True})
    await world.chat_with({"x-forwarded-for": f"198.51.100.9, {CLIENT}"})
    await world.chat_with({"forwarded": f"for={CLIENT}"})
    world.document["client_address"] = {**TOLD, "header": "forwarded"}
    await world.gate.reload()
    await world.chat_with({"forwarded": f"for={CLIENT}", "x-forwarded-for": "198.51.100.9"})
    world.document["client_address"] = {}
    await world.gate.reload()
    await world.chat_with({"forwarded": f"for={CLIENT}", "x-forwarded-for": "198.51.100.9"})
    await world.until(lambda: len(clients(log)) == 4)
    assert clients(log) == [CLIENT, "127.0.0.1", CLIENT, "127.0.0.1"]


async def test_balancers_are_known_from_the_next_connection_after_a_reload(world: World, workers: int) -> None:
    await world.engine()
    await world.gateway(workers=workers, admin={"token": "the-token-of-all", "listen": "127.0.0.1:0"})
    assert (await (await world.client(V1 + request(body=chat()))).answer()).status == 400
    world.document["client_address"] = BROUGHT
    await world.gate.reload()
    if workers > 1:
        assert world.gate.cluster is not None
        lives = [one.process.life for one in world.gate.cluster.table.workers]  # type: ignore[union-attr]
        await world.until(lambda: all(life._worker._settings.client_address.proxy_protocol for life in lives))
    assert (await (await world.client(V1 + request(body=chat()))).answer()).status == 200


async def test_a_proxied_client_is_not_local(world: World, workers: int) -> None:
    """A balancer on this machine, and a header that says so: neither opens what this machine may see."""
    await world.engine()
    await world.gateway(workers=workers, client_address=BROUGHT)
    for header in (SELF, LOCAL, V1):
        answer = await (await world.client(header + request("GET", "/admin/state"))).answer()
        assert answer.status == 403


async def test_a_header_grants_nothing(world: World) -> None:
    """Whom a proxy names is no reason to believe what it says of tenants, or to be this machine."""
    await world.engine()
    trusted = {"trusted_proxies": [CLIENT]}
    tenants = [{"name": "team-a", "keys": ["sha256:" + "1" * 64]}]
    await world.gateway(client_address=TOLD, identity=trusted, tenants=tenants)
    await world.chat_with({"x-forwarded-for": CLIENT, "x-tenant-id": "team-a"})
    await world.idle()
    assert await world.metric("penstock_tenant_service_tokens_total", tenant="team-a") == 0
    assert (await world.ask("GET", "/admin/state", headers={"x-forwarded-for": "127.0.0.1"})).status == 403


async def test_wrong_tokens_slow_down_the_proxys_client(world: World) -> None:
    await world.engine()
    await world.gateway(client_address=TOLD, admin={"token": "the-token-of-all"})

    async def guess(client: str) -> int:
        headers = {"authorization": "Bearer wrong-one", "x-forwarded-for": client}
        return (await world.ask("GET", "/admin/state", headers=headers)).status

    assert {await guess(CLIENT) for _ in range(10)} == {401}
    assert await guess(CLIENT) == 429
    assert await guess("198.51.100.9") == 401
    good = {"authorization": "Bearer the-token-of-all", "x-forwarded-for": CLIENT}
    assert (await world.ask("GET", "/admin/state", headers=good)).status == 200


async def test_events_name_the_client(world: World) -> None:
    await world.engine()
    await world.gateway(client_address=TOLD, admin={"token": "the-token-of-all"})
    headers = {"authorization": "Bearer the-token-of-all", "x-forwarded-for": CLIENT}
    assert (await world.ask("POST", "/admin/pause", b"{}", headers)).status == 200
    assert (await world.ask("POST", "/admin/resume", b"{}", headers)).status == 200
    state = (await world.ask("GET", "/admin/state", headers=headers)).json()
    assert any(CLIENT in event["text"] for event in state["events"])


async def test_a_clients_connections_are_counted_by_its_own_address(world: World) -> None:
    await world.engine()
    await world.gateway(client_address=BROUGHT, limits={"max_connections_per_address": 1})
    first = await world.client(V1 + request(body=chat(stream=True, tokens=500)))  # not idle, or it would make room
    assert (await first.head()).status == 200
    second = await (await world.client(V1 + request("POST", CHAT, chat()))).answer()
    assert (second.status, second.header("x-penstock-reason")) == (429, "overload")
    other = await world.client(V1.replace(b".7", b".8") + request(body=chat()))
    assert (await other.answer()).status == 200
