"""Of several endpoints of a model a request goes to one that can take it: by its length, and by what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from penstock.core.values.catalogue import Failure
from penstock.gateway.openai.unfit import refuses
from tests.gateway.conftest import World, chat
from tests.gateway.epp.test_messages import Pool, another
from tests.gateway.proxy.test_engine_paths import whole
from tests.gateway.raw_engine import Peer, RawEngine
from tests.ports import free_port

OK = whole({"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]})
BLIND = {"error": {"message": "m is not a multimodal model", "type": "BadRequestError", "code": 400}}
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]


def too_long(context: int) -> bytes:
    words = f"This model's maximum context length is {context} tokens. However, your request has 9000 input tokens."
    return whole({"error": {"message": words, "type": "BadRequestError", "code": 400}}, b"400 Bad Request")


class Engines:
    """Scripted engines, by name, and what each was asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: dict[str, int] = {}
        self.endpoints: list[dict[str, Any]] = []

    async def add(self, name: str, answer: Callable[[bytes], bytes], context: int | None) -> None:
        self.asked[name] = 0
        listed: dict[str, Any] = {"id": "sim", "owned_by": "vllm"}
        models = {"object": "list", "data": [listed if context is None else {**listed, "max_model_len": context}]}

        async def script(peer: Peer) -> None:
            while True:
                data = await peer.request()
                if data.startswith(b"POST "):
                    self.asked[name] += 1
                    await peer.send(answer(data))
                else:
                    await peer.send(whole(models if b"/v1/models" in data[:20] else {}))

        raw = await self.world.beside(RawEngine(script))
        self.endpoints.append({"url": raw.url, "name": name, "slots": 8})

    async def start(self, **settings: Any) -> None:
        settings = {"routing": {"policy": "round_robin"}} | settings
        await self.world.gateway(endpoints=self.endpoints, **settings)
        await self.world.until(lambda: all(e.models for e in self.world.picture().endpoints))


async def two(world: World, small: int | None, large: int | None, taken: int = 0, **settings: Any) -> Engines:
    """Two engines, of which the small one takes bodies of up to so many bytes."""
    engines = Engines(world)
    await engines.add("small", lambda data: OK if len(data) <= taken else too_long(small or 4096), small)
    await engines.add("large", lambda _: OK, large)
    await engines.start(**settings)
    return engines


@pytest.mark.parametrize("settings", [{}, {"queue": {"enabled": False}}], ids=["queued", "not queued"])
async def test_a_long_prompt_goes_where_the_context_is_long_enough(world: World, settings: dict[str, Any]) -> None:
    engines = await two(world, 4096, 32768, **settings)
    for _ in range(4):
        assert (await world.chat("word " * 8000)).status == 200
    assert engines.asked == {"small": 0, "large": 4}


async def test_short_prompts_go_to_both(world: World) -> None:
    engines = await two(world, 4096, 32768, taken=20_000)
    for _ in range(4):
        assert (await world.chat("word " * 100)).status == 200
    assert engines.asked == {"small": 2, "large": 2}


async def test_an_answer_that_is_too_long_for_one_goes_to_the_other(world: World) -> None:
    engines = await two(world, 4096, 32768)
    for _ in range(2):
        assert (await world.chat("hi", tokens=5000)).status == 200
    assert engines.asked == {"small": 0, "large": 2}


@pytest.mark.parametrize(("small", "large"), [(4096, 32768), (4096, None), (None, None)])
async def test_a_refusal_for_its_length_is_asked_elsewhere(world: World, small: int | None, large: int | None) -> None:
    """Prompts are estimated: this one seems to fit, and does not."""
    engines = await two(world, small, large)
    for _ in range(2):
        answer = await world.chat("word " * 3000)
        assert (answer.status, answer.header("x-penstock-endpoint")) == (200, "large")
    assert engines.asked == {"small": 2, "large": 2}
    assert await world.metric("penstock_requests_total", outcome="completed", model="sim") == 2
    assert await world.metric("penstock_requeues_total", reason="too_long") == 2


async def test_where_all_contexts_are_alike_the_first_refusal_is_the_answer(world: World) -> None:
    engines = Engines(world)
    for name in ("a", "b"):
        await engines.add(name, lambda _: too_long(4096), 4096)
    await engines.start()
    answer = await world.chat("word " * 8000)
    assert (answer.status, answer.json()["error"]["code"]) == (400, 400)
    assert answer.header("x-penstock-reason") is None
    assert sum(engines.asked.values()) == 1
    assert await world.metric("penstock_requests_total", outcome="completed", model="sim") == 1


async def test_after_the_last_attempt_the_last_refusal_passes(
    world: World,
) -> None:
    engines = Engines(world)
    for name in "abcd":
        await engines.add(name, lambda _: too_long(4096), None)
    await engines.start()
    answer = await world.chat()
    assert (answer.status, answer.json()["error"]["type"]) == (400, "BadRequestError")
    assert sum(engines.asked.values()) == 3
    pinned = await world.ask(path="/v1/chat/completions?id=a", body=chat())
    assert pinned.status == 400
    assert sum(engines.asked.values()) == 4
    assert [e.state for e in world.picture().endpoints] == ["up"] * 4


async def test_an_engine_that_refused_pictures_gets_no_more_of_them(world: World) -> None:
    engines = Engines(world)
    blind = whole(BLIND, b"400 Bad Request")
    await engines.add("blind", lambda data: blind if b"image_url" in data else OK, 4096)
    await engines.add("sees", lambda _: OK, 4096)
    await engines.start()
    for _ in range(4):
        assert (await world.ask(body={"model": "sim", "messages": PICTURE})).status == 200
    assert engines.asked == {"blind": 1, "sees": 4}
    for _ in range(4):
        assert (await world.chat()).status == 200
    assert engines.asked["blind"] > 1, "what is text goes there as before"


@pytest.mark.parametrize(
    ("status", "words", "expected"),
    [
        (400, "This model's maximum context length is 4096 tokens.", Failure.TOO_LONG),
        (400, "The input (9000 tokens) is longer than the model's context length (4096 tokens).", Failure.TOO_LONG),
        (400, "the request exceeds the available context size, try increasing it", Failure.TOO_LONG),
        (422, "Input validation error: `inputs` must have less than 4096 tokens. Given: 9000", Failure.TOO_LONG),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000", Failure.TOO_LONG),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", Failure.TOO_LONG),
        (413, "Payload Too Large", Failure.TOO_LONG),
        (400, "m is not a multimodal model", Failure.MODALITY),
        (400, "At most 0 image(s) may be provided in one request.", Failure.MODALITY),
        (400, "image input is not supported - hint: you may need to provide the mmproj", Failure.MODALITY),
        (400, "This model does not support audio input.", Failure.MODALITY),
        (400, "temperature must be at least 0", None),
        (422, "Extra inputs are not permitted", None),
    ],
)
def test_the_subject_of_a_refusal_is_read_from_engines_words(status: int, words: str, expected: Failure | None) -> None:
    body = json.dumps({"error": {"message": words}}).encode()
    assert refuses(status, body, has_media=True) is expected
    assert refuses(status, body, has_media=False) is (None if expected is Failure.MODALITY else expected)


# --- started without a flag, or without a path -----------------------------------------------------------------------

TOOL = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
NO_PARSER = whole({"object": "error", "message": AUTO, "type": "BadRequestError", "code": 400}, b"400 Bad Request")
JINJA = {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}}
NO_JINJA = whole(JINJA, b"500 Internal Server Error")
NOT_FOUND = whole({"detail": "Not Found"}, b"404 Not Found")
VECTORS = whole({"object": "list", "data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}})


def with_tools(**more: Any) -> dict[str, Any]:
    return chat(tools=TOOL, **more)


def lacks(refusal: bytes, sign: bytes) -> Callable[[bytes], bytes]:
    """An engine that refuses requests with this sign."""
    return lambda data: refusal if sign in data else OK


async def one_lacks(world: World, refusal: bytes, sign: bytes = b'"tools"', **settings: Any) -> Engines:
    engines = Engines(world)
    await engines.add("bare", lacks(refusal, sign), 4096)
    await engines.add("able", lambda data: VECTORS if b" /v1/embeddings " in data else OK, 4096)
    await engines.start(**settings)
    return engines


@pytest.mark.parametrize("refusal", [NO_PARSER, NO_JINJA])
async def test_calls_of_tools_go_where_an_engine_has_a_parser(world: World, refusal: bytes) -> None:
    engines = await one_lacks(world, refusal)
    answers = [await world.ask(body=with_tools()) for _ in range(10)]
    assert [answer.status for answer in answers] == [200] * 10
    assert engines.asked == {"bare": 1, "able": 10}
    assert await world.metric("penstock_requeues_total", reason="no_tools") == 1
    assert [e.state for e in world.picture().endpoints] == ["up"] * 2
    for body in (chat(), chat(tools=[]), chat(tools=None)):
        for _ in range(2):
            assert (await world.ask(body=body)).status == 200
    assert engines.asked["bare"] > 1, "what needs no parser goes there as before"


@pytest.mark.parametrize(
    ("strict", "routing"),
    [
        (False, {"policy": "session", "affinity_wait": "50s"}),
        (True, {"policy": "session", "session": {"strict": True}}),
    ],
)
async def test_a_refused_request_does_not_wait_for_the_endpoint_of_its_session(
    world: World, strict: bool, routing: dict[str, Any]
) -> None:
    engines = await one_lacks(world, NO_PARSER, routing=routing)
    session = 0
    while (first := await world.chat_with({"x-session-id": str(session)}, content=str(session))).header(
        "x-penstock-endpoint"
    ) != "bare":
        session += 1
        assert session < 20
    assert first.status == 200
    body = with_tools(content=str(session))
    answer = await world.ask(body=body, headers={"x-session-id": str(session)})
    assert (answer.status, answer.header("x-penstock-endpoint")) == ((400, "bare") if strict else (200, "able"))
    assert engines.asked["bare"] == 2, "it was asked there first"


async def test_other_missing_flags_are_asked_elsewhere_each_time(world: World) -> None:
    words = "Chat template is passed with request, but --trust-request-chat-template is not set."
    refusal = whole({"error": {"message": words, "code": 400}}, b"400 Bad Request")
    engines = await one_lacks(world, refusal, b"chat_template")
    answers = [await world.ask(body=chat(chat_template="x")) for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 6
    assert engines.asked["able"] == 6
    assert 1 < engines.asked["bare"] <= 6, "a request does not show that it needs the flag"


@pytest.mark.parametrize(
    "refusal",
    [
        NOT_FOUND,
        whole({"detail": "Method Not Allowed"}, b"405 Method Not Allowed"),
        whole({"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}, b"404 Not Found"),
        whole(
            {"error": {"message": "This server does not support embeddings. Start it with `--embeddings`"}},
            b"501 Not Implemented",
        ),
        whole({"message": "The model does not support Embeddings API", "code": 400}, b"400 Bad Request"),
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_a_path_that_one_engine_lacks_is_asked_of_another(world: World, refusal: bytes) -> None:
    engines = await one_lacks(world, refusal, b" /v1/embeddings ")
    answers = [await world.ask(path="/v1/embeddings", body={"model": "sim", "input": "x"}) for _ in range(10)]
    assert [answer.status for answer in answers] == [200] * 10
    assert engines.asked == {"bare": 1, "able": 10}
    assert [e.state for e in world.picture().endpoints] == ["up"] * 2


async def test_what_all_engines_lack_is_their_own_answer(world: World) -> None:
    engines = Engines(world)
    for name in ("a", "b"):
        await engines.add(name, lacks(NO_PARSER, b'"tools"'), 4096)
    await engines.start()
    for round_ in range(3):
        answer = await world.ask(body=with_tools())
        assert (answer.status, answer.json()["message"]) == (400, AUTO)
        assert answer.header("x-penstock-reason") is None
        assert sum(engines.asked.values()) == 2 + round_, "both, and then one: the other would say the same"


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_callers_mistake_is_asked_once_and_teaches_nothing(world: World, attempts: int) -> None:
    mistake = {"error": {"message": f"Invalid tool_choice: {AUTO}", "code": 400}}
    engines = await one_lacks(
        world, whole(mistake, b"400 Bad Request"), b"tool_choice", retry={"max_attempts": attempts}
    )
    for _ in range(4):
        await world.ask(body=with_tools(tool_choice=f"requires {AUTO}"))
    assert sum(engines.asked.values()) == 4
    for _ in range(4):
        assert (await world.ask(body=with_tools())).status == 200
    assert min(engines.asked.values()) >= 3, "both are asked for calls of tools"


async def test_with_one_attempt_a_refusal_is_the_answer_and_is_remembered(world: World) -> None:
    engines = await one_lacks(world, NO_PARSER, retry={"max_attempts": 1})
    statuses = [(await world.ask(body=with_tools())).status for _ in range(6)]
    assert sorted(statuses) == [200] * 5 + [400]
    assert engines.asked["bare"] == 1


async def test_a_restarted_engine_is_asked_again_for_what_it_lacked(world: World) -> None:
    engines = await one_lacks(world, NO_PARSER)
    for _ in range(4):
        assert (await world.ask(body=with_tools())).status == 200
    assert engines.asked["bare"] == 1
    driver = world.gate.driver
    driver.tell(driver.scheduler.endpoint_down("bare", now=driver.now()))
    await world.until(lambda: [e.state for e in world.picture().endpoints] == ["up", "up"])
    for _ in range(4):
        assert (await world.ask(body=with_tools())).status == 200
    assert engines.asked["bare"] == 2


async def test_a_direct_call_is_asked_elsewhere_too(world: World) -> None:
    engines = await one_lacks(world, NOT_FOUND, b" /tokenize ")
    answers = [await world.ask(path="/tokenize", body={"model": "sim", "prompt": "x"}) for _ in range(4)]
    assert [(answer.status, answer.header("x-penstock-endpoint")) for answer in answers] == [(200, "able")] * 4
    assert engines.asked["able"] == 4


async def test_a_picker_learns_what_an_engine_lacks(world: World) -> None:
    engines = Engines(world)
    for name in ("bare", "able"):
        await engines.add(name, lambda _: OK, 4096)
    port = free_port()
    await engines.start(epp={"listen": f"127.0.0.1:{port}"})
    made = Pool(world, grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
    bare = engines.endpoints[0]["url"].removeprefix("http://")
    refused = 0
    for _ in range(8):
        stream = made.stream()
        await stream.head()
        await stream.body(json.dumps(with_tools()).encode())
        place = await stream.picked()
        await stream.hears_body("request_body")
        if place == bare:
            refused += 1
            await stream.answered(400)
            await stream.answer_body(NO_PARSER.partition(b"\r\n\r\n")[2], b"")
            answer = (await stream.hears()).immediate_response
            assert (answer.status.code, json.loads(answer.body)["message"]) == (400, AUTO)
        else:
            await stream.answered()
            await stream.answer_body(OK.partition(b"\r\n\r\n")[2], b"")
            await stream.hears()
            await stream.hears_body("response_body")
        await stream.call.done_writing()
    assert refused == 1
    async with another(world, port) as other:
        places = set()
        for _ in range(4):
            stream = other.stream()
            await stream.head()
            await stream.body(json.dumps(with_tools()).encode())
            places.add(await stream.picked())
            await stream.hears_body("request_body")
            await stream.answered()
            await stream.answer_body(OK.partition(b"\r\n\r\n")[2], b"")
            await stream.hears()
            await stream.hears_body("response_body")
            await stream.call.done_writing()
    await made.channel.close()
    assert bare in places, "one proxy's word counts for its own connection"
    assert await world.metric("penstock_requests_total", outcome="completed", model="sim") == 12


@pytest.mark.parametrize(
    ("status", "words", "expected"),
    [
        (400, AUTO, Failure.NO_TOOLS),
        (400, 'tool_choice="required" requires --tool-call-parser to be set', Failure.NO_TOOLS),
        (400, "named tool choice requires --tool-call-parser to be set", Failure.NO_TOOLS),
        (500, "tools param requires --jinja flag", Failure.NO_TOOLS),
        (500, "Unsupported param: tools", Failure.NO_TOOLS),
        (400, "registry.ollama.ai/library/gemma:latest does not support tools", Failure.NO_TOOLS),
        (400, "Please launch the api_server with --tool-call-parser if you want to use tool.", Failure.NO_TOOLS),
        (422, "`tools` are not supported", Failure.NO_TOOLS),
        (501, "Tool calling is not implemented for this model", Failure.NO_TOOLS),
        (400, "Function calling is not enabled for this model", Failure.NO_TOOLS),
        (400, "You must set `--enable-prompt-embeds` to input `prompt_embeds`.", Failure.NO_FEATURE),
        (400, "Please launch the api_server with --reasoning-parser to use reasoning.", Failure.NO_FEATURE),
        (501, "This server does not support reranking. Start it with `--reranking`", Failure.NO_PATH),
        (
            400,
            "This model does not appear to be an embedding model by default. Please add `--is-embedding`",
            Failure.NO_PATH,
        ),
        (404, "Not Found", Failure.NO_PATH),
        (405, "Method Not Allowed", Failure.NO_PATH),
        (404, "Response with id 'resp_1' not found.", None),
        (404, "The model `x` does not exist.", None),
        (400, f"Invalid value: {AUTO}", None),
        (400, "temperature must be at least 0", None),
        (400, "tools: Input should be a valid list", None),
        (400, "tools are not valid", None),
        (400, "tool_choice is not supported", None),
        (500, "Internal Server Error", None),
    ],
)
def test_what_an_engine_was_started_without_is_read_from_its_words(
    status: int, words: str, expected: Failure | None
) -> None:
    for error in (
        {"error": {"message": words}},
        {"error": words},
        {"object": "error", "message": words},
        {"detail": words},
    ):
        assert refuses(status, json.dumps(error).encode(), has_media=False) is expected
