"""Within a flow's turn: which request goes first, because its prompt is cached where there is room?

A request whose prompt is cached at an endpoint with room goes before those of its flow whose prompts are not, because
by the time of its own turn theirs may have displaced it there. Turns between flows stay as they are: the flow pays for
the request that goes. Each request is passed so at most K times, counted with those that pass it because it does not
fit (`backfill.py`); none is passed by a request of lower priority or of a later deadline. Only the next 32 requests are
looked at, each by one key of its prompt.

Source: SGLang orders its own queue by the longest cached prefix, without a bound (L. Zheng et al., NeurIPS 2024).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.dispatch.backfill import Backfill
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.routing.affinity_wait import AffinityWait
from penstock.core.routing.router import Router
from penstock.core.values.settings import PASSED_MAX


class WarmFirst:
    """Looks for such a request behind the one whose turn it is."""

    def __init__(self, router: Router, affinity: AffinityWait, backfill: Backfill) -> None:
        self._router = router
        self._affinity = affinity
        self._backfill = backfill

    def choose(
        self,
        entry: Entry,
        endpoints: list[Endpoint],
        fitting: Callable[[Entry, list[Endpoint]], list[Endpoint]],
        now: float,
    ) -> tuple[Entry, list[Endpoint]]:
        """Returns the request to send instead of `entry`, and where; usually `entry` itself.

        `fitting` returns those of some endpoints that a request may go to.
        """
        router, leaf = self._router, entry.node.leaves[entry.model]
        if leaf.live == 1 or not (router.may_be_warm and router.groups):
            return entry, endpoints
        warm_keys = router.warm_keys(entry, endpoints, now)
        passed: list[Entry] = []
        for other in leaf.front(2 * PASSED_MAX):
            if passed and (alike := other.alike) is not None and alike.sent:
                warm = router.warmer(other, entry, warm_keys, endpoints, now)
                if warm and self._may_pass(other, passed, endpoints, now) and (warm := fitting(other, warm)):
                    for each in passed:
                        if not self._waits(each, endpoints, now):
                            self._backfill.passes(each)
                    return other, warm
            if passed or other is entry:  # those before it were found not to fit
                passed.append(other)
                if len(passed) > PASSED_MAX:
                    break
        return entry, endpoints

    def _may_pass(self, entry: Entry, passed: list[Entry], endpoints: list[Endpoint], now: float) -> bool:
        for each in passed:
            if each.request.priority != entry.request.priority or each.deadline_s < entry.deadline_s:
                return False
            if each.backfilled >= self._router.groups and not self._waits(each, endpoints, now):
                return False
        return True

    def _waits(self, entry: Entry, endpoints: list[Endpoint], now: float) -> bool:
        """True if a request waits for an endpoint that is none of these, so that none passes it here."""
        if not entry.affinity.may_wait or not self._affinity.waits(entry, now):
            return False
        for endpoint in endpoints:  # noqa: SIM110  # a loop costs less than a generator
            if not self._affinity.spurns(entry, endpoint, now):
                return False
        return True
