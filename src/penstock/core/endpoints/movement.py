"""Does an engine move: do tokens come of what it has begun, and does it begin with what it is sent?

Everyday picture: the tills of a shop. A till whose belt stands still with goods on it, while the tills beside it go on,
is stuck, whatever the lamp above it says; nobody queues up there any more, and who has nothing on the belt yet goes to
another one. A till with a full trolley before it only looks like that.

Two silences are told apart. *Decoding*: streams that have begun owe a token each step; no sign of the engine (a token,
a first token, an answer, gauges that moved) for the longer of a second and twenty of its steps is too long. *Starting*:
a stream that was sent owes its first token; where the engine has a slot for it and begins nothing for as long, that is
too long, twice as long while others of its streams go on. What it may need that time for is left to it:

- *long prompts*: twice what the longest prompt before it takes at its speed; and three times the longest silence of
  late that ended by itself, which is how an engine shows that it computes whole prompts between tokens;
- *compiling, filling caches*: nothing is judged before it has begun some answers since it came;
- *loading*: nor what is sent to it after it had nothing to do for a minute, for it may have put its model away.

A wrong verdict costs little and makes the next one slower: patience doubles with each verdict, and halves each minute.
Nor is anything judged unless another endpoint of the same models moves, or is idle: if all fall silent at once it is
rather us, or the network, and there is nowhere else to ask. While it is stuck one request is let through at a time,
after 1 s, 2 s, 4 s …, for what has nothing to show can't show that it moves again.

Answers that do not stream show nothing until they end, which may be long. *Answering*: an endpoint has such answers
under way, and none has ended. Where its gauges have moved with our answers so far, they tell the one who works from the
one who does not: it is silent while no answer ends and a page that was asked for since shows nothing new, or does not
come although it is due. Then its patience is that of above (docs/decisions/0036). Where gauges tell nothing, or only of
others' requests, nothing may have ended for twice the longest time that an answer took recently, or should take.
A page shows *starting* of such answers, too, whatever ends meanwhile: one was sent, there is room for it, and a page
that was asked for later shows an engine that has nothing to do, or goes on and has made no first token more, where it
counts these (docs/decisions/0078).
"""

from __future__ import annotations

import math
from enum import IntEnum

from penstock.core.endpoints.gauge_belief import OTHERS_MIN, OTHERS_SHARE, Standing
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.ledger import FROZEN_S, Ledger

CHECK_S = 0.25  # how often all are looked at while anything runs: a quarter of the shortest patience
LATE_S = 0.5  # a look that comes so much too late says that we stood still ourselves
PATIENCE_S = 1.0  # longer than a step of most engines, shorter than what a person who waits forgives
STEPS = 20.0
GOES_ON_TIMES = 2.0  # as long, for an engine that begins nothing and goes on with what it has
GAPS = 3.0  # recent silences: the next one may be a longer prompt's
GAP_HALVES_S = 60.0
WHOLE_GAP_STAYS = 0.1  # ten times as long: how a page comes to what it shows does not change with the load
ANSWERS_MIN = 8  # begun since it came; what compiles does so for the first few
IDLE_S = 60.0  # shorter than the five minutes after which Ollama puts a model away
PROMPT_TIMES = 2.0  # what a prompt is predicted to take
TOKENS_PER_S_UNKNOWN = 100.0  # a small CPU's prefill: until the speed is known, the slowest that is in use
ANSWER_TIMES = 2.0  # the longest recent answer, where answers alone tell
UNSEEN_S = 0.5  # that gauges show nothing new: a few steps, and more than a page takes to come
TRY_S = 1.0
TRY_S_MAX = 30.0
DISTRUST_MAX = 16.0
DISTRUST_HALVES_S = 60.0


class Silence(IntEnum):
    """What an engine has not done for too long, and so what ends that."""

    WORKING = 0  #: anything at all: any sign ends it
    ANSWERING = 1  #: answers, where nothing but these would show it: gauges that move say nothing
    STARTING = 2  #: beginning what it was sent: what it has begun goes on, and says nothing


class Movement:
    """Whether one engine process moves. Asked at each look; told of each answer that begins, or comes whole."""

    __slots__ = (
        "_answer_s",
        "_answers",
        "_begun_s",
        "_begun_sent_s",
        "_decode_gap_s",
        "_distrust",
        "_distrust_s",
        "_forgiven_s",
        "_gaps_s",
        "_given_s",
        "_owed_gap_s",
        "_owed_s",
        "_owed_since_s",
        "_prompt_speed",
        "_ref_s",
        "_silence",
        "_start_gap_s",
        "_tried_s",
        "_tries",
        "_unseen_s",
        "_whole_gap_s",
        "_whole_since_s",
        "silent_since_s",
        "strain",
        "stuck_s",
    )

    def __init__(self) -> None:
        self.stuck_s: float | None = None  #: since when it counts as stuck
        self.silent_since_s = 0.0  #: and since when it has shown nothing, then
        self.strain = 0.0  #: how long it has been silent, as a share of what it is given; more than 1 is too long
        self._silence = Silence.WORKING  # of what kind that is
        self._given_s = PATIENCE_S  # and how long it might have lasted
        self._answers = 0  # begun since it came
        self._begun_s = -math.inf  # when it last began an answer, or ended one that does not stream,
        self._begun_sent_s = -math.inf  # and when the last one sent of these was sent: engines begin with the first
        self._ref_s: float | None = None  # when it last moved while streams were under way there
        self._decode_gap_s = 0.0  # the longest recent silence that ended by itself
        self._start_gap_s = 0.0
        self._whole_gap_s = 0.0
        self._gaps_s = 0.0  # when these were last looked at
        self._whole_since_s = -math.inf  # since when answers are under way, none has ended and no gauge has moved,
        self._unseen_s = 0.0  # and for how long of that gauges should have shown something
        self._owed_since_s = -math.inf  # since when a whole answer is there that the page does not count as begun,
        self._owed_s = 0.0  # how long after that it was last asked for,
        self._owed_gap_s = 0.0  # and the longest such time that ended by itself
        self._answer_s = 0.0  # the longest that an answer which does not stream took recently
        self._prompt_speed = 0.0  # the fastest that one was computed, and answered, recently
        self._distrust = 1.0  # what its patience is multiplied by
        self._distrust_s = 0.0
        self._forgiven_s = -math.inf  # silences before count for nothing
        self._tries = 0
        self._tried_s = 0.0

    # --- facts ----------------------------------------------------------------------------------------------------

    def began(self, lease: Lease, ledger: Ledger, now: float) -> None:
        """Note that an answer begins, or that one which does not stream is there. The ledger is told afterwards."""
        if not lease.streamed and (took_s := now - lease.dispatched_s) > 0.0:
            self._answer_s = max(self._answer_s, took_s)
            self._prompt_speed = max(self._prompt_speed, lease.prompt_tokens / took_s)
        self._answers += 1
        self._begun_sent_s = max(self._begun_sent_s, lease.dispatched_s)
        oldest = _oldest_awaited(ledger)
        if lease.streamed or oldest is None or lease.dispatched_s >= oldest.dispatched_s:  # else it had begun before
            judged = self.stuck_s is None and self.warm
            if judged and oldest is not None and ledger.moved_s > oldest.dispatched_s - IDLE_S:
                since_s = max(oldest.dispatched_s, self._begun_s, self._forgiven_s)
                self._start_gap_s = max(self._start_gap_s, now - since_s)
            self._begun_s = now
        if lease.streamed or self._silence is not Silence.STARTING or lease.dispatched_s >= self.silent_since_s:
            self.moves(now)

    def moves(self, now: float) -> None:
        """Note that the engine works, if only because it sent an error: it is no longer stuck."""
        if self.stuck_s is not None:
            self.stuck_s = None
            self._whole_gap_s = max(self._whole_gap_s, self._unseen_s)
            self._owed_gap_s = max(self._owed_gap_s, self._owed_s)
            self._unseen_s = self._owed_s = 0.0
            self._distrust, self._distrust_s = min(2.0 * self._distrusted(now), DISTRUST_MAX), now
            self.forgive(now)

    def forgive(self, now: float) -> None:
        """Leave out the silence until `now`: it was ours, or the way's, and not the engine's."""
        self._forgiven_s = now
        if self._ref_s is not None:
            self._ref_s = now

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def warm(self) -> bool:
        """Whether it has begun so many answers that it may be judged."""
        return self._answers >= ANSWERS_MIN

    @property
    def doubted(self) -> bool:
        """Whether its next page is worth having soon: it is stuck, or the last one showed nothing of what it owes."""
        return self.stuck_s is not None or self._unseen_s > 0.0 or self._owed_s > 0.0

    def look(self, ledger: Ledger, now: float) -> None:
        """Measure the engine's silence, as `strain`. A stuck engine that has moved since is no longer stuck."""
        kept = math.exp2((self._gaps_s - now) / GAP_HALVES_S)
        self._gaps_s = now
        self._decode_gap_s *= kept
        self._start_gap_s *= kept
        self._whole_gap_s *= kept**WHOLE_GAP_STAYS
        self._owed_gap_s *= kept**WHOLE_GAP_STAYS
        self._answer_s *= kept
        self._prompt_speed *= kept
        moved_s = ledger.moved_s
        decoding = len(ledger.leases) > ledger.reserved
        if not decoding:
            self._ref_s = None
        elif self._ref_s is None:
            self._ref_s = now
        elif moved_s > self._ref_s:
            if self.stuck_s is None:
                self._decode_gap_s = max(self._decode_gap_s, moved_s - self._ref_s)
            self._ref_s = moved_s
        owes = decoding or self._whole_since_s > -math.inf
        if self.stuck_s is not None and owes:
            signs_s = (moved_s, -math.inf, ledger.belief.began_s)  # by what it has not done
            if signs_s[self._silence] > self.stuck_s:
                self.moves(now)
        self.strain = 0.0
        self._look_whole(ledger, now)
        self._look_owed(ledger, now)
        if not self.warm:
            return
        if decoding and self._ref_s is not None:
            self._strain(self._ref_s, self._patience_s(ledger, self._decode_gap_s, now), now)
        oldest = _oldest_awaited(ledger)
        if oldest is not None and _has_room(ledger, now) and (decoding or moved_s > oldest.dispatched_s - IDLE_S):
            since_s = max(oldest.dispatched_s, self._begun_s, self._forgiven_s)
            goes_on = decoding and moved_s > since_s
            patience_s = self._patience_s(ledger, self._start_gap_s, now)
            if goes_on:
                self._strain(since_s, patience_s, now, Silence.STARTING, times=GOES_ON_TIMES)
            else:
                self._strain(since_s, patience_s, now)

    def _look_whole(self, ledger: Ledger, now: float) -> None:
        """The silence of answers that do not stream."""
        oldest = _oldest_whole(ledger)
        if oldest is None:
            if self.stuck_s is None:
                self._whole_since_s, self._unseen_s = -math.inf, 0.0
            return
        by_gauges = _gauges_tell(ledger, now)
        sign_s = ledger.moved_s if by_gauges else ledger.life_s
        since_s = max(oldest.dispatched_s, sign_s, self._forgiven_s)
        if since_s > self._whole_since_s:
            if self.stuck_s is None:
                self._whole_gap_s = max(self._whole_gap_s, self._unseen_s)
            self._whole_since_s, self._unseen_s = since_s, 0.0
        if by_gauges and self.stuck_s is None:
            self._unseen_s = max(self._unseen_s, _overdue_s(ledger, since_s, now))
        if not self.warm or sign_s <= oldest.dispatched_s - IDLE_S:
            return
        if not by_gauges:
            self._strain(since_s, self._whole_patience_s(ledger, now), now, Silence.ANSWERING)
        elif self._unseen_s >= UNSEEN_S:
            self._strain(since_s, self._page_patience_s(ledger, self._whole_gap_s, now), now)

    def _look_owed(self, ledger: Ledger, now: float) -> None:
        """The silence of an engine that begins nothing, as its page counts first tokens: whole answers show none."""
        belief, base = ledger.belief, ledger.base
        begun_s = max(belief.began_s, belief.ran_s)
        upto_s = max(begun_s, self._begun_sent_s)
        owed = next((lease for lease in _whole(ledger) if lease.dispatched_s > upto_s), None)
        since_s = -math.inf if owed is None else max(owed.dispatched_s, self._forgiven_s)
        if since_s != self._owed_since_s:
            if self.stuck_s is None:
                self._owed_gap_s = max(self._owed_gap_s, self._owed_s)
            self._owed_since_s, self._owed_s = since_s, 0.0
        if owed is None or base is None or belief.doubt is not None:
            return
        if begun_s <= owed.dispatched_s - IDLE_S:
            return  # its page does not tell, or it may have to load its model
        idle = base.running + base.waiting == 0
        if idle and (
            next(iter(ledger.leases.values())).dispatched_s < belief.knew_s or ledger.life_s > base.asked_s + UNSEEN_S
        ):
            return  # it had counted what is still there, or what was answered since it said that nothing is there
        self._owed_s = max(self._owed_s, (ledger.asked_s if idle else belief.counted_s) - since_s)
        if self.warm and self._owed_s >= UNSEEN_S and _has_room(ledger, now):
            patience_s = self._page_patience_s(ledger, self._owed_gap_s, now)
            if idle:
                self._strain(since_s, patience_s, now)
            else:
                self._strain(since_s, patience_s, now, Silence.STARTING, times=GOES_ON_TIMES)

    def found_stuck(self, now: float) -> None:
        """Note that the engine is stuck: its silence lasted longer than patience allows."""
        self.stuck_s = self._tried_s = now
        self._tries = 0

    def tried_s(self, ledger: Ledger) -> float:
        """Returns when one request may go to the stuck engine; infinity while the last one sent has yet to begin."""
        assert self.stuck_s is not None
        last = next(reversed(ledger.leases.values()), None)
        if last is not None and last.dispatched_s > self.stuck_s and last.first_token_s is None and not last.pending:
            return math.inf
        return self._tried_s + min(TRY_S * float(1 << self._tries), TRY_S_MAX)

    def closed(self, ledger: Ledger, now: float) -> bool:
        """True if nothing may go to the engine now because it does not move."""
        return self.stuck_s is not None and now < self.tried_s(ledger)

    def gives_up(self, lease: Lease, ledger: Ledger, now: float) -> bool:
        """True if a request that waits at a stuck endpoint without a byte is better asked for elsewhere.

        What the endpoint has worked on for long is waited for as long again: all of it would be done once more.
        """
        patience_s = self._given_s
        if self._silence is Silence.STARTING and not lease.streamed and self._may_have_begun(lease):
            patience_s = self._whole_patience_s(ledger, now)
        since_s = max(lease.dispatched_s, self.silent_since_s, self._forgiven_s)
        invested_s = max(0.0, self.silent_since_s - lease.dispatched_s)
        prompt_s = PROMPT_TIMES * lease.prompt_tokens / self._speed(ledger, streamed=lease.streamed)
        return now - since_s >= max(patience_s, invested_s, prompt_s)

    def gave_up(self, lease: Lease, now: float) -> None:
        """Note that a request was taken back. If it was a try, the next one comes later."""
        if self.stuck_s is not None and lease.dispatched_s > self.stuck_s:
            self._tries = min(self._tries + 1, 16)
            self._tried_s = now

    # --- its own --------------------------------------------------------------------------------------------------

    def _may_have_begun(self, lease: Lease) -> bool:
        """Whether an engine that begins nothing may have begun this: it was there before, or no page shows it yet."""
        assert self.stuck_s is not None
        before = lease.dispatched_s < self.silent_since_s
        return before or (lease.dispatched_s > self.stuck_s and self._owed_s < UNSEEN_S)

    def _strain(
        self,
        since_s: float,
        patience_s: float,
        now: float,
        silence: Silence = Silence.WORKING,
        *,
        times: float = 1.0,
    ) -> None:
        """Hold a silence against the patience for it, or so many `times` that."""
        strain = (now - since_s) / (patience_s * times)
        if strain > self.strain:
            self.strain = strain
            if self.stuck_s is None:
                self.silent_since_s, self._silence, self._given_s = since_s, silence, patience_s

    def _patience_s(self, ledger: Ledger, gap_s: float, now: float) -> float:
        longest = max([lease.prompt_tokens for lease in ledger.prefill.leases.values()], default=0)
        prompt_s = PROMPT_TIMES * longest / self._speed(ledger, streamed=True)
        usual_s = max(PATIENCE_S, STEPS * ledger.pace.time_per_output_token_s(now))
        return self._distrusted(now) * max(usual_s, GAPS * gap_s, prompt_s)

    def _page_patience_s(self, ledger: Ledger, gap_s: float, now: float) -> float:
        """For answers that do not stream, where a page tells: their prompts are not known to be computed."""
        longest = max([lease.prompt_tokens for lease in _whole(ledger)], default=0)
        prompt_s = PROMPT_TIMES * longest / self._speed(ledger, streamed=False)
        usual_s = max(PATIENCE_S, STEPS * ledger.at_work.step_s)
        return self._distrusted(now) * max(usual_s, GAPS * gap_s, prompt_s)

    def _whole_patience_s(self, ledger: Ledger, now: float) -> float:
        """For answers that do not stream, by themselves: lengths count, too, for nothing is seen until one ends."""
        whole = _whole(ledger)
        prompts_s = sum([lease.prompt_tokens for lease in whole]) / self._speed(ledger, streamed=False)
        answer_s = max([lease.output_tokens for lease in whole], default=0) * ledger.at_work.step_s
        longest_s = ANSWER_TIMES * max(self._answer_s, prompts_s + answer_s)
        return max(self._page_patience_s(ledger, self._whole_gap_s, now), self._distrusted(now) * longest_s)

    def _speed(self, ledger: Ledger, *, streamed: bool) -> float:
        """Tokens a second in which prompts are computed, as far as is known: rather too few."""
        prefill = ledger.prefill
        if prefill.rate_known:
            return prefill.rate
        return min(prefill.rate, TOKENS_PER_S_UNKNOWN) if streamed else max(TOKENS_PER_S_UNKNOWN, self._prompt_speed)

    def _distrusted(self, now: float) -> float:
        return max(1.0, self._distrust * math.exp2((self._distrust_s - now) / DISTRUST_HALVES_S))


def _oldest_awaited(ledger: Ledger) -> Lease | None:
    """The stream that was sent first of those that owe their first token."""
    for lease in ledger.prefill.leases.values():  # those whose prompts are not known to be computed, in that order
        if lease.streamed and not lease.pending:
            return lease
    return None


def _whole(ledger: Ledger) -> list[Lease]:
    """What was sent there that does not stream, and has not been answered; the one that was sent first, first."""
    if ledger.streams == len(ledger.leases):
        return []
    return [x for x in ledger.leases.values() if not (x.streamed or x.pending or x.first_token_s is not None)]


def _oldest_whole(ledger: Ledger) -> Lease | None:
    whole = _whole(ledger)
    return whole[0] if whole else None


def _has_room(ledger: Ledger, now: float) -> bool:
    """Whether all that is there can run, so that nothing waits for a slot."""
    base = ledger.base
    return ledger.load(now) <= ledger.slots and (base is None or base.waiting == 0 or not ledger.credible(now))


def stands_still(ledger: Ledger, now: float) -> bool:
    """True if an engine shows nothing at all although it should.

    Streams are under way, its gauges answer, and nothing has changed in either for `FROZEN_S`. Judged whatever other
    endpoints do, and before the engine is warm. Answers that do not stream show nothing until they end, and gauges that
    are not to be had show nothing at all; neither is held against the engine.
    """
    if now < ledger.moved_s + FROZEN_S or now >= ledger.asked_s + ledger.stale_after_s:
        return False
    return any(x.streamed and not x.pending and now >= x.dispatched_s + FROZEN_S for x in ledger.leases.values())


def _gauges_tell(ledger: Ledger, now: float) -> bool:
    """Whether an engine's gauges tell if it works: counters that move, and about as many requests as we have there. Not
    when answers went on and a page that was asked for later did not move, or did not come although it was due; nor when
    something answers and has no page any more.
    """
    last, base, belief = ledger.last, ledger.base, ledger.belief
    if last is None or last.progress is None or belief.no_page or belief.doubt not in (None, Standing.GONE):
        return False
    overdue_s = ledger.asked_s + ledger.read_every_s
    if ledger.life_s > ledger.gauges_moved_s and not ledger.asked_s <= ledger.life_s <= overdue_s:
        return False
    if base is None or not ledger.credible(now):
        return True
    missing = ledger.own_at_reading - base.running - base.waiting
    return missing <= max(OTHERS_MIN, OTHERS_SHARE * ledger.own_at_reading)


def _overdue_s(ledger: Ledger, since_s: float, now: float) -> float:
    """For how long since then gauges should have shown something new: they were asked, or are overdue."""
    overdue_s = now - ledger.asked_s - ledger.read_every_s
    return max(0.0, ledger.asked_s - since_s, min(overdue_s, now - since_s))
