"""Is what answers at an address an engine at all? (docs/decisions/0066)

A file server, a login page or an ingress without a route answers faster than any engine could, and whoever looks for
the least loaded endpoint finds it idle: it would swallow all traffic. So an endpoint is an engine when something
vouches for it (it lists models, its engine was recognised, or the operator wrote `engine: openai` and its `models`),
or when it has answered well. Until then it is tried with one request at a time. Where the operator's word is all that
vouches for it, it gets at first as many at a time as it has strikes left, until one is answered or a moment is over: so
a file server that was taken for an engine by mistake gets no more requests than any other, and an engine hardly waits.

Answers that no engine gives (`Failure.NOT_AN_ENGINE`) are strikes. A good answer forgives them; so many in a row close
the endpoint, whatever vouched for it: from then on it is sent nothing that another endpoint serves. What only it may
serve is still tried there, one request at a time and with pauses, and after some minutes it gets one more chance in any
case: an honest engine that was judged too early is never locked out for good.

An engine that refuses the gateway's key is an engine, but of no use until its operator writes another key. Its work
is left to others in the same way; a request that only it may serve is sent there, so its caller gets an answer at once,
and a key that is accepted again is noticed by the first request. The state ends with a good answer, or when the engine
lists its models again. Every `KEY_S` a request that others would serve is tried there, because a key may be refused for
requests alone.
"""

from __future__ import annotations

import math

STRIKES_MAX = 3
PAUSE_S = 1.0  # after a strike; doubles with each, so that callers hear of a mistake rather than of our patience
PAUSE_S_MAX = 8.0  # an engine that begins to serve at last is found within that
CLOSED_S = 300.0  # until it is tried with a request that others would serve; doubles each time it fails
CLOSED_S_MAX = 3600.0
WORD_S = 1.0  # that the first requests are waited for, where only the operator vouches: a file server takes less
ERRORS_MAX = 16  # refusals in a row by an endpoint whose peers answered as many well meanwhile
KEY_S = 10.0  # between two tries of a refused key: each costs one request a few milliseconds
ERROR_S = 0.1  # each faster than that: a chain of honest errors is told apart by what its peers did


class Proof:
    """What speaks for an endpoint, and against it."""

    __slots__ = (
        "_closings",
        "_errors",
        "_well_before",
        "answered",
        "by_word",
        "closed",
        "closed_until_s",
        "key_refused",
        "key_tried",
        "key_try_s",
        "strikes",
        "try_s",
        "vouched",
    )

    def __init__(self, *, vouched: bool = True, by_word: bool = False) -> None:
        self.vouched = vouched  #: something says that it is an engine
        self.by_word = by_word  #: and that is the operator alone
        self.answered = False  #: it gave a good answer since it came, or came back
        self.closed = False  #: seen through: it is sent nothing that another serves
        self.closed_until_s = 0.0
        self.key_refused = False  #: it refuses the gateway's key
        self.key_tried = False  #: one more request may find out whether it still does
        self.key_try_s = 0.0
        self.strikes = 0  #: in a row
        self.try_s = 0.0  #: not before may a request prove it
        self._closings = 0
        self._errors = 0  # refusals in a row, each fast
        self._well_before = 0  # good answers of all endpoints when that row began

    @property
    def stands(self) -> bool:
        """True if the endpoint is taken for an engine that accepts our requests."""
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
        """True if another good answer would tell nothing new."""
        return self.stands and (self.answered or not self.by_word)

    def first_until_s(self, leases: int, oldest_s: float) -> float:
        """Until when it gets nothing because its first requests are waited for; `oldest_s`: when the oldest was sent.

        Minus infinity: it gets more.
        """
        if self.answered or not self.by_word or self.closed or leases < STRIKES_MAX - self.strikes:
            return -math.inf
        return oldest_s + WORD_S

    def waits(self, leases: int, now: float) -> bool:
        """Whether it gets nothing now because it has yet to prove itself: one request at a time, and with pauses."""
        return not self._is_engine and (leases > 0 or now < self.try_s)

    def vouch(self, *, vouched: bool, by_word: bool = False) -> None:
        """Somebody vouches for it, or nobody any more. A word that is new forgives what was before."""
        if vouched and not self.vouched:
            self.forgive()
        self.vouched, self.by_word = vouched, by_word

    def forgive(self) -> None:
        """Forget what speaks against it."""
        self.strikes = self._errors = self._closings = 0
        self.closed, self.try_s = False, 0.0
        self.key_refused = False

    def returned(self) -> None:
        """Another process may be there: nothing of before counts."""
        self.forgive()
        self.answered = False

    def succeeded(self) -> None:
        """It answered as an engine does."""
        if self.strikes or self._errors or self.closed or self.key_refused:
            self.forgive()
        self.answered = True

    def struck(self, now: float) -> None:
        """It answered as no engine does."""
        self.strikes = min(self.strikes + 1, 32)
        self.try_s = now + min(PAUSE_S * 2 ** (self.strikes - 1), PAUSE_S_MAX)
        if self.strikes >= STRIKES_MAX:
            self.close(now)

    def refuses_key(self, now: float) -> None:
        """It refused the gateway's key."""
        self.key_refused, self.key_tried = True, False
        self.key_try_s = now + KEY_S

    def refused(self, took_s: float, *, well: int) -> bool:
        """It answered with an error that an engine may give. `well`: good answers of all endpoints so far.

        Returns True after many of them in a row, each faster than anything can be computed, while other endpoints gave
        as many good answers: then it is more likely the endpoint than its callers.
        """
        if took_s >= ERROR_S:
            self._errors = 0
            return False
        if not self._errors:
            self._well_before = well
        self._errors += 1
        return self._errors >= ERRORS_MAX and well - self._well_before >= ERRORS_MAX

    def chance(self, now: float) -> bool:
        """Give it one more chance, if it is time. Returns True if that opens it."""
        if self.key_refused and not self.key_tried and now >= self.key_try_s:
            self.key_tried = True
            return True
        if not self.closed or now < self.closed_until_s:
            return False
        self.closed, self.strikes = False, STRIKES_MAX - 1
        return True

    def close(self, now: float) -> None:
        """Send it nothing more that another serves, for some minutes."""
        self._errors = 0
        if not self.closed:
            self.closed_until_s = now + min(CLOSED_S * 2**self._closings, CLOSED_S_MAX)
            self._closings = min(self._closings + 1, 16)
        self.closed = True
