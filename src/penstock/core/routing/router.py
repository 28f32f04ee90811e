"""Where does a request go: what its policy chooses, knowing where its prompt is cached and its session at home.

The router keeps what a policy needs to be told: our own history (which endpoint was sent which prefix), what engines
say they hold, answers of look-ups, and where sessions live. All of it is a hint: bounded, cleared when an endpoint
restarts or leaves, checked against what engines report, and never a reason to wait longer than `affinity_wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.core.endpoint import Endpoint
from penstock.core.flow import Entry
from penstock.core.lease import Lease
from penstock.core.locality import EXACT_KEYS_MAX, PrefixIndex
from penstock.core.pool import Pool
from penstock.core.request import Request, Usage
from penstock.core.routing.base import Context
from penstock.core.routing.heat import Heat
from penstock.core.routing.homes import Homes
from penstock.core.routing.registry import POLICIES, RoutingSettings
from penstock.core.sources import Source, Sources

SHRINK, GROW = 0.9, 1.01  # of an endpoint's history, when it claims too much and when it is right


class Located:
    """Where a prompt is cached."""

    __slots__ = ("depth", "holders", "said", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}  # by endpoint index
        self.said: dict[int, Source] = {}  # who says so, where it is not our history
        self.depth = 0  # keys of the longest prefix in our history …
        self.holders = 0  # … and how many endpoints hold it


class Router:
    """One policy, and all it needs to know."""

    def __init__(self, policy: str, settings: RoutingSettings, pool: Pool, *, draw: Callable[[], float]) -> None:
        self._draw = draw
        self.sources = Sources()
        self._pool = pool
        self._history = PrefixIndex()
        self._exact = PrefixIndex(EXACT_KEYS_MAX)
        self._homes = Homes()
        self._heat = Heat()
        self._choose_policy(policy, settings)

    def reconfigured(self, policy: str, settings: RoutingSettings) -> None:
        """Another policy, or the same with other settings, from now on. What is known of endpoints stays known."""
        if (policy, settings) != (self._named, self.settings):
            self._choose_policy(policy, settings)

    def _choose_policy(self, policy: str, settings: RoutingSettings) -> None:
        self._named, self.settings = policy, settings
        self._policy = POLICIES[policy](settings, self._draw)
        self.prefers = settings.affinity_wait_s > 0 and (self._policy.uses_prefix or self._policy.uses_session)
        self.strict = settings.strict_sessions and self._policy.uses_session

    # --- one request --------------------------------------------------------------------------------------------

    def look(self, entry: Entry, now: float) -> None:
        """Find out who holds how much of a request's prompt now."""
        if self._policy.uses_prefix:
            entry.matched = matched = self._located(entry, now).tokens
            entry.cached_tokens = max(matched.values()) if matched else 0

    def choose(self, entry: Entry, endpoints: Sequence[Endpoint], now: float) -> Endpoint:
        """One of the endpoints, and it goes there: so will its prefix be, and its session live."""
        request, policy = entry.request, self._policy
        if policy.uses_prefix:
            located = self._located(entry, now)
            entry.matched = located.tokens
            chosen = policy.choose(endpoints, self._context(entry, located, now))
            entry.cached_tokens = located.tokens.get(chosen.index, 0)
            entry.source = located.said.get(chosen.index, Source.HISTORY)
            if request.prefix:
                if located.depth:
                    self._heat.used(request.prefix[located.depth - 1], now)
                self._history.store(chosen.index, request.prefix)
        else:
            chosen = policy.choose(endpoints, self._context(entry, _UNKNOWN, now))
        if request.session is not None and policy.uses_session:
            self._homes.moved(request.model, request.session, chosen.name)
        return chosen

    def preferred(self, entry: Entry, now: float) -> Sequence[Endpoint]:
        """The endpoints a request may wait for, of those alive. Changes nothing."""
        located = self._located(entry, now) if self._policy.uses_prefix else _UNKNOWN
        return self._policy.preferred(self._context(entry, located, now))

    def home(self, request: Request, now: float) -> Endpoint | None:
        """Where its session lives, while that one is alive."""
        if request.session is None or not self._policy.uses_session:
            return None
        name = self._homes.get(request.model, request.session)
        return None if name is None else self.alive(name, request, now)

    def alive(self, name: str, request: Request, now: float) -> Endpoint | None:
        """An endpoint by name, if it is well and serves the request's model."""
        endpoint = self._pool.get(name)
        if endpoint is None or not endpoint.serves(request.model) or not endpoint.in_service:
            return None
        return None if endpoint.health.ejected(now) and self._pool.unhealthy(endpoint, now) else endpoint

    def answered(self, lease: Lease, usage: Usage, now: float) -> None:
        """An answer is complete: was its prompt cached as believed?"""
        endpoint = self._pool.get(lease.endpoint)
        if endpoint is None or lease.source is None or not (usage.cached_told or usage.cached_tokens):
            return
        if lease.epoch != endpoint.ledger.epoch:
            return
        right = self.sources.check(
            lease.source,
            endpoint.index,
            predicted=lease.cached_tokens,
            cached=usage.cached_tokens,
            prompt_tokens=usage.prompt_tokens,
            now=now,
        )
        if lease.source is Source.HISTORY and lease.cached_tokens:
            self._resize(endpoint, right=right)

    def failed(self, entry: Entry, lease: Lease) -> None:
        """It was not computed there, so its prefix is not to be found there."""
        endpoint = self._pool.holder(lease)
        request = entry.request
        if endpoint is None or not self._policy.uses_prefix or not request.prefix:
            return
        tokens_per_key = entry.estimate.prompt_tokens * request.prefix_chunk_bytes / max(1, entry.prompt_bytes)
        known = round(lease.cached_tokens / tokens_per_key) if tokens_per_key else 0
        self._history.remove(endpoint.index, request.prefix[known:])

    # --- what others say of endpoints ---------------------------------------------------------------------------

    def stored(self, endpoint: Endpoint, keys: Iterable[int]) -> None:
        self._exact.store(endpoint.index, keys)

    def removed(self, endpoint: Endpoint, keys: Iterable[int]) -> None:
        self._exact.remove(endpoint.index, keys)

    def cleared(self, endpoint: Endpoint) -> None:
        self._exact.clear(endpoint.index)

    def restarted(self, endpoint: Endpoint) -> None:
        """Another process answers there, with an empty cache."""
        self._history.clear(endpoint.index)
        self.sources.forget(endpoint.index)

    def gone(self, endpoint: Endpoint) -> None:
        """The endpoint is no longer one of ours."""
        self._history.forget(endpoint.index)
        self._exact.forget(endpoint.index)
        self.sources.forget(endpoint.index)

    # --- inside -------------------------------------------------------------------------------------------------

    def _context(self, entry: Entry, located: Located, now: float) -> Context:
        request = entry.request
        return Context(
            request,
            prompt_tokens=entry.estimate.prompt_tokens,
            output_tokens=entry.estimate.output_tokens,
            now=now,
            matched=self._telling(request, located, now) if located.tokens else located.tokens,
            home=self.home(request, now),
            alive=lambda: self._pool.usable(request, now),
        )

    def _telling(self, request: Request, located: Located, now: float) -> Mapping[int, int]:
        """What is held, without that which half of the endpoints hold, or which is so much in demand that it should be
        held by more: it tells nothing about where to go, and all would pile onto the one who had it first.
        """
        matched, depth = located.tokens, located.depth
        if depth and self._heat.hot(request.prefix[depth - 1], located.holders, now):
            return {}
        half = max(2, (self._pool.serving(request.model) + 1) // 2)
        if len(matched) < half:
            return matched
        common = sorted(matched.values(), reverse=True)[half - 1]
        return {index: tokens for index, tokens in matched.items() if tokens > common}

    def _located(self, entry: Entry, now: float) -> Located:
        request, trusted = entry.request, self.sources.trusted
        located = Located()
        tokens = located.tokens
        if request.prefix:
            per_key = entry.estimate.prompt_tokens * request.prefix_chunk_bytes / max(1, entry.prompt_bytes)
            for index, count in self._history.match(request.prefix).items():
                if trusted(Source.HISTORY, index, now):
                    tokens[index] = int(count * per_key)
                if count > located.depth:
                    located.depth, located.holders = count, 0
                located.holders += count == located.depth
        if entry.blocks is not None:
            keys, block_tokens = entry.blocks
            held = self._exact.match(keys)
            told = {e.index: held.get(e.index, 0) * block_tokens for e in self._pool if self._exact.knows(e.index)}
            self._say(Source.KV_EVENTS, told, located, now)
        if entry.looked_up is not None:
            source, by_name = entry.looked_up
            self._say(source, {e.index: by_name.get(e.name, 0) for e in self._pool}, located, now)
        return located

    def _say(self, source: Source, told: Mapping[int, int], located: Located, now: float) -> None:
        """Let a source that knows better than our history speak, but for prefixes that are just being computed."""
        tokens, computing = located.tokens, {e.index for e in self._pool if e.ledger.prefilling}
        for index, held in told.items():
            if not self.sources.trusted(source, index, now) or (index in computing and tokens.get(index, 0) > held):
                continue
            located.said[index] = source
            tokens.pop(index, None)
            if held:
                tokens[index] = held

    def _resize(self, endpoint: Endpoint, *, right: bool) -> None:
        """What an engine holds is less than its memory: answers take some. Its errors tell how much less."""
        history, index = self._history, endpoint.index
        limit = history.limit_of(index) * GROW + 1 if right else history.held(index) * SHRINK
        history.limit(index, int(limit))


_UNKNOWN = Located()
