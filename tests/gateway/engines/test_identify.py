"""What an endpoint is, serves and takes is learned from what it answers, again after every restart."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import pytest

from penstock.engines.base import Priority
from tests.gateway.conftest import chat
from tests.gateway.engines import faces
from tests.gateway.engines.conftest import Faces
from tests.gateway.engines.faces import Face, Route

TRIES_BEFORE_GIVING_UP = 3
FACTS_TRIES_MAX = 5

CHAT = chat(model="m")
# face, engine, model, slots (None: found out), context, priority
LEARNED: dict[str, tuple[dict[str, Route], str, str, int | None, int | None, Priority | None]] = {
    "vllm": (faces.VLLM, "vllm", "m", None, 8192, Priority.LOWER_FIRST),
    "vllm that tells more": (faces.VLLM_DEV, "vllm", "m", 24, 8192, Priority.LOWER_FIRST),
    "sglang": (faces.SGLANG, "sglang", "m", 40, 32768, Priority.HIGHER_FIRST),
    "tgi": (faces.TGI, "tgi", "org/m", 128, 4096, None),
    "tgi without a model list": (faces.TGI_OLD, "tgi", "org/m", 128, 4096, None),
    "llama.cpp": (faces.LLAMACPP, "llamacpp", "m", 4, 4096, None),
    "trt-llm": (faces.TRTLLM, "trtllm", "m", 64, None, None),
    "lmdeploy": (faces.LMDEPLOY, "lmdeploy", "m", None, None, None),
    "ollama": (faces.OLLAMA, "ollama", "llama3:8b", None, None, None),
    "something else": (faces.OTHER, "openai", "m", None, None, None),
}


@pytest.mark.parametrize("name", LEARNED)
async def test_an_engine_is_recognised_and_tells_what_it_serves(world: Faces, name: str) -> None:
    routes, engine, model, slots, context, priority = LEARNED[name]
    face = await world.face(routes)
    await world.behind(face)
    await world.until(lambda: world.target(face).engine.name == engine)
    await world.until(lambda: world.endpoint(face).slots == (slots or 16))
    assert world.endpoint(face).models == [model]
    assert world.target(face).priority is priority
    assert world.gate.driver.scheduler.inspect().pool[face.name].ledger.lingers == (engine == "llamacpp")
    (entry,) = (await world.ask("GET", "/v1/models")).json()["data"]
    assert entry.get("max_model_len") == context
    assert (await world.ask(body=chat(model=model))).status == 200


@pytest.mark.parametrize("keeps", [True, False])
async def test_sglang_reports_whether_it_keeps_prefixes(world: Faces, keeps: bool) -> None:
    info = json.loads(faces.SGLANG["/server_info"][1]) | {"disable_radix_cache": not keeps}
    face = await world.face({**faces.SGLANG, "/server_info": faces.doc(info)})
    await world.behind(face)
    await world.until(lambda: world.endpoint(face).slots == 40)
    assert world.gate.driver.scheduler.inspect().pool[face.name].keeps_prefixes is keeps


async def test_recognising_most_engines_costs_one_question_and_none_is_asked_what_it_does_not_know(
    world: Faces,
) -> None:
    face = await world.face(faces.VLLM)
    await world.behind(face)
    await world.until(lambda: face.asked.count("/v1/models") > 5)
    assert set(face.asked) == {
        "/health",
        "/v1/models",
        "/load",
        "/metrics",
        *(d.path for d in world.target(face).engine.documents),
    }
    assert face.asked.count("/version") == 1, "what can't change while it runs is asked once"


@pytest.mark.parametrize(
    ("routes", "running", "waiting"),
    [(faces.SGLANG, 5, 1), (faces.LLAMACPP, 1, 0), (faces.TRTLLM, 9, 2), (faces.TGI, 4, 6)],
    ids=["sglang without --enable-metrics", "llama.cpp without --metrics", "trt-llm", "tgi"],
)
async def test_load_is_read_from_each_of_its_sources(
    world: Faces, routes: dict[str, Route], running: int, waiting: int
) -> None:
    face = await world.face(routes)
    await world.behind(face)
    await world.until(lambda: world.endpoint(face).engine_running is not None)
    endpoint = world.endpoint(face)
    assert (endpoint.engine_running, endpoint.engine_waiting) == (running, waiting)


async def test_what_is_at_the_door_of_vllm_counts_unless_it_is_not_tracked(world: Faces) -> None:
    tracks = await world.face({**faces.VLLM, "/load": faces.doc({"server_load": 9})})
    not_tracking = await world.face(faces.VLLM)
    await world.behind(tracks, not_tracking)
    await world.until(lambda: world.endpoint(tracks).load == 9)
    await world.until(lambda: not_tracking.asked.count("/metrics") > TRIES_BEFORE_GIVING_UP + 2)
    assert world.endpoint(not_tracking).load == 3
    assert not_tracking.asked.count("/load") == TRIES_BEFORE_GIVING_UP


async def test_slots_that_are_all_busy_do_not_tell_whether_others_wait(world: Faces) -> None:
    face = await world.face(faces.LLAMACPP)
    await world.behind(face)
    await world.until(lambda: world.endpoint(face).engine_running == 1)
    face.routes["/slots"] = faces.doc([{"id": n, "is_processing": True} for n in range(4)])
    face.asked.clear()
    await world.until(lambda: face.asked.count("/slots") > 2)
    assert world.endpoint(face).engine_running == 1, "the last reading that made sense"


async def test_an_engine_that_cannot_report_its_load_is_not_asked_again_and_again(world: Faces) -> None:
    face = await world.face(faces.LLAMACPP_ROUTER)
    await world.behind(face)
    assert world.endpoint(face).models == ["m", "n"]
    await world.until(lambda: face.asked.count("/health") > 5)
    assert face.asked.count("/metrics") + face.asked.count("/slots") <= 2, "once, before it had told what it is"


async def test_a_model_that_appears_is_routable_and_one_that_goes_is_refused(world: Faces) -> None:
    face = await world.face(faces.VLLM)
    await world.behind(face)
    assert (await world.ask(body=chat(model="sql-lora"))).status == 404
    known = json.loads(faces.VLLM["/v1/models"][1])
    face.routes["/v1/models"] = faces.doc({**known, "data": [*known["data"], faces.adapter("sql-lora", "m")]})
    await world.until(lambda: world.endpoint(face).models == ["m", "sql-lora"])
    assert (await world.ask(body=chat(model="sql-lora"))).status == 200
    entry = (await world.ask("GET", "/v1/models/sql-lora")).json()
    assert entry["parent"] == "m"
    face.routes["/v1/models"] = faces.VLLM["/v1/models"]
    await world.until(lambda: world.endpoint(face).models == ["m"])
    refused = await world.ask(body=chat(model="sql-lora"))
    assert (refused.status, refused.error()["code"]) == (404, "model_not_found")


async def test_another_engine_at_the_same_place_is_learned_anew(world: Faces) -> None:
    face = await world.face(faces.LLAMACPP)
    await world.behind(face)
    await world.until(lambda: world.endpoint(face).slots == 4)
    await face.stop()
    await world.until(lambda: world.endpoint(face).state == "down")
    other = await world.face(faces.SGLANG, port=face.port)
    await world.until(lambda: world.target(other).engine.name == "sglang")
    await world.until(lambda: world.endpoint(other).slots == 40)
    assert world.target(other).priority is Priority.HIGHER_FIRST


async def test_an_engine_that_returns_is_used_before_it_has_told_all_that_it_is_asked(world: Faces) -> None:
    """As vLLM, whose first `/server_info` takes seconds on a busy machine."""
    face = await world.face(faces.VLLM_DEV)
    await world.behind(face)
    await world.until(lambda: world.endpoint(face).slots == 24)
    await face.stop()
    await world.until(lambda: world.endpoint(face).state == "down")
    other = Face({**faces.VLLM_DEV, "/v1/models": faces.doc({"data": [faces.adapter("n", "m")]})})
    other.silent = next(path for path in faces.VLLM_DEV if path.startswith("/server_info"))
    await other.start(face.port)
    world.faces.append(other)
    await world.until(lambda: other.unanswered == 1)
    await world.until(lambda: world.endpoint(face).state == "up" or not other.unanswered)
    assert other.unanswered == 1, "it was not waited for"
    assert world.endpoint(face).models == ["n"], "what it serves now is known"


async def test_a_restart_between_two_probes_is_seen_on_the_page(world: Faces) -> None:
    face = await world.face(faces.VLLM)
    await world.behind(face, health={"probe_interval": "1h"})
    await world.until(lambda: world.endpoint(face).engine_running is not None)
    asked = face.asked.count("/version")
    page = faces.VLLM["/metrics"][1]
    started = page.index(b"\nprocess_start_time_seconds ") + 1
    line = page[started : page.index(b"\n", started)]
    face.routes["/metrics"] = (200, page.replace(line, b"process_start_time_seconds 1.9e9"), "text/plain")
    await world.until(lambda: face.asked.count("/version") > asked)


async def test_an_engine_that_does_not_answer_yet_is_not_taken_for_another(world: Faces) -> None:
    loading = dict.fromkeys(faces.LLAMACPP, (503, b'{"error":{"message":"Loading model"}}', "application/json"))
    face = await world.face(loading)
    await world.gateway(endpoints=[{"url": face.url}])
    await world.until(lambda: face.asked.count("/health") > 2)
    face.routes.update(faces.LLAMACPP)
    await world.until(lambda: world.endpoint(face).slots == 4)
    assert world.target(face).engine.name == "llamacpp"


async def test_a_question_that_got_no_answer_is_asked_again_but_not_for_ever(world: Faces) -> None:
    """As vLLM's `/server_info` in development mode, which takes seconds when it is asked for the first time."""
    path = next(path for path in faces.VLLM_DEV if path.startswith("/server_info"))
    face = await world.face({**faces.VLLM_DEV, path: faces.doc({}, 503)})
    other = await world.face({**faces.VLLM_DEV, path: faces.doc({}, 503)})
    await world.behind(face, other)
    await world.until(lambda: face.asked.count(path) == 2)
    assert world.endpoint(face).slots != 24
    face.routes[path] = faces.VLLM_DEV[path]
    await world.until(lambda: world.endpoint(face).slots == 24)
    await world.until(lambda: other.asked.count(path) == FACTS_TRIES_MAX)
    probes = other.asked.count("/health")
    await world.until(lambda: other.asked.count("/health") >= probes + 3)
    assert other.asked.count(path) == FACTS_TRIES_MAX
    assert world.endpoint(other).slots != 24


async def test_what_is_set_is_neither_guessed_nor_overruled(world: Faces) -> None:
    face = await world.face(faces.LLAMACPP)
    await world.gateway(endpoints=[{"url": face.url, "engine": "openai", "slots": 7}])
    await world.until(lambda: world.endpoint(face).models == ["m"])
    await world.until(lambda: face.asked.count("/v1/models") > 2)
    assert (world.target(face).engine.name, world.endpoint(face).slots) == ("openai", 7)
    assert not {"/metrics", "/slots", "/props"} & set(face.asked)


# --- what its requests are told, and its answers tell ------------------------------------------------------------


@pytest.mark.parametrize(("routes", "sign"), [(faces.VLLM, 1), (faces.SGLANG, -1)], ids=["vllm", "sglang"])
async def test_each_engine_gets_the_priority_in_its_own_direction(
    world: Faces, routes: dict[str, Route], sign: int
) -> None:
    face = await world.face(routes)
    await world.behind(face, admission={"engine_priority": True})
    await world.until(lambda: world.target(face).priority is not None)
    found = []
    for band in ("standard", "batch"):
        await world.ask(body=CHAT, headers={"x-penstock-band": band})
        found.append(json.loads(face.posted[-1].split(b"\r\n\r\n", 1)[1])["priority"] * sign)
    assert 0 < found[0] < found[1]


async def test_an_sglang_that_does_not_schedule_by_priority_gets_none(world: Faces) -> None:
    info = json.loads(faces.SGLANG["/server_info"][1])
    face = await world.face({**faces.SGLANG, "/server_info": faces.doc({**info, "enable_priority_scheduling": False})})
    await world.behind(face, admission={"engine_priority": True})
    await world.until(lambda: world.endpoint(face).slots == 40)
    await world.ask(body=CHAT)
    assert b"priority" not in face.posted[-1]


ORCA = 'endpoint-load-metrics: JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.5}}'


async def test_load_that_comes_with_an_answer_is_taken_in_and_not_passed_on(world: Faces) -> None:
    async def serve(peer: Any, request: bytes) -> None:
        await peer.send(faces.answer(200, b"{}", "application/json", ORCA))

    face = await world.face(faces.VLLM, serve=serve)
    await world.behind(face, observe={"interval": "1h", "fast_interval": "1h"})
    await world.until(lambda: world.endpoint(face).engine_waiting == 1)
    await world.until(lambda: world.target(face).engine.orca)
    first = await world.ask(body=CHAT)
    assert b"\r\nendpoint-load-metrics-format: TEXT\r\n" in face.posted[-1]
    assert first.header("endpoint-load-metrics") is None
    await world.until(lambda: world.endpoint(face).engine_waiting == 3)
    assert world.endpoint(face).kv_usage == 0.5
    own = await world.ask(body=CHAT, headers={"endpoint-load-metrics-format": "JSON"})
    assert face.posted[-1].count(b"endpoint-load-metrics-format") == 1
    assert own.header("endpoint-load-metrics") == ORCA.partition(": ")[2]


async def test_few_answers_are_asked_for_load_because_telling_costs_the_engine(world: Faces) -> None:
    face = await world.face(faces.VLLM)
    await world.behind(face)
    await world.until(lambda: world.target(face).engine.orca)
    target, step_s = (
        world.target(face),
        0.25 / 4,
    )  # four looks in each interval
    assert [target.asks_load(1e6 + at * step_s) for at in range(10)] == [at in (0, 4, 8) for at in range(10)]
    assert not target.asks_load(1e6), "what goes there asks what the target says"
    assert (await world.ask(body=CHAT)).status == 200
    assert b"endpoint-load-metrics-format" not in face.posted[-1]


async def test_only_engines_that_know_it_are_asked_for_it(world: Faces) -> None:
    face = await world.face(faces.SGLANG)
    await world.behind(face)
    await world.until(lambda: world.target(face).engine.name == "sglang")
    await world.ask(body=CHAT)
    assert b"endpoint-load-metrics" not in face.posted[-1]


@pytest.mark.slow
async def test_a_list_of_a_hundred_thousand_models_is_read_up_to_a_bound(
    world: Faces, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"adapter-{n}" for n in range(100_000)]
    face = await world.face({**faces.VLLM, "/v1/models": faces.models("vllm", *names)})
    await world.behind(face)
    await world.until(lambda: bool(world.endpoint(face).models))
    assert len(world.endpoint(face).models or ()) == 10_000
    assert (await world.ask(body=chat(model="adapter-7"))).status == 200
    world.gate.autoscale.look()  # as each second
    page = (await world.ask("GET", "/metrics")).body.decode()
    models = defaultdict[str, set[str]](set)
    for series, model in re.findall(r'^(\w+)\{.*?model="([^"]*)"', page, re.MULTILINE):
        models[series].add(model)
    assert {"penstock_requests_total", "penstock_model_slots"} <= models.keys()
    assert max(len(names) for names in models.values()) in (500, 501)  # one may be `other`
    assert "only 10000 are known" in caplog.text


@pytest.mark.parametrize("body", [b'{"data":[{"id":"a\xff"}]}', b'{"data":null}', b"<html>", b"[" * 100_000])
async def test_an_invalid_list_is_logged_once_and_requested_again(
    world: Faces, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    face = await world.face({**faces.VLLM, "/v1/models": (200, body, "application/json")})
    await world.gateway(endpoints=[{"url": face.url}])
    await world.until(lambda: face.asked.count("/v1/models") > 2)
    assert caplog.text.count("its model list is invalid") == 1
    assert "Traceback" not in caplog.text
    face.routes["/v1/models"] = faces.VLLM["/v1/models"]
    await world.until(lambda: world.endpoint(face).models == ["m"])
    assert (await world.ask(body=CHAT)).status == 200


async def test_documents_and_names_of_a_model_that_make_no_sense_are_left_out(world: Faces) -> None:
    version = (200, b'{"version":"\xff"}', "application/json")
    face = await world.face({**faces.VLLM, "/version": version, "/v1/models": faces.models("vllm", "m", "", "x" * 257)})
    await world.behind(face)
    await world.until(lambda: world.endpoint(face).models == ["m"])
    await world.until(lambda: world.endpoint(face).engine_running is not None)
    assert (await world.ask(body=CHAT)).status == 200
