"""Which request ought to be sent next? The pump's rules once more, naively, by sorting and looking at everything.

The pump keeps heaps, remembers which endpoints are open and arms timers; the oracle asks every request and endpoint
every time and changes nothing. If the two differ, one of them is wrong. The oracle is used twice: a dispatch must be
its choice, and when the scheduler is done there must be no choice left, which is work conservation
(docs/design.md#admission).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.core.dispatch import admission
from penstock.core.dispatch.prefill_stagger import STEP_S
from penstock.core.dispatch.reserved_slots import SHARE_MAX
from penstock.core.dispatch.under_share import RESERVE_REVIEW_S
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.roles import Role
from penstock.core.queueing.band import Band, Room
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.fair_tree import Node
from penstock.core.values.settings import PASSED_MAX

if TYPE_CHECKING:
    from penstock.core.scheduling.state import SchedulerState

ROUNDING_S = 1e-6
ROUNDING = 1e-9  # of costs

Choice = tuple[Entry, list[Endpoint]]
PlacesOf = Callable[[Entry, list[Endpoint]], list[Endpoint]]


class Oracle:
    """Looks at a scheduler's state, and touches nothing."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    # --- claims -------------------------------------------------------------------------------------------------

    def check_choice(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        state = self._state
        if entry.seq not in state.queues.bands[entry.band].entries:
            return
        passed = set(state.backfill.passed)  # they were counted as overtaken just now, by this very choice
        expected = self._choice(now, known=True, discount=passed)
        assert expected is not None, f"at {now} {entry.request} is sent, and nobody may be"
        assert expected[0] is entry, f"at {now} {entry.request} is sent before {expected[0].request}"
        assert set(expected[1]) == set(endpoints), f"at {now} {entry.request} may go to {endpoints}, not {expected[1]}"
        self._check_leaf_order(entry, endpoints, now)
        self._check_strict(entry, endpoints, now)

    def check_alone(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        """A new request is about to be sent at once, because no request waits."""
        state, model = self._state, entry.model
        band = state.queues.bands[entry.band]
        assert not any(other.tree.waiting for other in state.queues.bands), "somebody waits"
        free = list(band.open)
        fitting = [e for e in free if self._open(e, band, now) and self._fits(entry, e, now)]
        assert set(endpoints) == set(self._allowed(entry, fitting, now)), f"{entry.request} may go to {fitting}"
        assert not self._tenant_held(entry), f"at {now} {entry.request} is sent, and its tenant is held"
        reserved = self._only_reserved_left(model, band, free, now, known=True)
        assert not reserved, f"at {now} {entry.request} takes a slot that is reserved for flows under their share"

    def check_nobody_waits_in_vain(self, now: float) -> None:
        choice = self._choice(now, known=False, discount=set())
        assert choice is None, f"at {now} {choice[0].request} waits, and {choice[1]} are open to it"

    def _check_leaf_order(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        """Within one flow and model, a request is passed only if it doesn't fit, may not run, or another was bumped.

        Or if another one's prompt is cached there, and then not too often, unless it waits for another endpoint.
        """
        if entry.seq in self._state.queues.bands[entry.band].bumped:
            return
        groups = self._state.router.groups
        for other in self._leaf(entry):
            if other in self._state.backfill.passed and other.backfilled <= groups and entry.prefix:
                continue
            if entry.prefix and self._waits_for_another(other, endpoints, now):
                continue
            if (other.key, other.seq) < (entry.key, entry.seq) and not self._tenant_held(other):
                fitting = [endpoint for endpoint in endpoints if self._fits(other, endpoint, now)]
                fitting = self._answered(other, fitting, self._known_open(other), now)
                fit = bool(self._allowed(other, fitting, now))
                assert not fit, f"{entry.request} overtook {other.request}"

    def _check_strict(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        """No band is served while the head of a higher one may go to the same endpoint, except for a promised share."""
        bands = self._state.queues.bands
        if bands[entry.band].credit > 0:
            return
        for band in bands[: entry.band]:
            for endpoint in endpoints:
                if not self._open(endpoint, band, now):
                    continue
                head = next(self._order(band, [endpoint]), None)
                if head is not None and not self._tenant_held(head):
                    fitting = [endpoint] if self._fits(head, endpoint, now) else []
                    answering = [e for e in self._known_open(head) if self._open(e, band, now)]
                    fits = self._allowed(head, self._answered(head, fitting, answering, now), now)
                    assert not fits, f"{entry.request} was sent before {head.request} of {band.settings.name}"

    # --- the naive pump -----------------------------------------------------------------------------------------

    def _choice(self, now: float, *, known: bool, discount: set[Entry]) -> Choice | None:
        """`known`: the endpoints that the scheduler knows to be open, otherwise those that have been so for a while."""
        bands = self._state.queues.bands
        reserved: set[Endpoint] = set()
        passed: list[Entry] = []
        owed = [band for band in bands if band.credit > 0]
        for number, band in enumerate([*owed, *bands]):
            if not band.tree.waiting:
                continue
            pool = band.open if known else (e for e in self._state.pool if self._open(e, band, now))
            free = [e for e in pool if e not in reserved]
            if not free:
                continue
            choice = self._choice_of(band, free, reserved, passed, now, known=known, discount=discount)
            if choice is not None:
                return choice
            if number >= len(owed):
                self._keep_reserve(band, free, reserved, now, known=known)
        return None

    def _keep_reserve(
        self, band: Band, free: list[Endpoint], reserved: set[Endpoint], now: float, *, known: bool
    ) -> None:
        """No lower band takes the reserved slots of a model that requests of this band wait for.

        A lower band's look may make this one forget which endpoints are open; then the pump's word counts.
        """
        kept = self._state.backfill.reserved if known and band.unchecked else free
        for model in {x.model for x in self._order(band, free) if not self._tenant_held(x)}:
            if self._only_reserved_left(model, band, free, now, known=known):
                reserved.update(e for e in free if e.serves(model) and e in kept)

    def _choice_of(
        self,
        band: Band,
        free: list[Endpoint],
        reserved: set[Endpoint],
        passed: list[Entry],
        now: float,
        *,
        known: bool,
        discount: set[Entry],
    ) -> Choice | None:
        order = [entry for entry in self._order(band, free) if not self._tenant_held(entry)]
        models = [m for m in self._sendable(band) if any(e.serves(m) for e in free)]
        only_reserved = [model for model in models if self._only_reserved_left(model, band, free, now, known=known)]
        plain = [model for model in models if model not in only_reserved]
        bumped = [entry for entry in band.bumped.values() if entry in order]
        lines: list[Sequence[Entry | None]] = [bumped]
        lines += [self._under_share_line(band, order, model, now, known=known) for model in only_reserved]
        first = next((x for x in order if x.request.model in plain), None)
        if first is not None and self._is_over_share(first, now, known=known):
            lines += [[first], self._under_share_line(band, order, first.model, now, known=known)]
        lines += [[x for x in order if x.request.model in plain]]
        lines += [[x for x in order if x.request.model == model] for model in plain if len(plain) > 1]
        if not known:  # the order is uncertain: claim nothing that any of them could block
            passed += [x for x in order if not self._places(x, free, reserved, now, known=False)]
            for x in passed:
                self._reserve(x, free, reserved, now, backfilled=x.backfilled)

        def places_of(other: Entry, among: list[Endpoint]) -> list[Endpoint]:
            places = self._places(other, among, reserved, now, known=known)
            return [e for e in places if self._in_bound(other, e, passed, now)]

        for number, line in enumerate(lines):
            looked_at, ahead = 0, set[tuple[Node, str]]()
            for entry in line:
                if looked_at >= PASSED_MAX:
                    break
                if entry is None or (entry.node, entry.model) in ahead:
                    looked_at += 1
                    continue
                if places := self._places(entry, free, reserved, now, known=known):
                    if number == 0:  # a bumped request goes first
                        return entry, places
                    if places := [e for e in places if self._in_bound(entry, e, passed, now)]:
                        return self._warm_first(entry, places, places_of, discount, now)
                    ahead.add((entry.node, entry.model))
                    looked_at += 1
                    continue
                if not known and self._may_be_too_far(entry, free, reserved, passed, now):
                    ahead.add((entry.node, entry.model))
                if entry.affinity.may_wait and self._state.affinity.waits(entry, now):
                    continue
                looked_at += 1
                passed.append(entry)
                self._reserve(entry, free, reserved, now, backfilled=entry.backfilled - (entry in discount))
        return None

    def _warm_first(
        self, entry: Entry, places: list[Endpoint], places_of: PlacesOf, discount: set[Entry], now: float
    ) -> Choice:
        """A request behind `entry` in its leaf goes first if its prompt is cached at one of `places`."""
        state, overtaken = self._state, [entry]
        most, warm_keys = state.router.groups, state.router.warm_keys(entry, places, now)
        for other in sorted((x for x in self._leaf(entry) if _rank(x) > _rank(entry)), key=_rank):
            may_pass = not self._tenant_held(other) and all(
                other.request.priority == x.request.priority
                and other.deadline_s <= x.deadline_s
                and (x.backfilled - (x in discount) < most or self._waits_for_another(x, places, now))
                for x in overtaken
            )
            warm = state.router.warmer(other, entry, warm_keys, places, now) if may_pass else []
            if warm and (warm := places_of(other, warm)):
                return other, warm
            overtaken.append(other)
            if len(overtaken) > PASSED_MAX:
                break
        return entry, places

    def _waits_for_another(self, entry: Entry, places: list[Endpoint], now: float) -> bool:
        """True if a request waits for an endpoint that is none of `places`."""
        affinity = self._state.affinity
        waits = entry.affinity.may_wait and affinity.waits(entry, now)
        return waits and all(affinity.spurns(entry, endpoint, now) for endpoint in places)

    def _leaf(self, entry: Entry) -> list[Entry]:
        """Returns the waiting requests of the same flow and model."""
        waiting = self._state.queues.bands[entry.band].entries.values()
        return [x for x in waiting if x.node is entry.node and x.request.model == entry.model and not x.held]

    def _reserve(
        self, entry: Entry, free: list[Endpoint], reserved: set[Endpoint], now: float, *, backfilled: int
    ) -> None:
        """A request that backfill has passed as often as it may gets a reservation."""
        if backfilled >= PASSED_MAX:
            reserved.update(e for e in free if e.serves(entry.model) and not entry.excludes(e.name, now))

    def _places(
        self, entry: Entry, free: list[Endpoint], reserved: set[Endpoint], now: float, *, known: bool
    ) -> list[Endpoint]:
        """Returns its endpoints, ignoring other requests."""
        rest = [e for e in free if e not in reserved]
        fitting = [e for e in rest if self._fits(entry, e, now, known=known)]
        return self._allowed(entry, self._answered(entry, fitting, rest, now, known=known), now, known=known)

    def _may_be_too_far(
        self, entry: Entry, free: list[Endpoint], reserved: set[Endpoint], passed: list[Entry], now: float
    ) -> bool:
        """True if the pump may find that the request fits, but its flow is too far ahead: others are asked then."""
        places = self._places(entry, free, reserved, now, known=True)
        return bool(places) and not any(self._in_bound(entry, e, passed, now) for e in places)

    def _in_bound(self, entry: Entry, endpoint: Endpoint, passed: list[Entry], now: float) -> bool:
        """True if its flow, once the request is sent there, is at most K such requests ahead of those it passes."""
        cost = self._state.charges.full_cost(entry)
        for other in (x for x in passed if x.request.band == entry.band):
            if endpoint.serves(other.model) and not other.excludes(endpoint.name, now):
                parting = next(((n, m) for n, m in zip(_path(entry), _path(other), strict=False) if n is not m), None)
                if parting is not None:
                    node, rival = parting
                    if (node.tag - rival.tag) * node.weight + cost > PASSED_MAX * cost + ROUNDING:
                        return False
        return True

    def _under_share_line(
        self, band: Band, order: list[Entry], model: str, now: float, *, known: bool
    ) -> list[Entry | None]:
        """Requests of flows under their share, as the pump judges it.

        If not `known`, it judged some time ago, and time alone may have brought a flow under its share since. Then None
        takes the place of its requests in the window: they may have been looked at or not.
        """
        line = [entry for entry in order if entry.model == model]
        flows = [*(_top(entry) for entry in line[:1]), *band.flows_under_share(model)]
        times = (now,) if known else (now, now - RESERVE_REVIEW_S - ROUNDING_S)
        judge = self._state.under_share.under_share
        judged = {flow: [judge(flow, model, when) for when in times] for flow in flows}
        return [x if all(judged[_top(x)]) else None for x in line if any(judged.get(_top(x), ()))]

    def _order(self, band: Band, free: Iterable[Endpoint]) -> Iterator[Entry]:
        """The fair order: by tags from the top level down, then by key and arrival. Held flows do not count."""
        served = {m for m in self._sendable(band) if any(e.serves(m) for e in free)}
        wanted = [x for x in band.entries.values() if x.request.model in served and not x.held and not _any_held(x)]
        return iter(sorted(wanted, key=_rank))

    def _sendable(self, band: Band) -> list[str]:
        """Returns the models with waiting requests, except paused ones; none while everything is halted."""
        paused = self._state.pauses.paused
        if None in paused or self._state.pauses.halted:
            return []
        return [model for model in band.tree.models() if model not in paused]

    # --- single questions ---------------------------------------------------------------------------------------

    def _only_reserved_left(
        self, model: str, band: Band, endpoints: Iterable[Endpoint], now: float, *, known: bool
    ) -> bool:
        """True if the slots that are left are reserved for flows under their share.

        The pump decides how many are reserved: the number changes with time, and the pump looks again once a second. In
        between, the oracle claims only that at most the limit is reserved, and none if no flow is under its share.
        """
        state = self._state
        measure, slots = state.reserved, state.pool.slots(model)
        answering = [e for e in state.pool if e.role is not Role.PREFILL]
        assert slots == sum(e.slots for e in answering if e.in_service and e.serves(model))
        reserved = measure.last_count(model) if measure.share is None else int(measure.share * slots)
        if not known and measure.share is None:
            reserved = int(slots * SHARE_MAX) if self._under_share_come(model, now) else 0
        free = sum(e.slots - e.ledger.load(now) for e in endpoints if e in answering and e.serves(model))
        if band.settings.preemptible:
            free += state.preemption.takeable(model)
        return reserved > 0 and free <= reserved

    def _fits(self, entry: Entry, endpoint: Endpoint, now: float, *, known: bool = True) -> bool:
        if not endpoint.serves(entry.model) or entry.excludes(endpoint.name, now):
            return False
        if not self.computes(entry, endpoint):
            return False
        prompt_alone = endpoint.role is Role.PREFILL and not entry.whole
        needed = entry.prompt_tokens if prompt_alone else entry.estimated_tokens
        prefill_tokens, tokens = self._room(entry, endpoint, now, known=known)
        if entry.uncached_at(endpoint.index) > prefill_tokens or needed > tokens:
            return False
        return self._leaves_one_clear(entry, endpoint, now, known=known)

    def _room(self, entry: Entry, endpoint: Endpoint, now: float, *, known: bool) -> Room:
        """Returns an endpoint's room for a request; if it is tried against its gauges, these are ignored."""
        settings, band = self._state.settings.admission, self._state.queues.bands[entry.band]
        tried = endpoint.ledger.page.closed_s is not None and admission.by_page(
            endpoint, band.settings, settings, None, now=now
        )
        room = admission.room(endpoint, settings, tried=tried, now=now)
        return admission.over_share_room(room, endpoint) if self._is_over_share(entry, now, known=known) else room

    def _leaves_one_clear(self, entry: Entry, endpoint: Endpoint, now: float, *, known: bool) -> bool:
        """True if a long prompt leaves under-share requests another endpoint that is soon done computing.

        If not `known`, that endpoint has to have been so for a while: time alone may have made it so just now.
        """
        passed = self._state.backfill.passed
        backfilled = entry.backfilled - (known and entry in passed)  # counted just now, by this very choice
        if not self._is_over_share(entry, now, known=known) or backfilled >= PASSED_MAX:
            return True
        patience_s = self._state.stagger.patience_s
        if entry.uncached_at(endpoint.index) / endpoint.ledger.speed.rate <= patience_s:
            return True
        when = now if known else now - STEP_S - ROUNDING_S
        roles, model = self._state.pool.roles, entry.model
        others = [e for e in self._state.pool if e.serves(model) and roles.computes(e, model, whole=False)]
        others = [e for e in others if self.healthy(e, now) and e is not endpoint]
        others = [e for e in others if when <= e.ledger.prefill.overdue_s]
        left_s = [e.ledger.prefill.left(when) / e.ledger.speed.rate for e in others]
        return not left_s or min(left_s) <= patience_s

    def computes(self, entry: Entry, endpoint: Endpoint) -> bool:
        """True if its role lets an endpoint compute a request's prompt."""
        if endpoint.role is Role.BOTH:
            return True
        well = [e for e in self._state.pool if e.in_service and e.serves(entry.model)]
        if endpoint.role is Role.PREFILL:
            return not entry.whole and any(e.role is Role.DECODE for e in well)
        return entry.whole or not any(e.role is Role.PREFILL for e in well)

    def _known_open(self, entry: Entry) -> list[Endpoint]:
        state = self._state
        return [e for e in state.queues.bands[entry.band].open if e not in state.backfill.reserved]

    def _answered(
        self, entry: Entry, fitting: list[Endpoint], free: list[Endpoint], now: float, *, known: bool = True
    ) -> list[Endpoint]:
        """Without prefill endpoints if no free decode endpoint would take over."""
        for e in free:
            answers = e.role is Role.DECODE and e.serves(entry.model) and not entry.excludes(e.name, now)
            if answers and entry.estimated_tokens <= self._room(entry, e, now, known=known)[1]:
                return fitting
        return [e for e in fitting if e.role is not Role.PREFILL]

    def _allowed(self, entry: Entry, fitting: list[Endpoint], now: float, *, known: bool = True) -> list[Endpoint]:
        """Returns the endpoints that a request fits and may take: none during an affinity wait for another."""
        affinity = self._state.affinity
        if not entry.affinity.may_wait or not fitting:
            return fitting
        only = affinity.only(entry, now)
        if only is not None:
            return [e for e in fitting if e is only]
        if entry.wait_s_max <= 0.0:
            return fitting
        held = bool(entry.affinity.preferred) and affinity.waits_until_s(entry, fitting, now) > now
        if not known and affinity.weighs_wait:  # the worth of a wait changes with every engine step
            held = bool(entry.affinity.preferred) and now < entry.affinity.until_s
        return [] if held or now < entry.affinity.locate_until_s else fitting

    def _is_over_share(self, entry: Entry, now: float, *, known: bool) -> bool:
        """True if the request's flow is over its share while under-share requests keep arriving.

        Such a request leaves room for them. If not `known`, True if that may be so.
        """
        model = entry.model
        if known:
            under_share_come = self._state.reserved.under_share_come(model, now)
            top = _top(entry)
            bands = self._state.queues.bands
            above = bands[entry.band].credit <= 0 and any(model in band.tree.models() for band in bands[: entry.band])
            judge = self._state.under_share.asked_under_share
            return under_share_come and (top.parent is None or above or not judge(top, now))
        return self._under_share_come(model, now)

    def _under_share_come(self, model: str, now: float) -> bool:
        """True if requests of under-share flows were seen in the last minute or so."""
        reserve = self._state.reserved
        arrivals = reserve._arrivals.get(model)
        return reserve.share is None and arrivals is not None and arrivals.per_s(now) > 0.001

    def _tenant_held(self, entry: Entry) -> bool:
        for account in entry.request.accounts:
            limits = self._state.settings.tenants.get(account)
            if limits is not None and limits.running is not None:
                running = sum(account in x.request.accounts for x in self._state.leases.values())
                if running >= limits.running:
                    return True
        return False

    def _open(self, endpoint: Endpoint, band: Band, now: float) -> bool:
        settings = self._state.settings.admission
        return self.healthy(endpoint, now) and admission.closed(endpoint, band.settings, settings, now=now) is None

    def healthy(self, endpoint: Endpoint, now: float) -> bool:
        health = endpoint.health
        if not health.up or endpoint.drained or now < health.held_until_s:
            return False
        proof = endpoint.proof
        if (proof.closed or not (proof.vouched or proof.answered)) and (endpoint.ledger.leases or now < proof.try_s):
            return False
        if now < endpoint.first_until_s:
            return False
        if now >= health.ejected_until_s:
            leases = endpoint.ledger.leases
            return (
                health.trial is None or len(leases) < health.trial or now >= health.trial_until_s
            ) and not endpoint.liveness.closed(endpoint.ledger, now)
        peers = [e for e in self._state.pool if e.in_service and e.role is endpoint.role]
        peers = [e for e in peers if e.shares_models(endpoint)]
        well = sum(now >= e.health.ejected_until_s for e in peers)
        return well / len(peers) < self._state.settings.health.panic_threshold


def _path(entry: Entry) -> list[Node]:
    """From the top level down to the entry's flow."""
    path: list[Node] = []
    node: Node | None = entry.node
    while node is not None and node.parent is not None:
        path.insert(0, node)
        node = node.parent
    return path


def _top(entry: Entry) -> Node:
    path = _path(entry)
    return path[0] if path else entry.node


def _any_held(entry: Entry) -> bool:
    return any(node.capped for node in _path(entry))


def _rank(entry: Entry) -> tuple[list[tuple[float, int]], tuple[int, float], int]:
    return [(node.tag, node.index) for node in _path(entry)], entry.key, entry.seq
