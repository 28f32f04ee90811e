"""Does an engine work? Judged by its debts to our requests.

An engine owes each stream its first token within `max(1 s, 3 x the prefill time predicted)`, the streams that have
begun a token within `max(1 s, 20 decode steps)`, and each whole answer its end within twice the longest recent one.
Beginning another request, in dispatch order, starts the first clock again; any token stops the second. For whole
answers, a page that moved with earlier answers and now shows nothing new is the same evidence as missing tokens of
streams.

An engine whose oldest debt is overdue is stuck if another endpoint for the same models is not: if all are silent at
once, the fault is more likely ours or the network's. Its requests without a first token go back to the queue, and it
gets one request at a time, after 1 s, 2 s, 4 s …, until it begins one. Each verdict that proves wrong doubles the
patience, which halves again within a minute. Nothing is judged before the engine has begun an answer (it may load its
model), nor a first token after a minute without work; until it has begun eight, it gets more time (it may compile).
While its prefill speed is unknown, the prompts that it has answered and the time it worked on them stand for it.

Source: outlier detection as in Envoy, with time to first token in place of errors. It replaces silences learned per
kind, and first tokens counted by the page (docs/decisions/0091).
"""

from __future__ import annotations

import math
from typing import Final

from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.ledger import Ledger

CHECK_S: Final = 0.25  # between two looks: a quarter of the shortest patience
LATE_S = 0.5  # a look later than that shows that our own process stood still
PATIENCE_S = 1.0  # longer than a step of most engines, shorter than people tolerate
STEPS = 20.0
PREFILL_TIMES = 3.0  # of the predicted time
ANSWER_TIMES = 2.0  # of the longest recent whole answer
ANSWERS_MIN = 8  # begun before an engine gets no more time than others: it may compile for the first few
IDLE_S = 60.0  # shorter than the five minutes after which Ollama unloads a model
TOKENS_PER_S = 100.0  # prefill speed at least: a small CPU's, the slowest in use
UNSEEN_S = 0.5  # without news on a page: a few steps, and longer than a page takes to arrive
TRY_S = 1.0
TRY_S_MAX = 30.0
DISTRUST_MAX = 16.0
HALVES_S = 60.0


class Liveness:
    """Whether one engine process works. `look` is called every `CHECK_S` while requests are under way."""

    __slots__ = (
        "_answer_s", "_answers", "_begun_s", "_distrust", "_distrust_s", "_forgiven_s", "_looked_s", "_needs_begin",
        "_patience_s", "_prompt_tokens", "_tried_s", "_tries", "_unseen_s", "_worked_s", "_worked_until_s",
        "silent_since_s", "strain", "stuck_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.stuck_s: float | None = None  #: since when the engine counts as stuck
        self.silent_since_s = 0.0  #: when its silence began
        self.strain = 0.0  #: its longest silence as a share of our patience; above 1 is too long
        self._patience_s = PATIENCE_S
        self._needs_begin = False  # only a request that begins ends this silence
        self._answers = 0
        self._begun_s = -math.inf  # when the last request began, in dispatch order
        self._unseen_s = 0.0  # for how long the page has shown nothing new although whole answers are under way
        self._answer_s = 0.0  # the longest recent whole answer
        self._prompt_tokens = self._worked_s = 0.0  # of recent answers, and the time until they began, or ended
        self._worked_until_s = -math.inf
        self._looked_s = 0.0
        self._distrust = 1.0
        self._distrust_s = 0.0
        self._forgiven_s = -math.inf  # silences before count for nothing
        self._tries = 0
        self._tried_s = 0.0

    # --- facts ----------------------------------------------------------------------------------------------------

    def began(self, lease: Lease, ledger: Ledger, now: float) -> None:
        """An answer begins, or a whole one is there. Call it before the ledger learns of it."""
        if not lease.streamed:
            self._answer_s = max(self._answer_s, now - lease.dispatched_s)
        self._prompt_tokens += lease.prompt_tokens
        self._worked_s += now - max(lease.dispatched_s, self._worked_until_s)
        self._worked_until_s = now
        self._answers += 1
        oldest = _oldest_awaited(ledger)
        if lease.streamed or oldest is None or lease.dispatched_s >= oldest.dispatched_s:
            self._begun_s = now  # a whole answer sent before the oldest stream may have begun long ago
        if self.stuck_s is not None and (
            lease.streamed or not self._needs_begin or lease.dispatched_s >= self.silent_since_s
        ):
            self.moves(now)

    def moves(self, now: float) -> None:
        """Note that the engine works, if only because it sent an error: it is no longer stuck."""
        if self.stuck_s is not None:
            self.stuck_s, self._unseen_s = None, 0.0
            self._distrust, self._distrust_s = min(2.0 * self._distrusted(now), DISTRUST_MAX), now
            self.forgive(now)

    def forgive(self, now: float) -> None:
        """Leave out the silence until `now`, because it was ours or the network's."""
        self._forgiven_s = now

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def warm(self) -> bool:
        """Whether it has begun an answer, so that it can be judged."""
        return self._answers > 0

    @property
    def doubted(self) -> bool:
        """Whether its next page should be read soon: it is stuck, or the last page showed no progress."""
        return self.stuck_s is not None or self._unseen_s > 0.0

    def look(self, ledger: Ledger, now: float) -> None:
        """Measure the engine's silence as `strain`; a stuck engine that has moved since is no longer stuck."""
        kept = math.exp2((self._looked_s - now) / HALVES_S)
        self._looked_s = now
        self._answer_s *= kept
        self._prompt_tokens *= kept
        self._worked_s *= kept
        self.strain = 0.0
        moved_s = ledger.moved_s
        whole = _oldest_whole(ledger)
        decoding = len(ledger.leases) > ledger.reserved
        if self.stuck_s is not None and not self._needs_begin and moved_s > self.stuck_s and (decoding or whole):
            self.moves(now)
        by_page = whole is not None and _page_tells(ledger)
        self._unseen_s = _unseen_s(ledger, whole, now) if by_page and whole is not None else 0.0
        if not self.warm:
            return
        patience_s = self._distrusted(now) * max(PATIENCE_S, STEPS * ledger.speed.step_s, self._prefill_s(ledger))
        if decoding:
            self._silent(moved_s, patience_s, now)
        stream = _oldest_awaited(ledger)
        if stream is not None and _has_room(ledger, now) and (decoding or moved_s > stream.dispatched_s - IDLE_S):
            since_s = max(stream.dispatched_s, self._begun_s)
            goes_on = decoding and moved_s > max(since_s, now - patience_s / 2)
            self._silent(since_s, patience_s, now, needs_begin=goes_on)
        if whole is None or moved_s <= whole.dispatched_s - IDLE_S:
            return
        if not by_page:
            self._silent(max(whole.dispatched_s, ledger.life_s), self._answer_due_s(ledger, now), now, needs_begin=True)
        elif self._unseen_s >= UNSEEN_S:
            self._silent(max(whole.dispatched_s, moved_s), patience_s, now)

    def found_stuck(self, now: float) -> None:
        """Note the verdict that the engine is stuck."""
        self.stuck_s = self._tried_s = now
        self._tries = 0

    def tried_s(self, ledger: Ledger) -> float:
        """Returns when one request may go to the stuck engine; infinity while the last one has not begun."""
        assert self.stuck_s is not None
        last = next(reversed(ledger.leases.values()), None)
        if last is not None and last.dispatched_s > self.stuck_s and last.first_token_s is None and not last.pending:
            return math.inf
        return self._tried_s + min(TRY_S * float(1 << self._tries), TRY_S_MAX)

    def closed(self, ledger: Ledger, now: float) -> bool:
        """True if nothing may go to the engine now because it is stuck."""
        return self.stuck_s is not None and now < self.tried_s(ledger)

    def gives_up(self, lease: Lease, ledger: Ledger, now: float) -> bool:
        """True if a request without a first byte at the stuck engine is better sent elsewhere.

        A request that the engine has worked on for long gets as long again, because all of that would be lost.
        """
        since_s = max(lease.dispatched_s, self.silent_since_s, self._forgiven_s)
        invested_s = max(0.0, self.silent_since_s - lease.dispatched_s)
        prompt_s = PREFILL_TIMES * lease.prompt_tokens / self._speed(ledger)
        begun = self._needs_begin and not lease.streamed and lease.dispatched_s < self.silent_since_s
        patience_s = self._answer_due_s(ledger, now) if begun else self._patience_s
        return now - since_s >= max(patience_s, invested_s, prompt_s)

    def gave_up(self, lease: Lease, now: float) -> None:
        """Note that a request was moved elsewhere. If it was a probe, the next one comes later."""
        if self.stuck_s is not None and lease.dispatched_s > self.stuck_s:
            self._tries = min(self._tries + 1, 16)
            self._tried_s = now

    # --- patience -------------------------------------------------------------------------------------------------

    def _silent(self, since_s: float, patience_s: float, now: float, *, needs_begin: bool = False) -> None:
        since_s = max(since_s, self._forgiven_s)
        strain = (now - since_s) / patience_s
        if strain > self.strain:
            self.strain = strain
            if self.stuck_s is None:
                self.silent_since_s, self._needs_begin, self._patience_s = since_s, needs_begin, patience_s

    def _prefill_s(self, ledger: Ledger) -> float:
        awaited = [x.prompt_tokens for x in ledger.leases.values() if x.first_token_s is None and not x.pending]
        return PREFILL_TIMES * max(awaited, default=0) / self._speed(ledger)

    def _answer_due_s(self, ledger: Ledger, now: float) -> float:
        whole = [x for x in ledger.leases.values() if _is_whole(x)]
        predicted_s = sum([x.prompt_tokens for x in whole]) / self._speed(ledger)
        predicted_s += max([x.output_tokens for x in whole], default=0) * ledger.speed.step_s
        return self._distrusted(now) * max(PATIENCE_S, ANSWER_TIMES * max(self._answer_s, predicted_s))

    def _speed(self, ledger: Ledger) -> float:
        """Prompt tokens per second, rather too few."""
        if ledger.speed.rate_known:
            return ledger.speed.rate
        return max(TOKENS_PER_S, self._prompt_tokens / self._worked_s if self._worked_s > 0.0 else 0.0)

    def _distrusted(self, now: float) -> float:
        few = ANSWERS_MIN / max(1, self._answers)
        return max(1.0, few, self._distrust * math.exp2((self._distrust_s - now) / HALVES_S))


def _is_whole(lease: Lease) -> bool:
    return not (lease.streamed or lease.pending or lease.first_token_s is not None)


def _oldest_whole(ledger: Ledger) -> Lease | None:
    """The whole answer under way that was sent first."""
    if ledger.streams == len(ledger.leases):
        return None
    return next((lease for lease in list(ledger.leases.values()) if _is_whole(lease)), None)


def _oldest_awaited(ledger: Ledger) -> Lease | None:
    """The stream without a first token that was sent first."""
    for lease in ledger.prefill.leases.values():  # in dispatch order
        if lease.streamed and not lease.pending:
            return lease
    return None


def _has_room(ledger: Ledger, now: float) -> bool:
    """Whether the engine can run all of its requests, so that none waits for a slot."""
    base = ledger.page.base
    return ledger.load(now) <= ledger.slots and (base is None or base.waiting == 0 or not ledger.page.credible(now))


def _page_tells(ledger: Ledger) -> bool:
    """Whether the page has counters, and has moved with the answers so far: within a moment of the last one."""
    if ledger.page.last is None or ledger.page.last.progress is None or ledger.page.no_page:
        return False
    return -math.inf < ledger.life_s <= ledger.page.moved_s + max(ledger.page.read_every_s, UNSEEN_S)


def _unseen_s(ledger: Ledger, whole: Lease, now: float) -> float:
    """Returns the time without expected news on the page: until it was last read, or is overdue."""
    since_s = max(whole.dispatched_s, ledger.moved_s)
    return max(0.0, max(ledger.page.asked_s, now - ledger.page.read_every_s) - since_s) if now > since_s else 0.0
