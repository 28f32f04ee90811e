"""Is the server at an address an engine that accepts our requests? (docs/decisions/0066)

A file server, a login page or an ingress without a route answers faster than any engine, so it always looks least
loaded and would attract all traffic. An endpoint therefore counts as an engine if there is evidence (it lists models,
its engine was recognised, or the operator set `engine` and `models`) or if it has answered well. Until then it gets
single requests. If the settings are the only evidence, it first gets as many at once as it has strikes left, until one
is answered or a second is over.

Answers that no engine gives (`Failure.NOT_AN_ENGINE`) are strikes, and a good answer clears them. `STRIKES_MAX` in a
row close the endpoint: it gets only requests that no other endpoint serves, one at a time and with pauses, and one more
chance after some minutes, so that no engine is locked out for good.

An engine that refuses the gateway's key also gets only requests that no other endpoint serves. A good answer or a list
of models ends that; every `KEY_S` one request that others could serve tries the key again.
"""

from __future__ import annotations

import math

STRIKES_MAX = 3
PAUSE_S = 1.0  # after a strike; doubles with each, so that clients soon see a misconfigured endpoint
PAUSE_S_MAX = 8.0  # an engine that starts to serve is found within that
CLOSED_S = 300.0  # until a request that others serve tries it; doubles with each failure
CLOSED_S_MAX = 3600.0
WORD_S = 1.0  # for the first answers, if the settings are the only evidence: a file server takes less
ERRORS_MAX = 16  # refusals in a row by an endpoint while its peers gave as many good answers
KEY_S = 10.0  # between two tries of a refused key: each costs one request a few milliseconds
ERROR_S = 0.1  # each faster than that; clients' own errors would reach its peers as well


class Proof:
    """The evidence that one endpoint is an engine, and the strikes against it."""

    __slots__ = (
        "_closings", "_errors", "_well_before", "answered", "by_word", "closed", "closed_until_s", "key_refused",
        "key_tried", "key_try_s", "strikes", "try_s", "vouched",
    )  # fmt: skip

    def __init__(self, *, vouched: bool = True, by_word: bool = False) -> None:
        self.vouched = vouched  #: there is evidence that it is an engine
        self.by_word = by_word  #: the settings are the only evidence
        self.answered = False  #: it has given a good answer since it was added or returned
        self.closed = False  #: it gets nothing that another endpoint serves
        self.closed_until_s = 0.0
        self.key_refused = False  #: it refuses the gateway's key
        self.key_tried = False  #: one request may try whether it still does
        self.key_try_s = 0.0
        self.strikes = 0  #: in a row
        self.try_s = 0.0  #: when the next request may try it
        self._closings = 0
        self._errors = 0  # refusals in a row, each fast
        self._well_before = 0  # good answers of all endpoints when that run began

    @property
    def stands(self) -> bool:
        """True if the endpoint counts as an engine that accepts our requests."""
        return self._is_engine and not self.key_refused

    @property
    def left_to_others(self) -> bool:
        """True if the endpoint gets only requests that no other endpoint serves."""
        return self.closed or (self.key_refused and not self.key_tried)

    @property
    def _is_engine(self) -> bool:
        return not self.closed and (self.vouched or self.answered)

    @property
    def settled(self) -> bool:
        """True if another good answer would change nothing."""
        if self.closed or self.key_refused:
            return False
        return self.answered or (self.vouched and not self.by_word)

    def first_until_s(self, leases: int, oldest_s: float) -> float:
        """Returns until when its first requests hold back further ones; minus infinity if they do not.

        `oldest_s` is when the oldest was sent.
        """
        if self.answered or not self.by_word or self.closed or leases < STRIKES_MAX - self.strikes:
            return -math.inf
        return oldest_s + WORD_S

    def waits(self, leases: int, now: float) -> bool:
        """Whether an unproven endpoint gets nothing now: it has a request under way, or pauses after a strike."""
        return not self._is_engine and (leases > 0 or now < self.try_s)

    def vouch(self, *, vouched: bool, by_word: bool = False) -> None:
        """Set the evidence. New evidence clears all strikes."""
        if vouched and not self.vouched:
            self.forgive()
        self.vouched, self.by_word = vouched, by_word

    def forgive(self) -> None:
        """Clear all strikes, and a refused key."""
        self.strikes = self._errors = self._closings = 0
        self.closed, self.try_s = False, 0.0
        self.key_refused = False

    def returned(self) -> None:
        """Start again, because another process may be there."""
        self.forgive()
        self.answered = False

    def succeeded(self) -> bool:
        """Note a good answer. Returns True if only now the endpoint counts as an engine that accepts our requests."""
        stood = self.answered or self.vouched
        if self.strikes or self._errors or self.closed or self.key_refused:
            stood = stood and not self.closed and not self.key_refused
            self.forgive()
        self.answered = True
        return not stood

    def struck(self, now: float) -> None:
        """Note an answer that no engine gives."""
        self.strikes = min(self.strikes + 1, 32)
        self.try_s = now + min(PAUSE_S * 2 ** (self.strikes - 1), PAUSE_S_MAX)
        if self.strikes >= STRIKES_MAX:
            self.close(now)

    def refuses_key(self, now: float) -> None:
        """Note that it refused the gateway's key."""
        self.key_refused, self.key_tried = True, False
        self.key_try_s = now + KEY_S

    def refused(self, took_s: float, *, well: int) -> bool:
        """Note an error that an engine may give. `well`: good answers of all endpoints so far.

        Returns True after `ERRORS_MAX` in a row, each faster than any computation, while other endpoints gave as many
        good answers: the fault is then more likely the endpoint's than its clients'.
        """
        if took_s >= ERROR_S:
            self._errors = 0
            return False
        if not self._errors:
            self._well_before = well
        self._errors += 1
        return self._errors >= ERRORS_MAX and well - self._well_before >= ERRORS_MAX

    def chance(self, now: float) -> bool:
        """Give it one more chance if it is time. Returns True if that opens it."""
        if self.key_refused and not self.key_tried and now >= self.key_try_s:
            self.key_tried = True
            return True
        if not self.closed or now < self.closed_until_s:
            return False
        self.closed, self.strikes = False, STRIKES_MAX - 1
        return True

    def close(self, now: float) -> None:
        """Close it: for some minutes it gets nothing that another endpoint serves."""
        self._errors = 0
        if not self.closed:
            self.closed_until_s = now + min(CLOSED_S * 2**self._closings, CLOSED_S_MAX)
            self._closings = min(self._closings + 1, 16)
        self.closed = True
