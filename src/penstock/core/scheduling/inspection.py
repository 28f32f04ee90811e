"""What may be seen of a scheduler from outside: its state, to be read, and single decisions as they are made.

For checkers and tests. Both are types alone: the state is handed out as it is, under a type by which nothing in it can
be replaced, and where nobody watches a decision is shown to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.core.dispatch.backfill import Backfill
    from penstock.core.dispatch.candidates import CandidateFilter
    from penstock.core.dispatch.disaggregation import PendingDecodes
    from penstock.core.dispatch.operator_pauses import OperatorPauses
    from penstock.core.dispatch.prefill_stagger import PrefillStagger
    from penstock.core.dispatch.prefix_groups import PrefixGroups
    from penstock.core.dispatch.pump import Pump
    from penstock.core.dispatch.reserved_slots import ReservedSlots
    from penstock.core.dispatch.under_share import UnderShare
    from penstock.core.endpoints.endpoint import Endpoint
    from penstock.core.endpoints.pool import Pool
    from penstock.core.explain.recorder import Recorder
    from penstock.core.explain.shares import Shares
    from penstock.core.queueing.capped_flows import CappedFlows
    from penstock.core.queueing.charges import Charges
    from penstock.core.queueing.entry import Entry
    from penstock.core.queueing.estimate import Estimator
    from penstock.core.queueing.queues import Queues
    from penstock.core.queueing.quotas import Quotas
    from penstock.core.queueing.wait_forecast import WaitForecast
    from penstock.core.routing.affinity_wait import AffinityWait
    from penstock.core.routing.router import Router
    from penstock.core.util.timers import Timers
    from penstock.core.values.actions import Dispatch
    from penstock.core.values.request import Usage
    from penstock.core.values.settings import SchedulerSettings


class Inspection(Protocol):
    """A scheduler's state, to look at."""

    @property
    def settings(self) -> SchedulerSettings: ...
    @property
    def queues(self) -> Queues: ...
    @property
    def pool(self) -> Pool: ...
    @property
    def charges(self) -> Charges: ...
    @property
    def reserved(self) -> ReservedSlots: ...
    @property
    def quotas(self) -> Quotas: ...
    @property
    def pauses(self) -> OperatorPauses: ...
    @property
    def router(self) -> Router: ...
    @property
    def affinity(self) -> AffinityWait: ...
    @property
    def groups(self) -> PrefixGroups: ...
    @property
    def stagger(self) -> PrefillStagger: ...
    @property
    def backfill(self) -> Backfill: ...
    @property
    def capped(self) -> CappedFlows: ...
    @property
    def under_share(self) -> UnderShare: ...
    @property
    def candidates(self) -> CandidateFilter: ...
    @property
    def pump(self) -> Pump: ...
    @property
    def shares(self) -> Shares: ...
    @property
    def recorder(self) -> Recorder: ...
    @property
    def estimator(self) -> Estimator: ...
    @property
    def forecast(self) -> WaitForecast: ...
    @property
    def timers(self) -> Timers[int | str]: ...
    @property
    def told_settings(self) -> SchedulerSettings: ...
    @property
    def gateways(self) -> int: ...
    @property
    def entries(self) -> Mapping[str, Entry]: ...
    @property
    def leases(self) -> Mapping[int, Entry]: ...
    @property
    def pending(self) -> PendingDecodes: ...
    @property
    def draining(self) -> bool: ...
    @property
    def queue_until_s(self) -> float | None: ...


class Watcher(Protocol):
    """Is shown single decisions."""

    def sends_alone(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        """A newcomer is about to be sent to one of `endpoints` without waiting, because nothing waits."""

    def sends(self, entry: Entry, endpoints: list[Endpoint], now: float) -> None:
        """A request is about to be sent to one of `endpoints`."""

    def sent(self, entry: Entry, dispatch: Dispatch) -> None:
        """A request was sent, as `dispatch` says."""

    def reserves(self, entry: Entry, partners: list[Endpoint], now: float) -> None:
        """A slot is about to be taken at one of `partners`, for the answer to a prompt that is computed elsewhere."""

    def settled(self, entry: Entry, usage: Usage | None) -> None:
        """An admitted request is over, and was charged for `usage`; None: the charge was refunded."""
