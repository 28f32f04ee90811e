"""`admin.listen`: what is for operators is at an address of its own, and nothing of it where callers come."""

from __future__ import annotations

import asyncio
import copy
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import ConfigError, from_mapping
from penstock.gateway.admin import own_token
from penstock.gateway.serve import StartError
from tests.gateway.conftest import Answer, Client, World, chat, request
from tests.gateway.test_reload import make_certificate

OPERATORS = (
    *("/admin", "/admin/", "/admin/state", "/admin/page.js", "/admin/nothing", "/metrics"),
    *("/autoscale", "/autoscale/sim", "/sleep", "/wake_up"),
)
BOTH = ("/health", "/healthz", "/livez", "/ready", "/readyz", "/version")
CALLERS = ("/v1/chat/completions", "/v1/models", "/queue", "/engines", "/is_sleeping", "/v1/files", "/nothing")


async def at_admin(
    world: World, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None, body: Any = b""
) -> Answer:
    assert world.gate.operators is not None
    client = Client(*await asyncio.open_connection("127.0.0.1", world.gate.operators.port))
    world.clients.append(client)
    client.send(request(method, path, body, headers))
    answer = await client.answer()
    client.hang_up()
    return answer


async def apart(world: World, workers: int = 1, **more: Any) -> None:
    admin = {"listen": "127.0.0.1:0", **more.pop("admin", {})}
    await world.gateway(workers=workers, admin=admin, **more)


async def test_operators_paths_are_served_there_only(world: World, workers: int) -> None:
    await world.engine()
    await apart(world, workers)
    for path in OPERATORS:
        for method in ("GET", "POST"):
            here = await world.ask(method, path, headers={"authorization": f"Bearer {world.gate.own_token.token}"})
            assert (here.status, here.header("x-penstock-reason")) == (404, "path_not_found"), (method, path)
        here = await world.ask("GET", path)
        nothing = await world.ask("GET", "/nothing")
        assert here.body == nothing.body, "it tells no more than a path that never was"
        below = await world.ask("GET", f"/v1{path}")
        assert (below.status, below.body) == (404, nothing.body), "nor is it hinted at"
        assert (await at_admin(world, path)).status != 404 or path == "/admin/nothing", path
    assert (await at_admin(world, "/admin/state")).json()["headline"]
    assert b"penstock_requests_total" in (await at_admin(world, "/metrics")).body
    root = (await world.ask("GET", "/")).body
    assert b"Penstock" in root
    assert b"/admin" not in root
    assert b"/metrics" not in root
    assert b"<title>" in (await at_admin(world, "/admin/")).body


async def test_callers_paths_are_not_there_and_probes_are_served_at_both(world: World, workers: int) -> None:
    await world.engine()
    await apart(world, workers, batch={"data": None})
    for path in CALLERS:
        assert (await at_admin(world, path)).status == 404, path
        assert (await at_admin(world, path, method="POST", body=chat())).status == 404, path
    for path in BOTH:
        assert (await at_admin(world, path)).status == (await world.ask("GET", path)).status == 200, path
    assert (await world.chat()).status == 200
    assert (await world.ask("GET", "/v1/models")).status == 200


async def test_a_change_asked_for_there_is_made(world: World, workers: int) -> None:
    await world.engine()
    await apart(world, workers)
    token = {"authorization": f"Bearer {world.gate.own_token.token}"}
    assert (await at_admin(world, "/admin/pause", method="POST", body=b"{}")).status == 401
    paused = await at_admin(world, "/admin/pause", method="POST", headers=token, body=b"{}")
    assert paused.status == 200
    assert world.picture().paused
    await at_admin(world, "/admin/resume", method="POST", headers=token, body=b"{}")


async def test_commands_find_the_token_by_the_port_of_admin(world: World, workers: int, tmp_path: Path) -> None:
    await world.engine()
    await apart(world, workers, state_dir=str(tmp_path))
    assert world.gate.operators is not None
    port = world.gate.operators.port
    assert port not in (0, world.port)
    env = {"PENSTOCK__STATE_DIR": str(tmp_path)}
    assert own_token.find(f"http://127.0.0.1:{port}", env) == world.gate.own_token.token
    assert own_token.find(f"http://127.0.0.1:{world.port}", env) is None


async def test_access_is_judged_by_the_address_of_admin(world: World) -> None:
    """Behind an address that others reach a token is asked for; on loopback this machine may look."""
    await world.engine()
    await apart(world, listen="0.0.0.0:0")
    assert (await at_admin(world, "/admin/state")).status == 200
    assert (await at_admin(world, "/admin/state", headers={"x-forwarded-for": "203.0.113.7"})).status == 403
    assert (await at_admin(world, "/metrics", headers={"origin": "https://evil.example"})).status == 403


async def test_an_address_for_everybody_asks_for_a_token(world: World) -> None:
    await world.engine()
    await apart(world, admin={"listen": "0.0.0.0:0"})
    assert (await at_admin(world, "/admin/state")).status == 403
    assert (await at_admin(world, "/metrics")).status == 200


async def test_balancers_do_not_reach_it(world: World) -> None:
    """They reach what callers reach; a scraper on the same machine says whose its connection is to nobody."""
    await world.engine()
    await apart(world, client_address={"proxy_protocol": ["127.0.0.0/8"]})
    assert (await at_admin(world, "/metrics")).status == 200
    brought = await world.client(b"PROXY TCP4 203.0.113.7 192.0.2.1 1 2\r\n" + request(body=chat()))
    assert (await brought.answer()).status == 200


async def shown_certificate(world: World) -> bytes:
    assert world.gate.operators is not None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", world.gate.operators.port, ssl=context)
    client = Client(reader, writer)
    world.clients.append(client)
    client.send(request("GET", "/metrics"))
    assert (await client.answer()).status == 200
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    client.hang_up()
    assert isinstance(shown, bytes)
    return shown


async def test_it_shows_the_same_certificate_and_a_renewed_one(world: World, workers: int, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key)
    await world.engine()
    await apart(world, workers, tls={"cert": str(cert), "key": str(key)})
    first = await shown_certificate(world)
    make_certificate(cert, key)
    await world.gate.reload()
    assert await shown_certificate(world) != first


async def test_it_does_not_move_while_it_runs(world: World) -> None:
    await world.engine()
    await apart(world)
    world.document = {**copy.deepcopy(world.document), "admin": {"listen": "127.0.0.1:1"}}
    with pytest.raises(ConfigError, match=r"admin\.listen: needs a restart") as refused:
        await world.gate.reload()
    assert "the socket is bound once" in str(refused.value)


async def test_an_address_that_is_taken_is_named_and_nothing_is_left(world: World) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises(StartError, match=rf"cannot listen on 127\.0\.0\.1:{port} \(admin\.listen\): .*in use"):
        await apart(world, admin={"listen": f"127.0.0.1:{port}"}, endpoints=[])
    taken.close()


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        ("127.0.0.1:8081", "127.0.0.1:8081"),
        (":8081", "127.0.0.1:8081"),
        ("127.0.0.1:8081", "0.0.0.0:8081"),
        (None, "127.0.0.1:8080"),
    ],
)
def test_one_port_for_both_is_refused(listen: str | None, admin: str) -> None:
    document = {"admin": {"listen": admin}, **({} if listen is None else {"listen": listen})}
    with pytest.raises(ConfigError, match=r"admin\.listen: is the same address as `listen`"):
        from_mapping(document)


def test_two_addresses_of_one_port_are_two_places() -> None:
    assert from_mapping({"listen": "10.0.0.5:8080", "admin": {"listen": "127.0.0.1:8080"}}).admin_address
    assert from_mapping({"listen": ":0", "admin": {"listen": ":0"}}).admin_address == ("", 0)
    assert "PENSTOCK_TEST" not in os.environ
