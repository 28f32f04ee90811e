"""How loaded is an endpoint: the ledger of our own leases decides, observations correct it (DESIGN §4.4).

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
from collections import deque

import msgspec

from penstock.core.lease import Lease
from penstock.core.observation import Glimpse, Observation

FOREIGN_DECAY_S = 30.0  # a neighbour's load is forgotten over about a long answer's time
FROZEN_S = 30.0  # longer than the longest standstill measured on a busy engine (11 s), shorter than patience
EVENTS_MAX = 8192  # own dispatches and ends remembered against one reading; past that the reading is too old to use
PREFILL_TOKENS_PER_S = 4000.0  # until learned: a mid-size GPU's prefill, so that a first guess errs by little
PREFILL_TOKENS_PER_S_MAX = 100_000.0
PREFILL_SAMPLE_S_MAX = 30.0
PREFILL_SAMPLE_TOKENS = 512  # a prompt of that many is a whole sample of the speed
PREFILL_SAMPLES_MIN = 5.0
PREFILL_GUESS_S = 0.05  # what the first guess counts for: next to nothing beside a few samples
PREFILL_GROWTH = 2.0  # at most, on what an engine told: that is of a queue which was believed at the old speed
PREFILL_KEPT_S = 60.0  # since one of our own first tokens was last seen: after that, the engine is asked for them
PREFILL_BASE_S = 0.05  # one engine step and the way there and back
PREFILL_STEP_TOKENS = 2048  # how far most engines get with a prompt in one step: progress is counted in these
PACE_TOKENS_MIN = 8  # fewer say more about the network's buffers than about the engine
PACE_LEARNING_RATE = 0.2
PACE_KEPT_S = 60.0  # a slow endpoint is given nothing, and answers that do not stream tell nothing: so it is forgotten
EPSILON = 1e-9  # what rounding may take from a whole step
REVIEW_S = 1.0  # how often a fading estimate of others' load is looked at again; it halves in 20 s


class Ledger:
    """Own leases on one endpoint, and the last reading that moved."""

    def __init__(self, *, stale_after_s: float, slots: int, epoch: int = 0) -> None:
        self.slots = slots
        self._slots_shown = slots
        self.epoch = epoch
        self.leases: dict[int, Lease] = {}  # of this epoch, in dispatch order
        self.reserved = 0  # leases before their first token
        self.pending = 0  # of these, how many were not sent yet, and how many tokens they will take
        self.pending_tokens = 0
        self.unseen: dict[int, Lease] = {}  # the part of them the engine is not known to have taken in
        self.prefilling: dict[int, Lease] = {}  # and the part whose prompts are not known to be computed
        self.life_s = -math.inf  #: when an answer last showed that the engine works
        self.base: Observation | None = None  # the last reading that moved
        self.asked_s = -math.inf  # of the last reading, moved or not
        self._moved_s = -math.inf
        self._sure_until_s = -math.inf  # so long the base is credible, whatever is read or happens until then
        self.stale_after_s = stale_after_s
        self._events: deque[tuple[float, int, int]] = deque()  # (when, ±1 lease, ±tokens) since the base was asked
        self._net = 0
        self._net_tokens = 0
        self._entered = 0  # own requests seen to begin since the base was asked, less those that ended
        self._entered_max = 0
        self._foreign = 0.0
        self._at_the_door = 0.0  # others' requests that the last reading's gauges did not show yet
        self.prefill_due_s = math.inf  # when `advance` has something to do
        self._prefill_tokens = PREFILL_TOKENS_PER_S * PREFILL_GUESS_S
        self._prefill_seconds = PREFILL_GUESS_S
        self._prefill_samples = 0.0
        self.prefill_rate = PREFILL_TOKENS_PER_S  #: learned prefill speed, tokens per second
        self.rate_known = False  #: whether that was seen often enough to go by
        self._own_prefill_until_s = -math.inf  # until then our own first tokens tell it; after that, the engine
        self._sent = 0  # since the engine last told of first tokens,
        self._sent_queues = 0  # and prompt tokens that were before these and in them, each counted by itself
        self._prefill_free_s = -math.inf  # when the last prompt was done with
        self.outstanding_prefill_tokens = 0  # sent, and not known to be computed
        self._computed_tokens = 0  # of prompts, in all
        self._pace_s: float | None = None
        self._pace_between_s: float | None = None  # the same, without the time in which prompts were computed
        self._own_pace_until_s = -math.inf  # until then our own streams tell it; after that, the engine
        self._load = 0.0  # what `load` said last, good until then or until something happens
        self._load_until_s = -math.inf
        self.pace_kept_until_s = -math.inf

    # --- own leases ---------------------------------------------------------------------------------------------

    def add(self, lease: Lease) -> None:
        """A dispatch happened: the lease holds one slot from now on."""
        assert lease.serial not in self.leases
        lease.epoch = self.epoch
        queued = self.outstanding_prefill_tokens + lease.prompt_tokens
        lease.prefill_end_s = lease.dispatched_s + queued / self.prefill_rate + PREFILL_BASE_S
        self._sent += 1
        self._sent_queues += queued
        self.leases[lease.serial] = lease
        self.reserved += 1
        self.unseen[lease.serial] = self.prefilling[lease.serial] = lease
        self.outstanding_prefill_tokens += lease.prompt_tokens
        if not lease.streamed:
            self.prefill_due_s = min(self.prefill_due_s, lease.prefill_end_s)
        if len(self.prefilling) == 1:
            self._await_progress()
        self._note(lease.dispatched_s, 1, lease.tokens)

    def reserve(self, lease: Lease) -> None:
        """A slot is held for a request whose prompt is computed elsewhere: this engine does not know of it yet."""
        assert lease.serial not in self.leases
        lease.epoch = self.epoch
        lease.pending = lease.seen = True
        self.leases[lease.serial] = lease
        self.reserved += 1
        self._count_pending(lease, 1)

    def begin(self, lease: Lease, now: float) -> None:
        """It is sent now, as if it had come just now."""
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
        """The engine has taken the request in and finished its prefill."""
        self.life_s = lease.first_token_s = lease.progress_s = now
        lease.progress_tokens = 1
        lease.progress_computed = self._computed_tokens
        if lease.epoch != self.epoch:
            return
        self.reserved -= 1
        if not lease.seen:
            self._take_in(lease)
        if lease.serial in self.prefilling:
            self._learn_prefill(lease, now)
            self._prefilled(lease)
        self._entered += 1
        self._entered_max = max(self._entered_max, self._entered)

    def progressed(self, lease: Lease, output_tokens: int, now: float) -> None:
        """An answer has grown to that many tokens: learn how fast the endpoint makes them."""
        self.life_s = now
        made = output_tokens - lease.progress_tokens
        if made < PACE_TOKENS_MIN or lease.epoch != self.epoch:
            return
        if now >= self._own_pace_until_s:
            self._pace_s = self._pace_between_s = None
        self._own_pace_until_s = self.pace_kept_until_s = now + PACE_KEPT_S
        sample_s = (now - lease.progress_s) / made
        computed_s = (self._computed_tokens - lease.progress_computed) / self.prefill_rate
        between_s = max(0.0, sample_s - computed_s / made)
        lease.progress_s, lease.progress_tokens, lease.progress_computed = now, output_tokens, self._computed_tokens
        if self._pace_s is None or self._pace_between_s is None:
            self._pace_s, self._pace_between_s = sample_s, between_s
        else:
            self._pace_s += PACE_LEARNING_RATE * (sample_s - self._pace_s)
            self._pace_between_s += PACE_LEARNING_RATE * (between_s - self._pace_between_s)

    def time_per_output_token_s(self, now: float) -> float:
        """The pace of late, 0 while unknown."""
        return self._pace_s or 0.0 if now < self.pace_kept_until_s else 0.0

    def decode_pace_s(self, now: float) -> float | None:
        """The pace of late of steps that compute no prompts; None while unknown.

        An engine computes prompts in the steps that make tokens, so under many prompts tokens come slowly, however few
        requests make them: what one more of these costs the others is a part of the steps without.
        """
        return self._pace_between_s if now < self._own_pace_until_s else None

    def remove(self, lease: Lease, now: float) -> None:
        """The lease ended, however it did."""
        if lease.epoch != self.epoch:
            return  # its slot went with the old engine process
        if lease.pending:
            self._give_up_pending(lease)
            return
        del self.leases[lease.serial]
        self.reserved -= lease.first_token_s is None
        if not lease.seen:
            self._take_in(lease)
        if lease.serial in self.prefilling:
            self._prefilled(lease)
        if lease.first_token_s is not None or (self.base is not None and lease.dispatched_s < self.base.asked_s):
            self._entered -= 1
        self._note(now, -1, -lease.tokens)

    def advance(self, now: float) -> None:
        """Let time pass for prompts: the first of them gets further, and answers that do not stream stop counting as
        waiting when their prompts should be computed.
        """
        if now < self.prefill_due_s:
            return
        for lease in [x for x in self.prefilling.values() if not x.streamed and x.prefill_end_s <= now]:
            if not lease.seen:
                self._take_in(lease)
            self._prefill_free_s = max(self._prefill_free_s, lease.prefill_end_s)
            self._prefilled(lease)
        ends_s = [x.prefill_end_s for x in self.prefilling.values() if not x.streamed]
        self.prefill_due_s = min(ends_s, default=math.inf)
        if self.prefilling and self.rate_known:
            first = self._first
            steps = int((now - self._begun_s(first)) * self.prefill_rate / PREFILL_STEP_TOKENS + EPSILON)
            # The last of it counts until its first token comes: a speed is a guess, a token is a fact.
            computed = min(steps * PREFILL_STEP_TOKENS, first.prompt_tokens - 1)
            if computed > first.computed_tokens:
                self.outstanding_prefill_tokens -= computed - first.computed_tokens
                first.computed_tokens = computed
        self._await_progress()

    def prefill_left(self, now: float) -> float:
        """Prompt tokens still to be computed, as far as can be told: the first of them since the last was done."""
        if not self.prefilling:
            return 0.0
        first = self._first
        computed = min(first.prompt_tokens, (now - self._begun_s(first)) * self.prefill_rate)
        return self.outstanding_prefill_tokens + first.computed_tokens - computed

    @property
    def _first(self) -> Lease:
        """The one whose prompt is being computed: engines take them in the order in which they come."""
        return next(iter(self.prefilling.values()))

    def _begun_s(self, lease: Lease) -> float:
        return max(lease.dispatched_s, self._prefill_free_s)

    def _await_progress(self) -> None:
        """Note when the prompt that is being computed will be a step further, where the speed is known."""
        if not self.prefilling or not self.rate_known:
            return
        first = self._first
        following = first.computed_tokens + PREFILL_STEP_TOKENS
        if following < first.prompt_tokens:
            self.prefill_due_s = min(self.prefill_due_s, self._begun_s(first) + following / self.prefill_rate)

    def computes_prompts(self, waiting: float) -> bool:
        """Whether so many may wait there not for a slot but for others' prompts, which take more than one step."""
        return self.outstanding_prefill_tokens > PREFILL_STEP_TOKENS and len(self.prefilling) > waiting

    def overdue(self, now: float) -> bool:
        """Whether the first of the prompts takes more than twice as long as was predicted when it was sent."""
        if not self.prefilling:
            return False
        first = self._first
        return now > 2.0 * first.prefill_end_s - first.dispatched_s

    def _take_in(self, lease: Lease) -> None:
        lease.seen = True
        del self.unseen[lease.serial]

    def _prefilled(self, lease: Lease) -> None:
        del self.prefilling[lease.serial]
        self.outstanding_prefill_tokens -= lease.prompt_tokens - lease.computed_tokens
        self._computed_tokens += lease.prompt_tokens
        lease.prefix = ()  # of use only to tell that it is being computed
        self._await_progress()

    def _learn_prefill(self, lease: Lease, now: float) -> None:
        elapsed_s = now - self._begun_s(lease) - PREFILL_BASE_S
        self._prefill_free_s, self._own_prefill_until_s = now, now + PREFILL_KEPT_S
        self._learn_prefill_of(lease.prompt_tokens, elapsed_s)

    def _learn_first_tokens(self, before: Observation, after: Observation) -> None:
        """How long the engine says first tokens took between two readings, where none of ours was seen of late: answers
        that do not stream show none, and at a first guess their prompts would count as queued for too long.
        """
        if before.first_token_s_total is None or after.first_token_s_total is None:
            return
        if before.first_tokens_total is None or after.first_tokens_total is None:
            return
        seconds = after.first_token_s_total - before.first_token_s_total
        count = after.first_tokens_total - before.first_tokens_total
        if not (count >= 1.0 and 0.0 <= seconds < math.inf and self._sent):
            return
        tokens = self._sent_queues / self._sent
        self._sent = self._sent_queues = 0
        if after.asked_s >= self._own_prefill_until_s:
            elapsed_s = max(seconds / count - PREFILL_BASE_S, tokens / (PREFILL_GROWTH * self.prefill_rate))
            self._learn_prefill_of(tokens, elapsed_s)

    def _learn_prefill_of(self, tokens: float, elapsed_s: float) -> None:
        # A prompt of a few tokens says how long a step is, a hang says nothing: neither is prefill speed.
        elapsed_s = min(max(elapsed_s, tokens / PREFILL_TOKENS_PER_S_MAX), PREFILL_SAMPLE_S_MAX)
        # A prompt that is nearly all cached has little to compute, and says as little of the speed.
        weight = min(1.0, tokens / PREFILL_SAMPLE_TOKENS)
        kept = 0.9**weight
        self._prefill_samples += weight
        self._prefill_tokens = kept * self._prefill_tokens + weight * tokens
        self._prefill_seconds = kept * self._prefill_seconds + weight * elapsed_s
        self.prefill_rate = max(1.0, self._prefill_tokens / self._prefill_seconds)
        self.rate_known = self._prefill_samples >= PREFILL_SAMPLES_MIN

    def _note(self, when: float, leases: int, tokens: int) -> None:
        self._load_until_s = -math.inf
        self._events.append((when, leases, tokens))
        self._net += leases
        self._net_tokens += tokens
        if len(self._events) > EVENTS_MAX:
            self.base = None
            self._sure_until_s = -math.inf
            self._drop_event()

    def _drop_event(self) -> None:
        _, leases, tokens = self._events.popleft()
        self._net -= leases
        self._net_tokens -= tokens

    # --- observations -------------------------------------------------------------------------------------------

    def observe(self, reading: Observation) -> bool:
        """Take in a reading. Returns True when the engine turned out to have restarted (a new epoch began)."""
        if reading.asked_s <= self.asked_s or not reading.sane():
            return False  # answered out of order, or nonsense, which says as little as no answer
        previous_asked_s, self.asked_s = self.asked_s, reading.asked_s
        self._load_until_s = -math.inf
        base = self.base
        self._at_the_door = 0.0
        if base is not None and reading.same_as(base):
            self._count_at_the_door(reading)
            return False
        restarted = base is not None and restarted_between(base, reading)
        if restarted:
            self._new_epoch(previous_asked_s)
        elif base is not None:
            self._learn_pace(base, reading)
            self._learn_first_tokens(base, reading)
        self._moved_s = reading.asked_s
        self.base = reading
        self._entered = self._entered_max = 0
        for lease in list(self.unseen.values()):
            if lease.dispatched_s >= previous_asked_s:
                break  # leases stand in dispatch order
            self._take_in(lease)
        while self._events and self._events[0][0] < reading.asked_s:
            self._drop_event()
        foreign = max(0.0, reading.running + reading.waiting - (len(self.leases) - self.pending - self._net))
        self._foreign += 0.3 * (foreign - self._foreign)
        self._count_at_the_door(reading)
        return restarted

    def _count_at_the_door(self, reading: Observation) -> None:
        """Others' requests that came since the engine's last step: its gauges will show them when the next one ends."""
        if reading.in_all is not None:
            self._at_the_door = max(0.0, reading.in_all + self.pending - self.load(reading.asked_s))
            self._load_until_s = -math.inf

    def glimpse(self, part: Glimpse, now: float) -> None:
        """Take in a part of a reading, where it differs from the last whole one.

        How many are there in all it does not tell: that stays as it is believed to be, and only its split moves.
        """
        base = self.base
        if base is None or part.asked_s <= self.asked_s or not self.credible(now):
            return
        waiting = base.waiting if part.waiting is None else part.waiting
        kv_usage = base.kv_usage if part.kv_usage is None else part.kv_usage
        if (waiting, kv_usage) == (base.waiting, base.kv_usage):
            return
        net = sum(leases for when, leases, _ in self._events if when < part.asked_s)
        running = max(0.0, base.running + base.waiting + net - waiting)
        self.observe(
            msgspec.structs.replace(base, asked_s=part.asked_s, running=running, waiting=waiting, kv_usage=kv_usage)
        )

    def _learn_pace(self, before: Observation, after: Observation) -> None:
        """What the engine says its pace was between two readings, where our own streams did not tell of late."""
        if before.pace_s_total is None or after.pace_s_total is None:
            return
        if before.pace_tokens_total is None or after.pace_tokens_total is None:
            return
        seconds = after.pace_s_total - before.pace_s_total
        tokens = after.pace_tokens_total - before.pace_tokens_total
        if tokens >= PACE_TOKENS_MIN and seconds >= 0 and after.asked_s >= self._own_pace_until_s:
            self._pace_s = seconds / tokens
            self.pace_kept_until_s = after.asked_s + PACE_KEPT_S

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
        self.prefilling = {k: x for k, x in self.prefilling.items() if x.dispatched_s >= previous_asked_s}
        self.outstanding_prefill_tokens = sum(x.prompt_tokens - x.computed_tokens for x in self.prefilling.values())
        self._foreign = 0.0

    def credible(self, now: float) -> bool:
        """Whether the base may still be used: recent, and not standing still while it claims work."""
        if now < self._sure_until_s:
            return True
        base, stale_s, frozen_s = self.base, self.asked_s + self.stale_after_s, self._moved_s + FROZEN_S
        if base is None or now >= stale_s:
            return False
        if now < frozen_s:
            self._sure_until_s = min(stale_s, frozen_s)
            return True
        return not (base.running + base.waiting > 0 or self._net != 0)

    @property
    def moved_s(self) -> float:
        """When the engine last showed that it works, by an answer or by its gauges."""
        return max(self.life_s, self._moved_s)

    @property
    def own_at_reading(self) -> int:
        """Own requests that had been sent there when the last reading that moved was asked for."""
        return len(self.leases) - self.pending - self._net

    def stuck(self, now: float) -> bool:
        """Whether it does not move although it should: streams under way, its gauges answer, nothing changes in either.

        Answers that do not stream show nothing until they end, and gauges that are not to be had show nothing at all;
        neither is held against it.
        """
        if now < self.life_s + FROZEN_S or now < self._moved_s + FROZEN_S or now >= self.asked_s + self.stale_after_s:
            return False
        return any(x.streamed and not x.pending and now >= x.dispatched_s + FROZEN_S for x in self.leases.values())

    # --- what follows from both ---------------------------------------------------------------------------------

    def judged_stale_after(self, stale_after_s: float) -> None:
        """Readings are used for that long from now on."""
        self.stale_after_s = stale_after_s
        self._load_until_s = self._sure_until_s = -math.inf

    def resized(self, slots: int, *, shown: int | None = None) -> None:
        """The endpoint takes more, or fewer, requests at a time from now on.

        `shown`: it was not yet shown to run more than these at once, so what is sent beyond counts as waiting in its
        queue until it is seen: slots that are only a try are filled a few at a time.
        """
        self.slots = slots
        self._slots_shown = slots if shown is None else min(shown, slots)
        self._load_until_s = -math.inf

    def foreign(self, now: float) -> float:
        """Requests of others believed to be on the endpoint when readings are not to be had."""
        if self._moved_s == -math.inf:
            return 0.0
        faded = self._foreign * math.exp(-max(0.0, now - self._moved_s) / FOREIGN_DECAY_S)
        return min(faded, max(0.0, self.slots - 1.0))  # what was read last never fills an endpoint by itself

    def load(self, now: float) -> float:
        """Requests believed to be on the endpoint, running or waiting, ours and others'."""
        if now < self._load_until_s:
            return self._load
        own = len(self.leases)
        if now < self._sure_until_s or self.credible(now):
            base = self.base
            assert base is not None
            told = base.running + base.waiting + self._net + self.pending
            self._load = (own if own > told else told) + self._at_the_door
            self._load_until_s = self.asked_s + self.stale_after_s
            if self._moved_s + FROZEN_S >= now:
                self._load_until_s = min(self._load_until_s, self._moved_s + FROZEN_S)
        else:
            foreign = self.foreign(now)
            self._load = own + foreign
            self._load_until_s = now if foreign > 0.0 else math.inf
        return self._load

    def engine_queue(self, slots: int, now: float) -> float:
        """Requests believed to wait inside the engine: observed, or our own that it can't have taken in yet."""
        base = self.base
        credible = base is not None and (now < self._sure_until_s or self.credible(now))
        if base is not None and base.waiting > 0 and credible:
            # It queues, so it ran all it could then, whatever we believed of its size. More began than ended since:
            # it can run so many more (or `waiting` had only counted what came in since its last step).
            return max(0.0, base.waiting + self._net - self._entered_max)
        slots = min(slots, self._slots_shown)
        unseen = len(self.unseen)
        if not unseen:
            return 0.0
        if base is None or not credible:
            return max(0.0, unseen - max(0.0, slots - (len(self.leases) - unseen) - self.foreign(now)))
        own = len(self.leases)
        others = base.running - (own - self.pending - self._net)
        free = slots - (own - unseen) - ((others if others > 0.0 else 0.0) + self._at_the_door)
        return max(0.0, unseen - free) if free > 0.0 else unseen

    def review_s(self, now: float) -> float:
        """When time alone may next lower the load, the engine queue or the KV usage; infinity when it can't."""
        due_s = self.prefill_due_s
        if now < self._sure_until_s or self.credible(now):
            due_s = min(due_s, self.asked_s + self.stale_after_s)
            frozen_s = self._moved_s + FROZEN_S
            return min(due_s, frozen_s) if frozen_s > now else due_s
        return min(due_s, now + REVIEW_S) if self.foreign(now) > 0.01 else due_s

    def kv_usage(self, now: float) -> float | None:
        """Share of the KV memory believed in use, None when the engine does not tell."""
        base = self.base
        if base is None or base.kv_usage is None or not (now < self._sure_until_s or self.credible(now)):
            return None
        if not base.kv_capacity_tokens:
            return base.kv_usage
        usage = base.kv_usage + (self._net_tokens + self.pending_tokens) / base.kv_capacity_tokens
        return usage if usage > 0.0 else 0.0


def restarted_between(before: Observation, after: Observation) -> bool:
    """Whether two readings are of different engine processes. Counters never fall, even where one follows at once."""
    told = before.started_s is not None and after.started_s is not None
    if told and abs((after.started_s or 0.0) - (before.started_s or 0.0)) > 1.0:
        return True
    return before.progress is not None and after.progress is not None and after.progress < before.progress
