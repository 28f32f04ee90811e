"""`penstock doctor` says what an endpoint is, what it lacks and which flag brings it, and never hangs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.build import compiled, kind
from penstock.cli import diagnosis
from penstock.cli.diagnosis import Doctor, FeatureState, Report
from penstock.cli.doctor import unserved
from penstock.cli.main import main
from penstock.config.model import EndpointSection, Settings
from penstock.gateway.endpoints.probe import ProbeAnswer
from penstock.http.client.pool import UpstreamError, UpstreamErrorKind, UpstreamException
from tests.gateway.engines import faces
from tests.gateway.engines.conftest import Faces
from tests.gateway.engines.faces import Route
from tests.gateway.raw_engine import Peer

Y, N, U, NEVER = FeatureState.OFFERED, FeatureState.MISSING, FeatureState.UNKNOWN, FeatureState.NEVER

# metrics, slots, cached tokens, priority, KV events
FOUND: dict[str, tuple[dict[str, Route], str, str | None, list[FeatureState]]] = {
    "vllm": (faces.VLLM, "vLLM", "0.32.0", [Y, U, U, U, N]),
    "vllm in development mode": (faces.VLLM_DEV, "vLLM", "0.32.0", [Y, Y, U, Y, N]),
    "sglang": (faces.SGLANG, "SGLang", "0.5.23", [Y, Y, Y, Y, N]),
    "tgi": (faces.TGI, "TGI", "3.3.7", [Y, Y, U, NEVER, NEVER]),
    "llama.cpp": (faces.LLAMACPP, "llama.cpp", "b1-0c1e570", [N, Y, U, NEVER, NEVER]),
    "llama.cpp as a router": (faces.LLAMACPP_ROUTER, "llama.cpp", "b1-0c1e570", [NEVER, U, U, NEVER, NEVER]),
    "trt-llm": (faces.TRTLLM, "TensorRT-LLM", "1.2.0", [Y, Y, U, NEVER, NEVER]),
    "ollama": (faces.OLLAMA, "Ollama", "0.9.0", [NEVER, U, U, NEVER, NEVER]),
    "something else": (faces.OTHER, "OpenAI-compatible", None, [NEVER, U, U, NEVER, NEVER]),
}


async def examine(url: str, *, tries: bool = False, timeout_s: float = 5.0, **settings: Any) -> Report:
    return await Doctor(timeout_s=timeout_s, tries=tries).examine(EndpointSection(url=url, **settings))


@pytest.mark.parametrize("name", FOUND)
async def test_it_finds_out_what_an_endpoint_is_and_offers(world: Faces, name: str) -> None:
    routes, title, version, states = FOUND[name]
    face = await world.face(routes)
    report = await examine(face.url)
    assert report.problems == []
    assert (report.title, report.version) == (title, version)
    assert [offer.state for offer in report.offers] == states
    assert all(offer.without for offer in report.offers if offer.state is not Y)
    assert face.posted == [], "it only looks"


async def test_what_is_missing_comes_with_its_flag(world: Faces) -> None:
    info = json.loads(faces.SGLANG["/server_info"][1])
    info = {**info, "enable_priority_scheduling": False, "enable_cache_report": False}
    face = await world.face(
        {**faces.SGLANG, "/server_info": faces.doc(info), "/v1/loads?include=core": faces.doc({}, 404)}
    )
    report = await examine(face.url)
    assert {offer.what: offer.flag for offer in report.offers if offer.state is N} == {
        "metrics": "--enable-metrics",
        "cached_tokens": "--enable-cache-report",
        "priority": "--enable-priority-scheduling",
        "kv_events": '--kv-events-config \'{"publisher":"zmq","endpoint":"tcp://*:5557"}\'',
    }


BARE = (200, b"# HELP x y\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.0\n", "text/plain")
FORWARD = "forward /metrics to the engine: a proxy before it seems to pass only some paths"


@pytest.mark.parametrize(
    ("routes", "change", "flag"),
    [
        (faces.VLLM, {"/metrics": faces.doc({}, 404)}, FORWARD),
        (faces.VLLM, {"/metrics": faces.doc({}, 404), "/health": faces.doc({}, 404)}, FORWARD),
        (
            faces.VLLM,
            {"/metrics": BARE},
            "/metrics has no gauges: serve a request first; if it still has none, remove --disable-log-stats",
        ),
    ],
)
async def test_a_page_that_is_not_forwarded_or_has_no_gauges_yet_is_no_matter_of_the_engines_flags(
    world: Faces, routes: dict[str, Route], change: dict[str, Route], flag: str
) -> None:
    report = await examine((await world.face({**routes, **change})).url)
    assert [(offer.state, offer.flag) for offer in report.offers if offer.what == "metrics"] == [(N, flag)]


@pytest.mark.parametrize(("details", "expected"), [(b'{"cached_tokens":0}', Y), (b"null", N)])
async def test_a_trial_shows_what_only_an_answer_tells(world: Faces, details: bytes, expected: FeatureState) -> None:
    async def serve(peer: Peer, request: bytes) -> None:
        await peer.send(faces.answer(200, b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":%b}}' % details))

    face = await world.face(faces.VLLM, serve=serve)
    report = await examine(face.url, tries=True)
    assert [offer.state for offer in report.offers if offer.what == "cached_tokens"] == [expected]
    bodies = [json.loads(request.split(b"\r\n\r\n", 1)[1]) for request in face.posted]
    assert all((body["model"], body["max_tokens"]) == ("m", 1) for body in bodies)
    assert len(bodies) == (2 if expected is Y else 3)
    assert [offer.state for offer in report.offers if offer.what == "stream_usage"] == [Y]


async def test_a_trial_asks_for_the_engines_own_name_and_reports_ours(world: Faces) -> None:
    async def serve(peer: Peer, request: bytes) -> None:
        await peer.send(faces.answer(200, b"{}"))

    face = await world.face(faces.VLLM, serve=serve)
    report = await examine(face.url, tries=True, models={"ours": "m"})
    assert ([model.name for model in report.models], report.problems) == (["ours"], [])
    assert {json.loads(request.split(b"\r\n\r\n", 1)[1])["model"] for request in face.posted} == {"m"}


async def test_a_trial_shows_an_engine_that_refuses_the_field_which_asks_for_usage(world: Faces) -> None:
    async def serve(peer: Peer, request: bytes) -> None:
        await peer.send(faces.answer(422 if b"stream_options" in request else 200, b"{}"))

    face = await world.face(faces.VLLM, serve=serve)
    found = [offer for offer in (await examine(face.url, tries=True)).offers if offer.what == "stream_usage"]
    assert [(offer.state, offer.detail) for offer in found] == [(N, "it refuses `stream_options`")]
    assert "the field is omitted" in found[0].without


@pytest.mark.parametrize(
    ("change", "settings", "problem"),
    [
        ({"/v1/models": faces.doc({}, 401)}, {}, "it answers 401: `api_key` is missing or wrong"),
        ({"/v1/models": faces.doc({}, 503)}, {}, "its model list /v1/models says: status 503"),
        ({"/v1/models": (200, b"<html>", "text/html")}, {}, "says: something unexpected"),
        ({"/v1/models": faces.models("vllm")}, {}, "it serves no model now"),
        ({"/health": faces.doc({}, 503)}, {}, "its health probe /health says: status 503"),
        ({"/is_sleeping": faces.doc({"is_sleeping": True})}, {}, "it is asleep"),
        ({"/is_paused": faces.doc({"is_paused": True})}, {}, "it is paused"),
        ({}, {"models": ["m", "n"]}, "`models` names `n`, which it does not serve"),
        ({}, {"models": {"ours": "m", "n": "theirs"}}, "`models` names `theirs`, which it does not serve"),
        ({}, {"engine": "sglang"}, "the settings say `engine: sglang`, but it answers as vLLM"),
    ],
)
async def test_what_keeps_it_from_serving_is_a_problem(
    world: Faces, change: dict[str, Route], settings: dict[str, Any], problem: str
) -> None:
    face = await world.face({**faces.VLLM, **change})
    report = await examine(face.url, **settings)
    assert any(problem in line for line in report.problems), report.problems


async def test_an_engine_that_accepts_and_never_answers_is_given_up(world: Faces) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    report = await examine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout_s=0.2)
    server.close()
    assert report.problems == ["first byte timeout: not complete within 0.2 s"]


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://127.0.0.1", "http://127.0.0.1:8000?"),
        ("http://127.0.0.1/prefix", "http://127.0.0.1:8000/prefix?"),
        ("http://[::1]", "http://[::1]:8000?"),
        ("http://127.0.0.1:80", ""),
        ("https://127.0.0.1", ""),
        ("unix:/nowhere/engine.sock", ""),
    ],
)
async def test_a_url_without_a_port_where_no_engine_is_asks_for_it(
    url: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: str) -> ProbeAnswer:
        return ProbeAnswer(0, failure=UpstreamException(UpstreamError(UpstreamErrorKind.CONNECT, "refused")))

    monkeypatch.setattr(diagnosis, "asking", lambda *_, **__: refused)
    (problem,) = (await examine(url)).problems
    assert problem.startswith("connect: refused")
    assert (asked in problem, ":8000" in problem) == (True, bool(asked))


async def command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, ["doctor", *args])
    out, err = capsys.readouterr()
    return code, out, err


async def test_the_command_prints_for_people_and_programs(world: Faces, capsys: pytest.CaptureFixture[str]) -> None:
    made = [await world.face(routes) for routes in (faces.VLLM, faces.LLAMACPP)]
    urls = [part for face in made for part in ("--endpoint", face.url)]
    code, out, err = await command(capsys, *urls)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].split() == [made[0].name, "vLLM", "0.32.0", "m", "(8192)", "auto", "yes", "?", "?", "no"]
    assert lines[2].split() == [made[1].name, "llama.cpp", "b1-0c1e570", "m", "(4096)", "4", "no", "?", "–", "–"]
    assert f"load metrics at {made[1].name} (llama.cpp)\n  switched on by: --metrics\n" in out
    plain = f"This is {kind()} of a compiled build. Wheels for Linux are compiled"
    assert "2 endpoints can be used." in lines
    assert lines[-1].startswith(plain) is not compiled()
    code, out, _ = await command(capsys, "--json", *urls, "--endpoint", "http://127.0.0.1:1", "--timeout", "0.5")
    page = json.loads(out)
    assert code == 1
    assert page["build"] == kind()
    assert [endpoint["engine"] for endpoint in page["endpoints"]] == ["vllm", "llamacpp", None]
    assert page["endpoints"][2]["problems"][0].startswith("connect: ")
    assert page["endpoints"][0]["models"] == [{"name": "m", "context_tokens": 8192, "adapter_of": None}]


async def test_settings_that_can_not_be_read_are_told_as_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = await command(capsys, "--endpoint", "ftp://x")
    assert (code, out) == (2, "")
    assert err.startswith("penstock: ")


def test_an_alias_or_a_fallback_that_leads_nowhere_is_a_problem() -> None:
    models = {"a": {"to": "m"}, "b": {"to": "n"}, "c": {"fallback": ["here", "b", "d"]}, "e": {"band": "batch"}}
    endpoint = {"url": "http://e", "models": ["here"]}
    settings = Settings.model_validate({"models": models, "endpoints": [endpoint]})
    report = Report("e", "http://e", [], models=[])
    assert unserved(settings, [report]) == [
        "models.a: stands for `m`, which no endpoint serves",
        "models.b: stands for `n`, which no endpoint serves",
        "models.c: falls back to `b`, which no endpoint serves",
        "models.c: falls back to `d`, which no endpoint serves",
    ]


@pytest.mark.parametrize("named", [False, True])
async def test_what_is_no_engine_is_named_by_doctor_and_by_check_live(
    world: Faces, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, named: bool
) -> None:
    engine, files = await world.face(faces.VLLM), await world.face({})
    models = ", models: [m]" if named else ""
    path = tmp_path / "penstock.yaml"
    path.write_text(f"endpoints:\n- {{url: '{engine.url}'}}\n- {{url: '{files.url}', name: files{models}}}\n")
    assert await asyncio.to_thread(main, ["check", str(path)]) == 0, "the file is as it should be"
    assert capsys.readouterr().out.startswith("ok: 2 endpoints, ")
    assert await asyncio.to_thread(main, ["check", str(path), "--live"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("2 endpoints, "), "it is not ok"
    (line,) = printed.err.splitlines()
    assert line.startswith("files: it answers, but not like an engine")
    assert await asyncio.to_thread(main, ["doctor", "-c", str(path), "--json"]) == 1
    found = {report["name"]: report["problems"] for report in json.loads(capsys.readouterr().out)["endpoints"]}
    assert [line] == [f"files: {problem}" for problem in found["files"]]
    path.write_text(f"endpoints:\n- {{url: '{engine.url}'}}\n- {{url: '{files.url}', engine: openai, models: [m]}}\n")
    assert await asyncio.to_thread(main, ["check", str(path), "--live"]) == 0, "the operator's word"
