"""Disaggregated prefill in SGLang's form, over HTTP: both engines are asked at once, and meet in a room."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import pytest

from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World, chat, fault
from tests.gateway.proxy.divided import PROMPT, Pair, body, log, name
from tests.patience import looks
from tests.ports import free_port

FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
PEER = Path(os.environ.get("PENSTOCK_PEERS", "peers")) / "sglang-router/bin/sglang-router"
ROUTER = shutil.which("sglang-router") or (str(PEER) if PEER.is_file() else None)


@pytest.fixture
def pairs(world: World) -> Pair:
    return Pair(world, meet=True)


def leases(world: World) -> list[tuple[int, int]]:
    """Leases, and how many of them are pending, by endpoint."""
    return [(e.leases, e.pending) for e in world.picture().endpoints]


async def test_both_are_sent_the_same_request_and_the_place_where_they_meet(world: World, pairs: Pair) -> None:
    prefill, decode = await pairs.add("prefill"), await pairs.add("decode")
    await pairs.gateway()
    asked = chat(PROMPT, tokens=5, stream=True, stream_options={"include_usage": True})
    answer = await world.ask(body=asked)
    assert answer.status == 200
    assert (answer.header("x-penstock-endpoint"), answer.header("x-penstock-prefill")) == (name(decode), name(prefill))
    (first,), (second,) = log(prefill), log(decode)
    assert body(first) == body(second)
    met = {field: body(first)[field] for field in FIELDS}
    assert body(first) == asked | met
    assert prefill.rooms is not None
    assert (met["bootstrap_host"], met["bootstrap_port"]) == ("127.0.0.1", prefill.rooms.port)
    assert 0 <= met["bootstrap_room"] < 2**63
    assert (first.kv_transfer, first.tokens) == ("promised", 1)
    assert (second.kv_transfer, second.tokens, second.cached_tokens) == ("used", 5, second.prompt_tokens - 1)
    words = [event["choices"][0]["delta"].get("content", "") for event in answer.events() if event["choices"]]
    assert len([word for word in words if word]) == 5


@pytest.mark.skipif(ROUTER is None, reason="no sglang-router here (benchmarks/overhead.py names its place)")
@pytest.mark.parametrize("stream", [False, True])
async def test_sglangs_own_router_asks_both_engines_for_the_same(world: World, pairs: Pair, stream: bool) -> None:
    """SGLang publishes its protocol by its router: what that sends to our engines works there, and is what we send."""
    assert ROUTER is not None
    prefill, decode = await pairs.add("prefill"), await pairs.add("decode")
    await pairs.gateway()
    assert prefill.rooms is not None
    asked, port = chat(PROMPT, tokens=5, stream=stream), free_port()
    router = await asyncio.create_subprocess_exec(
        *(ROUTER, "launch", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *("--pd-disaggregation", "--prefill", prefill.url, str(prefill.rooms.port), "--decode", decode.url),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        own, world.port = world.port, port
        async for _ in looks(30.0):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if (await world.ask("GET", "/readiness")).status == 200:
                    break
        assert (await world.ask(body=asked, headers={"content-type": "application/json"})).status == 200
        world.port = own
        assert (await world.ask(body=asked, headers={"content-type": "application/json"})).status == 200
    finally:
        router.terminate()
        await router.wait()
    theirs, ours = [[log(engine)[at] for engine in (prefill, decode)] for at in (0, 1)]
    for entries in (theirs, ours):
        assert [(entry.kv_transfer, entry.tokens, entry.outcome) for entry in entries] == [
            ("promised", 1, "finished"),
            ("used", 5, "finished"),
        ]
        assert body(entries[0]) == body(entries[1])
    their, our = [{field: body(entries[0])[field] for field in FIELDS} for entries in (theirs, ours)]
    assert 0 <= their.pop("bootstrap_room") < 2**63
    assert 0 <= our.pop("bootstrap_room") < 2**63
    assert their == our


async def test_an_ipv6_address_stands_in_brackets(world: World, pairs: Pair) -> None:
    prefill = EngineServer(EngineConfig(step_s=0.002), bootstrap_port=0)
    try:
        port = await prefill.start("::1")
    except OSError:
        pytest.skip("no IPv6 here")
    world.engines.append(prefill)
    assert prefill.rooms is not None
    labels = {"role": "prefill", "bootstrap_port": str(prefill.rooms.port)}
    pairs.endpoints.append({"url": f"http://[::1]:{port}", "slots": 4, "labels": labels})
    decode = await pairs.add("decode")
    await pairs.gateway()
    assert (await world.chat(PROMPT)).status == 200
    assert body(log(decode)[0])["bootstrap_host"] == "[::1]"


async def test_each_request_has_a_room_of_its_own_and_is_paid_for_as_it_was_cached(world: World, pairs: Pair) -> None:
    prefill, decode = await pairs.add("prefill"), await pairs.add("decode")
    await pairs.gateway()
    first = (await world.chat(PROMPT, tokens=3)).json()["usage"]
    assert await world.metric("penstock_tokens_total", kind="cached_prompt") == 0
    await world.chat(PROMPT, tokens=3)
    cached = await world.metric("penstock_tokens_total", kind="cached_prompt")
    assert first["prompt_tokens"] - 16 <= cached < first["prompt_tokens"], "where it was computed"
    assert len({body(entry)["bootstrap_room"] for entry in log(decode)}) == 2
    assert await world.metric("penstock_prefills_total", endpoint=name(prefill), transfer="met") == 2
    assert await world.metric("penstock_dispatches_total", endpoint=name(decode)) == 2


async def test_the_decode_is_asked_while_the_prompt_is_computed_and_both_are_leased(world: World, pairs: Pair) -> None:
    prefill, decode = await pairs.add("prefill", step_s=30.0), await pairs.add("decode")
    await pairs.gateway()
    client = await world.streaming(PROMPT)
    await world.until(lambda: log(prefill) and log(decode))
    assert leases(world) == [(1, 0), (1, 1)]
    assert decode.engine.in_engine == 0, "it waits for the prompt"
    client.hang_up()
    await world.idle()
    await world.until(lambda: prefill.engine.in_engine == 0 and log(decode)[0].outcome == "aborted")
    assert log(prefill)[0].outcome == "aborted"
    assert leases(world) == [(0, 0), (0, 0)]


async def test_a_client_that_leaves_in_the_answer_frees_the_decode(world: World, pairs: Pair) -> None:
    prefill, decode = await pairs.add("prefill"), await pairs.add("decode")
    await pairs.gateway()
    client = await world.streaming(PROMPT, tokens=2000)
    await client.begun()
    assert leases(world) == [(0, 0), (1, 0)]
    client.hang_up()
    await world.idle()
    await world.until(lambda: decode.engine.in_engine == 0)
    assert [entry.outcome for entry in log(prefill) + log(decode)] == ["finished", "aborted"]


async def test_a_prefill_that_refuses_or_fails_stops_the_decode_and_is_tried_elsewhere(
    world: World, pairs: Pair
) -> None:
    busy, broken, well = [await pairs.add("prefill") for _ in range(3)]
    decode = await pairs.add("decode")
    await pairs.gateway(routing={"policy": "round_robin"})
    fault(busy, "busy")
    fault(broken, "error")
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.header("x-penstock-prefill")) == (200, name(well))
    assert [entry.outcome for entry in log(busy) + log(broken)] == ["busy", "error"]
    await world.until(lambda: sorted(entry.outcome for entry in log(decode)) == ["aborted", "aborted", "finished"])
    assert world.picture().endpoints[3].state == "up", "it was not its fault"


@pytest.mark.parametrize("kind", ["refuse", "busy", "error"])
async def test_a_decode_that_fails_stops_the_prefill_and_another_pair_is_asked(
    world: World, pairs: Pair, kind: str
) -> None:
    prefill, failing, well = await pairs.add("prefill"), await pairs.add("decode"), await pairs.add("decode")
    await pairs.gateway()
    fault(failing, kind, count=9)
    answer = await world.chat(PROMPT, stream=True)
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, name(well))
    assert {entry.outcome for entry in log(failing)} == {{"refuse": "refused"}.get(kind, kind)}
    assert len(log(prefill)) == 2
    assert world.picture().endpoints[0].state == "up", "it was not its fault"
    assert leases(world) == [(0, 0), (0, 0), (0, 0)]


async def test_a_decode_that_fails_when_the_prompt_is_computed_is_prefilled_again(world: World, pairs: Pair) -> None:
    prefill, failing, well = await pairs.add("prefill"), await pairs.add("decode"), await pairs.add("decode")
    await pairs.gateway()
    fault(failing, "error", after_bytes=0)
    answer = await world.chat(PROMPT, stream=True)
    assert (answer.status, answer.header("x-penstock-endpoint")) == (200, name(well))
    first, again = log(prefill)
    assert (first.outcome, again.outcome) == ("finished", "finished")
    assert again.cached_tokens >= again.prompt_tokens - 16, "which costs little: it is cached there"
    assert [(entry.outcome, entry.kv_transfer) for entry in log(failing)] == [("error", "used")]


async def test_where_nobody_is_to_be_met_the_decode_fails_and_its_word_is_the_last(world: World, pairs: Pair) -> None:
    prefill, decode = await pairs.add("prefill", step_s=30.0), await pairs.add("decode")
    assert prefill.rooms is not None
    prefill.rooms.close()
    await pairs.gateway(retry={"max_attempts": 2})
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.header("x-penstock-endpoint")) == (500, name(decode))
    assert "did not come" in answer.json()["error"]["message"]
    assert [entry.outcome for entry in log(decode)] == ["error", "error"]
    await world.until(lambda: prefill.engine.in_engine == 0)


async def test_the_engines_last_word_passes_when_no_prefill_succeeds(world: World, pairs: Pair) -> None:
    prefill, _ = await pairs.add("prefill"), await pairs.add("decode")
    await pairs.gateway(retry={"max_attempts": 2})
    fault(prefill, "error", count=9)
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.header("x-penstock-reason")) == (500, "upstream_error")
    assert "EngineCore" in answer.json()["error"]["message"]
    assert len(log(prefill)) == 2


async def test_a_prompt_too_long_is_refused_by_the_engine_that_would_compute_it(world: World, pairs: Pair) -> None:
    prefill, decode = await pairs.add("prefill", max_model_len=64), await pairs.add("decode")
    await pairs.gateway()
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.json()["error"]["param"]) == (400, "input_tokens")
    await world.until(lambda: [entry.outcome for entry in log(prefill) + log(decode)] == ["rejected", "aborted"])
    assert leases(world) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_the_decode_refuses_at_once_is_told_so_and_its_prompt_not_computed(
    world: World, pairs: Pair, *, stream: bool
) -> None:
    refusal = b'{"error":{"message":"no"}}'
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(refusal)
    refusing, _ = await world.scripted(head + refusal)
    prefill = await pairs.add("prefill", step_s=30.0)
    pairs.endpoints.append(refusing | {"slots": 4, "labels": {"role": "decode"}})
    await pairs.gateway()
    answer = await world.chat(PROMPT, stream=stream)
    assert (answer.status, answer.body) == (400, refusal)
    await world.idle()
    await world.until(lambda: prefill.engine.in_engine == 0)
    assert leases(world) == [(0, 0), (0, 0)]


async def test_an_answer_that_comes_before_the_prefill_told_is_passed_on(world: World, pairs: Pair) -> None:
    """The first token proves that the prompt is computed, whatever the other one has yet to say."""
    words = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(words)
    early, _ = await world.scripted(head + words)
    prefill = await pairs.add("prefill", step_s=30.0)
    pairs.endpoints.append(early | {"slots": 4, "labels": {"role": "decode"}})
    await pairs.gateway()
    answer = await world.chat(PROMPT, stream=True)
    assert (answer.status, answer.header("x-penstock-prefill")) == (200, name(prefill))
    assert b'"hi"' in answer.body
    await world.idle()
    await world.until(lambda: prefill.engine.in_engine == 0)
    assert leases(world) == [(0, 0), (0, 0)]


async def test_without_a_decode_endpoint_nothing_is_computed_and_it_waits(world: World, pairs: Pair) -> None:
    prefill, decode = await pairs.add("prefill"), await pairs.add("decode")
    await pairs.gateway(queue={"max_wait": 0.1})
    await decode.close()
    await world.until(lambda: world.picture().endpoints[1].state == "down")
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.error()["code"]) == (503, "no_endpoint")
    assert log(prefill) == []


@pytest.mark.parametrize("field", FIELDS)
async def test_a_request_with_its_own_bootstrap_fields_is_not_divided(world: World, pairs: Pair, field: str) -> None:
    prefill, decode = await pairs.add("prefill"), await pairs.add("decode")
    await pairs.gateway()
    assert (await world.chat(PROMPT, **{field: "h" if field == "bootstrap_host" else 7})).status == 200
    assert (log(prefill), len(log(decode))) == ([], 1)


async def test_many_at_once_leave_nothing_behind(world: World, pairs: Pair) -> None:
    engines = [await pairs.add(role) for role in ("prefill", "prefill", "decode", "decode")]
    await pairs.gateway()
    fault(engines[0], "error", count=3)
    fault(engines[2], "refuse", count=3)
    answers = [world.soon(world.chat(f"{at} " + PROMPT, tokens=1 + at % 7)) for at in range(40)]
    assert [(await answer).status for answer in answers] == [200] * 40
    await world.idle()
    assert sum(entry.kv_transfer == "used" for engine in engines[2:] for entry in log(engine)) == 40
    assert leases(world) == [(0, 0)] * 4
