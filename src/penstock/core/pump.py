"""Which request is sent next, and to which endpoints may it go: bands, turns, room, in that order.

The head of the fair order goes first. When it does not fit the room that is left (DESIGN §4.9: its prompt, its KV
memory), those behind it may overtake it, within a window and so many times; then room is kept for it. When the slots
that are left are kept for flows under their fair share, only such flows are looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from penstock.core import admission
from penstock.core.admission import Cause, Room
from penstock.core.affinity import Affinity
from penstock.core.band import Band
from penstock.core.endpoint import Endpoint
from penstock.core.fairness.tree import Node, QueueTree, top
from penstock.core.flow import Entry
from penstock.core.grouping import Group, Grouping
from penstock.core.lifecycle import TERMINAL, State
from penstock.core.pool import Pool
from penstock.core.queues import Queues
from penstock.core.reserve import FREES_MAX, Reserve
from penstock.core.roles import Role
from penstock.core.settings import AdmissionSettings, BandSettings
from penstock.core.stagger import Stagger
from penstock.core.stops import Stops
from penstock.core.tenants import Tenants

WINDOW = 32  # requests looked at, in fair order, when the first ones do not fit
BYPASS_MAX = 32  # times one request may be overtaken by others that fit; then room is kept for it
HELD_MAX = 1_024  # looked at beyond the window to find it, where those of held tenants stand between all others
RESERVE_REVIEW_S = 1.0  # how often a reserve is looked at again; light arrivals are forgotten over ten seconds
FORESEEN_SLOTS_MAX = 64  # of a pool whose leases' ends are foreseen one by one; rates are exact enough beyond
DEMAND_WINDOW_S = 30.0  # some tens of requests of a light flow; shorter calls a burst of three a flood
LIGHT_WAITING_MAX = 3  # requests of a light flow that wait: more is a backlog, whatever it holds and asked for
DEMAND_PLAY = 2.0  # a handful of requests of very different sizes is easily twice its mean
UNBOUNDED = (math.inf, math.inf)
CREDIT_REQUESTS_MAX = 64.0  # what a band's promised share may save up, in requests of the size at hand

Found = tuple[Entry, list[Endpoint]]


class Pump:
    """Finds what may be sent. Changes nothing but what bands remember of endpoints, and who was overtaken."""

    def __init__(
        self,
        queues: Queues,
        pool: Pool,
        settings: AdmissionSettings,
        reserve: Reserve,
        tenants: Tenants,
        *,
        stops: Stops,
        affinity: Affinity,
        grouping: Grouping,
        tenant_level: int | None,
        look: Callable[[Entry, float], bool],
        look_again: Callable[[Endpoint, float], None],
    ) -> None:
        self._queues = queues
        self._pool = pool
        self._reserve = reserve
        self._tenants = tenants
        self._stops = stops
        self._affinity = affinity
        self._grouping = grouping
        self._starved: list[Entry] = []  # overtaken as often as may be: room is kept for those of them that wait
        self._tenant_level = tenant_level
        self._passed: list[Entry] = []  # in this turn: requests that did not fit
        self._kept: set[Endpoint] = set()  # in this turn: endpoints whose room is kept for some of them
        self._work = 0.0  # sent, fading
        self._work_s = 0.0
        self._held: dict[str, list[tuple[QueueTree, Node]]] = {}  # by tenant
        self.stagger = Stagger(pool, look_again)
        self._look = look  # again who holds its prompt's prefix; True: by now more of it is held
        self._look_again = look_again
        self.reconfigured(settings)

    def reconfigured(self, settings: AdmissionSettings) -> None:
        """Other limits, and perhaps other bands, from now on. Whose tenant may run no more is found out anew."""
        self._settings = settings
        self._promised = [band for band in self._queues.bands if band.settings.min_share > 0]
        for tenant in list(self._held):
            self.let_go(tenant)

    def next(self, now: float) -> Found | None:
        """The request to send next and the endpoints it may go to."""
        self._passed.clear()
        self._kept.clear()
        self.stagger.begin()
        for band in self._turns():
            found = self._next_of(band, now)
            if found is not None:
                self._passed = [x for x in self._passed if any(e.serves(x.request.model) for e in found[1])]
                for overtaken in self._passed:
                    overtaken.bypassed += 1
                    if overtaken.bypassed == BYPASS_MAX:
                        self._starved = [x for x in self._starved if x.state not in TERMINAL]
                        self._starved.append(overtaken)
                return found
        return None

    def sent(self, entry: Entry, now: float) -> None:
        """Count what was sent: for fair shares, and what a band got against what those below it were promised."""
        self._work = self._served(now) + entry.work
        self._work_s = now
        for band in self._promised:
            if not band.tree.waiting:
                band.credit = 0.0
                continue
            band.credit = min(band.credit + band.settings.min_share * entry.work, CREDIT_REQUESTS_MAX * entry.work)
            if band.rank == entry.request.band:
                # What it got while nobody above it wanted anything is not held against its share later on.
                band.credit = max(band.credit - entry.work, -entry.work)

    def closed(self, endpoint: Endpoint, band: BandSettings, now: float) -> Cause | None:
        """Why an endpoint is closed to a band."""
        return self._pool.unhealthy(endpoint, now) or admission.closed(endpoint, band, self._settings, now=now)

    def open_to(self, endpoint: Endpoint, entry: Entry, now: float) -> bool:
        """Whether an endpoint would take this very request now."""
        band = self._queues.bands[entry.request.band].settings
        return (
            self.closed(endpoint, band, now) is None
            and admission.misfit(entry, endpoint, self._settings, now=now) is None
        )

    def asked(self, entry: Entry, now: float) -> None:
        """A request came to its flow: note what the flow asks for."""
        node = top(entry.node_of())
        if node.parent is None:
            return  # all requests stand in one flow
        node.demand = node.demand * math.exp((node.demand_s - now) / DEMAND_WINDOW_S) + entry.work
        node.demand_s = now
        self._reserve.weight_seen(node.parent.active_weight + (0.0 if node.active else node.weight), now)

    def wants_slots(self, endpoint: Endpoint) -> bool:
        """Whether the highest that wait for what it serves wait for slots: all are taken, or what is free is kept."""
        for band in self._queues.bands:
            if any(endpoint.serves(model) for model in band.tree.root.backlog):
                return endpoint in band.open or band.closed.get(endpoint) is Cause.SLOTS_FULL
        return False

    def alone(self, entry: Entry, now: float) -> list[Endpoint]:
        """Where a newcomer may go while nobody else waits; empty: nowhere, or it takes the queue to tell.

        That is what `next` would find if it had been pushed into its queue. Of all bands only its own would have work,
        so turns, promised shares and the fair order choose among one: the head of its flow is itself. Nobody can be
        overtaken, none was bumped, and no room is kept for anybody. What remains of `next` is asked here, in the same
        words: which endpoints are open to the band, whether the slots left are kept for light flows, whether its model
        and its tenant may be sent, and which endpoints it fits. Whatever is not plain (kept slots, affinities, divided
        requests) is left to the queue, which this leaves as it was.
        """
        request = entry.request
        band = self._queues.bands[request.band]
        if band.unchecked:
            self._check_open(band, now)
        if entry.choosy or self._pool.roles.any or not band.open or not self._stops.sends(request.model):
            return []
        self._kept.clear()
        self.stagger.begin()
        free = list(band.open)
        if self._kept_back(request.model, band, free, now):
            return []
        return self._fitting(entry, free, now)

    def arrived(self, entry: Entry, now: float) -> None:
        """It is about to join its flow: note whether it is what slots are kept for."""
        node, model = top(entry.node_of()), entry.request.model
        if node.parent is not None and self._under_share(node, model, now):
            self._queues.bands[entry.request.band].note_light(node, model)
            crowded = any(model in band.tree.root.backlog for band in self._queues.bands)
            if crowded and node.waiting <= LIGHT_WAITING_MAX:
                self._reserve.arrived(model, now)

    def returned(self, entry: Entry, now: float) -> None:
        """It is about to join its flow again: slots are kept for it as for a newcomer, but it came only once."""
        node, model = top(entry.node_of()), entry.request.model
        if node.parent is not None and self._under_share(node, model, now):
            self._queues.bands[entry.request.band].note_light(node, model)

    def may_go(self, entry: Entry, now: float) -> bool:
        """Whether a newcomer changes what can be sent: nobody else could be a moment ago, and it opens no way for them.

        Most that come to a full pool don't, and this is a tenth of the price of finding out by looking at all.
        """
        band, model = self._queues.bands[entry.request.band], entry.request.model
        if band.unchecked:
            return True
        self._kept.clear()
        free = self._serving(model, list(band.open))
        if not free or not self._kept_back(model, band, free, now):
            return bool(free)
        return self._under_share(top(entry.node_of()), model, now)

    def hold(self, entry: Entry) -> bool:
        """The entry's tenant runs as many requests as it may: pass over its flow. False: that is shared with others."""
        if self._tenant_level is None:
            return False
        path: list[Node] = []
        node = entry.node_of()
        while node.parent is not None:
            path.append(node)
            node = node.parent
        if len(path) <= self._tenant_level:
            return False
        own = path[-1 - self._tenant_level]
        if not own.held:
            tree = self._queues.bands[entry.request.band].tree
            tree.hold(own)
            self._held.setdefault(entry.request.tenant, []).append((tree, own))
        return True

    def let_go(self, tenant: str) -> None:
        """The tenant may run more again."""
        for tree, node in self._held.pop(tenant, ()):
            tree.let_go(node)

    # --- turns ------------------------------------------------------------------------------------------------

    def _turns(self) -> Iterator[Band]:
        """Bands with work: first those that are owed of their promised share, then by rank."""
        for band in self._promised:
            if band.credit > 0 and band.tree.root.waiting:
                yield band
        for band in self._queues.bands:
            if band.tree.root.waiting:
                yield band

    def _next_of(self, band: Band, now: float) -> Found | None:
        if band.unchecked:
            self._check_open(band, now)
        if not band.open:
            return None
        free = [e for e in band.open if e not in self._kept] if self._kept else list(band.open)
        models = [m for m in band.tree.root.backlog if any(e.serves(m) for e in free) and self._stops.sends(m)]
        if band.bumped:
            found = self._first_fit(_of_models(band.bumped, models), free, now)
            if found is not None:
                return found
        scarce = [model for model in models if self._kept_back(model, band, free, now)]
        if self._grouping.any and (found := self._follower(band, models, scarce, free, now)) is not None:
            return found
        for model in scarce:
            found = self._first_fit(self._light(band, model, now), free, now)
            if found is not None:
                return found
        if scarce:
            models = [model for model in models if model not in scarce]
        return self._in_turn(band, models, free, now) if models else None

    def _in_turn(self, band: Band, models: list[str], free: list[Endpoint], now: float) -> Found | None:
        """The head of the fair order, or, where it does not fit the room that is left, who may overtake it."""
        head = self._head(band, models)
        if head is None:
            return None  # all flows are held
        free_to_head = [e for e in free if e not in self._kept] if self._kept else free
        endpoints = self._fitting(head, free_to_head, now)
        if not endpoints and head.request.prefix and self._look(head, now):
            endpoints = self._fitting(head, free_to_head, now)
        if endpoints:
            return head, endpoints
        found = None
        if self.is_modest(head, now):  # it leaves room for light flows, which may stand far behind it by now
            found = self._first_fit(self._light(band, head.request.model, now), free, now)
        return found or self._overtake(band, models, free, now)

    def _head(self, band: Band, models: list[str]) -> Entry | None:
        """Who is next in fair order. Flows of tenants that run all they may are held when they are met here."""
        head = band.tree.head(models)
        while head is not None and self._tenants.held(head.request.tenant) and self.hold(head):
            head = band.tree.head(models)
        return head

    def _check_open(self, band: Band, now: float) -> None:
        for endpoint in band.unchecked:
            cause = self.closed(endpoint, band.settings, now)
            if cause is None:
                # Slots are counted where requests are answered: what only computes prompts has none to keep.
                answers = endpoint.role is not Role.PREFILL
                band.opened(endpoint, endpoint.ledger.slots - endpoint.ledger.load(now) if answers else 0.0)
                endpoint.room = room = admission.room(endpoint, self._settings, now=now)
                endpoint.modest_room = admission.modest(room, endpoint)
                if room != UNBOUNDED:
                    self._look_again(endpoint, endpoint.ledger.review_s(now))
            else:
                band.closed[endpoint] = cause
                self._look_again(endpoint, admission.lifts_s(cause, endpoint, now=now))
        band.unchecked.clear()

    # --- those with the same prefix -------------------------------------------------------------------------------

    def _follower(
        self, band: Band, models: list[str], scarce: list[str], free: list[Endpoint], now: float
    ) -> Found | None:
        """One that may follow, out of its turn, the last one that was sent somewhere in its turn.

        Of the `scarce` models the last slots are kept for flows under their share.
        """
        head: Entry | None = None
        for endpoint in free:
            group = self._grouping.group(endpoint, now)
            if group is None or endpoint in self._kept or self._room_is_kept(endpoint, now):
                continue
            for entry in self._grouping.candidates(group):
                model = entry.request.model
                if entry.request.band != band.rank or model not in models:
                    continue
                if model in scarce and not self._under_share(top(entry.node_of()), model, now):
                    continue
                head = head or self._head(band, models)
                if entry is head:
                    break  # it is its turn
                if self._may_follow(entry, group, models, now):
                    entry.follows = group.leader.id
                    if head is not None and head.request.model not in scarce:
                        self._passed_by_follower(head, free, now)
                    return entry, [endpoint]
        return None

    def _passed_by_follower(self, head: Entry, free: list[Endpoint], now: float) -> None:
        """Somebody goes before the one whose turn it is: it is overtaken if it would not fit anyway."""
        if not self._fitting(head, free, now) and not (head.choosy and self._affinity.holds(head, now)):
            self._passed.append(head)

    def _room_is_kept(self, endpoint: Endpoint, now: float) -> bool:
        """Whether one that was overtaken as often as may be waits for room there."""
        return any(
            x.state is State.WAITING and endpoint.serves(x.request.model) and not x.shuns(endpoint.name, now)
            for x in self._starved
        )

    def _may_follow(self, entry: Entry, group: Group, models: list[str], now: float) -> bool:
        """Whether it may go out of its turn, has room there, and no better place to go to."""
        if self._tenants.held(entry.request.tenant):
            return False
        if not self._grouping.in_order(entry) or not self._grouping.in_bound(entry, models):
            return False
        self._look(entry, now)
        return self._affinity.at_home(entry, group.endpoint, now) and bool(self._fitting(entry, [group.endpoint], now))

    # --- room -------------------------------------------------------------------------------------------------

    def _serving(self, model: str, endpoints: list[Endpoint]) -> list[Endpoint]:
        """Those of the endpoints that serve a model."""
        if self._pool.uniform:
            return endpoints if endpoints and endpoints[0].serves(model) else []
        return [endpoint for endpoint in endpoints if endpoint.serves(model)]

    def _fitting(self, entry: Entry, endpoints: list[Endpoint], now: float) -> list[Endpoint]:
        """The endpoints, of those that are open, with room for this very request."""
        if self._tenants.held(entry.request.tenant):
            return []
        model = entry.request.model
        prompt_tokens, tokens = entry.estimate.prompt_tokens, entry.estimated_tokens
        cached = entry.cached_tokens > 0
        avoid = entry.avoid is not None
        fitting: list[Endpoint] = []
        modest = self.is_modest(entry, now)
        if self._pool.roles.any:
            endpoints = self._computing(entry, endpoints, now)
        for endpoint in self._serving(model, endpoints):
            prefill_room, kv_room = endpoint.modest_room if modest else endpoint.room
            if cached:
                prompt_tokens = entry.uncached_at(endpoint.index)
            if prompt_tokens > prefill_room or (tokens > kv_room and admission.kv_tokens(entry, endpoint) > kv_room):
                continue
            if avoid and entry.shuns(endpoint.name, now):
                self._look_again(endpoint, entry.shuns_until_s(endpoint.name))
            else:
                fitting.append(endpoint)
        if modest and fitting and entry.bypassed < BYPASS_MAX:
            fitting = self.stagger.allowed(entry, fitting, now)
        return self._affinity.allowed(entry, fitting, now) if entry.choosy else fitting

    def is_modest(self, entry: Entry, now: float) -> bool:
        """Whether it has to leave room for light flows.

        What counts is what its flow asked for of late: where prompts or memory are scarce, a flood holds few slots.
        """
        if not self._reserve.light_come(entry.request.model, now):
            return False
        node = top(entry.node_of())
        return node.parent is None or not self._asked_little(node, now)

    # --- roles ------------------------------------------------------------------------------------------------

    def _computing(self, entry: Entry, endpoints: list[Endpoint], now: float) -> list[Endpoint]:
        """Those that may compute its prompt: prefill endpoints only where there is one now that would answer it."""
        roles, model = self._pool.roles, entry.request.model
        computing = [e for e in endpoints if roles.computes(e, model, whole=entry.whole)]
        if any(e.role is Role.PREFILL for e in computing) and not self.partners(entry, now):
            return [e for e in computing if e.role is not Role.PREFILL]
        return computing

    def partners(self, entry: Entry, now: float) -> list[Endpoint]:
        """The decode endpoints that have room for a divided request now."""
        model, modest, found = entry.request.model, self.is_modest(entry, now), []
        for endpoint in self._queues.bands[entry.request.band].open:
            if endpoint.role is not Role.DECODE or endpoint in self._kept or not endpoint.serves(model):
                continue
            if entry.estimated_tokens > (endpoint.modest_room if modest else endpoint.room)[1]:
                continue
            if entry.avoid is not None and entry.shuns(endpoint.name, now):
                self._look_again(endpoint, entry.shuns_until_s(endpoint.name))
            else:
                found.append(endpoint)
        return found

    def _overtake(self, band: Band, models: list[str], free: list[Endpoint], now: float) -> Found | None:
        """The first of those behind the head that fits somewhere, unless someone passed over too often needs it.

        If none of the first in fair order fits, each model is looked at alone, so that many requests that do not
        fit hide only others of their own model.
        """
        alone = band.tree.waiting == self._queues.waiting  # no other band has work, so nobody is overtaken by one
        if alone and band.prompt_tokens_min() > max((e.room[0] for e in free), default=0.0):
            return None  # nothing that waits is small enough: no need to look at each
        found = self._first_fit(band.tree.in_order(models), free, now)
        if found is None and len(models) > 1:
            for model in models:
                found = self._first_fit(band.tree.in_order([model]), free, now)
                if found is not None:
                    break
        return found

    def _first_fit(self, line: Iterator[Entry], free: list[Endpoint], now: float) -> Found | None:
        """The first of a line, within the window, that fits. Notes who is passed over, and what is kept for whom."""
        looked_at, prefill_room, kv_room = 0, -1.0, -1.0
        for entry in islice(line, HELD_MAX):
            if self._tenants.held(entry.request.tenant):
                continue
            if prefill_room < 0:  # most lines are empty, and cost nothing
                free = [e for e in free if e not in self._kept] if self._kept else free
                prefill_room, kv_room = _largest_room(free)
            if entry.uncached_tokens <= prefill_room and entry.estimated_tokens <= kv_room:
                left = [e for e in free if e not in self._kept] if self._kept else free
                endpoints = self._fitting(entry, left, now)
                if endpoints:
                    return entry, endpoints
            if entry.choosy and self._affinity.holds(entry, now):
                continue  # nobody overtakes it: it waits for an endpoint of its own
            looked_at += 1
            if entry not in self._passed:
                self._passed.append(entry)
            if entry.bypassed >= BYPASS_MAX:
                model = entry.request.model
                self._kept.update(e for e in free if e.serves(model) and not entry.shuns(e.name, now))
            if looked_at >= WINDOW:
                break
        return None

    # --- the reserve ------------------------------------------------------------------------------------------

    def kept(self, model: str, now: float) -> int:
        """Slots of a model that only flows under their share may use."""
        return self._reserve.kept(model, self._pool.slots(model), self._frees_s, now)

    def _kept_back(self, model: str, band: Band, endpoints: list[Endpoint], now: float) -> bool:
        """Whether the slots that are left for a model are kept for flows under their share."""
        kept = self.kept(model, now)
        if kept <= 0:
            return False
        if self._pool.uniform and not self._kept:
            free = band.free_slots
        else:
            free = sum(band.open[e] for e in endpoints if e.serves(model))
        if free > kept:
            return False
        # Light arrivals are forgotten, so time alone may shrink the reserve.
        self._look_again(endpoints[-1], now + RESERVE_REVIEW_S)
        return True

    def _frees_s(self, model: str, now: float) -> list[float]:
        """In how many seconds the next slots will free: foreseen in a small pool, by their rate in a large one.

        Never sooner than in an engine step: what ends, ends at its end, and all of it together.
        """
        foreseen = self._pool.slots(model) <= FORESEEN_SLOTS_MAX
        step_s, ends_s = 0.0, []
        for endpoint in self._pool:
            pace_s = endpoint.ledger.time_per_output_token_s(now) if endpoint.serves(model) else 0.0
            step_s = max(step_s, pace_s)
            if foreseen and pace_s > 0:
                ends_s += [lease.ends_s(pace_s, now) - now for lease in endpoint.ledger.leases.values()]
        per_s = self._reserve.freed_per_s(model, now)
        if not ends_s and per_s > 0:
            ends_s = [(k + 1) / per_s for k in range(FREES_MAX)]
        return [max(end_s, step_s) for end_s in sorted(ends_s)[:FREES_MAX]]

    def _light(self, band: Band, model: str, now: float) -> Iterator[Entry]:
        """The requests for a model of flows that are under their share, in fair order.

        They are remembered from their arrival, for they need not be among the first: a flood that is held back falls
        behind its fair share of the tokens, and then stands before the light flows for whom the slots are kept.
        """
        head = self._head(band, [model])
        if head is not None and self._tenants.held(head.request.tenant):  # its flow is shared with others
            line = islice(band.tree.in_order([model]), HELD_MAX)
            head = next((x for x in line if not self._tenants.held(x.request.tenant)), None)
        first = top(head.node_of()) if head is not None else None
        if first is not None and self._under_share(first, model, now):
            yield from band.tree.in_order([model], first)
        for node in band.light_flows(model):
            if not self._under_share(node, model, now):
                band.no_longer_light(node, model)
            elif node is not first:
                yield from band.tree.in_order([model], node)

    def _under_share(self, node: Node, model: str, now: float) -> bool:
        """Whether a flow takes no more than its fair share: of the slots, or of the work, of late.

        Judged by slots alone, a burst of a light flow would be shut out just when it needs what is kept for it; by work
        alone, a light flow whose few requests happened to be large. A flood exceeds both.
        """
        if node.parent is None:
            return False
        return node.in_flight + 1 <= self._pool.slots(model) * self._part(node, now) or self._asked_little(node, now)

    def _asked_little(self, node: Node, now: float) -> bool:
        """Whether a flow asked for no more than its fair share of the work of late, give or take."""
        demand = node.demand * math.exp((node.demand_s - now) / DEMAND_WINDOW_S)
        return demand <= DEMAND_PLAY * self._served(now) * self._part(node, now)

    def _part(self, node: Node, now: float) -> float:
        """The share that a flow's weight gives it among those active lately."""
        assert node.parent is not None
        active = node.parent.active_weight + (0.0 if node.active else node.weight)
        return node.weight / max(active, self._reserve.weight(now))

    def _served(self, now: float) -> float:
        """The work that was sent lately, over the same window as demands."""
        return self._work * math.exp((self._work_s - now) / DEMAND_WINDOW_S)


def _of_models(entries: Mapping[int, Entry], models: list[str]) -> Iterator[Entry]:
    for entry in entries.values():
        if entry.request.model in models:
            yield entry


def _largest_room(endpoints: list[Endpoint]) -> Room:
    """What no request exceeds that fits any of them, in each measure."""
    most_prefill = most_kv = 0.0
    for endpoint in endpoints:
        prefill_room, kv_room = endpoint.room
        most_prefill = max(most_prefill, prefill_room)
        most_kv = max(most_kv, kv_room)
    return most_prefill, most_kv
