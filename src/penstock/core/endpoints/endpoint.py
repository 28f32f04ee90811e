"""One engine as the scheduler sees it: its models, concurrency and state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from penstock.core.endpoints.adapters import AdapterMemory
from penstock.core.endpoints.concurrency import ConcurrencyLimit, FoundLimit
from penstock.core.endpoints.health import Health
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.ledger import Ledger
from penstock.core.endpoints.liveness import Liveness
from penstock.core.endpoints.proof import Proof
from penstock.core.endpoints.roles import bootstrap_port_of, role_of
from penstock.core.values.observation import Observation
from penstock.core.values.settings import AdmissionSettings, EndpointLimits, EndpointSpec, HealthSettings, part

LACKS_S = 600.0  # an engine's refusal of a kind of requests: a fault of ours costs one more refusal, seen by nobody
LACKS_MAX = 1_000  # a few kinds for each of some hundred models
NEAR_LIMIT = 0.75  # of its slots or memory in use; below that, waiting requests do not wait for a reading


class Endpoint:
    """An endpoint with its ledger and health. `models`: None until reported (`tells_models` False: it can't)."""

    def __init__(
        self, spec: EndpointSpec, *, index: int, health: HealthSettings, stale_after_s: float, epoch: int = 0
    ) -> None:
        self.name = spec.name
        self.index = index  # order of configuration: the tie-break wherever endpoints are compared
        self.models = spec.models
        self.tells_models = True
        self.contexts: dict[str, int] = {}  # context length by model, if reported
        self.adapters = AdapterMemory()
        self._lacks: dict[tuple[str, str], float] = {}  # kinds of requests that it refused, by model: until when
        self.silent = False  # it leaves questions of ours unanswered, which is shown and decides nothing
        self.labels = spec.labels
        self.price = spec.price
        self.weight = spec.weight
        self.kv_tokens = spec.kv_tokens  #: its KV memory, as set; None: as its engine reports
        self.keeps_prefixes = True  #: of ended requests, as far as known
        self.weighted = False  # another endpoint has another weight
        self.set_limits(spec.limits)
        self.role = role_of(spec.labels)
        self.meets = bootstrap_port_of(spec.labels) is not None  # the decode endpoint gets the request with it
        self.first_epoch = epoch
        self.finds_slots = spec.adaptive_slots  #: its slots are unknown, and learnt
        self._whole = FoundLimit(spec.slots) if spec.adaptive_slots else ConcurrencyLimit(spec.slots)
        self.ledger = Ledger(self._whole, stale_after_s=stale_after_s, epoch=epoch)
        self.health = Health(health, up=True)
        self.liveness = Liveness()
        self.proof = Proof(vouched=spec.vouched, by_word=spec.by_word)
        self.left_to_others: frozenset[str] | None = None  # models that it was found to lack; None: none
        self.left_all_to_others = False  # to one that serves any model
        self.drained = False  # by an operator: nothing new goes there
        self.leaves = False  # it was removed and nothing replaces it: its models are not waited for
        self._told_slots: int | None = None  # by the engine
        self._slots_by_hand = not spec.adaptive_slots
        self._gateways = 1  # that decide, each with its part of the slots
        self.dispatches_total = 0
        self.turn = 0.0  # among equals the least is next: it moves on with each request that is sent there
        self.failure: str | None = None  # the last one
        self.failed_s = 0.0
        self.touched = False  # since a band judged it last: then all bands will

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, leases={len(self.ledger.leases)}/{self.slots})"

    @property
    def slots(self) -> int:
        """Its concurrency."""
        return self.ledger.limit.slots

    @property
    def in_service(self) -> bool:
        """Whether it exists and is meant to be used, in any state."""
        return self.health.up and not self.drained

    @property
    def awaits_models(self) -> bool:
        """Whether it is in service and may still list its models for the first time."""
        return self.in_service and self.tells_models and self.models is None

    def works(self, now: float) -> bool:
        """Whether it takes requests, if only after a moment: one that is ejected does not, even if it is the last."""
        return self.in_service and not self.health.ejected(now) and not self.proof.left_to_others

    def set_limits(self, limits: EndpointLimits) -> None:
        """Use its own `limits` from now on, with the common ones as defaults."""
        self.limits: EndpointLimits | None = None if limits == EndpointLimits() else limits
        self._usual: AdmissionSettings | None = None  # the source of its current settings
        self._own = AdmissionSettings()

    @property
    def lacks_any(self) -> bool:
        """Whether it refused requests for a kind that it may not take."""
        return bool(self._lacks)

    def lacks(self, kinds: Iterable[tuple[str, str]], now: float) -> bool:
        """True if it refused a request of one of these `kinds`, each with its model, in the last minutes."""
        return bool(self._lacks) and any(now < self._lacks.get(kind, now) for kind in kinds)

    def refused(self, kinds: Iterable[tuple[str, str]], now: float) -> None:
        """Note that it refused a request for one of these `kinds`; the first `LACKS_MAX` are kept."""
        for kind in kinds:
            if len(self._lacks) < LACKS_MAX or kind in self._lacks:
                self._lacks[kind] = now + LACKS_S

    def replaced(self) -> None:
        """Forget what the process there did: another one runs now."""
        self.liveness = Liveness()
        self._lacks.clear()

    def admission(self, usual: AdmissionSettings) -> AdmissionSettings:
        """Returns the limits of admission as they are here: its own, and `usual` for those that it does not set."""
        limits = self.limits
        if limits is None:
            return usual
        if self._usual is not usual:
            own: dict[str, object] = {  # typed, because a compiled one would otherwise make the whole numbers floats
                "kv_usage_max": limits.kv_usage_max,
                "prefill_tokens_max": limits.prefill_tokens_max,
                "time_per_output_token_s_max": limits.time_per_output_token_s_max,
            }
            self._usual, self._own = usual, replace(usual, **{k: v for k, v in own.items() if v is not None})
        return self._own

    @property
    def first_until_s(self) -> float:
        """Until when it gets nothing because its first requests are waited for (`proof.py`); minus infinity: it may."""
        leases = self.ledger.leases
        if not self.proof.by_word or not leases:
            return -math.inf
        return self.proof.first_until_s(len(leases), next(iter(leases.values())).began_s)

    def first_token(self, lease: Lease, now: float) -> None:
        """Note that the engine has taken a request in and computed its prompt."""
        self.liveness.began(lease, self.ledger, now)
        self.ledger.first_token(lease, now)
        if self.health.trial is not None:
            self.health.answered(self.slots)

    def set_slots(self, slots: int | Literal["auto"]) -> None:
        """Set the slots by hand: a number is fixed from now on.

        With `auto` it is the reported number, or learnt from the present one.
        """
        self._slots_by_hand = slots != "auto"
        self._choose_slots(self._told_slots if slots == "auto" else slots)

    def slots_told(self, slots: int) -> None:
        """Record the reported concurrency; used unless `slots` is set."""
        self._told_slots = slots
        if not self._slots_by_hand:
            self._choose_slots(slots)

    def _choose_slots(self, slots: int | None) -> None:
        if slots is not None:
            self._whole = ConcurrencyLimit(slots)
        elif not isinstance(self._whole, FoundLimit):
            self._whole = FoundLimit(self._whole.slots, ran=self._whole.slots)
        self.apportion(self._gateways)

    def apportion(self, gateways: int) -> None:
        """Use one gateway's part of the slots, because so many decide each for itself; 1: all slots.

        Meanwhile its size is not learnt, because most of its requests are others'.
        """
        self._gateways = gateways
        whole = self._whole
        self.ledger.limit = limit = whole if gateways == 1 else ConcurrencyLimit(part(whole.slots, gateways))
        self.finds_slots = isinstance(limit, FoundLimit)

    def near_limit(self, now: float) -> bool:
        """True if a newer reading may open or close the endpoint: by some measure of admission it is not idle."""
        ledger = self.ledger
        kv_usage = ledger.kv_usage(now) or 0.0
        return (
            ledger.page.queue > 0.0 or max(ledger.load(now), 1.0) >= self.slots * NEAR_LIMIT or kv_usage >= NEAR_LIMIT
        )

    def observed(self, reading: Observation, now: float, *, wanted: bool = False) -> bool:
        """Take in a reading. Returns True when the slots changed with it.

        `wanted`: requests wait that would be sent here if it had more slots.
        """
        ledger, before = self.ledger, self.ledger.page.base
        if ledger.observe(reading):
            self.health.returned(now, slots=self.slots)
            self.proof.returned()
            self.replaced()
        if ledger.page.base is before:
            return False
        slots = self.slots
        ledger.limit.look(ledger, now, wanted=wanted, moved=True)
        return slots != self.slots

    def looked(self, now: float, *, wanted: bool) -> bool:
        """Evaluate its size by our own requests. Returns True when the slots changed with it."""
        limit = self.ledger.limit
        slots = limit.slots
        limit.look(self.ledger, now, wanted=wanted)
        return slots != limit.slots

    def frees_s(self, now: float) -> float | None:
        """Returns the seconds until the first of its requests is expected to end; None if it has none.

        While the engine's pace is unknown a request is expected to run on for as long as it has run.
        """
        pace_s, leases = self.ledger.speed.time_per_output_token_s(now), self.ledger.leases.values()
        if not pace_s:
            return min([now - lease.dispatched_s for lease in leases], default=None)
        return min([lease.ends_s(pace_s, now) - now for lease in leases], default=None)

    def frees_within(self, seconds: float, now: float) -> int:
        """Returns how many slots are forecast to free so soon. Overdue leases do not count."""
        pace_s = self.ledger.speed.time_per_output_token_s(now)
        if not pace_s:
            return 0
        return sum([now < lease.ends_s(pace_s, now) <= now + seconds for lease in self.ledger.leases.values()])

    def serves(self, model: str) -> bool:
        """True if requests for `model` may go here."""
        if self.left_to_others is not None and (self.left_all_to_others or model in self.left_to_others):
            return False
        return not self.tells_models or (self.models is not None and model in self.models)  # as `claims`

    def claims(self, model: str) -> bool:
        """True if it reports `model`, or may serve it, and was not found to lack it."""
        return not self.tells_models or (self.models is not None and model in self.models)

    def shares_models(self, other: Endpoint) -> bool:
        """True if one may stand in for the other: some model is served by both."""
        if not (self.tells_models and other.tells_models):
            return True
        return self is other or not (self.models or frozenset()).isdisjoint(other.models or ())


def least_loaded(endpoints: Sequence[Endpoint], now: float) -> Endpoint:
    """Returns the endpoint with the least load for its size; among equals the next in turn.

    Different weights count as size, and loads within one request of the least count as equal.
    """
    chosen = endpoints[0]
    if len(endpoints) == 1:
        return chosen
    if chosen.weighted:
        return by_turn(endpoints, now)
    least, last = math.inf, 0.0
    for endpoint in endpoints:  # a loop, because it runs over all open endpoints at every dispatch
        ledger = endpoint.ledger
        share = ledger.load(now) / (ledger.limit.slots or 1)
        if share > least:
            continue
        turn = endpoint.turn
        if share < least or turn < last or (turn == last and endpoint.index < chosen.index):
            chosen, least, last = endpoint, share, turn
    return chosen


def by_turn(endpoints: Sequence[Endpoint], now: float) -> Endpoint:
    """Returns, of endpoints with different weights, the next in turn among the least loaded.

    Loads are whole requests: beside an endpoint of weight 3 one of weight 1 with a request to do is never the less
    loaded, however few are sent. So loads within one request of the least count as equal, and turns divide exactly.
    """
    sizes = [(endpoint.ledger.limit.slots or 1) * endpoint.weight for endpoint in endpoints]
    loads = [endpoint.ledger.load(now) for endpoint in endpoints]
    enough = min([(load + 1.0) / size for load, size in zip(loads, sizes, strict=True)])
    near = [e for e, load, size in zip(endpoints, loads, sizes, strict=True) if load / size < enough]
    return min(near, key=_turn)


def _turn(endpoint: Endpoint) -> tuple[float, int]:
    return endpoint.turn, endpoint.index
