"""Which failures belong together? One event for each reason, that grows while it lasts, however many requests it hit.

A killed engine that breaks 15 streams is one line, so is a flood of a million refusals. The line stands where it
began and counts on; it is over when nothing was added for `QUIET_S`, or after `LONG_S`, when the next one begins. So
there are no more lines than reasons and endpoints, `OPEN_MAX` of them at a time: past that endpoints are not
told apart.
"""

from __future__ import annotations

from collections import Counter

from penstock.core.explain.snapshot import Snapshot
from penstock.core.values.catalogue import AWAY, Reason
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.failing.lately import whose, words
from penstock.gateway.admin.phrases import count, seconds, short_name
from penstock.gateway.telemetry.failures import OTHERS, Kind, Mishap

QUIET_S = 30.0
LONG_S = 300.0
OPEN_MAX = 24
WAITS_S, WAITED_S = 2.0, 0.5  # of the oldest when a queue begins and ends: apart, so that one near them is one line
TENANTS_MAX = 50  # kept apart in one
_Key = tuple[Kind, str, str, str]  # with the reason, the limit or key of the tenant, and the endpoint
_SCANS = (Reason.PATH_NOT_FOUND, Reason.METHOD_NOT_ALLOWED, Reason.WEBSOCKET_UNSUPPORTED)  # somebody looks around


class Incident:
    """Failures with one reason, at one endpoint if one had a part in it."""

    def __init__(self, key: _Key, serial: int, now: float) -> None:
        self.kind, self.reason, self.detail, self.endpoint = key
        self.serial = serial  # of its event
        self.began_s = self.last_s = now
        self.tenants: Counter[str] = Counter()
        self.fell = ""  # the state that its endpoint was seen in, where that was none to serve in

    def add(self, tenant: str, number: int, now: float) -> None:
        if tenant not in self.tenants and len(self.tenants) >= TENANTS_MAX:
            tenant = OTHERS
        self.tenants[tenant] += number
        self.last_s = now

    def text(self) -> str:
        total, parts = sum(self.tenants.values()), whose(self.tenants)
        alone = len(self.tenants) == 1 and bool(parts)
        each = f" {parts}" if alone else ""
        lasted_s = self.last_s - self.began_s
        after = (f": {parts}" if parts and not alone else "") + (f", in {seconds(lasted_s)}" if lasted_s >= 1 else "")
        where = short_name(self.endpoint) + (f" ({self.fell})" if self.fell else "")
        if self.kind is Kind.BROKEN:
            return f"{where or 'endpoints'} broke {count(total, 'stream')}{each}{after}"
        what = f"{count(total, 'request')}{each} {words(self.kind, self.reason, self.detail)}{after}"
        return f"{where}: {what}" if where else what


class Incidents:
    """Those that are not over."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._open: dict[_Key, Incident] = {}

    def look(self, rows: Counter[Mishap], snapshot: Snapshot, now: float) -> None:
        """Add new rows, and end quiet incidents."""
        grown: dict[Incident, None] = {}
        for row, number in rows.items():
            if row.reason in _SCANS:
                continue
            incident = self._of(row, now)
            incident.add(row.tenant, number, now)
            grown[incident] = None
        if not self._open:
            return
        states = {endpoint.name: endpoint.state for endpoint in snapshot.endpoints}
        for incident in self._open.values():
            state = states.get(incident.endpoint, "")
            if state in AWAY and not incident.fell:
                incident.fell = state
                grown[incident] = None
        for incident in grown:
            incident.serial = self._events.amend(incident.serial, "failure", incident.text())
        for key, incident in list(self._open.items()):
            if now - incident.last_s >= QUIET_S or now - incident.began_s >= LONG_S:
                del self._open[key]
                self._events.over("failure", incident.text())

    def _of(self, row: Mishap, now: float) -> Incident:
        key = (row.kind, row.reason, row.limit or row.key, row.endpoint)
        if key not in self._open and len(self._open) >= OPEN_MAX:
            key = (row.kind, row.reason, "", "")
        incident = self._open.get(key)
        if incident is None:
            incident = self._open[key] = Incident(key, 0, now)
        return incident


class Episode:
    """The present queue: two events, when it began and when it was over, true whenever they are read."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._most = 0
        self._longest_s = 0.0

    def look(self, snapshot: Snapshot, now: float) -> str | None:
        """Return a line to note, if any."""
        oldest_s = max((band.oldest_wait_s for band in snapshot.bands if band.waiting), default=0.0)
        if self._began_s is None:
            if oldest_s <= WAITS_S:
                return None
            self._began_s, self._most, self._longest_s = now - oldest_s, snapshot.waiting, oldest_s
            from penstock.gateway.admin.why import model_why  # noqa: PLC0415 - no queue so far

            first = next((model for model in snapshot.models if model.waiting), None)
            why = "" if first is None else f" for {short_name(first.name)}: {model_why(first, snapshot)}"
            return f"queue for {seconds(oldest_s)} by now{why}"
        self._most = max(self._most, snapshot.waiting)
        self._longest_s = max(self._longest_s, oldest_s)
        if oldest_s > WAITED_S:
            return None
        lasted_s, self._began_s = now - self._began_s, None
        longest = f"the longest wait was {seconds(self._longest_s)}"
        return f"queue over after {seconds(lasted_s)}: {self._most:,} waited at the most, {longest}"
