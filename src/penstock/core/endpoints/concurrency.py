"""An engine's concurrency: configured, or found by additive increase and multiplicative decrease.

Model: an engine is *c* servers in first-come order. Requests that have begun and not ended prove p <= c, together with
those that ended within the last step, because they ran at once. A stream older than twice its predicted first token
(`speed.py`) waits inside the engine, if nothing sent after it has begun.

- *Increase* by half while all that were let in run or are on their way (Little's law: those that end per second, times
  a first token's time), until a queue is first seen; after that by one, and twice the last step after each that let
  more run. A step without more running requests is reverted.
- *Decrease* to the greater of p and three quarters when a queue is seen at several looks in a row. Then the next try
  comes after 5 s, and twice as long after each that failed, because each puts a request into the engine's queue.

The evidence is our own streams, if most of the traffic streams. There the page only vetoes a queue that is suspected:
it counts, shows none waiting, and most of ours running. If most answers come whole, the page is the evidence: running
requests prove slots, persistent waiting is a queue. Without a page either, it is a whole answer's time per token
against the fastest.

Sources: D. Chiu, R. Jain 1989; slow start and loss back-off as in QUIC's NewReno (RFC 9002). Latency gradients (Vegas,
Gradient2) were not taken: the time to first token varies with the prompt far more than with load.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from penstock.core.endpoints.lease import Lease

if TYPE_CHECKING:
    from penstock.core.endpoints.ledger import Ledger

SLOTS_MIN = 2
SLOTS_MAX = 4096  # no engine runs more
SHRINK = 0.75
FULL_SHARE = 0.9  # of those let in: some are always on their way
STANDS = 0.95  # of the recent maximum: the plateau
HOLD_S, HOLD_S_MAX = 5.0, 60.0
LATE = 2.0  # times the prediction
LATE_VETOED = 4.0  # while the page shows no queue
LATE_S_MIN = 0.05  # pauses of our own loop and of the network are no queue
VETO_SHARE = 0.75  # of ours that such a page shows running: the rest may be on its way
WINDOW_STEPS = 0.75  # of a step: less than one, so that those that ended in it ran at once
LOOK_S_MIN, LOOK_S_MAX = 0.05, 0.5  # between two looks: two steps of most engines
BEST_KEPT_S = 5.0  # some seconds of a mix of requests: the most at work varies with it
ENDS_MAX = 8192  # remembered: no engine ends more requests in one step
FEW = 4  # run at once in any engine
SETTLES_S = 1.0  # answers not begun by then do not stream, or wait, which is checked separately
SURPLUS_MIN = 2  # may wait inside it: as many as bands let wait there by default
WHOLE_MIN = 12  # whole answers that a look needs, and half of those there: their lengths vary
WHOLE_RAN = 0.67  # of the fastest time per token: slower by lengths, or by a larger batch


class ConcurrencyLimit:
    """Configured slots, which never change."""

    __slots__ = ("shrunk", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.shrunk = False  #: by itself, so that more may be there than fit (`surplus`)

    def proven(self) -> float:
        """Returns how many at once are known to wait for no slot."""
        return math.inf

    def on_ended(self, begun: int, now: float) -> None:
        """Note that a request is over that ran, while `begun` others run."""

    def on_whole(self, lease: Lease, tokens: int, now: float) -> None:
        """Note a whole answer of so many tokens; 0 if that is not known."""

    def on_false_page(self) -> None:
        """Start again, because the page was false."""

    def on_page(self, ledger: Ledger, now: float, *, wanted: bool) -> None:
        """Take in a reading of the page that moved; `wanted`: requests wait that would be sent here."""

    def look_due(self, now: float) -> bool:  # noqa: ARG002
        """True if it is time to look."""
        return False

    def look(self, ledger: Ledger, now: float, *, wanted: bool) -> None:
        """Evaluate our own requests."""

    def looks_s(self, ledger: Ledger, now: float) -> float:  # noqa: ARG002
        """Returns when to look if nothing happens until then; infinity: no need to."""
        return math.inf

    def fills_until_s(self, ledger: Ledger, now: float) -> float:  # noqa: ARG002
        """Returns until when nothing more may be sent because enough is on its way; minus infinity: it may."""
        return -math.inf

    def surplus(self, ledger: Ledger, now: float) -> list[Lease]:  # noqa: ARG002
        """Returns requests of ours that wait inside the engine beyond a few, the last sent first."""
        return []


class FoundLimit(ConcurrencyLimit):
    """Unknown slots."""

    __slots__ = (
        "_before", "_best", "_best_before", "_best_s", "_counted", "_ends", "_fastest_s", "_first", "_grown_at",
        "_grown_s", "_hold_s", "_hold_until_s", "_look_s", "_on_the_way", "_peak", "_queued", "_ran", "_rate",
        "_rate_s", "_running", "_step", "_top", "_whole", "_whole_beside", "_whole_s", "_whole_tokens", "_window_s",
    )  # fmt: skip

    def __init__(self, slots: int, *, ran: int = 0) -> None:
        """`ran`: the reported number of running requests."""
        super().__init__(slots)
        self._first = slots
        self._step = 0  # the next increase; 0: half of the limit
        self._hold_s, self._hold_until_s = HOLD_S, -math.inf
        self._before = 0  # the slots before the last increase; 0: it has decreased since
        self._queued = 0  # looks in a row that showed a queue,
        self._ran = 0.0  # and the most that ran meanwhile
        self._grown_s = -math.inf
        self._look_s = -math.inf
        self._best = self._best_before = ran  # the most at work in this while and in the one before
        self._best_s = -math.inf
        self._ends: deque[float] = deque(maxlen=ENDS_MAX)  # within a step
        self._window_s = 0.0  # which is so long, about
        self._running = 0  # as of the last look
        self._peak = 0  # the most at work since the last look
        self._top = self._grown_at = 0.0  # the most engaged since it last grew, and by then: to grow again takes more
        self._counted, self._rate, self._rate_s = 0, 0.0, 0.0  # ends since the last look, and per second
        self._on_the_way = 0.0
        self._whole = self._whole_tokens = self._whole_beside = 0  # whole answers since they were last looked at
        self._whole_s = self._fastest_s = 0.0  # their times, and the least time per token

    # --- increase and decrease ------------------------------------------------------------------------------------

    def _judge(
        self, now: float, *, ran: float, engaged: float, others: float, let: float, queue: float, round_s: float
    ) -> None:
        """Take in one piece of evidence.

        Of ours, `let` were sent, `engaged` ran at once or were on their way, and `queue` wait; `ran` at once, with
        `others` of all that count.
        """
        engaged = min(engaged, let)
        self._top = max(self._top, engaged)
        if queue > 0.0:
            self._queued += 1
            self._ran = max(self._ran, ran)
            if self._queued >= (2 if queue >= 2.0 else 3):
                self._shrink(now, max(int(self._ran), int(min(self.slots, let + others) * SHRINK)))
            return
        self._queued, self._ran = 0, 0.0
        room, step = self.slots - others, self.slots - self._before
        if now < self._hold_until_s or room < SLOTS_MIN or engaged < FULL_SHARE * min(let, room):
            return
        if self._before and self._top < self._grown_at + 0.5 * step:
            if let >= SHRINK * room:
                self._shrink(now, max(self._before, int(ran)))  # a higher limit did not run more
            return
        if self._before and step > 1:
            self._hold_s = HOLD_S
        step = self._step or max(1, self.slots // 2)
        self._before, self._grown_at, self._top = self.slots, self._top, 0.0
        self.slots = min(self.slots + step, SLOTS_MAX)
        self._grown_s = now
        if self._step:
            self._hold_until_s = now + round_s
            self._step = min(2 * self._step, max(1, self.slots // 2))

    def _shrink(self, now: float, slots: int) -> None:
        slots = min(max(SLOTS_MIN, slots), SLOTS_MAX)
        self.shrunk |= slots < self.slots
        self.slots, self._step = slots, 1
        self._hold_until_s = now + self._hold_s
        if self._before:
            self._hold_s = min(2.0 * self._hold_s, HOLD_S_MAX)
        self._queued, self._before = 0, 0
        self._ran = self._top = self._grown_at = 0.0

    def on_false_page(self) -> None:
        self.slots = max(self.slots, self._first)
        self._step = self._queued = self._before = 0
        self._ran = self._top = self._grown_at = 0.0
        self._hold_s, self._hold_until_s = HOLD_S, -math.inf

    # --- own streams ----------------------------------------------------------------------------------------------

    def proven(self) -> float:
        return max(FEW, max(self._best, self._best_before) + self._on_the_way)

    def on_ended(self, begun: int, now: float) -> None:
        self._counted += 1
        ends = self._ends
        ends.append(now)
        while ends[0] < now - self._window_s:
            ends.popleft()
        self._peak = max(self._peak, begun + len(ends))

    def on_whole(self, lease: Lease, tokens: int, now: float) -> None:
        if lease.dispatched_s < self._grown_s:
            return
        self._whole += 1
        self._whole_tokens += tokens + 1
        self._whole_beside += lease.beside
        self._whole_s += now - lease.dispatched_s

    def look_due(self, now: float) -> bool:
        return now >= self._look_s

    def look(self, ledger: Ledger, now: float, *, wanted: bool) -> None:
        """Judge by our own requests if the slots suffice: by each stream, or by a number of whole answers."""
        speed, page = ledger.speed, ledger.page
        self._look_s = now + min(max(2.0 * speed.step_s, LOOK_S_MIN), LOOK_S_MAX)
        self._window_s = WINDOW_STEPS * speed.step_at_least_s
        self._running = ledger.running()
        ran, self._peak = max(self._peak, self._running), self._running
        if now > self._rate_s:
            self._rate += 0.3 * (self._counted / (now - self._rate_s) - self._rate)
        self._counted, self._rate_s = 0, now
        self._on_the_way = self._rate * speed.base_s
        if now >= self._best_s + BEST_KEPT_S:
            self._best_before, self._best, self._best_s = self._best, 0, now
        self._best = max(self._best, ran)
        if not ledger.shows:
            if not _shows_ours(ledger, now):
                self._look_whole(now, wanted=wanted)
            return
        others = page.others_running(now)
        veto = self._vetoes(ledger, now)
        # With fewer running than lately not all servers are busy, and a late stream waits for another reason.
        busy = ran >= STANDS * max(self._best, self._best_before)
        queue = len(_late(ledger, now, LATE_VETOED if veto else LATE)) if busy else 0
        self._judge(
            now,
            ran=ran + others,
            engaged=ran + min(self._on_the_way, ledger.reserved),
            others=others,
            let=ledger.sent_there if wanted else self.slots - others,
            queue=queue,
            round_s=max(SETTLES_S, LATE * speed.base_s),
        )

    def _vetoes(self, ledger: Ledger, now: float) -> bool:
        """Whether the page shows no queue, and most of ours running."""
        page = ledger.page
        if page.base is None or page.base.waiting > ledger.fresh or not page.credible(now):
            return False
        return page.base.running + ledger.fresh >= VETO_SHARE * page.own

    def looks_s(self, ledger: Ledger, now: float) -> float:
        if not ledger.shows:
            return math.inf
        if self._queued or ledger.running() > self._running:
            return self._look_s  # a queue may be over, or more run now
        if not ledger.prefill.leases:
            return math.inf
        first = next(iter(ledger.prefill.leases.values()))
        late = LATE_VETOED if self._vetoes(ledger, now) else LATE
        return max(self._look_s, first.dispatched_s + _late_after_s(ledger, first, late))

    def fills_until_s(self, ledger: Ledger, now: float) -> float:
        """Returns until when nothing more may be sent because enough is on its way; minus infinity: it may.

        Slow start: until the engine queues, it gets a few more requests than run, so at most these wait.
        """
        if self._step or ledger.reserved <= ledger.pending:
            return -math.inf
        page = ledger.page
        ran = max(self._best, self._best_before, ledger.running())
        if page.base is not None and page.credible(now):
            ran = max(ran, int(page.base.running))
        if ledger.sent_there < max(FEW, 1.5 * ran + self._on_the_way):
            return -math.inf
        first = next((x for x in ledger.leases.values() if x.first_token_s is None and not x.pending), None)
        return first.dispatched_s + SETTLES_S if first is not None else -math.inf

    def surplus(self, ledger: Ledger, now: float) -> list[Lease]:
        """Returns requests of ours that wait inside the engine beyond a few, the last sent first.

        Empty if we cannot tell which ones wait, if the page shows none, and if the engine continues abandoned requests.
        """
        self.shrunk = False
        over = ledger.sent_there - self.slots - SURPLUS_MIN
        if over <= 0 or ledger.lingers or not ledger.shows or self._vetoes(ledger, now):
            return []
        waiting = [lease for lease in ledger.prefill.leases.values() if lease.streamed]
        return waiting[-over:][::-1]

    # --- the page, and whole answers ------------------------------------------------------------------------------

    def on_page(self, ledger: Ledger, now: float, *, wanted: bool) -> None:
        """Take in a reading that moved, if most answers come whole."""
        page, base = ledger.page, ledger.page.base
        if base is None or ledger.shows or not _shows_ours(ledger, now):
            return
        self._judge(
            now,
            ran=base.running,
            engaged=min(base.running, page.own) if base.waiting <= ledger.fresh else 0.0,
            others=page.others,
            let=float(page.own) if wanted else self.slots - page.others,
            queue=max(0.0, base.waiting - ledger.fresh),
            round_s=max(SETTLES_S, 3.0 * page.read_every_s),
        )

    def _look_whole(self, now: float, *, wanted: bool) -> None:
        """Take in whole answers: those that waited took longer per token than the fastest."""
        if self._whole < max(WHOLE_MIN, self._whole_beside / (2 * max(1, self._whole))):
            return
        beside, per_token_s = self._whole_beside / self._whole, self._whole_s / self._whole_tokens
        if self._fastest_s == 0.0 or per_token_s < self._fastest_s:
            self._fastest_s = per_token_s
        share = self._fastest_s / per_token_s
        if share < WHOLE_RAN:
            self._fastest_s += 0.1 * (per_token_s - self._fastest_s)  # the engine may have become slower
        ran = beside if share >= WHOLE_RAN else share * beside
        self._whole = self._whole_tokens = self._whole_beside = 0
        self._whole_s = 0.0
        self._judge(
            now,
            ran=ran,
            engaged=ran,
            others=0.0,
            let=beside if wanted else float(self.slots),
            queue=beside - ran,
            round_s=SETTLES_S,
        )


def _shows_ours(ledger: Ledger, now: float) -> bool:
    """Whether the page counts, and shows most of our requests."""
    base = ledger.page.base
    return (
        base is not None and ledger.page.credible(now) and base.running + base.waiting >= VETO_SHARE * ledger.page.own
    )


def _late_after_s(ledger: Ledger, lease: Lease, times: float) -> float:
    return max(times * (1.5 * lease.queued_tokens / ledger.speed.rate + ledger.speed.base_s), LATE_S_MIN)


def _late(ledger: Ledger, now: float, times: float) -> list[Lease]:
    """The streams that should have begun by now. One that was overtaken waits for no slot."""
    late: list[Lease] = []
    if not ledger.speed.seen:
        return late  # none was ever seen to begin
    for lease in ledger.prefill.leases.values():  # in dispatch order
        if now - lease.dispatched_s <= LATE_S_MIN:
            break
        if not lease.streamed or lease.dispatched_s < ledger.begun_sent_s:
            continue
        if now - lease.dispatched_s > _late_after_s(ledger, lease, times):
            late.append(lease)
    return late
