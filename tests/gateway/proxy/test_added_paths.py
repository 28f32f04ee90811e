"""Paths of the setting `paths` pass to engines as the built-in ones do: by the same table, keys, limits and reloads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config.load import ConfigError, from_mapping
from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import NOT_FOUND, Answer, World
from tests.gateway.proxy.test_engine_paths import one_engine, whole
from tests.gateway.raw_engine import Peer, RawEngine

OWN = "/v1/own"
KEY = {"authorization": "Bearer sk-one"}


async def before_one_engine(world: World, *paths: dict[str, Any], **settings: Any) -> list[str]:
    """The requests that an engine got, without the gateway's own questions: method and target."""
    seen: list[str] = []

    async def script(peer: Peer) -> None:
        while True:
            method, target, _ = (await peer.request()).decode().split(" ", 2)
            if target in ("/health", "/metrics", "/v1/models"):
                await peer.send(NOT_FOUND)
            else:
                seen.append(f"{method} {target}")
                await peer.send(whole({"fine": True}))

    engine = await world.beside(RawEngine(script))
    endpoint = {"url": engine.url, "engine": "openai", "models": ["sim"], "slots": 1}
    await world.gateway(endpoints=[endpoint], paths=list(paths), **settings)
    return seen


@pytest.mark.parametrize(("kind", "leases"), [("leased", 1), ("pooled", 1), ("free", 0)])
async def test_each_kind_costs_what_it_says(world: World, kind: str, leases: int) -> None:
    requests = await one_engine(world, whole({"fine": True}), paths=[{"path": OWN, "kind": kind}])
    body = {"model": "sim", "unknown": {"to": "us"}}
    answer = await world.ask(path=OWN, body=body, headers={"x-own": "kept"})
    assert (answer.status, answer.json()) == (200, {"fine": True})
    head, _, sent = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(f"POST {OWN} HTTP/1.1\r\n".encode())
    assert b"x-own: kept" in head
    assert json.loads(sent) == body
    assert await world.metric("penstock_dispatches_total") == leases
    assert await world.metric("penstock_requests_total", outcome="completed") == 1


async def test_a_path_takes_the_methods_that_are_listed_for_it(world: World) -> None:
    paths = [{"path": OWN, "method": method, "kind": "free"} for method in ("GET", "delete")]
    requests = await before_one_engine(world, *paths)
    for method in ("GET", "DELETE"):
        answer = await world.ask(method, f"{OWN}?model=sim&x=1")
        assert (answer.status, answer.json()) == (200, {"fine": True})
    refused = await world.ask("POST", OWN, {"model": "sim"})
    assert (refused.status, refused.header("allow")) == (405, "GET, DELETE")
    assert requests == [f"GET {OWN}?model=sim&x=1", f"DELETE {OWN}?model=sim&x=1"], "as they came"


async def test_a_leased_path_without_a_body_waits_its_turn_like_any_other(world: World) -> None:
    requests = await before_one_engine(
        world,
        {"path": OWN, "method": "GET"},
        admission={"engine_priority": True},
        tenants=[{"name": "one", "keys": [{"hash": key_hash("sk-one")}], "limits": {"requests_per_minute": 1}}],
    )
    assert (await world.ask("GET", OWN, headers=KEY)).status == 200, "the only model is meant"
    assert (await world.ask("GET", OWN, headers=KEY)).error()["code"] == "tenant_limit"
    assert requests == [f"GET {OWN}"]
    assert await world.metric("penstock_dispatches_total") == 1


async def test_all_paths_below_one_pass_and_none_beside_it(world: World) -> None:
    paths = [{"path": "/v1/videos/*", "method": "GET", "kind": "free"}, {"path": "/v1/videos/new", "kind": "leased"}]
    requests = await before_one_engine(world, *paths)
    assert (await world.ask("GET", "/v1/videos/a/b")).status == 200
    assert (await world.ask("POST", "/v1/videos/new", {"model": "sim"})).status == 200
    assert (await world.ask("GET", "/v1/videos/new")).status == 405, "the closest one counts"
    for led_elsewhere in ("/v1/videos", "/v1/videos/../own", "/v1/videos/%2e%2e/own", "/v1/videos/x/..%2f..%2fown"):
        assert (await world.ask("GET", led_elsewhere)).status == 404, led_elsewhere
    assert requests == ["GET /v1/videos/a/b", "POST /v1/videos/new"]


@pytest.mark.parametrize("bytes_more", [0, 300_000], ids=["small", "large"])
async def test_another_field_names_the_model_and_an_alias_is_replaced_in_it(world: World, bytes_more: int) -> None:
    requests = await one_engine(
        world, whole({"fine": True}), paths=[{"path": OWN, "model": "engine"}], models={"nice": {"to": "sim"}}
    )
    more = {"model": "nobody's", "x": "y" * bytes_more}
    assert (await world.ask(path=OWN, body={"engine": "nice", **more})).status == 200
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2]) == {"engine": "sim", **more}
    assert (await world.ask(path=OWN, body={"engine": "other", **more})).error()["code"] == "model_not_found"
    for wrong in (b'{"engine":"sim","engine":"sim"}', b'{"engine":7}', b'{"engine":""}'):
        refused = (await world.ask(path=OWN, body=wrong)).error()
        assert (refused["code"], refused["param"]) == ("bad_request", "engine")


async def test_in_a_query_an_alias_is_replaced_too(world: World) -> None:
    requests = await before_one_engine(
        world, {"path": OWN, "method": "GET", "model": "engine"}, models={"nice": {"to": "sim"}}
    )
    assert (await world.ask("GET", f"{OWN}?a=b%20c&engine=nice&d=")).status == 200
    assert requests == [f"GET {OWN}?a=b+c&engine=sim&d="]
    assert (await world.ask("GET", f"{OWN}?engine=sim&engine=sim")).error()["code"] == "bad_request"


async def test_a_form_may_name_its_model_in_that_field(world: World) -> None:
    requests = await one_engine(
        world, whole({"fine": True}), paths=[{"path": OWN, "model": "engine"}], models={"nice": {"to": "sim"}}
    )
    form = b'--b\r\ncontent-disposition: form-data; name="engine"\r\n\r\n%s\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    assert (await world.ask(path=OWN, body=form % b"nice", headers=headers)).status == 200
    assert requests[0].endswith(form % b"sim")


@pytest.mark.parametrize("kind", ["leased", "pooled", "free"])
async def test_keys_and_the_bounds_of_keys_hold_on_them(world: World, kind: str) -> None:
    key = {"hash": key_hash("sk-one"), "models": ["other"], "max_output_tokens": 10}
    await before_one_engine(
        world, {"path": OWN, "kind": kind}, identity={"require_key": True}, tenants=[{"name": "one", "keys": [key]}]
    )
    assert (await world.ask(path=OWN, body={"model": "sim"})).error()["code"] == "unauthorized"
    assert (await world.ask(path=OWN, body={"model": "sim"}, headers=KEY)).error()["code"] == "forbidden"
    assert (await world.ask(path=OWN, headers=KEY)).error()["code"] == "forbidden", "the only model is meant"


async def test_an_answer_of_unknown_form_has_to_be_bounded_by_the_client_of_a_bounded_key(world: World) -> None:
    key = {"hash": key_hash("sk-one"), "max_output_tokens": 10}
    requests = await before_one_engine(
        world, {"path": OWN}, {"path": OWN, "method": "GET"}, tenants=[{"name": "one", "keys": [key]}]
    )

    async def ask(**more: Any) -> Answer:
        return await world.ask(path=OWN, body={"model": "sim", **more}, headers=KEY)

    for unbounded in (await ask(), await ask(max_tokens=11), await world.ask("GET", OWN, headers=KEY)):
        assert unbounded.error()["code"] == "bad_request"
        assert "10 tokens" in unbounded.error()["message"]
    assert (await ask(max_tokens=10)).status == 200
    assert requests == [f"POST {OWN}"]


async def test_they_follow_a_reload_on_connections_that_stay(world: World) -> None:
    await before_one_engine(world, {"path": OWN})
    client = await world.client()

    async def status(path: str) -> int:
        client.send(b'POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n{"model":"sim"}' % path.encode())
        return (await client.answer()).status

    assert [await status(path) for path in (OWN, OWN)] == [200, 200]
    world.document["paths"] = [{"path": "/v1/new", "kind": "free"}]
    assert (await world.ask("POST", "/admin/reload")).status == 200
    assert [await status(path) for path in ("/v1/new", OWN)] == [200, 404]


async def test_no_path_makes_a_series_of_its_own(world: World) -> None:
    await before_one_engine(world, {"path": "/v1/many/*", "method": "GET"})
    for n in range(3):
        assert (await world.ask("GET", f"/v1/many/{n}")).status == 200
    page = (await world.ask("GET", "/metrics")).body
    assert b"/v1/many" not in page
    assert await world.metric("penstock_requests_total", outcome="completed") == 3


# --- bad input -----------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"path": "v1/own"}, "does not begin with a slash"),
    ({"path": ""}, "does not begin with a slash"),
    ({"path": "/v1/../admin"}, "lead elsewhere"),
    ({"path": "/.."}, "lead elsewhere"),
    ({"path": "/v1/./own"}, "lead elsewhere"),
    ({"path": "/v1//own"}, "single slashes"),
    ({"path": "/v1/own/"}, "single slashes"),
    ({"path": "/v1/%6fwn"}, "escapes"),
    ({"path": "/v1/own?x=1"}, "query"),
    ({"path": "/v1/*/own"}, "only as the last name"),
    ({"path": "/*"}, "single slashes"),
    ({"path": "/" + "x" * 200}, "200 characters"),
    ({"path": "/admin"}, "is a path of the gateway itself"),
    ({"path": "/admin/state"}, "`/admin/*`, a path of the gateway itself"),
    ({"path": "/metrics", "method": "GET"}, "is a path of the gateway itself"),
    ({"path": "/sleep"}, "is a path of the gateway itself"),
    ({"path": "/v1/files/x"}, "a path of the gateway itself"),
    ({"path": "/v1/*"}, "a path of the gateway itself"),
    ({"path": "/v1/chat/completions"}, "passes without a setting"),
    ({"path": "/v1/embeddings", "method": "GET"}, "passes without a setting"),
    ({"path": "/v1/audio/own"}, "`/v1/audio/*`, a path that passes without a setting"),
    ({"path": "/inference/*"}, "`/inference/v1/generate`, a path that passes without a setting"),
    ({"path": "/v1/responses/resp_1", "method": "GET"}, "answers that engines keep"),
    ({"path": OWN, "kind": "queued"}, "leased"),
    ({"path": OWN, "method": "TRACE"}, "GET"),
    ({"path": OWN, "model": ""}, "field's name"),
    ({"path": OWN, "name": "x"}, "unknown"),
    ({"kind": "free"}, "path"),
]


@pytest.mark.parametrize(("entry", "told"), REFUSED, ids=[json.dumps(entry)[:60] for entry, _ in REFUSED])
def test_what_cannot_be_meant_is_refused_with_a_sentence(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_mapping({"paths": [{"path": "/v1/good"}, entry]})
    (problem,) = refused.value.problems
    assert problem.path.startswith("paths[1]")
    assert told in problem.line()


def test_a_path_and_method_are_listed_once() -> None:
    same = [{"path": OWN}, {"path": OWN, "method": "GET"}, {"path": OWN, "method": "post", "kind": "free"}]
    with pytest.raises(ConfigError) as refused:
        from_mapping({"paths": same})
    assert [problem.line() for problem in refused.value.problems] == [
        "paths[2].path: POST `/v1/own` is the same as paths[0] (leave one out)"
    ]
