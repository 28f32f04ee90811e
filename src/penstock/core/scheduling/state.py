"""What a scheduler is made of, and the few things that all it does needs.

The lowest layer of the scheduler (`core/scheduler.py` says how to read them): it makes the parts, and holds what can be
asked of them without knowing what becomes of a request.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.dispatch.backfill import Backfill
from penstock.core.dispatch.candidates import CandidateFilter
from penstock.core.dispatch.disaggregation import PendingDecodes
from penstock.core.dispatch.operator_pauses import OperatorPauses
from penstock.core.dispatch.prefill_stagger import PrefillStagger
from penstock.core.dispatch.prefix_followers import PrefixFollowers
from penstock.core.dispatch.prefix_groups import PrefixGroups
from penstock.core.dispatch.pump import Pump
from penstock.core.dispatch.reserved_slots import ReservedSlots
from penstock.core.dispatch.under_share import UnderShare
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.explain.recorder import Recorder
from penstock.core.explain.shares import Shares
from penstock.core.explain.wait_causes import Waits
from penstock.core.queueing.band import Band
from penstock.core.queueing.capped_flows import CappedFlows
from penstock.core.queueing.charges import Charges
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import Estimator
from penstock.core.queueing.fair_tree import QueueTree
from penstock.core.queueing.ordering import ORDERINGS
from penstock.core.queueing.promised_shares import PromisedShares
from penstock.core.queueing.queues import Queues
from penstock.core.queueing.quotas import Quotas
from penstock.core.queueing.wait_forecast import WaitForecast
from penstock.core.routing.affinity_wait import AffinityWait
from penstock.core.routing.router import Router
from penstock.core.util.timers import Timers
from penstock.core.values import retry
from penstock.core.values.settings import SchedulerSettings


def account_of(settings: SchedulerSettings) -> Charges:
    """Who charges, by the policy of each band."""
    return Charges([settings.fairness_of(band) for band in settings.bands], settings.prices)


def keys_of(settings: SchedulerSettings) -> list[Callable[[Entry, float], float]]:
    """What orders the requests of a flow, by band."""
    return [ORDERINGS[settings.ordering_of(band)] for band in settings.bands]


def by_arrival(settings: SchedulerSettings) -> list[bool]:
    """Whether requests of a flow go in order of arrival, by band."""
    return [settings.ordering_of(band) == "fcfs" for band in settings.bands]


class SchedulerState:
    """The parts of a scheduler."""

    def __init__(self, settings: SchedulerSettings, draw: Callable[[], float]) -> None:
        self._settings = settings
        self._draw = draw
        self._queues = Queues(settings.bands, settings.bounds)
        self._pool = Pool(settings.health, stale_after_s=settings.stale_after_s)
        self._charges = account_of(settings)
        self._reserved = ReservedSlots(self._reserved_share())
        self._quotas = Quotas(settings.tenants)
        self._pauses = OperatorPauses()
        self._router = Router(settings.routing, settings.router, self._pool, draw=draw)
        self._affinity = AffinityWait(self._router, self._queues, self._look_again)
        self._groups = PrefixGroups(settings.router, self._charges, by_arrival=by_arrival(settings))
        self._stagger = PrefillStagger(self._pool, self._look_again)
        self._backfill = Backfill(self._charges)
        self._capped = CappedFlows(self._queues, self._quotas, tenant_level=settings.tenant_level)
        self._under_share = UnderShare(
            self._queues,
            self._pool,
            self._reserved,
            quotas=self._quotas,
            capped=self._capped,
            backfill=self._backfill,
            look_again=self._look_again,
        )
        self._candidates = CandidateFilter(
            self._queues,
            self._pool,
            settings.admission,
            quotas=self._quotas,
            under_share=self._under_share,
            backfill=self._backfill,
            affinity=self._affinity,
            stagger=self._stagger,
            look_again=self._look_again,
        )
        self._followers = PrefixFollowers(
            self._groups,
            quotas=self._quotas,
            capped=self._capped,
            under_share=self._under_share,
            candidates=self._candidates,
            backfill=self._backfill,
            affinity=self._affinity,
            look=self._look,
        )
        self._promised = PromisedShares(self._queues)
        self._pump = Pump(
            self._queues,
            self._pool,
            self._quotas,
            pauses=self._pauses,
            affinity=self._affinity,
            capped=self._capped,
            under_share=self._under_share,
            backfill=self._backfill,
            candidates=self._candidates,
            followers=self._followers,
            stagger=self._stagger,
            promised=self._promised,
            look=self._look,
        )
        self._reweigh()
        self._shares = Shares(self._queues, tenant_level=settings.tenant_level)
        self._waits = Waits(
            self._queues,
            self._pool,
            under_share=self._under_share,
            candidates=self._candidates,
            quotas=self._quotas,
            pauses=self._pauses,
            settings=settings.admission,
        )
        self._recorder = Recorder(self._waits, self._shares, [band.name for band in settings.bands], self._router)
        self._keys = keys_of(settings)
        self._estimator = Estimator()
        self._forecast = WaitForecast(by_request=self._charges.by_request)
        self._budget = retry.RetryBudget(settings.retry_budget)
        self._timers: Timers[int | str] = Timers()  # an arrival number, or an endpoint's name
        self._entries: dict[str, Entry] = {}  # every request that has not ended
        self._leases: dict[int, Entry] = {}  # every lease that was not released, but for pending ones
        self._pending = PendingDecodes(self._pool)
        self._seq = 0
        self._lease_serial = 0
        self.paced = self._has_pace_limit()
        self._look_s = math.inf  # when it is next looked at who moves
        self._draining = False
        self._queue_until_s: float | None = None
        self._stop_at_s: float | None = None

    def _reweigh(self) -> None:
        """Tell the trees what the settings' flows weigh. Nobody else keeps a weight."""
        settings = self._settings
        for band in self._queues.bands:
            for name, weights in (("tenant", settings.tenant_weights), ("model", settings.model_weights)):
                if name in settings.levels:
                    band.tree.reweigh(settings.levels.index(name), weights)

    def _tree(self, entry: Entry) -> QueueTree:
        return self._queues.bands[entry.request.band].tree

    def _look(self, entry: Entry, now: float) -> bool:
        """Look again who holds a waiting prompt. True when more of it is held than before."""
        before = entry.cached_tokens
        self._router.look(entry, now)
        if entry.cached_tokens != before:
            self._queues.bands[entry.request.band].resized(entry)
        return entry.cached_tokens > before

    def _look_again(self, endpoint: Endpoint, when: float) -> None:
        """Arm the endpoint's one timer. Whoever finds it closed arms it anew, so an earlier use loses nothing."""
        if when != math.inf:
            self._timers.set_earlier(endpoint.name, when)

    def _place(self, entry: Entry, band: Band) -> None:
        """Find its flow in a band's tree, which has not counted what it was charged so far."""
        request = entry.request
        path, weights = (request.flow, request.weights) if self._charges.of_band(band.rank).uses_flows else ((), ())
        entry.node = band.tree.node(path, weights)
        if entry.charged:
            band.tree.charge(entry.node, entry.charged)

    def _wait_s_max(self, band: Band) -> float:
        own_s = band.settings.wait_s_max
        return self._settings.wait_s_max if own_s is None else own_s

    def _estimated_wait_s(
        self, entry: Entry, now: float, *, ahead: float | None = None, refusing: bool = False
    ) -> float | None:
        slots = self._pool.slots(entry.model)
        return self._forecast.wait_s(entry, self._queues.bands, slots, now, ahead=ahead, refusing=refusing)

    def _health_changed(self, now: float) -> None:
        """Somebody's health changed: whether the ejections of others are ignored may have changed with it."""
        self._pool.changed()
        for endpoint in self._pool:
            if endpoint.health.ejected(now):
                self._queues.touch(endpoint)

    def _reserved_share(self) -> float | None:
        # Where all stand in one line nobody is under a share, and what is kept would be used by nobody.
        return self._settings.admission.reserved_share if self._charges.uses_flows else 0.0

    def _has_pace_limit(self) -> bool:
        bands_s = [band.time_per_output_token_s_max for band in self._settings.bands]
        own_s = [e.limits.time_per_output_token_s_max for e in self._pool if e.limits is not None]
        return any((self._settings.admission.time_per_output_token_s_max, *bands_s, *own_s))
