"""What can be counted and drawn: Prometheus series from what happened (`request_events.py`), and from snapshots when
asked.

Labels are bounded, each kind and all of them together: models are those an endpoint serves, as many as their series
have room; all others are `other`. Every series that can count exists from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import prometheus_client

from penstock.config.model import Settings
from penstock.core.explain.snapshot import Snapshot
from penstock.core.values.catalogue import AFTER_ADMISSION, Cause, Failure, Outcome, Reason
from penstock.core.values.request import Usage
from penstock.gateway.telemetry.exposition import Levels, SeriesSource, level
from penstock.gateway.telemetry.failures import Failures
from penstock.gateway.telemetry.request_events import End, RequestEvents, Sent
from penstock.gateway.telemetry.series import (
    ENDPOINTS_MAX,
    OTHER,
    SERIES_MAX,
    Count,
    Counter,
    Histogram,
    HistogramSeries,
)
from penstock.gateway.telemetry.tenant_series import TenantSeries, TenantTimes
from penstock.gateway.usage.use_counts import UseCounts

if TYPE_CHECKING:
    from penstock.gateway.identity.caller import Caller
    from penstock.gateway.telemetry.llm_d import LlmD
    from penstock.gateway.telemetry.production_stack import ProductionStack

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
STACK, LLM_D = -4, -5  # numbers of other projects' counts, which few gateways have; `cluster/counts.py` has those above
MODELS_MAX = 500  # model labels; more are `other`
MODEL_LINES_MAX = 90_000  # of the page, for all models: 500 of them in three bands
_LINES_PER_BAND = 60  # of a model: mostly three histograms
_WAITS_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_TIMES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_PACES_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_RATIOS = (0.25, 0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2, 4)
_SAMPLED = "Estimated by true completion tokens of sampled streams behind a proxy that does not show bodies."
_OVERHEADS_S = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
_DROPPED = "Lines of the access and routing logs that were not written because standard error was not read."
_RELOAD_FAILED = "1 after a refused reload, until one succeeds."
_TRANSFERS = ("named", "none", "met")  # the prefill endpoint named the KV's place, or did not, or the two met
_ROUTERS_WORDS: dict[Reason, str] = {Reason.ENDPOINT_OVERLOADED: "pinned_overload"}  # RFC 876's own
_TOO_MANY = tuple(reason for reason in Reason if reason.status == 429)

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class _AnswerSeries(NamedTuple):
    """The series of every answer for one model and band, looked up once."""

    completed: Count
    wait: HistogramSeries
    ttft: HistogramSeries
    request_time: HistogramSeries
    pace: HistogramSeries
    prompt: Count  # tokens
    cached: Count
    completion: Count


class Metrics:
    """All series of one gateway."""

    def __init__(self, *, snapshot: Callable[[], Snapshot]) -> None:
        self.events = RequestEvents(self)  #: what happened to requests, and is not counted yet
        self._sources: list[SeriesSource] = []
        #: Counts by their numbers, which are the same in all processes of a gateway.
        self.counted: dict[int, Counter | Histogram | ProductionStack] = {}
        self._bands: list[str] = []  # shared with the gauges
        self._models: set[str] = set()
        self._lines: dict[tuple[str, str], _AnswerSeries] = {}
        counter, histogram, by_band = self._counter, self._histogram, ("model", "band")
        self._requests = counter("requests", "Requests that ended.", (*by_band, "outcome", "reason"))
        self._queue_wait = histogram("queue_wait_seconds", "Time in the queue.", ("band", "outcome"), _WAITS_S)
        self._dispatches = counter("dispatches", "Leases granted.", ("endpoint",), ENDPOINTS_MAX)
        text, most = "Prompts computed for another endpoint to answer.", ENDPOINTS_MAX * len(_TRANSFERS)
        self._prefills = counter("prefills", text, ("endpoint", "transfer"), most)
        text = "From a divided request's dispatch to its computed prompt."
        self._prefill_time = histogram("prefill_seconds", text, by_band, _TIMES_S)
        self._rejections = counter("rejections", "Requests refused before they entered the queue.", ("reason",))
        self._requeues = counter("requeues", "Requests retried after an endpoint did not serve them.", ("reason",))
        self._fallbacks = counter("fallbacks", "Requests given to a fallback of the requested model.", ("model", "to"))
        self._cancellations = counter("queue_cancellations", "Waiting requests cancelled by their clients.").labels()
        self.unsent = counter("unsent_messages", "Messages between processes that could not be written.").labels().inc
        self.dropped_lines = counter("log_lines_dropped", _DROPPED).labels().inc
        self._ttft = histogram("ttft_seconds", "From the request to the first token of a stream.", by_band, _TIMES_S)
        self._request_time = histogram("request_seconds", "From the whole request to the last byte.", by_band, _TIMES_S)
        self._overhead = histogram("overhead_seconds", "Penstock's own time before a dispatch.", (), _OVERHEADS_S)
        self._tokens = counter("tokens", "Tokens, as engines reported; otherwise as estimated.", ("model", "kind"))
        text = "Between an answer's first and last token, per token."
        self._pace = histogram("time_per_output_token_seconds", text, by_band, _PACES_S)
        self._sampled = histogram("epp_estimate_ratio", _SAMPLED, (), _RATIOS).labels()
        self._tenants, self.times = TenantSeries(), TenantTimes()
        self.failures, self.usage = Failures(self.events), UseCounts(before_read=self.events.fold)
        self._sources.extend(self._tenants.all)
        for series in self._tenants.all:
            self._count(series)
        self.loop_lag_s, self._config_hash, self._reload_failed = 0.0, "", False
        self._level("event_loop_lag_seconds", "How late the event loop ran a timer, lately.", lambda: self.loop_lag_s)
        self._sources.append(
            Levels("penstock_config_info", "The settings in force.", ["hash"], lambda: [((self._config_hash,), 1.0)])
        )
        self._level("config_reload_failed", _RELOAD_FAILED, lambda: float(self._reload_failed))
        self._snapshot = snapshot
        self._with_aliases = False
        self._stack: ProductionStack | None = None
        self._llm_d: LlmD | None = None
        self._urls: dict[str, str] = {}  # of endpoints
        for reason in Reason:
            if reason not in AFTER_ADMISSION:
                self._rejections.labels(reason)
        for cause in (*Failure, Cause.STUCK, Cause.ENGINE_QUEUE, Cause.PREEMPTED):
            if cause is not Failure.BROKEN:  # never tried again
                self._requeues.labels(cause)
        self._overheads = self._overhead.labels()
        router = Counter("vllm_router", "Counts under other projects' names.", ["what"])
        self._alias_rejections = {reason: router.labels(reason) for reason in _TOO_MANY}
        self._admissions, self._cancelled = router.labels("admissions"), router.labels("cancelled")
        self._count(router)

    def follow(self, settings: Settings) -> None:
        """Count by the bands and tenants of these settings. Counts stay, except those of removed tenants."""
        self.events.fold()  # by the settings that were in force
        self._tenants.follow(settings)
        self.usage.follow(settings)
        self._bands[:] = [band.name for band in settings.bands]
        self._models_max = min(MODELS_MAX, MODEL_LINES_MAX // (_LINES_PER_BAND * len(self._bands)))
        for band in self._bands:
            for outcome in (Outcome.EVICTED, Outcome.FAILED, Outcome.COMPLETED):
                self._queue_wait.labels(band, outcome)
        for model in (*self._models, OTHER):
            self._start_at_zero(model)
        for name, profile in settings.models.items():
            for to in profile.fallback:
                self._fallbacks.labels(name, to)
        self._with_aliases = "vllm_router" in settings.metrics.aliases
        self._follow_others(settings)

    def _follow_others(self, settings: Settings) -> None:
        """Count under the names of the other projects that the settings name."""
        if "production_stack" not in settings.metrics.aliases:
            self._stack = self.events.came = None
            self.counted.pop(STACK, None)
        elif self._stack is None:
            from penstock.gateway.telemetry.production_stack import ProductionStack  # noqa: PLC0415 - off by default

            self._stack = self.counted[STACK] = ProductionStack(self._snapshot)
            self.events.came = self._stack.arrived
            for name, url in self._urls.items():
                self._stack.endpoint_added(name, url)
            for name in self._models:
                self._stack.model_known(name)
        if "llm_d" not in settings.metrics.aliases:
            self._llm_d = None
            self.counted.pop(LLM_D, None)
            return
        if self._llm_d is None:
            from penstock.gateway.telemetry.llm_d import LlmD  # noqa: PLC0415 - off by default

            self._llm_d = LlmD(self._snapshot, (self._queue_wait, self._request_time, self._ttft, self._pace))
            self.counted[LLM_D] = self._llm_d.requests
        self._llm_d.follow(settings)

    def reloaded(self, config_hash: str | None) -> None:
        """These settings are in force now; None: others were refused."""
        self._reload_failed = config_hash is None
        if config_hash is not None:
            self._config_hash = config_hash

    def lines(self) -> Iterator[str]:
        """The text for `/metrics`, line by line; events meanwhile may be in it or not."""
        from penstock.gateway.telemetry.levels import Gauges, RouterAliases  # noqa: PLC0415 - nobody has asked so far

        self.events.fold()
        for source in (*self._sources, Gauges(self._snapshot, self._bands, self._known_models)):
            yield from source.lines()
        if self._with_aliases:
            yield from RouterAliases(self._snapshot, self._router_counters, self._queue_wait).lines()
        if self._stack is not None:
            yield from self._stack.lines()
        if self._llm_d is not None:
            yield from self._llm_d.lines(self._models)

    def add_sources(self, sources: Iterable[SeriesSource]) -> None:
        """Print these, too."""
        self._sources.extend(sources)

    def _counter(self, name: str, text: str, labels: Sequence[str] = (), most: int = SERIES_MAX) -> Counter:
        made = Counter(f"penstock_{name}", text, labels, most=most)
        self._sources.append(made)
        self._count(made)
        return made

    def _histogram(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> Histogram:
        made = Histogram(f"penstock_{name}", text, labels, bounds=bounds)
        self._sources.append(made)
        self._count(made)
        return made

    def _count(self, series: Counter | Histogram) -> None:
        self.counted[len(self.counted)] = series

    def _level(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._sources.append(Levels(f"penstock_{name}", text, [], lambda: [((), value())]))

    def endpoint_added(self, name: str, url: str = "") -> None:
        self._dispatches.labels(name)
        self._urls[name] = url
        if self._stack is not None:
            self._stack.endpoint_added(name, url)

    def endpoint_removed(self, name: str) -> None:
        """Its series end: endpoints come and go, and each name is a series."""
        self.events.fold()
        self._dispatches.remove(name)
        self._urls.pop(name, None)
        if self._stack is not None:
            self._stack.endpoint_removed(name)
        for transfer in _TRANSFERS:
            self._prefills.remove(name, transfer)

    # --- events ---------------------------------------------------------------------------------------------

    def decoding(self, model: str, band: str, endpoint: str, *, prefill: str, transfer: str, prefill_s: float) -> None:
        """`prefill` computed a divided request's prompt in `prefill_s`, and the request goes on to `endpoint`."""
        self._dispatches.labels(endpoint).inc()
        self._prefills.labels(prefill, transfer).inc()
        self._prefill_time.labels(self.model_label(model), band).observe(prefill_s)

    def retried(self, caller: Caller, endpoint: str, cause: str) -> None:
        """A request that `endpoint` did not serve is tried again."""
        self._requeues.labels(cause).inc()
        if cause not in (Cause.ENGINE_QUEUE, Cause.PREEMPTED):  # otherwise nothing failed
            self.failures.retried(caller.tenant, endpoint, cause)

    def rerouted(self, caller: Caller, endpoint: str, to: str) -> None:
        """A proxy sent a request that `endpoint` did not serve `to` another one."""
        self.retried(caller, endpoint, Failure.RESET)
        self._dispatches.labels(to).inc()
        if self._stack is not None:
            self._stack.sent(to)

    def sampled(self, ratio: float) -> None:
        """A sampled stream was estimated at `ratio` times its true length."""
        self._sampled.observe(ratio)

    def fell_back(self, model: str, to: str) -> None:
        """A request that a model could not take goes to the next of its fallbacks. Both are names of the settings."""
        self._fallbacks.labels(model, to).inc()

    def refused(
        self, reason: Reason, *, tenant: str = "", label: str = OTHER, key: str = "", user: str = "", ended: str = ""
    ) -> None:
        """A request that never reached the scheduler. `tenant`, `key` and its `user`: if known by then.

        `ended`: that key and its end, if it is good no more.
        """
        self._requests.labels(OTHER, "", Outcome.REJECTED, reason).inc()
        self._rejections.labels(reason).inc()
        if self._llm_d is not None:
            self._llm_d.ended(tenant, OTHER, "", Outcome.REJECTED, reason)
        if reason in self._alias_rejections:
            self._alias_rejections[reason].inc()
        self._tenants.ended(label, Outcome.REJECTED, reason)
        self.failures.note(tenant, "", Outcome.REJECTED, reason, key=ended)
        if key and self.usage.on:
            self.usage.refused(tenant, key, user, reason)

    def passed(self, model: str, caller: Caller, endpoint: str, outcome: Outcome, reason: Reason | None) -> None:
        """A request that needed no turn ended."""
        self._requests.labels(self.model_label(model), "", outcome, reason or "").inc()
        if self._llm_d is not None:
            self._llm_d.ended(caller.tenant, self.model_label(model), "", outcome, reason)
        self._tenants.ended(caller.tenant_label, outcome, reason)
        self.failures.note(caller.tenant, endpoint, outcome, reason)
        if outcome is Outcome.REJECTED:
            assert reason is not None
            self._rejections.labels(reason).inc()

    def fold(self, sent: Sequence[Sent], ended: Sequence[End], wall_s: float) -> None:
        """Count what happened since the last call, in groups of one model, band and tenant."""
        if sent:
            self._sent(sent)
        self.times.ended(ended)
        groups: dict[tuple[str, str, str], list[End]] = {}
        for end in ended:
            key = (end.model, end.band, end.caller.tenant_label)
            group = groups.get(key)
            if group is None:
                groups[key] = [end]
            else:
                group.append(end)
        for (model, band, tenant), group in groups.items():
            self._ended(self.model_label(model), band, tenant, group)
        if self.usage.on:
            for end in ended:
                # Clients choose names of models, so one that nobody answers for is not kept.
                is_real = end.begun_s is not None and end.status < 400
                self.usage.ended(end, end.model if is_real else self.model_label(end.model), end.ended_s + wall_s)

    def _sent(self, sent: Sequence[Sent]) -> None:
        times: dict[str, int] = {}
        overheads: list[float] = []
        for endpoint, overhead_s in sent:
            times[endpoint] = times.get(endpoint, 0) + 1
            overheads.append(overhead_s)
        self._admissions.value += len(sent)
        self._overheads.observe_all(overheads)
        for endpoint, requests in times.items():
            self._dispatches.labels(endpoint).value += requests
            if self._stack is not None:
                self._stack.sent(endpoint, requests)

    def _ended(self, model: str, band: str, tenant: str, group: Sequence[End]) -> None:
        line = self._lines.get((model, band)) or self._line_of(model, band)
        waits: list[float] = []
        firsts: list[float] = []
        wholes: list[float] = []
        paces: list[float] = []
        reported = prompt = cached = completion = estimated_prompt = estimated_completion = 0
        for end in group:
            first_s = end.first_token_s
            if first_s is not None:
                firsts.append(first_s - end.started_s)
            if end.outcome is Outcome.COMPLETED:
                waits.append(end.waited_s)
                wholes.append(end.ended_s - end.started_s)
                if first_s is not None and end.completion_tokens > 1:
                    paces.append((end.ended_s - first_s) / (end.completion_tokens - 1))
            else:
                self._not_answered(model, end)
            if self._llm_d is not None:
                self._llm_d.ended(end.caller.tenant, model, band, end.outcome, end.reason)
            estimated_prompt += end.estimated_prompt
            estimated_completion += end.estimated_completion
            usage = end.usage
            if usage is not None:
                reported += 1
                prompt += usage.prompt_tokens
                cached += usage.cached_tokens
                completion += usage.completion_tokens
                if self._stack is not None:
                    self._stack.used(end.endpoint, usage.prompt_tokens, usage.cached_tokens)
        line.completed.value += len(waits)
        self.failures.went_well(len(waits))
        line.wait.observe_all(waits)
        line.request_time.observe_all(wholes)
        line.ttft.observe_all(firsts)
        line.pace.observe_all(paces)
        self._tenants.answered(tenant, waits, firsts)
        if reported or estimated_prompt or estimated_completion:
            line.prompt.value += prompt + estimated_prompt
            line.cached.value += cached
            line.completion.value += completion + estimated_completion
            estimated = estimated_prompt + estimated_completion
            self._tenants.served(tenant, model, Usage(prompt, completion, cached), estimated)

    def _not_answered(self, model: str, end: End) -> None:
        outcome, reason, caller = end.outcome, end.reason, end.caller
        self._requests.labels(model, end.band, outcome, reason or "").inc()
        waited_s = None if outcome is Outcome.REJECTED else end.waited_s
        self._tenants.ended(caller.tenant_label, outcome, reason, waited_s=waited_s)
        self.failures.note(caller.tenant, end.endpoint, outcome, reason, end.limit)
        if outcome is Outcome.REJECTED:
            assert reason is not None
            self._rejections.labels(reason).inc()
        else:
            self._queue_wait.labels(end.band, outcome).observe(end.waited_s)
        if reason is not None and reason in self._alias_rejections:
            self._alias_rejections[reason].inc()
        if reason is Reason.CANCELLED:
            self._cancellations.inc()
            self._cancelled.inc()

    def _line_of(self, model: str, band: str) -> _AnswerSeries:
        line = self._lines[model, band] = _AnswerSeries(
            self._requests.labels(model, band, Outcome.COMPLETED, ""),
            self._queue_wait.labels(band, Outcome.COMPLETED),
            self._ttft.labels(model, band),
            self._request_time.labels(model, band),
            self._pace.labels(model, band),
            *[self._tokens.labels(model, kind) for kind in ("prompt", "cached_prompt", "completion")],
        )
        return line

    # --- labels -----------------------------------------------------------------------------------------------

    def models_known(self, names: Iterable[str]) -> None:
        """Names that may be labels from now on."""
        for name in names:
            if len(self._models) < self._models_max and name not in self._models:
                self.events.fold()  # so far it was `other`
                self._models.add(name)
                if self._stack is not None:
                    self._stack.model_known(name)
                self._start_at_zero(name)

    def _start_at_zero(self, model: str) -> None:
        for band in self._bands:
            self._line_of(model, band)

    def model_label(self, model: str) -> str:
        return model if model in self._models else OTHER

    def _known_models(self) -> set[str]:
        return self._models

    # --- for the router's names -------------------------------------------------------------------------------

    def _router_counters(self) -> Iterator[str]:
        yield from level("vllm_router:admissions_total", "Requests sent to an engine.", self._admissions.value)
        counts = [
            ((_ROUTERS_WORDS.get(reason, reason),), count.value) for reason, count in self._alias_rejections.items()
        ]
        yield from Levels("vllm_router:rejections_total", "Requests answered 429.", ["reason"], lambda: counts).lines()
        yield from level("vllm_router:queue_cancellations_total", "Waiters that hung up.", self._cancelled.value)
