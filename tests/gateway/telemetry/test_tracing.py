"""Traces: the wait and the calls have spans, engines hear of them, prompts are in none, and off is off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from penstock.config.load import ConfigError, from_mapping
from penstock.gateway.telemetry.reporting import Reporting
from penstock.gateway.telemetry.tracing import Tracer
from penstock.sim.fake_engine.log import Fault
from tests.gateway.conftest import World, follower
from tests.gateway.raw_engine import Peer, RawEngine

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "what nobody else may read"


async def traced(world: World, **settings: Any) -> InMemorySpanExporter:
    memory = InMemorySpanExporter()
    gate = await world.gateway(**settings)
    follower(gate, Reporting).tracer = Tracer(SimpleSpanProcessor(memory))
    return memory


def spans(memory: InMemorySpanExporter) -> list[ReadableSpan]:
    return sorted(memory.get_finished_spans(), key=lambda span: span.start_time or 0)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_request_has_a_span_one_for_its_wait_and_one_for_its_call(world: World) -> None:
    engine = await world.engine()
    memory = await traced(world)
    headers = {"traceparent": PARENT, "tracestate": "vendor=1", "x-tenant-id": "team", "x-request-id": "r1"}
    assert (await world.chat_with(headers, content=SECRET, tokens=5)).status == 200
    await world.until(lambda: len(spans(memory)) == 3)
    root, wait, call = spans(memory)
    assert (root.name, root.kind) == ("POST /v1/chat/completions", SpanKind.SERVER)
    assert (wait.name, wait.kind) == ("penstock.queue", SpanKind.INTERNAL)
    assert (call.name, call.kind) == ("chat sim", SpanKind.CLIENT)
    assert root.parent is not None
    assert f"{root.parent.trace_id:032x}-{root.parent.span_id:016x}" == PARENT[3:52]
    for child in (wait, call):
        assert child.parent == root.get_span_context()
    assert attributes(root) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "sim",
        "gen_ai.usage.input_tokens": attributes(root)["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "penstock.request_id": "r1",
        "penstock.tenant": "team",
        "penstock.band": "standard",
        "penstock.outcome": "completed",
    }
    assert attributes(call)["penstock.endpoint"] == engine.url[7:]
    assert f"http://{attributes(call)['server.address']}:{attributes(call)['server.port']}" == engine.url
    assert [event.name for event in call.events] == ["first_byte"]
    (entry,) = world.seen()
    context = call.get_span_context()
    assert context is not None
    assert entry.headers["traceparent"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
    assert entry.headers["tracestate"] == "vendor=1"
    assert SECRET not in "".join(span.to_json() for span in spans(memory))


async def test_each_try_has_a_call_of_its_own_and_the_wait_between_them_too(world: World) -> None:
    engine = await world.engine()
    memory = await traced(world)
    engine.set_fault(Fault("busy", count=1))
    assert (await world.chat()).status == 200
    await world.until(lambda: len(spans(memory)) == 5)
    names = [(span.name, span.status.status_code, attributes(span).get("error.type")) for span in spans(memory)]
    assert names == [
        ("POST /v1/chat/completions", StatusCode.UNSET, None),
        ("penstock.queue", StatusCode.UNSET, None),
        ("chat sim", StatusCode.ERROR, "busy"),
        ("penstock.queue", StatusCode.UNSET, None),
        ("chat sim", StatusCode.UNSET, None),
    ]


async def test_a_refused_or_disconnected_request_has_a_span_that_ends(world: World) -> None:
    await world.engine()
    memory = await traced(world, slots=1, queue={"max_requests": 0})
    running = await world.streaming(tokens=500)
    await running.begun()
    assert (await world.chat()).status == 429
    running.hang_up()
    await world.until(lambda: len(spans(memory)) == 5)
    roots = [span for span in spans(memory) if span.kind is SpanKind.SERVER]
    assert [attributes(root)["penstock.reason"] for root in roots] == ["client_gone", "queue_full"]
    assert attributes(roots[1])["http.response.status_code"] == 429


@pytest.mark.parametrize(
    "parent", ["", "nonsense", "ff" + PARENT[2:], PARENT + "-more", "00-" + "0" * 32 + PARENT[35:], PARENT.upper()]
)
async def test_a_parent_that_is_none_begins_a_trace(world: World, parent: str) -> None:
    await world.engine()
    memory = await traced(world)
    assert (await world.chat_with({"traceparent": parent})).status == 200
    await world.until(lambda: len(spans(memory)) == 3)
    assert spans(memory)[0].parent is None


async def test_an_unsampled_request_is_not_exported_but_the_engine_gets_the_decision(world: World) -> None:
    await world.engine()
    memory = await traced(world)
    assert (await world.chat_with({"traceparent": PARENT[:-1] + "0"})).status == 200
    await world.idle()
    assert spans(memory) == []
    told = world.seen()[0].headers["traceparent"]
    assert told[:36] == PARENT[:36]
    assert told.endswith("-00")


async def test_off_a_traceparent_passes_as_it_came(world: World) -> None:
    await world.engine()
    await world.gateway()
    await world.chat_with({"traceparent": "whatever it is", "tracestate": "a=b"})
    assert world.seen()[0].headers["traceparent"] == "whatever it is"


def test_off_nothing_of_it_is_imported() -> None:
    code = "import sys, penstock.gateway.serve; print([m for m in sys.modules if m.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "[]\n"


async def test_spans_reach_a_collector_by_otlp_until_a_reload_ends_it(world: World) -> None:
    got: list[bytes] = []

    async def collect(peer: Peer) -> None:
        while True:
            data = await peer.request()
            got.append(data)
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    await world.engine()
    collector = await world.beside(RawEngine(collect))
    await world.gateway(tracing={"endpoint": collector.url})
    assert (await world.chat(SECRET)).status == 200
    await world.until(lambda: got)
    assert got[0].startswith(b"POST /v1/traces HTTP/1.1\r\n")
    body = got[0].partition(b"\r\n\r\n")[2]
    sent = ExportTraceServiceRequest.FromString(body)
    names = [span.name for resource in sent.resource_spans for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == ["POST /v1/chat/completions", "chat sim", "penstock.queue"]
    (service,) = [a.value.string_value for a in sent.resource_spans[0].resource.attributes if a.key == "service.name"]
    assert service == "penstock"
    assert SECRET.encode() not in body
    world.document["tracing"] = {}
    await world.gate.reload()
    assert follower(world.gate, Reporting).tracer is None
    await asyncio.sleep(0)
    assert (await world.chat()).status == 200


def test_settings_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"tracing.endpoint: traces need OpenTelemetry \(pip install 'penstock-gateway\[otel\]'"
    ):
        from_mapping({"tracing": {"endpoint": "http://otel:4318"}})
    from_mapping({"tracing": {"sample": 0.5}})
