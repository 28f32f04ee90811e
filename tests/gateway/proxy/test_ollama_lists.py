"""Ollama's clients list models and ask about them at `/api/tags`, `/api/show` and `/api/version`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import Answer, World, request
from tests.gateway.endpoints.test_not_an_engine import Site, always, answer_json, http

KEY = "pk-narrow"
BEARER = {"authorization": f"Bearer {KEY}"}
UNTOLD = {
    "parent_model": "",
    "format": "",
    "family": "",
    "parameter_size": "",
    "quantization_level": "",
    "families": [],
}
OF_2026 = 1780000000  # 2026-05-28T20:26:40Z


async def engine(world: World, *entries: dict[str, Any], **settings: Any) -> None:
    """A gateway before one engine with these models."""
    listed = answer_json({"object": "list", "data": [{"object": "model", **entry} for entry in entries]})
    site = await world.beside(Site(lambda path: listed if path == b"/v1/models" else http(404), always(http(200))))
    await world.gateway(endpoints=[{"url": site.url}], **settings)
    ids = {entry["id"] for entry in entries}
    await world.until(lambda: set(world.picture().endpoints[0].models or ()) == ids)


async def show(world: World, body: Any, headers: dict[str, str] | None = None) -> Answer:
    return await world.ask(path="/api/show", body=body, headers=headers)


async def names(world: World, headers: dict[str, str] | None = None) -> list[str]:
    return [model["name"] for model in (await world.ask("GET", "/api/tags", headers=headers)).json()["models"]]


async def test_ollamas_clients_find_the_models(world: World, workers: int) -> None:
    entry = {"id": "qwen-32b", "created": OF_2026, "owned_by": "vllm", "max_model_len": 40960}
    await engine(world, entry, models={"large": {"to": "qwen-32b"}}, workers=workers)
    listed = (await world.ask("GET", "/api/tags")).json()["models"]
    assert [model["model"] for model in listed] == [model["name"] for model in listed] == ["qwen-32b", "large"]
    assert listed[0] == {
        "name": "qwen-32b",
        "model": "qwen-32b",
        "modified_at": "2026-05-28T20:26:40Z",
        "size": 0,
        "digest": "",
        "details": UNTOLD,
    }
    for name in ("qwen-32b", "large"):
        shown = (await show(world, {"model": name})).json()
        assert (shown["details"], shown["modified_at"]) == (UNTOLD, "2026-05-28T20:26:40Z")
        assert shown["model_info"] == {
            "general.architecture": "unknown",
            "general.basename": name,
            "unknown.context_length": 40960,
        }
        assert shown["capabilities"] == ["completion"]
    version = (await world.ask("GET", "/api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4), "what VS Code asks for"
    head = await world.client(request("HEAD", "/api/tags"))
    assert (await head.head()).status == 200


@pytest.mark.parametrize("created", [None, "yesterday", -1, 10**15, 1.5, True, 0])
async def test_what_an_engine_does_not_say_is_left_empty(world: World, created: object) -> None:
    await engine(world, {"id": "m", "created": created, "capabilities": ["embedding"]})
    assert (await world.ask("GET", "/api/tags")).json()["models"][0]["modified_at"] == "1970-01-01T00:00:00Z"
    shown = (await show(world, {"name": "m"})).json()
    assert shown["model_info"] == {"general.architecture": "unknown", "general.basename": "m"}
    assert shown["capabilities"] == ["embedding"]


async def test_without_a_tag_a_model_is_the_latest(world: World) -> None:
    await engine(world, {"id": "llama3:latest"}, {"id": "llama3:8b"}, {"id": "phi4:latest"}, {"id": "phi4"})
    for asked, found in (("llama3", "llama3:latest"), ("llama3:8b", "llama3:8b"), ("phi4", "phi4")):
        assert (await show(world, {"model": asked})).json()["model_info"]["general.basename"] == found


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "other"}, 404, "model_not_found"),
        ({"model": "m:latest"}, 404, "model_not_found"),
        ({}, 400, "bad_request"),
        ({"model": 7}, 400, "bad_request"),
        ([], 400, "bad_request"),
        (b"\xff", 400, "bad_request"),
        (b"[" * 4000, 400, "bad_request"),
        (b"", 400, "bad_request"),
    ],
)
async def test_what_is_not_there_is_refused_in_ollamas_shape(world: World, body: Any, status: int, code: str) -> None:
    await engine(world, {"id": "m"})
    refused = await show(world, body)
    assert (refused.status, refused.json()["code"]) == (status, code)
    assert isinstance(refused.json()["error"], str)
    wrong = await world.ask("GET", "/api/show")
    assert (wrong.status, wrong.header("allow")) == (405, "POST")
    assert (await world.ask("POST", "/api/tags", b"{}")).header("allow") == "GET, HEAD"


async def test_a_key_sees_there_only_the_models_that_it_may_use(world: World) -> None:
    await engine(
        world,
        {"id": "qwen-32b"},
        {"id": "llama-8b"},
        {"id": "phi:latest"},
        identity={"require_key": True},
        tenants=[{"name": "team", "keys": [{"hash": key_hash(KEY), "models": ["qwen-*", "phi"]}]}],
    )
    assert await names(world, BEARER) == ["qwen-32b"], "as /v1/models"
    statuses = {name: (await show(world, {"model": name}, BEARER)).status for name in ("qwen-32b", "llama-8b", "phi")}
    assert statuses == {"qwen-32b": 200, "llama-8b": 404, "phi": 200}, "as for /api/chat"
    for answer in (await world.ask("GET", "/api/tags"), await show(world, {"model": "qwen-32b"})):
        assert (answer.status, answer.json()["code"]) == (401, "unauthorized")
    assert (await world.ask("GET", "/api/version")).status == 200


async def test_a_gateway_behind_a_gateway_is_no_ollama(world: World) -> None:
    """It would be asked in Ollama's way, and its empty list would mean that it has no models."""
    await engine(world, {"id": "m"})
    paths = ("/v1/models", "/api/version", "/api/tags", "/version")
    documents = {path.encode(): answer_json((await world.ask("GET", path)).json()) for path in paths}
    await world.end_gateway()
    site = await world.beside(Site(lambda path: documents.get(path, http(404)), always(http(200))))
    await world.gateway(endpoints=[{"url": site.url}])
    await world.until(lambda: world.picture().endpoints[0].models == ["m"])
    assert [target.engine.name for target in world.gate.endpoints.targets.values()] == ["openai"]
