"""An engine's page, and how far it counts.

The page may open an endpoint and never close it against the evidence of our own requests. It reports memory in use,
others' requests, and a queue. A page that is gone or old counts for nothing, and so does one that our own requests
contradict: it stood still while answers went on, it shows less than half of ours, or requests that were sent against it
began in time. That is one doubt, which ends when some readings in a row agree, or after half a minute; only tries can
contradict a page for longer. If nothing but the page keeps an endpoint closed while requests wait for it, one request
is sent anyway after two seconds, and twice as many for each that begins in time; so a false page costs seconds, and a
true one a request now and then: each that begins late doubles the pause (half-open circuit breakers do the same).
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum

from penstock.core.values.observation import Observation

MISSED = 2  # one reading that fails may be a busy loop, ours or the engine's
FROZEN_S = 30.0  # longer than the longest standstill measured on a busy engine (11 s), shorter than patience
STILL_S = 3.0  # a page may be written every so many steps only: SGLang's every 40
SHORT_SHARE = 0.5  # of ours that are surely there; a page that shows less is of another engine, or of another time
READINGS = 16  # a page may be so many readings late, and show ours that have ended
OURS_MIN = 4  # requests that may come or go while the page is asked for
TRY_S = 2.0  # an engine step with a long prompt takes that long, and patience ends soon after
TRY_S_MAX = 30.0
CONTRADICTED = 8  # the width beyond which requests that began in time contradict the page: 1, 2, 4, 8, so four in a row
DOUBTED_S = 30.0  # since it last stood still or showed too little: nothing is doubted for good
AGREES = 10  # consecutive readings that agree


class Standing(StrEnum):
    """How far a page counts: one closed list."""

    NONE = "none"  #: it was never read
    BELIEVED = "believed"
    OLD = "old"  #: the last one was read too long ago
    GONE = "gone"
    STILL = "standing_still"  #: it stood still while answers went on
    CONTRADICTED = "contradicted"  #: it showed a queue, and requests began in time
    SHORT = "short"  #: it shows less than half of our requests


def why(standing: Standing, base: Observation | None, now: float) -> str:
    """Why the page does not count, in a sentence; empty if it is believed. `base`: the last reading that changed."""
    if standing is Standing.BELIEVED:
        return ""
    if standing is Standing.GONE:
        return "its page cannot be read, so its last numbers do not count"
    if base is None:
        return "it reports no load, so only our own requests there are known"
    seen = f"{base.running:g} running and {base.waiting:g} waiting"
    if standing is Standing.STILL:
        return f"its page stood still, while answers went on, and last changed {now - base.asked_s:.0f} s ago ({seen})"
    if standing is Standing.CONTRADICTED:
        return f"its page reports {seen}, but requests sent there begin at once"
    if standing is Standing.SHORT:
        return f"its page showed less than half of our own requests there, lately; now it reports {seen}"
    return f"it last showed anything new {now - base.asked_s:.0f} s ago ({seen})"


class EnginePage:
    """The page of one engine."""

    __slots__ = (
        "_agrees", "_alive_since_s", "_doubt", "_doubt_until_s", "_misses", "_pause_s", "_recent", "_sure_until_s",
        "_try_s", "_width", "asked_s", "base", "closed_s", "kv_moved_s", "last", "moved_s", "no_page", "others",
        "outstanding", "own", "queue", "read_every_s", "stale_after_s", "worked_s",
    )  # fmt: skip

    def __init__(self, stale_after_s: float) -> None:
        self.stale_after_s = stale_after_s
        self.base: Observation | None = None  #: the last reading that moved
        self.last: Observation | None = None  #: the same, also if the page is gone: identifies the process
        self.asked_s = -math.inf  #: when the last reading was asked for, moved or not
        self.moved_s = -math.inf  #: and the last one that moved,
        self.kv_moved_s = -math.inf  #: and the last one that showed other memory,
        self.worked_s = -math.inf  #: and the last one that showed more than another queue
        self.read_every_s = 0.0  #: how often it is read, about
        self.no_page = False  #: something answered when last asked for the page, and had none
        self.queue = 0.0  #: requests that wait for capacity, not for memory or an adapter that is being fetched
        self.own = 0  #: requests of ours that had been sent when the last reading that moved was asked for
        self.others = 0.0  #: requests beyond these that the readings show
        self._recent: deque[float] = deque(maxlen=READINGS)  # ours, as of the last readings
        self._doubt: Standing | None = None  # how our own requests contradict it, until
        self._doubt_until_s = math.inf
        self._agrees = 0  # so many readings in a row agreed with them
        self._misses = 0
        self._alive_since_s = math.inf  # since when answers have gone on and the page has not moved
        self._sure_until_s = -math.inf  # its validity without further readings
        self.closed_s: float | None = None  #: since when only the page keeps the endpoint closed while requests wait
        self.outstanding = 0  #: requests sent against the page that have not begun
        self._width = 1  # their concurrency
        self._pause_s = TRY_S
        self._try_s = math.inf  # when the next one may be sent

    # --- readings -------------------------------------------------------------------------------------------------

    def read(self, reading: Observation, *, life_s: float) -> bool:
        """Take in a reading. Returns True if it moved. `life_s`: when an answer last went on."""
        previous_s, self.asked_s = self.asked_s, reading.asked_s
        if previous_s > -math.inf:
            self.read_every_s = max(0.9 * self.read_every_s, reading.asked_s - previous_s)
        self._misses, self.no_page = 0, False
        self._sure_until_s = -math.inf
        base = self.base
        if base is not None and reading.same_as(base):
            if previous_s < life_s <= reading.asked_s:
                self._alive_since_s = min(self._alive_since_s, previous_s)
            if base.progress is not None and self.still_s >= STILL_S:
                self._doubts(Standing.STILL)
            return False
        counted = base is None or (reading.progress, reading.running, reading.kv_usage) != (
            base.progress, base.running, base.kv_usage
        )  # fmt: skip
        if counted:
            self.worked_s = reading.asked_s
        if base is None or reading.kv_usage != base.kv_usage:
            self.kv_moved_s = reading.asked_s
        self._alive_since_s = math.inf
        self.base = self.last = reading
        self.queue = reading.waiting if reading.queued is None else reading.queued
        self.moved_s = reading.asked_s
        return True

    def compare(self, *, own: int, inside: int, during: int, tries_sizes: bool) -> None:
        """Hold the reading that just moved against `own` requests that had been sent when it was asked for.

        `inside`: those of them that the engine surely knows. `during`: sent while it was asked for, so it may show
        them. `tries_sizes`: the endpoint's slots are unknown.
        """
        base = self.base
        assert base is not None
        shown = base.running + base.waiting
        self._recent.append(float(own))
        self.own = own
        # If we sometimes send more than fits, a late page shows ended ones of ours.
        self.others = max(0.0, shown - max(own + during, max(self._recent) if tries_sizes else 0.0))
        if inside >= OURS_MIN and shown < SHORT_SHARE * inside:
            self._doubts(Standing.SHORT)
        full = base.kv_usage is not None and base.kv_usage >= 0.9
        likely = abs(shown - own) <= max(OURS_MIN, 0.25 * own) and self.queue <= OURS_MIN and not full
        self._agrees = self._agrees + 1 if likely else 0
        if self._doubt and (self._agrees >= AGREES or base.asked_s >= self._doubt_until_s):
            self._doubt = None
            self.opens()

    def _doubts(self, why: Standing) -> None:
        """Let it count for nothing until it agrees with our own requests, or for a while if no try contradicted it."""
        self._doubt, self._agrees, self._sure_until_s = why, 0, -math.inf
        self._doubt_until_s = math.inf if why is Standing.CONTRADICTED else self.asked_s + DOUBTED_S

    def missed(self, *, answered: bool = False) -> bool:
        """Note that a reading failed; `answered`: although the server answered. Returns True if the page is gone."""
        self.no_page = answered
        self._misses += 1
        if self._misses >= MISSED:
            self.forget()
        return self._misses >= MISSED

    def forget(self) -> None:
        """The page no longer counts."""
        self.base = None
        self.queue = self.others = 0.0
        self._recent.clear()
        self._sure_until_s = -math.inf
        self.opens()

    def standing(self, now: float) -> Standing:
        """Returns how far the page counts."""
        if self._misses >= MISSED:
            return Standing.GONE
        if self.base is None:
            return Standing.NONE
        return self._doubt or (Standing.BELIEVED if self.credible(now) else Standing.OLD)

    def credible(self, now: float) -> bool:
        """True if the last reading counts: it is recent and uncontradicted."""
        if now < self._sure_until_s:
            return True
        base = self.base
        if base is None or self._doubt:
            return False
        stale_s, frozen_s = self.asked_s + self.stale_after_s, self.moved_s + FROZEN_S
        if now >= stale_s:
            return False
        if now < frozen_s:
            self._sure_until_s = min(stale_s, frozen_s)
            return True
        return base.running + base.waiting == 0

    @property
    def still_s(self) -> float:
        """How long it has stood still while answers went on; minus infinity if it has not."""
        return self.asked_s - self._alive_since_s

    def changes_s(self, now: float) -> float:
        """Returns when the page's validity ends or changes by time."""
        frozen_s = self.moved_s + FROZEN_S
        return min(self.asked_s + self.stale_after_s, frozen_s if frozen_s > now else math.inf)

    def judged_stale_after(self, stale_after_s: float) -> None:
        """Use readings for `stale_after_s` from now on."""
        self.stale_after_s, self._sure_until_s = stale_after_s, -math.inf

    def others_running(self, now: float) -> float:
        """Returns how many requests of others surely run there."""
        return min(self.base.running, self.others) if self.base is not None and self.credible(now) else 0.0

    # --- requests that are sent against it ------------------------------------------------------------------------

    def closes(self, now: float) -> None:
        """Note that nothing but the page keeps the endpoint closed while a request waits."""
        if self.closed_s is None:
            self.closed_s, self._try_s = now, now + self._pause_s

    def opens(self) -> None:
        """Note that the page keeps the endpoint closed no longer."""
        self.closed_s, self._try_s = None, math.inf
        self._width, self._pause_s = 1, TRY_S

    @property
    def try_s(self) -> float:
        """When the next request may be sent against the page; infinity while enough of them have yet to begin."""
        return self._try_s if self.closed_s is not None and self.outstanding < self._width else math.inf

    def may_try(self, now: float, stood_since_s: float) -> bool:
        """True if a request may be sent against the page, which must have stood still for as long as a first try takes.

        `stood_since_s`: since when; minus infinity if it need not.
        """
        return now >= self.try_s and now >= stood_since_s + TRY_S

    def began(self, *, in_time: bool, now: float) -> bool:
        """Note that a request that was sent against the page began. Returns True if that contradicts the page."""
        if self.closed_s is None:
            return False
        if not in_time:
            self._width, self._pause_s = 1, min(2.0 * self._pause_s, TRY_S_MAX)
            self._try_s = now + self._pause_s
            return False
        self._width *= 2
        self._pause_s = TRY_S
        if self._width <= CONTRADICTED:
            return False
        self._doubts(Standing.CONTRADICTED)
        self.opens()
        return True
