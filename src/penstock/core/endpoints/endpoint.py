"""One engine as the scheduler sees it: what it serves, how many at once, how it fares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from penstock.core.endpoints.adaptive_slots import AdaptiveSlots, Witness
from penstock.core.endpoints.gauge_belief import Standing
from penstock.core.endpoints.health import Health
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.ledger import Ledger
from penstock.core.endpoints.liveness import Liveness
from penstock.core.endpoints.proof import Proof
from penstock.core.endpoints.roles import bootstrap_port_of, role_of
from penstock.core.values.observation import Observation
from penstock.core.values.settings import AdmissionSettings, EndpointLimits, EndpointSpec, HealthSettings, part

ARRIVALS_MAX = 2.0  # requests expected to come during one engine step; more is not told apart from a queue
FOREIGN_READINGS = 4  # in which others' requests have to be seen: one may just show ends that we have yet to hear of
SLOW_START = 4  # requests: every engine runs so many
SLOW_START_SHARE = 0.25  # of what runs: four at a time take too long to find an engine of hundreds
SLOW_START_ENDS = 16  # whole answers that ran at once: more are let in by what ends show
SLOW_START_S = 1.0  # what does not begin by then does not stream, or waits, which is looked at by itself
AGREED_MIN = 4.0  # requests that one witness says wait, and the other never saw run: no accident of a moment
SURPLUS_MIN = 2  # may wait inside it: as many as bands let wait there by default
COUNTED = 0.75  # of ours, with those that ended lately: the rest may be on their way
COUNTED_ALL = 0.9  # a queue of more than a few would show
STEP_SHARE_BLIND = 1.0  # where nothing but ends shows anything, a whole answer's time later: twice as many, as in TCP
LOOK_S_MIN = 0.05  # between two looks at what our answers show; a step or two of most engines
LOOK_STEPS = 2.0
LOOK_S_MAX = 0.5
NEAR_LIMIT = 0.75  # of its slots or memory in use; below, what waits does not wait for what a reading tells


class Endpoint:
    """An endpoint with its ledger and health. `models` is None until it told; `tells` is False if it can't."""

    def __init__(
        self, spec: EndpointSpec, *, index: int, health: HealthSettings, stale_after_s: float, epoch: int = 0
    ) -> None:
        self.name = spec.name
        self.index = index  # order of configuration: the tie-break wherever endpoints are compared
        self.adaptive = AdaptiveSlots(spec.slots) if spec.adaptive_slots else None
        self.models = spec.models
        self.tells_models = True
        self.contexts: dict[str, int] = {}  # tokens that a request may have, by model, where the engine tells
        self.refused_kinds: frozenset[tuple[str, str]] = frozenset()  # by model, of pictures, sounds and videos
        self.silent = False  # it leaves questions of ours unanswered, which is shown and decides nothing
        self.labels = spec.labels
        self.price = spec.price
        self.weight = spec.weight
        self.weighted = False  # another endpoint has another weight
        self.set_limits(spec.limits)
        self.role = role_of(spec.labels)
        self.meets = bootstrap_port_of(spec.labels) is not None  # who answers is sent the request with it, not after
        self.first_epoch = epoch
        self.ledger = Ledger(slots=spec.slots, stale_after_s=stale_after_s, epoch=epoch)
        self.ledger.others.tries_sizes = spec.adaptive_slots
        self.health = Health(health, up=True)
        self.liveness = Liveness()
        self.proof = Proof(vouched=spec.vouched, by_word=spec.by_word)
        self.left_to_others: frozenset[str] | None = None  # models, where it was seen through; None: nothing is
        self.left_all_to_others = False  # to one that serves any model
        self.drained = False  # by an operator: nothing new goes there
        self._told_slots: int | None = None  # by the engine
        self._slots_by_hand = not spec.adaptive_slots
        self._gateways = 1  # that decide, each with its part of the slots
        self._whole: tuple[int, AdaptiveSlots | None] | None = None  # then: what is set aside for later
        self.overfull = False  #: its slots were found to be fewer, and ours there may be more than these (`surplus`)
        self._begins_slowly = spec.adaptive_slots  # nobody ever said how many it runs
        self.dispatches_total = 0
        self.turn = 0.0  # among equals the least is next: it moves on with each request that is sent there
        self.failure: str | None = None  # the last one
        self.failed_s = 0.0
        self._foreign_running = [0.0] * FOREIGN_READINGS  # others' requests that ran there, by the last readings
        self._look_s = -math.inf
        self._contradicted = False  # its gauges, when our own answers were last looked at
        self._dispatches_before = 0  # as of the reading before
        self.room = (math.inf, math.inf)  # as of when it was last found open: `admission.room`
        self.room_over_share = self.room  # and `admission.room_over_share`

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, leases={len(self.ledger.leases)}/{self.slots})"

    @property
    def slots(self) -> int:
        """Requests it may be sent at a time."""
        return self.ledger.slots

    @slots.setter
    def slots(self, slots: int) -> None:
        self.ledger.resized(slots)

    @property
    def in_service(self) -> bool:
        """Whether it is there and meant to be used, however it fares."""
        return self.health.up and not self.drained

    def set_limits(self, limits: EndpointLimits) -> None:
        """Use `limits` of its own from now on; without any value set, those of all endpoints."""
        self.limits: EndpointLimits | None = None if limits == EndpointLimits() else limits
        self._usual: AdmissionSettings | None = None  # what its own settings were last made from
        self._own = AdmissionSettings()

    def admission(self, usual: AdmissionSettings) -> AdmissionSettings:
        """Returns the limits of admission as they are here: its own, and `usual` for those that it does not set."""
        limits = self.limits
        if limits is None:
            return usual
        if self._usual is not usual:
            own: dict[str, object] = {  # told, for else a compiled one would make the whole numbers floats
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

    def stuck(self, now: float) -> bool:
        """True if the engine is stuck, so that nothing may go there now."""
        return self.liveness.closed(self.ledger, now)

    def first_token(self, lease: Lease, now: float) -> None:
        """Note that the engine has taken a request in and computed its prompt."""
        self.liveness.began(lease, self.ledger, now)
        self.ledger.first_token(lease, now)
        self.health.answered(self.slots)

    def set_slots(self, slots: int | Literal["auto"]) -> None:
        """Set the slots by hand: a number is fixed from now on.

        With `auto` it is what the engine told, or else it is found out, starting from the present number.
        """
        self._slots_by_hand = slots != "auto"
        self._choose_slots(self._told_slots if slots == "auto" else slots)

    def slots_told(self, slots: int) -> None:
        """Note how many requests the engine says it runs at once; used unless somebody set `slots` by hand."""
        self._told_slots = slots
        if not self._slots_by_hand:
            self._choose_slots(slots)

    def _choose_slots(self, slots: int | None) -> None:
        gateways = self._gateways
        self.apportion(1)
        self._begins_slowly = False
        if slots is None:
            self.adaptive = self.adaptive or AdaptiveSlots(self.slots)
        else:
            self.adaptive, self.slots = None, slots
        self.apportion(gateways)

    def apportion(self, gateways: int) -> None:
        """Use one gateway's part of the slots, because so many decide each for itself; 1: all slots.

        Meanwhile nothing is learned of its size: what runs there is mostly others'.
        """
        if self._whole is not None:
            self.slots, self.adaptive = self._whole
            self._whole = None
        self._gateways = gateways
        if gateways > 1:
            self._whole = self.slots, self.adaptive
            self.slots, self.adaptive = part(self.slots, gateways), None
        self.ledger.others.tries_sizes = self.adaptive is not None

    def near_limit(self, now: float) -> bool:
        """True if a newer reading may open or close the endpoint: by some measure of admission it is not idle."""
        ledger = self.ledger
        base, kv_usage = ledger.base, ledger.kv_usage(now) or 0.0
        queues = base is not None and base.waiting > 0
        return queues or max(ledger.load(now), 1.0) >= self.slots * NEAR_LIMIT or kv_usage >= NEAR_LIMIT

    def observed(self, reading: Observation, now: float, *, wanted: bool = False) -> bool:
        """Take in a reading. Returns True when the slots changed with it.

        `wanted`: requests wait that would be sent here if it had more slots.
        """
        before, ledger = self.ledger.base, self.ledger
        if ledger.observe(reading):
            self.health.returned(now, slots=self.slots)
            self.proof.returned()
            self.liveness = Liveness()
        if self.adaptive is None or ledger.base is before or before is None or not ledger.credible(now):
            return False
        sent = self.dispatches_total - self._dispatches_before
        self._dispatches_before = self.dispatches_total
        if reading.waiting > 0 and ledger.prefill.keeps_waiting(reading.waiting, now):
            return False  # what waits may wait for that, and says nothing of slots
        self.adaptive.slots = self.slots
        per_step = sent / (reading.asked_s - before.asked_s) * ledger.pace.time_per_output_token_s(now)
        at_work = ledger.at_work
        self._foreign_running = [*self._foreign_running[1:], min(ledger.others.shown, reading.running)]
        shows = ledger.shows
        ran = at_work.best() + self._others_running(now) if shows else 0.0
        beyond = ledger.own_at_reading + self._others_running(now) - ran  # were sent, and never seen to run at once
        return self._limited(
            self.adaptive.observed(
                at_s=reading.asked_s,
                running=reading.running + (0 if shows else at_work.ended_lately(now)),
                waiting=reading.waiting,
                arrivals=min(per_step, ARRIVALS_MAX),
                load=ledger.load(now),
                let=ledger.own_at_reading if wanted else self.slots,
                ran=ran,
                agreed=shows and min(reading.waiting, beyond) >= AGREED_MIN,
                may_grow=not shows or self._shows_no_size(now),
            )
        )

    def _shows_no_size(self, now: float) -> bool:
        """Whether our own answers do not show the engine's size yet: then what its gauges show is good for more."""
        assert self.adaptive is not None
        ledger = self.ledger
        return not self.adaptive.knows(now) and not ledger.at_work.overdue(ledger.prefill, now)

    def look_due(self, now: float) -> bool:
        """True if it is time to look at what our own answers show of the engine's size."""
        return self.adaptive is not None and now >= self._look_s

    def looks_s(self, now: float) -> float:
        """Returns when to look again at what our own answers show, even if no answer comes; infinity: no need to."""
        ledger = self.ledger
        if self.adaptive is None or not ledger.shows:
            return math.inf
        if not ledger.prefill.leases:  # what looked like a queue is gone: the next look sees it, and lets it grow
            return self._look_s if self.adaptive.suspects(Witness.ANSWERS) else math.inf
        first = next(iter(ledger.prefill.leases.values()))
        return max(self._look_s, first.dispatched_s + ledger.at_work.late_after_s(sure=self._denies_queue(now)))

    def looked(self, now: float, *, wanted: bool) -> bool:
        """Look at what our own answers show of its size. Returns True when the slots changed with it."""
        ledger = self.ledger
        assert self.adaptive is not None
        at_work = ledger.at_work
        contradicted = ledger.belief.doubt is Standing.CONTRADICTED
        if contradicted and not self._contradicted:
            self.adaptive.unlearn()
            self.slots = max(self.slots, self.adaptive.slots)
        self._contradicted = contradicted
        if not ledger.shows:
            return self._looked_at_whole(now, wanted=wanted)
        self._look_s = now + min(max(LOOK_STEPS * at_work.step_s, LOOK_S_MIN), LOOK_S_MAX)
        others = self._others_running(now)
        peak = at_work.look(now)
        waiting = 0
        if at_work.stands(peak):
            waiting = at_work.overdue(ledger.prefill, now, sure=self._denies_queue(now))
        self.adaptive.slots = self.slots
        let = len(ledger.leases) - ledger.pending + others if wanted else self.slots
        return self._limited(
            self.adaptive.observed(
                witness=Witness.ANSWERS,
                at_s=now,
                running=peak + others,
                waiting=waiting,
                arrivals=0.0,
                load=ledger.load(now),
                let=let,
                on_the_way=min(at_work.on_the_way, ledger.reserved),
                ran=at_work.best() + others,
            )
        )

    def _denies_queue(self, now: float) -> bool:
        """Whether its gauges say that what is late to begin does not wait.

        They do if they were read since that was sent, and show none that waits, and at work all that began, and these.
        """
        ledger, base = self.ledger, self.ledger.base
        if base is None or base.waiting > 0 or not ledger.credible(now):
            return False
        late = ledger.at_work.late(ledger.prefill, now, sent_before_s=base.asked_s)
        return late > 0 and base.running >= ledger.at_work.running + late

    def _looked_at_whole(self, now: float, *, wanted: bool) -> bool:
        """The same, where answers do not stream: by how long they took."""
        ledger = self.ledger
        found = ledger.at_work.look_whole(now)
        assert self.adaptive is not None
        counted = self._counted(now) if self.adaptive.knows(now) else 0.0
        if found is None or counted >= COUNTED_ALL:
            return False
        (ran, beside), others = found, self._others_running(now)
        most = self.slots if ran < beside else math.inf  # it is an estimate: a queue is no reason for more slots
        self.adaptive.slots = self.slots
        return self._limited(
            self.adaptive.observed(
                witness=Witness.ANSWERS,
                at_s=now,
                running=min(ran + others, most),
                waiting=beside - ran,
                arrivals=0.0,
                load=ledger.load(now),
                let=beside + others if wanted else self.slots,  # when those were sent whose answers came
                ran=min(ledger.at_work.best() + others, most),
                may_grow=counted < COUNTED,
                step_share=STEP_SHARE_BLIND,
            )
        )

    def _counted(self, now: float) -> float:
        """The share of what we have there that its gauges show: what they show they tell of sooner than ends do."""
        ledger = self.ledger
        if ledger.base is None or not ledger.credible(now):
            return 0.0
        shown = ledger.base.running + ledger.base.waiting + ledger.at_work.ended_lately(now)
        return shown / max(1, ledger.own_at_reading)

    def fills_until_s(self, now: float) -> float:
        """Returns until when to send nothing more to an engine of unknown size; minus infinity: it may be sent more.

        It waits while enough is on its way: a few more than were seen to run there at once (docs/decisions/0032), so
        that no more than these wait when it is full; where answers come whole, twice as many. And one more for every
        fourth that began, whatever was seen beside it: requests that are sent in turns are never all seen at once.
        """
        ledger, adaptive = self.ledger, self.adaptive
        if not self._begins_slowly or adaptive is None or not ledger.unseen or adaptive.knows(now):
            return -math.inf
        at_work, base = ledger.at_work, ledger.base if ledger.credible(now) else None
        ran = max(at_work.most, base.running if base is not None else 0)
        if ledger.shows:
            enough = ran + at_work.on_the_way + max(SLOW_START, SLOW_START_SHARE * ran)
        elif ran < SLOW_START_ENDS:
            enough = 2 * ran
        else:
            return -math.inf
        if len(ledger.leases) - ledger.pending < max(enough, SLOW_START + at_work.shown // SLOW_START):
            return -math.inf
        return next(iter(ledger.unseen.values())).dispatched_s + SLOW_START_S

    def surplus(self, now: float) -> list[Lease]:
        """Returns those of ours that wait inside it beyond a few, the last sent first.

        More were sent than its slots were found to be since. None where it is not seen which ones wait, because answers
        come whole; where its page says that none does; and where it goes on with what nobody waits for.
        """
        ledger, self.overfull = self.ledger, False
        over = len(ledger.leases) - ledger.pending - self.slots - SURPLUS_MIN
        if over <= 0 or self.adaptive is None or ledger.abandoned.lingers:
            return []
        if not ledger.shows or self._denies_queue(now):
            return []
        waiting = [lease for lease in ledger.prefill.leases.values() if lease.streamed]
        return waiting[-over:][::-1]

    def _others_running(self, now: float) -> float:
        return min(self._foreign_running) if self.ledger.credible(now) else 0.0

    def _limited(self, slots: int) -> bool:
        changed = slots != self.slots
        if changed:
            self.overfull |= slots < self.slots
            self.slots = slots
        return changed

    def frees_s(self, now: float) -> float | None:
        """Returns the seconds until the first of its requests is expected to end; None while that is unknown."""
        pace_s = self.ledger.pace.time_per_output_token_s(now)
        if not pace_s or not self.ledger.leases:
            return None
        return min([lease.ends_s(pace_s, now) for lease in self.ledger.leases.values()]) - now

    def serves(self, model: str) -> bool:
        """True if requests for `model` may go here."""
        if self.left_to_others is not None and (self.left_all_to_others or model in self.left_to_others):
            return False
        return self.claims(model)

    def claims(self, model: str) -> bool:
        """True if it says that it serves `model`, or may; it may have been seen through."""
        if not self.tells_models:
            return True
        return self.models is not None and model in self.models

    def shares_models(self, other: Endpoint) -> bool:
        """True if one may stand in for the other: some model is served by both."""
        if not (self.tells_models and other.tells_models):
            return True
        return self is other or not (self.models or frozenset()).isdisjoint(other.models or ())


def least_loaded(endpoints: Sequence[Endpoint], now: float) -> Endpoint:
    """Returns the endpoint with the least load for its size; among equals the one whose turn it is.

    Where weights differ they count as size, and what is within one request of the least loaded counts as equal.
    """
    chosen = endpoints[0]
    if len(endpoints) == 1:
        return chosen
    if chosen.weighted:
        return by_turn(endpoints, now)
    least, last = math.inf, 0.0
    for endpoint in endpoints:  # a loop, for it is run over all that are open, at every dispatch
        ledger = endpoint.ledger
        share = ledger.load(now) / (ledger.slots or 1)
        if share > least:
            continue
        turn = endpoint.turn
        if share < least or turn < last or (turn == last and endpoint.index < chosen.index):
            chosen, least, last = endpoint, share, turn
    return chosen


def by_turn(endpoints: Sequence[Endpoint], now: float) -> Endpoint:
    """Returns, of endpoints that have different weights, the one whose turn it is among the least loaded.

    Loads are whole requests: beside an endpoint of weight 3 one of weight 1 with a request to do is never the less
    loaded, however few are sent. So what is within one request of the least counts as equal, and turns divide exactly.
    """
    sizes = [(endpoint.ledger.slots or 1) * endpoint.weight for endpoint in endpoints]
    loads = [endpoint.ledger.load(now) for endpoint in endpoints]
    enough = min([(load + 1.0) / size for load, size in zip(loads, sizes, strict=True)])
    near = [e for e, load, size in zip(endpoints, loads, sizes, strict=True) if load / size < enough]
    return min(near, key=_turn)


def _turn(endpoint: Endpoint) -> tuple[float, int]:
    return endpoint.turn, endpoint.index
