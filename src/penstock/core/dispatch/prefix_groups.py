"""Which of those who wait may follow a request to its endpoint, because their prompts begin alike?

A prompt's cache is worth most right after it was filled. Who is sent in its turn leads a *group*: up to K waiting
requests whose prompts share at least `prefix_group_tokens` with its own may go to the same endpoint before others' turn
comes, whenever that endpoint is open to them, until the next one goes there in its turn.

Turns stay fair: a flow may be ahead of the one whose turn it is by K of its requests at their full price, so the bound
of fairness grows by K * c_max. In its own flow a request is overtaken by followers a limited number of times, and only
where arrival is the order. Who waits is found by keys at depths that double, those who share most first
(docs/design.md#group-dispatch).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.charges import Charges
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import BYTES_PER_TOKEN
from penstock.core.queueing.fair_tree import Node
from penstock.core.values.request import Key, Request
from penstock.core.values.settings import RoutingSettings

CANDIDATES_MAX = 8  # flows looked at to find one follower; the ones that may not go are looked at last the next time
CHUNKS_MAX = 1 << 20  # of a prompt: half a gigabyte; no body is as long
GROUP_S = 30.0  # what an engine under load computed earlier than that may be gone from its cache
OVERTAKEN_MAX = (
    32  # times that one request is overtaken in its own flow: as often as by those that fit where it does not
)
EPSILON = 1e-9

Flows = dict[Node, dict[int, Entry]]  # flow -> by arrival number


class PrefixGroup:
    """Who went to an endpoint in its turn, and how many may follow it."""

    __slots__ = ("endpoint", "found", "keys", "leader", "left", "until_s")

    def __init__(self, endpoint: Endpoint, leader: Request, keys: tuple[Key, ...], left: int, until_s: float) -> None:
        self.endpoint = endpoint
        self.leader = leader
        self.keys = keys  # that followers are found by, the deepest first
        self.left = left
        self.until_s = until_s
        self.found: list[PossibleFollower] | None = None  # who may follow it, while nobody comes or goes who might


class PossibleFollower:
    """One who may follow, as it is found by one key."""

    __slots__ = ("_flows", "again", "entry")

    def __init__(self, entry: Entry, flows: Flows | None, *, again: bool = False) -> None:
        self.entry = entry
        self.again = again  # it was found by a key before this one
        self._flows = flows  # all who are found by this key, where it is not the only one

    def passed_over(self) -> None:
        """It may not go: of those who are found by this key its flow is looked at last the next time."""
        flows = self._flows
        if flows is not None and len(flows) > 1:
            node = self.entry.node_of()
            own = flows[node]
            del flows[node]
            flows[node] = own


class PrefixGroups:
    """The waiting by how their prompts begin, and the group of each endpoint."""

    def __init__(self, settings: RoutingSettings, charges: Charges, *, by_arrival: Sequence[bool]) -> None:
        self._waiting: dict[Key, Entry | Flows] = {}  # by key: the only one, as of most, or all of them
        self._groups: dict[Endpoint, PrefixGroup] = {}
        self._led: dict[Key, dict[PrefixGroup, None]] = {}  # the groups whose followers are found by a key
        self._depths: dict[tuple[int, bool], tuple[int, ...]] = {}  # by how prompts are cut: one or two ways
        self.reconfigured(settings, charges, (), by_arrival=by_arrival)

    def reconfigured(
        self, settings: RoutingSettings, account: Charges, waiting: Iterable[Entry], *, by_arrival: Sequence[bool]
    ) -> None:
        """Follow other `settings`; those that wait may stand in other flows now."""
        self._charges = account
        self.size = settings.prefix_group
        self._tokens_min = settings.prefix_group_tokens
        self._by_arrival = by_arrival  # by band
        self._waiting.clear()
        self._groups.clear()
        self._led.clear()
        self._depths.clear()
        for entry in waiting:
            _unfound(entry)
            self.waits(entry)

    @property
    def any(self) -> bool:
        """Whether anybody waits who could follow, and anybody was sent who could be followed."""
        return bool(self._waiting and self._groups)

    # --- what happens -------------------------------------------------------------------------------------------

    def waits(self, entry: Entry) -> None:
        """Note that `entry` stays in the queue, where others of its prefix find it."""
        if not self.size or not entry.request.prefix:
            return
        node = entry.node_of()
        keys = self._keys(entry.request)
        if keys:
            entry.own_dispatch().group_keys = keys
        waiting, led, seq = self._waiting, self._led, entry.seq
        for key in keys:
            if key in led:
                self._sought_anew(key)
            found = waiting.get(key)
            if found is None:
                waiting[key] = entry
            elif isinstance(found, Entry):
                waiting[key] = flows = {found.node_of(): {found.seq: found}}
                flows.setdefault(node, {})[seq] = entry
            else:
                found.setdefault(node, {})[seq] = entry

    def left(self, entry: Entry) -> None:
        """Note that `entry` no longer waits."""
        node, led = entry.node_of(), self._led
        for key in entry.dispatch.group_keys:
            if key in led:
                self._sought_anew(key)
            found = self._waiting[key]
            if isinstance(found, Entry):
                del self._waiting[key]
                continue
            own = found[node]
            del own[entry.seq]
            if not own:
                del found[node]
                if not found:
                    del self._waiting[key]
        _unfound(entry)

    def sent(self, entry: Entry, endpoint: Endpoint, now: float) -> None:
        """Note that `entry`, which stood in the queue until now, goes to `endpoint`: as a follower, or in its turn."""
        if entry.dispatch.follows is not None:
            self._groups[endpoint].left -= 1
            leaf = entry.node_of().leaves[entry.model]
            if leaf.head() is not entry:
                leaf.passed_by_follower()
        elif self.size and entry.request.prefix and (self._has_siblings(entry) or self.group(endpoint, now) is None):
            keys = self._keys(entry.request)[::-1]
            self.gone(endpoint)
            self._groups[endpoint] = group = PrefixGroup(endpoint, entry.request, keys, self.size, now + GROUP_S)
            for key in keys:
                self._led.setdefault(key, {})[group] = None

    def forget_leader(self, entry: Entry) -> None:
        """Forget whom `entry` followed: if it comes back, it waits for its own turn."""
        if entry.dispatch.follows is not None:
            entry.dispatch.follows = None

    def gone(self, endpoint: Endpoint) -> None:
        """Forget the group at `endpoint`: the endpoint is gone, or another group is there."""
        group = self._groups.pop(endpoint, None)
        if group is None:
            return
        for key in group.keys:
            groups = self._led[key]
            del groups[group]
            if not groups:
                del self._led[key]

    # --- who may follow -----------------------------------------------------------------------------------------

    def group(self, endpoint: Endpoint, now: float) -> PrefixGroup | None:
        """Returns the group that may still grow at an endpoint; None if there is none."""
        group = self._groups.get(endpoint)
        return group if group is not None and group.left > 0 and now < group.until_s else None

    def candidates(self, group: PrefixGroup) -> list[PossibleFollower]:
        """Returns of each flow the request that waits longest, those first that share most with the leader.

        They are looked for again when a request that is found by one of the keys comes or goes, or each time, where
        several flows are found by one key: these take turns.
        """
        if group.found is not None:
            return group.found
        found: list[PossibleFollower] = []
        looked_at, by_turns, waiting = 0, False, self._waiting
        for key in group.keys:
            waits = waiting.get(key)
            if waits is None:
                continue  # as mostly
            if isinstance(waits, Entry):
                again = _among(waits, found)
                if not again and looked_at < CANDIDATES_MAX:
                    looked_at += 1
                    found.append(PossibleFollower(waits, None))
                continue
            left = CANDIDATES_MAX - looked_at
            by_turns = by_turns or len(waits) > 1
            for own in waits.values():
                if left == 0:
                    break
                left -= 1
                for entry in own.values():
                    again = _among(entry, found)
                    looked_at += not again
                    found.append(PossibleFollower(entry, waits, again=again))
                    break  # the one that waits longest
        if not by_turns:
            group.found = found = [candidate for candidate in found if not candidate.again]
        return found

    def in_bound(self, entry: Entry, models: Collection[str]) -> bool:
        """True if the request's flow may be served out of its turn now, with regard to all that wait for one of the
        models.
        """
        may_lead = (self.size - 1) * self._charges.full_cost(entry) + EPSILON
        node = entry.node_of()
        while (parent := node.parent) is not None:
            if node.capped:
                return False
            turn = math.inf
            for model in models:
                first = parent.first(model)
                if first is not None and first.tag < turn:
                    turn = first.tag
            if turn == math.inf or (node.tag - turn) * node.weight > may_lead:
                return False
            node = parent
        return True

    def in_order(self, entry: Entry) -> bool:
        """True if a request may go before those that stand before it in its own flow."""
        leaf = entry.node_of().leaves[entry.model]
        head = leaf.head()
        if head is None or head is entry:
            return True
        if not self._by_arrival[entry.request.band] or head.queue.key[0] != entry.queue.key[0]:
            return False
        return leaf.out_of_turn - head.queue.out_of_turn_before < OVERTAKEN_MAX

    def _has_siblings(self, entry: Entry) -> bool:
        """Whether others wait who could follow it; where it waited itself."""
        if not entry.dispatch.group_keys:
            return False
        flows = self._waiting[entry.dispatch.group_keys[0]]
        if isinstance(flows, Entry):
            return False
        return len(flows) > 1 or len(flows[entry.node_of()]) > 1

    def _sought_anew(self, key: Key) -> None:
        """Somebody who is found by a key comes or goes."""
        for group in self._led[key]:
            group.found = None

    def _keys(self, request: Request) -> tuple[Key, ...]:
        """The keys it is found by: of its prompt up to the least that counts, twice that, and so on."""
        prefix: tuple[Key, ...] = request.prefix
        cut = (request.prefix_chunk_bytes, request.prefix_grows)
        depths = self._depths.get(cut)
        if depths is None:
            depths = self._depths[cut] = self._doubled(request)
        length = len(prefix)
        return tuple([prefix[depth - 1] for depth in depths if depth <= length])

    def _doubled(self, request: Request) -> tuple[int, ...]:
        """How many keys stand for the least that counts, twice that, and so on, in prompts keyed like this one."""
        chunks, depths = request.chunks_of(self._tokens_min * BYTES_PER_TOKEN), [0]
        while chunks <= CHUNKS_MAX and (depth := request.keys_of(chunks)) > depths[-1]:
            depths.append(depth)  # as deep as before: no key stands for more
            chunks *= 2
        return tuple(depths[1:])


def _unfound(entry: Entry) -> None:
    """Nobody finds it by its prefix any more."""
    if entry.dispatch.group_keys:
        entry.dispatch.group_keys = ()


def _among(entry: Entry, found: list[PossibleFollower]) -> bool:
    """Whether it was found already, by another key."""
    for candidate in found:  # noqa: SIM110  # a loop costs less than a generator
        if candidate.entry is entry:
            return True
    return False
