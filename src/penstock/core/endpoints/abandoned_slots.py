"""In which slots does an engine still work for nobody, because the request was given up on our side?

A client that hangs up gives its lease back at once, its engine's slot comes later. Measured: vLLM ends such a request
with the step it is in (13 to 34 ms). llama.cpp does so for a stream that is being answered (10 to 100 ms), but computes
a prompt to its end first, and an answer that does not stream to its end, too (docs/decisions/0024). What is sent into
such a slot waits inside the engine, so until then the slot counts as taken: until a reading that was asked for since
shows how many really run, or for some time where there is none.
"""

from __future__ import annotations

import math

from penstock.core.endpoints.lease import Lease

STEPS = 2.0  # the one that it is in, and the one that has begun when the hang-up arrives
STEPS_S_MIN = 0.05  # these, and the way there


class AbandonedSlots:
    """Slots of one engine that are not free yet."""

    __slots__ = ("_slots", "lingers")

    def __init__(self) -> None:
        self.lingers = False  #: the engine goes on with what nobody waits for, unless it is a stream that has begun
        self._slots: list[tuple[float, float]] = []  # when each was given up, and until when it counts at most

    def note(self, lease: Lease, now: float, *, step_s: float, told_within_s: float) -> None:
        """Count the slot of a request that was sent to the engine and is abandoned now.

        `step_s` is what an engine step takes now, `told_within_s` for how long at most a reading is believed.
        """
        ends = lease.streamed and lease.first_token_s is not None
        lasts_s = told_within_s if self.lingers and not ends else max(STEPS_S_MIN, STEPS * step_s)
        self._slots.append((now, now + lasts_s))

    def read(self, asked_s: float) -> None:
        """Forget the slots that were abandoned before `asked_s`: a reading asked for then shows how many really run."""
        if self._slots:
            self._slots = [slot for slot in self._slots if slot[0] >= asked_s]

    def no_more_than(self, slots: int) -> None:
        """Keep at most `slots`, the latest ones: all other slots are seen to be at work for somebody."""
        if len(self._slots) > slots:
            del self._slots[: len(self._slots) - max(0, slots)]

    def count(self, now: float) -> int:
        """Returns how many slots are not free yet."""
        if not self._slots:
            return 0
        self._slots = [slot for slot in self._slots if slot[1] > now]
        return len(self._slots)

    def next_s(self, now: float) -> float:
        """Returns when time alone frees the next slot; infinity if none is left."""
        return min([until_s for _, until_s in self._slots if until_s > now], default=math.inf)
