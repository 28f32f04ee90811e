"""Which request is sent next, and to which endpoints may it go: bands, turns, room, in that order.

The head of the fair order goes first. When it does not fit the room that is left (its prompt, its KV memory), those
behind it may overtake it, within a window, so many times, and by so much; then room is reserved for it
(docs/design.md#group-dispatch).
When the slots that are left are reserved for flows under their fair share, only such flows are looked for.
In the flow whose turn it is, a request whose prompt is cached where there is room goes first (`warm_first.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from penstock.core.dispatch.backfill import Backfill
from penstock.core.dispatch.candidates import CandidateFilter
from penstock.core.dispatch.operator_pauses import OperatorPauses
from penstock.core.dispatch.prefill_stagger import PrefillStagger
from penstock.core.dispatch.under_share import UnderShare
from penstock.core.dispatch.warm_first import WarmFirst
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.band import Band, Room
from penstock.core.queueing.capped_flows import CAPPED_MAX, CappedFlows
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node, top
from penstock.core.queueing.promised_shares import PromisedShares
from penstock.core.queueing.queues import Queues
from penstock.core.queueing.quotas import Quotas
from penstock.core.routing.affinity_wait import AffinityWait
from penstock.core.values.catalogue import Cause
from penstock.core.values.settings import PASSED_MAX

Found = tuple[Entry, list[Endpoint]]

_FOR_SLOTS = (None, Cause.SLOTS_FULL, Cause.ENGINE_QUEUE)  # None: it is open, or not looked at again yet


class Pump:
    """Finds sendable requests. Also updates the bands' memory of endpoints and the count of requests passed."""

    def __init__(
        self,
        queues: Queues,
        pool: Pool,
        quotas: Quotas,
        *,
        pauses: OperatorPauses,
        affinity: AffinityWait,
        capped: CappedFlows,
        under_share: UnderShare,
        backfill: Backfill,
        candidates: CandidateFilter,
        stagger: PrefillStagger,
        warm: WarmFirst,
        promised: PromisedShares,
        look: Callable[[Entry, float], bool],
    ) -> None:
        self._queues = queues
        self._pool = pool
        self._quotas = quotas
        self._pauses = pauses
        self._affinity = affinity
        self._capped = capped
        self._under_share = under_share
        self._backfill = backfill
        self._candidates = candidates
        self._stagger = stagger
        self._warm = warm
        self._promised = promised
        self._look = look  # the prefix again; True: more of it is cached by now
        self._held = 0  # flows that had been found to be held when it last looked

    def next(self, now: float) -> Found | None:
        """Returns the request to send next and the endpoints it may go to; None if nothing can be sent.

        A flow that is found to be held leaves its share to the others, so after that it looks again. That ends: flows
        are capped here, and none is uncapped.
        """
        while True:
            self._held = self._capped.found
            choice = self._look_for_next(now)
            if not self.outdated:
                break
        if choice is not None:
            self._backfill.found(choice[1])
        return choice

    @property
    def outdated(self) -> bool:
        """True if a flow was found to be held since it last looked: others may be under their share by now."""
        return self._capped.found != self._held

    def _look_for_next(self, now: float) -> Found | None:
        self._backfill.begin()
        self._stagger.begin()
        for band in self._promised.owed():
            found = self._next_of(band, now)
            if found is not None:
                return found
        for band in self._queues.bands:
            if band.tree.root.waiting:
                found = self._next_of(band, now, before_lower=True)
                if found is not None:
                    return found
        return None

    def wants_slots(self, endpoint: Endpoint) -> bool:
        """True if the highest band waiting for the endpoint's models waits for slots, as far as is known."""
        for band in self._queues.bands:
            if any(endpoint.serves(model) for model in band.tree.root.backlog):
                return band.closed_for(endpoint) in _FOR_SLOTS
        return False

    def alone(self, entry: Entry, now: float) -> list[Endpoint]:
        """Returns the endpoints of a newcomer while no other request waits; empty: none, or the queue has to decide.

        `next` would find the same if it had been pushed into its queue. Of all bands only its own would have work, so
        turns, promised shares and the fair order choose among one: the head of its flow is itself. No request can be
        overtaken, none was bumped, and no room is reserved. The rest of `next` is checked here too: endpoints open to
        the band, reserved slots, holds of its model and its tenant, and the endpoints it fits. Special cases (reserved
        slots, affinities, divided requests) are left to the unchanged queue.
        """
        band = self._queues.bands[entry.band]
        self._candidates.look(band, now)
        if (
            (entry.affinity.may_wait and not self._affinity.plain(entry))
            or self._pool.roles.any
            or not band.open
            or (self._pauses.stops and not self._pauses.sends(entry.model))
        ):
            return []
        self._backfill.begin()
        self._stagger.begin()
        free = list(band.open)
        if self._under_share.only_reserved_left(entry.model, band, free, now):
            return []
        return self._candidates.fitting(entry, free, now)

    def may_go(self, entry: Entry, now: float) -> bool:
        """True if a newcomer can change the sendable requests: no other could be sent a moment ago, and it opens no way
        for them.

        In a full pool most newcomers change nothing, and this test costs a tenth of a pass of the pump.
        """
        band, model = self._queues.bands[entry.band], entry.model
        if band.unchecked or now >= band.holds_until_s or self.outdated:
            return True
        self._backfill.begin()
        free = self._candidates.serving(model, list(band.open))
        if not free or not self._under_share.only_reserved_left(model, band, free, now):
            return bool(free)
        return self._under_share.under_share(top(entry.node), model, now)

    # --- turns ------------------------------------------------------------------------------------------------

    def holds(self, model: str, band: Band) -> bool:
        """True if no request of `band` for the model may be sent: it is paused, or all its endpoints are away."""
        return not self._pauses.sends(model) or self._candidates.away(model, band)

    def _next_of(self, band: Band, now: float, *, before_lower: bool = False) -> Found | None:
        """The band's next request. `before_lower`: it is its turn by rank, so the lower bands are asked next."""
        self._candidates.look(band, now)
        if band.holds_changed:
            band.holds_changed = False
            band.tree.hold({model for model in band.tree.root.backlog if self.holds(model, band)})
        if not band.open:
            return None
        free = self._backfill.unreserved(list(band.open))
        models = [
            m for m in band.tree.root.backlog if self._pauses.sends(m) and self._candidates.anybody_serves(m, free)
        ]
        if band.bumped:
            found = self._first_fit(_of_models(band.bumped, models), free, now, bumped=True)
            if found is not None:
                return found
        scarce = [model for model in models if self._under_share.only_reserved_left(model, band, free, now)]
        for model in scarce:
            found = self._first_fit(self._under_share.in_order(band, model, now), free, now)
            if found is not None:
                return found
        if scarce:
            models = [model for model in models if model not in scarce]
        found = self._in_turn(band, models, free, now) if models else None
        if found is None and scarce and before_lower and self._queues.waiting > band.tree.waiting:
            for model in scarce:
                self._keep_reserve(band, model, free)
        return found

    def _keep_reserve(self, band: Band, model: str, free: list[Endpoint]) -> None:
        """Let no lower band take the reserved slots of a model that requests of `band` wait for."""
        if self._under_share.head(band, model) is not None:
            self._backfill.reserved.update(self._candidates.serving(model, free))

    def _in_turn(self, band: Band, models: list[str], free: list[Endpoint], now: float) -> Found | None:
        """Returns the head of the fair order or, if it does not fit the room left, a request that may overtake it."""
        head = self._capped.head(band, models)
        if head is None:
            return None  # all flows are held
        free_to_head = self._backfill.unreserved(free)
        endpoints = self._candidates.fitting(head, free_to_head, now)
        if not endpoints and head.prefix and self._look(head, now):
            endpoints = self._candidates.fitting(head, free_to_head, now)
        if endpoints and (allowed := self._in_bound(head, endpoints, now)):  # of a scarce model some were passed
            return self._warm_first(head, allowed, now)
        found = None
        if self._under_share.is_over_share(head, now):  # room is left to others, which may stand far behind and pass it
            found = self._first_fit(iter((head,)), free, now)
            found = found or self._first_fit(self._under_share.in_order(band, head.model, now), free, now)
        return found or self._overtake(band, models, free, now)

    def _overtake(self, band: Band, models: list[str], free: list[Endpoint], now: float) -> Found | None:
        """The first of those behind the head that fits somewhere, unless someone passed over too often needs it.

        If none of the first in fair order fits, each model is looked at alone, so that many requests that do not
        fit hide only others of their own model.
        """
        alone = band.tree.waiting == self._queues.waiting  # no other band has work, so none is overtaken
        if alone and band.prompt_tokens_min() > _largest_room(band, free)[0]:
            return None  # nothing that waits is small enough: no need to look at each
        found = self._first_fit(band.tree.in_order(models), free, now)
        if found is None and len(models) > 1:
            for model in models:
                found = self._first_fit(band.tree.in_order([model]), free, now)
                if found is not None:
                    break
        return found

    def _first_fit(
        self,
        line: Iterator[Entry],
        free: list[Endpoint],
        now: float,
        *,
        bumped: bool = False,
    ) -> Found | None:
        """The first of a line, within the window, that fits. Notes which it passes over, and reserves room.

        No flow gets too far ahead of passed-over requests, unless an operator ordered it: `bumped`.
        """
        looked_at, prefill_room, kv_room = 0, math.inf, math.inf
        ahead: set[tuple[Node, str]] = set()  # flows that are as far ahead as may be: others pass them, too
        waiting: list[Entry] = []  # for a warm endpoint, by an estimate: they are not overtaken too far either
        for entry in islice(line, CAPPED_MAX):
            if entry.affinity.preferred and self._affinity.surely_waits(entry, free, now):
                waiting.append(entry)
                continue
            if self._quotas.at_limit(entry.accounts):
                self._backfill.holds(entry)
                continue
            if looked_at >= PASSED_MAX:
                break
            if ahead and (entry.node, entry.model) in ahead:
                looked_at += 1
                continue
            if looked_at == 1:  # most lines end with the first one
                prefill_room, kv_room = _largest_room(self._queues.bands[entry.band], free)
            if entry.uncached_tokens <= prefill_room and entry.estimated_tokens <= kv_room:
                endpoints = self._candidates.fitting(entry, self._backfill.unreserved(free), now)
                allowed = endpoints if bumped else self._in_bound(entry, endpoints, now)
                if (
                    allowed
                    and waiting
                    and not bumped
                    and (found := self._pressed(entry, waiting, free, now)) is not None
                ):
                    return found
                if allowed:
                    return (entry, allowed) if bumped else self._warm_first(entry, allowed, now)
                if endpoints:
                    ahead.add((entry.node, entry.model))
                    looked_at += 1
                    continue
            if self._waits_for_home(entry, waiting, now):
                continue  # not overtaken: it waits for its own endpoint
            looked_at += 1
            self._backfill.passes(entry)
            self._backfill.reserve(entry, free, now)
        return None

    def _warm_first(self, entry: Entry, endpoints: list[Endpoint], now: float) -> Found:
        """Returns a request of the same flow and model whose prompt is cached there, or `entry` itself."""

        def fitting(other: Entry, warm: list[Endpoint]) -> list[Endpoint]:
            return self._in_bound(other, self._candidates.fitting(other, warm, now), now)

        return self._warm.choose(entry, endpoints, fitting, now)

    def _waits_for_home(self, entry: Entry, waiting: list[Entry], now: float) -> bool:
        """True if a request waits for its own endpoint.

        By an estimate: then it is `waiting`, and not passed too often. For a fixed time; then it gives up its turn.
        """
        if not (entry.affinity.may_wait and self._affinity.waits(entry, now)):
            return False
        if self._affinity.weighs_wait:
            waiting.append(entry)
        else:
            self._backfill.holds(entry)
        return True

    def _pressed(self, entry: Entry, waiting: list[Entry], free: list[Endpoint], now: float) -> Found | None:
        """Returns the first request waiting for a warm endpoint that the flow of `entry` may not pass again."""
        for other in waiting:
            if self._backfill.too_far(entry, other) and self._affinity.only(other, now) is None:
                self._affinity.let_go(other)
                endpoints = self._candidates.fitting(other, self._backfill.unreserved(free), now)
                if endpoints:
                    return other, endpoints
        return None

    def _in_bound(self, entry: Entry, endpoints: list[Endpoint], now: float) -> list[Endpoint]:
        """Returns its endpoints, limited by its flow's lead over requests that would be overtaken."""
        overtaken = self._backfill.passed
        return self._backfill.in_bound(entry, endpoints, overtaken, now) if overtaken and endpoints else endpoints


def _of_models(entries: Mapping[int, Entry], models: list[str]) -> Iterator[Entry]:
    for entry in entries.values():
        if entry.model in models:
            yield entry


def _largest_room(band: Band, endpoints: list[Endpoint]) -> Room:
    """Returns the upper bounds of a band's requests that fit any of its open `endpoints`, per measure."""
    most_prefill = most_kv = 0.0
    for endpoint in endpoints:
        prefill_room, kv_room = band.open[endpoint].room
        most_prefill = max(most_prefill, prefill_room)
        most_kv = max(most_kv, kv_room)
    return most_prefill, most_kv
