"""The simulated engine is strange over HTTP as it is told: what answers lack, what its page says, when it begins."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.sim.fake_engine.log import Fault, Faults
from tests.patience import WAIT_S
from tests.sim.test_engine_server import CHAT, bench, chat, events, raw_post, silent

COUNTS = re.compile('"(prompt|completion|input|output|total)_tokens"')
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"


def body_for(path: str, **more: Any) -> dict[str, Any]:
    plain: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"model": "sim", "prompt": "hello", "max_tokens": 3},
        RESPONSES: {"model": "sim", "input": "hello", "max_output_tokens": 3},
        MESSAGES: {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
        CHAT: chat(max_tokens=3),
    }
    return plain[path] | more


# --- answers ----------------------------------------------------------------------------------------------------


async def test_an_answer_without_done_ends_with_its_last_event() -> None:
    async with bench() as at:
        await at.fault(kind="no_done", count=1)
        text = (await at.http.post(CHAT, json=chat(max_tokens=3, stream=True))).text
        assert events(text)[-1]["choices"][0]["finish_reason"] == "length"
        assert "[DONE]" not in text
        assert (await at.http.post(CHAT, json=chat(max_tokens=3, stream=True))).text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_answer_without_a_reason_still_ends(path: str) -> None:
    async with bench() as at:
        await at.fault(kind="no_finish_reason")
        text = (await at.http.post(path, json=body_for(path, stream=True))).text
        assert {event["choices"][0]["finish_reason"] for event in events(text)} == {None}
        assert text.endswith("data: [DONE]\n\n")
        whole = (await at.http.post(path, json=body_for(path))).json()
        assert whole["choices"][0]["finish_reason"] is None


async def test_messages_without_a_reason_have_no_stop_reason() -> None:
    async with bench() as at:
        await at.fault(kind="no_finish_reason")
        assert (await at.http.post(MESSAGES, json=body_for(MESSAGES))).json()["stop_reason"] is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
async def test_missing_usage_is_shown_nowhere(path: str, *, stream: bool) -> None:
    body = body_for(path, stream=stream)
    if stream and path in (CHAT, COMPLETIONS):
        body |= USAGE
    async with bench() as at:
        told = (await at.http.post(path, json=body)).text
        await at.fault(kind="no_usage")
        answer = await at.http.post(path, json=body)
    assert COUNTS.search(told)
    assert answer.status_code == 200
    assert not COUNTS.search(answer.text)


async def test_a_stream_that_was_asked_for_may_come_whole() -> None:
    async with bench() as at:
        await at.fault(kind="no_stream", count=1)
        answer = await at.http.post(CHAT, json=chat(max_tokens=3, **USAGE))
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["usage"]["completion_tokens"] == 3
        again = await at.http.post(CHAT, json=chat(max_tokens=3, **USAGE))
        assert again.headers["content-type"].startswith("text/event-stream")


async def test_answer_faults_add_up_and_end_together() -> None:
    async with bench() as at:
        for kind in ("no_done", "no_finish_reason", "no_usage"):
            await at.fault(kind=kind)
        text = (await at.http.post(CHAT, json=chat(max_tokens=2, **USAGE))).text
        assert [event["choices"][0]["finish_reason"] for event in events(text)] == [None] * 3
        assert "[DONE]" not in text
        await at.fault(kind="none")
        assert "[DONE]" in (await at.http.post(CHAT, json=chat(max_tokens=2, **USAGE))).text


# --- prompts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 300_000])
async def test_a_picture_of_any_size_is_a_thousand_tokens(size: int) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
    body = {"model": "sim", "messages": [{"role": "user", "content": [picture]}], "max_tokens": 1}
    async with bench() as at:
        usage = (await at.http.post(CHAT, json=body)).json()["usage"]
        other = body | {"messages": json.loads(json.dumps(body["messages"]).replace("AAAA", "BAAA", 1))}
        again = (await at.http.post(CHAT, json=other)).json()["usage"]
    assert usage["prompt_tokens"] == pytest.approx(1020, abs=10)
    assert again["prompt_tokens_details"]["cached_tokens"] < 32, "another picture is another prompt"


# --- time -------------------------------------------------------------------------------------------------------


async def test_who_stands_before_the_engine_is_no_work_of_its_own() -> None:
    async with bench() as at:
        await at.fault(kind="door", seconds=3600)
        async with at.raw(raw_post(chat())) as (reader, _):
            await at.until(lambda: len(at.server.log.entries) == 1)
            await silent(reader)
            assert at.server.engine.in_engine == 0
        await at.until(lambda: at.server.log.entries[0].outcome == "aborted")


async def test_who_stood_before_the_engine_is_served_in_the_end() -> None:
    async with bench() as at:
        await at.fault(kind="door", seconds=0.02, count=1)
        answer, entry = await at.http.post(CHAT, json=chat(max_tokens=2)), at.server.log.entries[0]
        assert answer.json()["usage"]["completion_tokens"] == 2
        assert entry.started is not None
        assert entry.started - entry.arrived >= 0.015


def test_a_course_sets_the_slowness_over_time() -> None:
    faults = Faults()
    faults.set(Fault("slow", course=[(0.0, 2.0), (5.0, 1.0)]), 100.0)
    assert [faults.slow_factor(now) for now in (100.0, 104.9, 105.0)] == [2.0, 2.0, 1.0]
    faults.set(Fault("door", seconds=0.5, course=[(5.0, 2.0)]), 100.0)
    assert [faults.door_s(now) for now in (100.0, 106.0)] == [0.5, 2.0]


# --- the page ---------------------------------------------------------------------------------------------------


async def test_a_page_may_be_missing() -> None:
    async with bench() as at:
        await at.fault(kind="metrics_missing", count=1)
        assert (await at.http.get("/metrics")).status_code == 404
        assert (await at.http.get("/metrics")).status_code == 200


async def test_a_late_page_shows_how_things_were() -> None:
    async with bench() as at:
        await at.fault(kind="metrics_late", seconds=60)
        await at.http.post(CHAT, json=chat(max_tokens=5))
        assert (await at.gauges())["vllm:generation_tokens_total"] == 0
        await at.fault(kind="metrics_late", seconds=0)
        assert (await at.gauges())["vllm:generation_tokens_total"] == 5


async def test_a_page_lies_about_its_load_and_its_counters_move() -> None:
    async with bench() as at:
        await at.fault(kind="metrics_lie", value={"running_more": 7, "waiting_more": 3, "kv_usage": 1.0})
        await at.http.post(CHAT, json=chat(max_tokens=5))
        said = await at.gauges()
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total")
        assert [said[f"vllm:{name}"] for name in names] == [7, 3, 1, 5]


async def test_the_page_of_another_model_names_it() -> None:
    async with bench() as at:
        await at.fault(kind="metrics_lie", value={"of_another": True}, count=1)
        assert 'vllm:num_requests_running{engine="0",model_name="another"}' in (await at.http.get("/metrics")).text
        assert 'vllm:num_requests_running{engine="0",model_name="sim"}' in (await at.http.get("/metrics")).text


async def test_a_page_stands_still_or_has_no_counters() -> None:
    async with bench() as at:
        await at.fault(kind="metrics_lie", value={"frozen": True, "frozen_waiting": 200})
        assert (await at.gauges())["vllm:num_requests_waiting"] == 200
        await at.fault(kind="metrics_lie", value={"counters": False})
        gauges = {f"vllm:num_requests_{name}" for name in ("running", "waiting", "waiting_by_reason")}
        assert set(await at.gauges()) == gauges


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "door"}, {"kind": "door", "seconds": -1}, {"kind": "slow", "course": [[0, 0]]},
        {"kind": "slow", "course": [[5, 1], [0, 2]]}, {"kind": "metrics_late"}, {"kind": "metrics_lie"},
        {"kind": "metrics_lie", "value": {"page": "honest"}}, {"kind": "metrics_lie", "value": {"mood": 1}},
        {"kind": "metrics_lie", "value": {"kv_usage": "full"}},
    ],
)  # fmt: skip
async def test_a_strange_way_that_makes_no_sense_is_refused(fault: dict[str, Any]) -> None:
    async with bench() as at:
        assert (await at.http.post("/sim/fault", json=fault)).status_code == 400
        assert (await at.http.get("/sim/fault")).json() == {"faults": []}


# --- the command ------------------------------------------------------------------------------------------------


async def test_the_command_is_strange_from_the_start() -> None:
    lie = {"kind": "metrics_lie", "value": {"running_times": 0, "waiting_times": 0}}
    flags = ["--fault", json.dumps({"kind": "no_done"}), "--fault", json.dumps(lie)]
    command = [sys.executable, "-m", "penstock", "engine", "--port", "0", *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), WAIT_S)).decode()
        async with bench() as at:
            faults = (await at.http.get(line.split()[-1] + "/sim/fault")).json()["faults"]
        assert {fault["kind"] for fault in faults} == {"no_done", "metrics_lie"}
    finally:
        process.terminate()
        await process.communicate()


def test_an_unknown_fault_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine", "--port", "0", "--fault", '{"kind": "bogus"}']) == 1
    assert "--fault: unknown kind 'bogus'" in capsys.readouterr().err
