"""Only an engine is an engine, over real sockets: file servers, login pages and ingresses among the endpoints."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import pytest

from tests.gateway.conftest import CHAT, Answer, World, chat
from tests.gateway.raw_engine import Peer, RawEngine
from tests.patience import looks

STRIKES_MAX = 3

PAGE = b"<!doctype html><title>Not what you look for</title>"


def http(status: int, body: bytes = b"", content_type: str = "text/html", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\n{more}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer_json(document: object, status: int = 200) -> bytes:
    return http(status, json.dumps(document).encode(), "application/json")


COMPLETION = answer_json(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
)


class Site(RawEngine):
    """Something that answers HTTP; `posts` are the requests that reached it beside what the gateway asks itself."""

    def __init__(self, get: Callable[[bytes], bytes], post: Callable[[bytes], bytes]) -> None:
        self.get, self.post = get, post
        self.posts: list[bytes] = []
        super().__init__(self._answers)

    async def _answers(self, peer: Peer) -> None:
        while True:
            data = await peer.request()
            if data.startswith(b"GET "):
                await peer.send(self.get(data.split(b" ")[1]))
            else:
                self.posts.append(data)
                await peer.send(self.post(data))


def always(data: bytes) -> Callable[[bytes], bytes]:
    return lambda _: data


SITES = {
    "a file server": (always(http(404, PAGE)), always(http(501, PAGE))),
    "nginx": (always(http(404, PAGE)), always(http(405, PAGE))),
    "an ingress without a route": (always(http(404, b"404 page not found\n", "text/plain")),) * 2,
    "another service": (always(answer_json({"detail": "Not Found"}, 404)),) * 2,
    "a bucket": (always(http(404, b"<Error/>", "application/xml")), always(http(403, b"<Error/>", "application/xml"))),
    "a login": (always(http(404, PAGE)), always(http(302, b"", more="location: /login\r\n"))),
    "one page for all": (always(http(200, PAGE)),) * 2,
    "an API without this model": (always(http(404, PAGE)), always(answer_json({"error": {"message": "what?"}}, 404))),
}


@pytest.mark.parametrize(
    "named", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["models asked", "models named"]
)
@pytest.mark.parametrize("site", SITES)
async def test_of_500_requests_at_most_three_reach_what_is_no_engine_and_none_fails(
    world: World, site: str, *, named: bool
) -> None:
    engine = await world.engine(max_num_seqs=16)
    other = await world.beside(Site(*SITES[site]))
    more = {"models": ["sim"]} if named else {}
    world.engines.clear()  # not all endpoints will tell their models
    await world.gateway(endpoints=[{"url": other.url, **more}, {"url": engine.url, "slots": 16}])
    world.engines.append(engine)
    await world.until(lambda: world.picture().endpoints[1].models)
    at_once = asyncio.Semaphore(24)

    async def one(at: int) -> Answer:
        async with at_once:
            return await world.chat(f"hello {at}", tokens=1)

    answers = await asyncio.gather(*[one(at) for at in range(500)])
    assert [answer.status for answer in answers] == [200] * 500
    assert {answer.header("x-penstock-endpoint") for answer in answers} == {engine.url.partition("//")[2]}
    assert len(other.posts) <= STRIKES_MAX
    states = [endpoint.state for endpoint in world.picture().endpoints]
    assert states == ["unproven", "up"]
    assert "is not answering as an engine does" in (await world.ask("GET", "/admin/state")).json()["headline"]


@pytest.mark.parametrize("site", ["a file server", "a login", "one page for all"])
async def test_what_the_operator_took_for_an_engine_by_mistake_gets_no_more_requests(world: World, site: str) -> None:
    """It got as many as were under way before the first was answered."""
    engine = await world.engine(max_num_seqs=16)
    other = await world.beside(Site(*SITES[site]))
    world.engines.clear()
    word = {"engine": "openai", "models": ["sim"], "slots": 16}
    await world.gateway(endpoints=[{"url": other.url, **word}, {"url": engine.url, "slots": 16}])
    world.engines.append(engine)
    await world.until(lambda: world.picture().endpoints[1].models)
    answers = await asyncio.gather(*[world.chat(f"hello {at}", tokens=1) for at in range(24)])
    assert [answer.status for answer in answers] == [200] * 24
    assert 1 <= len(other.posts) <= STRIKES_MAX
    assert world.picture().endpoints[0].state == "unproven"


async def test_an_engine_that_is_loading_and_answers_404_and_503_serves_as_soon_as_it_does(world: World) -> None:
    """It is alone, and its probe, its list and its answers say different things on the way."""
    site = await world.beside(Site(always(http(404, PAGE)), always(http(404, PAGE))))
    await world.gateway(endpoints=[{"url": site.url}])
    await world.until(lambda: not world.picture().endpoints[0].models and world.picture().endpoints[0].state != "up")
    assert (await world.chat()).error()["code"] == "model_not_found"
    site.get = site.post = always(http(503, b"loading model", "text/plain"))
    await world.until(lambda: world.picture().endpoints[0].state == "loading")
    listing = {"object": "list", "data": [{"id": "sim", "object": "model", "owned_by": "who knows"}]}
    site.get = lambda path: answer_json(listing) if path == b"/v1/models" else http(404, PAGE)
    site.post = always(COMPLETION)
    await world.until(lambda: world.picture().endpoints[0].state == "up")
    assert [(await world.chat()).status for _ in range(5)] == [200] * 5


async def test_an_engine_that_lists_nothing_proves_itself_by_its_first_answer(world: World) -> None:
    site = await world.beside(Site(always(http(404, PAGE)), always(COMPLETION)))
    await world.gateway(endpoints=[{"url": site.url}])
    assert (await world.chat()).status == 200
    assert world.picture().endpoints[0].state == "up"
    answers = await asyncio.gather(*[world.chat() for _ in range(20)])
    assert {answer.status for answer in answers} == {200}


async def test_unknown_names_do_not_close_an_engine_that_lists_nothing(world: World) -> None:
    """Its words for it are its own; one caller in ten asks for what is there."""
    missing = answer_json({"error": {"message": "no adapter of that name", "code": 404}}, 404)
    site = await world.beside(Site(always(http(404, PAGE)), lambda data: COMPLETION if b'"sim"' in data else missing))
    await world.gateway(endpoints=[{"url": site.url}])
    answers = [await world.ask(body=chat(model="sim" if at % 10 == 9 else "lora")) for at in range(50)]
    assert [answer.status for answer in answers] == [200 if at % 10 == 9 else 404 for at in range(50)]
    assert world.picture().endpoints[0].state == "up"
    assert [model.name for model in world.picture().models] == ["sim"]


async def test_a_path_that_an_engine_does_not_have_is_the_callers_mistake(world: World) -> None:
    """As FastAPI says it; the engine answers chats."""
    listing = {"object": "list", "data": [{"id": "sim", "object": "model", "owned_by": "vllm"}]}
    none = answer_json({"detail": "Not Found"}, 404)
    site = await world.beside(
        Site(
            lambda path: answer_json(listing) if path == b"/v1/models" else http(404),
            lambda data: COMPLETION if CHAT.encode() in data else none,
        )
    )
    await world.gateway(endpoints=[{"url": site.url}])
    await world.until(lambda: world.picture().endpoints[0].models)
    for _ in range(3 * STRIKES_MAX):
        answer = await world.ask(path="/v1/embeddings", body={"model": "sim", "input": "x"})
        assert (answer.status, answer.json()) == (404, {"detail": "Not Found"})
    assert (await world.chat()).status == 200
    assert world.picture().endpoints[0].state == "up"


async def test_an_engine_whose_route_is_gone_is_closed_and_comes_back_with_its_next_good_answer(world: World) -> None:
    """It listed models and served; now its proxy has lost it, and answers 404 to everything."""
    engine = await world.engine(max_num_seqs=8)
    site = await world.beside(Site(always(http(404, PAGE)), always(COMPLETION)))
    await world.gateway(
        endpoints=[{"url": site.url, "engine": "openai", "models": ["sim"]}, {"url": engine.url, "slots": 8}]
    )
    await asyncio.gather(*[world.chat() for _ in range(20)])
    assert site.posts
    site.posts.clear()
    site.post = always(http(404, PAGE))
    answers = [await world.chat() for _ in range(60)]
    assert {answer.status for answer in answers} == {200}
    assert len(site.posts) == STRIKES_MAX
    site.post = always(COMPLETION)
    pinned = {"x-penstock-endpoint": site.url.partition("//")[2]}
    assert (await world.ask(body=chat(), headers=pinned)).status in (200, 403)


async def test_the_operators_word_counts_and_what_needs_it_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    site = await world.beside(Site(always(http(404, PAGE)), always(COMPLETION)))
    again = await world.beside(Site(always(http(404, PAGE)), always(COMPLETION)))
    await world.gateway(
        endpoints=[{"url": site.url, "engine": "openai", "models": ["sim"]}, {"url": again.url, "models": ["sim"]}]
    )
    await world.until(lambda: "gives no sign of an engine" in caplog.text)
    assert [endpoint.state for endpoint in world.picture().endpoints] == ["up", "unproven"]
    seen = (await world.ask("GET", "/admin/state")).json()
    assert seen["slots"] == seen["endpoints"][1]["slots"], "the other one is sent nothing, so it has none"
    assert "1 of 2 engines is up." in seen["headline"]
    assert f"`penstock endpoint resume {seen['endpoints'][0]['name']}`" in seen["advice"]
    assert caplog.text.count("write `engine: openai` and its `models`") == 1


@pytest.mark.virtual_time
async def test_an_engine_that_leaves_questions_unanswered_is_silent_within_three_seconds_and_up_again_at_once(
    world: World,
) -> None:
    answers = asyncio.Event()
    answers.set()

    async def script(peer: Peer) -> None:
        while True:
            data = await peer.request()
            await answers.wait()
            path = data.split(b" ")[1]
            await peer.send(http(200, b"vllm:num_requests_running 0.0\n") if path == b"/metrics" else answer_json({}))

    raw = await world.beside(RawEngine(script))
    await world.gateway(endpoints=[{"url": raw.url, "engine": "vllm", "models": ["sim"]}], observe={"interval": "1s"})
    await world.until(lambda: world.picture().endpoints[0].state == "up")
    answers.clear()
    began_s = asyncio.get_running_loop().time()
    await world.until(lambda: world.picture().endpoints[0].state == "silent")
    assert asyncio.get_running_loop().time() - began_s <= 3
    answers.set()
    await world.until(lambda: world.picture().endpoints[0].state == "up")


@pytest.mark.virtual_time
async def test_an_engine_whose_metrics_page_alone_hangs_is_not_silent(world: World) -> None:
    asked, over = 0, asyncio.Event()

    async def script(peer: Peer) -> None:
        nonlocal asked
        while True:
            data = await peer.request()
            if data.startswith(b"GET /metrics"):
                asked += 1
                await over.wait()
            await peer.send(answer_json({}))

    raw = await world.beside(RawEngine(script))
    endpoint = {"url": raw.url, "engine": "vllm", "models": ["sim"]}
    await world.gateway(endpoints=[endpoint], observe={"interval": "1s"})
    states = set()
    async for _ in looks(60.0, 0.1):
        states.add(world.picture().endpoints[0].state)
        if asked >= 4:
            break
    over.set()
    assert states == {"up"}
