"""Who goes out of its turn because its prompt begins like that of the last one sent somewhere in its turn?

`prefix_groups.py` knows who may follow whom, and how fair that is; this asks it for every endpoint that is open. A
follower has to have room there, no better place to go to, and nobody for whom that room is reserved
(docs/design.md#group-dispatch).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.dispatch.backfill import Backfill
from penstock.core.dispatch.candidates import CandidateFilter
from penstock.core.dispatch.prefix_groups import PrefixGroup, PrefixGroups
from penstock.core.dispatch.under_share import UnderShare
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.band import Band
from penstock.core.queueing.capped_flows import CappedFlows
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import top
from penstock.core.queueing.quotas import Quotas
from penstock.core.routing.affinity_wait import AffinityWait


class PrefixFollowers:
    """Finds followers."""

    def __init__(
        self,
        groups: PrefixGroups,
        *,
        quotas: Quotas,
        capped: CappedFlows,
        under_share: UnderShare,
        candidates: CandidateFilter,
        backfill: Backfill,
        affinity: AffinityWait,
        look: Callable[[Entry, float], bool],
    ) -> None:
        self._groups = groups
        self._quotas = quotas
        self._capped = capped
        self._under_share = under_share
        self._candidates = candidates
        self._backfill = backfill
        self._affinity = affinity
        self._look = look

    @property
    def any(self) -> bool:
        """Whether anybody waits who could follow, and anybody was sent who could be followed."""
        return self._groups.any

    def next(
        self, band: Band, models: list[str], scarce: list[str], free: list[Endpoint], now: float
    ) -> tuple[Entry, Endpoint] | None:
        """One that may follow, and to where.

        Of the `scarce` models the last slots are reserved for flows under their share.
        """
        head: Entry | None = None
        grouping = self._groups
        for endpoint in free:
            group = grouping.group(endpoint, now)
            if group is None:
                continue
            candidates = grouping.candidates(group)
            if not candidates or self._backfill.room_is_reserved(endpoint, now):
                continue  # as mostly
            for candidate in candidates:
                entry, model = candidate.entry, candidate.entry.model
                if (
                    not candidate.again
                    and model in models
                    and (model not in scarce or self._under_share.under_share(top(entry.node_of()), model, now))
                    and entry.request.band == band.rank
                ):
                    head = head or self._capped.head(band, models)
                    if entry is head:
                        break  # it is its turn
                    if self._may_follow(entry, group, models, now):
                        entry.own_dispatch().follows = group.leader.id
                        if head is not None and head.request.model not in scarce:
                            self._passed(head, free, now)
                        return entry, endpoint
                candidate.passed_over()
        return None

    def _may_follow(self, entry: Entry, group: PrefixGroup, models: list[str], now: float) -> bool:
        """Whether it may go out of its turn, has room there, and no better place to go to."""
        if self._quotas.at_limit(entry.account):
            return False
        if not self._groups.in_order(entry) or not self._groups.in_bound(entry, models):
            return False
        self._look(entry, now)
        return self._affinity.at_home(entry, group.endpoint, now) and bool(
            self._candidates.fitting(entry, [group.endpoint], now)
        )

    def _passed(self, head: Entry, free: list[Endpoint], now: float) -> None:
        """Somebody goes before the one whose turn it is: it is overtaken if it would not fit anyway."""
        if not self._candidates.fitting(head, free, now) and not (
            head.affinity.may_wait and self._affinity.waits(head, now)
        ):
            self._backfill.passes(head)
