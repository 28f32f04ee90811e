"""Which failures belong together? One event for each reason, that grows while it lasts, however many requests it hit.

A killed engine that breaks 15 streams is one line, so is a flood of a million refusals. The line stands where it
began and counts on; it is over when nothing was added for `QUIET_S`, or after `LONG_S`, when the next one begins. So
there are no more lines than reasons and endpoints, `OPEN_MAX` of them at a time: past that endpoints are not
told apart.
"""

from __future__ import annotations

from collections import Counter

from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.admin.events import EventLog, printable
from penstock.gateway.admin.failing.lately import WORDS, whose, words
from penstock.gateway.admin.headline import seconds
from penstock.gateway.admin.reasons import count
from penstock.gateway.telemetry.failures import OTHERS, Kind, Mishap

QUIET_S = 30.0
LONG_S = 300.0
OPEN_MAX = 24
TENANTS_MAX = 50  # told apart in one
_Key = tuple[Kind, str, str, str]  # with the reason, the limit of the tenant, and the endpoint
_AWAY = ("down", "hung", "stopping", "sleeping", "loading")  # as a probe finds it; our own verdicts explain nothing


class Incident:
    """Failures with one reason, at one endpoint where one had a part in it."""

    def __init__(self, key: _Key, serial: int, now: float) -> None:
        self.kind, self.reason, self.limit, self.endpoint = key
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
        """What is told of it."""
        total, parts = sum(self.tenants.values()), whose(self.tenants)
        requests, broke = count(total, "request", "requests"), count(total, "stream", "streams")
        alone = len(self.tenants) == 1
        each = f" {parts}" if alone and parts else ""
        lasted_s = self.last_s - self.began_s
        after = (f": {parts}" if parts and not alone else "") + (f", in {seconds(lasted_s)}" if lasted_s >= 1 else "")
        what = words(self.kind, self.reason, self.limit)
        if self.endpoint:
            where = printable(self.endpoint, 60) + (f" ({self.fell})" if self.fell else "")
            if self.kind is Kind.BROKEN:
                return f"{where} broke {broke}{each}{after}"
            return f"{where}: {requests}{each} {what}{after}"
        if self.kind is Kind.BROKEN:
            return f"endpoints broke {broke}{each}{after}"
        return f"{requests}{each} {what}{after}"


class Incidents:
    """Those that are not over."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._open: dict[_Key, Incident] = {}

    def look(self, rows: Counter[Mishap], snapshot: Snapshot, now: float) -> None:
        """Add what is new, and end what is over."""
        grown: dict[Incident, None] = {}
        for row, number in rows.items():
            if row.reason not in WORDS and row.reason != OTHERS:
                continue  # paths and methods that nobody has: somebody looks around
            incident = self._of(row, now)
            incident.add(row.tenant, number, now)
            grown[incident] = None
        if not self._open:
            return
        states = {endpoint.name: endpoint.state for endpoint in snapshot.endpoints}
        for incident in self._open.values():
            state = states.get(incident.endpoint, "")
            if state in _AWAY and not incident.fell:
                incident.fell = state
                grown[incident] = None
        for incident in grown:
            incident.serial = self._events.amend(incident.serial, "failure", incident.text())
        for key, incident in list(self._open.items()):
            if now - incident.last_s >= QUIET_S or now - incident.began_s >= LONG_S:
                del self._open[key]
                self._events.over("failure", incident.text())

    def _of(self, row: Mishap, now: float) -> Incident:
        key = (row.kind, row.reason, row.limit, row.endpoint)
        if key not in self._open and len(self._open) >= OPEN_MAX:
            key = (row.kind, row.reason, "", "")
        incident = self._open.get(key)
        if incident is None:
            incident = self._open[key] = Incident(key, 0, now)
        return incident
