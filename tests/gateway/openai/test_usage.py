"""What an answer cost is read off as it passes, and a client that did not ask for it sees nothing of that."""

from __future__ import annotations

import contextlib
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.values.request import Usage
from penstock.gateway.openai.answers.answer import AnswerReader
from penstock.gateway.openai.answers.usage import read_usage
from penstock.gateway.openai.body import BadBody, asks_usage, peek, read_large
from penstock.gateway.openai.splice import Spliced, add_first, set_in_bytes
from tests.gateway.conftest import CHAT, World, chat, request, run
from tests.gateway.over_http.test_tenancy import BEARER, limited

HELD_BYTES_MAX = 64 * 1024

COMPLETIONS = "/v1/completions"
ASKS: dict[str, Any] = {"stream_options": {"include_usage": True}}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = (
    b'"usage":{"prompt_tokens":11,"total_tokens":15,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":3}}'
)


def event(content: str, reason: str | None = None) -> bytes:
    delta = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "c", "choices": [delta]}, ensure_ascii=False).encode()


def stream(end: bytes, *, usage: bytes = b'data: {"id":"c","choices":[],' + USAGE + b"}") -> list[bytes]:
    """The events of an answer, each with its end; the last but one is its usage."""
    said = [event("one"), event('"choices":[],"usage":{"prompt_tokens":9}'), event("ü\n\n", "stop"), usage]
    return [line + end for line in (*said, b"data: [DONE]")]


def chunked(pieces: list[bytes]) -> list[bytes]:
    return [SSE, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]


def bare(body: bytes) -> bytes:
    """A stream without what differs from answer to answer."""
    return re.sub(rb'"id":"[^"]*"|"created":\d+', b"", body)


async def tokens(world: World) -> dict[str, float]:
    return {
        kind: await world.metric("penstock_tokens_total", model="sim", kind=kind)
        for kind in ("prompt", "cached_prompt", "completion")
    }


# --- over sockets ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_client_that_did_not_ask_gets_the_bytes_it_gets_without_accounting(world: World, path: str) -> None:
    engine = await world.engine()
    body: dict[str, Any] = {**chat(tokens=5, stream=True), "prompt": "hello"}
    await world.gateway()
    quiet = await world.ask(path=path, body=body)
    asked = await world.ask(path=path, body={**body, **ASKS})
    assert await tokens(world) == {"prompt": 2 * usage_of(asked)["prompt_tokens"], "cached_prompt": 0, "completion": 10}
    await world.gate.close()
    await world.gateway(accounting={"usage": "off"})
    plain = await world.ask(path=path, body=body)
    plainly_asked = await world.ask(path=path, body={**body, **ASKS})
    assert bare(quiet.body) == bare(plain.body)
    assert b"usage" not in quiet.body
    assert bare(asked.body) == bare(plainly_asked.body)
    assert usage_of(asked)["completion_tokens"] == 5
    sent = [bytes(entry.body or b"") for entry in engine.log.entries]
    assert sent[0] == b'{"stream_options":{"include_usage":true},' + sent[2][1:], "spliced in"
    assert sent[1] == sent[3] == json.dumps({**body, **ASKS}).encode(), "who asks is passed as it came"
    assert sent[2] == json.dumps(body).encode(), "switched off: not a byte changes"


def usage_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = next(event["usage"] for event in answer.events() if not event["choices"])
    return found


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_to_ask_for_no_usage_hides_it_and_does_not_switch_accounting_off(world: World, options: Any) -> None:
    await world.engine()
    await world.gateway()
    quiet = await world.chat(tokens=5, stream=True, stream_options=options)
    assert quiet.status == 200
    assert all(event["choices"] for event in quiet.events())
    assert (await tokens(world))["completion"] == 5
    assert (await tokens(world))["prompt"] > 0


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ('{"step_usage_chunks": true}', {"step_usage_chunks": True, "include_usage": True}),
        ('{ "include_usage": false, "x": 1 }', {"include_usage": True, "x": 1}),
        ('{"x":{"include_usage":false},"include_usage":null}', {"x": {"include_usage": False}, "include_usage": True}),
        ('{"include_usage":true,"include_usage":false}', {"include_usage": True}),
        ('{"continuous_usage_stats":true}', {"continuous_usage_stats": False, "include_usage": True}),
        ('null, "stream_options": {"x": 1}', {"x": 1, "include_usage": True}),
    ],
)  # fmt: skip
async def test_other_stream_options_are_kept_and_usage_is_asked_for(
    world: World, given: str, sent: dict[str, Any]
) -> None:
    engine = await world.engine()
    await world.gateway()
    body = (json.dumps(chat(stream=True))[:-1] + f', "stream_options": {given}}}').encode()
    answer = await world.ask(body=body)
    assert answer.status == 200
    assert b"usage" not in answer.body
    assert json.loads(bytes(engine.log.entries[-1].body or b""))["stream_options"] == sent
    large = run(read_large(body, pooled=False))
    asks = asks_usage(large.peek)
    assert asks is not None
    asking = asks(large.body)
    assert isinstance(asking, Spliced)
    assert json.loads(b"".join(asking.pieces()))["stream_options"] == sent
    assert (await tokens(world))["prompt"] > 0


async def test_wishes_that_are_not_understood_pass_as_they_are(world: World) -> None:
    settings, requests = await world.scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    await world.gateway(endpoints=[settings])
    for options in ("x", [], [{"include_usage": False}], 1, True, {"include_usage": "yes", "x": 1}):
        body = json.dumps(chat(stream=True, stream_options=options)).encode()
        await world.ask(body=body)
        assert requests[-1].endswith(body)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"], ids=["LF", "CRLF"])
async def test_the_extra_event_is_hidden_wherever_the_bytes_are_split(world: World, end: bytes) -> None:
    events = stream(end)
    said = b"".join(events)
    endpoint, _ = await world.scripted(*chunked([said[at : at + 1] for at in range(len(said))]))
    await world.gateway(endpoints=[endpoint])
    quiet = await world.chat(stream=True)
    assert quiet.body == b"".join((*events[:3], events[4]))
    assert await tokens(world) == {"prompt": 11, "cached_prompt": 3, "completion": 4}
    assert await world.metric("penstock_tenant_service_tokens_total") == 15
    asked = await world.chat(stream=True, **ASKS)
    assert asked.body == said
    assert await tokens(world) == {"prompt": 22, "cached_prompt": 6, "completion": 8}


async def test_the_tokens_before_the_hidden_event_are_passed_while_the_engine_thinks(world: World) -> None:
    events = stream(b"\n\n")
    endpoint, _ = await world.scripted(b"".join(chunked(events)[:2]), *chunked(events)[2:], thinks_s=0.5)
    await world.gateway(endpoints=[endpoint])
    client = await world.streaming()
    assert (await client.begun()).status == 200
    assert client.seen == events[0]
    assert world.picture().running == 1
    await client.whole()
    assert client.seen == b"".join((*events[:3], events[4]))


async def test_a_stream_in_a_coding_that_is_not_unpacked_passes_unread_and_at_once(world: World) -> None:
    packed = SSE.replace(b"transfer", b"content-encoding: br\r\ntransfer")
    endpoint, _ = await world.scripted(
        packed + b"4\r\n\x1f\x8b\x08\x00\r\n", b"2\r\n\x00\x01\r\n0\r\n\r\n", thinks_s=0.3
    )
    await world.gateway(endpoints=[endpoint])
    client = await world.streaming()
    await client.begun()
    assert client.seen == b"\x1f\x8b\x08\x00"
    assert await client.piece() == b"\x00\x01"
    assert await client.piece() == b""


ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat(tokens=6)),
    "completions": (COMPLETIONS, {"model": "sim", "prompt": "hello", "max_tokens": 6}),
    "responses": ("/v1/responses", {"model": "sim", "input": "hello", "max_output_tokens": 6}),
    "messages": ("/v1/messages", chat(tokens=6)),
}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ANSWERS)
async def test_every_api_reports_its_usage(world: World, api: str, is_streamed: bool) -> None:
    await world.engine(block_size=4)
    await world.gateway()
    path, body = ANSWERS[api]
    for _ in range(2):
        assert (await world.ask(path=path, body={**body, "stream": is_streamed})).status == 200
    prompt_tokens = sum(entry.prompt_tokens for entry in world.seen())
    cached_tokens = sum(entry.cached_tokens for entry in world.seen())
    assert cached_tokens > 0 or api in ("completions", "responses"), "a prompt of one block is never cached whole"
    assert await tokens(world) == {"prompt": prompt_tokens, "cached_prompt": cached_tokens, "completion": 12}
    assert await world.metric("penstock_tenant_service_tokens_total", tenant="other") == prompt_tokens + 12


async def test_an_embedding_costs_its_prompt(world: World) -> None:
    await world.engine()
    await world.gateway()
    assert (await world.ask(path="/v1/embeddings", body={"model": "sim", "input": "x" * 40})).status == 200
    assert await tokens(world) == {"prompt": 10, "cached_prompt": 0, "completion": 0}


async def test_without_usage_the_events_are_counted(world: World) -> None:
    await world.engine()
    await world.gateway(accounting={"usage": "off"})
    assert (await world.chat("x" * 400, tokens=100, stream=True)).status == 200
    told = await tokens(world)
    assert told["prompt"] == 0
    assert 100 <= told["completion"] <= 103


async def test_an_abandoned_stream_is_settled_by_its_tokens_so_far(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "anonymous", "limits": {"tokens_per_minute": 1000}}])
    client = await world.client(request(body=chat(tokens=3000, stream=True)))
    await client.begun()
    while client.seen.count(b"data: ") < 200:
        await client.piece()
    client.hang_up()
    await world.idle()
    left = world.picture().tenants[0].tokens_left or 0
    assert 150 < 1000 - left < 700, "what was said counts, what was asked for does not"


# --- answers, piece by piece -------------------------------------------------------------------------------------

contents = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ['"choices":[]', '"usage":{"prompt_tokens":5}', "data: x\n\n", "\r\n\r\n", "[DONE]"]
)
ends = st.sampled_from([b"\n\n", b"\r\n\r\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """The events of a stream, and which of them only tells usage (-1: none)."""
    end = draw(ends)
    events = [event(content) + end for content in draw(st.lists(contents, max_size=6))]
    events += [b": a comment" + end] * draw(st.integers(0, 1)) + [event("", "stop") + end]
    at = -1
    if draw(st.booleans()):
        at = draw(st.integers(0, len(events)))
        space = draw(st.sampled_from([b"", b" "]))
        events.insert(at, b'data: {"choices":%b[],%b}' % (space, USAGE) + end)
    return [*events, b"data: [DONE]" + end], at


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    """The pieces between some places, wherever those are."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def through(pieces: list[bytes], *, hides: bool) -> tuple[bytes, AnswerReader]:
    answer = AnswerReader(streamed=True, hides_usage=hides)
    return b"".join(answer.take(piece) for piece in pieces) + answer.rest(), answer


@given(streams(), st.lists(st.integers(0, 10_000), max_size=30))
def test_however_a_stream_is_split_the_same_passes_and_the_same_is_read(
    given_stream: tuple[list[bytes], int], cuts: list[int]
) -> None:
    events, hidden = given_stream
    came = b"".join(events)
    rest = b"".join(event for n, event in enumerate(events) if n != hidden)
    for pieces in ([came], split(came, cuts), [came[at : at + 1] for at in range(len(came))]):
        passed, answer = through(pieces, hides=True)
        assert passed == rest, "what came is what passes and the one event that is hidden"
        assert answer.usage() == (Usage(11, 4, 3, cached_told=True) if hidden >= 0 else None)
        assert answer.tokens == sum(b'"content": ""' not in event for event in events if b'"delta"' in event)
        assert answer.ended_well(CHAT)
        untouched, answer = through(pieces, hides=False)
        assert untouched == came
        assert answer.usage() == (Usage(11, 4, 3, cached_told=True) if hidden >= 0 else None)


ODD_LINES = [
    *(b'data: {"error":{"message":"no"}}', b'data: {"choices":[],"usage":{}}'),
    *(event("a").rstrip(), event("", "stop").rstrip(), b'data: {"choices":[],' + USAGE + b"}", b"data: [DONE]"),
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
    *(b"event:error", b"event: ping", b": a comment", b"id: 5", b"", b"", b""),
]
odd_stream = st.lists(
    st.tuples(st.sampled_from(ODD_LINES), st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])), max_size=9
)


@given(odd_stream, st.lists(st.integers(0, 10_000), max_size=6))
def test_whatever_lines_end_with_the_same_is_read_however_they_are_cut(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    came = b"".join(line + end for line, end in lines)
    readings = []
    for pieces in ([came], split(came, cuts)):
        passed, answer = through(pieces, hides=True)
        readings.append((passed, answer.tokens, answer.usage(), answer.tells_error(), answer.cut_off()))
    assert readings[0] == readings[1]


def test_a_usage_object_with_a_brace_in_a_text_is_read() -> None:
    told = b'{"usage":{"note":"}","prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens":3}}'
    assert read_usage(told) == Usage(5, 3, 2, cached_told=True)
    assert read_usage(told.replace(b'"}"', b'"\\"{"')) == Usage(5, 3, 2, cached_told=True)


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\n\n", b"\r\n\r\n", b'"choices":[]', USAGE]), max_size=12))
def test_only_whole_usage_events_are_removed_from_a_stream(pieces: list[bytes]) -> None:
    passed, _ = through(pieces, hides=True)
    came = b"".join(pieces)
    if b'"choices":[]' in came and b'"usage"' in came:
        assert len(passed) <= len(came)
    else:
        assert passed == came


@pytest.mark.parametrize(
    "choices", [b'"choices":null,', b'"choices" : [ ],', b"", b'"timings":{"prompt_n":1},'], ids=bytes.decode
)
@pytest.mark.parametrize("size", [1, 50, 1000])
def test_an_event_that_only_reports_usage_is_hidden_however_it_says_so(choices: bytes, size: int) -> None:
    told = b'data: {"id":"c",' + choices + USAGE + b"}\n\n"
    begin, end = event("one") + b"\n\n", event("", "stop") + b"\n\ndata: [DONE]\n\n"
    came = begin + told + end
    pieces = [came[at : at + size] for at in range(0, len(came), size)]
    passed, answer = through(pieces, hides=True)
    assert passed == begin + end
    assert answer.usage() == Usage(11, 4, 3, cached_told=True)
    assert through(pieces, hides=False)[0] == came


def test_usage_beside_choices_or_an_error_is_passed() -> None:
    beside = b'data: {"choices":[{"delta":{"content":"a"}}],' + USAGE + b"}\n\n"
    failed = b'data: {"error":{"message":"no"},' + USAGE + b"}\n\n"
    assert through([beside, failed], hides=True)[0] == beside + failed
    assert through([beside + failed], hides=True)[0] == beside + failed


def test_half_an_event_is_held_and_its_end_lets_it_go() -> None:
    answer = AnswerReader(streamed=True, hides_usage=True)
    assert answer.take(b"data: one\n") == b""
    assert not answer.mid_event(), "the client saw nothing of it"
    assert answer.take(b"\ndata: tw") == b"data: one\n\n"
    assert answer.rest() == b"data: tw"
    assert answer.rest() == b""


@pytest.mark.parametrize("at_once", [1, 3])
def test_of_events_that_are_all_alike_two_kilobytes_are_kept(at_once: int) -> None:
    said = event("word").replace(b": ", b":") + b"\n\n"
    answer = AnswerReader(streamed=True, hides_usage=False)
    for _ in range(1000):
        assert answer.take(said * at_once) == said * at_once
        assert len(answer.tail) <= 2048
        assert len(answer.head) < 2048
    assert answer.tail.endswith(said)
    assert answer.tokens == 1000 * at_once


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(("behind", "is_seen"), [(0, True), (20, True), (35, True), (50, False), (500, False)])
@pytest.mark.parametrize("failed", [b'data: {"error":{"code":500}}', event("", "abort")])
def test_a_failure_counts_while_four_kilobytes_follow_it(
    failed: bytes, behind: int, is_seen: bool, alike: bool
) -> None:
    answer = AnswerReader(streamed=True, hides_usage=False)
    said = [
        event("word" if alike or number % 2 else "") + b"\n\n" for number in range(40 + behind)
    ]  # of 100 bytes each
    for piece in [*said[:40], failed + b"\n\n", *said[40:]]:
        answer.take(piece)
    assert (answer.tells_error() or answer.tells_abort()) is is_seen


def test_usage_in_events_with_tokens_is_known_however_many_follow_without() -> None:
    said = event("word") + b"\n\n"
    counted = said.replace(b"}]", b"}]," + USAGE)
    for behind in (0, 1, 100):
        answer = AnswerReader(streamed=True, hides_usage=False)
        for piece in [said] * 50 + [counted] * 50 + [said] * behind:
            answer.take(piece)
        assert answer.usage() == Usage(11, 4, 3, cached_told=True)


def test_an_event_too_large_to_hold_passes_as_it_comes() -> None:
    large = b"data: " + b"x" * HELD_BYTES_MAX
    answer = AnswerReader(streamed=True, hides_usage=True)
    assert answer.take(large) == large
    hidden = b'data: {"choices":[],%b}\n\n' % USAGE
    assert answer.take(b"y\n\n" + hidden + b"data: [DONE]\n\n") == b"y\n\n"
    assert answer.rest() == b"data: [DONE]\n\n"
    assert answer.usage() == Usage(11, 4, 3, cached_told=True)


def test_anthropics_prompt_tokens_come_first_and_output_tokens_last_for_any_split() -> None:
    begin = b'event: message_start\ndata: {"message":{"usage":{"input_tokens":7,"cache_read_input_tokens":20}}}\n\n'
    said = b'event: content_block_delta\ndata: {"delta":{"text":"and so on"}}\n\n'
    end = b'event: message_delta\ndata: {"usage":{"output_tokens":%d}}\n\nevent: message_stop\ndata: {}\n\n'
    for count in (1, 500):
        came = begin + said * count + end % (count + 1)
        for size in (1, 7, 64, 4096, len(came)):
            pieces = [came[at : at + size] for at in range(0, len(came), size)]
            _, answer = through(pieces, hides=False)
            assert answer.usage() == Usage(27, count + 1, 20, cached_told=True), size
    assert len(begin) < 1024


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (USAGE, Usage(11, 4, 3, cached_told=True)),
        (b'"usage": {"prompt_tokens": 5, "completion_tokens": 2}', Usage(5, 2, 0)),
        (b'"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}', Usage(5, 2, 0)),
        (
            b'"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens":2}',
            Usage(5, 2, 4, cached_told=True),
        ),
        (b'"usage":{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":2}', Usage(9, 2, 4, cached_told=True)),
        (b'"usage":{"prompt_tokens":5,"total_tokens":5}', Usage(5, 0, 0)),
        (b'"usage":{"prompt_tokens":1}, "usage":{"prompt_tokens":2}', Usage(2, 0, 0)),
        (b'"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":9}}', Usage(5, 0, 5, cached_told=True)),
        (b'"usage":{"total_tokens":7}', Usage(7, 0, 0)),
        (b'"usage":{"prompt_tokens":5,"total_tokens":7}', Usage(5, 2, 0)),
        (b'"usage":{"prompt_tokens":null,"completion_tokens":2,"total_tokens":7}', Usage(5, 2, 0)),
        (b'"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":99}', Usage(5, 2, 0)),
        (b'"usage":{"prompt_tokens":5,"total_tokens":2}', None),
        (b'"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":[]}', Usage(5, 2, 0)),
        (b'"usage":{"prompt_tokens":5,"completion_tokens":2,"x":[{"y":[1]}],"cost":{"z":[]}}', Usage(5, 2, 0)),
        (b'"meta":{"tokens":{"input_tokens":7,"output_tokens":0}}', Usage(7, 0, 0)),
        (b'"meta":{"api_version":{"version":"2"},"billed_units":{"input_tokens":7.0}}', Usage(7, 0, 0)),
        (b'"meta":{"tokens":5}', None),
        (b'"usage":{"billed_units":{"input_tokens":1},"tokens":{"input_tokens":7,"output_tokens":2}}', Usage(7, 2, 0)),
        (
            b'"usage":{"prompt_tokens":5,"completion_tokens":4,"completion_tokens_details":{"reasoning_tokens":3}}',
            Usage(5, 4, 0, reasoning_tokens=3),
        ),
        (
            b'"usage":{"input_tokens":5,"output_tokens":4,"output_tokens_details":{"reasoning_tokens":9}}',
            Usage(5, 4, 0, reasoning_tokens=4),
        ),
        (b'"usage":{"prompt_tokens":-5}', None),
        (b'"usage":{"prompt_tokens":"5"}', None),
        (b'"usage":{"prompt_tokens":99999999999999999999}', None),
        (b'"usage":{"prompt_tokens":2147483648}', None),
        (b'"usage":{"x":"' + 4_000 * b"x" + b'","prompt_tokens":5}', Usage(5, 0, 0)),
        (b'"usage":{"x":"' + 4_100 * b"x" + b'","prompt_tokens":5}', None),
        (b'"usage":{}', None),
        (b'"usage":null', None),
        (b'"usage":{"prompt_tokens":', None),
        (b"", None),
    ],
)
def test_usage_is_read_in_every_shape_or_not_at_all(raw: bytes, expected: Usage | None) -> None:
    assert read_usage(b'{"x":1,' + raw + b"}") == expected


@pytest.mark.parametrize("prompt", [b"", b'"prompt_tokens":null,', b'"prompt_tokens":0,'])
async def test_without_a_prompt_in_the_usage_its_estimate_stands(world: World, prompt: bytes) -> None:
    said = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{%b"completion_tokens":30}}\n\n' % prompt
    endpoint, _ = await world.scripted(SSE, *chunked([said, usage, b"data: [DONE]\n\n"])[1:])
    await world.gateway(endpoints=[endpoint], **limited(tokens_per_minute=10_000))
    assert (await world.ask(body=chat("word " * 2_000, stream=True), headers=BEARER)).status == 200
    await world.idle()
    assert 7_000 < (world.picture().tenants[0].tokens_left or 0) < 9_000, "four bytes a token, about"
    assert await world.metric("penstock_tokens_total", kind="completion") == 30


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    read_usage(raw)
    read_usage(b'"usage":{' + raw + b"}")


# --- bodies ------------------------------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["priority", "pri\\ority", '"'])
scalars = st.none() | st.booleans() | st.integers() | names | st.sampled_from(["{", "]", '","priority":3'])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
spaces = st.sampled_from([(",", ":"), (" ,\n", "\t:\r\n "), (", ", ": ")])


@given(st.dictionaries(names, values, max_size=4), st.integers(-(2**31), 2**31), spaces, st.booleans())
def test_a_priority_is_spliced_in_and_every_other_byte_stays(
    fields: dict[str, Any], rank: int, separators: tuple[str, str], plain: bool
) -> None:
    raw = json.dumps(fields, separators=separators, ensure_ascii=plain).encode()
    spliced = set_in_bytes(raw, {"priority": b"%d" % rank})
    assert json.loads(spliced) == {**fields, "priority": rank}
    assert peek(spliced).priority == rank
    assert set_in_bytes(spliced, {"priority": b"%d" % rank}) == spliced
    if "priority" in fields:
        old = json.dumps(fields["priority"], separators=separators, ensure_ascii=plain).encode()
        start = next(at for at in range(len(raw)) if raw[:at] == spliced[:at] and raw[at : at + len(old)] == old)
        assert start > 0
        assert len(spliced) == len(raw) - len(old) + len(b"%d" % rank)
    else:
        assert spliced.replace(b'"priority":%d' % rank, b"", 1).lstrip(b"{,") == raw.lstrip(b"{")


@given(st.dictionaries(names, values, max_size=4), spaces)
def test_a_field_is_added_before_all_others(fields: dict[str, Any], separators: tuple[str, str]) -> None:
    raw = b"\r\n " + json.dumps(fields, separators=separators).encode() + b"\n"
    added = add_first(raw, b'"x":[1]')
    assert list(json.loads(added)) == ["x", *(name for name in fields if name != "x")]
    assert added.startswith(b'\r\n {"x":[1]')
    assert added.endswith(raw.lstrip()[1:])


@given(st.sampled_from(["\\ud800", "\\uDC00x", "\\ud83d\\ude00", "\\u0000", "\\/", "\\b"]), st.booleans())
def test_odd_escapes_are_refused_or_spliced(escape: str, as_name: bool) -> None:
    raw = (f'{{"a{escape}":1,"model":"m"}}' if as_name else f'{{"a":"{escape}","model":"m"}}').encode()
    with contextlib.suppress(BadBody):
        assert peek(raw).model == "m"
        assert json.loads(set_in_bytes(raw, {"priority": b"3"}))["priority"] == 3
