"""Who says whether an engine is full: its page, our own streams, or the time of whole answers (decision 0117).

Model: an engine is *c* servers in first-come order. A judge turns what it sees into `Evidence`: how many run, how many
wait for a server, and whether all that were let in run. `concurrency.py` moves the limit by it. One judge is
responsible for an engine at a time, the first of the list that sees: the others' evidence is not mixed in.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.endpoints.lease import Lease

if TYPE_CHECKING:
    from penstock.core.endpoints.ledger import Ledger
    from penstock.core.values.observation import Observation

FEW = 4  # run at once in any engine
IN_USE = 0.75  # of the limit: with fewer there, neither a queue nor its absence says anything about it
FULL_SHARE = 0.9  # of those let in: some are always on their way
STANDS = 0.95  # of the recent maximum: the plateau
LATE = 2.0  # times the prediction
LATE_SHOWN = 4.0  # as running, by a page without a queue
LATE_S_MIN = 0.05  # pauses of our own loop and of the network are no queue
LATE_S = 1.5  # a page that stood still for longer beside our streams shows an earlier moment than they do,
LATE_KEPT_S = 30.0  # and may again (`flood/late-2s/200x100ms/20`)
DOUBTS = 3  # readings in a row: one may be of another moment than our answers
READING_S_MAX = 1.0  # a page that took longer is of a starved machine: what it shows was not so when we asked
WINDOW_STEPS = 0.75  # of a step: less than one, so that those that ended in it ran at once
BEST_KEPT_S = 5.0  # some seconds of a mix of requests: the most at work varies with it
ENDS_MAX = 8192  # remembered: no engine ends more requests in one step
SETTLES_S = 1.0  # what was sent so long ago is there, also behind a slow HTTP server
STREAMED_KEPT_S = 3.0  # without a stream: a pause of some callers changes no judge
WHOLE_MIN = 12  # whole answers that a look needs, and as many as are there: the short ones of a batch end first
WHOLE_LOOKS = 5  # at one limit: a busy machine is slow for some of them
WHOLE_MORE = 0.15  # of its share: the last requests of a large batch add few tokens per second
WHOLE_RAN = 0.67  # of the fastest time per token: slower by lengths
NO_LOOK = (0.0, 0.0, 0.0)  # tokens per second, requests there, seconds per token


class Evidence(NamedTuple):
    """One piece of evidence."""

    inside: float  #: requests that were let in, others' too
    ran: float  #: of these, those that run
    queue: float  #: requests that wait for a server
    fits: float  #: with a queue: how many the engine has room for
    full: bool  #: all that were let in run or are on their way
    round_s: float  #: until a higher limit shows
    erred: bool = False  #: the last decrease was an error


class OwnWork:
    """How many of our requests run at once, as their first tokens and ends show."""

    __slots__ = (
        "_before", "_best", "_best_s", "_counted", "_ends", "_peak", "_rate", "_rate_s", "_window_s", "on_the_way",
        "ran", "running",
    )  # fmt: skip

    def __init__(self, ran: int) -> None:
        self._best = self._before = ran  # the most at work in this while and in the one before
        self._best_s = -math.inf
        self._ends: deque[float] = deque(maxlen=ENDS_MAX)  # within a step
        self._window_s = 0.0  # which is so long, about
        self._peak = 0  # the most at work since the last look
        self._counted, self._rate, self._rate_s = 0, 0.0, 0.0  # ends since the last look, and per second
        self.running = self.ran = 0  #: at the last look, and the most since the one before
        self.on_the_way = 0.0  #: by Little's law: those that end per second, times a first token's time

    @property
    def best(self) -> int:
        """The most that ran at once lately."""
        return max(self._best, self._before)

    @property
    def busy(self) -> bool:
        """Whether as many run as lately. With fewer, a server is idle, and what has not begun waits for none."""
        return self.ran >= STANDS * self.best

    def ended(self, begun: int, now: float) -> None:
        """Note that a request ended that ran, while `begun` others run: all that end within a step ran at once."""
        self._counted += 1
        ends = self._ends
        ends.append(now)
        while ends[0] < now - self._window_s:
            ends.popleft()
        self._peak = max(self._peak, begun + len(ends))

    def look(self, ledger: Ledger, now: float) -> None:
        """Count requests at work since the last look, ends per second, and requests on their way."""
        self._window_s = WINDOW_STEPS * ledger.speed.step_at_least_s
        self.running = ledger.running()
        self.ran, self._peak = max(self._peak, self.running), self.running
        if now > self._rate_s:
            self._rate += 0.3 * (self._counted / (now - self._rate_s) - self._rate)
        self._counted, self._rate_s = 0, now
        self.on_the_way = self._rate * ledger.speed.base_s
        if now >= self._best_s + BEST_KEPT_S:
            self._before, self._best, self._best_s = self._best, 0, now
        self._best = max(self._best, self.ran)


class Judge:
    """Says whether an engine is full."""

    __slots__ = ()
    name = ""  #: as `explain` reports it
    grows = 0.5  #: of the limit, while no queue was seen
    tries = 0.0  #: of the limit, at least, after that
    more = 0.5  #: of an increase must run, so that it is not taken back
    fit = 0  #: so many of ours had room when it last looked, as far as it knows
    looks = 2  #: in a row that show a queue: one may be of another moment than our answers

    def sees(self, ledger: Ledger, now: float) -> bool:  # noqa: ARG002
        """Whether it has anything to go by."""
        return True

    def weigh(self, ledger: Ledger, work: OwnWork, slots: int, now: float, *, moved: bool) -> Evidence | None:
        """Evaluate a reading that just `moved`, or our own requests. `slots`: the limit, as far as it was used."""
        raise NotImplementedError

    def looks_s(self, ledger: Ledger, now: float) -> float:  # noqa: ARG002
        """Returns when to look if nothing happens until then."""
        return math.inf


class PageJudge(Judge):
    """The page: a queue is what a step left waiting.

    Nothing is let in between two readings beyond what the last one proved, and after a first queue nothing more while a
    stream of ours is late, because its reading may be of a moment before that (`pages/late-2s/4x50ms/100`). It sees
    nothing while the page does not count (`page.py`), and if the page shows no queue, although streams are late
    (`pages/all-running`, `pages/silent-queue`). That holds until it shows one.
    """

    __slots__ = ("_hides", "_late_until_s", "fit", "honest", "silent")
    name = "page"
    grows = 1.0
    more = -1e9  # never: what was sent may still be on its way

    def __init__(self) -> None:
        self.honest = False  #: it has shown a queue: if it shows none, there is none
        self.fit = 0
        self.silent = False
        self._late_until_s = -math.inf
        self._hides = 0  # readings in a row without a queue while streams were late

    def sees(self, ledger: Ledger, now: float) -> bool:
        """True while the page counts, shows its queue, and has not stood still lately beside our streams."""
        if ledger.shows and ledger.page.still_s >= LATE_S:
            self._late_until_s = now + LATE_KEPT_S
        return not self.silent and now >= self._late_until_s and ledger.page.credible(now)

    def doubt(self, ledger: Ledger, now: float) -> None:
        """Hold a reading against our own streams, whoever is responsible."""
        base = ledger.page.base
        if base is None:
            return
        if _queue(ledger, base) > 0.0:
            self.honest, self.silent, self._hides = True, False, 0
        else:
            self._hides = self._hides + 1 if late_streams(ledger, now, LATE_SHOWN) else 0
        if self._hides >= DOUBTS:
            self.silent = not self.honest

    def weigh(self, ledger: Ledger, work: OwnWork, slots: int, now: float, *, moved: bool) -> Evidence | None:  # noqa: ARG002
        """Compare what waits and runs on the page with the requests that had been sent when it was asked for."""
        page, base = ledger.page, ledger.page.base
        if not moved or base is None or now - base.asked_s > READING_S_MAX:
            return None
        inside, queue = page.own + page.others, _queue(ledger, base)
        if queue == 0.0:
            self.fit = page.own
        return Evidence(
            inside=inside,
            ran=base.running,
            queue=queue,
            fits=max(base.running, inside - queue),
            full=page.queue <= ledger.fresh and not (self.honest and late_streams(ledger, now, LATE)),
            round_s=0.0 if base.running >= IN_USE * slots else SETTLES_S,  # `pages/late-2s/whole/200x100ms/20`
        )


class StreamsJudge(Judge):
    """Our own streams: one that is older than twice its predicted first token waits, if none sent later has begun."""

    __slots__ = ("_streamed_s",)
    name = "streams"
    tries = 0.03125  # fewer than are reserved for light callers would not be used (`flood/other-model/200x100ms/20`)

    def __init__(self) -> None:
        self._streamed_s = -math.inf

    def sees(self, ledger: Ledger, now: float) -> bool:
        """True while enough of our requests stream, and some seconds longer."""
        if ledger.shows:
            self._streamed_s = now
        return now < self._streamed_s + STREAMED_KEPT_S

    def weigh(self, ledger: Ledger, work: OwnWork, slots: int, now: float, *, moved: bool) -> Evidence | None:
        """Count the streams that are late, and those that run; nothing while abandoned requests hold servers."""
        if moved or ledger.abandoned(now):
            return None  # they take the places of those that seem to wait
        others = ledger.page.others_running(now)
        inside, room = ledger.sent_there, slots - others
        queue = float(len(late_streams(ledger, now, LATE))) if work.busy else 0.0
        engaged = min(work.ran + min(work.on_the_way, ledger.reserved), inside)
        return Evidence(
            inside=inside + others,
            ran=engaged,
            queue=queue,
            fits=max(work.ran + others, inside + others - queue, IN_USE * slots),
            full=engaged >= FULL_SHARE * min(inside, room),
            round_s=LATE * ledger.speed.base_s,
        )

    def looks_s(self, ledger: Ledger, now: float) -> float:
        """Returns when the first stream without a first token will be late."""
        if not ledger.prefill.leases:
            return math.inf
        first = next(iter(ledger.prefill.leases.values()))
        return max(now, first.dispatched_s + _late_after_s(ledger, first, LATE))


class WholeJudge(Judge):
    """Whole answers: requests that wait add no tokens per second.

    Times alone do not tell: steps of more requests take longer, and so does everything on a busy machine. So the best
    of some looks at one limit is compared with the best at the limit before: a queue slows all of them down, a machine
    some. An increase that brings no more tokens is taken back, and so is a decrease that brings fewer. If all looks at
    a limit are slow, by the fastest time per token, a lower one is tried.
    """

    __slots__ = (
        "_answers", "_beside", "_best", "_fastest_s", "_last", "_looks", "_seconds", "_since_s", "_tokens", "fit",
    )  # fmt: skip
    name = "answers"
    grows = 1.0
    tries = 0.125  # their times vary by more than one request would change them
    more = -1e9  # never: it says itself
    looks = 1  # as many as it needs are in its evidence

    def __init__(self) -> None:
        self.fit = 0
        self._fastest_s = 0.0  # the least time per token
        self._since_s = -math.inf  # answers sent earlier do not count
        self._last = self._best = NO_LOOK  # at the limit before, and at this one
        self._looks = 0  # at this one, until enough
        self._forget()

    def _forget(self) -> None:
        self._answers = self._tokens = self._beside = 0
        self._seconds = 0.0

    def answered(self, lease: Lease, tokens: int, now: float) -> None:
        """Note a whole answer of so many tokens."""
        if lease.dispatched_s >= self._since_s:
            self._answers += 1
            self._tokens += tokens + 1
            self._beside += lease.beside
            self._seconds += now - lease.dispatched_s

    def moved(self, now: float) -> None:
        """Note that the limit moved: answers sent earlier say nothing about it."""
        self._since_s = now
        self._last, self._best, self._looks = self._best, NO_LOOK, 0
        self._forget()

    def weigh(self, ledger: Ledger, work: OwnWork, slots: int, now: float, *, moved: bool) -> Evidence | None:  # noqa: ARG002
        """Compare the tokens per second at this limit with those at the one before."""
        if moved or self._answers < max(WHOLE_MIN, self._beside / max(1, self._answers)):
            return None
        beside, per_token_s = self._beside / self._answers, self._seconds / self._tokens
        self._forget()
        if self._fastest_s == 0.0 or per_token_s < self._fastest_s:
            self._fastest_s = per_token_s
        if beside < IN_USE * slots:
            return None
        if self._looks == WHOLE_LOOKS:
            self._best, self._looks = NO_LOOK, 0
        self._looks += 1
        self._best = rate, there, best_s = max(self._best, (beside / per_token_s, beside, per_token_s))
        last_rate, last, last_s = self._last
        fits, erred = there, False
        if there > last > 0.0 and rate < last_rate * (1.0 + WHOLE_MORE * (there / last - 1.0)):
            fits = max(last, last * rate / last_rate)
        elif there < last and last_rate > rate * (1.0 + WHOLE_MORE * (last / there - 1.0)):
            erred = True
        elif self._looks == WHOLE_LOOKS and self._fastest_s < WHOLE_RAN * best_s:
            fits = max(there * self._fastest_s / best_s, IN_USE * there)
        if (fits < there or erred) and self._looks < WHOLE_LOOKS:
            return None  # it may be the machine
        self._last = NO_LOOK
        if erred:
            self._fastest_s = last_s
        self.fit = int(fits if fits < there else beside)
        return Evidence(beside, fits, there - fits, fits, full=True, round_s=SETTLES_S, erred=erred)


def _queue(ledger: Ledger, reading: Observation) -> float:
    return max(0.0, reading.waiting - ledger.fresh) if reading.queued is None else reading.queued


def _late_after_s(ledger: Ledger, lease: Lease, times: float) -> float:
    return max(times * (1.5 * lease.queued_tokens / ledger.speed.rate + ledger.speed.base_s), LATE_S_MIN)


def late_streams(ledger: Ledger, now: float, times: float) -> list[Lease]:
    """Returns the streams that should have begun by now. One that was overtaken waits for no server."""
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
