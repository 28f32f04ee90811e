"""An engine that refuses a field which the gateway added is asked again without it, unseen by the caller."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.conftest import NOT_FOUND, World
from tests.gateway.openai.test_usage import chunked, event, stream
from tests.gateway.raw_engine import Peer, RawEngine

STREAM = b"".join(chunked([event("one", "stop") + b"\n\n", b"data: [DONE]\n\n"]))
TELLING = b"".join(chunked(stream(b"\n\n")))
NAMED = b'{"object":"error","message":"Extra inputs are not permitted: stream_options","code":400}'
UNNAMED = b'{"detail":[{"type":"extra_forbidden","loc":["body"],"msg":"Extra inputs are not permitted"}]}'

Body = dict[str, Any]


def refusal(body: bytes, status: int = 400) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


async def engine(world: World, answer: Callable[[Body], bytes], **settings: Any) -> list[Body]:
    """A gateway before an engine that answers by the request's body; the bodies that it saw."""
    seen: list[Body] = []

    async def script(peer: Peer) -> None:
        while True:
            data = await peer.request()
            if data.startswith(b"GET "):
                await peer.send(NOT_FOUND)
            else:
                seen.append(json.loads(data.partition(b"\r\n\r\n")[2]))
                await peer.send(answer(seen[-1]))

    raw = await world.beside(RawEngine(script))
    await world.gateway(endpoints=[{"url": raw.url, "name": "e", "engine": "vllm", "models": ["sim"]}], **settings)
    return seen


@pytest.mark.parametrize(("body", "status"), [(NAMED, 400), (UNNAMED, 400), (UNNAMED, 422), (b"no JSON", 400)])
async def test_a_field_of_ours_that_is_refused_is_left_out_from_then_on(
    world: World, caplog: pytest.LogCaptureFixture, body: bytes, status: int
) -> None:
    seen = await engine(world, lambda asked: refusal(body, status) if "stream_options" in asked else STREAM)
    with caplog.at_level("WARNING", "penstock"):
        answers = [await world.chat(stream=True) for _ in range(3)]
        own = await world.chat(stream=True, stream_options={"x": 1, "include_usage": None})
    assert [answer.status for answer in answers] == [200] * 3
    assert ["stream_options" in asked for asked in seen] == [True, False, False, False, True]
    assert seen[-1]["stream_options"] == {"x": 1, "include_usage": None}, "as the caller sent it"
    assert (own.status, own.body) == (status, body), "the caller's own mistake"
    assert [record.getMessage() for record in caplog.records] == [
        "endpoint e refuses `stream_options`, which this gateway adds to requests; leaving it out there"
    ]
    assert await world.metric("penstock_requests_total", outcome="completed", model="sim") == 4
    assert await world.metric("penstock_dispatches_total") == 4, "the second time costs no attempt"


async def test_a_restarted_engine_is_asked_with_the_field_again(world: World) -> None:
    refuses = [True]
    seen = await engine(world, lambda asked: refusal(NAMED) if refuses[0] and "stream_options" in asked else TELLING)
    assert (await world.chat(stream=True)).status == 200
    refuses[0] = False
    world.gate.endpoints.targets["e"].forget()  # as the observer does after a restart
    assert (await world.chat(stream=True)).status == 200
    assert ["stream_options" in asked for asked in seen] == [True, False, True]


async def test_a_callers_own_mistake_is_asked_twice_at_a_new_engine_and_once_where_the_field_is_known(
    world: World,
) -> None:
    seen = await engine(world, lambda asked: refusal(UNNAMED) if asked["max_tokens"] == 7 else TELLING)
    assert (await world.chat(stream=True, tokens=7)).body == UNNAMED
    assert ["stream_options" in asked for asked in seen] == [True, False]
    assert (await world.chat(stream=True)).status == 200
    assert (await world.chat(stream=True, tokens=7)).body == UNNAMED
    assert (await world.chat(tokens=7)).body == UNNAMED
    assert ["stream_options" in asked for asked in seen] == [True, False, True, True, False]


async def test_a_refused_priority_is_left_out_and_usage_is_still_requested(world: World) -> None:
    answer = b'{"error":{"message":"Unknown parameter: \'priority\'."}}'
    seen = await engine(
        world,
        lambda asked: refusal(answer) if "priority" in asked else TELLING,
        admission={"engine_priority": True},
    )
    for _ in range(2):
        assert (await world.chat(stream=True, priority=3)).status == 200
    assert ["priority" in asked for asked in seen] == [True, False, False]
    assert all("stream_options" in asked for asked in seen)
    assert await world.metric("penstock_tokens_total", kind="completion") == 8


EVENT_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
UNEXPECTED = b'{"error":{"message":"create() got an unexpected keyword argument \'stream_options\'","code":null}}'
CALLERS = b'{"error":{"message":"Stream options are not supported","type":"invalid_request_error","code":400}}'


def in_a_stream(error: bytes) -> bytes:
    event = b"data: " + error + b"\n\n"
    return EVENT_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event)


@pytest.mark.parametrize(
    "refused",
    [
        refusal(UNEXPECTED, 500),
        refusal(b'{"detail":"unknown field IncludeUsage"}', 501),
        refusal(CALLERS, 200),
        in_a_stream(UNEXPECTED),
        in_a_stream(CALLERS),
    ],
    ids=["500", "501", "200", "a stream", "a stream that blames the caller"],
)
async def test_an_error_that_names_a_field_of_ours_is_a_refusal_of_it(world: World, refused: bytes) -> None:
    seen = await engine(world, lambda asked: refused if "stream_options" in asked else STREAM)
    answers = [await world.chat(stream=True) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    assert [b"error" in answer.body for answer in answers] == [False] * 3
    assert ["stream_options" in asked for asked in seen] == [True, False, False, False]
    assert await world.metric("penstock_dispatches_total") == 3


async def test_a_500_that_names_no_field_is_asked_once_for_each_attempt(world: World) -> None:
    seen = await engine(world, lambda asked: refusal(UNNAMED, 500), retry={"max_attempts": 2})
    assert (await world.chat(stream=True)).status == 500
    assert ["stream_options" in asked for asked in seen] == [True, True]


async def test_a_500_that_stays_without_the_field_is_asked_twice_for_each_attempt(world: World) -> None:
    seen = await engine(world, lambda asked: refusal(UNEXPECTED, 500), retry={"max_attempts": 2})
    assert (await world.chat(stream=True)).status == 500
    assert ["stream_options" in asked for asked in seen] == [True, False, True, False]


async def test_a_callers_own_mistake_in_a_stream_passes_as_it_came(world: World) -> None:
    error = CALLERS.replace(b"Stream options are", b"This is")
    seen = await engine(world, lambda asked: in_a_stream(error))
    answer = await world.chat(stream=True)
    assert (answer.status, answer.body) == (200, b"data: " + error + b"\n\n")
    assert len(seen) == 1


async def test_a_priority_refused_by_a_500_is_left_out(world: World) -> None:
    answer = b'{"error":{"message":"got an unexpected keyword argument \'priority\'"}}'
    seen = await engine(
        world,
        lambda asked: refusal(answer, 500) if "priority" in asked else TELLING,
        admission={"engine_priority": True},
    )
    for _ in range(2):
        assert (await world.chat(stream=True, priority=3)).status == 200
    assert ["priority" in asked for asked in seen] == [True, False, False]
