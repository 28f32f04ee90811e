"""How many requests does an engine run at once, as our own answers show, whatever its gauges say?

A stream that has begun and has not ended holds a slot. A request that ends held one in its last step. So those that
run and those that ended less than a step ago ran at the same time: an engine is proven to run so many. It is never too
high a figure, and where all slots are full it is the right one, for answers of one token as well as for long ones. And
a stream that was sent and has not begun, though others took a fraction of that time to begin, waits inside the engine.

Engines begin with what came first. So where a stream has begun, all that was sent before it runs, too, also what does
not stream. Where nothing streams, only ends show anything, and later: one that took no longer for its tokens than it
takes where nobody waits ran from the beginning, beside all who were there when it was sent; of those who were there
when one was sent that took twice as long, about half ran.

An engine's gauges tell of others' requests, too, but late, or not at all, or something else (`gauge_belief.py`).
"""

from __future__ import annotations

import math
from collections import deque
from itertools import takewhile

from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.prefill_backlog import PrefillBacklog

WINDOW_STEPS = 0.75  # of a step: less than one, so that those who ended in it ran at once
STEPS_TO_BEGIN = 2.0  # that a first token takes at most where nothing waits: the rest of one step, and a whole one
ENDS_MAX = 8192  # remembered: no engine ends more requests in one step
OVERDUE = 3.0  # times as long as first tokens usually take; up to twice as long is where in a step a request came
SURELY_OVERDUE = 10.0  # a long prompt among short ones takes that long to compute
OVERDUE_S_MIN = 0.05  # pauses of our own loop and of the network are no queue
RATE_SHARE = 0.3  # of a look's ends a second in what is kept of them: several looks smooth the steps
LEARN = 0.1  # of the difference: some ten first tokens show what is usual
BEST_KEPT_S = 5.0  # some seconds of a mix of requests: the most at work varies with it
STANDS = 0.95  # of the most that ran recently: those that run stand still there
ENDS_MIN = 3  # whole answers that a look needs: what a token takes varies
ENDS_SHARE = 0.125  # and of those there
ENDS_UNTOLD_MIN = 12  # where it is not told how long they are, which varies more
ENDS_UNTOLD_SHARE = 0.5  # and of those there, of whom the short ones end first
LEARN_LOOK = 0.5  # of the difference: two or three looks show what is usual
ALL_RAN = 0.93  # of those there, by the time it took: a queue of a few more is not told from chance
ALL_RAN_UNTOLD = 0.67  # where it is not told how long they are: their lengths alone vary as much
WAITED = 1.5  # times as long as its tokens take: a whole answer has waited, or others slow it down
WHOLE_TOKENS_MIN = 8  # an answer of fewer may well come in one piece
WHOLE_SHARE = 0.02  # of its time: the first token came with the last one
WHOLE_AFTER = 3  # such answers in a row


class RunningEvidence:
    """What the answers of one engine process show."""

    __slots__ = (
        "_answers", "_begun_sent_s", "_beside", "_best", "_best_before", "_best_s", "_ended", "_ends", "_looked_s",
        "_peak", "_tokens", "_took_s", "_unshown", "_untold", "_whole", "_whole_running", "_whole_step_s", "_within",
        "ends_per_s", "running", "shown", "step_s", "usual_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self._answers = self._untold = self._within = 0  # whole answers since the last look, those without a length,
        self._took_s = self._beside = 0.0  # what they took, and how many were there when they were sent
        self._tokens = 0  # of them, and one each
        self._whole_step_s = 0.0  # what a token takes in whole answers where nobody waits, the way there among it
        self._begun_sent_s = -math.inf  # when the stream was sent that was sent last of those that have begun
        self.running = 0  #: that have begun and have not ended, as streams show
        self._unshown: dict[int, float] = {}  # sent, do not stream, and no stream sent after them has begun: since when
        self._whole_running: set[int] = set()  # do not stream, and one sent after them has
        self.shown = 0  #: how many were ever seen to begin, or to come whole
        self.step_s = 0.0  #: what an output token takes now; 0 while unknown
        self.usual_s = math.inf  #: what a first token takes where nothing waits, as far as is known
        self.ends_per_s = 0.0  #: requests that end a second, recently
        self._ended = 0  # since the last look
        self._looked_s = 0.0
        self._ends: deque[float] = deque(maxlen=ENDS_MAX)
        self._peak = 0
        self._best = self._best_before = 0  # the most at work in this while and in the one before
        self._best_s = -math.inf
        self._whole = 0  # answers in a row that were asked for as streams and came in one piece

    # --- what happens -------------------------------------------------------------------------------------------

    def sent(self, lease: Lease, leases: int) -> None:
        """Note that one more request was sent, so that `leases` are there now.

        While no more are there than recently ran at once, none waits for a slot, so what first tokens take then is what
        is usual.
        """
        lease.beside = leases
        lease.within_proven = leases <= self.most
        if not lease.streamed:
            self._unshown[lease.serial] = lease.dispatched_s

    def begun(self, lease: Lease, now: float, *, tells: bool = True) -> None:
        """The first token of a stream came. `tells`: it may say what is usual."""
        self._count(lease)
        self.shown += 1
        self._note(now)
        self._begun_sent_s = max(self._begun_sent_s, lease.dispatched_s)
        if not tells:
            return
        took_s = now - lease.dispatched_s
        if self.usual_s == math.inf:
            self.usual_s = took_s
        elif took_s < self.usual_s or lease.within_proven:
            self.usual_s += LEARN * (took_s - self.usual_s)

    def _count(self, lease: Lease) -> None:
        """It runs, and with it what was sent before it."""
        if not lease.streamed:
            self._unshown.pop(lease.serial, None)
        if lease.serial in self._whole_running:
            self._whole_running.remove(lease.serial)
        else:
            self.running += 1
        while self._unshown:
            serial = next(iter(self._unshown))  # they stand in dispatch order
            if self._unshown[serial] >= lease.dispatched_s:
                break
            del self._unshown[serial]
            self._whole_running.add(serial)
            self.running += 1

    def ended(self, lease: Lease, now: float) -> None:
        """Note that a request is over. A stream that never began was not seen to run."""
        if lease.first_token_s is not None:
            self.running -= 1
        elif lease.streamed:
            return
        elif lease.serial in self._whole_running:
            self._whole_running.remove(lease.serial)
            self.running -= 1
        else:
            self._unshown.pop(lease.serial, None)
        self._ended += 1
        self._ends.append(now)
        self._note(now)

    def answered(self, lease: Lease, tokens: int, now: float) -> None:
        """Note a complete answer of so many `tokens`, or 0 where that is not told."""
        began_s = lease.first_token_s
        in_one_piece = began_s is None or now - began_s <= WHOLE_SHARE * (now - lease.dispatched_s)
        if began_s is None or (in_one_piece and not lease.streamed):
            self._came_whole(lease, tokens, now)
        elif in_one_piece and (tokens >= WHOLE_TOKENS_MIN or not tokens):
            self._whole = min(self._whole + 1, WHOLE_AFTER)
            if self._whole == WHOLE_AFTER:
                self.usual_s = math.inf  # what was learned is how long whole answers take
        elif tokens:
            self._whole = 0
            if tokens > 1:
                self._learn_step((now - began_s) / (tokens - 1))

    def _came_whole(self, lease: Lease, tokens: int, now: float) -> None:
        took_s = now - lease.dispatched_s
        if tokens:
            self._learn_step(took_s / (tokens + 1))
        self._answers += 1
        self.shown += lease.first_token_s is None
        self._untold += not tokens
        self._took_s += took_s
        self._tokens += tokens + 1
        self._beside += lease.beside
        self._within += lease.within_proven

    def _learn_step(self, sample_s: float) -> None:
        if self.step_s == 0.0:
            self.step_s = sample_s
        else:
            self.step_s += LEARN * (sample_s - self.step_s)

    def _note(self, now: float) -> None:
        self._peak = max(self._peak, self.running + self.ended_lately(now))

    # --- what it shows ------------------------------------------------------------------------------------------

    @property
    def streams(self) -> bool:
        """Whether answers that are asked for as streams come as such."""
        return self._whole < WHOLE_AFTER

    def ended_lately(self, now: float) -> int:
        """Returns how many requests ended less than a step ago."""
        step_s = self.step_s or (self.usual_s / STEPS_TO_BEGIN if self.usual_s < math.inf else 0.0)
        since_s, ends = now - WINDOW_STEPS * step_s, self._ends
        while ends and ends[0] <= since_s:
            ends.popleft()
        return len(ends)

    def look(self, now: float) -> int:
        """Returns the most that was seen at work since the last look, and starts the next."""
        peak, self._peak = max(self._peak, self.running), self.running
        if now > self._looked_s:
            per_s = self._ended / (now - self._looked_s)
            self.ends_per_s += RATE_SHARE * (per_s - self.ends_per_s)
        self._ended, self._looked_s = 0, now
        if now >= self._best_s + BEST_KEPT_S:
            self._best_before, self._best, self._best_s = self._best, 0, now
        self._best = max(self._best, peak)
        return peak

    def look_whole(self, now: float) -> tuple[float, float] | None:
        """Returns how many ran at once, judged by how long whole answers took, and of how many that were there.

        None: too few answers have come.
        """
        answers = self._answers
        if answers < (ENDS_UNTOLD_MIN if self._untold else ENDS_MIN):
            return None
        took_s, beside = self._took_s / self._tokens, self._beside / answers
        if answers < (ENDS_UNTOLD_SHARE if self._untold else ENDS_SHARE) * beside:
            return None
        usual_s = self._whole_step_s
        if usual_s == 0.0:
            self._whole_step_s = took_s
        elif took_s < usual_s or 2 * self._within >= answers:
            self._whole_step_s += LEARN_LOOK * (took_s - usual_s)
        share = min(1.0, usual_s / took_s) if usual_s else 1.0
        ran = beside if share >= (ALL_RAN_UNTOLD if self._untold else ALL_RAN) else share * beside
        # Of answers whose length is told the lesser figure is proven: else a queue too short to be told from chance
        # would become usual, and then a longer one.
        self._peak = max(self._peak, int(ran if self._untold else share * beside))
        self._answers = self._untold = self._within = 0
        self._took_s = self._beside = 0.0
        self._tokens = 0
        self.look(now)
        return ran, beside

    def whole_in_s(self, tokens: int, step_s: float) -> float | None:
        """Returns what a whole answer takes at most if it has not waited; None: nothing tells.

        `step_s` is what a step of its engine takes, or 0 where that is not known.
        """
        if not tokens:
            return OVERDUE * self._whole_step_s or None
        steps_s = [each_s for each_s in (step_s, self._whole_step_s) if each_s > 0.0]
        return WAITED * (tokens + 1) * min(steps_s) if steps_s else None

    @property
    def on_the_way(self) -> float:
        """How many have not begun at any moment only because a first token takes its time."""
        return self.ends_per_s * self.usual_s if self.usual_s < math.inf else 0.0

    def stands(self, peak: int) -> bool:
        """True if `peak` requests are as many as were recently seen at work at all: the number stands still."""
        return peak >= STANDS * max(self._best, self._best_before)

    @property
    def most(self) -> int:
        """The most that was seen at work recently, up to now."""
        return max(self.best(), self._peak)

    def best(self) -> int:
        """Returns the most that was recently seen at work."""
        return max(self._best, self._best_before)

    def late_after_s(self, *, sure: bool = False) -> float:
        """Returns after how long a first token is overdue; infinity while it is not known what is usual."""
        return max((SURELY_OVERDUE if sure else OVERDUE) * self.usual_s, OVERDUE_S_MIN)

    def late(self, prefill: PrefillBacklog, now: float, *, sent_before_s: float) -> int:
        """Returns how many streams that were sent before a time should have begun by now, whatever explains it."""
        return len(self._next_before(prefill, min(now - self.late_after_s(), sent_before_s)))

    def _next_before(self, prefill: PrefillBacklog, before_s: float) -> list[Lease]:
        """The streams sent before a time whose turn it is. What a later one has overtaken waits for no slot."""
        sent = takewhile(lambda x: x.dispatched_s < before_s, prefill.leases.values())  # they stand in dispatch order
        return [lease for lease in sent if lease.streamed and lease.dispatched_s >= self._begun_sent_s]

    def overdue(self, prefill: PrefillBacklog, now: float, *, sure: bool = False) -> int:
        """Returns how many streams should have begun, so that they wait for a slot; 0 if prompts explain the wait.

        `sure`: be slower to say so, because another witness says that none waits.
        """
        late = self._next_before(prefill, now - self.late_after_s(sure=sure))
        return len(late) if late and not prefill.explains(now - late[0].dispatched_s) else 0
