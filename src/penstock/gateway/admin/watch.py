"""One picture a second for the history, the events and the listeners.

However many pages are open, a snapshot is taken and encoded once. A listener that has not taken the last frame when
the next one comes is dropped: it connects again by itself, and nobody's slowness is kept in our memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

import penstock
from penstock import clock
from penstock.config.sections.policies import TROUBLES
from penstock.core.explain.snapshot import EndpointSnapshot, ModelSnapshot, Snapshot
from penstock.core.values.catalogue import MISSING, EndpointState
from penstock.gateway.admin.events import EventLog
from penstock.gateway.admin.failing.advice import advice
from penstock.gateway.admin.failing.incidents import Episode, Incidents
from penstock.gateway.admin.failing.lately import ROWS, FailureWindow
from penstock.gateway.admin.failing.slow import inside
from penstock.gateway.admin.failing.strangers import Strangers
from penstock.gateway.admin.headline import Around, StoppedBy, is_by_operators, sentences, tone, verdict
from penstock.gateway.admin.history import History, answering
from penstock.gateway.admin.phrases import SIZED_BY, printable
from penstock.gateway.admin.picture.drawn import TenantCurves, by_tenant, configured
from penstock.gateway.admin.picture.steady import Steady
from penstock.gateway.admin.routes import AdminError, AdminRoutes, answer
from penstock.gateway.admin.why import cause_now, endpoint_why, model_why, within
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.queueing import Queueing
from penstock.gateway.telemetry.edges import ShownEdge, ShownGroup
from penstock.gateway.telemetry.failures import Failures
from penstock.http.server.server import Exchange

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
LISTENERS_MAX = 32
ENDPOINTS_SHOWN = 256
TENANTS_SHOWN = 200  # of those that are paused
EVENTS_SHOWN = 50
BATCHES_SHOWN = 50
NAME_CHARS_MAX = 200  # longer than any that people use, short enough for a frame of hundreds
_NAMES = ("name", "tenant", "model")
Row = TypeVar("Row", bound=msgspec.Struct)
_SSE_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class GatewayFacts(msgspec.Struct, frozen=True):
    """State for the page that the scheduler does not know."""

    version: str
    config_hash: Callable[[], str]
    loop_lag_s: Callable[[], float]
    queueing: Callable[[], Queueing]
    edges: Callable[[], Sequence[ShownEdge]] = tuple  #: processes that carry bytes for this one
    batches: Callable[[], Sequence[object]] = tuple  #: those that have not ended, most pressing first
    batch_store: Callable[[], str | None] = lambda: None  #: why the store of files and batches is down
    key_store: Callable[[], str | None] = lambda: None  #: why made keys can't be read
    share: Callable[[], ShownGroup | None] = lambda: None  #: how it stands among gateways that share; None: alone
    proxies: Callable[[], str] = str  #: what is wrong with filters of proxies that ask the endpoint picker
    failures: Failures = msgspec.field(default_factory=Failures)
    tenants: Callable[[], Iterable[tuple[str, float]]] = tuple  #: those of the settings, with their weights
    stops: Callable[[], Mapping[tuple[str, str], StoppedBy]] = dict  #: who paused and drained, by verb and model


class Watch:
    """Takes the picture, and shows it."""

    def __init__(self, driver: Driver, events: EventLog, facts: GatewayFacts) -> None:
        self._driver = driver
        self._events = events
        self._facts = facts
        self._history = History()
        self._last_minute = FailureWindow(facts.failures)
        self._incidents = Incidents(events)
        self._strangers = Strangers()
        self._steady = Steady()
        self._by_tenant = TenantCurves()
        self._listeners: dict[Exchange, bool] = {}  # and whether each has yet to take what it was sent
        self._started_s = driver.now()
        self._before: dict[str, EndpointState] = {}  # endpoints' states at the last tick
        self._sized_by: dict[str, str] = {}  # by which judge the size is found of engines that report none
        self._since: dict[str, float] = {}  # when they were first seen in these
        self._was_draining = False
        self._episode = Episode()
        self._tick = 0

    def add_to(self, routes: AdminRoutes) -> None:
        routes.add("GET", "/admin/state", self._state)
        routes.add("GET", "/admin/events", self._listen)
        routes.add("GET", "/admin/history", self._curves)
        routes.add(
            "GET",
            "/admin/access",
            lambda exchange, _: answer(
                exchange, {"writes": routes.auth.may_change(exchange), "name": routes.auth.operator(exchange)}
            ),
        )

    async def run(self) -> None:
        self._events.note("start", f"Penstock {penstock.__version__}, settings {self._facts.config_hash()[:12]}")
        while True:
            self.tick()
            await asyncio.sleep(INTERVAL_S)

    def close(self) -> None:
        for exchange in list(self._listeners):
            self._drop(exchange)
            exchange.end()

    def tick(self) -> None:
        now = self._driver.now()
        snapshot = self._driver.scheduler.snapshot(requests=bool(self._listeners), now=now)
        self._history.add(snapshot, self._facts.failures, now, self._driver.scheduler.tokens_under_way())
        self._by_tenant.add(snapshot, self._history.latest()["tokens_per_s"], now)
        self._note_changes(snapshot, now)
        self._incidents.look(self._last_minute.look(now), snapshot, now)
        self._look_for_strangers(snapshot, now)
        self._tick += 1
        if self._listeners:
            self._send(self._frame(snapshot))

    # --- routes ---------------------------------------------------------------------------------------------------

    def _state(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        answer(exchange, self.state(self._snapshot()))

    def _curves(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        answer(exchange, {**self._history.curves(), "tenants": self._by_tenant.shown(self._driver.now())})

    def _listen(self, exchange: Exchange, _: Mapping[str, str]) -> None:
        if len(self._listeners) >= LISTENERS_MAX:
            raise AdminError(429, "overload", f"{LISTENERS_MAX} listeners are connected already.")
        exchange.start(200, _SSE_HEADERS, length=None)
        if exchange.method == "HEAD":
            exchange.end()
            return
        self._listeners[exchange] = False
        exchange.on_disconnect = lambda: self._drop(exchange)
        exchange.on_pause = lambda: self._listeners.update({exchange: True})
        exchange.on_resume = lambda: self._listeners.update({exchange: False})
        exchange.write(self._frame(self._snapshot()))

    def state(self, snapshot: Snapshot) -> dict[str, object]:
        """What the page, `top` and `status` show. Lists of endpoints are cut, the others come cut."""
        snapshot = self._steady.look(snapshot, self._driver.now())
        endpoints = sorted(snapshot.endpoints, key=_troubled_first)
        shown = endpoints[:ENDPOINTS_SHOWN]
        queueing, there = self._facts.queueing(), answering(snapshot)
        edges = self._facts.edges()
        lately = self._last_minute.now(self._driver.now())
        share = self._facts.share()
        tenants = self._last_minute.by_tenant({flow.tenant for flow in snapshot.flows})
        state_s = self._state_s(snapshot)
        group = "" if share is None else share.sentence
        around = Around(
            lately=lately,
            queueing="" if queueing.enabled else queueing.why,
            away=[edge.name for edge in edges if edge.up_s is None],
            batch_store=(batch_store := self._facts.batch_store()),
            key_store=(key_store := self._facts.key_store()),
            proxies=self._facts.proxies(),
            group=group,
            strangers="" if group else self._strangers.sentence(self._driver.now()),
            state_s=state_s,
            stops=self._facts.stops(),
        )
        said = sentences(snapshot, around)
        return {
            "version": self._facts.version,
            "settings": self._facts.config_hash(),
            "at": clock.wall(),
            "up_s": self._driver.now() - self._started_s,
            "loop_lag_s": self._facts.loop_lag_s(),
            "tasks": _tasks(),
            "headline": " ".join(said),
            "lead": said[0],
            "verdict": verdict(snapshot, around),
            "advice": advice(snapshot, lately, queueing=queueing.enabled),
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
            "batches": self._facts.batches()[:BATCHES_SHOWN],
            "batch_store": batch_store,
            "key_store": key_store,
            "events": self._events.latest(EVENTS_SHOWN),
        }

    # --- listeners ------------------------------------------------------------------------------------------------

    def _frame(self, snapshot: Snapshot) -> bytes:
        return b"id: %d\ndata: %b\n\n" % (self._tick, msgspec.json.encode(self.state(snapshot)))

    def _send(self, frame: bytes) -> None:
        for exchange, is_behind in list(self._listeners.items()):
            if is_behind:
                self._drop(exchange)
                exchange.abort()
            else:
                exchange.write(frame)

    def _drop(self, exchange: Exchange) -> None:
        self._listeners.pop(exchange, None)
        exchange.on_disconnect = exchange.on_pause = exchange.on_resume = None

    def _look_for_strangers(self, snapshot: Snapshot, now: float) -> None:
        """Not while another gateway decides: its requests are ours, and not in these books."""
        share = self._facts.share()
        if share is not None and share.role != "leads":
            self._strangers = Strangers()
        elif line := self._strangers.look(snapshot.endpoints, now):
            self._events.note("endpoint", line)
            if self._strangers.said:
                logger.warning("%s", line)

    # --- events ---------------------------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        return self._driver.scheduler.snapshot(now=self._driver.now())

    def _state_s(self, snapshot: Snapshot) -> dict[str, float]:
        """For how long endpoints have been in their states, if these are as at the last look."""
        now = self._driver.now()
        return {
            endpoint.name: now - self._since[endpoint.name]
            for endpoint in snapshot.endpoints
            if self._before.get(endpoint.name) == endpoint.state
        }

    def _note_changes(self, snapshot: Snapshot, now: float) -> None:
        """Events that are found by comparing: endpoints that came, went, failed or recovered; work that had to wait."""
        states = {endpoint.name: endpoint.state for endpoint in snapshot.endpoints}
        self._since = {
            name: self._since[name] if self._before.get(name) == state else now for name, state in states.items()
        }
        failures = {endpoint.name: endpoint.failure for endpoint in snapshot.endpoints}
        for name, state in states.items():
            before = self._before.get(name)
            if before is None and self._before:
                self._events.note("endpoint", f"{name} was added")
            elif before not in (None, state) and "held" not in (before, state):
                failure = failures[name] if state == "ejected" else None
                why = f": {ROWS.get(failure, failure)}" if failure else ""
                self._events.note("endpoint", f"{name} is {EndpointState(state).sentence}{why}")
        sized = {endpoint.name: endpoint.slots_by for endpoint in snapshot.endpoints if endpoint.slots_by}
        for name, judge in sized.items():
            if self._sized_by.get(name, judge) != judge:
                self._events.note("endpoint", f"{name}'s size is now found by {SIZED_BY[judge]}")
        self._sized_by = sized
        for name in self._before.keys() - states.keys():
            self._events.note("endpoint", f"{name} was removed")
        self._before = states
        if snapshot.draining and not self._was_draining:
            self._events.note("queue", "draining: nothing new is let in")
        self._was_draining = snapshot.draining
        if line := self._episode.look(snapshot, now):
            self._events.note("queue", line)


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
