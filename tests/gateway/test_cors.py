"""CORS: a page whose origin is listed may use the API from a browser; no other page may, and none sees `/admin`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import ConfigError, from_mapping
from penstock.core.values.rows import Allowance, Left
from penstock.gateway.identity.callers import key_hash
from penstock.gateway.identity.cors import EXPOSED
from penstock.gateway.openai.errors import rate_limits
from tests.gateway.conftest import CHAT, Answer, World, chat

PAGE, OTHER, EVIL = "https://chat.example.com", "https://else.example.com", "https://evil.example"
CORS = {"origins": [PAGE, OTHER]}
KEY = "pk-a-key-of-a-page-0000000000000000"
KEYED = {
    "identity": {"require_key": True},
    "tenants": [{"name": "web", "keys": [key_hash(KEY)]}],
}
ASKS = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


async def preflight(world: World, origin: str, path: str = CHAT, **more: str) -> Answer:
    return await world.ask("OPTIONS", path, headers={"origin": origin, **ASKS, **more})


def cors(answer: Answer) -> dict[str, str]:
    names = [name for name, _ in answer.headers if name.startswith("access-control-")]
    assert len(names) == len(set(names)), "a browser takes none that is there twice"
    return {name.removeprefix("access-control-"): value for name, value in answer.headers if name in names}


async def test_a_page_that_is_listed_may_ask_and_read(world: World, workers: int) -> None:
    engine = await world.engine()
    await world.gateway(workers=workers, cors=CORS)
    answer = await preflight(world, PAGE)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.header("vary") == "origin"
    assert cors(answer) == {
        "allow-origin": PAGE,
        "allow-methods": "GET, POST, PUT, PATCH, DELETE",
        "allow-headers": "authorization,content-type,x-stainless-os",
        "max-age": "600",
        "expose-headers": ", ".join(EXPOSED),
    }
    assert not engine.log.entries, "a preflight costs no engine anything"
    for answer in (
        await world.ask(body=chat(), headers={"origin": OTHER}),
        await world.ask(body=chat(stream=True), headers={"origin": OTHER}),
        await world.ask(body=chat(model="nothing"), headers={"origin": OTHER}),
        await world.ask(body=b"not JSON", headers={"origin": OTHER}),
        await world.ask("GET", "/v1/models", headers={"origin": OTHER}),
        await world.ask("GET", "/v1/models/sim", headers={"origin": OTHER}),
        await world.ask("GET", "/queue", headers={"origin": OTHER}),
        await world.ask("GET", "/v1/nothing", headers={"origin": OTHER}),
        await world.ask("GET", CHAT, headers={"origin": OTHER}),
    ):
        assert cors(answer) == {"allow-origin": OTHER, "expose-headers": ", ".join(EXPOSED)}, answer
        assert "origin" in [value for name, value in answer.headers if name == "vary"]


async def test_a_path_that_the_settings_add_is_for_pages_too(world: World, workers: int) -> None:
    await world.engine()
    await world.gateway(workers=workers, cors=CORS, paths=[{"path": "/own", "kind": "free"}])
    assert (await preflight(world, PAGE, "/own")).status == 204
    assert cors(await preflight(world, PAGE, "/other")) == {}


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/state", "/metrics", "/health", "/ready", "/autoscale"])
async def test_no_page_gets_operators_paths(world: World, workers: int, path: str) -> None:
    await world.engine()
    await world.gateway(workers=workers, cors=CORS)
    assert cors(await preflight(world, PAGE, path)) == {}
    answer = await world.ask("GET", path, headers={"origin": PAGE})
    assert cors(answer) == {}
    assert not path.startswith("/admin/s") or answer.status == 403


async def test_other_pages_get_nothing(world: World) -> None:
    """On loopback without keys they are refused; elsewhere a browser hides from them what they ask for."""
    await world.engine()
    await world.gateway(cors=CORS)
    for answer in (await preflight(world, EVIL), await world.chat_with({"origin": EVIL})):
        assert answer.status == 403
        assert cors(answer) == {}
    world.document |= KEYED
    await world.gate.reload()
    assert cors(await preflight(world, EVIL)) == {}
    answer = await world.chat_with({"origin": EVIL, "authorization": f"Bearer {KEY}"})
    assert answer.status == 200
    assert cors(answer) == {}


async def test_without_the_setting_pages_get_no_headers(world: World) -> None:
    await world.engine()
    await world.gateway(**KEYED)  # type: ignore[arg-type]
    assert (await preflight(world, PAGE)).status == 405
    answer = await world.chat_with({"origin": PAGE, "authorization": f"Bearer {KEY}"})
    assert answer.status == 200
    assert cors(answer) == {}


async def test_any_page_may_where_each_needs_a_key(world: World, workers: int) -> None:
    await world.engine()
    await world.gateway(workers=workers, cors={"origins": ["*"]}, **KEYED)  # type: ignore[arg-type]
    answer = await preflight(world, EVIL)
    assert answer.status == 204
    assert cors(answer)["allow-origin"] == "*"
    refused = await world.chat_with({"origin": EVIL})
    assert (refused.status, cors(refused)["allow-origin"]) == (401, "*")
    served = await world.chat_with({"origin": EVIL, "authorization": f"Bearer {KEY}"})
    assert (served.status, cors(served)["allow-origin"]) == (200, "*")
    assert "allow-credentials" not in cors(served)


async def test_engines_cors_headers_are_dropped(world: World) -> None:
    """vLLM allows every origin unless it is told otherwise: that would hold for the gateway."""
    headers = b"access-control-allow-origin: *\r\naccess-control-allow-credentials: true\r\nx-of-engine: 1\r\n"
    body = b'{"choices":[]}'
    engine, _ = await world.scripted(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (headers, len(body), body))
    await world.gateway(endpoints=[engine], cors=CORS, **KEYED)  # type: ignore[arg-type]
    for origin, allowed in ((EVIL, None), (PAGE, PAGE)):
        answer = await world.chat_with({"origin": origin, "authorization": f"Bearer {KEY}"})
        assert (answer.status, answer.header("x-of-engine")) == (200, "1")
        assert cors(answer).get("allow-origin") == allowed
        assert "allow-credentials" not in cors(answer)


async def test_a_reload_lets_a_page_in_and_out(world: World) -> None:
    await world.engine()
    await world.gateway(cors=CORS)
    world.document["cors"] = {"origins": [EVIL]}
    await world.gate.reload()
    assert (await preflight(world, EVIL)).status == 204
    assert (await preflight(world, PAGE)).status == 403


@pytest.mark.parametrize("asked", ["", "a b", "x-good\x7f", "a" * 5000, "content-type,", "é"])
async def test_strange_header_names_are_not_repeated(world: World, asked: str) -> None:
    await world.engine()
    await world.gateway(cors=CORS)
    answer = await preflight(world, PAGE, **{"access-control-request-headers": asked})
    assert answer.status in (204, 400)
    assert "allow-headers" not in cors(answer)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"cors": {"origins": ["*"]}}, "cors.origins[0]: lets every web page use the gateway, which asks for no key"),
        ({"cors": {"origins": ["*", PAGE]}, **KEYED}, "cors.origins[0]: has no effect beside other origins"),
        ({"cors": {"origins": ["null"]}}, "cors.origins[0]: `null` is not an origin"),
        ({"cors": {"origins": [PAGE + "/path"]}}, "is not an origin"),
    ],
)
def test_dangerous_settings_are_refused(document: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        from_mapping(dict(document))


def test_every_header_of_ours_is_shown_to_pages() -> None:
    """Those that the code writes into responses, and no others."""
    source = "".join(path.read_text() for path in Path("src/penstock/gateway").rglob("*.py"))
    ours = set(re.findall(r'\(b"(x-penstock-[a-z-]+|x-should-retry|retry-after)", ', source))
    ours |= set(re.findall(r'b"(retry-after)", ', source))
    known = {name for name in EXPOSED if not name.startswith(("x-ratelimit-", "x-request-id"))}
    assert known <= {name for name in known if f'b"{name}"' in source}
    assert ours <= known, ours - known
    left = Left(1, 1, 1.0)
    rates = {name.decode() for name, _ in rate_limits(Allowance(left, left, left))}
    assert rates == {name for name in EXPOSED if name.startswith("x-ratelimit-")}
