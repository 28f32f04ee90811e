"""What does a request's trace show? Its wait, and each call to an engine (OpenTelemetry; the extra `otel`).

A queued request has a span, under it one per visit to the queue and one per call; the call's context goes to the engine
as `traceparent`. Names and attributes are of OpenTelemetry's conventions for HTTP and generative AI if
there are any; all are bounded, and nothing of a prompt or an answer is among them. Spans are sent by a thread of the
SDK's, from a queue with a bound: the surplus is dropped. Without `tracing.endpoint` nothing of this is imported,
and a caller's `traceparent` passes on as it came.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

import penstock
from penstock.core.values.catalogue import Outcome, Reason
from penstock.gateway.admin.phrases import printable

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer as OtelTracer

    from penstock.core.values.request import Request, Usage
    from penstock.http.client.pool import Headers

QUEUE_MAX = 4_096  # spans that wait to be sent, some 1,000 requests
BATCH_MAX = 512
SEND_TIMEOUT_S = 5
CLOSE_TIMEOUT_S = 5.0
NAME_CHARS_MAX = 128
PARENT_HEADER = b"traceparent"
_PARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/generate": "text_completion",
    "/generate_stream": "text_completion",
    "/v1/embeddings": "embeddings",
}


class Tracer:
    """Begins traces, and owns their exporter."""

    def __init__(self, processor: SpanProcessor, *, sample: float = 1.0) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample)),
            resource=Resource.create({SERVICE_NAME: "penstock", SERVICE_VERSION: penstock.__version__}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("penstock", penstock.__version__)

    def begin(
        self, request: Request, *, method: str, path: str, parent: bytes | None, state: bytes | None
    ) -> RequestTrace:
        """A request came, and is about to be queued."""
        return RequestTrace(self._tracer, request, method=method, path=path, parent=_context(parent, state))

    async def close(self) -> None:
        """Send the remaining spans, within a time."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self._provider.shutdown), CLOSE_TIMEOUT_S)
        except TimeoutError:
            return


def otlp(endpoint: str, *, sample: float) -> Tracer:
    """Traces go to a collector, by OTLP over HTTP. The SDK reads all other options from `OTEL_…` variables."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=SEND_TIMEOUT_S)
    processor = BatchSpanProcessor(
        exporter, max_queue_size=QUEUE_MAX, max_export_batch_size=BATCH_MAX, schedule_delay_millis=1_000
    )
    return Tracer(processor, sample=sample)


class RequestTrace:
    """The spans of one request."""

    __slots__ = ("_call", "_model", "_operation", "_root", "_tracer")

    def __init__(
        self, tracer: OtelTracer, request: Request, *, method: str, path: str, parent: SpanContext | None
    ) -> None:
        self._tracer = tracer
        self._model = printable(request.model, NAME_CHARS_MAX)
        self._operation = _OPERATIONS.get(path, "other")
        self._root = tracer.start_span(
            f"{method} {path}" if path in _OPERATIONS else method,
            None if parent is None else set_span_in_context(NonRecordingSpan(parent)),
            SpanKind.SERVER,
            {
                "http.request.method": method,
                "gen_ai.operation.name": self._operation,
                "gen_ai.request.model": self._model,
                "penstock.request_id": request.id,
                "penstock.tenant": printable(request.tenant, NAME_CHARS_MAX),
            },
        )
        self._call = self._start("penstock.queue", SpanKind.INTERNAL, {})

    def _start(self, name: str, kind: SpanKind, attributes: dict[str, str | int]) -> Span:
        return self._tracer.start_span(name, set_span_in_context(self._root), kind, attributes)

    def sent(self, place: tuple[str, int], endpoint: str, headers: Headers) -> Headers:
        """The wait is over, or the part before this one; the engine at `place` gets the span's context."""
        self._call.end()
        host, port = place
        attributes: dict[str, str | int] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.request.model": self._model,
            "server.address": host,
            **({"server.port": port} if port else {}),
            "penstock.endpoint": endpoint,
        }
        self._call = self._start(f"{self._operation} {self._model}", SpanKind.CLIENT, attributes)
        kept = [header for header in headers if header[0].lower() != PARENT_HEADER]
        return [*kept, (PARENT_HEADER, _header(self._call.get_span_context()))]

    def answer_begins(self) -> None:
        self._call.add_event("first_byte")

    def requeued(self, cause: str) -> None:
        """The call failed, and the request waits again."""
        _failed(self._call, cause)
        self._call.end()
        self._call = self._start("penstock.queue", SpanKind.INTERNAL, {"penstock.requeue": cause})

    def ended(self, outcome: Outcome, reason: Reason | None, *, band: str, status: int, usage: Usage | None) -> None:
        """It is over."""
        root = self._root
        root.set_attribute("penstock.band", band)
        root.set_attribute("penstock.outcome", outcome)
        if status:
            root.set_attribute("http.response.status_code", status)
        if usage is not None:
            root.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
            root.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
        if reason is not None:
            root.set_attribute("penstock.reason", reason)
            _failed(root, reason)
            if outcome is Outcome.FAILED:
                _failed(self._call, reason)
        self._call.end()
        root.end()


def _failed(span: Span, why: str) -> None:
    span.set_attribute("error.type", str(why))
    span.set_status(Status(StatusCode.ERROR))


def _context(parent: bytes | None, state: bytes | None) -> SpanContext | None:
    """The caller's span; None if its header is invalid."""
    found = None if parent is None else _PARENT.fullmatch(parent.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if not int(trace, 16) or not int(span, 16) or (version == b"00" and more):
        return None
    states = TraceState.from_header([state.decode("latin-1")]) if state else None
    sampled = TraceFlags(int(flags, 16) & TraceFlags.SAMPLED)
    return SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=sampled, trace_state=states)


def _header(context: SpanContext) -> bytes:
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
