"""Engines at unix sockets: `endpoints[].url: unix:/path[:/prefix]`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.address import endpoint_url, host_and_port, same_place
from penstock.config.load import ConfigError, load
from penstock.config.problems import Refused
from penstock.http.client.pool import Upstream, UpstreamException
from tests.gateway.conftest import World
from tests.gateway.raw_engine import OK, Peer, RawEngine, on_both_loops

ANSWER = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: the path of a socket has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pen") as made:
        yield Path(made)


class Engine:
    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def __call__(self, peer: Peer) -> None:
        while True:
            whole = await peer.request()
            self.heads.append(whole.partition(b"\r\n\r\n")[0])
            data = json.dumps(ANSWER).encode()
            await peer.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data
            )


@pytest.mark.parametrize("workers", [1, 2])
async def test_an_engine_at_a_unix_socket_serves(world: World, folder: Path, workers: int) -> None:
    engine = Engine()
    raw = await world.beside(RawEngine(engine, socket=str(folder / "vllm.sock")))
    endpoint = {"url": f"{raw.url}:/base", "engine": "openai", "models": ["sim"], "slots": 4}
    more: dict[str, Any] = {"workers": 2} if workers == 2 else {}
    await world.gateway(endpoints=[endpoint], **more)
    for _ in range(4):
        answer = await world.ask(body={"model": "sim", "messages": []})
        assert (answer.status, answer.json()["choices"][0]["message"]["content"]) == (200, "hi")
    heads = [head for head in engine.heads if head.startswith(b"POST")]
    assert len(heads) == 4
    assert heads[0].startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    assert [endpoint.name for endpoint in world.picture().endpoints] == ["vllm.sock"]


async def test_an_engine_whose_socket_is_missing_is_down_and_another_serves(world: World, folder: Path) -> None:
    raw = await world.beside(RawEngine(Engine(), socket=str(folder / "here.sock")))
    common = {"engine": "openai", "models": ["sim"], "slots": 4}
    await world.gateway(endpoints=[{"url": f"unix:{folder}/gone.sock", **common}, {"url": raw.url, **common}])
    for _ in range(4):
        assert (await world.ask(body={"model": "sim", "messages": []})).status == 200


@on_both_loops
async def test_a_connection_to_a_unix_socket_is_used_again() -> None:
    async def script(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            await peer.send(OK)
        await peer.gone()

    with tempfile.TemporaryDirectory(prefix="pen") as made:
        async with RawEngine(script, socket=f"{made}/x.sock") as engine:
            upstream = Upstream(engine.url)
            assert upstream.place == (f"{made}/x.sock", 0)
            for _ in range(2):
                assert (await upstream.fetch("GET", "/", timeout_s=10.0)).body == b"ok"
            assert len(engine.peers) == 1
            assert upstream.unpooled().place == upstream.place
            upstream.close()
        missing = Upstream(f"unix:{made}/missing.sock")
        with pytest.raises(UpstreamException, match="connect"):
            await missing.fetch("GET", "/", timeout_s=10.0)
        missing.close()


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("unix:/run/vllm.sock", "unix:/run/vllm.sock"),
        ("unix:///run/vllm.sock", "unix:/run/vllm.sock"),
        ("unix:/run/vllm.sock:/base/", "unix:/run/vllm.sock:/base"),
        ("unix:/run/vllm.sock:/", "unix:/run/vllm.sock"),
    ],
)
def test_urls_of_sockets_have_one_form(written: str, normal: str) -> None:
    assert endpoint_url(written) == normal
    assert host_and_port(normal) == "vllm.sock"


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("unix:run/vllm.sock", "for example unix:/run/vllm.sock"),
        ("unix://host/x.sock", "for example unix:/run/vllm.sock"),
        ("unix:/run/", "for example unix:/run/vllm.sock"),
        ("unix:/run/a,b.sock", "for example unix:/run/vllm.sock"),
        ("unix:/x.sock:base", "write `unix:/x.sock:/base`"),
        ("unix:/x.sock:/v1", "write `unix:/x.sock`"),
        ("unix:/x.sock:/a/v1", "write `unix:/x.sock:/a`"),
        ("unix:/" + "x" * 107, None),
        ("unix:/x.sock:/a?b", None),
    ],
)
def test_mistakes_are_refused_with_what_was_meant(written: str, hint: str | None) -> None:
    with pytest.raises(Refused) as refused:
        endpoint_url(written)
    assert refused.value.suggestion == hint


def test_two_prefixes_of_one_socket_are_two_places() -> None:
    assert same_place("unix:/x.sock:/a") != same_place("unix:/x.sock:/b") != same_place("unix:/x.sock")
    assert same_place("unix:/x.sock") == same_place("unix:/x.sock")


def test_a_proxy_that_asks_the_picker_cannot_reach_a_socket(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("endpoints: [{url: 'unix:/run/x.sock'}]\nepp: {listen: '127.0.0.1:9002'}\n")
    with pytest.raises(ConfigError, match="is a unix socket"):
        load(str(file), {})
