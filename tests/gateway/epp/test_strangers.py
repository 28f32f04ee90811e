"""Who may connect to the picker's port, and what it can read, hold and change: a test for each cell of the table in
docs/security.md."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from penstock.config.effect import effect_warnings, open_warnings
from penstock.config.load import ConfigError, from_mapping
from penstock.gateway.epp import server
from penstock.gateway.epp import stream as streams
from tests.gateway.conftest import CHAT, World, chat, hurry
from tests.gateway.endpoints.test_endpoint_tls import certificate
from tests.gateway.epp.conftest import Envoy, behind
from tests.gateway.epp.test_messages import (
    BODY,
    USAGE,
    Pool,
    Proxy,
    Request,
    another,
    headers,
    places,
    pool,
    table,
    whole,
)
from tests.patience import WAIT_S, looks
from tests.ports import free_port

EVERYWHERE = "0.0.0.0"
SECRET = "6f1c8e2a-a-secret-of-some-length"
KEY = "sk-of-the-engine"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")


async def keyed(world: World, *keys: str | None) -> list[dict[str, Any]]:
    """An engine per key, as endpoints of the settings."""
    made = [(await world.engine()).url for _ in keys]
    return [{"url": url, **({"api_key": key} if key else {})} for url, key in zip(made, keys, strict=True)]


async def _picked(stream: Proxy, body: bytes = BODY) -> dict[str, str]:
    """Send a request; the headers that the proxy is told to set."""
    await stream.head()
    await stream.body(body)
    message = await stream.hears()
    assert message.WhichOneof("response") == "request_headers", message
    await stream.hears_body("request_body")
    return headers(message.request_headers)


async def code_of(stream: Proxy) -> grpc.StatusCode:
    """How a stream ends."""
    try:
        await stream.to_the_end()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


# --- who may connect --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listen", [":9002", "0.0.0.0:9002", "[::]:9002", "10.1.2.3:9002"])
def test_a_port_that_asks_for_no_proof_is_on_loopback_or_without_keys_and_says_so(listen: str) -> None:
    settings = from_mapping({"epp": {"listen": listen}})
    (said,) = open_warnings(settings)
    if listen == ":9002":
        assert settings.epp.address == ("127.0.0.1", 9002)
        assert settings.epp.gives_keys
        assert said.startswith("epp.listen: :9002 is only on 127.0.0.1, because proxies need no proof")
    else:
        assert not settings.epp.gives_keys
        assert "endpoints with an `api_key` get nothing through it" in said


@pytest.mark.parametrize("listen", ["127.0.0.1:9002", "[::1]:9002", "localhost:9002"])
def test_a_port_on_loopback_is_nothing_to_warn_of(listen: str) -> None:
    settings = from_mapping({"epp": {"listen": listen}})
    assert list(open_warnings(settings)) == []
    assert settings.epp.gives_keys


def test_with_a_proof_the_port_is_on_every_interface() -> None:
    settings = from_mapping({"epp": {"listen": ":9002", "secret": SECRET}})
    assert list(open_warnings(settings)) == []
    assert settings.epp.address == ("::", 9002)
    assert settings.epp.gives_keys


def test_what_a_proxy_changes_is_said_at_start() -> None:
    plain: dict[str, Any] = {"epp": {"listen": "127.0.0.1:9002"}}
    (one_flow,) = effect_warnings(from_mapping(plain))
    assert "are one flow, that of their proxy's address: name the proxy in `client_address.proxies`" in one_flow
    named = {**plain, "client_address": {"proxies": ["127.0.0.1"]}}
    assert effect_warnings(from_mapping(named)) == []
    roles = [{"url": f"http://{role}:8000", "labels": {"role": role}} for role in ("prefill", "decode")]
    assert effect_warnings(from_mapping({**named, "endpoints": roles})) == [
        "epp.listen: requests through a proxy are not divided: their endpoints compute prompt and answer alike"
    ]


def test_a_secret_that_is_easily_guessed_and_an_authority_without_tls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"epp\.secret: is too easily guessed"):
        from_mapping({"epp": {"listen": ":9002", "secret": "secret"}})
    with pytest.raises(ConfigError, match=r"epp\.client_ca: needs `tls`"):
        from_mapping({"epp": {"listen": ":9002", "client_ca": str(tmp_path / "no.pem")}})


async def test_without_a_proof_and_a_host_only_this_machine_connects(world: World) -> None:
    async with pool(world, 1, host="") as its:
        assert await whole(its.stream()) == places(world)[0]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", its.port))  # where a port on every interface answers


@needs_openssl
async def test_with_an_authority_only_proxies_that_it_signed_connect(world: World, tmp_path: Path) -> None:
    ca = certificate(tmp_path, "picker", "IP:127.0.0.1").read_bytes()
    signed, strangers = certificate(tmp_path, "proxy"), certificate(tmp_path, "stranger")
    tls = {"cert": str(tmp_path / "picker.pem"), "key": str(tmp_path / "picker.key")}
    endpoints = await keyed(world, KEY)
    port = free_port()
    epp = {"listen": f":{port}", "client_ca": str(signed)}
    await world.gateway(endpoints=endpoints, epp=epp, tls=tls)
    for shown in (None, strangers):
        pair = (None, None) if shown is None else (shown.with_suffix(".key").read_bytes(), shown.read_bytes())
        async with another(world, port, grpc.ssl_channel_credentials(ca, *pair)) as its:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await its.health("liveness")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    pair = (signed.with_suffix(".key").read_bytes(), signed.read_bytes())
    async with another(world, port, grpc.ssl_channel_credentials(ca, *pair)) as its:
        stream = its.stream()
        assert (await _picked(stream))["authorization"] == f"Bearer {KEY}"
        await stream.call.done_writing()
    await world.idle()


@pytest.mark.parametrize("given", [{}, {"x_penstock_secret": SECRET[:-1]}, {"x_penstock_secret": ""}])
async def test_with_a_secret_only_streams_that_bring_it_are_served(
    world: World, given: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    endpoints = await keyed(world, KEY)
    async with pool(world, 0, host=EVERYWHERE, epp={"secret": SECRET}, endpoints=endpoints) as its:
        for _ in range(3):
            assert await code_of(its.stream(**given)) is grpc.StatusCode.UNAUTHENTICATED
        assert await its.health("readiness") == b"\x08\x01", "which names nothing"
        stream = its.stream(x_penstock_secret=SECRET)
        assert (await _picked(stream))["authorization"] == f"Bearer {KEY}"
        await stream.call.done_writing()
    assert len([record for record in caplog.records if "x-penstock-secret" in record.message]) == 1
    assert SECRET not in caplog.text
    caplog.clear()


@needs_openssl
async def test_real_envoy_with_mutual_tls_and_a_secret_is_served(world: World, tmp_path: Path) -> None:
    shutil.copy(certificate(tmp_path, "picker", "IP:127.0.0.1"), tmp_path / "penstock-ca.pem")
    certificate(tmp_path, "proxy")
    endpoints = await keyed(world, KEY)
    tls = {"cert": str(tmp_path / "picker.pem"), "key": str(tmp_path / "picker.key")}
    envoy = Envoy(files=tmp_path, secret=SECRET)
    try:
        envoy.wait()
        epp = {"client_ca": str(tmp_path / "proxy.pem"), "secret": SECRET}
        await behind(world, envoy, endpoints=endpoints, epp=epp, tls=tls)
        assert (await world.chat(tokens=3, stream=True)).body.endswith(b"data: [DONE]\n\n")
        assert world.engines[0].log.entries[0].headers["authorization"] == f"Bearer {KEY}"
    finally:
        envoy.close()


# --- what it can read -------------------------------------------------------------------------------------------------


async def test_without_a_proof_a_port_on_the_network_gives_out_no_engines_key(world: World) -> None:
    endpoints = await keyed(world, KEY, None)
    async with pool(world, 0, host=EVERYWHERE, endpoints=endpoints) as its:
        for path, body in ((CHAT, BODY), ("/tokenize", b'{"model": "sim", "prompt": "x"}')):
            for _ in range(6):
                stream = its.stream()
                await stream.head(path=path)
                await stream.body(body)
                message = await stream.hears()
                assert "authorization" not in headers(message.request_headers)
                assert headers(message.request_headers)["x-gateway-destination-endpoint"] == places(world)[1]
                stream.call.cancel()
        held = its.stream()
        await held.head(path=f"/v1/chat/completions?id={world.picture().endpoints[0].name}")
        await held.body(BODY)
        assert (await held.refused())[0] in (429, 502, 503), "although it names the endpoint with the key"
        assert (await world.chat()).status == 200
        assert [entry.headers.get("authorization") for entry in world.seen()] in ([f"Bearer {KEY}"], [None])


async def test_if_every_endpoint_has_a_key_the_refusal_says_what_to_set(world: World) -> None:
    endpoints = await keyed(world, KEY, KEY)
    async with pool(world, 0, host=EVERYWHERE, endpoints=endpoints) as its:
        stream = its.stream()
        await stream.head()
        status, _, error = await stream.refused()
        assert (status, error["code"]) == (503, "no_endpoint")
        assert "`epp.client_ca`, `epp.secret`" in error["message"]
        models = its.stream()
        await models.head("GET", "/v1/models", end=True)
        assert (await models.hears()).immediate_response.status.code == 200, "our own paths are there"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/flush_cache"),
        ("GET", "/release_memory_occupation"),
        ("GET", "/metrics"),
        ("GET", "/server_info"),
        ("GET", "/slots"),
        ("HEAD", "/get_model_info"),
        ("GET", "/v1/models/../../flush_cache"),
        ("GET", "/v1/audio/..%2f..%2fflush_cache"),
        ("GET", "//flush_cache"),
        ("GET", "http://engine/flush_cache"),
        ("POST", "/flush_cache"),
        ("POST", "/sleep"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/audio/../../sleep"),
        ("DELETE", "/anything"),
        ("GET", "/admin/state"),
        ("GET", "/admin/"),
        ("GET", "/autoscale"),
        ("GET", "/v1/files"),
    ],
)
async def test_only_callers_paths_pass(world: World, method: str, path: str) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head(method, path, end=True)
        message = await stream.hears()
        assert message.WhichOneof("response") == "immediate_response"
        its_answer = message.immediate_response
        assert its_answer.status.code == 404
        reasons = [o.header.raw_value for o in its_answer.headers.set_headers if o.header.key == "x-penstock-reason"]
        assert reasons == [b"path_not_found"] or path.startswith("/v1/models/")


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/sim", "/queue", "/health", "/version", "/engines", "/ready", "/api/tags"]
)
async def test_callers_own_paths_are_answered_as_at_the_gateways_port(world: World, path: str) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head("GET", path, end=True)
        answer = (await stream.hears()).immediate_response
        direct = await world.ask("GET", path)
        assert answer.status.code == direct.status == 200
        assert answer.body[:9] == direct.body[:9]
        assert await code_of(stream) is grpc.StatusCode.OK


async def test_ollamas_clients_may_ask_about_a_model(world: World) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head("POST", "/api/show")
        await stream.body(b'{"model": ', b'"sim"}')
        answer = (await stream.hears()).immediate_response
        assert (answer.status.code, json.loads(answer.body)["model_info"]["general.basename"]) == (200, "sim")


async def test_a_path_of_engines_takes_post_only(world: World) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head("GET", "/v1/chat/completions", end=True)
        assert (await stream.hears()).immediate_response.status.code == 405


async def test_through_envoy_the_same_paths_pass(world: World, envoy: Envoy) -> None:
    engine = await world.engine()
    await behind(world, envoy)
    for method, path in (("GET", "/flush_cache"), ("POST", "/flush_cache"), ("GET", "/metrics"), ("GET", "/sleep")):
        assert (await world.ask(method, path)).status == 404
    assert (await world.ask("GET", "/v1/models")).json()["data"][0]["id"] == "sim"
    assert (await world.ask("GET", "/health")).json() == {"status": "ok"}
    assert not engine.log.entries


# --- what it can hold -------------------------------------------------------------------------------------------------


async def test_a_proxy_that_is_silent_after_the_pick_loses_its_lease(world: World) -> None:
    async with pool(world, 1, slots=1, timeouts={"first_byte": 0.2}) as its:
        silent = its.stream()
        await _picked(silent)
        waiting = its.stream()
        assert (await _picked(waiting))["x-gateway-destination-endpoint"] == places(world)[0]
        status, values, _ = await silent.refused()
        assert (status, values["x-penstock-reason"]) == (504, "upstream_timeout")
        assert await code_of(silent) is grpc.StatusCode.OK
        waiting.call.cancel()


async def test_the_head_of_an_answer_alone_is_no_first_byte(world: World) -> None:
    async with pool(world, 1, slots=1, timeouts={"first_byte": 0.2}) as its:
        stream = its.stream()
        await _picked(stream, json.dumps(chat(stream=True)).encode())
        await stream.answered(kind=b"text/event-stream")
        assert (await stream.refused())[0] == 504


async def test_an_answer_that_stops_ends_its_stream_and_its_lease(world: World) -> None:
    async with pool(world, 1, slots=1, timeouts={"between_bytes": 0.2}) as its:
        stream = its.stream()
        await _picked(stream, json.dumps(chat(stream=True)).encode())
        await stream.answered(kind=b"text/event-stream")
        event = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
        await stream.say(response_body=ext_proc.HttpBody(body=b"data: %b\n\n" % json.dumps(event).encode()))
        assert (await stream.hears()).WhichOneof("response") == "response_headers"
        got = await stream.hears_body("response_body")
        assert b"stream_broken" in got
        assert await code_of(stream) is grpc.StatusCode.OK
        after = its.stream()
        assert (await _picked(after))["x-gateway-destination-endpoint"] == places(world)[0]
        after.call.cancel()


async def test_comments_of_a_stream_do_not_hold_it(world: World) -> None:
    async with pool(world, 1, slots=1, timeouts={"first_byte": 0.3}) as its:
        stream = its.stream()
        await _picked(stream, json.dumps(chat(stream=True)).encode())
        await stream.answered(kind=b"text/event-stream")
        held = its.stream()
        await held.head()
        await held.body(BODY)
        async for _ in looks(WAIT_S):
            if world.picture().waiting == 0:
                break
            await stream.say(response_body=ext_proc.HttpBody(body=b": ping\n\n"))
        assert (await held.picked()) == places(world)[0]
        held.call.cancel()
        stream.call.cancel()


@pytest.mark.parametrize("stage", ["before_the_first_byte", "midway"])
async def test_envoy_gives_a_silent_engine_up(world: World, envoy: Envoy, stage: str) -> None:
    engine = await world.engine(step_s=0.001 if stage == "midway" else 300.0)
    await behind(world, envoy, slots=1, timeouts={"between_bytes" if stage == "midway" else "first_byte": 0.4})
    client = await world.streaming(tokens=20_000)
    if stage == "midway":
        await client.begun()
        hurry(engine, 1e-6)
        answer = await client.whole()
        assert b"stream_broken" in answer
    else:
        assert (await client.answer()).status == 504
    await world.until(lambda: engine.log.entries[-1].outcome == "aborted")
    await world.idle()


async def test_a_stream_without_a_request_ends(world: World) -> None:
    async with pool(world, 1, timeouts={"client_header": 0.05}) as its:
        assert await code_of(its.stream()) is grpc.StatusCode.OK


async def test_streams_end_after_a_refusal_and_after_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "END_S", 0.05)
    async with pool(world, 1, slots=1, queue={"max_requests": 0}) as its:
        refused = its.stream()
        await refused.head("GET", "/flush_cache", end=True)
        assert await code_of(refused) is grpc.StatusCode.OK
        runs = its.stream()
        await _picked(runs)
        full = its.stream()
        await full.head()
        await full.body(BODY)
        assert await code_of(full) is grpc.StatusCode.OK
        await runs.answered()
        await runs.answer_body(json.dumps({"choices": [], "usage": USAGE}).encode())
        assert await code_of(runs) is grpc.StatusCode.OK


async def test_a_request_that_is_refused_later_ends_its_stream(world: World) -> None:
    async with pool(world, 1, slots=1, queue={"max_wait": 0.2}) as its:
        runs = its.stream()
        await _picked(runs)
        waits = its.stream()
        await waits.head()
        await waits.body(BODY)
        status, values, _ = await waits.refused()
        assert (status, values["x-penstock-reason"]) == (429, "queue_timeout")
        assert await code_of(waits) is grpc.StatusCode.OK
        runs.call.cancel()


async def test_streams_are_bounded(world: World) -> None:
    async with pool(world, 1, limits={"max_connections": 3}) as its:
        open_ones = [its.stream() for _ in range(3)]
        for stream in open_ones:
            await _picked(stream)
        async with another(world, its.port) as more:
            assert await code_of(more.stream()) is grpc.StatusCode.RESOURCE_EXHAUSTED
            for stream in open_ones:
                stream.call.cancel()
            await world.idle()


async def test_the_streams_of_one_address_are_bounded(world: World) -> None:
    async with pool(world, 1, epp={"max_streams_per_address": 2}) as its:
        open_ones = [its.stream() for _ in range(2)]
        for stream in open_ones:
            await _picked(stream)
        async with another(world, its.port) as more:
            assert await code_of(more.stream()) is grpc.StatusCode.RESOURCE_EXHAUSTED
            open_ones[0].call.cancel()
            await world.until(lambda: world.picture().running == 1)
            await _picked(its.stream())
            world.document["epp"]["max_streams_per_address"] = 3
            await world.gate.reload()
            await _picked(more.stream())
            assert await code_of(its.stream()) is grpc.StatusCode.RESOURCE_EXHAUSTED
            await its.channel.close()


async def test_a_connection_is_bounded(world: World) -> None:
    async with pool(world, 1, limits={"max_header": 4_000}) as its:
        stream = its.stream(x_large="x" * 20_000)
        assert await code_of(stream) is grpc.StatusCode.RESOURCE_EXHAUSTED
    bounds = dict(server.bounds(world.settings()))
    assert bounds["grpc.max_connection_idle_ms"] == 620_000
    assert bounds["grpc.keepalive_time_ms"] + bounds["grpc.keepalive_timeout_ms"] == 40_000
    assert bounds["grpc.max_concurrent_streams"] == 20_000


# --- what it can change -----------------------------------------------------------------------------------------------

REPORTS: list[tuple[bytes, dict[str, bytes]]] = [
    (b"503", {"content-type": b"text/plain"}),
    (b"503", {"x-envoy-upstream-service-time": b"1", "retry-after": b"60"}),
    (b"500", {"x-envoy-upstream-service-time": b"1"}),
    (b"401", {"x-envoy-upstream-service-time": b"1"}),
    (b"504", {"content-type": b"text/plain"}),
    (b"404", {"x-envoy-upstream-service-time": b"1", "content-type": b"text/html"}),
]


async def _reports(its: Pool, place: str, status: bytes, values: dict[str, bytes], path: str) -> None:
    """A request that this proxy claims to have failed at this endpoint."""
    stream = its.stream()
    await stream.head(path=path, subset=[place])
    await stream.body(BODY if "chat" in path else b'{"model": "sim", "prompt": "x"}')
    if (await stream.hears()).WhichOneof("response") == "immediate_response":
        return  # it gets nothing there any more
    await stream.hears_body("request_body")
    head = ext_proc.HttpHeaders(headers=table({":status": status, **values}))
    await stream.call.write(Request(response_headers=head))
    await stream.answer_body(b"no")
    await stream.call.done_writing()
    await code_of(stream)


@pytest.mark.parametrize(("status", "values"), REPORTS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_what_one_proxy_reports_ejects_no_endpoint_for_others(
    world: World, status: bytes, values: dict[str, bytes], path: str
) -> None:
    async with pool(world, 2, health={"probe_interval": 60.0}, queue={"max_wait": 0.3}) as its:
        first = places(world)[0]
        for _ in range(8):
            await _reports(its, first, status, values, path)
        assert {endpoint.state for endpoint in world.picture().endpoints} == {"up"}
        async with another(world, its.port) as honest:
            stream = honest.stream()
            await stream.head(subset=[first])
            await stream.body(BODY)
            assert await stream.picked() == first
            stream.call.cancel()
        served = {(await world.chat()).header("x-penstock-endpoint") for _ in range(8)}
        assert served == {endpoint.name for endpoint in world.picture().endpoints}


async def test_an_endpoint_that_fails_for_a_proxy_is_left_out_for_it_while_another_one_serves(world: World) -> None:
    async with pool(world, 2, health={"eject_for": 60.0, "eject_for_max": 60.0}) as its:
        first, second = places(world)
        for _ in range(3):
            await _reports(its, first, b"500", {"x-envoy-upstream-service-time": b"1"}, "/v1/chat/completions")
        for _ in range(4):
            stream = its.stream()
            assert (await _picked(stream))["x-gateway-destination-endpoint"] == second
            stream.call.cancel()
        only = its.stream()
        await only.head(subset=[first])
        await only.body(BODY)
        assert await only.picked() == first, "where it is the only one it is tried"
        only.call.cancel()


async def test_a_good_answer_clears_the_failures_before(world: World) -> None:
    async with pool(world, 1) as its:
        for _ in range(3):
            await _reports(its, places(world)[0], b"500", {}, "/v1/chat/completions")
            await _reports(its, places(world)[0], b"500", {}, "/v1/chat/completions")
            assert await whole(its.stream()) == places(world)[0]


async def test_a_dead_engine_is_found_by_the_probe_that_a_report_asks_for(world: World) -> None:
    async with pool(world, 2, health={"probe_interval": 60.0}) as its:
        dead = world.engines.pop(0)
        place = dead.url.removeprefix("http://")
        await dead.close()
        await _reports(its, place, b"503", {"content-type": b"text/plain"}, "/v1/chat/completions")
        await world.until(lambda: "down" in {endpoint.state for endpoint in world.picture().endpoints})


# --- what makes no sense ----------------------------------------------------------------------------------------------


def _strange(kind: str) -> dict[str, bytes]:
    return {
        "a_status_of_5000_digits": {":status": b"9" * 5_000},
        "a_status_in_words": {":status": b"ok"},
        "a_length_in_words": {":status": b"200", "content-length": b"x"},
        "a_negative_length": {":status": b"200", "content-length": b"-1"},
        "a_length_of_5000_digits": {":status": b"200", "content-length": b"9" * 5_000},
        "digits_of_another_script": {":status": b"200", "content-length": "٣".encode()},
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "a_status_of_5000_digits",
        "a_status_in_words",
        "a_length_in_words",
        "a_negative_length",
        "a_length_of_5000_digits",
        "digits_of_another_script",
        "trailers_twice",
        "request_trailers_twice",
        "no_message",
    ],
)
async def test_nonsense_ends_its_stream_with_one_line_a_minute(
    world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool(world, 1) as its:
        raw = its.channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")
        for _ in range(3):
            stream = its.stream()
            if kind == "no_message":
                stream = Proxy(raw())
                await stream.call.write(b"\xff" * 40)
            else:
                await _picked(stream)
                if kind == "trailers_twice":
                    await stream.answered()
                    for _ in range(2):
                        await stream.say(response_trailers=ext_proc.HttpTrailers())
                elif kind == "request_trailers_twice":
                    for _ in range(2):
                        await stream.say(request_trailers=ext_proc.HttpTrailers())
                else:
                    head = ext_proc.HttpHeaders(headers=table(_strange(kind)))
                    await stream.say(response_headers=head)
            assert await code_of(stream) is grpc.StatusCode.INVALID_ARGUMENT
        await world.idle()
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1, [record.getMessage() for record in lines]
    assert lines[0].exc_info is None
    assert "epp: ended a stream of ipv4:127.0.0.1:" in lines[0].getMessage()
    caplog.clear()


async def test_a_request_length_of_5000_digits_is_too_large(world: World) -> None:
    async with pool(world, 1) as its:
        stream = its.stream()
        await stream.head(content_length=b"9" * 5_000)
        assert (await stream.refused())[0] == 413
