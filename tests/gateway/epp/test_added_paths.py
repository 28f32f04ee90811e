"""A proxy's requests pass on the same paths as those over HTTP, and take a lease for the same kinds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import World
from tests.gateway.epp.test_messages import Proxy, headers, pool

OWN = "/v1/own"


async def ended(stream: Proxy) -> None:
    await stream.answered()
    await stream.answer_body(b'{"fine": true}', b"")
    assert (await stream.hears()).WhichOneof("response") == "response_headers"
    await stream.hears_body("response_body")
    await stream.call.done_writing()


@pytest.mark.parametrize(
    ("path", "leases"),
    [(OWN, 1), ("/v1/pooled", 1), ("/v1/free", 0), ("/v1/chat/completions/batch", 1), ("/v1/tokenize", 0)],
)
async def test_the_kind_of_a_path_decides_about_its_lease(world: World, path: str, leases: int) -> None:
    paths: list[dict[str, Any]] = [
        {"path": OWN},
        {"path": "/v1/pooled", "kind": "pooled"},
        {"path": "/v1/free", "kind": "free"},
    ]
    async with pool(world, 1, paths=paths) as its:
        stream = its.stream()
        await stream.head(path=path)
        await stream.body(b'{"model": "sim"}')
        await stream.picked()
        await stream.hears_body("request_body")
        assert world.picture().running == leases
        await ended(stream)


@pytest.mark.parametrize(("kind", "leases"), [("free", 0), ("leased", 1)])
async def test_a_request_without_a_body_is_picked_an_endpoint_and_an_alias_in_its_query_is_replaced(
    world: World, kind: str, leases: int
) -> None:
    paths = [{"path": OWN, "method": "GET", "kind": kind}]
    async with pool(world, 1, paths=paths, models={"nice": {"to": "sim"}}) as its:
        for asked, sent in (("sim", None), ("nice", f"{OWN}?x=1&model=sim")):
            stream = its.stream()
            await stream.head("GET", f"{OWN}?x=1&model={asked}", end=True)
            assert headers((await stream.hears()).request_headers).get(":path") == sent, "as it came, if it may"
            assert world.picture().running == leases
            await ended(stream)


async def test_other_methods_and_paths_are_refused_as_over_http(world: World) -> None:
    async with pool(world, 1, paths=[{"path": OWN, "method": "GET"}]) as its:
        for method, path, status in (("POST", OWN, 405), ("GET", OWN + "/x", 404), ("GET", "/v1/other", 404)):
            stream = its.stream()
            await stream.head(method, path, end=True)
            assert (await stream.refused())[0] == status
