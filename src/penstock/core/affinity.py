"""May a request go to an endpoint other than the one it prefers? Not for a while, if there is one it prefers.

A request that could go somewhere, but not to where its session lives or its prompt is cached, is *held*: it stays in
its place, others pass it, for at most `affinity_wait`. Then it goes wherever its policy thinks best, and its session
moves with it. An open endpoint that is passed over is *spared*, and that too ends after `affinity_wait`, whoever it was
spared for: no slot idles longer because of any number of held requests. Two kinds wait for as long as the endpoint they
prefer lives: those that refer to what only it keeps, and those of strict sessions.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.endpoint import Endpoint
from penstock.core.flow import Entry
from penstock.core.routing.router import Router


class Affinity:
    """Which of the endpoints that have room for a request it may go to now."""

    def __init__(self, router: Router, look_again: Callable[[Endpoint, float], None]) -> None:
        self._router = router
        self._look_again = look_again
        self._holding: dict[int, None] = {}  # arrival numbers of those held for a while
        self._spared: dict[Endpoint, float] = {}  # open endpoints passed over in favour of others, and since when

    @property
    def may_hold(self) -> bool:
        """Whether any request may be held for where its session or its prompt is."""
        return self._router.prefers or self._router.strict

    def choosy(self, entry: Entry, now: float) -> bool:
        """Whether it may be held at all; most are not."""
        request = entry.request
        entry.locate_until_s = now + request.locate_s
        return self.may_hold or request.home is not None or request.locate_s > 0

    def reconfigured(self, entry: Entry) -> None:
        """It waits, and the policy may be another: it may be held from now on, or no longer."""
        entry.choosy |= self.may_hold
        if not self._router.prefers:
            self.left(entry)

    def allowed(self, entry: Entry, fitting: list[Endpoint], now: float) -> list[Endpoint]:
        """Of the endpoints with room for a choosy request, those it may go to now; none while it is held."""
        if not fitting:
            return fitting
        only = self.only(entry, now)
        if only is not None:
            return [only] if only in fitting else []
        if now < entry.locate_until_s:
            self._look_again(fitting[0], entry.locate_until_s)
            return []
        if not self._router.prefers:
            return fitting
        if not entry.held_for:
            preferred = self._router.preferred(entry, now)
            if not preferred or any(e in preferred for e in fitting):
                return fitting
            entry.held_for, entry.held_since_s = tuple(preferred), now
            self._holding[entry.seq] = None
        until_s = self.held_until_s(entry, fitting, now)
        if until_s <= now:
            return fitting
        for endpoint in fitting:
            self._spared.setdefault(endpoint, now)
        self._look_again(fitting[0], until_s)
        return []

    def at_home(self, entry: Entry, endpoint: Endpoint, now: float) -> bool:
        """Whether it would lose nothing by going there, that it has to wait for or is better served with elsewhere."""
        if entry.choosy and (now < entry.locate_until_s or self.only(entry, now) not in (None, endpoint)):
            return False
        preferred = self._router.preferred(entry, now)
        return not preferred or endpoint in preferred

    def only(self, entry: Entry, now: float) -> Endpoint | None:
        """The one endpoint it may go to, for as long as that is alive."""
        request, router = entry.request, self._router
        if request.home is not None and (home := router.alive(request.home, request, now)) is not None:
            return home
        return router.home(request, now, whole=entry.whole) if router.strict else None

    def held_until_s(self, entry: Entry, fitting: list[Endpoint], now: float) -> float:
        """Until when a request that was held goes to none of these; `now` or earlier: it goes."""
        alive = [e for e in entry.held_for if self._router.alive(e.name, entry.request, now) is e]
        if not alive or any(e in alive for e in fitting):
            return now
        since_s = min((self._spared[e] for e in fitting if e in self._spared), default=now)
        return min(entry.held_since_s, since_s) + self._router.settings.affinity_wait_s

    def holds(self, entry: Entry, now: float) -> bool:
        """Whether it is an endpoint of its own that it waits for, so that nobody overtakes it who passes it."""
        return entry.seq in self._holding or now < entry.locate_until_s or self.only(entry, now) is not None

    def left(self, entry: Entry) -> None:
        """A choosy request left the queue, or is held no more."""
        entry.held_for = ()
        if entry.seq in self._holding:
            del self._holding[entry.seq]
            if not self._holding:
                self._spared.clear()

    def used(self, endpoint: Endpoint) -> None:
        """Something is sent there: it was spared for long enough."""
        self._spared.pop(endpoint, None)

    def told(self, entry: Entry) -> None:
        """Where its prompt is cached became known: it may prefer another endpoint now."""
        entry.locate_until_s = 0.0
        self.left(entry)
