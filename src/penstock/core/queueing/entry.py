"""A request in the scheduler: one record, read directly.

Which room writes a field is fixed by subject; `tests/tidy/test_records.py` holds the table (docs/decisions/0120). The
fields of the request that many decisions read are copied here, because a look-up of a compiled class's own field costs
a tenth of one in a value that other processes send.

Two records are of few requests: `affinity`, the wait for an endpoint that it prefers (written by `routing`), and
`retry`, its failed tries (`scheduling`). They are made when first written; until then all share an empty one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.core.values.lifecycle import FOLLOWING, Event, State, after
from penstock.core.values.located import NOWHERE, Located, Sought, Source
from penstock.core.values.request import Estimate, Request, Usage

if TYPE_CHECKING:
    from penstock.core.endpoints.endpoint import Endpoint
    from penstock.core.endpoints.lease import Lease
    from penstock.core.queueing.band import Band
    from penstock.core.queueing.fair_tree import Node


class Alike:
    """Queued requests that share half of their prompts."""

    __slots__ = ("count", "sent")

    def __init__(self, *, sent: bool) -> None:
        self.count = 0
        self.sent = sent  #: that half may be cached somewhere: it was sent there, or a source said so


class AffinityRecord:
    """A request's wait for an endpoint that it prefers, beside others that have room."""

    __slots__ = ("behind", "latest_s", "locate_until_s", "may_wait", "preferred", "since_s", "until_s", "weighed_s")

    def __init__(self, locate_until_s: float = -math.inf, *, may_wait: bool = True) -> None:
        self.may_wait = may_wait  #: it may be let wait for an endpoint it prefers
        self.locate_until_s = locate_until_s  #: the end of its wait for a look-up
        self.preferred: tuple[Endpoint, ...] = ()  #: the endpoints it prefers to others that it could go to
        self.since_s = math.inf  #: when that wait began
        self.behind = 0  #: requests that waited for it before
        self.until_s = -math.inf  #: when that wait ends, by score
        self.latest_s = math.inf  #: and when it ends at the latest, whatever the score says then
        self.weighed_s = -math.inf  #: when scores were last compared


class RetryRecord:
    """A request's failed tries."""

    __slots__ = ("attempts", "excluded", "preemptions", "recalls", "refusals")

    def __init__(self) -> None:
        self.attempts = 0  #: failed dispatches that cost an attempt
        self.recalls = 0  #: how often it was withdrawn from an engine
        self.preemptions = 0  #: of these, for requests of higher bands
        self.refusals = 0  #: how often an engine turned it away as one too many
        self.excluded: dict[str, float] = {}  #: endpoints that refused or failed it, and until when


# The shared empty records: never written.
NO_AFFINITY: Final = AffinityRecord(may_wait=False)
MAY_WAIT: Final = AffinityRecord()  #: of a request that may be let wait by its score, and for nothing else
NO_RETRY: Final = RetryRecord()


class Entry:
    """A request on its way through the scheduler. One owner: the scheduler that made it."""

    __slots__ = (
        "account", "accounts", "affinity", "alike", "backfilled", "band", "blocks", "cached_tokens", "charged",
        "charged_output", "cost", "counted_in", "deadline_s", "held", "held_s", "id", "key", "keys_since",
        "lease", "located", "looked_up", "model", "node", "only", "output_seen", "output_tokens", "pinned",
        "pool_empty", "prefix", "prices", "prompt_tokens", "queued_since_s", "request", "retry", "seq", "size_class",
        "sought", "source", "state", "streamed", "tenant", "twin_computing", "uncached_tokens", "visit", "wait_s_max",
        "waited_s", "whole", "work",
    )  # fmt: skip

    node: Node  #: the flow it belongs to, from its appraisal on

    def __init__(self, request: Request, seq: int) -> None:
        self.request = request
        self.id = request.id
        self.model = request.model
        self.tenant = tenant = request.tenant
        self.account = account = request.account or tenant  # the name for limits of the tenant or part
        also = request.also
        self.accounts = (account, *also) if also else (account,)  # with those of its key and model if they have limits
        self.band = request.band
        self.streamed = request.streamed
        self.pinned = request.pinned
        self.prefix = request.prefix
        self.prices = request.prices
        self.only = request.only
        self.seq = seq  # arrival number: the last tie-break everywhere
        self.state = State.ARRIVED
        self.lease: Lease | None = None
        self.prompt_tokens = 1  #: estimated, as the next
        self.output_tokens = 1
        self.whole = True  # its prompt is computed by its decode endpoint; only used if endpoints have roles
        self.backfilled = 0  # how often requests passed it that fit, or are cached
        self.affinity = NO_AFFINITY
        self.retry = NO_RETRY
        # Its place in the queue, and how long it may keep it.
        self.key: tuple[int, float] = (0, float(seq))  #: the client's priority, then the ordering's key
        self.visit = 0  #: how often it entered a queue: distinguishes its place in a heap from earlier ones
        self.held = False  #: it waits for its session to come in, in no flow's queue, or ended so
        self.held_s = 0.0  #: how long it did, before it stood in its flow's queue
        self.queued_since_s = 0.0  #: when it entered last
        self.waited_s = 0.0  #: in earlier visits
        self.pool_empty = False  #: no endpoint for its model was in service when its wait was allowed
        self.wait_s_max = 0.0  #: its allowed wait: never less than at its arrival
        self.deadline_s = math.inf  #: for the first token
        self.size_class = 0  #: of its uncached prompt, while it waits
        # Its work: estimated, and counted so far.
        self.cost = 0.0  #: its estimated cost at dispatch, by the fairness policy
        self.work = 0.0  #: its estimated work, independent of the policy: for every estimate of a wait
        self.counted_in: list[tuple[Band, float, float]] | None = None  #: promised shares: parts, and credit so far
        self.charged = 0.0  #: its flow's charge so far
        self.charged_output = 0  #: the completion tokens in that
        self.output_seen = 0  #: completion tokens that came so far
        # The assumed locations of its cached prompt, as last checked.
        self.located: Located = NOWHERE  #: cached tokens by endpoint
        self.uncached_tokens = 1  #: of its prompt, to be computed
        self.cached_tokens = 0  #: cached tokens: the most at any endpoint or, once sent, at its endpoint
        self.source: Source | None = None  #: the source
        self.keys_since = 0  #: sent to its endpoint since the cached prefix was used there, by history
        self.sought: Sought | None = None  #: looked for at an endpoint chosen only by a similar prompt
        self.twin_computing = False  #: the prefix is just being computed, for another request
        self.blocks: tuple[tuple[int, ...], int] | None = None  #: keys of its token blocks, and their size
        self.looked_up: tuple[Source, Mapping[str, int]] | None = None  #: the source, and tokens by endpoint
        self.alike: Alike | None = None  #: queued requests that share half of its prompt; while it waits

    @property
    def waits_since_s(self) -> float:
        """When the request began to wait, had it waited all its time in one go."""
        return self.queued_since_s - self.waited_s

    @property
    def in_line_since_s(self) -> float:
        """The same without the time for which it was held: no slot was kept from it then."""
        return self.queued_since_s - self.waited_s + self.held_s

    def expect(self, estimate: Estimate, *, whole: bool = True) -> None:
        """Note the `estimate` of its size; nothing is known to be cached. `whole`: its prompt may not be divided."""
        self.prompt_tokens = prompt_tokens = estimate.prompt_tokens
        self.output_tokens = estimate.output_tokens
        self.whole = whole
        self.cached_tokens = 0
        self.uncached_tokens = prompt_tokens if prompt_tokens > 0 else 1

    def seen(self, output_tokens: int) -> None:
        """Note that the answer has come to `output_tokens`, or more."""
        self.output_seen = max(self.output_seen, output_tokens)

    def believe(self, cached_tokens: int, prompt_tokens: int) -> None:
        """Record `cached_tokens` of the prompt: the most at any endpoint or, once sent, at its endpoint."""
        self.cached_tokens = cached_tokens
        left = prompt_tokens - cached_tokens
        self.uncached_tokens = left if left > 0 else 1

    def told_blocks(self, keys: tuple[int, ...], block_tokens: int) -> None:
        """Note the `keys` of the prompt's token blocks."""
        self.blocks = (keys, block_tokens)

    def told_holders(self, source: Source, tokens: Mapping[str, int]) -> None:
        """Record a look-up's result at `source`: tokens by endpoint."""
        self.looked_up = (source, tokens)

    def forget_route(self) -> None:
        """Release the data for routing."""
        self.blocks = self.looked_up = None
        self.located = NOWHERE

    def uncached_at(self, endpoint: int) -> int:
        """Returns the prompt tokens that an endpoint (by index) would have to compute."""
        tokens = self.prompt_tokens
        located = self.located
        return max(1, tokens - located.tokens(endpoint)) if located is not NOWHERE else tokens

    @property
    def estimated_tokens(self) -> int:
        """Returns the tokens of its prompt and answer, as estimated."""
        return self.prompt_tokens + self.output_tokens

    def leased(self) -> Lease:
        """Returns the lease of a request that is at an endpoint."""
        assert self.lease is not None
        return self.lease

    def presumed_usage(self) -> Usage:
        """Returns a request's cost without a report: its estimated prompt, and the counted answer.

        Of an answer that does not stream nothing is seen on the way, so it counts as estimated if the caller gave up:
        else a caller that gives up just before the end would have it all computed for nothing.
        """
        output, is_whole = self.output_seen, self.state is State.COMPLETED
        if output == 0 if is_whole else not self.streamed:
            output = max(output, self.output_tokens)
        return Usage(self.prompt_tokens, output, min(self.cached_tokens, self.prompt_tokens))

    def move(self, event: Event) -> None:
        """Move to the state after `event`. Raises if the table of states knows no such step."""
        self.state = FOLLOWING[self.state].get(event) or after(self.state, event)

    def became(self, request: Request) -> None:
        """Replace the `request` by another form: of another band, or without unneeded parts."""
        self.request = request
        self.band = request.band
        self.prefix = request.prefix

    def stay_at(self, endpoint: str) -> None:
        """Let it go to one `endpoint` alone, where its session's memory is."""
        self.only = (endpoint,)

    def may_leave(self) -> None:
        """Let it go wherever its request may."""
        self.only = self.request.only

    def passed(self) -> None:
        """Note that a smaller request was sent before it, which fitted where this one does not."""
        self.backfilled += 1

    def own_affinity(self, locate_until_s: float = -math.inf) -> AffinityRecord:
        """Returns the record of its wait for an endpoint it prefers, made now if it had none."""
        if self.affinity is NO_AFFINITY or self.affinity is MAY_WAIT:
            self.affinity = AffinityRecord(locate_until_s)
        return self.affinity

    def own_retry(self) -> RetryRecord:
        """Returns the record of its failed tries, made now if it had none."""
        if self.retry is NO_RETRY:
            self.retry = RetryRecord()
        return self.retry

    def excludes(self, endpoint: str, now: float) -> bool:
        """True if the endpoint may not get the request, or refused or failed it and it is too soon to try again."""
        retry, only = self.retry, self.only
        if only and endpoint not in only:
            return True
        return retry is not NO_RETRY and retry.excluded.get(endpoint, -math.inf) > now

    def excluded_until_s(self, endpoint: str) -> float:
        """Returns until when an endpoint is excluded for the request; minus infinity if it is not."""
        if self.only and endpoint not in self.only:
            return math.inf
        return self.retry.excluded.get(endpoint, -math.inf)
