"""Answers that engines keep are read, deleted and cancelled where they were made."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from penstock.gateway.identity.callers import key_hash, new_key
from tests.gateway.conftest import Answer, World
from tests.gateway.raw_engine import Peer, RawEngine

RESPONSES = "/v1/responses"
ASKED = {"model": "sim", "input": "hello"}


class Keeper:
    """An engine that keeps answers, and tells what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: dict[str, str] = {}
        self.seen: list[str] = []
        self.status_unknown = 404
        self._serial = itertools.count(1)

    async def __call__(self, peer: Peer) -> None:
        while True:
            line = (await peer.request()).split(b"\r\n", 1)[0].decode()
            method, target, _ = line.split(" ")
            if not target.startswith(RESPONSES):
                await peer.send(_answer(404, {}))
                continue
            self.seen.append(f"{method} {target}")
            await peer.send(_answer(*self._do(method, target)))

    def _do(self, method: str, target: str) -> tuple[int, Any]:
        if target == RESPONSES:
            name = f"resp_{self.name}{next(self._serial)}"
            self.kept[name] = "queued"
            return 200, {"id": name, "object": "response", "status": "queued"}
        name, _, verb = target.partition("?")[0].removeprefix(RESPONSES + "/").partition("/")
        if name not in self.kept:
            return self.status_unknown, {"error": {"message": f"{self.name} does not know {name}"}}
        if method == "DELETE":
            del self.kept[name]
            return 200, {"id": name, "object": "response", "deleted": True}
        if verb == "cancel":
            self.kept[name] = "cancelled"
        if verb == "input_items":
            return 200, {"object": "list", "data": []}
        return 200, {"id": name, "object": "response", "status": self.kept[name]}


def _answer(status: int, body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data)) + data


async def keepers(world: World, count: int = 3, **settings: Any) -> list[Keeper]:
    """Engines, in the order of the endpoints."""
    found = [Keeper("abcdef"[at]) for at in range(count)]
    endpoints = []
    for keeper in found:
        raw = await world.beside(RawEngine(keeper))
        endpoints.append({"url": raw.url, "name": keeper.name, "engine": "openai", "models": ["sim"], "slots": 4})
    await world.gateway(endpoints=endpoints, routing={"policy": "round_robin"}, **settings)
    return found


async def made(world: World, count: int = 3) -> dict[str, str]:
    """Answers, and where they were made."""
    found = {}
    for _ in range(count):
        answer = await world.ask(path=RESPONSES, body=ASKED)
        found[answer.json()["id"]] = answer.header("x-penstock-endpoint") or ""
    return found


async def stored(world: World, name: str, verb: str = "", method: str = "GET", **headers: str) -> Answer:
    return await world.ask(method, f"{RESPONSES}/{name}{verb}", headers=headers)


async def test_each_goes_where_the_answer_was_made(world: World) -> None:
    engines = {keeper.name: keeper for keeper in await keepers(world)}
    for name, home in (await made(world)).items():
        read = await stored(world, name)
        assert (read.status, read.json()["status"], read.header("x-penstock-endpoint")) == (200, "queued", home)
        assert (await stored(world, name, "/cancel", "POST")).json()["status"] == "cancelled"
        assert (await stored(world, name, "/input_items")).json()["object"] == "list"
        assert (await stored(world, name, method="DELETE")).json()["deleted"] is True
        gone = await stored(world, name)
        assert gone.status == 404
        path = f"{RESPONSES}/{name}"
        wanted = [f"GET {path}", f"POST {path}/cancel", f"GET {path}/input_items", f"DELETE {path}", f"GET {path}"]
        assert [line for line in engines[home].seen if name in line] == wanted
    assert await world.metric("penstock_dispatches_total") == 3, "none of this takes a lease"


async def test_a_query_passes(world: World) -> None:
    (engine,) = await keepers(world, 1)
    (name,) = await made(world, 1)
    assert (await stored(world, name, "?include[]=usage&stream=false")).status == 200
    assert engine.seen[-1] == f"GET {RESPONSES}/{name}?include[]=usage&stream=false"


async def test_what_is_not_remembered_is_looked_for_everywhere(world: World) -> None:
    """As after a restart of the gateway: the engines still have it."""
    engines = await keepers(world)
    engines[2].kept["resp_old"] = "completed"
    read = await stored(world, "resp_old")
    assert (read.status, read.json()["id"], read.header("x-penstock-endpoint")) == (200, "resp_old", "c")
    assert [len(engine.seen) for engine in engines] == [1, 1, 1]


async def test_an_engine_without_that_api_is_passed_over(world: World) -> None:
    engines = await keepers(world)
    engines[0].status_unknown = 405
    engines[1].kept["resp_old"] = "completed"
    assert (await stored(world, "resp_old", method="DELETE")).status == 200


async def test_what_nobody_has_is_not_found(world: World) -> None:
    await keepers(world)
    missing = await stored(world, "resp_none")
    error = missing.error()
    assert (missing.status, error["code"]) == (404, "path_not_found")
    assert "resp_none" in error["message"]


async def test_without_an_answer_it_is_reported(world: World) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9", "models": ["sim"]}])
    refused = await stored(world, "resp_none")
    assert (refused.status, refused.error()["code"]) == (503, "no_endpoint")
    assert refused.header("retry-after") is not None


async def test_an_answer_under_way_can_be_cancelled_before_it_ends(world: World) -> None:
    """Its name is in its first event."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    first = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_x"}}\n\n'
    cancelled: list[str] = []

    async def script(peer: Peer) -> None:
        while True:
            line = (await peer.request()).split(b"\r\n", 1)[0].decode()
            if line.startswith(f"POST {RESPONSES} "):
                await peer.send(head + b"%x\r\n%b\r\n" % (len(first), first), b"4\r\n: \n\n\r\n")
                assert await peer.reader.read(1) == b""
                return
            elif "/cancel" in line:
                cancelled.append(line)
                await peer.send(_answer(200, {"id": "resp_x", "status": "cancelled"}))
            else:
                await peer.send(_answer(404, {}))

    others = await world.beside(RawEngine(Keeper("a")))
    raw = await world.beside(RawEngine(script))
    told = {"engine": "openai", "models": ["sim"]}
    await world.gateway(endpoints=[{"url": others.url, "models": ["other"]}, {"url": raw.url, **told}])
    client = await world.client()
    body = json.dumps({**ASKED, "stream": True}).encode()
    client.send(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (RESPONSES.encode(), len(body)) + body)
    await client.head()
    while b": \n\n" not in client.seen:
        await client.piece()
    assert (await stored(world, "resp_x", "/cancel", "POST")).json()["status"] == "cancelled"
    assert len(cancelled) == 1
    client.hang_up()


async def test_nobody_reads_what_another_tenants_key_asked_for(world: World) -> None:
    keys = {"a": new_key(), "b": new_key()}
    tenants = [{"name": name, "keys": [key_hash(key)]} for name, key in keys.items()]
    (engine,) = await keepers(world, 1, tenants=tenants)
    auth = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
    asked = await world.ask(path=RESPONSES, body=ASKED, headers=auth["a"])
    name = asked.json()["id"]
    foreign = await stored(world, name, **auth["b"])
    assert (foreign.status, foreign.error()["code"]) == (404, "path_not_found")
    assert (await stored(world, name)).status == 404
    assert len(engine.seen) == 1, "it was not even asked"
    assert (await stored(world, name, **auth["a"])).status == 200


@pytest.mark.parametrize(
    ("verb", "method", "allowed"),
    [("", "POST", "GET, DELETE"), ("/cancel", "GET", "POST"), ("/input_items", "DELETE", "GET")],
)
async def test_other_methods_are_refused(world: World, verb: str, method: str, allowed: str) -> None:
    await keepers(world, 1)
    refused = await stored(world, "resp_x", verb, method)
    assert (refused.status, refused.header("allow")) == (405, allowed)


async def test_other_paths_below_are_not_there(world: World) -> None:
    await keepers(world, 1)
    assert (await stored(world, "resp_x", "/other")).status == 404
    assert (await stored(world, "")).status == 404
