"""How many requests an endpoint is sent at a time, where nobody says: found by trying (docs/design.md#slots).

Additive increase, multiplicative decrease on what the engine's queue shows (D. Chiu, R. Jain 1989; as TCP does with
loss). Two things show an engine's size: what it is seen to run, it can run; and what waits in it for longer than a step
of its own, it can't. Two witnesses tell of both: our own answers as they come (`running_evidence.py`), and the engine's
gauges, as far as they are believed (`gauge_belief.py`). So:

- *Growth needs proof*: as many seen running as there are slots, and no queue. A gauge that stands still, or was read
  before a burst had reached the engine, shows fewer, whatever it says of the queue. So there is never more than one
  step beyond what ran. A step is half of what there is until the engine was first seen to queue (an engine of 512 is
  found in a few round trips), then one, and twice the last where that was not too much. Until then it is enough that
  all who were let in run or are on their way: where a part of the slots is kept free, or answers are of a few tokens,
  all of them never run.
- *Shrinking needs a queue that stays.* What waits beyond those expected is added up from one look to the next (the
  cumulative sum test of E. S. Page, 1954), for each witness by itself. A long queue is believed at the second look, one
  request at the third or fourth. Never fewer than were seen running meanwhile: a queue of others' requests must not
  take our slots away.
- *Who tried in vain waits*, twice as long each time: each try puts a request into the engine's queue for as long as it
  takes to see it there, and others wait behind it.

Latency gradients (Vegas, Gradient2) were not taken: an LLM's time to first token varies with the prompt far more than
with the load, and they were measured to throttle to a quarter of the slots.
"""

from __future__ import annotations

from enum import IntEnum

SLOTS_MIN = 2
SLOTS_MAX = 4096  # no engine runs more; a bound for gauges that always say zero
SHRINK = 0.75  # at most by a quarter at a time: gauges late by a step or two may show less running than runs
STEP_SHARE = 0.5
FULL_SHARE = 0.9  # of those let in, where the size is unknown: some are always on their way
ON_THE_WAY_MAX = 2.0  # of the slots, where it is known
EXCESS_MIN = 0.5  # half-way between none and one that waits
EXCESS_PER_READING_MAX = 0.75  # no single reading shows that a queue stays
EXCESS_AGREED_MAX = 1.5  # two witnesses do
EXCESS_MAX = 1.0
HOLD_S = 5.0  # before the next try: some readings
HOLD_S_MAX = 60.0
SIZE_KNOWN_S = 300.0  # since it last queued: engines are replaced by larger ones, and memory frees


class Witness(IntEnum):
    """Who tells."""

    GAUGES = 0  #: the engine: ours and others' requests, as of some time ago, if it is so
    ANSWERS = 1  #: our own streams: exactly, at once, and nothing of others (`running_evidence.py`)


class _Queue:
    """What one witness says waits in the engine beyond those expected, added up over what it last told."""

    __slots__ = ("excess", "ran")

    def __init__(self) -> None:
        self.excess = 0.0
        self.ran = 0.0  # the most that was seen running while these waited

    def add(self, waiting: float, arrivals: float, running: float, *, most: float) -> None:
        excess = waiting - arrivals - EXCESS_MIN * (1.0 + arrivals)
        self.excess = max(0.0, self.excess + min(excess, most))
        self.ran = max(self.ran, running) if self.excess > 0.0 else 0.0


class AdaptiveSlots:
    """The limit of one endpoint. Fed with each reading that moved and each look at what our own answers show; answers
    with the slots to use.
    """

    __slots__ = ("_first", "_hold_s", "_hold_until_s", "_known_until_s", "_queues", "_ran", "_step", "_tries", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = self._first = slots
        self._step = self._step_max()
        self._queues = [_Queue(), _Queue()]  # by witness
        self._hold_s = HOLD_S
        self._hold_until_s = 0.0
        self._tries = False  # it grew since it last shrank
        self._ran = 0.0  # as many were seen at work when it last grew
        self._known_until_s = 0.0

    def knows(self, now: float) -> bool:
        """True if the engine was recently seen to queue, so that its size is about known."""
        return now < self._known_until_s

    def suspects(self, witness: Witness) -> bool:
        """True if the last that a witness told looked like a queue. Meanwhile the limit does not grow."""
        return self._queues[witness].excess > 0.0

    def unlearn(self) -> None:
        """Start again: what showed the engine's size was not true."""
        self.slots = max(self.slots, self._first)
        self._known_until_s = self._hold_until_s = 0.0
        self._hold_s, self._step = HOLD_S, self._step_max()
        self._queues = [_Queue(), _Queue()]

    def observed(
        self,
        *,
        at_s: float,
        running: float,
        waiting: float,
        arrivals: float,
        load: float,
        let: float,
        on_the_way: float = 0.0,
        ran: float = 0.0,
        witness: Witness = Witness.GAUGES,
        agreed: bool = False,
        may_grow: bool = True,
        step_share: float = STEP_SHARE,
    ) -> int:
        """Take in what a witness tells of a moment, and return the slots to use from now on.

        `running` and `waiting` count ours and others'. `arrivals` is how many are expected to wait only because they
        came since the engine's last step, `load` all that is believed to be on it now, and `let` how many were let to
        it, where more wait for slots: fewer than there are slots where some are kept free. `on_the_way` are those that
        do not run yet only because it takes time to begin, `ran` the most that ran at once recently. `agreed`: the
        other witness shows a queue as well.
        """
        queue = self._queues[witness]
        most = EXCESS_AGREED_MAX if agreed else EXCESS_PER_READING_MAX
        queue.add(waiting, arrivals, max(running, ran), most=most)
        if queue.excess > EXCESS_MAX:
            self._shrink(at_s, load, queue.ran)
        elif may_grow and max(each.excess for each in self._queues) == 0.0:
            known = self.knows(at_s)
            missing = min(2.0 * arrivals, ON_THE_WAY_MAX) if arrivals else float(on_the_way >= 1.0)
            # One is always on its way, but as many as ran before the last try are no proof that it was not too much.
            full = max(self.slots - missing, self._ran + 1.0) if known else FULL_SHARE * min(let, self.slots)
            engaged = running if known else running + on_the_way
            if at_s >= self._hold_until_s and engaged >= full:
                self._grow(engaged, ran, step_share)
        return self.slots

    def _shrink(self, at_s: float, load: float, ran: float) -> None:
        self.slots = min(max(SLOTS_MIN, int(ran), int(min(self.slots, load) * SHRINK)), SLOTS_MAX)
        self._queues = [_Queue(), _Queue()]
        self._step = 1
        self._known_until_s = at_s + SIZE_KNOWN_S
        self._hold_until_s = at_s + self._hold_s
        if self._tries:
            self._hold_s = min(2.0 * self._hold_s, HOLD_S_MAX)
        self._tries = False
        self._ran = 0.0

    def _grow(self, running: float, ran: float, share: float) -> None:
        self._ran = max(running, min(ran, self.slots))
        if self._step > 1:  # the last step was not too much
            self._hold_s = HOLD_S
        seen = max(int(running * (1.0 + share)), int(running) + 1)
        step = self._step if self._step < self._step_max() else max(1, int(self.slots * share))
        self.slots = min(self.slots + step, max(self.slots, seen), SLOTS_MAX)
        self._step = min(2 * self._step, self._step_max())
        self._tries = True

    def _step_max(self) -> int:
        return max(1, int(self.slots * STEP_SHARE))
