"""What is an engine's word worth: are its gauges believed, and why?

Gauges are witnesses, not judges. They tell of others' requests, of memory and of a queue, and an endpoint is held
closed for what they say. So what they say is held against what we see ourselves:

- *Gone*: a page that was not to be had twice in a row counts for nothing, nor does what it said of others.
- *Standing still*: answers go on, and the engine's own counters do not move. The page is of another time.
- *Short*: it shows less than half of what we know to be there. It is of another engine, of a part of this one, or of a
  time that is over; the next reading may be better.
- *Contradicted*: it says that requests wait, or that there is no room, and what is sent there begins at once.

The last needs something to be sent. So where nothing but gauges keeps an endpoint closed while somebody waits for it,
it is tried: one request after two seconds, then one more at a time for each that begins in time, until they are too
many for the gauges to be true. A request that begins late says that they may be: the next try comes later.

Beside that they are asked whether the engine works: what moves only because requests come is left out.

What was contradicted is believed again when it has shown for some readings what we see, too; what stood still, when it
moves; what was gone, when it is back.
"""

from __future__ import annotations

import math
from enum import StrEnum

from penstock.core.values.observation import Observation

MISSED = 2  # one reading that can't be had may be a busy loop, ours or the engine's
STILL_READINGS = 3  # with answers between each two
STILL_S = 3.0  # a page may be written every so many steps only: SGLang's every 40
TRY_S = 2.0  # an engine step with a long prompt takes that long, and patience ends soon after
TRY_S_MAX = 30.0
IN_TIME_S = 1.0  # for a first token, while it is not known what is usual there
CONTRADICTED = 8  # requests more than a true gauge would allow; some may begin at once by luck
TRIES_UNDECIDED = 4  # at a time, where nothing tells whether they waited
AGREES = 10  # readings in a row
SHORT_SHARE = 0.5  # of ours that were there before the reading before it
SHORT_MIN = 4  # of these: fewer may just have ended
SHORT_NO_MORE = 0.75
SHORT_READINGS = 3  # in a row, to think so and to think otherwise: a page that is late catches up
OTHERS_MIN = 4.0  # requests that came or went while the page was asked for
OTHERS_SHARE = 0.25
KV_USAGE_FULL = 0.9  # what would close it again for its memory is not what made it believable


class Standing(StrEnum):
    """What the gauges are worth: one closed list."""

    NONE = "none"  #: none was ever read
    BELIEVED = "believed"
    OLD = "old"  #: the last one was read too long ago
    GONE = "gone"
    STILL = "standing_still"
    CONTRADICTED = "contradicted"
    SHORT = "short"  #: it shows less than half of what is there of ours


def why(standing: Standing, base: Observation | None, now: float) -> str:
    """Why gauges are worth that, in a sentence; empty where they are believed. `base`: the last that moved."""
    if standing is Standing.BELIEVED:
        return ""
    if standing is Standing.GONE:
        return "its page is not to be had, so nothing it said counts"
    if base is None:
        return "it tells no load: what we send there is all that is known"
    seen = f"{base.running:g} running and {base.waiting:g} waiting"
    if standing is Standing.STILL:
        return f"its page has shown {seen} for {now - base.asked_s:.0f} s, while its answers go on"
    if standing is Standing.CONTRADICTED:
        return f"its page says {seen}, and what is sent there begins at once all the same"
    if standing is Standing.SHORT:
        return f"its page says {seen}, and that is less than half of what we have there"
    return f"it last showed anything new {now - base.asked_s:.0f} s ago ({seen})"


class GaugeBelief:
    """What the gauges of one endpoint are worth. The ledger tells it what happens, and asks."""

    __slots__ = (
        "_agrees",
        "_kv_usage",
        "_late",
        "_misses",
        "_shorts",
        "_still",
        "_try_s",
        "_width",
        "began_s",
        "closed_s",
        "counted_s",
        "doubt",
        "knew_s",
        "kv_stood_s",
        "no_page",
        "ours_s",
        "outstanding",
        "ran_s",
        "short",
        "stood_s",
        "worked_s",
    )

    def __init__(self) -> None:
        self.doubt: Standing | None = None  #: why they are not believed
        self.closed_s: float | None = None  #: since when nothing but they keep it closed while somebody waits
        self.outstanding = 0  #: tries that have not begun
        self.short = False  #: its readings show less than half of what is there of ours
        self._shorts = 0  # readings in a row that speak for the other
        self.no_page = False  #: something answered when last asked for the page, and had none
        self.stood_s = math.inf  #: since when readings have been the same
        self.kv_stood_s = math.inf  #: and what they say of memory, whatever else moves
        self.worked_s = -math.inf  #: when a reading was asked for that showed more than another queue,
        self.counted_s = -math.inf  #: one whose counters had moved,
        self.began_s = -math.inf  #: and one that counted another first token;
        self.ran_s = -math.inf  #: where these are not told, one that showed anything at work;
        self.knew_s = -math.inf  #: and one that showed at least as many as were there of ours,
        self.ours_s = -math.inf  #: or at most as many, so that it need not show others'
        self._kv_usage: float | None = None
        self._misses = 0
        self._still = 0  # readings in a row that did not move although answers went on
        self._agrees = 0
        self._width = 1  # tries at a time
        self._late = 0  # tries in a row that began late
        self._try_s = math.inf  # when the next one may be sent

    # --- readings -----------------------------------------------------------------------------------------------

    def missed(self, *, answered: bool = False) -> bool:
        """Note that a reading was not to be had; `answered`: though something answered.

        Returns True if those before it count for nothing from now on.
        """
        self.no_page = answered
        self._misses += 1
        if self._misses < MISSED:
            return False
        self.doubt = Standing.GONE
        self._forget()
        return True

    def moved(self, reading: Observation, own: int, *, inside: int, before: Observation | None) -> None:
        """Take in a reading that differs from the one before it.

        `own`: so many of our requests were there then; `inside`: those of them that had been sent before the reading
        before it.
        """
        self._came()
        self._note_work(before, reading)
        shown = reading.running + reading.waiting
        if shown >= own:
            self.knew_s = reading.asked_s
        if shown <= own:
            self.ours_s = reading.asked_s
        if reading.kv_usage != self._kv_usage:
            self._kv_usage, self.kv_stood_s = reading.kv_usage, reading.asked_s
        self._still, self.stood_s = 0, math.inf
        if self.doubt is Standing.STILL:
            self.doubt = None
        elif self.doubt is Standing.CONTRADICTED:
            self._agrees = self._agrees + 1 if self._is_likely(reading, own) else 0
            if self._agrees >= AGREES:
                self.doubt = None
                self._forget()
        self._note_short(shown, inside)

    def _note_short(self, shown: float, inside: int) -> None:
        is_less = inside >= SHORT_MIN and shown < SHORT_SHARE * inside
        turns = shown >= SHORT_NO_MORE * inside if self.short else is_less
        self._shorts = self._shorts + 1 if turns else 0
        if self._shorts >= SHORT_READINGS:
            self.short, self._shorts = not self.short, 0

    def _note_work(self, before: Observation | None, reading: Observation) -> None:
        """Note what a reading shows of the engine's work. A queue grows before an engine that does nothing, too."""
        at_s = reading.asked_s
        if before is None:
            self.worked_s = at_s
            return
        counted = reading.progress is not None and reading.progress != before.progress
        if counted or (reading.running, reading.kv_usage) != (before.running, before.kv_usage):
            self.worked_s = at_s
        if counted:
            self.counted_s = at_s
        first_tokens, first_tokens_before = reading.first_tokens_total, before.first_tokens_total
        if first_tokens is None or first_tokens_before is None:
            self.ran_s = at_s if reading.running else self.ran_s
        elif first_tokens > first_tokens_before:
            self.began_s = at_s

    def stood(self, reading: Observation, *, previous_asked_s: float, base_asked_s: float, life_s: float) -> None:
        """A reading came that is the same as the one before it; our own answers last went on at `life_s`."""
        self._came()
        self.stood_s = min(self.stood_s, previous_asked_s)
        if reading.progress is None or not previous_asked_s < life_s <= reading.asked_s:
            return
        self._still += 1
        if self._still >= STILL_READINGS and reading.asked_s >= base_asked_s + STILL_S and self.doubt is None:
            self.doubt = Standing.STILL

    def _came(self) -> None:
        self._misses, self.no_page = 0, False
        if self.doubt is Standing.GONE:
            self.doubt = None

    def _is_likely(self, reading: Observation, own: int) -> bool:
        """Whether it shows about what we have there, and no queue and no want of memory."""
        others = reading.running + reading.waiting - own
        full = reading.kv_usage is not None and reading.kv_usage >= KV_USAGE_FULL
        return abs(others) <= max(OTHERS_MIN, OTHERS_SHARE * own) and reading.waiting <= OTHERS_MIN and not full

    # --- tries --------------------------------------------------------------------------------------------------

    def closes(self, now: float) -> None:
        """Note that nothing but the gauges keeps the endpoint closed while a request waits.

        `TRY_S` later it is tried.
        """
        if self.closed_s is None:
            self.closed_s = now
            self._try_s = now + TRY_S

    def opens(self) -> None:
        """Note that the gauges no longer keep the endpoint closed."""
        self.closed_s = None
        self._width, self._late = 1, 0

    def may_try(self, now: float, *, stands_s: float) -> bool:
        """True if a request may be sent against what the gauges say, which must have stood still since `stands_s`."""
        return now >= self.may_try_s(stands_s=stands_s)

    def may_try_s(self, *, stands_s: float) -> float:
        """Returns when time alone allows a try; infinity if it does not."""
        return max(self.try_s, stands_s + TRY_S)

    @property
    def try_s(self) -> float:
        """When the next try may be sent, as far as time alone decides; infinity: it does not."""
        return self._try_s if self.closed_s is not None and self.outstanding < self._width else math.inf

    def began(self, took_s: float, now: float, *, in_time_s: float, slots: int = CONTRADICTED) -> bool:
        """Note that a try began after `took_s`.

        Returns True if that was in time. `slots`: no more fit there at a time.
        """
        if took_s > in_time_s:
            self._width = 1
            self._late = min(self._late + 1, 16)
            self._try_s = now + min(TRY_S * 2**self._late, TRY_S_MAX)
            return False
        self._late = 0
        self._width += 1
        if self._width > min(CONTRADICTED, slots) and self.doubt is None:
            self.doubt = Standing.CONTRADICTED
            self._forget()
        return True

    def undecided(self) -> None:
        """A try is over, and nothing tells whether it waited. Any engine runs a few at a time."""
        if self._width < TRIES_UNDECIDED:
            self._width += 1

    def _forget(self) -> None:
        self.closed_s, self._try_s = None, math.inf
        self._width, self._late, self._agrees = 1, 0, 0
