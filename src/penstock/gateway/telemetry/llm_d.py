"""The names that llm-d's dashboards, ScaledObjects and HPAs read of its endpoint picker (`metrics.aliases`).

Each series has its name of today (`llm_d_epp_…`) and, if there was one, the deprecated one that its guides still use
(`inference_extension_…`, `inference_pool_…`, `inference_objective_…`). All values come from the snapshot and from our
own counts, so nothing is counted twice. `fairness_id` is the flow: a tenant, however it is known; `default-flow` for
callers that name none, as there; `other` beyond `FLOWS_MAX` names. It is empty where all flows are counted together.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.config.model import Settings, numbers_of
from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.explain.snapshot import EndpointSnapshot, Snapshot
from penstock.core.values.catalogue import SERVING, Outcome, Reason
from penstock.gateway.identity.unnamed import PREFIX as CLIENT_PREFIX
from penstock.gateway.telemetry.exposition import Levels
from penstock.gateway.telemetry.series import ENDPOINTS_MAX, OTHER, Counter, Histogram

MODELS_MAX = 500  # names that requests wait for, also unknown ones, because scalers wake engines by them
FLOWS_MAX = 500  # names of flows: callers choose them
FLOW_SERIES_MAX = 5_000
DEFAULT_FLOW = "default-flow"
POOL = "penstock"  # the pool's name if none is followed
_MODEL = ("model_name", "target_model_name", "fairness_id", "priority")
_QUEUE = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
_NO_ENDPOINT, _EXPIRED = (Reason.NO_ENDPOINT,), (Reason.QUEUE_TIMEOUT, Reason.DEADLINE_MISSED)
_CODES = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}
_CODES |= {429: "ResourceExhausted", 502: "ModelServerError", 503: "ServiceUnavailable"}

Rows = list[tuple[tuple[str, ...], float]]


class LlmD:
    """Counts and prints those series. The histograms: waits, whole requests, first tokens, times per output token."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        histograms: tuple[Histogram, Histogram, Histogram, Histogram],
    ) -> None:
        self._snapshot = snapshot
        labels = ("fairness_id", "model", "band", "outcome", "reason")
        self.requests = Counter("llm_d_requests", "Requests that ended, by flow.", labels, most=FLOW_SERIES_MAX)
        self._flows: set[str] = set()
        waits, whole, first_token, pace = histograms
        self._histograms = (
            (_twins("flow_control_request_queue_duration_seconds", "extension"), waits),
            (_twins("request_duration_seconds", "objective"), whole),
            (["llm_d_epp_request_ttft_seconds"], first_token),
            (["llm_d_epp_request_streaming_tpot_seconds"], pace),
        )
        self._pool = POOL
        self._priorities: dict[str, str] = {}

    def follow(self, settings: Settings) -> None:
        """Name the pool and the priorities as these settings do."""
        followed = (source.kubernetes.pool for source in settings.discovery if source.kubernetes is not None)
        self._pool = next((pool for pool in followed if pool is not None), POOL)
        numbers = numbers_of(settings.bands, settings.default_band)
        self._flows.update([tenant.name for tenant in settings.tenants][:FLOWS_MAX])
        self._priorities = {band.name: str(number) for band, number in zip(settings.bands, numbers, strict=True)}

    def ended(self, tenant: str, model: str, band: str, outcome: Outcome, reason: Reason | None) -> None:
        """A request ended. `tenant`: empty if it was refused before that was known."""
        self.requests.labels(self._flow(tenant), model, band, outcome, reason or "").inc()

    def lines(self, models: Iterable[str]) -> Iterator[str]:
        """For `/metrics`. `models`: those that have a series whether or not a request waits."""
        snapshot = self._snapshot()
        families = (*self._queue(snapshot, models), *self._served(snapshot, models), *self._endpoints(snapshot))
        for names, text, labels, rows in families:
            for name in names:
                yield from _lines(name, text, labels, rows)
        for names, histogram in self._histograms:
            for name in names:
                yield from histogram.in_all(name)

    def _queue(self, snapshot: Snapshot, models: Iterable[str]) -> Iterator[_Family]:
        waiting = Tally({(DEFAULT_FLOW, model, band): 0 for model in sorted(models) for band in self._priorities})
        known = set(models)
        largest: dict[tuple[str, str], Tally[str]] = {}  # the flows that the snapshot shows
        for flow in snapshot.flows:
            for model, count in flow.models.items():
                largest.setdefault((model, flow.band), Tally())[self._flow(flow.tenant)] += count
        for queue in snapshot.queues:
            if queue.model not in known and len(known) < MODELS_MAX:
                known.add(queue.model)
            model = queue.model if queue.model in known else OTHER
            flows = largest.get((queue.model, queue.band), Tally())
            for name, count in flows.items():
                waiting[name, model, queue.band] += count
            if rest := queue.requests - flows.total():
                waiting[OTHER, model, queue.band] += rest
        rows: Rows = [((f, self._priority(b), self._pool, m, m), count) for (f, m, b), count in waiting.items()]
        yield _twins("flow_control_queue_size", "extension"), "Requests waiting.", _QUEUE, rows
        rows = [(("", "", self._pool, "", ""), snapshot.waiting_bytes)]
        yield _twins("flow_control_queue_bytes", "extension"), "Bytes of bodies waiting.", _QUEUE, rows
        rows = [((self._pool, "effective"), _saturation(snapshot.endpoints))]
        text = "Leases per slot of the endpoints in use; 1 without one."
        yield _twins("flow_control_pool_saturation", "extension"), text, ("inference_pool", "stage"), rows
        for bound in snapshot.bounds:
            if bound.band is None and bound.of != "tokens":
                name = f"llm_d_epp_flow_control_global_capacity_utilization_{bound.of}"
                rows = [((self._pool,), bound.now / bound.most if bound.most else 1.0)]
                yield [name], f"Share of `queue.max_{bound.of}` in use.", ("inference_pool",), rows

    def _served(self, snapshot: Snapshot, models: Iterable[str]) -> Iterator[_Family]:
        priorities = self._priorities.values()
        total = Tally[tuple[str, ...]]({(m, m, DEFAULT_FLOW, priority): 0 for m in models for priority in priorities})
        errors, outcomes = Tally[tuple[str, ...]](), Tally[tuple[str, ...]]()
        for (flow, model, band, outcome, why), [count] in self.requests.values():
            if outcome == OTHER:  # too many series
                continue
            priority = self._priority(band)
            reason = Reason(why) if why else None
            total[model, model, flow, priority] += int(count)
            if reason is not None:
                errors[model, model, flow, priority, _CODES.get(reason.status, "Internal")] += int(count)
            outcomes[_outcome(Outcome(outcome), reason), priority, self._pool] += int(count)
        running: Rows = [((model.name, model.name, "", ""), model.running) for model in snapshot.models]
        yield _twins("request_total", "objective"), "Requests that ended.", _MODEL, list(total.items())
        text = "Requests that ended without an answer."
        yield _twins("request_error_total", "objective"), text, (*_MODEL, "error_code"), list(errors.items())
        text = "Requests that ended, by their way through the queue."
        labels = ("outcome", "priority", "inference_pool")
        yield ["llm_d_epp_flow_control_requests_total"], text, labels, list(outcomes.items())
        yield ["llm_d_epp_request_running"], "Requests at engines.", _MODEL, running
        rows: Rows = [((model.name,), model.running) for model in snapshot.models]
        yield ["inference_objective_running_requests"], "Requests at engines.", ("model_name",), rows

    def _endpoints(self, snapshot: Snapshot) -> Iterator[_Family]:
        used = [e for e in snapshot.endpoints if e.state in SERVING]
        for name, text, values in (
            ("average_kv_cache_utilization", "KV memory in use.", [e.kv_usage for e in used]),
            ("average_queue_size", "Requests queued inside an engine.", [e.engine_waiting for e in used]),
            ("average_running_requests", "Requests running inside an engine.", [e.engine_running for e in used]),
        ):
            told = [value for value in values if value is not None]
            rows: Rows = [((self._pool,), sum(told) / len(told) if told else 0.0)]
            yield _twins(name, "pool"), f"{text} Mean of the endpoints in use that report it.", ("name",), rows
        names, rows = ["llm_d_epp_ready_endpoints", "inference_pool_ready_pods"], [((self._pool,), len(used))]
        yield names, "Endpoints in use.", ("name",), rows
        rows = [((self._pool, e.name), e.engine_waiting or 0.0) for e in snapshot.endpoints[:ENDPOINTS_MAX]]
        text = "Requests queued inside the engine."
        yield ["llm_d_epp_per_endpoint_queue_size"], text, ("name", "model_server_endpoint"), rows
        yield ["inference_pool_per_pod_queue_size"], text, ("name", "model_server_pod"), rows

    def _flow(self, tenant: str) -> str:
        if tenant in self._flows:
            return tenant
        if tenant in ("", ANONYMOUS) or tenant.startswith(CLIENT_PREFIX):
            return DEFAULT_FLOW
        if len(self._flows) >= FLOWS_MAX:
            return OTHER
        self._flows.add(tenant)
        return tenant

    def _priority(self, band: str) -> str:
        return self._priorities.get(band, "")


def _lines(name: str, text: str, labels: Sequence[str], rows: Rows) -> Iterator[str]:
    return Levels(name, text, labels, lambda: rows).lines()


_Family = tuple[Sequence[str], str, Sequence[str], Rows]


def _twins(name: str, before: str) -> list[str]:
    return [f"llm_d_epp_{name}", f"inference_{before}_{name}"]


def _outcome(outcome: Outcome, reason: Reason | None) -> str:
    if outcome in (Outcome.COMPLETED, Outcome.FAILED):
        return "Dispatched"
    begin = outcome.value.capitalize()
    if reason in _NO_ENDPOINT:
        return f"{begin}NoEndpoints"
    if reason in _EXPIRED:
        return "EvictedTTL"
    if reason is Reason.CANCELLED:
        return "EvictedContextCancelled"
    return "RejectedCapacity" if reason is not None and reason.status == 429 else f"{begin}Other"


def _saturation(endpoints: Sequence[EndpointSnapshot]) -> float:
    used = [e for e in endpoints if e.state in SERVING]
    slots = sum(e.slots for e in used)
    return sum(e.leases + e.given_up for e in used) / slots if slots else 1.0
