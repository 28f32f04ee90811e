"""Metrics pages and lists of models as servers and proxies send them: redirected, packed, large, untidy, empty."""

from __future__ import annotations

import gzip
import logging
import math
import zlib

import pytest

from penstock.gateway.endpoints import observer
from tests.gateway.conftest import World
from tests.gateway.endpoints.test_not_an_engine import COMPLETION, PAGE, Site, always, answer_json, http

TEXT = b'vllm:num_requests_running{model_name="m"} 5\nvllm:num_requests_waiting{model_name="m"} 2\n'
LISTED = answer_json({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]})
BUCKETS = b"".join(
    b'vllm:e2e_request_latency_seconds_bucket{le="%d",model_name="adapter-%06d"} 12345\n' % (at % 40, at)
    for at in range(100_000)
)


def moved(status: int, location: str) -> bytes:
    return http(status, more=f"location: {location}\r\n")


def text(page: bytes, more: str = "") -> bytes:
    return http(200, page, "text/plain", more)


PAGES: dict[str, dict[bytes, bytes]] = {
    "moved to a path": {b"/metrics": moved(307, "/metrics/"), b"/metrics/": text(TEXT)},
    "moved for good": {b"/metrics": moved(301, "metrics/"), b"/metrics/": text(TEXT)},
    "moved twice": {
        b"/metrics": moved(302, "/metrics/"),
        b"/metrics/": moved(308, "/prometheus?all=1"),
        b"/prometheus?all=1": text(TEXT),
    },
    "packed": {b"/metrics": text(gzip.compress(TEXT), "content-encoding: gzip\r\n")},
    "packed by deflate": {b"/metrics": text(zlib.compress(TEXT), "content-encoding: deflate\r\n")},
    "large": {b"/metrics": text(BUCKETS + TEXT)},
    "large and packed": {b"/metrics": text(gzip.compress(TEXT + BUCKETS), "content-encoding: gzip\r\n")},
    "ended by CRLF": {b"/metrics": text(TEXT.replace(b"\n", b"\r\n"))},
    "with a byte order mark": {b"/metrics": text(b"\xef\xbb\xbf" + TEXT)},
    "without a last line break": {b"/metrics": text(TEXT.rstrip())},
    "with spaces": {
        b"/metrics": text(
            b'  vllm:num_requests_running { model_name = "m" , engine="0", }   5  \n'
            b'\tvllm:num_requests_waiting{model_name="m"}\t2 \n'
        )
    },
    "without a space": {b"/metrics": text(TEXT.replace(b"} ", b"}"))},
    "of OpenMetrics": {
        b"/metrics": text(
            b"# TYPE vllm:num_requests_running gauge\n"
            b'vllm:num_requests_running{model_name="m"} 5.0 1700000000.123\n'
            b'vllm:num_requests_waiting{model_name="m"} 2.0 # {trace_id="abc"} 0.67 1700000000.1\n# EOF\n'
        )
    },
}


async def engine(world: World, routes: dict[bytes, bytes]) -> Site:
    return await world.beside(Site(lambda path: routes.get(path, http(404, PAGE)), always(COMPLETION)))


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_is_read_as_it_comes(world: World, page: str) -> None:
    site = await engine(world, {b"/v1/models": LISTED, **PAGES[page]})
    await world.gateway(endpoints=[{"url": site.url}], observe={"interval": "50ms", "fast_interval": "50ms"})
    await world.until(lambda: world.picture().endpoints[0].engine_running is not None)
    seen = world.picture().endpoints[0]
    assert (seen.engine_running, seen.engine_waiting) == (5.0, 2.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            moved(307, "http://elsewhere:1/metrics"),
            "redirects to http://elsewhere:1/metrics, which is outside",
        ),
        (moved(307, "/metrics"), "redirects to /metrics"),
        (text(b"\x00" * 100, "content-encoding: gzip\r\n"), "can't be read: The body is not valid gzip."),
        (text(TEXT, "content-encoding: zstd\r\n"), "can't be read: The body's content-encoding is not supported"),
        (text(b"#" * ((16 << 20) + 1)), "can't be read: a body of more than 16777216 bytes"),
    ],
    ids=["to another host", "in a circle", "badly packed", "packed otherwise", "too large"],
)
async def test_an_unreadable_page_is_logged_once(
    world: World, caplog: pytest.LogCaptureFixture, answer: bytes, words: str
) -> None:
    caplog.set_level(logging.WARNING)
    asked: list[bytes] = []
    routes = {b"/v1/models": LISTED, b"/metrics": answer}

    def get(path: bytes) -> bytes:
        asked.append(path)
        return routes.get(path, http(404, PAGE))

    site = await world.beside(Site(get, always(COMPLETION)))
    await world.gateway(endpoints=[{"url": site.url}], observe={"interval": "20ms", "fast_interval": "20ms"})
    await world.until(lambda: asked.count(b"/metrics") >= 8)
    await world.until(lambda: words in caplog.text)
    assert caplog.text.count(words) == 1
    assert (await world.chat(model="m")).status == 200


async def test_lists_and_probes_are_redirected_too(world: World) -> None:
    routes = {b"/v1/models": moved(301, "/v1/models/"), b"/v1/models/": LISTED, b"/health": moved(307, "/health/")}
    site = await engine(world, {**routes, b"/health/": http(200)})
    await world.gateway(endpoints=[{"url": site.url}])
    await world.until(lambda: world.picture().endpoints[0].models == ["m"])
    assert world.picture().endpoints[0].state == "up"


async def test_a_list_that_is_elsewhere_is_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    site = await engine(world, {b"/v1/models": moved(301, "https://gpu.internal/v1/models")})
    world.engines.clear()
    await world.gateway(endpoints=[{"url": site.url}])
    await world.until(lambda: "redirects to https://gpu.internal/v1/models: write that in `url`" in caplog.text)


NOTHING: dict[str, object] = {
    "Ollama": {"object": "list", "data": None},
    "models that are null": {"models": None},
    "no models": {"models": []},
    "a router without models": {"object": "list", "data": [], "models": []},
    "no entries": {"object": "list"},
    "a bare list": [],
    "entries without a name": {"data": [{"id": None}, {"object": "model"}]},
}


@pytest.mark.parametrize("listing", NOTHING)
async def test_an_ollama_without_models_is_an_engine_that_loads_none(
    world: World, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    monkeypatch.setattr(observer, "LOADING_S", math.inf)  # of engines whose empty list may mean that they load a model
    site = await engine(
        world, {b"/v1/models": answer_json(NOTHING[listing]), b"/api/version": answer_json({"version": "0.11.0"})}
    )
    world.engines.clear()
    await world.gateway(endpoints=[{"url": site.url}])
    await world.until(lambda: world.picture().endpoints[0].models == [])
    assert world.picture().endpoints[0].state == "up"
    answer = await world.chat()
    assert (answer.status, answer.error()["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    "listing",
    [[{"id": "m"}], {"models": [{"name": "m", "model": "m"}]}, {"data": [{"id": None}, {"id": "m"}]}],
    ids=["a bare list", "models", "one without a name"],
)
async def test_a_list_in_another_form_is_read(world: World, listing: object) -> None:
    site = await engine(world, {b"/v1/models": answer_json(listing)})
    await world.gateway(endpoints=[{"url": site.url}])
    await world.until(lambda: world.picture().endpoints[0].models == ["m"])
    assert (await world.chat(model="m")).status == 200
