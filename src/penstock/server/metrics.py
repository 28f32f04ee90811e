"""What can be counted and drawn: Prometheus series from outcomes as they happen and from snapshots when asked.

Labels are bounded: models are those an endpoint serves, all others are `other`. Every series exists from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.core.actions import Decode, Dispatch, Requeue
from penstock.core.outcome import Outcome, Reason
from penstock.core.request import Usage
from penstock.core.retry import Failure
from penstock.core.rows import SourceSnapshot
from penstock.core.snapshot import STATES, EndpointSnapshot, Snapshot
from penstock.server.series import Count, Counter, Histogram, Times
from penstock.server.wire import STATUS
from penstock.settings.model import Settings

if TYPE_CHECKING:
    from penstock.server.division import Division
    from penstock.server.journey import QueuedJourney

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
MODELS_MAX = 500  # model labels; more are `other`
OTHER = "other"
_WAITS_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_TIMES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_PACES_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_OVERHEADS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
_TRANSFERS = ("named", "none", "met")  # who computed said where the KV is, or did not, or they met
_ROUTERS_WORDS: dict[Reason, str] = {Reason.ENDPOINT_OVERLOADED: "pinned_overload"}  # RFC 876's own
_TOO_MANY = tuple(reason for reason, status in STATUS.items() if status == 429)

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class _Line:
    """What is counted of every answer for one model and band: its series, looked up once."""

    __slots__ = ("completed", "pace", "request_time", "ttft", "wait")

    def __init__(self, completed: Count, wait: Times, ttft: Times, request_time: Times, pace: Times) -> None:
        self.completed = completed
        self.wait = wait
        self.ttft = ttft
        self.request_time = request_time
        self.pace = pace


class Metrics:
    """All series of one gateway."""

    def __init__(
        self,
        settings: Settings,
        *,
        snapshot: Callable[[], Snapshot],
        config_hash: str,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self._bands: list[str] = []  # shared with the gauges
        self._models: set[str] = set()
        self._lines: dict[tuple[str, str], _Line] = {}
        self._requests = Counter("penstock_requests", "Requests that ended.", ["model", "band", "outcome", "reason"])
        self._queue_wait = Histogram(
            "penstock_queue_wait_seconds", "Time in the queue.", ["band", "outcome"], bounds=_WAITS_S
        )
        self._dispatches = Counter("penstock_dispatches", "Leases granted.", ["endpoint"])
        self._prefills = Counter(
            "penstock_prefills", "Prompts computed for another endpoint to answer.", ["endpoint", "transfer"]
        )
        self._prefill_time = Histogram(
            "penstock_prefill_seconds",
            "From a divided request's dispatch to its prompt being computed.",
            ["model", "band"],
            bounds=_TIMES_S,
        )
        self._rejections = Counter("penstock_rejections", "Requests refused before they entered the queue.", ["reason"])
        self._requeues = Counter("penstock_requeues", "Requests sent back to the queue by a failure.", ["reason"])
        self._cancellations = Counter("penstock_queue_cancellations", "Waiting requests whose client hung up.")
        self._ttft = Histogram(
            "penstock_ttft_seconds",
            "From the whole request to the answer's first byte.",
            ["model", "band"],
            bounds=_TIMES_S,
        )
        self._request_time = Histogram(
            "penstock_request_seconds",
            "From the whole request to the answer's last byte.",
            ["model", "band"],
            bounds=_TIMES_S,
        )
        self._overhead = Histogram(
            "penstock_overhead_seconds",
            "Penstock's own time before a request is sent, without waiting.",
            bounds=_OVERHEADS_S,
        )
        self._tokens = Counter("penstock_tokens", "Tokens, as engines told.", ["model", "kind"])
        self._service = Counter("penstock_tenant_service_tokens", "Tokens each tenant got.", ["tenant"])
        self._pace = Histogram(
            "penstock_time_per_output_token_seconds",
            "Between an answer's first and last token, per token.",
            ["model", "band"],
            bounds=_PACES_S,
        )
        for series in (
            *(self._requests, self._queue_wait, self._dispatches, self._rejections, self._requeues),
            *(self._cancellations, self._ttft, self._request_time, self._overhead, self._tokens),
            *(self._service, self._pace, self._prefills, self._prefill_time),
        ):
            registry.register(cast("Collector", series))
        self.loop_lag_s = 0.0
        self.loop_lag = Gauge(
            "penstock_event_loop_lag_seconds", "How late the event loop ran a timer, lately.", registry=registry
        )
        self._config = Gauge("penstock_config_info", "The settings in force.", ["hash"], registry=registry)
        self._reload = Gauge(
            "penstock_config_reload_failed", "1 after a reload that was refused, until one is not.", registry=registry
        )
        self.reloaded(config_hash)
        self._tenants: list[str] = []
        self._aliases = _RouterAliases(snapshot, self)
        self._with_aliases = False
        for reason in Reason:
            self._rejections.labels(reason)
        for failure in Failure:
            self._requeues.labels(failure)
        self._cancellations.labels()
        self._overheads = self._overhead.labels()
        registry.register(_Gauges(snapshot, self._bands, self._known_models))
        self._alias_rejections: dict[Reason, int] = dict.fromkeys(_TOO_MANY, 0)
        self._admissions = 0
        self._cancelled = 0
        self.reconfigured(settings)

    def reconfigured(self, settings: Settings) -> None:
        """The bands and tenants of these from now on. What was counted stays, but for tenants that are gone."""
        before, self._tenants = self._tenants, [*[tenant.name for tenant in settings.tenants], OTHER]
        for gone in set(before) - set(self._tenants):
            self._service.remove(gone)
        for tenant in self._tenants:
            self._service.labels(tenant)
        self._bands[:] = [band.name for band in settings.bands]
        for band in self._bands:
            for outcome in Outcome:
                self._queue_wait.labels(band, outcome)
        for model in (*self._models, OTHER):
            self._start_at_zero(model)
        router_aliases = "vllm_router" in settings.metrics.aliases
        if router_aliases and not self._with_aliases:
            self.registry.register(self._aliases)
        elif self._with_aliases and not router_aliases:
            self.registry.unregister(self._aliases)
        self._with_aliases = router_aliases

    def reloaded(self, config_hash: str | None) -> None:
        """These settings are in force now; None: others were refused."""
        self._reload.set(config_hash is None)
        if config_hash is not None:
            self._config.clear()
            self._config.labels(config_hash).set(1)

    def queue_wait_samples(self) -> Iterable[Metric]:
        return self._queue_wait.collect()

    def page(self) -> bytes:
        """The text for `/metrics`."""
        return prometheus_client.generate_latest(self.registry)

    def endpoint_added(self, name: str) -> None:
        self._dispatches.labels(name)

    def endpoint_removed(self, name: str) -> None:
        """Its series end: endpoints come and go, and each name is a series."""
        self._dispatches.remove(name)
        for transfer in _TRANSFERS:
            self._prefills.remove(name, transfer)

    # --- what happened ----------------------------------------------------------------------------------------

    def dispatched(self, journey: QueuedJourney, action: Dispatch) -> None:
        self._admissions += 1
        self._dispatches.labels(action.endpoint).inc()
        self._overheads.observe(max(0.0, journey.elapsed_s() - action.queue_s))

    def decoding(self, journey: QueuedJourney, action: Decode, division: Division) -> None:
        """A divided request's prompt is computed, and it goes on to the endpoint that answers."""
        self._dispatches.labels(action.endpoint).inc()
        self._prefills.labels(division.prefill, division.transfer).inc()
        labels = self.model_label(journey.request.model), journey.band
        self._prefill_time.labels(*labels).observe(journey.elapsed_s() - division.since_s)

    def requeued(self, action: Requeue) -> None:
        self._requeues.labels(action.cause).inc()

    def refused(self, reason: Reason, *, model: str = OTHER, band: str = "") -> None:
        """A request that never reached the scheduler."""
        self._requests.labels(model, band, Outcome.REJECTED, reason).inc()
        self._rejections.labels(reason).inc()
        if reason in self._alias_rejections:
            self._alias_rejections[reason] += 1

    def passed(self, model: str, outcome: Outcome, reason: Reason | None) -> None:
        """A request that needed no turn ended."""
        self._requests.labels(self.model_label(model), "", outcome, reason or "").inc()
        if outcome is Outcome.REJECTED:
            assert reason is not None
            self._rejections.labels(reason).inc()

    def ended(self, journey: QueuedJourney, outcome: Outcome, reason: Reason | None) -> None:
        line = self._line(journey)
        if outcome is Outcome.COMPLETED:
            line.completed.inc()
            line.wait.observe(journey.waited_s())
            line.request_time.observe(journey.elapsed_s())
        else:
            self._not_answered(journey, outcome, reason)
        if journey.first_s is not None and journey.request.streamed:
            line.ttft.observe(journey.first_s - journey.started_s)

    def _not_answered(self, journey: QueuedJourney, outcome: Outcome, reason: Reason | None) -> None:
        band = journey.band
        self._requests.labels(self.model_label(journey.request.model), band, outcome, reason or "").inc()
        if outcome is Outcome.REJECTED:
            assert reason is not None
            self._rejections.labels(reason).inc()
        else:
            self._queue_wait.labels(band, outcome).observe(journey.waited_s())
        if reason is not None and reason in self._alias_rejections:
            self._alias_rejections[reason] += 1
        if reason is Reason.CANCELLED:
            self._cancellations.labels().inc()
            self._cancelled += 1

    def used(self, journey: QueuedJourney, usage: Usage | None, tokens_seen: int) -> None:
        """An answer is complete. `usage`: as the engine told; else only the tokens that were seen are known."""
        model = self.model_label(journey.request.model)
        prompt, cached, completion = 0, 0, tokens_seen
        if usage is not None:
            prompt, cached, completion = usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens
        if prompt:
            self._tokens.labels(model, "prompt").inc(prompt)
        if cached:
            self._tokens.labels(model, "cached_prompt").inc(cached)
        if completion:
            self._tokens.labels(model, "completion").inc(completion)
        self._service.labels(journey.caller.tenant_label).inc(prompt + completion)
        if journey.request.streamed and journey.first_s is not None and completion > 1:
            pace_s = (journey.started_s + journey.elapsed_s() - journey.first_s) / (completion - 1)
            self._line(journey).pace.observe(pace_s)

    def _line(self, journey: QueuedJourney) -> _Line:
        key = (self.model_label(journey.request.model), journey.band)
        return self._lines.get(key) or self._line_of(*key)

    def _line_of(self, model: str, band: str) -> _Line:
        line = self._lines[model, band] = _Line(
            self._requests.labels(model, band, Outcome.COMPLETED, ""),
            self._queue_wait.labels(band, Outcome.COMPLETED),
            self._ttft.labels(model, band),
            self._request_time.labels(model, band),
            self._pace.labels(model, band),
        )
        return line

    # --- labels -----------------------------------------------------------------------------------------------

    def models_known(self, names: Iterable[str]) -> None:
        """Names that may be labels from now on."""
        for name in names:
            if len(self._models) < MODELS_MAX and name not in self._models:
                self._models.add(name)
                self._start_at_zero(name)

    def _start_at_zero(self, model: str) -> None:
        for band in self._bands:
            self._line_of(model, band)
        for kind in ("prompt", "cached_prompt", "completion"):
            self._tokens.labels(model, kind)

    def model_label(self, model: str) -> str:
        return model if model in self._models else OTHER

    def _known_models(self) -> set[str]:
        return self._models

    # --- for the router's names -------------------------------------------------------------------------------

    def router_counters(self) -> Iterator[Metric]:
        admissions = CounterMetricFamily("vllm_router:admissions", "Requests sent to an engine.")
        admissions.add_metric([], self._admissions)
        yield admissions
        rejections = CounterMetricFamily("vllm_router:rejections", "Requests answered 429.", labels=["reason"])
        for reason, count in self._alias_rejections.items():
            rejections.add_metric([_ROUTERS_WORDS.get(reason, reason)], count)
        yield rejections
        cancelled = CounterMetricFamily("vllm_router:queue_cancellations", "Waiters that hung up.")
        cancelled.add_metric([], self._cancelled)
        yield cancelled


class _Gauges(Collector):
    """Levels, read from one snapshot per scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot], bands: Sequence[str], models: Callable[[], set[str]]) -> None:
        self._snapshot = snapshot
        self._bands = bands
        self._models = models

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield from self._queues(snapshot)
        yield self._tries(snapshot)
        yield from _endpoints(snapshot)
        yield from _sources(snapshot)

    def describe(self) -> Iterable[Metric]:
        return ()

    def _queues(self, snapshot: Snapshot) -> Iterator[Metric]:
        requests: dict[tuple[str, ...], float] = {
            (model, band): 0.0 for model in (*sorted(self._models()), OTHER) for band in self._bands
        }
        tokens = dict(requests)
        for queue in snapshot.queues:
            key = (queue.model if queue.model in self._models() else OTHER, queue.band)
            requests[key] = requests.get(key, 0.0) + queue.requests
            tokens[key] = tokens.get(key, 0.0) + queue.prompt_tokens
        yield _gauge("queued_requests", "Requests waiting.", ["model", "band"], requests)
        yield _gauge("queued_tokens", "Estimated prompt tokens waiting.", ["model", "band"], tokens)
        yield _gauge("queued_bytes", "Bytes of bodies waiting.", [], {(): float(snapshot.waiting_bytes)})
        yield _gauge(
            "oldest_wait_seconds",
            "How long the oldest waiting request has waited.",
            ["band"],
            {(band.name,): band.oldest_wait_s for band in snapshot.bands},
        )

    def _tries(self, snapshot: Snapshot) -> Metric:
        text = "Requests sent although they were forecast to miss their deadlines, to learn of the present."
        family = CounterMetricFamily("penstock_deadline_tries", text, labels=["model"])
        tries = dict.fromkeys((*sorted(self._models()), OTHER), 0)
        for model in snapshot.models:
            tries[model.name if model.name in tries else OTHER] += model.deadline_tries_total
        for name, count in tries.items():
            family.add_metric([name], count)
        return family


def _endpoints(snapshot: Snapshot) -> Iterator[Metric]:
    columns: list[tuple[str, str, Callable[[EndpointSnapshot], float]]] = [
        ("leases", "Leases held.", lambda e: e.leases),
        ("slots", "Requests it may be sent at a time.", lambda e: e.slots),
        ("endpoint_up", "1 while it may be used.", lambda e: e.state == "up"),
        (
            "endpoint_waiting",
            "Requests waiting inside the engine, as observed; NaN where the engine does not tell.",
            lambda e: _told(e, e.engine_waiting),
        ),
        (
            "endpoint_running",
            "Requests running inside the engine, as observed; NaN where the engine does not tell.",
            lambda e: _told(e, e.engine_running),
        ),
        (
            "endpoint_kv_usage_ratio",
            "KV memory in use, as observed; NaN where the engine does not tell.",
            lambda e: _told(e, e.kv_usage),
        ),
        (
            "observation_age_seconds",
            "Age of the last reading; NaN where there is none to go by.",
            lambda e: math.nan if e.observed_s_ago is None else e.observed_s_ago,
        ),
    ]
    for name, text, value in columns:
        yield _gauge(name, text, ["endpoint"], {(e.name,): value(e) for e in snapshot.endpoints})
    states: dict[tuple[str, ...], float] = {
        (e.name, state): float(e.state == state) for e in snapshot.endpoints for state in STATES
    }
    yield _gauge("endpoint_state", "1 for the state it is in.", ["endpoint", "state"], states)


def _told(endpoint: EndpointSnapshot, value: float | None) -> float:
    """0 until it was read for the first time, as every gauge. From then on what it did not tell is no number."""
    if value is None:
        return 0.0 if endpoint.observed_s_ago is None else math.nan
    return value


def _sources(snapshot: Snapshot) -> Iterator[Metric]:
    """How right those are who say where prompts are cached."""
    columns: list[tuple[str, str, Callable[[SourceSnapshot], float]]] = [
        ("prefix_hit_tokens", "Prompt tokens that were cached where they were expected.", lambda s: s.hit_tokens),
        (
            "prefix_predicted_tokens",
            "Prompt tokens expected to be cached there.",
            lambda s: s.predicted_tokens,
        ),
        ("prefix_predictions", "Predictions that engines' usage could be held against.", lambda s: s.checks),
        ("prefix_predictions_wrong", "Of these, far too high.", lambda s: s.wrong),
    ]
    for name, text, value in columns:
        family = CounterMetricFamily(f"penstock_{name}", text, labels=["source"])
        for source in snapshot.sources:
            family.add_metric([source.source], value(source))
        yield family
    off: dict[tuple[str, ...], float] = {(source.source,): source.off for source in snapshot.sources}
    yield _gauge("prefix_sources_off", "Endpoints about which a source is not believed now.", ["source"], off)


def _gauge(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(f"penstock_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family


class _RouterAliases(Collector):
    """The names of production-stack's RFC 876, for dashboards that have them."""

    def __init__(self, snapshot: Callable[[], Snapshot], metrics: Metrics) -> None:
        self._snapshot = snapshot
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield GaugeMetricFamily("vllm_router:queued_requests", "Requests waiting.", value=snapshot.waiting)
        reserved = sum(e.reserved for e in snapshot.endpoints)
        yield GaugeMetricFamily("vllm_router:reservations", "Leases before their first token.", value=reserved)
        yield from self._metrics.router_counters()
        wait = Metric("vllm_router:queue_wait_seconds", "Time in the queue.", "histogram")
        totals: dict[tuple[str, str], float] = {}
        for sample in next(iter(self._metrics.queue_wait_samples())).samples:
            suffix = sample.name.removeprefix("penstock_queue_wait_seconds")
            key = (suffix, sample.labels.get("le", ""))
            totals[key] = totals.get(key, 0.0) + sample.value
        for (suffix, le), value in totals.items():
            wait.add_sample("vllm_router:queue_wait_seconds" + suffix, {"le": le} if le else {}, value)
        yield wait
