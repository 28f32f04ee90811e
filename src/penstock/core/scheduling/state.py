"""The scheduler's record of parts and state, and the few operations that all facts share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from penstock.core.dispatch.backfill import Backfill
from penstock.core.dispatch.candidates import CandidateFilter
from penstock.core.dispatch.disaggregation import PendingDecodes
from penstock.core.dispatch.operator_pauses import OperatorPauses
from penstock.core.dispatch.preemption_budget import PreemptionBudget
from penstock.core.dispatch.prefill_stagger import PrefillStagger
from penstock.core.dispatch.pump import Pump
from penstock.core.dispatch.reserved_slots import ReservedSlots
from penstock.core.dispatch.under_share import UnderShare
from penstock.core.dispatch.warm_first import WarmFirst
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
from penstock.core.queueing.flow_queue import ORDERINGS
from penstock.core.queueing.promised_shares import PromisedShares
from penstock.core.queueing.queues import Queues
from penstock.core.queueing.quotas import Quotas
from penstock.core.queueing.wait_forecast import WaitForecast
from penstock.core.routing.affinity_wait import AffinityWait
from penstock.core.routing.router import Router
from penstock.core.sessions.gate import SessionGate
from penstock.core.util.timers import Timers
from penstock.core.values import retry
from penstock.core.values.actions import Dispatch
from penstock.core.values.catalogue import UNTIMED
from penstock.core.values.lifecycle import State
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import SchedulerSettings

KNOWN_S = 60.0  # an engine is replaced within that, as a rule


def account_of(settings: SchedulerSettings) -> Charges:
    """Returns the charges by the fairness policy of each band."""
    return Charges([settings.fairness_of(band) for band in settings.bands], settings.prices)


def keys_of(settings: SchedulerSettings) -> list[Callable[[Entry, float], float]]:
    """Returns, for each band, the function that orders the requests of a flow."""
    return [ORDERINGS[settings.ordering_of(band)] for band in settings.bands]


class Watcher(Protocol):
    """Observes single decisions, for checkers and tests."""

    def sends_alone(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        """A newcomer is about to be sent to one of `endpoints` without waiting, because nothing waits."""

    def sends(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        """A request is about to be sent to one of `endpoints`."""

    def sent(self, entry: Entry, dispatch: Dispatch) -> None:
        """A request was sent by `dispatch`."""

    def reserves(self, entry: Entry, partners: list[Endpoint], now: float) -> None:
        """A slot is about to be taken at one of `partners`, for the answer to a prompt that is computed elsewhere."""

    def settled(self, entry: Entry, usage: Usage | None) -> None:
        """An admitted request is over, and was charged for `usage`; None: the charge was refunded."""


class SchedulerState:
    """All parts and state of one scheduler; facts and transitions change it."""

    def __init__(self, settings: SchedulerSettings, draw: Callable[[], float]) -> None:
        self.settings = settings  #: in force
        self.told_settings = settings  #: as given; those in force are one gateway's part of these
        self.gateways = 1  #: that decide each for itself
        self.draw = draw
        self.queues = Queues(settings.bands, settings.bounds)
        self.pool = Pool(settings.health, stale_after_s=settings.stale_after_s, named_models=settings.named_models)
        self.charges = account_of(settings)
        self.reserved = ReservedSlots(self.reserved_share())
        self.quotas = Quotas(settings.tenants)
        self.pauses = OperatorPauses()
        self.gate = SessionGate(settings.gate, self.pool, self.quotas, tenant_level=settings.tenant_level)
        self.router = Router(settings.routing, settings.router, self.pool, draw=draw)
        self.affinity = AffinityWait(self.router, self.queues, self.look_again)
        self.stagger = PrefillStagger(self.pool, self.look_again)
        self.backfill = Backfill(self.charges)
        self.capped = CappedFlows(self.queues, self.quotas, tenant_level=settings.tenant_level)
        self.preemption = PreemptionBudget(settings.admission.preempted_share_max, bands=self.has_preemptible())
        self.under_share = UnderShare(
            self.queues,
            self.pool,
            self.reserved,
            quotas=self.quotas,
            capped=self.capped,
            backfill=self.backfill,
            preemption=self.preemption,
            look_again=self.look_again,
        )
        self.candidates = CandidateFilter(
            self.queues,
            self.pool,
            settings.admission,
            quotas=self.quotas,
            under_share=self.under_share,
            backfill=self.backfill,
            affinity=self.affinity,
            stagger=self.stagger,
            look_again=self.look_again,
        )
        self.promised = PromisedShares(self.queues)
        self.pump = Pump(
            self.queues,
            self.pool,
            self.quotas,
            pauses=self.pauses,
            affinity=self.affinity,
            capped=self.capped,
            under_share=self.under_share,
            backfill=self.backfill,
            candidates=self.candidates,
            stagger=self.stagger,
            warm=WarmFirst(self.router, self.affinity, self.backfill),
            promised=self.promised,
            look=self.look,
        )
        self.reweigh()
        self.shares = Shares(self.queues, self.under_share, tenant_level=settings.tenant_level)
        self.wait_causes = Waits(
            self.queues,
            self.pool,
            under_share=self.under_share,
            candidates=self.candidates,
            quotas=self.quotas,
            pauses=self.pauses,
            gate=self.gate,
        )
        self.recorder = Recorder(self.wait_causes, self.shares, [band.name for band in settings.bands])
        self.order_keys = keys_of(settings)
        self.estimator = Estimator()
        self.forecast = WaitForecast(by_request=self.charges.by_request)
        self.budget = retry.RetryBudget(settings.retry_budget)
        self._may_be_empty = False  # a request may wait for a model without an endpoint in service
        self.timers: Timers[int | str] = Timers()  # an arrival number, or an endpoint's name
        self.entries: dict[str, Entry] = {}  # every request that has not ended
        self.leases: dict[int, Entry] = {}  # every unreleased lease, except pending ones
        self.pending = PendingDecodes(self.pool)
        self.seq = 0
        self.lease_serial = 0
        self.paced = self.has_pace_limit()
        self.look_s = math.inf  # when the progress of endpoints is checked next
        self.doubts = False  # whether some endpoint may be stuck, which its next gauges show
        self.watcher: Watcher | None = None
        self.draining = False
        self.queue_until_s: float | None = None
        self.stop_at_s: float | None = None

    def reweigh(self) -> None:
        """Give the trees the weights of flows; they are kept nowhere else."""
        settings = self.settings
        for band in self.queues.bands:
            for name, weights, ordered in (
                ("tenant", settings.tenant_weights, settings.ordered_weights),
                ("model", settings.model_weights, {}),
            ):
                if name in settings.levels:
                    band.tree.reweigh(settings.levels.index(name), weights, ordered)

    def look(self, entry: Entry, now: float) -> bool:
        """Look again which endpoints cache a queued prompt. Returns True if more of it is cached than before."""
        before = entry.cached_tokens
        self.router.look(entry, now)
        if entry.cached_tokens != before:
            self.queues.bands[entry.band].resized(entry)
        return entry.cached_tokens > before

    @property
    def known_s(self) -> float:
        """How long models count as known whose last endpoint is gone: it may be replaced, also where nothing waits."""
        return max(self.settings.wait_s_max or KNOWN_S, self.settings.empty_wait_s_max or 0.0)

    def look_again(self, endpoint: Endpoint, when: float) -> None:
        """Look at `endpoint` again at `when` at the latest; infinity: no need to. Its one timer may fire earlier."""
        if when != math.inf:
            self.timers.set_earlier(endpoint.name, when)

    def place(self, entry: Entry, band: Band) -> None:
        """Find the flow of `entry` in a band's tree, and charge the tree its charge so far."""
        request = entry.request
        node = band.tree.node(request.flow, request.weights) if self.charges.by_flow[band.rank] else band.tree.root
        entry.node = node
        if entry.charged:
            band.tree.charge(node, entry.charged)

    def allow(self, entry: Entry, band: Band) -> None:
        """Let a request in `band` wait as long as it may, as the endpoints for its model are now."""
        empty_s = self.settings.empty_wait_s_max
        if empty_s is not None and not self.pool.alive(entry.model):
            self._may_be_empty = True
            entry.pool_empty = True
            entry.wait_s_max = max(entry.wait_s_max, empty_s)
        else:
            own_s = band.settings.wait_s_max
            entry.wait_s_max = max(entry.wait_s_max, self.settings.wait_s_max if own_s is None else own_s)

    def allow_held(self, entry: Entry) -> None:
        """Let a request that the gate holds wait until that lets it in, unless its band's own setting is shorter."""
        own_s = self.queues.bands[entry.band].settings.wait_s_max
        if own_s is None and entry.wait_s_max > 0.0 and not entry.pool_empty:
            entry.wait_s_max = max(entry.wait_s_max, self.settings.sessions.wait_s_max)

    def works(self, model: str, now: float) -> bool:
        """True if requests for the model are admitted and sent, and an endpoint takes them, if only after a moment."""
        return self.pauses.sends(model) and self.pauses.admits(model) and self.pool.works(model, now)

    def goes_elsewhere(self, request: Request, now: float) -> bool:
        """True if a request does not wait for its model, because that has no endpoint and another one may have."""
        if request.falls_back and not self.pool.alive(request.model):
            return True
        return self.other_works(request, now) and not self.works(request.model, now)

    def other_works(self, request: Request, now: float) -> bool:
        """True if another of its models takes a request now."""
        return bool(request.others) and any(self.works(model, now) for model in request.others)

    def _wait_s_max(self, band: Band) -> float:
        own_s = band.settings.wait_s_max
        return self.settings.wait_s_max if own_s is None else own_s

    def _look_for_empty_pools(self, now: float) -> None:
        """Let requests whose last endpoint went, or whose first one came, wait from now on as is right then.

        However often that happens, a request waits no longer than both times together.
        """
        empty_s = self.settings.empty_wait_s_max
        if empty_s is None:
            return
        queued = {model for band in self.queues.bands for model in band.models()}
        empty = {model for model in queued if not self.pool.alive(model)}
        looks, self._may_be_empty = self._may_be_empty or bool(empty), bool(empty)
        for band in self.queues.bands if looks else ():
            usual_s = self._wait_s_max(band)
            for entry in band.entries.values():
                is_empty = entry.model in empty
                if entry.pool_empty is not is_empty:
                    entry.pool_empty = is_empty
                    more_s = empty_s if is_empty else usual_s
                    entry.wait_s_max = min(now - entry.waits_since_s + more_s, empty_s + usual_s)
                    if entry.held:
                        self.allow_held(entry)
                    self.timers.set_earlier(entry.seq, entry.waits_since_s + entry.wait_s_max)

    def estimated_wait_s(
        self, entry: Entry, now: float, *, ahead: float | None = None, refusing: bool = False
    ) -> float | None:
        """Returns the forecast seconds until a request is sent; None: unknown (`WaitForecast.wait_s`)."""
        if entry.held:
            session = self.gate.session_of(entry.id)
            return None if session is None else self.gate.expected_s(session, now)
        slots = self.pool.slots(entry.model)
        bands = self.queues.bands
        wait_s = self.forecast.wait_s(entry, bands, slots, now, ahead=ahead, refusing=refusing)
        if wait_s is None or refusing or not self.quotas.any or (limit := self.quotas.full(entry.accounts)) is None:
            return wait_s
        return max(wait_s, self.forecast.capped_s(entry, limit.most, bands, ahead=ahead))

    def told_wait_s(self, entry: Entry, now: float, *, ahead: float | None = None) -> float | None:
        """Returns the same for people and clients: None also if no rate of service ends the wait."""
        if entry.state is State.WAITING and self.recorder.cause(entry) in UNTIMED:
            return None
        return self.estimated_wait_s(entry, now, ahead=ahead)

    def health_changed(self, now: float) -> None:
        """Look again at ejected endpoints: another's health decides whether their ejections are ignored."""
        self.pool.changed()
        self.holds_changed()
        if self.gate.on:
            self.gate.health_changed(now)
        self._look_for_empty_pools(now)
        for endpoint in self.pool:
            if endpoint.health.ejected(now) or not endpoint.proof.stands:
                self.queues.touch(endpoint)

    def holds_changed(self) -> None:
        """Look again which models are held, before anything is sent."""
        for band in self.queues.bands:
            band.holds_changed = True

    def reserved_share(self) -> float | None:
        """Returns the share of slots reserved for flows under their share; None: measured; 0.0: one line for all."""
        return self.settings.admission.reserved_share if self.charges.uses_flows else 0.0

    def has_preemptible(self) -> bool:
        """True if a band is preemptible, and its requests may be preempted at all."""
        return self.settings.admission.preemptions_max > 0 and any(band.preemptible for band in self.settings.bands)

    def has_pace_limit(self) -> bool:
        """True if a limit of time per output token is set, for all, for a band or for an endpoint."""
        bands_s = [band.time_per_output_token_s_max for band in self.settings.bands]
        own_s = [e.limits.time_per_output_token_s_max for e in self.pool if e.limits is not None]
        return any((self.settings.admission.time_per_output_token_s_max, *bands_s, *own_s))
