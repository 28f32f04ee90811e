"""A base URL with a `/v1` too many or too few is told what was meant; nothing of it reaches an engine."""

from __future__ import annotations

import pytest

from penstock.gateway.openai.wrong_paths import meant_instead
from tests.gateway.conftest import Answer, World, chat, request

OPENAI, ANTHROPIC = "of OpenAI's clients ends in `/v1`, once", "of Anthropic's clients ends without `/v1`"
BARE = ("/chat/completions", "/completions", "/embeddings")


def message(answer: Answer, status: int = 404, code: str = "path_not_found") -> str:
    assert (answer.status, answer.error()["code"]) == (status, code)
    text: str = answer.error()["message"]
    return text


@pytest.mark.parametrize(
    ("path", "meant", "advice"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions", OPENAI),
        ("/v1/v1/v1/embeddings", "/v1/embeddings", OPENAI),
        ("/v1/v1/messages", "/v1/messages", ANTHROPIC),
        ("/api/v1/chat/completions", "/v1/chat/completions", OPENAI),
        ("//v1/chat/completions", "/v1/chat/completions", OPENAI),
        ("/v1/chat/completions/", "/v1/chat/completions", OPENAI),
        ("/responses", "/v1/responses", OPENAI),
        ("/audio/transcriptions", "/v1/audio/transcriptions", OPENAI),
        ("/messages", "/v1/messages", ANTHROPIC),
    ],
)
async def test_a_wrong_base_url_gets_the_right_path_as_a_hint(world: World, path: str, meant: str, advice: str) -> None:
    await world.engine()
    await world.gateway()
    text = message(await world.ask(path=path, body=chat()))
    assert text.startswith(f"There is no path `{path}`. `{meant}` is meant")
    assert advice in text
    assert world.seen() == []


async def test_our_own_paths_are_meant_too(world: World) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}])
    for path, meant in (("/models", "/v1/models"), ("/v1/v1/models/sim", "/v1/models/sim"), ("/v1/health", "/health")):
        assert f"`{meant}` is meant" in message(await world.ask("GET", path))
    for path in ("/v1", "/v1/", "/v1/v1"):
        assert "`/v1` is the end of a base URL" in message(await world.ask("GET", path))
    for path in ("/nobody/knows", "/v2/chat", "/v1/chat"):
        assert message(await world.ask("GET", path)) == "There is no such path."


@pytest.mark.parametrize("path", BARE)
async def test_a_path_without_v1_gets_a_hint_if_no_engine_has_it(world: World, path: str) -> None:
    await world.engine()
    await world.gateway()
    text = message(await world.ask(path=path, body=chat()))
    assert text.startswith(f"No engine here serves `{path}`. `/v1{path}` is meant")
    assert OPENAI in text
    assert world.seen() == []
    assert (await world.ask(path=f"/v1{path}", body=chat() | {"prompt": "x", "input": "x"})).status == 200


@pytest.mark.parametrize("path", BARE)
async def test_a_path_without_v1_passes_where_an_engine_may_have_it(world: World, path: str) -> None:
    await world.engine()
    endpoint, requests = await world.scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await world.gateway(endpoints=[{**endpoint, "models": ["other"]}, {"url": world.engines[0].url}])
    assert (await world.ask(path=path, body=chat(model="other"))).status == 200
    assert requests[0].startswith(f"POST {path} ".encode())


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/files/file-1/content"])
async def test_where_batches_are_off_the_setting_is_named(world: World, path: str) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}])
    text = message(await world.ask("GET", path))
    assert "switched off" in text
    assert "`batch.serve: true`" in text


def test_with_batches_off_a_wrong_base_url_gets_that_hint_first() -> None:
    for path in ("/v1/v1/files", "/batches", "/v1/batches/"):
        assert "`batch.serve: true`" in (meant_instead(path, lambda _: False) or "")


async def test_the_root_names_the_gateway_and_its_main_paths(world: World) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}], admin={"token": "secret-of-the-operators"})
    answer = await world.ask("GET", "/")
    assert (answer.status, answer.header("content-type")) == (200, "text/plain; charset=utf-8")
    text = answer.body.decode()
    for word in ("Penstock", "/v1/chat/completions", "without /v1", "/ready", "/queue", "/admin/", "/metrics"):
        assert word in text
    for path in ("/v1/models", "/ready", "/queue", "/metrics", "/admin/"):
        assert (await world.ask("GET", path)).status == 200, "what it names is there"
    client = await world.client(request("HEAD", "/"))
    assert (await client.head()).status == 200
    client.hang_up()
    posted = await world.ask(path="/", body=chat())
    assert message(posted, 405, "method_not_allowed") == "This path takes GET, HEAD, OPTIONS, not POST."
    assert posted.header("allow") == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/engines", "GET"),
        ("POST", "/v1/responses/resp-1", "GET, DELETE"),
        ("PUT", "/v1/batches", "GET, POST"),
        ("PUT", "/admin/state", "GET"),
    ],
)
async def test_a_wrong_method_gets_the_right_one(
    world: World, method: str, path: str, allow: str, tmp_path: object
) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}], batch={"data": str(tmp_path)})
    answer = await world.ask(method, path, headers={})
    assert message(answer, 405, "method_not_allowed") == f"This path takes {allow}, not {method}."
    assert answer.header("allow") == allow


def test_a_very_long_path_is_not_looked_at() -> None:
    path = "/v1/v1/" + "x" * 200
    assert meant_instead(path, lambda _: True) is None
    assert meant_instead("/v1" * 20 + "/models", lambda path: path == "/v1/models") is not None
