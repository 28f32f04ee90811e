"""Disaggregated prefill over HTTP: one engine computes the prompt, another one answers, the client sees one answer."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.gateway.admin.story import story
from tests.gateway.conftest import World, chat, fault
from tests.gateway.proxy.divided import PROMPT, Pair, body, log, name

ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@pytest.fixture
def pair(world: World) -> Pair:
    return Pair(world)


async def test_a_prompt_is_computed_at_one_engine_and_answered_by_another(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway()
    asked = chat(PROMPT, tokens=5, stream=True, stream_options={"include_usage": True}, min_tokens=4)
    answer = await world.ask(body=asked)
    assert answer.status == 200
    assert answer.header("x-penstock-endpoint") == name(decode)
    assert answer.header("x-penstock-prefill") == name(prefill)
    (first,), (second,) = log(prefill), log(decode)
    assert body(first) == asked | {
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "min_tokens": 0,
        "stream": False,
        "stream_options": None,
        "kv_transfer_params": ASKED,
    }
    assert (first.kv_transfer, first.tokens) == ("promised", 1)
    sent = body(second)
    assert sent.pop("kv_transfer_params")["do_remote_prefill"] is True
    assert sent == asked
    assert (second.kv_transfer, second.tokens, second.cached_tokens) == ("used", 5, second.prompt_tokens - 1)
    assert first.id == second.id == answer.header("x-request-id")
    words = [event["choices"][0]["delta"].get("content", "") for event in answer.events() if event["choices"]]
    assert len([word for word in words if word]) == 5


async def test_a_prompt_is_paid_for_once_and_as_it_was_cached_where_it_was_computed(world: World, pair: Pair) -> None:
    await pair.add("prefill")
    await pair.add("decode")
    await pair.gateway()
    first = (await world.chat(PROMPT, tokens=3)).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"] - 1, "as the decode engine counts"
    assert await world.metric("penstock_tokens_total", kind="prompt") == first["prompt_tokens"]
    assert await world.metric("penstock_tokens_total", kind="cached_prompt") == 0
    assert await world.metric("penstock_tokens_total", kind="completion") == 3
    assert await world.metric("penstock_tenant_service_tokens_total") == first["prompt_tokens"] + 3
    await world.chat(PROMPT, tokens=3)
    cached = await world.metric("penstock_tokens_total", kind="cached_prompt")
    assert first["prompt_tokens"] - 16 <= cached < first["prompt_tokens"]


async def test_metrics_and_explain_tell_both_phases(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway()
    await world.chat_with({"x-request-id": "r1"}, content=PROMPT)
    names = [name(engine) for engine in (prefill, decode)]
    for endpoint in names:
        assert await world.metric("penstock_dispatches_total", endpoint=endpoint) == 1
    assert await world.metric("penstock_prefills_total", endpoint=names[0], transfer="named") == 1
    assert await world.metric("penstock_prefill_seconds_count", model="sim") == 1
    driver = world.gate.driver
    told = driver.scheduler.explain("r1", now=driver.now())
    assert told is not None
    assert told.sent is not None
    assert (told.sent.endpoint, told.sent.decode_endpoint) == (names[0], names[1])
    assert told.sent.decode_at_s is not None
    assert any(line.endswith(f"then it went on to {names[1]}.") for line in story(told))
    assert {e.name: e.role for e in world.picture().endpoints} == dict(zip(names, ("prefill", "decode"), strict=True))


async def test_a_prefill_that_refuses_or_fails_is_tried_elsewhere(world: World, pair: Pair) -> None:
    busy, broken, well = [await pair.add("prefill") for _ in range(3)]
    decode = await pair.add("decode")
    await pair.gateway(routing={"policy": "round_robin"})
    fault(busy, "busy")
    fault(broken, "error")
    answer = await world.chat(PROMPT)
    assert answer.status == 200
    assert answer.header("x-penstock-prefill") == name(well)
    assert [entry.outcome for entry in log(busy) + log(broken)] == ["busy", "error"]
    assert [entry.kv_transfer for entry in log(decode)] == ["used"]


async def test_a_prompt_too_long_is_refused_by_the_engine_that_would_compute_it(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill", max_model_len=64), await pair.add("decode")
    await pair.gateway()
    answer = await world.chat(PROMPT)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "input_tokens"
    assert [entry.outcome for entry in log(prefill)] == ["rejected"]
    assert log(decode) == []


async def test_the_engines_last_word_passes_when_no_prefill_succeeds(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway(retry={"max_attempts": 2})
    fault(prefill, "error")
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.header("x-penstock-reason")) == (500, "upstream_error")
    assert (len(log(prefill)), log(decode)) == (2, [])


async def test_a_decode_that_fails_before_its_first_byte_is_prefilled_again(world: World, pair: Pair) -> None:
    prefill, dying, well = await pair.add("prefill"), await pair.add("decode"), await pair.add("decode")
    await pair.gateway()
    fault(dying, "refuse")
    answer = await world.chat(PROMPT, stream=True)
    assert answer.status == 200
    assert answer.header("x-penstock-endpoint") == name(well)
    first, again = log(prefill)
    assert (first.kv_transfer, again.kv_transfer) == ("promised", "promised")
    assert again.cached_tokens >= again.prompt_tokens - 16, "which costs little: it is cached there"
    assert {entry.outcome for entry in log(dying)} == {"refused"}
    assert [entry.outcome for entry in log(well)] == ["finished"]


async def test_without_a_prefill_endpoint_a_decode_endpoint_does_it_all(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway()
    await prefill.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.header("x-penstock-prefill")) == (200, None)
    (entry,) = log(decode)
    assert "kv_transfer_params" not in body(entry)


async def test_without_a_decode_endpoint_nothing_is_computed_and_it_waits(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway(queue={"max_wait": 0.1})
    await decode.close()
    await world.until(lambda: world.picture().endpoints[1].state == "down")
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.error()["code"]) == (503, "no_endpoint")
    assert log(prefill) == []


async def test_a_client_that_leaves_in_the_first_phase_frees_both(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill", step_s=30.0), await pair.add("decode")
    await pair.gateway()
    client = await world.streaming(PROMPT)
    await world.until(lambda: log(prefill))
    picture = world.picture()
    assert [(e.leases, e.pending) for e in picture.endpoints] == [(1, 0), (1, 1)]
    assert picture.running == 1
    client.hang_up()
    await world.idle()
    await world.until(lambda: prefill.engine.in_engine == 0)
    assert log(decode) == []


async def test_a_client_that_leaves_in_the_second_phase_frees_the_decode(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway()
    client = await world.streaming(PROMPT, tokens=2000)
    await client.begun()
    assert [(e.leases, e.pending) for e in world.picture().endpoints] == [(0, 0), (1, 0)]
    client.hang_up()
    await world.idle()
    await world.until(lambda: decode.engine.in_engine == 0)
    assert [entry.outcome for entry in log(prefill) + log(decode)] == ["finished", "aborted"]


async def test_a_computed_prompt_never_waits_for_a_decode_slot(world: World, pair: Pair) -> None:
    prefill, _ = await pair.add("prefill"), await pair.add("decode", slots=1)
    await pair.gateway()
    running = await world.streaming(PROMPT, tokens=400)
    await running.begun()
    waiting = await world.streaming("another " * 40)
    await world.until(lambda: world.picture().waiting == 1)
    assert len(log(prefill)) == 1, "its prompt is not computed before there is a place for its answer"
    assert world.picture().models[0].cause == "slots_full"
    running.hang_up()
    await waiting.answer()
    assert len(log(prefill)) == 2


async def test_expired_or_missing_params_are_computed_again(world: World, pair: Pair) -> None:
    await pair.add("prefill", kv_transfer_s=0.0)
    decode = await pair.add("decode")
    await pair.gateway()
    expired = await world.chat(PROMPT)
    (entry,) = log(decode)
    assert (expired.status, entry.kv_transfer, entry.cached_tokens) == (200, "stale", 0)


async def test_an_engine_without_a_connector_costs_time_and_nothing_else(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill", kv_transfer_s=None), await pair.add("decode")
    await pair.gateway()
    answer = await world.chat(PROMPT)
    assert answer.status == 200
    (entry,) = log(decode)
    assert "kv_transfer_params" not in body(entry)
    assert await world.metric("penstock_prefills_total", endpoint=name(prefill), transfer="none") == 1


@pytest.mark.parametrize(
    "more",
    [{"n": 2}, {"prompt_logprobs": 1}, {"kv_transfer_params": {"do_remote_prefill": True}}],
    ids=lambda more: str(next(iter(more))),
)
async def test_what_cannot_be_divided_goes_whole_to_a_decode_endpoint(
    world: World, pair: Pair, more: dict[str, Any]
) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway()
    assert (await world.chat(PROMPT, **more)).status == 200
    assert (log(prefill), len(log(decode))) == ([], 1)


async def test_embeddings_go_whole_to_a_decode_endpoint(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway()
    answer = await world.ask(path="/v1/embeddings", body={"model": "sim", "input": "hello"})
    assert (answer.status, log(prefill), len(log(decode))) == (200, [], 1)


async def test_short_prompts_may_stay_whole(world: World, pair: Pair) -> None:
    prefill, decode = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway(routing={"divide_from": 100})
    await world.chat("short")
    assert (len(log(prefill)), len(log(decode))) == (0, 1)
    await world.chat(PROMPT)
    assert (len(log(prefill)), len(log(decode))) == (1, 2)


async def test_a_prefill_answer_that_never_ends_is_cut_and_tried_elsewhere(world: World, pair: Pair) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n"
    endless, _ = await world.scripted(head + b" " * (5 * 1024 * 1024))
    decode, well = await pair.add("decode"), await pair.add("prefill")
    pair.endpoints.insert(0, endless | {"slots": 4, "labels": {"role": "prefill"}})
    await pair.gateway(routing={"policy": "round_robin"})
    answer = await world.chat(PROMPT)
    assert (answer.status, answer.header("x-penstock-prefill")) == (200, name(well))
    assert len(log(decode)) == 1


async def test_many_at_once_leave_nothing_behind(world: World, pair: Pair) -> None:
    for role in ("prefill", "prefill", "decode", "decode"):
        await pair.add(role)
    await pair.gateway()
    fault(world.engines[0], "error", count=3)
    fault(world.engines[2], "refuse", count=3)
    answers = [world.soon(world.chat(f"{at} " + PROMPT, tokens=1 + at % 7)) for at in range(40)]
    assert [(await answer).status for answer in answers] == [200] * 40
    await world.idle()
    assert sum(entry.kv_transfer == "used" for engine in world.engines[2:] for entry in log(engine)) == 40


async def test_ready_reports_a_model_with_one_role_only(world: World, pair: Pair) -> None:
    prefill, _ = await pair.add("prefill"), await pair.add("decode")
    await pair.gateway()
    assert "roles" not in (await world.ask("GET", "/ready")).json()["missing"]
    await prefill.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    told = (await world.ask("GET", "/ready")).json()["missing"]["roles"]
    assert told["sim"].startswith("has `role: decode` endpoints and none with `role: prefill`")
