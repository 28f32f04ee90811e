"""The router: its policy's choice, with the locations of prompt and session.

The router keeps the policies' inputs: our own history (prefixes sent to each endpoint), engines' events, results of
look-ups, and sessions. All of it is a hint: bounded, cleared when an endpoint restarts or leaves, checked against
engines' reports, and never a reason to wait longer than `affinity_wait`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.entry import Alike, Entry
from penstock.core.routing.hit_prediction import HitPredictions
from penstock.core.routing.hot_prefixes import HotPrefixes
from penstock.core.routing.last_sent import LastSent
from penstock.core.routing.policies.base import Choice, Context
from penstock.core.routing.policies.registry import POLICIES
from penstock.core.routing.prefix_index import EXACT_KEYS_MAX, KEYS_MIN, PrefixIndex, shared
from penstock.core.routing.session_table import SessionTable
from penstock.core.values.located import NOWHERE, Located, Sought, Source, bits_of
from penstock.core.values.request import Key, Request, Usage
from penstock.core.values.settings import RoutingSettings

MUCH_SHORTER = 8  # times: then a prompt displaces little of another one from a cache
ADAPTER_S = 1.0  # to load a LoRA adapter: a tenth of a second from memory, some seconds from a slow disk
SHRINK, GROW = 0.9, 1.01  # of an endpoint's history, when it claims too much and when it is right


class Router:
    """One policy, and all it needs to know."""

    def __init__(self, policy: str, settings: RoutingSettings, pool: Pool, *, draw: Callable[[], float]) -> None:
        self._draw = draw
        self.sources = HitPredictions()
        self._pool = pool
        self._history = PrefixIndex()
        self._exact = PrefixIndex(EXACT_KEYS_MAX)
        self._sessions = SessionTable()
        self._hot = HotPrefixes()
        self._last_sent = LastSent()
        # The last comparison in this moment, for the choice that follows it: of a request, by what was located.
        self._compared: tuple[Entry, float, Located, Sought | None, Context] | None = None
        self._queued: dict[Key, Alike] = {}  # by the middle of their prompts
        self.may_be_warm = 0  #: queued requests that share half of their prompts with one that was sent
        self._doubted: dict[int, Endpoint] = {}  # did not answer, and may be other processes by now
        self._choose_policy(policy, settings)

    def reconfigured(self, policy: str, settings: RoutingSettings) -> None:
        """Use `policy`, or the same with other settings, from now on. Knowledge of endpoints stays."""
        if (policy, settings) != (self._named, self.settings):
            self._choose_policy(policy, settings)

    def _choose_policy(self, policy: str, settings: RoutingSettings) -> None:
        self._named, self.settings = policy, settings
        self._policy = POLICIES[policy](settings, self._draw)
        wait_s, policy_ = settings.affinity_wait_s, self._policy
        self.weighs_wait = wait_s is None and policy_.weighs_wait
        self.prefers = wait_s is not None and wait_s > 0 and (policy_.uses_prefix or policy_.uses_session)
        self.strict = settings.strict_sessions and self._policy.uses_session
        self._weighs_adapters = settings.adapter_affinity and policy_.uses_prefix
        self.groups = settings.prefix_group if policy_.uses_prefix else 0

    # --- one request --------------------------------------------------------------------------------------------

    def look(self, entry: Entry, now: float) -> None:
        """Find out which endpoints hold how much of the prompt of `entry` now."""
        if not (entry.prefix or entry.blocks is not None or entry.looked_up is not None):
            return  # nothing is known of it
        if self._policy.uses_prefix:
            entry.located = located = self._located(entry, now)
            entry.believe(located.most, entry.prompt_tokens)

    def choose(self, entry: Entry, endpoints: Sequence[Endpoint], now: float) -> Choice:
        """Returns one of the endpoints.

        The request goes there: so its prefix will be there, and its session live there.
        """
        request, policy = entry.request, self._policy
        if not policy.uses_prefix:
            if entry.cached_tokens:  # believed under another policy, before the settings changed
                entry.located, entry.source, entry.twin_computing = NOWHERE, None, False
                entry.believe(0, entry.prompt_tokens)
            choice = self._chosen(entry, NOWHERE, None, endpoints, now)
        elif not entry.prefix and entry.blocks is None and entry.looked_up is None:
            entry.source = Source.HISTORY  # which knows nothing of it
            choice = self._chosen(entry, NOWHERE, None, endpoints, now)
        else:
            located = self._located(entry, now)
            entry.located = located
            compared, self._compared, context = self._compared, None, None
            if compared is not None and compared[:3] == (entry, now, located):
                _, _, _, sought, context = compared
            else:
                sought = self._sought(request, located, now)
            choice = self._chosen(entry, located, sought, endpoints, now, context=context)
            chosen = choice.endpoint
            entry.believe(located.tokens(chosen.index), entry.prompt_tokens)
            entry.source = located.said.get(chosen.index, Source.HISTORY) if located.said else Source.HISTORY
            entry.twin_computing = False
            prefix: tuple[Key, ...] = request.prefix
            if prefix:
                entry.sought = sought if sought is not None and sought.endpoint == chosen.index else None
                if policy.weighs_load:
                    self._last_sent.sent(prefix, chosen.index)
                if located.levels:
                    depth = located.depth(chosen.index)
                    entry.twin_computing = bool(depth) and _being_computed(prefix[depth - 1], depth, chosen)
                    entry.keys_since = self._history.since(chosen.index, prefix[depth - 1]) if depth else 0
                    self._hot.used(prefix[located.levels[-1][1] - 1], now)
                self._history.store(chosen.index, prefix)
                if self._queued:
                    self._half_sent(prefix)
        if request.session is not None and policy.uses_session:
            self._sessions.moved(request.model, request.session, choice.endpoint.name)
        if self._pool.adapted:
            choice.endpoint.adapters.used(request.model)
        return choice

    def _chosen(
        self,
        entry: Entry,
        located: Located,
        sought: Sought | None,
        endpoints: Sequence[Endpoint],
        now: float,
        *,
        context: Context | None = None,
    ) -> Choice:
        """Returns the policy's choice; a single endpoint, usual in a full pool, needs none."""
        if self._pool.priced and len(endpoints) > 1:
            endpoints = self._affordable(entry, endpoints, endpoints, now)
        if entry.request.time_per_output_token_s_max is not None and len(endpoints) > 1:
            endpoints = _fast_enough(endpoints, entry.request.time_per_output_token_s_max, now)
        if len(endpoints) == 1 and not self._policy.takes_turns:
            return Choice(endpoints[0])
        if sought is None and not located.levels and not located.told and not (self._pool.adapted or self._pool.priced):
            chosen = self._policy.at_rest(endpoints, entry.prompt_tokens, now)
            if chosen is not None:
                return Choice(chosen, endpoints)
        return self._policy.choose(endpoints, context or self._context(entry, located, sought, now))

    def took_over(self, entry: Entry, endpoint: Endpoint) -> None:
        """Record the endpoint of a request that another scheduler sent."""
        request, policy = entry.request, self._policy
        if policy.uses_prefix and request.prefix:
            self.sent_before(request.prefix, endpoint)
        endpoint.adapters.used(request.model)
        if request.session is not None and policy.uses_session:
            self._sessions.moved(request.model, request.session, endpoint.name)

    def sent_before(self, prefix: Sequence[Key], endpoint: Endpoint) -> None:
        """Note that a prompt with this `prefix` was sent to an endpoint by another scheduler."""
        if self._policy.weighs_load:
            self._last_sent.sent(prefix, endpoint.index)
        self._history.store(endpoint.index, prefix)
        self._half_sent(prefix)

    def lived(self, model: str, session: str, endpoint: str) -> None:
        """Record a session's endpoint chosen by another scheduler, unless a newer one is known."""
        if self._sessions.get(model, session) is None:
            self._sessions.moved(model, session, endpoint)

    def preferred(self, entry: Entry, now: float) -> Sequence[Endpoint]:
        """Returns the endpoints that a request may wait for, of those alive. Changes nothing."""
        located = self._located(entry, now) if self._policy.uses_prefix else NOWHERE
        context = self._context(entry, located, self._sought(entry.request, located, now), now)
        preferred = [e for e in self._policy.preferred(context) if not entry.excludes(e.name, now)]
        return (
            self._affordable(entry, preferred, context.alive(), now) if self._pool.priced and preferred else preferred
        )

    def better(
        self,
        entry: Entry,
        instead: Sequence[Endpoint],
        ahead: Mapping[Endpoint, int],
        backlog: tuple[float, int],
        now: float,
    ) -> tuple[Sequence[Endpoint], float]:
        """Return the endpoints with a lower score than all of those it could go to `instead`, and for how long.

        `ahead`: requests that wait for each endpoint; `backlog`: waiting requests that this one would delay, and all.
        Seconds of computing count for all requests that come later by them: those that wait or have their prompts
        computed, per endpoint, times what a queue adds that is busy for that share of the time (1 / (1 - share), with
        one more endpoint idle than now; the part that others cause counts by this flow's backlog). Only endpoints that
        hold a part of its prompt, or are cheaper where prices are seconds, are waited for, and there the time waited so
        far counts. Changes nothing.
        """
        price = min([endpoint.price for endpoint in instead]) if self._weighs_prices() else 0.0
        located = self._located(entry, now)
        sought = self._sought(entry.request, located, now)
        if sought is None and not located.most and not self._pool.adapted and not price:
            return (), 0.0
        context = self._context(entry, located, sought, now)
        self._compared = entry, now, located, sought, context
        if not context.matched and not price:
            return (), 0.0
        matched, model, under_way, busy = context.matched, entry.model, 0, 0
        open_now = {endpoint.index for endpoint in instead}
        if matched.keys() <= open_now and not price:
            return (), 0.0  # nothing to wait for: it may go to all that hold its prompt
        live: list[Endpoint] = []
        for endpoint in self._pool:  # one loop, because it visits all of them
            if prompts := len(endpoint.ledger.prefill.leases):
                under_way, busy = under_way + prompts, busy + 1
            index = endpoint.index
            worth = index in matched or endpoint.price < price
            if worth and index not in open_now and self._waitable(endpoint, entry, now) and endpoint.slots:
                live.append(endpoint)
        if not live:
            return (), 0.0
        count = max(1, self._pool.serving(model))
        own, waiting = backlog
        longer = 1.0 + busy / (max(0, count - busy) + 1) * (1.0 + own) / (1.0 + waiting)
        pressure = (1.0 + (own + under_way) / count) * longer - 1.0
        least_s = min(self._policy.seconds(instead, context, {}, pressure))
        homes: list[Endpoint] = []
        for_s = 0.0
        if price and entry.affinity.preferred:
            least_s -= now - entry.affinity.since_s
        for endpoint, score_s in zip(live, self._policy.seconds(live, context, ahead, pressure), strict=True):
            if score_s < least_s:
                homes.append(endpoint)
                prefill = endpoint.ledger.prefill
                for_s = max(for_s, least_s - score_s + prefill.left(now) / prefill.speed.rate)
        if homes and self._pool.priced:
            return self._affordable(entry, homes, context.alive(), now), for_s
        return homes, for_s

    def holds_all(self, entry: Entry, endpoints: Sequence[Endpoint]) -> bool:
        """True if no endpoint in service that could serve a request is missing among `endpoints`."""
        return self.weighs_wait and not self.strict and len(endpoints) >= self._pool.serving(entry.model)

    def _waitable(self, endpoint: Endpoint, entry: Entry, now: float) -> bool:
        """Whether it is well, and may compute a request's prompt, which it did not refuse."""
        request, roles = entry.request, self._pool.roles
        if self.alive(endpoint.name, request, now) is not endpoint or entry.excludes(endpoint.name, now):
            return False
        return not roles.any or roles.computes(endpoint, request.model, whole=entry.whole)

    def _affordable(
        self, entry: Entry, endpoints: Sequence[Endpoint], of: Sequence[Endpoint], now: float
    ) -> Sequence[Endpoint]:
        """Returns those as cheap as the cheapest `of` some, if price comes first; may be empty. A session stays."""
        if self.settings.price_weight_s < math.inf:
            return endpoints
        home = self.home(entry.request, now, whole=entry.whole)
        if home is not None and home in endpoints:
            return endpoints
        least = min([endpoint.price for endpoint in of], default=0.0)
        return [endpoint for endpoint in endpoints if endpoint.price <= least]

    def waits(self, entry: Entry) -> None:
        """Note that the request of `entry` is queued."""
        if prefix := entry.prefix:  # also under a policy that uses none: another one may be set while it waits
            middle = _middle(prefix)
            alike = self._queued.get(middle)
            if alike is None:
                alike = self._queued[middle] = Alike(sent=self._history.holders(middle) != 0)
            entry.alike = alike
            alike.count += 1
            self.may_be_warm += alike.sent
            if entry.blocks is not None or entry.looked_up is not None:
                self.told(entry)

    def left(self, entry: Entry) -> None:
        """Note that the request of `entry` is no longer queued."""
        if (alike := entry.alike) is not None:
            entry.alike = None
            alike.count -= 1
            self.may_be_warm -= alike.sent
            if not alike.count:
                del self._queued[_middle(entry.prefix)]

    def told(self, entry: Entry) -> None:
        """Note that a source better than our history knows of the prompt of `entry`, which is queued."""
        if entry.alike is not None:
            self._sent(entry.alike)

    def _sent(self, alike: Alike) -> None:
        if not alike.sent:
            alike.sent = True
            self.may_be_warm += alike.count

    def _half_sent(self, prefix: Sequence[Key]) -> None:
        """Note that a prompt was sent: queued ones that share half of theirs with it may be warm there."""
        for middle in self._queued.keys() & prefix:
            self._sent(self._queued[middle])

    def warm_keys(self, entry: Entry, endpoints: Sequence[Endpoint], now: float) -> int:
        """Returns how many keys of the prompt of `entry` one of `endpoints` holds, at most."""
        if self._by_history(entry, now):
            return self._history.depth(entry.prefix, [e.index for e in endpoints])
        located = self._located(entry, now)
        return located.keys_in(max([located.tokens(e.index) for e in endpoints]))

    def warmer(
        self, entry: Entry, than: Entry, warm_keys: int, endpoints: Sequence[Endpoint], now: float
    ) -> list[Endpoint]:
        """Returns those of `endpoints` that hold most of the prompt of `entry`, if none holds most of the other's.

        What both prompts have in common does not count, and a much shorter prompt displaces too little to matter.
        `warm_keys`: how much of the other one they hold; nothing is returned unless it is less.
        """
        prefix, others = entry.prefix, than.request.prefix
        if len(prefix) <= warm_keys:
            return []
        if self._by_history(entry, now) and not self._history.holders(prefix[warm_keys]):
            return []  # as most: where a prompt is common to all, none holds more
        common = shared(prefix, others)
        own, other = len(prefix) - common, len(others) - common
        if MUCH_SHORTER * other < own or 2 * (warm_keys - common) >= other:
            return []
        return self._hold(entry, max(common + (own + 1) // 2, warm_keys + 1), endpoints, now)

    def _hold(self, entry: Entry, depth: int, endpoints: Sequence[Endpoint], now: float) -> list[Endpoint]:
        """Returns the endpoints that hold so many keys of a prompt."""
        if self._by_history(entry, now):
            holders = self._history.holders(entry.prefix[depth - 1])
            return [e for e in endpoints if holders & self._history.bit(e.index)] if holders else []
        located = self._located(entry, now)
        tokens = located.tokens_at(depth)
        return [e for e in endpoints if located.tokens(e.index) >= tokens]

    def home(self, request: Request, now: float, *, whole: bool) -> Endpoint | None:
        """Returns the endpoint of the request's session, if it is alive and may compute its prompt, or None."""
        if request.session is None or not self._policy.uses_session:
            return None
        name = self._sessions.get(request.model, request.session)
        home = None if name is None else self.alive(name, request, now)
        return home if home is not None and self._pool.roles.computes(home, request.model, whole=whole) else None

    def alive(self, name: str, request: Request, now: float) -> Endpoint | None:
        """Returns an endpoint by name, if it is healthy and serves the request's model, or None."""
        endpoint = self._pool.get(name)
        if endpoint is None or not endpoint.serves(request.model) or not endpoint.in_service:
            return None
        return None if endpoint.health.ejected(now) and self._pool.unhealthy(endpoint, now) else endpoint

    def answered(self, lease: Lease, usage: Usage, now: float) -> None:
        """Check whether the prompt of a complete answer was cached as believed, and learn from it."""
        if lease.source is None or not (usage.cached_told or usage.cached_tokens):
            return
        endpoint = self._pool.get(lease.endpoint)
        if endpoint is None or lease.epoch != endpoint.ledger.epoch:
            return
        self._compared = None
        if lease.sought is not None:
            self._last_sent.learn(lease.sought, usage.cached_tokens)
        predicted = lease.cached_tokens
        if lease.source is Source.HISTORY:  # which knows shares; tokens were estimated
            predicted = round(predicted * usage.prompt_tokens / max(1, predicted + lease.prompt_tokens))
        if lease.twin_computing:
            predicted = min(predicted, usage.cached_tokens)
        right = self.sources.check(
            lease.source,
            endpoint.index,
            predicted=predicted,
            cached=usage.cached_tokens,
            prompt_tokens=usage.prompt_tokens,
            now=now,
            learns=lease.source is Source.HISTORY and self._history.limit_of(endpoint.index) > KEYS_MIN,
        )
        if lease.source is Source.HISTORY and predicted and not lease.twin_computing:
            self._resize(endpoint, lease.keys_since, right=right)

    def failed(self, entry: Entry, lease: Lease) -> None:
        """Forget that the prompt of `entry` was sent to its endpoint: it was not computed there."""
        endpoint = self._pool.holder(lease)
        request = entry.request
        if endpoint is None or not self._policy.uses_prefix or not request.prefix:
            return
        self._compared = None
        self._last_sent.failed(request.prefix, endpoint.index)
        located = Located(self._history.bits)
        located.measured(request, entry.prompt_tokens)
        self._history.remove(endpoint.index, request.prefix[located.keys_in(lease.cached_tokens) :])

    # --- events of engines --------------------------------------------------------------------------------------

    def stored(self, endpoint: Endpoint, keys: Iterable[int]) -> None:
        """An endpoint reports that it holds the token blocks with these `keys`."""
        self._exact.store(endpoint.index, tuple(keys))

    def removed(self, endpoint: Endpoint, keys: Iterable[int]) -> None:
        """An endpoint reports that it no longer holds the token blocks with these `keys`."""
        self._exact.remove(endpoint.index, keys)

    def cleared(self, endpoint: Endpoint) -> None:
        """`endpoint` reports an empty cache."""
        self._exact.clear(endpoint.index)

    def lost(self, endpoint: Endpoint) -> None:
        """Fall back to our own history for `endpoint` after its KV-event stream ended."""
        self._exact.forget(endpoint.index)

    def down(self, endpoint: Endpoint) -> None:
        """Assume nothing cached at the unreachable `endpoint`, until its gauges show the same process."""
        self._doubted[endpoint.index] = endpoint

    def answers(self, endpoint: Endpoint) -> None:
        """Note that `endpoint` answers. Without gauges it is taken for a new process."""
        if endpoint.index in self._doubted and endpoint.ledger.page.base is None:
            self.read(endpoint, restarted=True)

    def read(self, endpoint: Endpoint, *, restarted: bool) -> None:
        """Note that the endpoint's gauges were read.

        `restarted`: another process answers there, with an empty cache.
        """
        if restarted:
            self._history.clear(endpoint.index)
            endpoint.adapters.forget()
            self._last_sent.cleared(endpoint.index)
            self.sources.forget(endpoint.index)
        self._doubted.pop(endpoint.index, None)

    def gone(self, endpoint: Endpoint) -> None:
        """Forget an `endpoint` that was removed."""
        self._history.forget(endpoint.index)
        self._last_sent.cleared(endpoint.index)
        self._exact.forget(endpoint.index)
        self.sources.forget(endpoint.index)
        self._doubted.pop(endpoint.index, None)

    # --- inside -------------------------------------------------------------------------------------------------

    def _context(self, entry: Entry, located: Located, sought: Sought | None, now: float) -> Context:
        request = entry.request
        matched, common = self._telling(request, located, now) if located.most else (located.told, 0)
        if sought is not None:
            tokens = self._last_sent.expected(sought) - common
            if tokens > max(matched.values(), default=0):
                matched = {**matched, sought.endpoint: tokens}
        prompt_tokens = max(1, entry.prompt_tokens - common)
        if self._pool.adapted and self._weighs_adapters and (loads := self._adapter(request.model)):
            prompt_tokens += max(loads.values())
            matched = {index: matched.get(index, 0) + loads.get(index, 0) for index in {**matched, **loads}}
        return Context(
            request,
            prompt_tokens=prompt_tokens,
            output_tokens=entry.output_tokens,
            now=now,
            matched=matched,
            home=self.home(request, now, whole=entry.whole) if self._policy.uses_session else None,
            alive=lambda: self._pool.usable(request, now, whole=entry.whole),
            price_weight_s=self.settings.price_weight_s if self._pool.priced and self._weighs_prices() else 0.0,
        )

    def _adapter(self, model: str) -> dict[int, int]:
        """Returns the prompt tokens, by endpoint, that could be computed while a LoRA adapter is loaded elsewhere.

        So an adapter is like the beginning of a prompt. Half of it counts where another one has room, because one that
        is displaced will have to be loaded again.
        """
        listing = [e for e in self._pool if model in e.adapters.listed]
        tokens = round(ADAPTER_S * max([e.ledger.speed.rate for e in listing], default=0.0))
        holding = {e.index: tokens for e in listing if e.adapters.holds(model)}
        return holding | {e.index: tokens // 2 for e in listing if e.adapters.room and e.index not in holding}

    def _weighs_prices(self) -> bool:
        """Whether a policy that compares times should add prices."""
        return self._pool.priced and self.settings.price_weight_s < math.inf

    def _sought(self, request: Request, located: Located, now: float) -> Sought | None:
        """Returns the last endpoint of a similar prompt and its likely part, if none is known to hold as much."""
        if not request.prefix or not self._policy.weighs_load or located.told or now < self.sources.off_until_s:
            return None
        last = self._last_sent.last(request.prefix, beyond=located.levels[-1][1] if located.levels else 0)
        if last is None or last.endpoint in self._doubted:
            return None
        tokens = located.tokens_at(last.amount)
        return Sought(last.endpoint, tokens, last.age) if tokens > located.most else None

    def _telling(self, request: Request, located: Located, now: float) -> tuple[dict[int, int], int]:
        """Returns the endpoints that hold more than half of them do, with the excess, and that half's tokens.

        Prefixes held by half of them don't distinguish endpoints, and very hot ones should spread: otherwise all
        requests would pile onto the first holder.
        """
        half = max(2, (self._pool.serving(request.model) + 1) // 2)
        if located.told or not self._policy.weighs_load:
            roles, model = self._pool.roles, request.model
            telling_ones = [e for e in self._pool if roles.computes(e, model, whole=False)] if roles.any else self._pool
            held = {e.index: tokens for e in telling_ones if (tokens := located.tokens(e.index))}
            if not self._policy.weighs_load:
                return held, 0
            common = sorted(held.values(), reverse=True)[half - 1] if len(held) >= half else 0
            return {index: tokens - common for index, tokens in held.items() if tokens > common}, common
        bits, depth = located.levels[-1]
        if self._hot.hot(request.prefix[depth - 1], located.tokens_at(depth), bits.bit_count(), now):
            return {}, 0
        telling: list[tuple[int, int]] = []
        holders, common = 0, 0
        for bits, depth in reversed(located.levels):
            holders += bits.bit_count()
            if holders >= half:
                common = located.tokens_at(depth)
                break
            telling.append((bits, located.tokens_at(depth)))
        endpoint_of = self._history.endpoint_of
        return {endpoint_of(n): tokens - common for bits, tokens in telling for n in bits_of(bits)}, common

    def _located(self, entry: Entry, now: float) -> Located:
        by_history = entry.blocks is None and entry.looked_up is None
        if by_history and not entry.prefix:
            return NOWHERE
        request, sources = entry.request, self.sources
        if by_history:
            by_history = now >= sources.off_until_s and not self._doubted
            if by_history and entry.located.version == self._history.version:
                return entry.located  # as last looked at, and nothing has happened since
        located = Located(self._history.bits)
        if by_history:
            located.version = self._history.version
        if request.prefix:
            located.levels = self._history.levels(request.prefix)
            if located.levels and (now < sources.off_until_s or self._doubted):
                wrong = [e for e in self._pool if not sources.trusted(Source.HISTORY, e.index, now)]
                doubted = dict.fromkeys((*[e.index for e in wrong], *self._doubted))
                located.leave_out(sum(self._history.bit(index) for index in doubted))
            located.measured(request, entry.prompt_tokens)
        if entry.blocks is not None:
            keys, block_tokens = entry.blocks
            held = self._exact.match(keys)
            told = {e.index: held.get(e.index, 0) * block_tokens for e in self._pool if self._exact.knows(e.index)}
            self._say(Source.KV_EVENTS, told, request, located, now)
        if entry.looked_up is not None:
            source, by_name = entry.looked_up
            told = {e.index: by_name.get(e.name, 0) for e in self._pool}
            self._say(source, told, request, located, now)
        return located

    def _by_history(self, entry: Entry, now: float) -> bool:
        """True if our history is all that is known of a prompt, and trusted about all endpoints."""
        return (
            entry.blocks is None and entry.looked_up is None and now >= self.sources.off_until_s and not self._doubted
        )

    def _say(self, source: Source, told: Mapping[int, int], request: Request, located: Located, now: float) -> None:
        """Prefer a source better than our history, except for prefixes being computed, which will be there."""
        for endpoint in self._pool:
            index = endpoint.index
            if index not in told or not self.sources.trusted(source, index, now):
                continue
            located.said[index], located.told[index] = source, told[index]
            if endpoint.ledger.prefill.leases and located.tokens_at(located.depth(index)) > told[index]:
                depth = max(shared(request.prefix, lease.prefix) for lease in endpoint.ledger.prefill.leases.values())
                computing = located.tokens_at(depth)
                if computing > told[index]:
                    located.said[index], located.told[index] = Source.HISTORY, computing

    def _resize(self, endpoint: Endpoint, keys_since: int, *, right: bool) -> None:
        """An engine's cache is smaller than its memory, because answers take some. Its errors show how much less:
        evicted blocks made room for later ones. Older entries than the assumed capacity, not yet dropped from the
        index, are ignored.
        """
        history, index = self._history, endpoint.index
        limit = history.limit_of(index)
        limit = int(limit * GROW) + 1 if right else min(limit, int(keys_since * SHRINK))
        history.limit(index, limit)


def _middle(prefix: Sequence[Key]) -> Key:
    return prefix[(len(prefix) - 1) // 2]


def _being_computed(key: Key, depth: int, endpoint: Endpoint) -> bool:
    """Whether a prompt's prefix was sent there only a moment ago, so that it may not be computed yet."""
    return any(len(x.prefix) >= depth and x.prefix[depth - 1] == key for x in endpoint.ledger.prefill.leases.values())


def _fast_enough(endpoints: Sequence[Endpoint], limit_s: float, now: float) -> Sequence[Endpoint]:
    """Returns the endpoints whose time per output token is within a request's own limit; all if none is."""
    fast = [e for e in endpoints if not e.ledger.speed.exceeds(limit_s, now, own=bool(e.ledger.leases))]
    return fast or endpoints
