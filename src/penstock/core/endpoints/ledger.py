"""How loaded is an endpoint: the ledger of our own leases decides, observations correct it (docs/design.md#load).

Everyday picture: a car park whose display is minutes old. We know each car we sent in and each that came back out
to us; the display adds the cars of others. So load = what the display said + ours in − ours out since it was read,
and never less than our own cars inside.

What makes a reading tricky: an engine's gauges move only when an engine step ends, so they can stand still for
seconds. A reading that does not differ from the one before says nothing new; its numbers keep the time of the last
reading that moved. And a dispatch counts as *seen* by the engine only when its first token came, when a reading
moved that was preceded by another one asked for after the dispatch (so a step ended in between), or, for an answer
that does not stream, when its predicted prefill is over.

When readings stop, load = own leases + the last average of the others' load, decaying: never "full", never "zero".
"""

from __future__ import annotations

import math

import msgspec

from penstock.core.endpoints.abandoned_slots import AbandonedSlots
from penstock.core.endpoints.gauge_belief import IN_TIME_S, GaugeBelief, Standing
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.net_in_flight import NetInFlight
from penstock.core.endpoints.others_load import OthersLoad
from penstock.core.endpoints.prefill_backlog import PrefillBacklog
from penstock.core.endpoints.running_evidence import OVERDUE, RunningEvidence
from penstock.core.endpoints.tpot import Tpot
from penstock.core.values.observation import Glimpse, Observation

OWN_QUEUE_MIN = 4  # requests of ours: fewer run at once in any engine, so none of them waits for another
FROZEN_S = 30.0  # longer than the longest standstill measured on a busy engine (11 s), shorter than patience
READ_KEPT = 0.9  # of the longest time between two readings, per reading: a single late one is soon forgotten
REVIEW_S = 1.0  # how often a fading estimate of others' load is looked at again; it halves in 20 s


class Ledger:
    """Own leases on one endpoint, and the last reading that moved."""

    def __init__(self, *, stale_after_s: float, slots: int, epoch: int = 0) -> None:
        self.slots = slots
        self.epoch = epoch
        self.leases: dict[int, Lease] = {}  # of this epoch, in dispatch order
        self.reserved = 0  # leases before their first token
        self.pending = 0  # of these, how many were not sent yet, and how many tokens they will take
        self.pending_tokens = 0
        self.unseen: dict[int, Lease] = {}  # the part of them the engine is not known to have taken in
        self.prefill = PrefillBacklog()  #: the prompts before it
        self.pace = Tpot(self.prefill)  #: of its output
        self.at_work = RunningEvidence()  #: what our own answers show of how many it runs
        self.belief = GaugeBelief()  #: whether its gauges are believed
        self.streams = 0  # leases of requests that stream
        self.abandoned = AbandonedSlots()  #: slots that it still works in for nobody
        self.life_s = -math.inf  #: when an answer last showed that the engine works
        self.base: Observation | None = None  # the last reading that moved
        self.last: Observation | None = None  # the same, also when it counts for nothing: tells a process from the next
        self.asked_s = -math.inf  # of the last reading, moved or not
        self.gauges_moved_s = -math.inf  #: when the last reading that moved was asked for
        self.read_every_s = 0.0  # how often it is read, about
        self._sure_until_s = -math.inf  # so long the base is credible, whatever is read or happens until then
        self.stale_after_s = stale_after_s
        self._net = NetInFlight()  # what we sent, less what ended, since the base was asked
        self._entered = 0  # own requests seen to begin since the base was asked, less those that ended
        self._entered_max = 0
        self.others = OthersLoad()  #: whose requests the readings show
        self._load = 0.0  # what `load` said last, good until then or until something happens
        self._load_until_s = -math.inf

    # --- own leases ---------------------------------------------------------------------------------------------

    def add(self, lease: Lease) -> None:
        """Add a lease that was dispatched: it takes a slot until `remove`."""
        assert lease.serial not in self.leases
        lease.epoch = self.epoch
        if not self.at_work.streams:
            lease.streamed = False  # whatever was asked for, its first token will come with its last
        self.leases[lease.serial] = lease
        if self.belief.closed_s is not None:
            lease.tries = True
            self.belief.outstanding += 1
        self.streams += lease.streamed
        self.at_work.sent(lease, len(self.leases) - self.pending)
        self.reserved += 1
        self.unseen[lease.serial] = lease
        self.prefill.add(lease)
        self.others.sent(len(self.leases) - self.pending, lease.dispatched_s)
        self._note(lease.dispatched_s, 1, lease.tokens)

    def reserve(self, lease: Lease) -> None:
        """Keep a slot for a request whose prompt is computed elsewhere.

        This engine knows nothing of it until `begin`.
        """
        assert lease.serial not in self.leases
        lease.epoch = self.epoch
        lease.pending = lease.seen = True
        self.leases[lease.serial] = lease
        self.reserved += 1
        self._count_pending(lease, 1)

    def take_on(self, lease: Lease, now: float, *, begun: int | None) -> None:
        """Count a lease that another scheduler granted and that goes on.

        `begun`: the tokens that its stream has by now; None: nothing shows that its prompt is computed.
        """
        assert lease.serial not in self.leases
        lease.epoch = self.epoch
        lease.streamed = lease.streamed and self.at_work.streams
        last = next(reversed(self.leases.values()), None)
        self.leases[lease.serial] = lease
        self.streams += lease.streamed
        self.at_work.sent(lease, len(self.leases) - self.pending)
        if begun is not None:
            lease.first_token_s, lease.seen = now, True
            self.pace.begun(lease, now)
            lease.progress_tokens = max(begun, 1)
            self.at_work.begun(lease, now, tells=False)
        else:
            self.reserved += 1
            self.unseen[lease.serial] = lease
            self.prefill.add(lease)
        if last is not None and last.dispatched_s > lease.dispatched_s:
            self.leases, self.unseen = _in_dispatch_order(self.leases), _in_dispatch_order(self.unseen)
            self.prefill.leases = _in_dispatch_order(self.prefill.leases)
        self.others.taken_on()
        self._load_until_s = -math.inf
        if self.base is None or lease.dispatched_s >= self.base.asked_s:
            self._note(now, 1, lease.tokens)

    def begin(self, lease: Lease, now: float) -> None:
        """Send the request of a reserved lease now, as if it had just come."""
        self._give_up_pending(lease)
        lease.taken_s, lease.dispatched_s, lease.seen = lease.dispatched_s, now, False
        self.add(lease)

    def _give_up_pending(self, lease: Lease) -> None:
        del self.leases[lease.serial]
        lease.pending = False
        self.reserved -= 1
        self._count_pending(lease, -1)

    def _count_pending(self, lease: Lease, one: int) -> None:
        self._load_until_s = -math.inf
        self.pending += one
        self.pending_tokens += one * lease.tokens

    def first_token(self, lease: Lease, now: float) -> None:
        """Note that the engine has taken the request in and finished its prefill."""
        self.life_s = lease.first_token_s = now
        self.pace.begun(lease, now)
        if lease.epoch != self.epoch:
            return
        self.reserved -= 1
        in_time = not lease.tries or not self.at_work.streams or self._try_began(lease, now)
        # Gauges that move may be right, and it waited; where they stand still, what its engine does is what is usual.
        self.at_work.begun(lease, now, tells=lease.streamed and (in_time or self.belief.stood_s < math.inf))
        if not lease.seen:
            self._take_in(lease)
        if lease.serial in self.prefill.leases:
            if lease.streamed:
                self.prefill.first_token(lease, now)
            else:
                self.prefill.remove(lease)  # its first token comes with its last
        self._bound_abandoned()
        self._entered += 1
        self._entered_max = max(self._entered_max, self._entered)

    def progressed(self, lease: Lease, output_tokens: int, now: float) -> None:
        """Note that an answer has grown to `output_tokens`, which shows how fast the endpoint makes them."""
        self.life_s = now
        if lease.epoch == self.epoch:
            self.pace.progressed(lease, output_tokens, now)

    def _try_began(self, lease: Lease, now: float, *, tokens: int = 0) -> bool:
        """What was sent against the gauges' word shows its first token, or, where it does not stream, its answer."""
        lease.tries = False
        self.belief.outstanding -= 1
        in_time_s, took_s = self._in_time_s(lease, tokens, now), now - lease.dispatched_s
        if in_time_s is None:
            self.belief.undecided()
            return False
        if took_s > in_time_s and lease.beside > max(OWN_QUEUE_MIN, self.at_work.most):
            return False  # it may have waited for our own
        doubt = self.belief.doubt
        in_time = self.belief.began(took_s, now, in_time_s=in_time_s, slots=self.slots)
        if self.belief.doubt is not doubt:
            self._judge_again()
        return in_time

    def _in_time_s(self, lease: Lease, tokens: int, now: float) -> float | None:
        """How long a try may take that does not wait inside; None: that can't be told."""
        at_work, prompt_s = self.at_work, lease.prompt_tokens / max(self.prefill.rate, self.prefill.best_rate)
        if lease.first_token_s is not None and at_work.streams:
            return prompt_s + (OVERDUE * at_work.usual_s if at_work.usual_s < math.inf else IN_TIME_S)
        if self.belief.stood_s < math.inf:
            return math.inf
        whole_s = at_work.whole_in_s(tokens, self.pace.time_per_output_token_s(now))
        return None if whole_s is None else prompt_s + whole_s

    def answered(self, lease: Lease, output_tokens: int, now: float) -> None:
        """Note that the last byte of an answer came, of `output_tokens`, or 0 where that is not told."""
        self.life_s = now
        if lease.epoch == self.epoch:
            if lease.tries:
                self._try_began(lease, now, tokens=output_tokens)
            streams = self.at_work.streams
            self.at_work.answered(lease, output_tokens, now)
            if not lease.streamed:
                self.prefill.answered(lease, output_tokens, now)
            elif streams and not self.at_work.streams:
                self._comes_whole()

    def _comes_whole(self) -> None:
        """It does not stream, as was just found out: none of those under way shows when its prompt is computed."""
        for lease in self.leases.values():
            if lease.streamed and lease.first_token_s is None and not lease.pending:
                lease.streamed = False
                self.streams -= 1
        self.prefill.unlearn()

    def remove(self, lease: Lease, now: float, *, abandoned: bool = False) -> None:
        """Give back the lease's slot, however it ended.

        `abandoned`: we ended it, and the engine has yet to find out.
        """
        if lease.epoch != self.epoch:
            return  # its slot went with the old engine process
        if lease.pending:
            self._give_up_pending(lease)
            return
        del self.leases[lease.serial]
        self.streams -= lease.streamed
        self.belief.outstanding -= lease.tries
        self.reserved -= lease.first_token_s is None
        self.at_work.ended(lease, now)
        if not lease.seen:
            self._take_in(lease)
        if lease.serial in self.prefill.leases:
            self.prefill.remove(lease)
        if lease.first_token_s is not None or (self.base is not None and lease.dispatched_s < self.base.asked_s):
            self._entered -= 1
        self._note(now, -1, -lease.tokens)
        if abandoned:
            pace_s = self.pace.time_per_output_token_s(now)
            self.abandoned.note(lease, now, step_s=pace_s, told_within_s=self.stale_after_s)
            self._bound_abandoned()

    def _bound_abandoned(self) -> None:
        """No more slots are at work for nobody than are not seen to be at work for somebody."""
        self.abandoned.no_more_than(self.slots - (len(self.leases) - self.reserved))

    def advance(self, now: float) -> None:
        """Let time pass for prompts until `now`.

        The first prompt gets further, and answers that do not stream stop counting as waiting when their prompts should
        be computed.
        """
        for lease in self.prefill.advance(now):
            if not lease.seen:
                self._take_in(lease)

    def _take_in(self, lease: Lease) -> None:
        lease.seen = True
        del self.unseen[lease.serial]

    def _note(self, when: float, leases: int, tokens: int) -> None:
        self._load_until_s = -math.inf
        if not self._net.note(when, leases, tokens):
            self.base = None
            self._sure_until_s = -math.inf

    # --- observations -------------------------------------------------------------------------------------------

    def observe(self, reading: Observation) -> bool:
        """Take in a reading. Returns True if it shows that the engine restarted (a new epoch began)."""
        restarted = self._observe(reading)
        if self.base is reading:
            self.abandoned.read(reading.asked_s)
        return restarted

    def _observe(self, reading: Observation) -> bool:
        if reading.asked_s <= self.asked_s or not reading.sane():
            return False  # answered out of order, or nonsense, which says as little as no answer
        previous_asked_s, self.asked_s = self.asked_s, reading.asked_s
        if previous_asked_s > -math.inf:
            self.read_every_s = max(READ_KEPT * self.read_every_s, reading.asked_s - previous_asked_s)
        self._judge_again()
        base = self.base
        self.others.at_the_door = 0.0
        if base is not None and reading.same_as(base):
            self.belief.stood(reading, previous_asked_s=previous_asked_s, base_asked_s=base.asked_s, life_s=self.life_s)
            self._count_at_the_door(reading)
            return False
        restarted = self.last is not None and restarted_between(self.last, reading)
        self.last = reading
        if restarted:
            self._new_epoch(previous_asked_s)
        elif base is not None:
            self.pace.observed(base, reading)
            self.prefill.observed(base, reading)
        self.gauges_moved_s = reading.asked_s
        self.base = reading
        self._entered = self._entered_max = 0
        for lease in list(self.unseen.values()):
            if lease.dispatched_s >= previous_asked_s:
                break  # leases stand in dispatch order
            self._take_in(lease)
        self._net.begin(reading.asked_s)
        inside = len(self.leases) - self.pending - len(self.unseen)
        self.belief.moved(reading, self.own_at_reading, inside=min(inside, self.own_at_reading), before=base)
        self.others.read(
            reading.running + reading.waiting,
            reading.asked_s,
            sent=self.own_at_reading,
            ours=len(self.leases) - self.pending,
            only_ours_s=self.belief.ours_s,
        )
        self._count_at_the_door(reading)
        return restarted

    def missed(self, *, answered: bool = False) -> None:
        """Note that a reading was not to be had; `answered`: though something answered. Several in a row end the belief
        in the last one.
        """
        if self.belief.missed(answered=answered):
            self.base = None
            self.others.forget()
            self._judge_again()

    def _judge_again(self) -> None:
        self._load_until_s = self._sure_until_s = -math.inf

    def standing(self, now: float) -> Standing:
        """Returns what the engine's gauges are worth now."""
        if self.belief.doubt is not None:
            return self.belief.doubt
        if self.base is None:
            return Standing.NONE
        if self.belief.short:
            return Standing.SHORT
        return Standing.BELIEVED if self.credible(now) else Standing.OLD

    def _count_at_the_door(self, reading: Observation) -> None:
        """Others' requests that came since the engine's last step: its gauges will show them when the next one ends."""
        if reading.in_all is not None:
            self.others.at_the_door = max(0.0, reading.in_all + self.pending - self.load(reading.asked_s))
            self._load_until_s = -math.inf

    def glimpse(self, part: Glimpse, now: float) -> None:
        """Take in a `part` of a reading if it differs from the last whole one.

        A part does not tell how many requests are there in all: that stays as it is believed to be, and only its split
        moves.
        """
        base = self.base
        if base is None or part.asked_s <= self.asked_s or not self.credible(now):
            return
        waiting = base.waiting if part.waiting is None else part.waiting
        kv_usage = base.kv_usage if part.kv_usage is None else part.kv_usage
        if (waiting, kv_usage) == (base.waiting, base.kv_usage):
            return
        net = self._net.before(part.asked_s)
        running = max(0.0, base.running + base.waiting + net - waiting)
        self._observe(
            msgspec.structs.replace(base, asked_s=part.asked_s, running=running, waiting=waiting, kv_usage=kv_usage)
        )

    def _new_epoch(self, previous_asked_s: float) -> None:
        """The engine restarted at some time after `previous_asked_s`: what was dispatched before is gone.

        What was dispatched since may run on either process. It keeps its slot: if it was on the old one, its
        connection is lost and the driver reports so.
        """
        self.epoch += 1
        self.leases = {k: x for k, x in self.leases.items() if x.dispatched_s >= previous_asked_s or x.pending}
        self.unseen = {k: x for k, x in self.unseen.items() if x.dispatched_s >= previous_asked_s}
        for lease in self.leases.values():
            lease.epoch = self.epoch
        self.reserved = sum(lease.first_token_s is None for lease in self.leases.values())
        self.streams = sum(lease.streamed and not lease.pending for lease in self.leases.values())
        self.at_work = RunningEvidence()
        self.at_work.running = sum(lease.first_token_s is not None for lease in self.leases.values())
        self.prefill.restarted(previous_asked_s)
        self.others.forget()

    def credible(self, now: float) -> bool:
        """True if the last reading may still be used: it is recent, and does not stand still while it claims work."""
        if now < self._sure_until_s:
            return True
        if self.belief.doubt is not None or self.belief.short:
            return False
        base, stale_s, frozen_s = self.base, self.asked_s + self.stale_after_s, self.gauges_moved_s + FROZEN_S
        if base is None or now >= stale_s:
            return False
        if now < frozen_s:
            self._sure_until_s = min(stale_s, frozen_s)
            return True
        return not (base.running + base.waiting > 0 or self._net.leases != 0)

    @property
    def moved_s(self) -> float:
        """When the engine last showed that it works, by an answer or by its gauges."""
        return max(self.life_s, self.belief.worked_s)

    @property
    def own_at_reading(self) -> int:
        """Own requests that had been sent there when the last reading that moved was asked for."""
        return len(self.leases) - self.pending - self._net.leases

    # --- what follows from both ---------------------------------------------------------------------------------

    def judged_stale_after(self, stale_after_s: float) -> None:
        """Use readings for `stale_after_s` from now on."""
        self.stale_after_s = stale_after_s
        self._load_until_s = self._sure_until_s = -math.inf

    def resized(self, slots: int) -> None:
        """Use another number of `slots` from now on."""
        self.slots = slots
        self._load_until_s = -math.inf

    @property
    def shows(self) -> bool:
        """Whether our own answers show how many it runs: most of them stream."""
        return self.streams > 0 and 2 * self.streams >= len(self.leases)

    def foreign(self, now: float) -> float:
        """Returns how many requests of others are believed to be on the endpoint when no reading is to be had."""
        if self.gauges_moved_s == -math.inf or self.belief.doubt is not None:
            return 0.0  # it never told, or what it told is not believed
        # What was read last never fills an endpoint by itself.
        return min(self.others.usual(now - self.gauges_moved_s), max(0.0, self.slots - 1.0))

    def load(self, now: float) -> float:
        """Returns how many requests are believed to be on the endpoint, running or waiting, ours and others'."""
        if now < self._load_until_s:
            return self._load
        own = len(self.leases)
        if now < self._sure_until_s or self.credible(now):
            base = self.base
            assert base is not None
            told = base.running + base.waiting + self._net.leases + self.pending
            self._load = (own if own > told or self.others.none else told) + self.others.at_the_door
            self._load_until_s = self.asked_s + self.stale_after_s
            if self.gauges_moved_s + FROZEN_S >= now:
                self._load_until_s = min(self._load_until_s, self.gauges_moved_s + FROZEN_S)
        else:
            foreign = self.foreign(now)
            self._load = own + foreign
            self._load_until_s = now if foreign > 0.0 else math.inf
        return self._load

    def engine_queue(self, slots: int, now: float, *, told: bool = True) -> float:
        """Returns how many requests are believed to wait inside the engine: by its gauges, or those of ours that it
        can't have taken in yet.

        `told`: False leaves out what its gauges say.
        """
        base = self.base if told else None
        credible = base is not None and (now < self._sure_until_s or self.credible(now))
        if base is not None and base.waiting > 0 and credible:
            # It queues, so it ran all it could then, whatever we believed of its size. More began than ended since:
            # it can run so many more (or `waiting` had only counted what came in since its last step).
            waiting = base.waiting + self._net.leases + self.abandoned.count(now) - self._entered_max
            if self.others.none:
                waiting = min(waiting, len(self.leases) - self.pending + self.abandoned.count(now) - base.running)
            return max(0.0, waiting)
        unseen, abandoned = len(self.unseen), self.abandoned.count(now)
        if not unseen and not abandoned:
            return 0.0
        own = len(self.leases)
        if not told:
            others = 0.0
        elif base is None or not credible:
            others = self.foreign(now)
        else:
            others = 0.0 if self.others.none else max(0.0, base.running - self.own_at_reading)
            others += self.others.at_the_door
        # What works for nobody may also keep out one of ours that should be at work by now.
        free = slots - (own - unseen) - others - abandoned
        return max(0.0, unseen - max(free, float(-abandoned)))

    def review_s(self, now: float) -> float:
        """Returns when time alone may next lower the load, the engine queue or the KV usage; infinity when it can't."""
        due_s = min(self.prefill.due_s, self.abandoned.next_s(now))
        if now < self._sure_until_s or self.credible(now):
            due_s = min(due_s, self.asked_s + self.stale_after_s)
            frozen_s = self.gauges_moved_s + FROZEN_S
            return min(due_s, frozen_s) if frozen_s > now else due_s
        return min(due_s, now + REVIEW_S) if self.foreign(now) > 0.01 else due_s

    def kv_usage(self, now: float) -> float | None:
        """Returns the share of the KV memory that is believed to be in use; None if the engine does not tell."""
        base = self.base
        if base is None or base.kv_usage is None or not (now < self._sure_until_s or self.credible(now)):
            return None
        if not base.kv_capacity_tokens:
            return base.kv_usage
        usage = base.kv_usage + (self._net.tokens + self.pending_tokens) / base.kv_capacity_tokens
        return usage if usage > 0.0 else 0.0


def _in_dispatch_order(leases: dict[int, Lease]) -> dict[int, Lease]:
    return dict(sorted(leases.items(), key=lambda item: item[1].dispatched_s))


def restarted_between(before: Observation, after: Observation) -> bool:
    """True if two readings are of different engine processes. Counters never fall, even where one follows at once."""
    told = before.started_s is not None and after.started_s is not None
    if told and abs((after.started_s or 0.0) - (before.started_s or 0.0)) > 1.0:
        return True
    return before.progress is not None and after.progress is not None and after.progress < before.progress
