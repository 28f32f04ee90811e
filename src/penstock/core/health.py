"""May an endpoint be used at all: the probe's verdict, and what its answers say (DESIGN §4.11).

Three separate things. *Down*: a probe, or a refused connection, found nobody there; only a probe brings it back.
*Ejected*: it answered several requests in a row with errors; it is left out for a time that doubles with each
ejection, and one good answer forgives all. *Held*: it refused several requests in a row as busy (429, 503); it is
left alone for a moment. A single refusal concerns only the request that got it (`Entry.avoid`).

When too few of a model's endpoints are left, ejection is ignored ("panic", as in Envoy): a bad verdict on most of
them is more likely our mistake or a bad input than that many broken engines. Down endpoints stay out even then.
"""

from __future__ import annotations

import msgspec

HOLD_AFTER = 2  # refusals in a row; one may be bad luck
HOLD_S = 0.1  # a few engine steps
HOLD_S_MAX = 5.0  # a restarting engine is found again by then


class HealthSettings(msgspec.Struct, frozen=True):
    """When an endpoint is taken out, and for how long (seconds)."""

    eject_after: int = 3
    eject_for_s: float = 1.0
    eject_for_s_max: float = 30.0
    panic_threshold: float = 0.5


class Health:
    """The verdict on one endpoint."""

    __slots__ = ("_ejections", "_failures", "_refusals", "ejected_until_s", "held_until_s", "settings", "up")

    def __init__(self, settings: HealthSettings, *, up: bool) -> None:
        self.settings = settings
        self.up = up
        self.ejected_until_s = 0.0
        self.held_until_s = 0.0
        self._failures = 0
        self._ejections = 0
        self._refusals = 0

    def succeeded(self) -> None:
        """A request was answered as it should."""
        self._failures = self._ejections = self._refusals = 0
        self.held_until_s = self.ejected_until_s = 0.0

    def failed(self, now: float) -> None:
        """A request got an error or no answer."""
        self._failures += 1
        if self._failures >= self.settings.eject_after:
            self._failures = 0
            for_s = min(self.settings.eject_for_s * 2**self._ejections, self.settings.eject_for_s_max)
            self._ejections = min(self._ejections + 1, 32)
            self.ejected_until_s = now + for_s

    def refused(self, now: float) -> None:
        """A request was turned away as one too many."""
        self._refusals = min(self._refusals + 1, 32)
        if self._refusals >= HOLD_AFTER:
            self.held_until_s = now + min(HOLD_S * 2 ** (self._refusals - HOLD_AFTER), HOLD_S_MAX)

    def probed(self, *, up: bool) -> None:
        """A probe came back. An endpoint that returns starts with a clean slate."""
        if up and not self.up:
            self.succeeded()
        self.up = up

    def ejected(self, now: float) -> bool:
        return now < self.ejected_until_s

    def held(self, now: float) -> bool:
        return now < self.held_until_s
