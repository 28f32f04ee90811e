"""What people see of one moment: the page, `top` and `status` show this, and so does `/admin/state`.

Made of one snapshot, so that sentence, numbers, rows and advice agree (docs/decisions/0134). Nobody looks at most
gateways most of the time, so `watch.py` imports it with the first look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from penstock import clock
from penstock.config.sections.policies import TROUBLES
from penstock.core.explain.snapshot import EndpointSnapshot, ModelSnapshot, Snapshot
from penstock.core.values.catalogue import MISSING
from penstock.core.values.rows import TenantSnapshot
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.failing.advice import advice
from penstock.gateway.admin.failing.lately import FailureWindow, Lately
from penstock.gateway.admin.headline import Around, is_by_operators, sentences, tone, verdict
from penstock.gateway.admin.history import History, answering, inside
from penstock.gateway.admin.phrases import printable, short_name
from penstock.gateway.admin.picture.drawn import by_tenant
from penstock.gateway.admin.picture.facts import GatewayFacts
from penstock.gateway.admin.picture.memory import sessions_drawn
from penstock.gateway.admin.picture.steady import Steady
from penstock.gateway.admin.picture.times import NONE, TimesWindow
from penstock.gateway.admin.why import cause_now, endpoint_why, model_why, within
from penstock.gateway.telemetry.edge_series import ShownGroup

ENDPOINTS_SHOWN = 256
TENANTS_SHOWN = 200  # of those that are paused
EVENTS_SHOWN = 50
ROWS_MAX = 50  # of the tenants of the settings
BATCHES_SHOWN = 50
NAME_CHARS_MAX = 200  # longer than any that people use, short enough for a frame of hundreds
_NAMES = ("name", "tenant", "model")
Row = TypeVar("Row", bound=msgspec.Struct)


class Picture:
    """Makes the state of a snapshot."""

    def __init__(
        self, facts: GatewayFacts, events: EventLog, history: History, last_minute: FailureWindow, times: TimesWindow
    ) -> None:
        self._facts = facts
        self._events = events
        self._history = history
        self._last_minute = last_minute
        self._times = times
        self._steady = Steady()

    def state(
        self,
        snapshot: Snapshot,
        share: ShownGroup | None,
        *,
        strangers: str,
        state_s: Mapping[str, float],
        missing_s: Mapping[str, float],
        up_s: float,
        now: float,
    ) -> dict[str, object]:
        """Return the state as JSON shows it. Lists of endpoints are cut, the others come cut.

        `strangers`: load that is not ours; `state_s`: for how long endpoints have been in their states;
        `missing_s`: and missing, by whatever state.
        """
        snapshot = self._steady.look(snapshot, now)
        endpoints = sorted(snapshot.endpoints, key=_troubled_first)
        shown = endpoints[:ENDPOINTS_SHOWN]
        queueing, there = self._facts.queueing(), answering(snapshot)
        edges = self._facts.edges()
        times = self._times.by_tenant()
        lately = self._last_minute.now(now, self._times.worst(snapshot))

        def since(name: str) -> Lately:
            """Returns the failures since that endpoint was missing."""
            return self._last_minute.now(now, within_s=missing_s.get(name, 0.0))

        tenants = self._last_minute.by_tenant({flow.tenant for flow in snapshot.flows})
        around = Around(
            lately=lately,
            queueing="" if queueing.enabled else queueing.why,
            away=[edge.name for edge in edges if edge.up_s is None],
            batch_store=(batch_store := self._facts.batch_store()),
            key_store=(key_store := self._facts.key_store()),
            proxies=self._facts.proxies(),
            group="" if share is None else share.sentence,
            strangers=strangers,
            state_s=state_s,
            stops=self._facts.stops(),
        )
        said = sentences(snapshot, around)
        return {
            "version": self._facts.version,
            "settings": self._facts.config_hash(),
            "at": clock.wall(),
            "up_s": up_s,
            "loop_lag_s": self._facts.loop_lag_s(),
            "tasks": _tasks(),
            "headline": " ".join(said),
            "lead": said[0],
            "verdict": verdict(snapshot, around),
            "advice": advice(snapshot, lately, queueing=queueing.enabled, since=since),
            "lately": lately,
            "queueing": queueing,
            "edges": edges,
            "share": share,
            "policy_trouble": [trouble.now() for trouble in TROUBLES.values() if trouble.count],
            "tone": tone(snapshot, around),
            "by_operators": is_by_operators(snapshot, around),
            "now": self._history.latest(),
            "draining": snapshot.draining,
            "paused": snapshot.paused,
            "drained": snapshot.drained,
            "paused_tenants": [printable(name, NAME_CHARS_MAX) for name in snapshot.paused_tenants[:TENANTS_SHOWN]],
            "waiting": snapshot.waiting,
            "waiting_max": next((bound.most for bound in snapshot.bounds if bound.of == "requests"), None),
            "inside": inside(snapshot),
            "running": snapshot.running,
            "slots": sum([endpoint.slots for endpoint in there]),
            "slots_taken": sum([min(endpoint.leases, endpoint.slots) for endpoint in there]),
            "waiting_tokens": snapshot.waiting_tokens,
            "waiting_bytes": snapshot.waiting_bytes,
            "models": [
                _with_why(_short_model(model), model_why(model, snapshot) if model.waiting else None)
                for model in snapshot.models
            ],
            "models_more": snapshot.models_more,
            "bands": snapshot.bands,
            "tenants": [
                {
                    **msgspec.structs.asdict(short(flow)),
                    "went_wrong": (wrong := tenants.get(flow.tenant, {})),
                    "within": within(flow, wrong),
                    "over_share": self._times.over_share(flow.tenant, flow.band),
                    **msgspec.structs.asdict(times.get((flow.tenant, flow.band), NONE)),
                }
                for flow in snapshot.flows
            ],
            "tenants_more": snapshot.flows_more,
            "tenant_tokens": by_tenant(snapshot, self._history.latest().get("tokens_per_s", 0.0)),
            "configured": configured(self._facts.tenants(), snapshot),
            "kv_usage_ceiling": snapshot.kv_usage_ceiling,
            "endpoints": [
                {**_with_why(one, endpoint_why(one, snapshot)), "state_s": state_s.get(one.name)} for one in shown
            ],
            "endpoints_more": len(endpoints) - len(shown),
            "requests": {
                name: [short(row) for row in getattr(snapshot.requests, name)]
                for name in ("waiting", "running", "ended")
            },
            "sessions": sessions_drawn(snapshot.sessions),
            "batches": self._facts.batches()[:BATCHES_SHOWN],
            "usage": self._facts.keeps_usage(),
            "batch_store": batch_store,
            "key_store": key_store,
            "events": self._events.latest(EVENTS_SHOWN),
        }


def _tasks() -> int:
    """The number of the event loop's tasks, where a leak shows first; 0 if no loop runs."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def short(row: Row) -> Row:
    """A row with names cut and printable: callers choose them."""
    names = {key: printable(name, NAME_CHARS_MAX) for key in _NAMES if (name := getattr(row, key, None)) is not None}
    changed = {key: name for key, name in names.items() if name != getattr(row, key)}
    return msgspec.structs.replace(row, **changed) if changed else row


def _short_model(model: ModelSnapshot) -> ModelSnapshot:
    head = model.head
    return short(msgspec.structs.replace(model, cause=cause_now(model), head=None if head is None else short(head)))


def _with_why(row: msgspec.Struct, why: str | None) -> dict[str, object]:
    return {**msgspec.structs.asdict(row), "why": why}


def _troubled_first(endpoint: EndpointSnapshot) -> tuple[int, bool]:
    """Faults, passing states, drained ones, and then those that are up."""
    state = endpoint.state
    rank = 0 if state in MISSING else 3 if state == "up" else 2 if state == "draining" else 1
    return rank, endpoint.closed is None


class ConfiguredTenant(msgspec.Struct, frozen=True):
    """A tenant of the settings, with or without requests."""

    tenant: str
    weight: float
    left: str  #: in words; "": no limit


def configured(tenants: Iterable[tuple[str, float]], snapshot: Snapshot) -> list[ConfiguredTenant]:
    """Return the tenants of the settings (name and weight) with the remainders of their limits."""
    limited = {tenant.name: tenant for tenant in snapshot.tenants}
    rows = []
    for name, weight in tenants:
        its = limited.get(name)
        rows.append(ConfiguredTenant(short_name(name), weight, "" if its is None else left(its)))
        if len(rows) == ROWS_MAX:
            break
    return rows


def left(tenant: TenantSnapshot) -> str:
    """Return the remainders of a tenant's limits in words: `40 of 60 requests / min, 3 of 4 running`."""
    limits = tenant.limits
    rests = (
        (tenant.requests_left, limits.requests_per_minute, "requests / min"),
        (tenant.tokens_left, limits.tokens_per_minute, "tokens / min"),
        (tenant.tokens_day_left, limits.tokens_per_day, "tokens / day"),
        (None if limits.running is None else limits.running - tenant.running, limits.running, "running"),
        (None if limits.queued is None else limits.queued - tenant.queued, limits.queued, "queued"),
    )
    return ", ".join(
        [f"{max(0, int(rest)):,} of {most:,} {unit}" for rest, most, unit in rests if rest is not None and most]
    )
