"""How many requests an endpoint is sent at a time, where nobody says: found by trying (DESIGN §4.6).

Additive increase, multiplicative decrease on what the engine's queue shows (D. Chiu, R. Jain 1989; as TCP does with
loss). While all slots are in use and the engine queues nothing worth mentioning, there may be room for more: grow.
When it queues more than that on two readings between which its counters moved, there is not: shrink. One reading is not
enough, for `waiting` also counts what arrived since the last engine step; and what arrives in a step is expected to be
there at its end, so it is allowed for. What is worth mentioning is more than one: admission itself keeps the engine's
queue below `max_engine_waiting`, so a larger threshold would never be reached and the slots would stay too many (with
the largest `max_engine_waiting` as the threshold, light tenants' p99 was seen at three times that alone; see decision
0006).

Until the engine was first seen to queue, growth is by half, so that an engine of 256 is found in a few readings; after
that by one. Latency gradients (Vegas, Gradient2) were not taken: an LLM's time to first token varies with the prompt
far more than with the load, and they were measured to throttle to a quarter of the slots.
"""

from __future__ import annotations

SLOTS_MIN = 2
SLOTS_MAX = 4096  # no engine runs more; a bound for gauges that always say zero
SHRINK = 0.9
GROW_FAST = 0.5
ENGINE_WAITING_MAX = 1.0  # requests in the engine's queue that mean nothing yet
ARRIVALS_MAX = 2.0  # allowed for what came during a step; a queue of more than both together is one
FULL_SHARE = 0.9  # of the slots in use (or kept in reserve) counts as all in use


class AdaptiveSlots:
    """The limit of one endpoint. Fed with each reading that moved; answers with the slots to use."""

    __slots__ = ("_crowded", "_queued_before", "slots")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._crowded = 0  # readings in a row with too long an engine queue
        self._queued_before = False  # the engine was seen to queue: its size is near

    def observed(self, *, waiting: float, load: float, waiting_max: float) -> int:
        """A reading that moved. `waiting` is the engine's queue, `load` all that is on it, ours and others'.

        `waiting_max` is what may wait there without meaning anything.
        """
        if waiting > waiting_max:
            self._crowded += 1
            if self._crowded >= 2:
                self._crowded = 0
                self._queued_before = True
                self.slots = max(SLOTS_MIN, int(min(self.slots, load) * SHRINK))
            return self.slots
        self._crowded = 0
        queues = waiting > waiting_max - ENGINE_WAITING_MAX  # one that waits is no reason to shrink, nor to grow
        if not queues and load >= self.slots * FULL_SHARE:
            step = 1 if self._queued_before else max(1, int(self.slots * GROW_FAST))
            self.slots = min(SLOTS_MAX, self.slots + step)
        return self.slots
