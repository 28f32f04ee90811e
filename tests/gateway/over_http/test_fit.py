"""Of several endpoints of a model a request goes to one that can take it: by its length, and by what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.values.catalogue import Failure
from penstock.gateway.openai.unfit import refuses
from tests.gateway.conftest import World, chat
from tests.gateway.proxy.test_engine_paths import whole
from tests.gateway.raw_engine import Peer, RawEngine

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
        await self.world.gateway(endpoints=self.endpoints, routing={"policy": "round_robin"}, **settings)
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
