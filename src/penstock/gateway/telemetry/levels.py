"""Queues, endpoints, sessions and sources of hits at one moment, for `/metrics`: from one snapshot per page.

A line is made when it is asked for, so that a page of many endpoints and models is written in slices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock.core.explain.snapshot import BandSnapshot, EndpointSnapshot, Snapshot
from penstock.core.values.catalogue import EndpointState
from penstock.core.values.rows import MemoryRow, SessionsSnapshot, SourceSnapshot
from penstock.gateway.telemetry.exposition import Levels, columns, level
from penstock.gateway.telemetry.series import ENDPOINTS_MAX, OTHER, Histogram


class Gauges:
    """Levels, read from one snapshot per page."""

    def __init__(self, snapshot: Callable[[], Snapshot], bands: Sequence[str], models: Callable[[], set[str]]) -> None:
        self._snapshot = snapshot
        self._bands = bands
        self._models = models

    def lines(self) -> Iterator[str]:
        snapshot = self._snapshot()
        sources = columns(_P, "source", _OF_SOURCES, lambda: ((source.source, source) for source in snapshot.sources))
        for levels in (*self._queues(snapshot), *_endpoints(snapshot), *_sessions(snapshot), *sources):
            yield from levels.lines()

    def _queues(self, snapshot: Snapshot) -> Iterator[Levels]:
        known = self._models()
        requests: Counter[tuple[str, str]] = Counter()
        tokens: Counter[tuple[str, str]] = Counter()
        for queue in snapshot.queues:
            key = (queue.model if queue.model in known else OTHER, queue.band)
            requests[key] += queue.requests
            tokens[key] += queue.prompt_tokens
        keys = [(model, band) for model in (*sorted(known), OTHER) for band in self._bands]
        keys += [key for key in requests if key[1] not in self._bands]
        tries = dict.fromkeys((*sorted(known), OTHER), 0)
        for model in snapshot.models:
            tries[model.name if model.name in tries else OTHER] += model.deadline_tries_total
        by, text = (
            ["model", "band"],
            "Requests sent to measure the present wait though forecast to miss their deadlines.",
        )
        yield Levels(
            "penstock_queued_requests", "Requests waiting.", by, lambda: ((key, requests[key]) for key in keys)
        )
        yield Levels(
            "penstock_queued_tokens",
            "Estimated prompt tokens waiting.",
            by,
            lambda: ((key, tokens[key]) for key in keys),
        )
        yield Levels("penstock_queued_bytes", "Bytes of bodies waiting.", [], lambda: [((), snapshot.waiting_bytes)])
        text_lost = "Slot time lost to preemption, in seconds."
        yield Levels("penstock_preempted_slot_seconds_total", text_lost, [], lambda: [((), snapshot.preempted_slot_s)])
        yield from columns(_P, "band", _OF_BANDS, lambda: ((band.name, band) for band in snapshot.bands))
        yield Levels(
            "penstock_deadline_tries_total", text, ["model"], lambda: (((name,), n) for name, n in tries.items())
        )


_P = "penstock_"
_SILENT = "NaN if the engine does not report it."
_OF_BANDS: list[tuple[str, str, Callable[[BandSnapshot], float]]] = [
    ("oldest_wait_seconds", "How long the oldest waiting request has waited.", lambda b: b.oldest_wait_s),
]
_OF_ENDPOINTS: list[tuple[str, str, Callable[[EndpointSnapshot], float]]] = [
    ("leases", "Leases held.", lambda e: e.leases),
    ("slots", "Requests it may be sent at a time.", lambda e: e.slots),
    ("endpoint_up", "1 while it may be used.", lambda e: e.state is EndpointState.UP),
    ("endpoint_waiting", f"Requests queued inside the engine; {_SILENT}", lambda e: _gauge(e, e.engine_waiting)),
    ("endpoint_running", f"Requests running inside the engine; {_SILENT}", lambda e: _gauge(e, e.engine_running)),
    ("endpoint_kv_usage_ratio", f"KV memory in use; {_SILENT}", lambda e: _gauge(e, e.kv_usage)),
    (
        "endpoint_refusals",
        f"Requests refused for the bounds of the engine's own queue, as it counts; {_SILENT}",
        lambda e: _gauge(e, e.engine_refused),
    ),
    (
        "observation_age_seconds",
        "Age of the last reading; NaN if there is none.",
        lambda e: math.nan if e.observed_s_ago is None else e.observed_s_ago,
    ),
]
_OF_MEMORY: list[tuple[str, str, Callable[[MemoryRow], float]]] = [
    ("endpoint_sessions", "Agents' sessions resident in its KV memory.", lambda m: m.sessions),
    ("endpoint_sessions_idle", "Of these, between turns.", lambda m: m.idle),
    ("endpoint_session_tokens", "KV memory that they hold.", lambda m: m.held_tokens),
    ("endpoint_session_usable_tokens", "KV memory that they may hold; 0 if unknown.", lambda m: m.usable_tokens),
]
_OF_SESSIONS: list[tuple[str, str, Callable[[SessionsSnapshot], float]]] = [
    ("sessions_waiting", "Agents' sessions that wait for KV memory.", lambda s: s.waiting),
    ("session_pauses_total", "Sessions whose memory was given to others.", lambda s: s.pauses_total),
    ("session_moves_total", "Sessions that came back at another endpoint.", lambda s: s.moves_total),
    ("session_forced_total", "Sessions let in because they had waited `sessions.wait`.", lambda s: s.forced_total),
]
_OF_SOURCES: list[tuple[str, str, Callable[[SourceSnapshot], float]]] = [
    ("prefix_hit_tokens_total", "Prompt tokens that were cached as expected.", lambda s: s.hit_tokens),
    ("prefix_predicted_tokens_total", "Prompt tokens expected to be cached there.", lambda s: s.predicted_tokens),
    ("prefix_predictions_total", "Predictions that engines' usage could be compared with.", lambda s: s.checks),
    ("prefix_predictions_wrong_total", "Of these, far too high.", lambda s: s.wrong),
    ("prefix_sources_off", "Endpoints about which a source is not believed now.", lambda s: s.off),
]


def _endpoints(snapshot: Snapshot) -> Iterator[Levels]:
    shown = snapshot.endpoints[:ENDPOINTS_MAX]
    yield from columns(_P, "endpoint", _OF_ENDPOINTS, lambda: ((e.name, e) for e in shown))
    states = [(e, state) for e in shown for state in EndpointState]
    text, names = "1 for the state it is in.", ["endpoint", "state"]
    yield Levels("penstock_endpoint_state", text, names, lambda: (((e.name, s), e.state is s) for e, s in states))


def _sessions(snapshot: Snapshot) -> Iterator[Levels]:
    """Nothing with `sessions.memory: off`."""
    sessions = snapshot.sessions
    if sessions is None:
        return
    shown = sessions.memory[:ENDPOINTS_MAX]
    yield from columns(_P, "endpoint", _OF_MEMORY, lambda: ((row.endpoint, row) for row in shown))
    for name, text, value in _OF_SESSIONS:
        yield Levels(_P + name, text, [], partial(_alone, value(sessions)))


def _alone(value: float) -> list[tuple[tuple[str, ...], float]]:
    return [((), value)]


def _gauge(endpoint: EndpointSnapshot, value: float | None) -> float:
    """0 until the first reading, as every gauge; then NaN for a value that is not reported."""
    if value is None:
        return 0.0 if endpoint.observed_s_ago is None else math.nan
    return value


class RouterAliases:
    """The names of production-stack's RFC 876, for dashboards that have them."""

    def __init__(
        self, snapshot: Callable[[], Snapshot], counters: Callable[[], Iterator[str]], queue_wait: Histogram
    ) -> None:
        self._snapshot = snapshot
        self._counters = counters
        self._queue_wait = queue_wait

    def lines(self) -> Iterator[str]:
        snapshot = self._snapshot()
        reserved = sum(e.reserved for e in snapshot.endpoints)
        yield from level("vllm_router:queued_requests", "Requests waiting.", snapshot.waiting)
        yield from level("vllm_router:reservations", "Leases before their first token.", reserved)
        yield from self._counters()
        yield from self._queue_wait.in_all("vllm_router:queue_wait_seconds")
