"""How loaded is an endpoint: the ledger of our own leases decides, its page corrects it (docs/design.md#load).

Everyday picture: a car park with a display that is minutes old. We know each car we sent in and each that came back out
to us; the display adds the cars of others. So load = ours + those on the display that were not ours when it was read.
An engine's page moves only when a step ends, so an unchanged reading has no news: its numbers keep the time of the last
changed one. While the page does not count, load = ours.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

from penstock.core.endpoints.concurrency import ConcurrencyLimit
from penstock.core.endpoints.judges import ENDS_MAX
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.page import EnginePage
from penstock.core.endpoints.prefill_backlog import PrefillBacklog
from penstock.core.endpoints.speed import BASE_S, Speed
from penstock.core.values.observation import Glimpse, Observation

STREAMED_SHARE: Final = 8  # one of so many
ABANDONED_STEPS = 2.0  # the step that it is in, and the one that has begun when the hang-up arrives (decision 0024)
ABANDONED_S_MIN = 0.05  # these, and the way there
WHOLE_TOKENS_MIN: Final = 8  # an answer of fewer may well come in one piece
WHOLE_SHARE: Final = 0.02  # of its time: the first token came with the last one
WHOLE_AFTER: Final = 3  # such answers in a row
IN_TIME_TIMES: Final = 3.0  # of the predicted first token, for a request that was sent against the page
WHOLE_IN_TIME = 1.5  # times the time of its tokens, if its answer comes whole


class Ledger:
    """Our leases on one endpoint, and their corrections."""

    def __init__(self, limit: ConcurrencyLimit, *, stale_after_s: float, epoch: int = 0) -> None:
        self.limit = limit
        self.epoch = epoch
        self.leases: dict[int, Lease] = {}  # of this epoch, in dispatch order
        self.reserved = 0  # leases before their first token
        self.pending = 0  # of these, how many were not sent yet, and how many tokens they will take
        self.pending_tokens = 0
        self.streams = 0  # leases of requests that stream
        self.speed = Speed()
        self.prefill = PrefillBacklog(self.speed)  #: the prompts before it
        self.page = EnginePage(stale_after_s)
        self.lingers = False  #: the engine goes on with abandoned requests, unless they are streams that have begun
        self.life_s = -math.inf  #: when an answer last showed that the engine works
        self.begun_sent_s = -math.inf  #: when the stream was sent that was sent last of those that have begun
        self._ends: deque[tuple[float, float, int]] = deque(maxlen=ENDS_MAX)  # when, when sent, tokens
        self._abandoned: list[tuple[float, float]] = []  # when each was given up, and until when its slot counts
        self._whole = 0  # answers in a row that were asked for as streams and came in one piece
        self._sent = self._ended = self._tokens = 0  # since the page was asked that moved last
        self.fresh = 0  #: ours, sent so shortly before that reading that they may wait for the next step
        self._begun = self._begun_most = 0  # since then, less those that ended, and the most that ever was
        self._load = 0.0  # the last result of `load`, valid until then or the next event
        self._load_until_s = -math.inf
        self._door = 0.0  # requests that only a count at its door shows yet

    @property
    def slots(self) -> int:
        """Its concurrency."""
        return self.limit.slots

    @property
    def sent_there(self) -> int:
        """Own requests that the engine was sent."""
        return len(self.leases) - self.pending

    @property
    def moved_s(self) -> float:
        """When the engine last showed that it works, by an answer or by its page."""
        return max(self.life_s, self.page.worked_s)

    @property
    def comes_whole(self) -> bool:
        """Whether answers that are asked for as streams come in one piece."""
        return self._whole >= WHOLE_AFTER

    @property
    def shows(self) -> bool:
        """Whether our own answers show how many it runs: enough of them stream, and begin in turn with the others."""
        return self.streams > 0 and STREAMED_SHARE * self.streams >= len(self.leases)

    # --- own leases ---------------------------------------------------------------------------------------------

    def add(self, lease: Lease) -> None:
        """Add a lease that was dispatched: it takes a slot until `remove`."""
        assert lease.serial not in self.leases
        self._enter(lease)
        self.reserved += 1
        self.prefill.add(lease)
        if self.page.closed_s is not None:
            lease.tries = True
            self.page.outstanding += 1
        self._sent += 1
        self._tokens += lease.tokens

    def _enter(self, lease: Lease) -> None:
        lease.epoch = self.epoch
        if self._whole >= WHOLE_AFTER:
            lease.streamed = False
        self.leases[lease.serial] = lease
        self.streams += lease.streamed
        lease.beside = beside = len(self.leases) - self.pending
        lease.within_proven = beside <= self.limit.proven()
        self._load_until_s = -math.inf

    def reserve(self, lease: Lease) -> None:
        """Reserve a slot for a request with its prompt being computed elsewhere.

        This engine knows nothing of it until `begin`.
        """
        assert lease.serial not in self.leases
        lease.epoch = self.epoch
        lease.pending = True
        self.leases[lease.serial] = lease
        self.reserved += 1
        self._count_pending(lease, 1)

    def take_on(self, lease: Lease, now: float, *, begun: int | None) -> None:
        """Count a lease that another scheduler granted and that goes on.

        `begun`: the tokens that its stream has by now; None: nothing shows that its prompt is computed.
        """
        assert lease.serial not in self.leases
        last = next(reversed(self.leases.values()), None)
        self._enter(lease)
        if begun is not None:
            lease.first_token_s = now
            self._begins(lease, now)
            lease.progress_tokens = max(begun, 1)
        else:
            self.reserved += 1
            self.prefill.add(lease)
        if last is not None and last.dispatched_s > lease.dispatched_s:
            self.leases = _in_dispatch_order(self.leases)
            self.prefill.leases = _in_dispatch_order(self.prefill.leases)
        if lease.dispatched_s >= self.page.moved_s:
            self._sent += 1
            self._tokens += lease.tokens

    def begin(self, lease: Lease, now: float) -> None:
        """Send the request of a reserved lease now, as if it had just come."""
        self._give_up_pending(lease)
        lease.dispatched_s = now
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
        """Note that the engine has taken the request in and computed its prompt."""
        self.life_s = lease.first_token_s = now
        self._begins(lease, now)
        if lease.epoch != self.epoch:
            return
        self.reserved -= 1
        teaches = lease.within_proven or self.limit.idles()
        if lease.streamed:
            took_s = now - lease.dispatched_s
            in_time = took_s <= max(IN_TIME_TIMES * self.speed.first_token_s(lease.queued_tokens), 1.0)
            if lease.tries:
                # With a moving page it may have waited; with a frozen one, the engine's action shows.
                teaches = teaches and (in_time or self.page.asked_s > self.page.moved_s)
                self._try_began(lease, now, in_time=in_time)
            self.begun_sent_s = max(self.begun_sent_s, lease.dispatched_s)
        if lease.serial in self.prefill.leases:
            if lease.streamed:
                self.prefill.first_token(lease, now, teaches=teaches)
            else:
                self.prefill.remove(lease)  # its first token comes with its last
        self._begun += 1
        self._begun_most = max(self._begun_most, self._begun)

    def _begins(self, lease: Lease, now: float) -> None:
        lease.progress_s, lease.progress_tokens = now, 1
        lease.progress_computed = self.prefill.computed_tokens

    def _try_began(self, lease: Lease, now: float, *, in_time: bool) -> None:
        """A request sent against the page shows its first token or, if it does not stream, its answer."""
        lease.tries = False
        self.page.outstanding -= 1
        if in_time or lease.within_proven:  # otherwise it may have waited for our own
            if self.page.began(in_time=in_time, now=now):
                self.limit.on_false_page()
            self._load_until_s = -math.inf

    def progressed(self, lease: Lease, output_tokens: int, now: float) -> None:
        """Note that an answer has grown to `output_tokens`, which shows how fast the endpoint makes them."""
        self.life_s = now
        if lease.epoch == self.epoch:
            self.speed.on_progress(lease, output_tokens, now, computed=self.prefill.computed_tokens)

    def answered(self, lease: Lease, output_tokens: int, now: float) -> None:
        """Note that the last byte of an answer came, of `output_tokens`, or 0 if that is not known."""
        self.life_s = now
        if lease.epoch != self.epoch:
            return
        began_s, took_s = lease.first_token_s, now - lease.dispatched_s
        in_one_piece = began_s is None or now - began_s <= WHOLE_SHARE * took_s
        if lease.tries:
            step_s = self.speed.step_s
            in_time = took_s <= WHOLE_IN_TIME * (self.speed.first_token_s(lease.prompt_tokens) + output_tokens * step_s)
            self._try_began(lease, now, in_time=in_time or not step_s or not output_tokens)
        if not in_one_piece:
            self._whole = 0
            if output_tokens:
                computed = self.prefill.computed_tokens
                self.speed.on_progress(lease, output_tokens, now, computed=computed, ended=True)
        elif not lease.streamed:
            self.speed.on_whole(lease, output_tokens, now)
        elif output_tokens >= WHOLE_TOKENS_MIN or not output_tokens:
            self._whole = min(self._whole + 1, WHOLE_AFTER)
            if self.comes_whole:
                self._none_streams()
        if in_one_piece:
            self.limit.on_whole(lease, output_tokens, now)

    def _none_streams(self) -> None:
        """None of those under way shows when its prompt is computed, as was just found out."""
        for lease in self.leases.values():
            if lease.streamed and lease.first_token_s is None and not lease.pending:
                lease.streamed = False
                self.streams -= 1
        self.prefill.none_streams()

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
        self._load_until_s = -math.inf
        self.streams -= lease.streamed
        self.page.outstanding -= lease.tries
        self.reserved -= lease.first_token_s is None
        if lease.serial in self.prefill.leases:
            self.prefill.remove(lease)
        self._ended += 1
        self._begun -= 1
        tokens = lease.tokens
        self._tokens -= tokens
        self._ends.append((now, lease.dispatched_s, tokens))
        if not lease.streamed or lease.first_token_s is not None:
            self.limit.on_ended(len(self.leases) - self.reserved, now)
        if abandoned:
            ends = lease.streamed and lease.first_token_s is not None
            step_s = self.speed.time_per_output_token_s(now)
            lasts_s = max(ABANDONED_S_MIN, ABANDONED_STEPS * step_s)
            self._abandoned.append((now, now + (self.page.stale_after_s if self.lingers and not ends else lasts_s)))

    def abandoned(self, now: float) -> int:
        """Returns the slots still taken by abandoned requests, within the possible number."""
        if not self._abandoned:
            return 0
        self._abandoned = [slot for slot in self._abandoned[-self.slots :] if slot[1] > now]
        return min(len(self._abandoned), max(0, self.slots - (len(self.leases) - self.reserved)))

    # --- facts of our own requests ------------------------------------------------------------------------------

    def running(self) -> int:
        """Returns how many of ours surely run: those that have begun, and whole answers sent before one of those."""
        running, upto_s = len(self.leases) - self.reserved, self.begun_sent_s
        if self.streams < len(self.leases):
            for lease in self.leases.values():  # in dispatch order
                if lease.dispatched_s >= upto_s:
                    break
                running += lease.first_token_s is None and not lease.streamed and not lease.pending
        return running

    # --- the page -----------------------------------------------------------------------------------------------

    def observe(self, reading: Observation) -> bool:
        """Take in a reading. Returns True if it shows that the engine restarted (a new epoch began)."""
        restarted = self._observe(reading)
        if self.page.base is reading:
            self._abandoned = [slot for slot in self._abandoned if slot[0] >= reading.asked_s]
        return restarted

    def _observe(self, reading: Observation, *, whole: bool = True) -> bool:
        if reading.asked_s <= self.page.asked_s or not reading.sane():
            return False  # out of order, or nonsense, which counts like no answer
        page, previous_s = self.page, self.page.asked_s
        base, last = page.base, page.last
        self._load_until_s = -math.inf
        if not page.read(reading, life_s=self.life_s):
            self._count_door(reading)
            return False
        restarted = last is not None and restarted_between(last, reading)
        if restarted:
            self._new_epoch(previous_s)
        elif base is not None:
            self.prefill.first_tokens_counted(self.speed.on_page(base, reading))
        own, inside, during = self._count_from(reading.asked_s, previous_s)
        tries_sizes = math.isfinite(self.limit.proven())
        page.compare(own=own, inside=inside, during=during if whole else 0, tries_sizes=tries_sizes)
        self._count_door(reading)
        return restarted

    def _count_from(self, asked_s: float, previous_s: float) -> tuple[int, int, int]:
        """Count from `asked_s` on.

        Returns how many of ours had been sent by then, of these by `previous_s` and not answered yet, and how many were
        sent since.
        """
        own = inside = during = self._sent = self._tokens = self._ended = self._begun = self.fresh = 0
        fresh_s = asked_s - (self.speed.step_at_least_s or BASE_S)
        for lease in reversed(self.leases.values()):
            if lease.pending:
                continue
            if lease.dispatched_s >= asked_s:
                self._sent += 1
                self._tokens += lease.tokens
            else:
                own += 1
                inside += lease.dispatched_s < previous_s
                self.fresh += lease.dispatched_s >= fresh_s
            if lease.first_token_s is not None:
                self._begun += lease.first_token_s >= asked_s
        for ended_s, dispatched_s, tokens in reversed(self._ends):
            if ended_s < asked_s:
                break
            self._ended += 1
            if dispatched_s < asked_s:
                own += 1
                self._tokens -= tokens
            else:
                during += 1
        self._begun_most = max(0, self._begun)
        return own, inside, during + self._sent

    def _count_door(self, reading: Observation) -> None:
        """Others' requests that came since the engine's last step: its page shows them when the next one ends."""
        self._door = 0.0
        if reading.in_all is not None:
            self._load_until_s = -math.inf
            self._door = max(0.0, reading.in_all + self.pending - self.load(reading.asked_s))
            self._load_until_s = -math.inf

    def missed(self, *, answered: bool = False) -> None:
        """Note that a reading was not to be had; `answered`: though something answered."""
        if self.page.missed(answered=answered):
            self._load_until_s = -math.inf
            self._door = 0.0

    def glimpse(self, part: Glimpse, now: float) -> None:
        """Take in a `part` of a reading if it differs from the last whole one.

        A partial reading lacks the total of requests: that stays, and only its split changes.
        """
        base = self.page.base
        if base is None or part.asked_s <= self.page.asked_s or not self.page.credible(now):
            return
        waiting = base.waiting if part.waiting is None else part.waiting
        kv_usage = base.kv_usage if part.kv_usage is None else part.kv_usage
        if (waiting, kv_usage) == (base.waiting, base.kv_usage):
            return
        own = self._count_from(part.asked_s, part.asked_s)[0]
        running = max(0.0, own + self.page.others - waiting)
        known = base.queued is not None and base.queued < base.waiting  # the rest waits for something else
        queued = max(0.0, waiting - base.waiting + (base.queued or 0.0)) if known else None
        moved = msgspec.structs.replace(
            base, asked_s=part.asked_s, running=running, waiting=waiting, queued=queued, kv_usage=kv_usage
        )
        self._observe(moved, whole=False)

    def _new_epoch(self, previous_s: float) -> None:
        """The engine restarted at some time after `previous_s`: earlier dispatches are gone.

        Later ones may run on either process. It keeps its slot: if it was on the old one, its connection is lost and
        the driver reports so.
        """
        self.epoch += 1
        self.leases = {k: x for k, x in self.leases.items() if x.dispatched_s >= previous_s or x.pending}
        for lease in self.leases.values():
            lease.epoch = self.epoch
        self.reserved = sum(lease.first_token_s is None for lease in self.leases.values())
        self.streams = sum(lease.streamed and not lease.pending for lease in self.leases.values())
        self._ends.clear()
        self._whole = 0
        self.begun_sent_s = -math.inf
        self.prefill.restarted(previous_s)
        base, queue = self.page.base, self.page.queue
        self.page.forget()
        self.page.base, self.page.queue = base, queue

    def judged_stale_after(self, stale_after_s: float) -> None:
        """Use readings for `stale_after_s` from now on."""
        self.page.judged_stale_after(stale_after_s)
        self._load_until_s = -math.inf

    # --- conclusions --------------------------------------------------------------------------------------------

    def load(self, now: float) -> float:
        """Returns how many requests are believed to be on the endpoint, running or waiting, ours and others'."""
        if now < self._load_until_s:
            return self._load
        if self.page.credible(now):
            self._load = len(self.leases) + self.page.others + self._door
            self._load_until_s = self.page.changes_s(now)
        else:
            self._load, self._load_until_s = float(len(self.leases)), math.inf
        return self._load

    def idle(self, now: float) -> bool:
        """True if nothing is believed to run or to wait on the endpoint, ours or others'."""
        if self._abandoned:
            self.abandoned(now)  # those that are over are forgotten
        if self.leases or self._abandoned or self.load(now) > 0.0:
            return False
        return self.page.queue == 0.0

    def engine_queue(self, now: float, *, told: bool = True, strict: bool = False) -> float:
        """Returns how many requests are believed to wait inside the engine: by its page, or those of ours that have not
        begun and exceed its slots.

        `told`: False leaves out the page. `strict`: requests that may only wait for the next step count, too.
        """
        fresh = 0 if strict else self.fresh
        abandoned = self.abandoned(now)
        page = self.page
        if told and page.queue > fresh and page.credible(now):
            # It queues, so it ran all it could. Each sent since joined its queue, each that ended took one out; if more
            # began than ended, it can run so many more.
            waiting = page.queue - fresh + abandoned + self._sent - self._ended - self._begun_most
            return max(0.0, waiting)
        unbegun = self.reserved - self.pending
        if not (unbegun or abandoned):
            return 0.0
        load = self.load(now) if told else float(len(self.leases))
        return max(0.0, min(float(unbegun + abandoned), load + abandoned - self.slots))

    def review_s(self, now: float) -> float:
        """Returns when time alone may next lower the load, the engine queue or the KV usage; infinity when it can't."""
        if now >= self._load_until_s:
            self.load(now)
        due_s = min(self.prefill.due_s, self._load_until_s)  # the load stands for as long as the page counts
        if self._abandoned:
            due_s = min(due_s, min([slot[1] for slot in self._abandoned if slot[1] > now], default=math.inf))
        return due_s

    def kv_usage(self, now: float) -> float | None:
        """Returns the assumed share of KV memory in use; None if not reported."""
        base = self.page.base
        if base is None or base.kv_usage is None or not self.page.credible(now):
            return None
        if not base.kv_capacity_tokens:
            return base.kv_usage
        usage = base.kv_usage + (self._tokens + self.pending_tokens) / base.kv_capacity_tokens
        return usage if usage > 0.0 else 0.0


def _in_dispatch_order(leases: dict[int, Lease]) -> dict[int, Lease]:
    return dict(sorted(leases.items(), key=lambda item: item[1].dispatched_s))


def restarted_between(before: Observation, after: Observation) -> bool:
    """True if two readings are of different engine processes. Counters never fall, even if one follows at once."""
    told = before.started_s is not None and after.started_s is not None
    if told and abs((after.started_s or 0.0) - (before.started_s or 0.0)) > 1.0:
        return True
    return before.progress is not None and after.progress is not None and after.progress < before.progress
