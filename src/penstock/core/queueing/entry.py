"""One leaf of the queue tree: the requests of one flow for one model, in the order its ordering asks for.

The key of an entry is fixed when it enters, so one heap serves every ordering: arrival number for `fcfs`, deadline
for `deadline`, aged cost for `shortest_first`. Ties go to the earlier arrival. A request that comes back after a
refusal keeps its arrival number and so its place. Removal marks an entry dead and leaves the heap to drop it later:
O(log n) amortised, and the heap is never more than half dead.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.core.values.lifecycle import TRANSITIONS, Event, State, after
from penstock.core.values.located import NOWHERE, Sought, Source
from penstock.core.values.request import Estimate, Key, Request, Usage

if TYPE_CHECKING:
    from penstock.core.endpoints.endpoint import Endpoint
    from penstock.core.endpoints.lease import Lease
    from penstock.core.queueing.band import Band
    from penstock.core.queueing.fair_tree import Node


_NOTHING = Estimate(1, 1)


class Entry:
    """A request on its way through the scheduler. One owner: the scheduler that made it."""

    __slots__ = (
        "account",
        "attempts",
        "avoid",
        "blocks",
        "bypassed",
        "cached_tokens",
        "charged",
        "charged_output",
        "choosy",
        "cost",
        "counted",
        "counted_in",
        "deadline_s",
        "estimate",
        "follows",
        "held_again_s",
        "held_behind",
        "held_for",
        "held_since_s",
        "held_until_s",
        "key",
        "keys_since",
        "lease",
        "locate_until_s",
        "located",
        "looked_up",
        "model",
        "node",
        "output_seen",
        "overtaken_from",
        "queued_since_s",
        "recalls",
        "reckoned_s",
        "refusals",
        "request",
        "seq",
        "siblings",
        "size_class",
        "sought",
        "source",
        "state",
        "tenant",
        "twin_computing",
        "uncached_tokens",
        "visit",
        "wait_s_max",
        "waited_s",
        "whole",
        "work",
    )

    def __init__(self, request: Request, seq: int) -> None:
        self.request = request
        self.model = request.model  # as in the request, and asked for most
        self.tenant = request.tenant
        self.account = request.account or request.tenant  # whose limits hold
        self.seq = seq  # arrival number: the last tie-break everywhere
        self.state = State.ARRIVED
        self.key: tuple[int, float] = (0, float(seq))  # the caller's own priority, then the ordering's key
        self.node: Node | None = None  # the flow it belongs to
        self.lease: Lease | None = None
        self.visit = 0  # how often it entered a queue: tells its place in a heap from one it had earlier
        self.queued_since_s = 0.0
        self.waited_s = 0.0  # in earlier visits to the queue
        self.wait_s_max = 0.0  # what it may wait: never less than was allowed when it came
        self.attempts = 0  # failed dispatches that cost an attempt
        self.recalls = 0  # how often it was taken back from an engine that showed no movement
        self.refusals = 0  # how often an engine turned it away as one too many
        self.avoid: dict[str, float] | None = None  # endpoints that refused or failed it, and until when to shun them
        self.bypassed = 0
        self.estimate = _NOTHING
        self.cost = 0.0  # what it was estimated to count for when it was sent, by the fairness policy
        self.work = 0.0  # what it is estimated to take, whatever the policy: behind every estimate of a wait
        self.counted = 0.0  # of that work, what was counted for and against shares that bands were promised
        self.counted_in: list[tuple[Band, float]] | None = None  # and in which bands, for what part
        self.charged = 0.0  # what its flow was charged for it so far
        self.charged_output = 0  # the completion tokens in that
        self.output_seen = 0  # completion tokens that came so far
        self.deadline_s = math.inf  # for the first token
        self.located = NOWHERE  # who holds how much of its prompt, as last looked at
        self.uncached_tokens = 1  # of its prompt, to be computed
        self.cached_tokens = 0  # of its prompt: where most is held, and once it is sent, where it was sent
        self.source: Source | None = None  # who says so
        self.keys_since = 0  # that its endpoint was sent since what is believed cached was used there, by history
        self.sought: Sought | None = None  # what is looked for where it was sent only because one like it was
        self.twin_computing = False  # what is believed cached is just being computed, for another request
        self.blocks: tuple[tuple[int, ...], int] | None = None  # keys of its token blocks, and their size
        self.looked_up: tuple[Source, Mapping[str, int]] | None = None  # who answered, and tokens by endpoint
        self.locate_until_s = -math.inf  # so long it waits to be told where its prompt is cached
        self.size_class = 0  # of what is to be computed of its prompt, while it waits
        self.choosy = False  # it may be held for an endpoint it prefers
        self.held_for: tuple[Endpoint, ...] = ()  # the endpoints it prefers to others that it could go to
        self.held_since_s = math.inf
        self.held_again_s = 0.0  # and for how long once more, if it is still worth that then
        self.held_behind = 0  # so many others, who came before it
        self.held_until_s = -math.inf  # where that was reckoned
        self.reckoned_s = -math.inf  # when it was found last that the wait is worth its while
        self.siblings: tuple[Key, ...] = ()  # the keys by which it is found, while it waits, by others of its prefix
        self.follows: str | None = None  # the request it follows to its endpoint, out of its turn
        self.overtaken_from = 0  # where its leaf's count of such stood when it came
        self.whole = True  # its prompt is computed where it is answered; asked only where endpoints have roles

    def expect(self, estimate: Estimate) -> None:
        """It is estimated to be this large, and not known to be cached anywhere."""
        self.estimate = estimate
        self.believe_cached(0)

    def believe_cached(self, tokens: int) -> None:
        """So much of its prompt need not be computed: where most is held or, once it is sent, where it was sent."""
        self.cached_tokens = tokens
        left = self.estimate.prompt_tokens - tokens
        self.uncached_tokens = left if left > 0 else 1

    def uncached_at(self, endpoint: int) -> int:
        """Prompt tokens that an endpoint would have to compute."""
        tokens = self.estimate.prompt_tokens
        return max(1, tokens - self.located.tokens(endpoint)) if self.located is not NOWHERE else tokens

    @property
    def waits_since_s(self) -> float:
        """When it began to wait, had it waited all its time in one go."""
        return self.queued_since_s - self.waited_s

    @property
    def estimated_tokens(self) -> int:
        return self.estimate.prompt_tokens + self.estimate.output_tokens

    def held(self) -> Lease:
        """The lease of a request that is at an endpoint."""
        assert self.lease is not None
        return self.lease

    def node_of(self) -> Node:
        """Its flow, which it has from its appraisal on."""
        assert self.node is not None
        return self.node

    def presumed_usage(self) -> Usage:
        """What it cost, where no engine tells: its prompt as estimated, and what was seen of its answer.

        Of an answer that does not stream nothing is seen, so it counts as estimated, even where the caller gave up:
        else who gives up just before the end would have it all computed for nothing.
        """
        output = self.output_seen
        if not self.request.streamed or (self.state is State.COMPLETED and output == 0):
            output = max(output, self.estimate.output_tokens)
        return Usage(self.estimate.prompt_tokens, output, min(self.cached_tokens, self.estimate.prompt_tokens))

    def move(self, event: Event) -> None:
        self.state = TRANSITIONS.get((self.state, event)) or after(self.state, event)

    def shuns(self, endpoint: str, now: float) -> bool:
        return self.avoid is not None and self.shuns_until_s(endpoint) > now

    def shuns_until_s(self, endpoint: str) -> float:
        return (self.avoid or {}).get(endpoint, -math.inf)


class Leaf:
    """A queue ordered by (key, arrival)."""

    __slots__ = ("_heap", "calm_s", "live", "overtaken")

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float], int, int, Entry]] = []
        self.live = 0
        self.overtaken = 0  # how often one went before its turn in here, following another of its prefix
        self.calm_s = math.inf  # when a short wait was last seen here; only where queues are not to stand

    def __len__(self) -> int:
        return self.live

    def push(self, entry: Entry) -> None:
        entry.visit += 1
        entry.overtaken_from = self.overtaken
        heapq.heappush(self._heap, (entry.key, entry.seq, entry.visit, entry))
        self.live += 1

    def remove(self, entry: Entry) -> None:
        """Take an entry out, wherever it stands. The caller has moved it out of `WAITING`."""
        assert entry.state is not State.WAITING
        self.live -= 1
        if len(self._heap) > 2 * self.live + 16:
            self._heap = [item for item in self._heap if _alive(item)]
            heapq.heapify(self._heap)
        else:
            self._trim()

    def rekeyed(self) -> None:
        """The entries' keys have changed."""
        self._heap = [(item[3].key, *item[1:]) for item in self._heap if _alive(item)]
        heapq.heapify(self._heap)

    def head(self) -> Entry | None:
        heap = self._heap
        return heap[0][3] if heap else None

    def waiting(self) -> Iterator[Entry]:
        """The entries, in no order."""
        for item in self._heap:
            if _alive(item):
                yield item[3]

    def in_order(self) -> Iterator[Entry]:
        """The entries from the head on, without disturbing the heap; O(log k) for the k-th."""
        heap = self._heap
        if not heap:
            return
        if _alive(heap[0]):
            yield heap[0][3]  # mostly nobody asks for more
        front = sorted([(heap[at][0], heap[at][1], at) for at in (1, 2) if at < len(heap)])
        while front:
            _, _, at = heapq.heappop(front)
            if _alive(heap[at]):
                yield heap[at][3]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(front, (heap[child][0], heap[child][1], child))

    def _trim(self) -> None:
        heap = self._heap
        while heap and not _alive(heap[0]):
            heapq.heappop(heap)


def _alive(item: tuple[tuple[int, float], int, int, Entry]) -> bool:
    _, _, visit, entry = item
    return entry.visit == visit and entry.state is State.WAITING
