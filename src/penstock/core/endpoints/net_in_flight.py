"""What did we send to an endpoint, and what ended there, since its last reading was asked for?

Dispatches and ends are kept as running totals by when they happened, so that a reading that was asked for at some time
finds the totals of then by bisection: hundreds of events between two readings of a busy endpoint cost no more to forget
than a few.
"""

from __future__ import annotations

EVENTS_MAX = 8192  # remembered against one reading; past that the reading is too old to use
FORGOTTEN_AT_ONCE = 1024  # of those that are too many: one at a time would move all others each time


class NetInFlight:
    """Leases and tokens that came since a moment, less those that went."""

    __slots__ = ("_leases", "_leases_before", "_tokens", "_tokens_before", "_when", "leases", "tokens")

    def __init__(self) -> None:
        self.leases = 0  #: net, since that moment
        self.tokens = 0
        self._leases_before = 0  # the totals at that moment
        self._tokens_before = 0
        self._when: list[float] = []
        self._leases: list[int] = []  # totals, each as of then
        self._tokens: list[int] = []

    def __len__(self) -> int:
        """How many events are remembered."""
        return len(self._when)

    def note(self, when: float, leases: int, tokens: int) -> bool:
        """Count `leases` and `tokens` that came, or went if negative.

        Returns False if so much happened since the moment counted from that the first of it is forgotten.
        """
        self.leases += leases
        self.tokens += tokens
        self._when.append(when)
        self._leases.append(self._leases_before + self.leases)
        self._tokens.append(self._tokens_before + self.tokens)
        if len(self._when) <= EVENTS_MAX:
            return True
        self._forget(FORGOTTEN_AT_ONCE)
        return False

    def begin(self, at_s: float) -> None:
        """Count from the moment `at_s` on."""
        self._forget(self._events_before(at_s))

    def before(self, at_s: float) -> int:
        """Returns how many leases, net, had come before the moment `at_s`."""
        events = self._events_before(at_s)
        return self._leases[events - 1] - self._leases_before if events else 0

    def _events_before(self, at_s: float) -> int:
        when, low, high = self._when, 0, len(self._when)
        while low < high:
            middle = (low + high) // 2
            if when[middle] < at_s:
                low = middle + 1
            else:
                high = middle
        return low

    def _forget(self, events: int) -> None:
        if not events:
            return
        leases, tokens = self._leases_before + self.leases, self._tokens_before + self.tokens
        self._leases_before, self._tokens_before = self._leases[events - 1], self._tokens[events - 1]
        self.leases, self.tokens = leases - self._leases_before, tokens - self._tokens_before
        del self._when[:events], self._leases[:events], self._tokens[:events]
