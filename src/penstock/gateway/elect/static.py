"""The simplest election: the settings name the leader. It leads whenever it runs, and no other gateway ever does.

No store, so nothing remembers epochs but the edges: a decider that starts begins with the seconds of the clock, which
are above those of its last life, and takes a higher one when an edge has followed that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock import clock
from penstock.share.election import Follows, Leads, Standing


class StaticElection:
    """Always reports the same."""

    def __init__(self, decider: str, *, ours: str) -> None:
        leads = decider == ours
        self._epoch = int(clock.wall()) if leads else 0
        self._changed: Callable[[Standing], None] = lambda _: None
        self._ended = asyncio.Event()
        self.since_s = clock.now()
        self.trouble: str | None = None
        self.where = f"share.elect.static: {decider}"
        self.standing: Standing = Leads(self._epoch) if leads else Follows(decider, 0)

    async def run(self, changed: Callable[[Standing], None]) -> None:
        """Until cancelled."""
        self._changed = changed
        changed(self.standing)
        await self._ended.wait()

    def leads(self) -> int | None:
        """The epoch, if this gateway decides."""
        return self._epoch if isinstance(self.standing, Leads) else None

    def at_least(self, epoch: int) -> None:
        """An edge has followed this epoch: decide in a higher one."""
        if isinstance(self.standing, Leads) and epoch >= self._epoch:
            self._epoch = epoch + 1
            self._stand(Leads(self._epoch))

    def followed(self, at_s: float) -> None:
        """No other gateway can lead."""

    def hears(self, at_s: float) -> None:
        """There are no candidates."""

    def look_now(self) -> None:
        """There are no candidates."""

    def step_down(self) -> None:
        """It stays, because no other gateway could lead."""

    async def close(self) -> None:
        """Stop reporting."""
        self._ended.set()

    def _stand(self, standing: Standing) -> None:
        self.standing, self.since_s = standing, clock.now()
        self._changed(standing)
