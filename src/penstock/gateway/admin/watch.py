"""One picture a second for the history, the events and the listeners.

However many pages are open, a snapshot is taken and encoded once. A listener that has not taken the last frame when
the next one comes is dropped: it connects again by itself, and nobody's slowness is kept in our memory.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

import penstock
from penstock.core.explain.snapshot import Snapshot
from penstock.core.values.catalogue import AWAY, MISSING, EndpointState
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.failing.incidents import Episode, Incidents
from penstock.gateway.admin.failing.lately import ROWS, FailureWindow
from penstock.gateway.admin.failing.strangers import Strangers
from penstock.gateway.admin.history import History
from penstock.gateway.admin.phrases import SIZED_BY
from penstock.gateway.admin.picture.drawn import TenantCurves
from penstock.gateway.admin.picture.facts import GatewayFacts
from penstock.gateway.admin.picture.times import TimesWindow
from penstock.gateway.proxy.driver import Driver
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.admin.picture.picture import Picture

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
LISTENERS_MAX = 32


class Watch:
    """Takes the picture, and shows it."""

    def __init__(self, driver: Driver, events: EventLog, facts: GatewayFacts) -> None:
        self._driver = driver
        self._events = events
        self._facts = facts
        self._history = History()
        self._last_minute = FailureWindow(facts.failures)
        self._times = TimesWindow(facts.times)
        self._incidents = Incidents(events)
        self._strangers = Strangers()
        self._picture: Picture | None = None  # once somebody has looked
        self._by_tenant = TenantCurves()
        self._listeners: dict[Exchange, bool] = {}  # and whether each has yet to take what it was sent
        self._started_s = driver.now()
        self._before: dict[str, EndpointState] = {}  # endpoints' states at the last tick
        self._sized_by: dict[str, str] = {}  # by which judge the size is found of engines that report none
        self._since: dict[str, float] = {}  # when they were first seen in these
        self._missing: dict[str, float] = {}  # and when those that are missing were first
        self._was_draining = False
        self._episode = Episode()
        self._tick = 0

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
        now, is_shown = self._driver.now(), bool(self._listeners)
        snapshot = self._driver.scheduler.snapshot(requests=is_shown, sessions=is_shown, now=now)
        self._history.add(snapshot, self._facts.failures, now, self._driver.scheduler.tokens_under_way())
        self._by_tenant.add(snapshot, self._history.latest()["tokens_per_s"], now)
        self._note_changes(snapshot, now)
        self._times.look(snapshot, now)
        self._incidents.look(self._last_minute.look(now), snapshot, now)
        self._look_for_strangers(snapshot, now)
        self._tick += 1
        if self._listeners:
            self._send(self._frame(snapshot))

    # --- looks (`picture/looks.py`) -------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """True if there are as many listeners as may be."""
        return len(self._listeners) >= LISTENERS_MAX

    def curves(self) -> dict[str, object]:
        """Return the history, of all and by tenant."""
        return {**self._history.curves(), "tenants": self._by_tenant.shown(self._driver.now())}

    def listen(self, exchange: Exchange) -> None:
        """Send each picture to a client whose answer has started."""
        self._listeners[exchange] = False
        exchange.on_disconnect = lambda: self._drop(exchange)
        exchange.on_pause = lambda: self._listeners.update({exchange: True})
        exchange.on_resume = lambda: self._listeners.update({exchange: False})
        exchange.write(self._frame(self._snapshot()))

    def state(self, snapshot: Snapshot | None = None) -> dict[str, object]:
        """What the page, `top` and `status` show. Its code is imported when somebody looks for the first time."""
        if snapshot is None:
            snapshot = self._snapshot()
        if self._picture is None:
            from penstock.gateway.admin.picture.picture import Picture  # noqa: PLC0415

            self._picture = Picture(self._facts, self._events, self._history, self._last_minute, self._times)
        now, share = self._driver.now(), self._facts.share()
        strangers = "" if share is not None and share.sentence else self._strangers.sentence(now)
        up_s, state_s = now - self._started_s, self.state_s(snapshot)
        missing_s = {name: now - since_s for name, since_s in self._missing.items()}
        return self._picture.state(
            snapshot, share, strangers=strangers, state_s=state_s, missing_s=missing_s, up_s=up_s, now=now
        )

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

    def state_s(self, snapshot: Snapshot) -> dict[str, float]:
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
        self._missing = {name: self._missing.get(name, now) for name, state in states.items() if state in MISSING}
        failures = {endpoint.name: endpoint.failure for endpoint in snapshot.endpoints}
        for name, state in states.items():
            before = self._before.get(name)
            if before is None and self._before:
                self._events.note("endpoint", f"{name} was added")
            elif before not in (None, state) and "held" not in (before, state):
                failure = failures[name] if state == "ejected" else None
                why = f": {ROWS.get(failure, failure)}" if failure else ""
                bad = state in MISSING and state not in AWAY  # of these the probe has warned, with the reason
                self._events.note("endpoint", f"{name} is {EndpointState(state).sentence}{why}", bad=bad)
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
