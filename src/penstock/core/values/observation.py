"""One reading of an engine's load, or a part of one."""

from __future__ import annotations

import math

import msgspec

REQUESTS_SANE_MAX = 1e6  # no engine holds more; a higher value is discarded
KV_USAGE_SANE_MAX = 1.5  # rounding may carry a share past 1; values far beyond are discarded


class Observation(msgspec.Struct, frozen=True, gc=False):
    """One reading of an engine's gauges. `asked_s` is when it was asked for, not when it was answered."""

    asked_s: float
    running: float
    waiting: float
    kv_usage: float | None = None  #: 0..1
    kv_capacity_tokens: float | None = None
    progress: float | None = None  #: sum of the engine's counters; moves when a step ended, falls at a restart
    started_s: float | None = None  #: the engine process's start, wall clock; a change means a restart
    pace_s_total: float | None = None  #: counters: seconds spent between output tokens, in all,
    pace_tokens_total: float | None = None  #: and between how many
    first_token_s_total: float | None = None  #: counters: seconds that requests waited for their first tokens, in all,
    first_tokens_total: float | None = None  #: and of how many requests, whether they stream or not
    in_all: float | None = None  #: requests in its HTTP server, running or not: moves at once, and may be partial
    adapters_held: float | None = None  #: how many LoRA adapters it has in memory at most
    adapters_running: tuple[str, ...] = ()  #: those that its requests use now
    queued: float | None = None  #: of those waiting, how many a finished step left without room; None: not told apart
    prefix_hit_ratio: float | None = None  #: its own count of cached prompt tokens; only for display
    refused: float | None = None  #: requests that it refused for the bounds of its own queue, in all; only for display

    def sane(self) -> bool:
        """True if these can be an engine's numbers at all."""
        kv_usage = self.kv_usage or 0.0
        gauges = (self.running, self.waiting, kv_usage, self.kv_capacity_tokens or 0)
        rest = (self.progress or 0.0, self.started_s or 0.0, self.in_all or 0.0, self.queued or 0.0)
        finite = all(0.0 <= number < math.inf for number in gauges + rest)
        return finite and kv_usage <= KV_USAGE_SANE_MAX and self.running + self.waiting <= REQUESTS_SANE_MAX

    def same_as(self, other: Observation) -> bool:
        """True if nothing moved between two readings."""
        mine = (self.running, self.waiting, self.kv_usage, self.progress)
        return mine == (other.running, other.waiting, other.kv_usage, other.progress)


class Glimpse(msgspec.Struct, frozen=True, gc=False):
    """A part of a reading, such as comes with an answer. None: not reported."""

    asked_s: float
    waiting: float | None = None
    kv_usage: float | None = None
