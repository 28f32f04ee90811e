"""What stands at some level now, for `/metrics`: queues, endpoints and sources of hits, from one snapshot per page.

A line is made when it is asked for, so that a page of many endpoints and models is written in slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.core.explain.snapshot import EndpointSnapshot, Snapshot
from penstock.core.values.catalogue import EndpointState
from penstock.core.values.rows import SourceSnapshot
from penstock.gateway.telemetry.exposition import Levels, level
from penstock.gateway.telemetry.series import OTHER

if TYPE_CHECKING:
    from penstock.gateway.telemetry.metrics import Metrics

ENDPOINTS_MAX = 1_000  # with series of their own: each has some twenty; discovery may find thousands

Row = TypeVar("Row")
_Values = Iterable[tuple[tuple[str, ...], float]]


class Gauges:
    """Levels, read from one snapshot per page."""

    def __init__(self, snapshot: Callable[[], Snapshot], bands: Sequence[str], models: Callable[[], set[str]]) -> None:
        self._snapshot = snapshot
        self._bands = bands
        self._models = models

    def lines(self) -> Iterator[str]:
        snapshot = self._snapshot()
        for levels in (*self._queues(snapshot), self._tries(snapshot), *_endpoints(snapshot), *_sources(snapshot)):
            yield from levels.lines()

    def _queues(self, snapshot: Snapshot) -> Iterator[Levels]:
        known = self._models()
        requests: dict[tuple[str, str], float] = {}
        tokens: dict[tuple[str, str], float] = {}
        for queue in snapshot.queues:
            key = (queue.model if queue.model in known else OTHER, queue.band)
            requests[key] = requests.get(key, 0.0) + queue.requests
            tokens[key] = tokens.get(key, 0.0) + queue.prompt_tokens
        keys = [(model, band) for model in (*sorted(known), OTHER) for band in self._bands]
        keys += [key for key in requests if key[1] not in self._bands]

        def by_queue(name: str, text: str, values: dict[tuple[str, str], float]) -> Levels:
            return _level(name, text, ["model", "band"], lambda: ((key, values.get(key, 0.0)) for key in keys))

        yield by_queue("queued_requests", "Requests waiting.", requests)
        yield by_queue("queued_tokens", "Estimated prompt tokens waiting.", tokens)
        yield _level("queued_bytes", "Bytes of bodies waiting.", [], lambda: [((), float(snapshot.waiting_bytes))])
        yield _level(
            "oldest_wait_seconds",
            "How long the oldest waiting request has waited.",
            ["band"],
            lambda: [((band.name,), band.oldest_wait_s) for band in snapshot.bands],
        )

    def _tries(self, snapshot: Snapshot) -> Levels:
        text = "Requests sent although they were forecast to miss their deadlines, to learn of the present."
        tries = dict.fromkeys((*sorted(self._models()), OTHER), 0)
        for model in snapshot.models:
            tries[model.name if model.name in tries else OTHER] += model.deadline_tries_total
        return _level("deadline_tries_total", text, ["model"], lambda: [((name,), n) for name, n in tries.items()])


def _endpoints(snapshot: Snapshot) -> Iterator[Levels]:
    shown = snapshot.endpoints[:ENDPOINTS_MAX]
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
        yield _column(name, text, "endpoint", [(e.name, e) for e in shown], value)
    yield _level(
        "endpoint_state",
        "1 for the state it is in.",
        ["endpoint", "state"],
        lambda: (((e.name, state), float(e.state == state)) for e in shown for state in EndpointState),
    )


def _told(endpoint: EndpointSnapshot, value: float | None) -> float:
    """0 until the first reading, as every gauge; then NaN for a value that is not reported."""
    if value is None:
        return 0.0 if endpoint.observed_s_ago is None else math.nan
    return value


def _sources(snapshot: Snapshot) -> Iterator[Levels]:
    """How right the sources of cached prefixes are."""
    columns: list[tuple[str, str, Callable[[SourceSnapshot], float]]] = [
        ("prefix_hit_tokens_total", "Prompt tokens that were cached where they were expected.", lambda s: s.hit_tokens),
        (
            "prefix_predicted_tokens_total",
            "Prompt tokens expected to be cached there.",
            lambda s: s.predicted_tokens,
        ),
        (
            "prefix_predictions_total",
            "Predictions that engines' usage could be held against.",
            lambda s: s.checks,
        ),
        ("prefix_predictions_wrong_total", "Of these, far too high.", lambda s: s.wrong),
        ("prefix_sources_off", "Endpoints about which a source is not believed now.", lambda s: s.off),
    ]
    for name, text, value in columns:
        yield _column(name, text, "source", [(source.source, source) for source in snapshot.sources], value)


def _column(name: str, text: str, label: str, rows: Sequence[tuple[str, Row]], value: Callable[[Row], float]) -> Levels:
    return _level(name, text, [label], lambda: (((named,), value(row)) for named, row in rows))


def _level(name: str, text: str, labels: list[str], values: Callable[[], _Values]) -> Levels:
    return Levels(f"penstock_{name}", text, labels, values)


class RouterAliases:
    """The names of production-stack's RFC 876, for dashboards that have them."""

    def __init__(self, snapshot: Callable[[], Snapshot], metrics: Metrics) -> None:
        self._snapshot = snapshot
        self._metrics = metrics

    def lines(self) -> Iterator[str]:
        snapshot = self._snapshot()
        reserved = sum(e.reserved for e in snapshot.endpoints)
        yield from level("vllm_router:queued_requests", "Requests waiting.", snapshot.waiting)
        yield from level("vllm_router:reservations", "Leases before their first token.", reserved)
        yield from self._metrics.router_counters()
        yield from self._metrics.queue_wait.in_all("vllm_router:queue_wait_seconds")
