"""TGI's own API is queued, leased, cancelled and accounted like the others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.core.values.request import Usage
from penstock.gateway.openai.answers.stream_end import ended_well
from penstock.gateway.openai.answers.usage import own_usage
from tests.gateway.conftest import request
from tests.gateway.engines import faces
from tests.gateway.engines.conftest import Faces
from tests.gateway.engines.faces import events
from tests.gateway.raw_engine import Peer
from tests.patience import WAIT_S

TAIL_BYTES = 4 * 1024

STREAM = "/generate_stream"
ASK = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 3, "details": True}}
QUIET = {**faces.TGI, "/metrics": (404, b"", "text/plain")}


def token(n: int, text: str | None = None, details: Any = None) -> bytes:
    event = {"index": n, "token": {"id": n, "text": "a", "logprob": -1, "special": False}, "generated_text": text}
    return b"data:" + json.dumps({**event, "details": details}, separators=(",", ":")).encode() + b"\n\n"


DETAILS = {"finish_reason": "length", "generated_tokens": 3, "seed": None, "input_length": 5}
LAST = token(3, "a a a", DETAILS)
ERROR = b'data:{"error":"CUDA out of memory","error_type":"generation"}\n\n'


SGLANG = (
    b'data: {"text":"x","meta_info":{"id":"1","finish_reason":{"type":"length","length":3},"prompt_tokens":9,'
    b'"completion_tokens":3,"cached_tokens":4}}\n\ndata: [DONE]\n\n'
)


async def tgi(world: Faces, *pieces: bytes, faces_wanted: int = 1, **settings: Any) -> list[faces.Face]:
    async def serve(peer: Peer, request: bytes) -> None:
        await peer.send(*pieces)

    made = [await world.face(QUIET, serve=serve) for _ in range(faces_wanted)]
    await world.behind(*made, **settings)
    await world.until(lambda: all(world.target(face).engine.name == "tgi" for face in made))
    return made


async def test_a_stream_passes_as_it_is_and_is_counted_as_it_says(world: Faces) -> None:
    pieces = (token(1), token(2), LAST)
    (face,) = await tgi(world, events(*pieces))
    answer = await world.ask(path=STREAM, body=ASK)
    assert (answer.status, answer.body) == (200, b"".join(pieces))
    assert json.loads(face.posted[0].split(b"\r\n\r\n", 1)[1]) == ASK
    await world.idle()
    assert await world.metric("penstock_tokens_total", kind="completion") == 3
    assert await world.metric("penstock_tokens_total", kind="prompt") == 5


async def test_an_answer_that_does_not_stream_is_counted_by_its_headers(world: Faces) -> None:
    body = b'{"generated_text":"a a a"}'
    await tgi(world, faces.answer(200, body, "application/json", "x-prompt-tokens: 7", "x-generated-tokens: 3"))
    answer = await world.ask(path="/generate", body=ASK)
    assert (answer.body, answer.header("x-generated-tokens")) == (body, "3")
    await world.idle()
    assert await world.metric("penstock_tokens_total", kind="completion") == 3
    assert await world.metric("penstock_tokens_total", kind="prompt") == 7


async def test_it_waits_its_turn_and_errors_have_its_shape(world: Faces) -> None:
    never = asyncio.Event()

    async def serve(peer: Peer, request: bytes) -> None:
        await never.wait()

    face = await world.face(QUIET, serve=serve)
    await world.gateway(endpoints=[{"url": face.url, "slots": 1}], queue={"max_requests": 1})
    await world.until(lambda: world.endpoint(face).models is not None)
    clients = [await world.client(request(path=STREAM, body=ASK))]
    await world.until(lambda: world.picture().running == 1)
    clients.append(await world.client(request(path=STREAM, body=ASK)))
    await world.until(lambda: world.picture().waiting == 1)
    full = await world.ask(path="/generate", body=ASK)
    assert full.status == 429
    assert full.header("retry-after")
    assert full.json().items() >= {"error_type": "overloaded", "code": "queue_full"}.items()
    for client in clients:
        client.hang_up()
    await world.idle()
    never.set()


async def test_a_disconnect_stops_the_engine(world: Faces) -> None:
    gone = asyncio.Event()

    async def serve(peer: Peer, request: bytes) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = token(1)
        await peer.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await peer.gone()
        gone.set()

    face = await world.face(QUIET, serve=serve)
    await world.behind(face)
    client = await world.client(request(path=STREAM, body=ASK))
    await client.begun()
    client.hang_up()
    await asyncio.wait_for(gone.wait(), WAIT_S)
    await world.idle()


@pytest.mark.parametrize(
    ("status", "kind"), [(429, "overloaded"), (424, "generation")], ids=["one too many", "it failed by itself"]
)
async def test_what_one_engine_refuses_or_fails_at_another_does(world: Faces, status: int, kind: str) -> None:
    refusing = True

    async def serve(peer: Peer, request: bytes) -> None:
        nonlocal refusing
        if refusing:
            refusing = False
            await peer.send(faces.answer(status, json.dumps({"error": "no", "error_type": kind}).encode()))
        else:
            await peer.send(events(LAST))

    made = [await world.face(QUIET, serve=serve) for _ in range(2)]
    await world.behind(*made)
    await world.until(lambda: all(world.target(face).engine.name == "tgi" for face in made))
    answer = await world.ask(path=STREAM, body=ASK)
    assert (answer.status, answer.body) == (200, LAST)
    assert [len(face.posted) for face in made] == [1, 1]


@pytest.mark.parametrize(
    "pieces", [(token(1), ERROR), (token(1), token(2))], ids=["an error in the stream", "no last event"]
)
async def test_a_stream_that_does_not_say_how_it_ended_is_a_failure(world: Faces, pieces: tuple[bytes, ...]) -> None:
    await tgi(world, events(*pieces))
    answer = await world.ask(path=STREAM, body=ASK)
    assert answer.body.startswith(b"".join(pieces))
    assert json.loads(answer.body.split(b"\n\n")[-2].removeprefix(b"data:"))["error_type"] == "generation"
    await world.idle()
    assert await world.metric("penstock_requests_total", reason="stream_broken") == 1


async def test_a_stream_that_breaks_ends_with_an_error_in_its_shape(world: Faces) -> None:
    async def serve(peer: Peer, request: bytes) -> None:
        await peer.send(events(token(1))[:-5])
        peer.writer.transport.abort()

    face = await world.face(QUIET, serve=serve)
    await world.behind(face)
    answer = await world.ask(path=STREAM, body=ASK)
    error = json.loads(answer.body.split(b"\n\n")[-2].removeprefix(b"data:"))
    assert (error["error_type"], error["code"]) == ("generation", "stream_broken")


def test_the_last_event_may_be_longer_than_what_is_kept_of_a_stream() -> None:
    text = "word\ndata:" * 2000
    for details in (DETAILS, None):
        tail = (token(1) + token(2, text, details))[-TAIL_BYTES:]
        assert ended_well(STREAM, tail)
    assert not ended_well(STREAM, (token(1, text) + token(2))[-TAIL_BYTES:])


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (SGLANG, (Usage(9, 3, 4), None)),
        (b'{"generated_text":"x","details":{"finish_reason":"length","generated_tokens":3,"prefill":[]}}', (None, 3)),
        (b'{"generated_text":"x"}', (None, None)),
        (b'{"meta_info":{"prompt_tokens":-9,"completion_tokens":3}}', (None, None)),
        (b'{"meta_info":{"prompt_tokens":"9"}}', (None, None)),
        (b'{"generated_tokens":99999999999}', (None, None)),
    ],
)
def test_usage_in_engines_own_shapes(tail: bytes, expected: tuple[Usage | None, int | None]) -> None:
    assert own_usage([], tail, streamed=False) == expected
    assert own_usage([(b"X-Prompt-Tokens", b"nine")], tail, streamed=True) == expected


def test_several_samples_count_together_and_a_stream_by_its_last_event() -> None:
    one = b'{"text":"a","meta_info":{"prompt_tokens":9,"completion_tokens":3,"cached_tokens":4}}'
    two = b'{"text":"b","meta_info":{"prompt_tokens":9,"completion_tokens":5,"cached_tokens":8}}'
    assert own_usage([], b"[" + one + b"," + two + b"]", streamed=False) == (Usage(18, 8, 12), None)
    assert own_usage([], b"data: " + one + b"\n\ndata: " + two, streamed=True) == (Usage(9, 5, 8), None)


def test_embeddings_of_other_engines_count_their_prompts() -> None:
    assert own_usage([], b'{"embeddings":[[1]],"prompt_eval_count":7}', streamed=False) == (Usage(7, 0), None)
    assert own_usage([(b"X-Compute-Tokens", b"7")], b"[[1]]", streamed=False) == (Usage(7, 0), None)
    assert own_usage([(b"X-Compute-Tokens", b"-7")], b"[[1]]", streamed=False) == (None, None)
