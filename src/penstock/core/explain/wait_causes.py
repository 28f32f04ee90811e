"""Causes of waiting, and how long each held.

Requests of one band for one model have the same cause (those of a tenant with a limit on running requests, maybe
that), so they stand in one *line*, and a line has one cause at a time. A line adds up how long each cause held; a
request remembers the sums at its arrival and its leaving, and the difference is its own wait by cause. So a
request pays two references, however often causes change and however long it waits.

A line is looked at when it forms, then whenever the pump has found that nothing more can be sent, at most every
`LOOK_S`: causes are exact to that if anything happens, else to the interval of the readings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.core.dispatch import admission
from penstock.core.dispatch.candidates import CandidateFilter
from penstock.core.dispatch.operator_pauses import OperatorPauses
from penstock.core.dispatch.under_share import UnderShare
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.endpoints.roles import Role
from penstock.core.queueing.band import Band, Verdict
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.queues import Queues
from penstock.core.queueing.quotas import Accounts, Quotas
from penstock.core.sessions.gate import SessionGate
from penstock.core.values.catalogue import Cause

LOOK_S = 0.1  # a tenth of a second is nothing in a wait that somebody asks about
LOOKS_MAX = 32  # lines looked at in one round, so that a thousand models cost no more than a few
LINES_MAX = 1_024
Seconds = dict[Cause, float]


class Span(NamedTuple):
    """Since when a cause holds, and how long each one held before."""

    cause: Cause
    since_s: float
    before: Seconds

    def up_to(self, until_s: float) -> Seconds:
        """Return the seconds of each cause, up to `until_s`."""
        held = dict(self.before)
        held[self.cause] = held.get(self.cause, 0.0) + max(0.0, until_s - self.since_s)
        return held


class Line:
    """Requests with the same cause of waiting."""

    __slots__ = ("accounts", "band", "entries", "held", "looked_s", "model", "span")

    def __init__(self, band: Band, model: str, accounts: Accounts, span: Span, held: Cause | None = None) -> None:
        self.band = band
        self.model = model
        self.held = held  # why their sessions wait, if it is these that wait
        self.accounts = accounts  # those with a limit on running requests
        self.span = span
        self.looked_s = span.since_s
        self.entries: dict[int, Entry] = {}  # in order of entering


class Stay(NamedTuple):
    """A visit of a request to a line, under way."""

    line: Line
    begin: Span
    begin_s: float


class Stayed(NamedTuple):
    """A visit that is over."""

    begin: Span
    begin_s: float
    end: Span
    end_s: float

    def seconds(self) -> Seconds:
        """Return how long the request waited for each cause."""
        before = self.begin.up_to(self.begin_s)
        held = self.end.up_to(self.end_s)
        return {cause: s for cause, until in held.items() if (s := until - before.get(cause, 0.0)) > 1e-9}


class Waits:
    """All lines."""

    def __init__(
        self,
        queues: Queues,
        pool: Pool,
        *,
        under_share: UnderShare,
        candidates: CandidateFilter,
        quotas: Quotas,
        pauses: OperatorPauses,
        gate: SessionGate,
    ) -> None:
        self._queues = queues
        self._pool = pool
        self._under_share = under_share
        self._candidates = candidates
        self._quotas = quotas
        self._pauses = pauses
        self._gate = gate
        self._lines: dict[tuple[int, str, Accounts, Cause | None], Line] = {}
        self._round_s = 0.0

    def enter(self, entry: Entry, now: float) -> Stay | None:
        """Put a request that waits from now on into its line.

        Returns None if there are too many lines to tell them apart.
        """
        request = entry.request
        accounts = tuple([name for name in entry.accounts if name in self._quotas.capped])
        held = self._why_held(entry) if entry.held else None
        key = (request.band, request.model, accounts, held)
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= LINES_MAX:
                self._forget(now, idle_s=0.0)
                if len(self._lines) >= LINES_MAX:
                    return None
            band = self._queues.bands[request.band]
            cause = self.cause(band, request.model, accounts, now, held)
            line = Line(band, request.model, accounts, Span(cause, now, {}), held)
            self._lines[key] = line
        elif not line.entries and now - line.looked_s >= LOOK_S:
            self._look_at(line, now)
        line.entries[entry.seq] = entry
        return Stay(line, line.span, now)

    def leave(self, stay: Stay, entry: Entry, now: float) -> Stayed:
        """Take a request out of its line. Returns its visit, for `Stayed.seconds`."""
        line = stay.line
        del line.entries[entry.seq]
        return Stayed(stay.begin, stay.begin_s, line.span, now)

    def so_far(self, stay: Stay, now: float) -> Stayed:
        """Returns a visit that is under way as if it were over now."""
        return Stayed(stay.begin, stay.begin_s, stay.line.span, now)

    def reconfigured(self) -> None:
        """Begin again, maybe with other bands. No request is in any line at this moment."""
        self._lines.clear()

    def look(self, now: float, *, at_once: bool = False) -> None:
        """Find the cause of each line, now that the pump can send nothing more.

        A look within `LOOK_S` of the last one is skipped, unless it is to be `at_once`.
        """
        if now - self._round_s < LOOK_S and not at_once:
            return
        self._round_s = now
        self._forget(now, idle_s=LOOK_S)
        for key, line in list(self._lines.items())[:LOOKS_MAX]:
            if line.entries:
                self._look_at(line, now)
            if len(self._lines) > LOOKS_MAX:
                self._lines[key] = self._lines.pop(key)  # to the end: next round looks at others

    def band(self, rank: int) -> Band:
        """Returns the band of that rank."""
        return self._queues.bands[rank]

    def present(self, line: Line, now: float) -> Cause:
        """Returns the cause of a line at this very moment."""
        self._look_at(line, now)
        return line.span.cause

    def lines(self) -> list[Line]:
        """Returns the lines in which a request waits."""
        return [line for line in self._lines.values() if line.entries]

    def _why_held(self, entry: Entry) -> Cause:
        session = self._gate.session_of(entry.id)
        return Cause.SESSION_PAUSED if session is not None and session.stopped else Cause.SESSION_MEMORY

    def cause(self, band: Band, model: str, accounts: Accounts, now: float, held: Cause | None = None) -> Cause:
        """Returns why the first of a line is not sent. `accounts`: its accounts with a limit on running requests."""
        if not self._pauses.sends(model):
            return Cause.NO_DECIDER if self._pauses.halted else Cause.PAUSED
        if self._quotas.any_paused(accounts):
            return Cause.TENANT_PAUSED
        if held is not None and (held is Cause.SESSION_PAUSED or self._pool.alive(model)):
            return held
        if accounts and self._quotas.at_limit(accounts):
            return Cause.TENANT_CAP
        closed, free = self.endpoints(band, model, now)
        if (free or not _OUT.issuperset(closed)) and self._queues.waits_above(band.rank, model):
            return Cause.TURN
        if free:
            return self._despite_room(band, model, free, now)
        cause = dominant(closed) if closed else Cause.NO_BACKEND
        return Cause.WARMING if cause is Cause.NO_BACKEND and self._pool.telling else cause

    def verdicts(self, band: Band, now: float) -> tuple[Mapping[Endpoint, Verdict], Mapping[Endpoint, Verdict]]:
        """Returns the verdicts of a band on closed and on open endpoints.

        Those that the pump is going to judge with its next turn are judged for this answer.
        """
        if not band.unchecked:
            return band.closed, band.open
        judged = {endpoint: self._candidates.judge(endpoint, band.settings, now) for endpoint in band.unchecked}
        closed, opened = {**band.closed}, {**band.open}
        for endpoint, verdict in judged.items():
            closed.pop(endpoint, None)
            (opened if verdict.cause is None else closed)[endpoint] = verdict
        return closed, opened

    def endpoints(self, band: Band, model: str, now: float) -> tuple[Counter[Cause], list[Endpoint]]:
        """Returns how many endpoints for a model are closed to a band, by cause; and those that are open to it."""
        closed, opened = self.verdicts(band, now)
        if self._pool.roles.any:
            return self._endpoints_by_role(band, model, closed, opened)
        if self._pool.uniform:
            first = next(iter(self._pool), None)
            if first is None or not first.serves(model):
                return Counter(), []
            return _causes(closed.values()), list(opened)
        causes = _causes([verdict for e, verdict in closed.items() if e.serves(model)])
        return causes, [e for e in opened if e.serves(model)]

    def kept_free(self, model: str, now: float) -> int:
        """Returns how many slots of a model only flows under their share may use."""
        return self._under_share.reserved_slots(model, now)

    def sized_by(self, model: str) -> dict[str, int]:
        """Returns how many endpoints for a model have their size found, by the judge of it."""
        limits = [e.ledger.limit for e in self._pool if e.serves(model)]
        return dict(Counter([limit.judged_by for limit in limits if limit.judged_by]))

    def _endpoints_by_role(
        self, band: Band, model: str, verdicts: Mapping[Endpoint, Verdict], opened: Mapping[Endpoint, Verdict]
    ) -> tuple[Counter[Cause], list[Endpoint]]:
        """The same for endpoints that may compute the first one's prompt; if none may answer, for those."""
        head, roles = band.tree.head([model]), self._pool.roles
        whole = head is not None and head.whole
        serving = [e for e in self._pool if e.serves(model)]
        computing = [e for e in serving if roles.computes(e, model, whole=whole)]
        closed = _causes([verdicts[e] for e in computing if e in verdicts])
        free = [e for e in computing if e in opened]
        answering = [e for e in serving if e.role is Role.DECODE]
        if whole or any(e in opened for e in answering):
            return closed, free
        if any(e.role is Role.PREFILL for e in free):
            closed += _causes([verdicts[e] for e in answering if e in verdicts])
        return closed, [e for e in free if e.role is not Role.PREFILL]

    def _despite_room(self, band: Band, model: str, free: list[Endpoint], now: float) -> Cause:
        """Some endpoint is open to the band, and yet nothing of the line was sent."""
        head = band.tree.head([model])
        if head is None:
            return Cause.TENANT_CAP  # the flows of all that wait are held
        if head.affinity.preferred or now < head.affinity.locate_until_s:
            return Cause.AFFINITY
        opened = self.verdicts(band, now)[1]
        misfits = [self._misfit(opened[endpoint], head, endpoint, now) for endpoint in free]
        causes = [cause for cause in misfits if cause is not None]
        if len(causes) == len(misfits):
            return dominant(Counter(causes))
        is_reserved = self._under_share.reserved_slots(model, now) > 0 or self._under_share.is_over_share(head, now)
        return Cause.CLASS_SHARE if is_reserved else Cause.TURN

    def _misfit(self, verdict: Verdict, head: Entry, endpoint: Endpoint, now: float) -> Cause | None:
        cause = admission.misfit(head, endpoint, verdict.room, now=now)
        divides = endpoint.role is Role.PREFILL and not head.whole
        return Cause.KV_FULL if cause is None and divides and not self._candidates.partners(head, now) else cause

    def _look_at(self, line: Line, now: float) -> None:
        cause = self.cause(line.band, line.model, line.accounts, now, line.held)
        line.looked_s = now
        if cause is not line.span.cause:
            line.span = Span(cause, now, line.span.up_to(now))

    def _forget(self, now: float, *, idle_s: float) -> None:
        idle = [key for key, line in self._lines.items() if not line.entries and now - line.looked_s >= idle_s]
        for key in idle:
            del self._lines[key]


def _causes(verdicts: Iterable[Verdict]) -> Counter[Cause]:
    return Counter([verdict.cause for verdict in verdicts if verdict.cause is not None])


def dominant(closed: Counter[Cause]) -> Cause:
    """Returns the cause to name for several endpoints: of those that could be used at all, the most frequent.

    If none could be used, the most frequent of those that are there; `NO_BACKEND` only if all are away.
    """
    usable = {cause: count for cause, count in closed.items() if cause not in _OUT}
    there = {cause: count for cause, count in closed.items() if cause is not Cause.NO_BACKEND}
    counts = usable or there or closed
    return max(counts, key=lambda cause: (counts[cause], -_ORDER[cause]))


_ORDER = {cause: rank for rank, cause in enumerate(Cause)}
_OUT = frozenset({Cause.NO_BACKEND, Cause.UNPROVEN, Cause.EJECTED, Cause.STUCK, Cause.PAUSED, Cause.HELD})
