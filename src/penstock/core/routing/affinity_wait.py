"""Does a request wait for an endpoint that is closed, although another one is open? (docs/decisions/0090)

By default one score decides (`Router.better`): the seconds to the first token at each endpoint, open or not. If a
closed endpoint has the least, the request waits for as long as that holds, but not twice as long as it was worth at
first: a slot that was to free and did not is not waited for without end. It keeps its place and others pass it, but no
flow gets more than K requests ahead of it (`core/dispatch/backfill.py`); then it goes at once.

`routing.affinity_wait`, if set, replaces the score by delay scheduling (Zaharia et al., 2010): a request waits at most
so long for the endpoints that its policy prefers. An open endpoint that is passed over is *spared*, and that ends after
the same time, whatever the number of waiting requests. Two kinds wait for as long as their endpoint lives: those that
refer to something only it keeps, and those of strict sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import MAY_WAIT, NO_AFFINITY, AffinityRecord, Entry
from penstock.core.queueing.queues import Queues
from penstock.core.routing.router import Router
from penstock.core.values.settings import PASSED_MAX

SCORE_HOLDS_S = 0.05  # a score is not computed again for so long: some engine steps
EXTENDED = 2.0  # times the wait that was worth it at first; in three replays 99 % took less than that, the longest 2.1
WAITING_MAX = 4 * PASSED_MAX  # each turn of the pump passes all of them, at about half a microsecond each


class AffinityWait:
    """The waits of requests for better endpoints."""

    def __init__(self, router: Router, queues: Queues, look_again: Callable[[Endpoint, float], None]) -> None:
        self._router = router
        self._queues = queues
        self._look_again = look_again
        self._waiting = 0  # requests that wait for a better endpoint
        self._ahead: dict[Endpoint, int] = {}  # and how many of them for each, by score
        self.spared: dict[Endpoint, float] = {}  #: open endpoints that were passed over, and since when

    @property
    def weighs_wait(self) -> bool:
        """True if scores decide how long a request waits; otherwise a setting does."""
        return self._router.weighs_wait

    def _any_may_wait(self) -> bool:
        return self._router.prefers or self._router.weighs_wait or self._router.strict

    def arrived(self, entry: Entry, now: float) -> None:
        """Give a request that may wait for an endpoint a record of its own; most may not."""
        request, router = entry.request, self._router
        if request.home is not None or request.locate_s > 0:
            entry.own_affinity(now + request.locate_s)
        elif router.weighs_wait or router.prefers or router.strict:
            entry.affinity = MAY_WAIT

    def plain(self, entry: Entry) -> bool:
        """True if nothing but scores may let the request wait: then that is known before it is queued."""
        return entry.affinity is MAY_WAIT and self._router.weighs_wait and not self._router.strict

    def reconfigured(self, entry: Entry) -> None:
        """Let a queued request wait from now on, or no longer: the policy may be another."""
        if self._any_may_wait() and entry.affinity is NO_AFFINITY:
            entry.affinity = MAY_WAIT
        if not (self._router.prefers or self._router.weighs_wait) and entry.affinity.may_wait:
            self.left(entry)

    def allowed(self, entry: Entry, fitting: list[Endpoint], now: float) -> list[Endpoint]:
        """Return the endpoints, of those with room, that a request may go to now; empty while it waits."""
        if not fitting:
            return fitting
        if entry.affinity is MAY_WAIT and self._router.holds_all(entry, fitting):
            return fitting  # any endpoint that it could wait for is open to it
        if (only := self.only(entry, now)) is not None:
            return [only] if only in fitting else []
        if entry.wait_s_max <= 0.0:
            return fitting
        if now < entry.affinity.locate_until_s:
            self._look_again(fitting[0], entry.affinity.locate_until_s)
            return []
        if self._router.weighs_wait:
            self._score(entry, fitting, now)
        elif self._router.prefers and not entry.affinity.preferred:
            preferred = self._router.preferred(entry, now)
            if preferred and not _share(preferred, fitting):
                self._begin(entry, preferred, now)
        if not entry.affinity.preferred:
            return fitting
        until_s = self.waits_until_s(entry, fitting, now)
        if until_s <= now:
            return fitting
        if not self._router.weighs_wait:
            for endpoint in fitting:
                self.spared.setdefault(endpoint, now)
        self._look_again(fitting[0], until_s)
        return []

    def _score(self, entry: Entry, fitting: list[Endpoint], now: float) -> None:
        """Compare scores if they may have changed: the wait is over, or an open endpoint idles."""
        affinity, ahead, instead = entry.affinity, self._ahead, fitting
        waits = bool(affinity.preferred)
        if waits:
            if now < affinity.until_s:
                if now < affinity.weighed_s + SCORE_HOLDS_S or _share(affinity.preferred, fitting):
                    return
                instead = [e for e in fitting if not e.ledger.prefill.leases]
                if not instead:
                    return
            # Requests that came later are not before it, nor is it itself.
            ahead = {e: min(affinity.behind, ahead[e] - 1) for e in affinity.preferred if e in ahead}
        elif self._waiting >= WAITING_MAX:
            return
        homes, for_s = self._router.better(entry, instead, ahead, self._queues.backlog(entry), now)
        homes = [e for e in homes if ahead.get(e, 0) < PASSED_MAX]
        if waits:
            affinity.weighed_s = now
            if not homes:
                affinity.until_s = now
            elif now >= affinity.until_s:
                affinity.until_s = min(now + for_s, affinity.latest_s)
        elif homes:
            affinity = self._begin(entry, homes, now)
            affinity.weighed_s = now
            affinity.until_s, affinity.latest_s = now + for_s, now + EXTENDED * for_s
            affinity.behind = min([self._ahead.get(home, 0) for home in homes])
            for home in homes:
                self._ahead[home] = self._ahead.get(home, 0) + 1

    def _begin(self, entry: Entry, preferred: Sequence[Endpoint], now: float) -> AffinityRecord:
        affinity = entry.own_affinity()
        affinity.preferred, affinity.since_s = tuple(preferred), now
        self._waiting += 1
        return affinity

    def surely_waits(self, entry: Entry, endpoints: list[Endpoint], now: float) -> bool:
        """True if a waiting request goes to none of `endpoints`. Cheap, so asked first."""
        affinity = entry.affinity
        if now >= affinity.until_s or not self._router.weighs_wait:
            return False
        for home in affinity.preferred:
            if not home.in_service or home.health.ejected(now) or home in endpoints:
                return False
        if now < affinity.weighed_s + SCORE_HOLDS_S:
            self._look_again(endpoints[0], affinity.weighed_s + SCORE_HOLDS_S)
            return True
        for endpoint in endpoints:  # noqa: SIM110  # a loop costs less than a generator
            if not endpoint.ledger.prefill.leases:
                return False
        return True

    def let_go(self, entry: Entry) -> None:
        """End the wait of `entry` for good, because others would get too far ahead of it."""
        self.left(entry)
        entry.own_affinity().may_wait = False

    def only(self, entry: Entry, now: float) -> Endpoint | None:
        """Return the one endpoint that a request may go to, for as long as that is alive; None: any."""
        request, router = entry.request, self._router
        if request.home is not None and (home := router.alive(request.home, request, now)) is not None:
            return home
        return router.home(request, now, whole=entry.whole) if router.strict else None

    def waits_until_s(self, entry: Entry, fitting: list[Endpoint], now: float) -> float:
        """Return until when a waiting request goes to none of `fitting`; `now` or earlier: it goes. Changes nothing."""
        alive = [e for e in entry.affinity.preferred if self._router.alive(e.name, entry.request, now) is e]
        if not alive or _share(alive, fitting):
            return now
        if self._router.weighs_wait:
            return entry.affinity.until_s
        since_s = min((self.spared[e] for e in fitting if e in self.spared), default=now)
        return min(entry.affinity.since_s, since_s) + (self._router.settings.affinity_wait_s or 0.0)

    def spurns(self, entry: Entry, endpoint: Endpoint, now: float) -> bool:
        """True if a request would not go to `endpoint` with room there: it waits for a look-up, or for another one."""
        affinity = entry.affinity
        if not affinity.may_wait:
            return False
        if (only := self.only(entry, now)) is not None:
            return endpoint is not only
        return now < affinity.locate_until_s or (bool(affinity.preferred) and endpoint not in affinity.preferred)

    def waits(self, entry: Entry, now: float) -> bool:
        """True if a request waits for an endpoint of its own, so others that pass it do not count as backfill."""
        affinity = entry.affinity
        if affinity.preferred and (not self._router.weighs_wait or now < affinity.until_s):
            return True
        return now < affinity.locate_until_s or self.only(entry, now) is not None

    def left(self, entry: Entry) -> None:
        """End the wait of `entry`: it left the queue, or may wait again."""
        affinity, preferred = entry.affinity, entry.affinity.preferred
        if not preferred:
            return
        affinity.preferred, affinity.until_s = (), -math.inf
        self._waiting -= 1
        for endpoint in preferred:
            if self._ahead.get(endpoint, 0) > 1:
                self._ahead[endpoint] -= 1
            else:
                self._ahead.pop(endpoint, None)
        if not self._waiting:
            self.spared.clear()

    def used(self, endpoint: Endpoint) -> None:
        """Note that something is sent to `endpoint`, or that it is gone: it is spared no longer."""
        self.spared.pop(endpoint, None)

    def told(self, entry: Entry) -> None:
        """End the wait for a look-up: its answer is known, and may change what the request prefers."""
        if entry.affinity.may_wait:
            entry.own_affinity().locate_until_s = 0.0
            self.left(entry)


def _share(some: Sequence[Endpoint], others: list[Endpoint]) -> bool:
    for endpoint in some:  # noqa: SIM110  # a loop costs less than a generator
        if endpoint in others:
            return True
    return False
