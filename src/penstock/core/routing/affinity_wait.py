"""May a request go to an endpoint other than the one it prefers? Not for a while, if there is one it prefers.

Delay scheduling (Zaharia et al., 2010) by another name: a request that could go somewhere, but not to where its session
lives or its prompt is cached, *waits*: it stays in its place, and others pass it. For how long, a setting says, or it
is estimated (docs/decisions/0043).

With a setting it waits for at most `affinity_wait`. Then it goes wherever its policy thinks best, and its session moves
with it. An open endpoint that is passed over is *spared*, and that too ends after `affinity_wait`, whoever it was
spared for: no slot idles longer because of any number of requests that wait so. Two kinds wait for as long as the
endpoint they prefer lives: those that refer to what only it keeps, and those of strict sessions.

Estimated, it waits for as long as that costs less than to compute its prompt again, which all who wait would pay for;
and once more as long, where that is so then: the time that is over is spent in any case. It is estimated again when an
endpoint that it could go to computes no prompt at all, unless that was done a moment ago; few wait for each endpoint;
and no request waits any longer when a flow that passes it would get further ahead than fairness allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.queues import Queues
from penstock.core.routing.router import Router

WAITING_FOR_ONE_MAX = 32  # requests at most, by an estimate: as many as are looked at in fair order (the pump's window)
WORTH_HOLDS_S = (
    0.05  # what was estimated holds for that long: some engine steps, and little beside any wait worth its while
)
WAITING_MAX = 128  # likewise: each turn of the pump passes all of them, at about half a microsecond each


class AffinityWait:
    """Which of the endpoints that have room for a request it may go to now."""

    def __init__(self, router: Router, queues: Queues, look_again: Callable[[Endpoint, float], None]) -> None:
        self._router = router
        self._queues = queues
        self._look_again = look_again
        self._waiting: dict[int, None] = {}  # arrival numbers of those that wait for a while
        self._ahead: dict[Endpoint, int] = {}  # how many wait for each, by an estimate
        self._spared: dict[Endpoint, float] = {}  # open endpoints passed over in favour of others, and since when

    @property
    def may_wait(self) -> bool:
        """True if any request may wait for where its session or its prompt is."""
        return self._router.prefers or self._router.weighs_wait or self._router.strict

    @property
    def weighs_wait(self) -> bool:
        """True if it is estimated how long a request waits; else a setting says so."""
        return self._router.weighs_wait

    def arrived(self, entry: Entry, now: float) -> None:
        """Give a request that came a record of its own if it may wait for an endpoint it prefers; most may not."""
        request = entry.request
        if self.may_wait or request.home is not None or request.locate_s > 0:
            entry.own_affinity(now + request.locate_s)

    def plain(self, entry: Entry) -> bool:
        """True if the request would wait only for as long as is estimated: then that can be told before it is
        queued.
        """
        request, router = entry.request, self._router
        return router.weighs_wait and not router.strict and request.home is None and not request.locate_s

    def reconfigured(self, entry: Entry) -> None:
        """Let a queued request wait for its endpoint from now on, or no longer: the policy may be another."""
        if self.may_wait:
            entry.own_affinity()
        if not (self._router.prefers or self._router.weighs_wait) and entry.affinity.may_wait:
            self.left(entry)

    def allowed(self, entry: Entry, fitting: list[Endpoint], now: float) -> list[Endpoint]:
        """Returns the endpoints, of those with room, that a request which may wait may go to now; empty while it
        waits.
        """
        if not fitting:
            return fitting
        only = self.only(entry, now)
        if only is not None:
            return [only] if only in fitting else []
        if now < entry.affinity.locate_until_s:
            self._look_again(fitting[0], entry.affinity.locate_until_s)
            return []
        if self._router.weighs_wait:
            return [] if self._worth_it(entry, fitting, now) else fitting
        if not self._router.prefers:
            return fitting
        if not entry.affinity.preferred:
            preferred = self._router.preferred(entry, now)
            if not preferred or any(e in preferred for e in fitting):
                return fitting
            entry.affinity.preferred, entry.affinity.since_s = tuple(preferred), now
            self._waiting[entry.seq] = None
        until_s = self.waits_until_s(entry, fitting, now)
        if until_s <= now:
            return fitting
        for endpoint in fitting:
            self._spared.setdefault(endpoint, now)
        self._look_again(fitting[0], until_s)
        return []

    def _worth_it(self, entry: Entry, fitting: list[Endpoint], now: float) -> bool:
        """True while the request waits, or begins to, for as long as is estimated."""
        if entry.affinity.preferred:
            if now >= entry.affinity.until_s and entry.affinity.again_s and self._worth(entry, fitting, now)[0]:
                entry.affinity.until_s, entry.affinity.again_s = now + entry.affinity.again_s, 0.0
                self._look_again(fitting[0], entry.affinity.until_s)
            return self.waits_until_s(entry, fitting, now) > now
        homes, most_s = self._worth(entry, fitting, now)
        if not homes:
            return False
        entry.affinity.preferred, entry.affinity.since_s = tuple(homes), now
        entry.affinity.until_s, entry.affinity.again_s = now + most_s, most_s
        self._waiting[entry.seq] = None
        entry.affinity.behind = min([self._ahead.get(home, 0) for home in homes])
        for home in homes:
            self._ahead[home] = self._ahead.get(home, 0) + 1
        self._look_again(fitting[0], entry.affinity.until_s)
        return True

    def _worth(self, entry: Entry, fitting: Sequence[Endpoint], now: float) -> tuple[Sequence[Endpoint], float]:
        """The endpoints worth waiting for instead of going to one of these, and for how long."""
        ahead = self._ahead
        entry.affinity.weighed_s = now
        if entry.affinity.preferred:  # those who came after it are not before it, nor is it itself
            ahead = {e: min(entry.affinity.behind, ahead[e] - 1) for e in entry.affinity.preferred if e in ahead}
        elif len(self._waiting) >= WAITING_MAX:
            return (), 0.0
        homes, most_s = self._router.worth_waiting(entry, fitting, ahead, self._queues.backlog(entry), now)
        homes = [e for e in homes if ahead.get(e, 0) < WAITING_FOR_ONE_MAX]
        return homes, most_s if homes else 0.0

    def surely_waits(self, entry: Entry, endpoints: list[Endpoint], now: float) -> bool:
        """True if a waiting request goes to none of `endpoints`, whatever room they have.

        Asked first: it costs little.
        """
        if now >= entry.affinity.until_s or not self._router.weighs_wait:
            return False
        for home in entry.affinity.preferred:
            if not home.in_service or home.health.ejected(now) or home in endpoints:
                return False
        if now < entry.affinity.weighed_s + WORTH_HOLDS_S:
            self._look_again(endpoints[0], entry.affinity.weighed_s + WORTH_HOLDS_S)
            return True
        for endpoint in endpoints:  # noqa: SIM110  # a loop costs less than a generator
            if not endpoint.ledger.prefill.leases:
                return False
        return True

    def let_go(self, entry: Entry) -> None:
        """End the wait of `entry`, because others would get too far ahead of it."""
        entry.affinity.until_s, entry.affinity.again_s = -math.inf, 0.0

    def only(self, entry: Entry, now: float) -> Endpoint | None:
        """Returns the one endpoint that a request may go to, for as long as that is alive; None: any."""
        request, router = entry.request, self._router
        if request.home is not None and (home := router.alive(request.home, request, now)) is not None:
            return home
        return router.home(request, now, whole=entry.whole) if router.strict else None

    def waits_until_s(self, entry: Entry, fitting: list[Endpoint], now: float) -> float:
        """Returns until when a request that waits goes to none of `fitting`; `now` or earlier: it goes."""
        alive = [e for e in entry.affinity.preferred if self._router.alive(e.name, entry.request, now) is e]
        if not alive or any(e in alive for e in fitting):
            return now
        if self._router.weighs_wait:
            stale = entry.affinity.weighed_s + WORTH_HOLDS_S <= now < entry.affinity.until_s
            idle = [e for e in fitting if not e.ledger.prefill.leases] if stale else []
            if idle and not self._worth(entry, idle, now)[0]:
                entry.affinity.weighed_s = -math.inf
                return now
            return entry.affinity.until_s
        since_s = min((self._spared[e] for e in fitting if e in self._spared), default=now)
        return min(entry.affinity.since_s, since_s) + (self._router.settings.affinity_wait_s or 0.0)

    def waits(self, entry: Entry, now: float) -> bool:
        """True if a request waits for an endpoint of its own, so that another that passes it does not overtake it."""
        if entry.seq in self._waiting and (not self._router.weighs_wait or now < entry.affinity.until_s):
            return True
        return now < entry.affinity.locate_until_s or self.only(entry, now) is not None

    def left(self, entry: Entry) -> None:
        """Forget the wait of `entry`: it left the queue, or its wait is over."""
        preferred, entry.affinity.preferred = entry.affinity.preferred, ()
        if entry.seq in self._waiting:
            del self._waiting[entry.seq]
            for endpoint in preferred:
                if self._ahead.get(endpoint, 0) > 1:
                    self._ahead[endpoint] -= 1
                else:
                    self._ahead.pop(endpoint, None)
            if not self._waiting:
                self._spared.clear()

    def used(self, endpoint: Endpoint) -> None:
        """Note that something is sent to `endpoint`: it was spared for long enough."""
        self._spared.pop(endpoint, None)

    def told(self, entry: Entry) -> None:
        """End a wait for news: where the prompt of `entry` is cached became known, so it may prefer another
        endpoint.
        """
        if entry.affinity.may_wait:
            entry.affinity.locate_until_s = 0.0
            self.left(entry)
