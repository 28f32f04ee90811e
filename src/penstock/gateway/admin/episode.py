"""When did a queue begin and when was it over: two lines per episode in the events, true whenever they are read.

It begins when somebody has waited long enough for people to notice, and is over when nobody waits to speak of: the two
are apart, so that a queue that stands about there does not fill the list.
"""

from __future__ import annotations

from penstock.core.explain.snapshot import Snapshot
from penstock.gateway.admin.headline import seconds
from penstock.gateway.admin.reasons import model_why

LONG_S = 2.0
SHORT_S = 0.5


class Episode:
    """The present queue, if there is one."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._most = 0
        self._longest_s = 0.0

    def look(self, snapshot: Snapshot, now: float) -> str | None:
        """What is to be noted."""
        oldest_s = max((band.oldest_wait_s for band in snapshot.bands if band.waiting), default=0.0)
        if self._began_s is None:
            if oldest_s <= LONG_S:
                return None
            self._began_s, self._most, self._longest_s = now - oldest_s, snapshot.waiting, oldest_s
            why = next((model_why(model, snapshot) for model in snapshot.models if model.waiting), "")
            return f"queue for {seconds(oldest_s)} by now{f': {why}' if why else ''}"
        self._most = max(self._most, snapshot.waiting)
        self._longest_s = max(self._longest_s, oldest_s)
        if oldest_s > SHORT_S:
            return None
        lasted_s, self._began_s = now - self._began_s, None
        longest = f"the longest wait was {seconds(self._longest_s)}"
        return f"queue over after {seconds(lasted_s)}: {self._most:,} waited at the most, {longest}"
