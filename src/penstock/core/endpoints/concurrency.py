"""An engine's concurrency: configured, or found by trying.

The evidence is that of one judge at a time (`judges.py`): which one, depends on the engine and changes rarely.

- *Increase* while requests wait here and all that were let in run: by the judge's share until a queue is first seen,
  after that by one, and twice the last step after each that let more run. A step without more running requests is
  reverted.
- *Decrease* to what the engine has room for when a queue is seen at several looks in a row. Then the next try comes
  after 2 s, and twice as long after each that failed, because each puts a request into the engine's queue. No try is
  later than 10 s: an idle slot is worse than a waiting request.

Sources: D. Chiu, R. Jain 1989; slow start and loss back-off as in QUIC's NewReno (RFC 9002). Latency gradients (Vegas,
Gradient2) were not taken: the time to first token varies with the prompt far more than with load.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.core.endpoints.judges import (
    FEW,
    IN_USE,
    SETTLES_S,
    Evidence,
    Judge,
    OwnWork,
    PageJudge,
    StreamsJudge,
    WholeJudge,
)
from penstock.core.endpoints.lease import Lease

if TYPE_CHECKING:
    from penstock.core.endpoints.ledger import Ledger

SLOTS_MIN = 2
SLOTS_MAX = 4096  # no engine runs more
HOLD_S, HOLD_S_MAX = 2.0, 10.0
LOOK_S_MIN, LOOK_S_MAX = 0.05, 0.5  # between two looks: two steps of most engines
AHEAD = 8  # part of those that run may be sent beyond them until an engine has queued
SURPLUS_MIN = 2  # may wait inside it: as many as bands let wait there by default


class ConcurrencyLimit:
    """Configured slots, which never change."""

    __slots__ = ("_look_s", "judged_by", "shrunk", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.judged_by = ""  #: the name of the judge that is responsible
        self._look_s = math.inf
        self.shrunk = False  #: by itself, so that more may be there than fit (`surplus`)

    def proven(self) -> float:
        """Returns how many at once are known to wait for no slot."""
        return math.inf

    def idles(self) -> bool:
        """Whether a server is idle, so that what begins now waited for none."""
        return False

    def on_ended(self, begun: int, now: float) -> None:
        """Note that a request is over that ran, while `begun` others run."""

    def on_whole(self, lease: Lease, tokens: int, now: float) -> None:
        """Note a whole answer of so many tokens; 0 if that is not known."""

    def on_false_page(self) -> None:
        """Start again, because the page was false."""

    def look_due(self, now: float) -> bool:
        """True if it is time to look."""
        return now >= self._look_s

    def look(self, ledger: Ledger, now: float, *, wanted: bool, moved: bool = False) -> None:
        """Evaluate our own requests, or a reading that just `moved`; `wanted`: requests wait for more slots here."""

    def looks_s(self, ledger: Ledger, now: float) -> float:  # noqa: ARG002
        """Returns when to look if nothing happens until then; infinity: no need to."""
        return math.inf

    def fills_until_s(self, ledger: Ledger) -> float:  # noqa: ARG002
        """Returns until when nothing more may be sent because enough is on its way; minus infinity: it may."""
        return -math.inf

    def surplus(self, ledger: Ledger) -> list[Lease]:  # noqa: ARG002
        """Returns requests of ours that wait inside the engine beyond a few, the last sent first."""
        return []


class FoundLimit(ConcurrencyLimit):
    """Unknown slots."""

    __slots__ = (
        "_before", "_first", "_fits", "_grown_at", "_grown_s", "_had", "_hold_s", "_hold_until_s", "_judges", "_page",
        "_queued", "_step", "_top", "_whole", "judge", "work",
    )  # fmt: skip

    def __init__(self, slots: int, *, ran: int = 0) -> None:
        """`ran`: the reported number of running requests."""
        super().__init__(slots)
        self._first = self._had = slots  # and before the last decrease
        self.work = OwnWork(ran)
        self._page, self._whole = PageJudge(), WholeJudge()
        self._judges: tuple[Judge, ...] = (self._page, StreamsJudge(), self._whole)
        self.judge: Judge = self._whole
        self._look_s = -math.inf
        self._begin()

    def _begin(self) -> None:
        """Grow as if no queue had been seen."""
        self._step = 0  # the next increase; 0: the judge's share of the limit
        self._hold_s, self._hold_until_s = HOLD_S, -math.inf
        self._grown_s = -math.inf
        self._forget()

    def _forget(self) -> None:
        """Forget evidence that was taken at another limit, or by another judge."""
        self._before = 0  # the slots before the last increase; 0: it has decreased since
        self._queued, self._fits = 0, 0.0  # looks in a row that showed a queue, and the most that had room meanwhile
        self._top = self._grown_at = 0.0  # the most that ran since it last grew, and by then

    # --- increase and decrease ------------------------------------------------------------------------------------

    def _choose(self, ledger: Ledger, now: float) -> None:
        """Take the first judge that sees. A better one than the last begins again, because that may have erred."""
        for chosen in self._judges:
            if chosen.sees(ledger, now):
                break
        if chosen is self.judge:
            return
        if self.judge is self._whole:
            self._begin()
        self._forget()
        self.judge, self.judged_by = chosen, chosen.name

    def _weigh(self, it: Evidence, now: float, *, full: bool) -> None:
        """Take in one piece of evidence. `full`: it is, and requests wait here."""
        self._top = max(self._top, it.ran)
        if it.queue > 0.0:
            self._queued += 1
            self._step = min(self._step, 1)
            self._fits = max(self._fits, it.fits)
            if self._queued >= self.judge.looks:
                self._shrink(now, int(self._fits))
            return
        self._queued, self._fits = 0, 0.0
        if it.erred:
            self.slots = max(self.slots, self._had)
            self._begin()
            self._whole.moved(now)
        if (
            not full
            or it.inside <= max(self._before, IN_USE * self.slots - 1)
            or now < max(self._hold_until_s, self._grown_s + it.round_s)
        ):
            return
        if self._before and self._top < self._grown_at + self.judge.more * (self.slots - self._before):
            self._shrink(now, max(self._before, int(self._top)))  # a higher limit did not run more
            return
        if self._before and self._step > 1:
            self._hold_s = HOLD_S
        step = max(1, self._step, int(self.slots * (self.judge.tries if self._step else self.judge.grows)))
        self._before, self._grown_at, self._top = self.slots, self._top, 0.0
        self.slots = min(self.slots + step, SLOTS_MAX)
        self._grown_s = now
        self._whole.moved(now)
        if self._step:
            self._step = min(2 * self._step, max(1, self.slots // 2))

    def _shrink(self, now: float, slots: int) -> None:
        self._had, slots = self.slots, min(max(SLOTS_MIN, slots), self.slots)
        self.shrunk |= slots < self.slots
        self.slots, self._step = slots, 1
        self._whole.moved(now)
        self._hold_until_s = now + self._hold_s
        if self._before:
            self._hold_s = min(2.0 * self._hold_s, HOLD_S_MAX)
        self._forget()

    def on_false_page(self) -> None:
        self.slots = max(self.slots, self._first)
        self._begin()

    # --- facts ----------------------------------------------------------------------------------------------------

    def proven(self) -> float:
        """Returns the most that ran at once lately: nobody among so many waits for a server."""
        return max(FEW, self.work.best)

    def idles(self) -> bool:
        return not self.work.busy

    def on_ended(self, begun: int, now: float) -> None:
        self.work.ended(begun, now)

    def on_whole(self, lease: Lease, tokens: int, now: float) -> None:
        self._whole.answered(lease, tokens, now)

    def look(self, ledger: Ledger, now: float, *, wanted: bool, moved: bool = False) -> None:
        """Let a reading be doubted, or count our requests; then choose the judge, and weigh what it makes of them."""
        if moved:
            self._page.doubt(ledger, now)
        else:
            self._look_s = now + min(max(2.0 * ledger.speed.step_s, LOOK_S_MIN), LOOK_S_MAX)
            self.work.look(ledger, now)
        self._choose(ledger, now)
        # In slow start the limit runs ahead: it counts as far as it was used.
        slots = self.slots if self._step else min(self.slots, max(FEW, ledger.sent_there))
        it = self.judge.weigh(ledger, self.work, slots, now, moved=moved)
        if it is None:
            return
        used = it.inside >= IN_USE * slots
        if used or wanted:
            self._weigh(it, now, full=it.full and used and wanted)

    def looks_s(self, ledger: Ledger, now: float) -> float:
        if self._queued or ledger.running() > self.work.running:
            return self._look_s  # a queue may be over, or more run now
        return max(self._look_s, self.judge.looks_s(ledger, now))

    def fills_until_s(self, ledger: Ledger) -> float:
        """Returns until when nothing more may be sent because enough is on its way; minus infinity: it may.

        Slow start: until the engine queues, it gets a few more requests than run, so at most these wait.
        """
        if self._step or ledger.reserved <= ledger.pending:
            return -math.inf
        page, work = ledger.page, self.work
        ran = max(work.best, ledger.running())
        if self.judge is self._page and page.base is not None:
            ran = max(ran, int(page.base.running - page.others))
        known, fit = ran + work.on_the_way, self.judge.fit
        if not ledger.shows:  # whole answers show few of those that run at once
            known = max(known, fit)
        if ledger.sent_there < max(known + max(FEW, known / AHEAD), fit + FEW):
            return -math.inf
        if ledger.shows and ledger.speed.seen:
            return math.inf  # their first tokens show when there is room
        first = next((x for x in ledger.leases.values() if x.first_token_s is None and not x.pending), None)
        return first.dispatched_s + SETTLES_S if first is not None else -math.inf

    def surplus(self, ledger: Ledger) -> list[Lease]:
        """Returns requests of ours that wait inside the engine beyond a few, the last sent first.

        Empty if we cannot tell which ones wait, and if the engine continues abandoned requests.
        """
        self.shrunk = False
        over = ledger.sent_there - self.slots - SURPLUS_MIN
        if over <= 0 or ledger.lingers:
            return []
        waiting = [lease for lease in ledger.prefill.leases.values() if lease.streamed]
        return waiting[-over:][::-1]
