"""May an endpoint be used: by its probes, and by the ends of its requests (docs/design.md#failure).

*Presence*: a probe or a refused connection found no engine, or one that cannot serve now (loading, sleeping, paused,
scaling, stopping, hung); only a probe brings it back. *Ejected*: several requests in a row failed; the endpoint is left
out for a time that doubles with each ejection, and one good answer clears that. *Held*: it refused several requests in
a row as busy (429, 503), or sent Retry-After, and gets nothing for a moment. A single refusal concerns only its own
request.

An endpoint that returns is *on trial*: it gets a few requests, and two more for each answer that begins, until it runs
as many as it has slots or some seconds have passed. A restarted engine begins with a quarter of its slots, because its
probe is good; after an ejection it begins with two, and a failure before any good answer ejects it again.

If too few endpoints of a model are left, ejection is ignored ("panic", as in Envoy): it is more likely that our
verdict or an input is bad than that many engines are broken. Endpoints that are down stay out.
"""

from __future__ import annotations

from enum import StrEnum

from penstock.core.values.settings import HealthSettings

HOLD_AFTER = 2  # refusals in a row; one may be bad luck
HOLD_S = 0.1  # a few engine steps
HOLD_S_MAX = 5.0  # a restarting engine is found again by then
TOLD_HOLD_S_MAX = 60.0  # a longer Retry-After is cut: a wrong one must not exclude an engine for an hour
TRIAL_LEASES = 2  # at first, and more for each answer that begins: the load doubles with each round
RETURN_PART = 4  # a returned engine gets one slot in so many: whole answers begin only when they end
TRIAL_S = 10.0  # an engine compiles, fills its caches or dies in its first seconds


class Presence(StrEnum):
    """The result of a probe."""

    UP = "up"
    DOWN = "down"  #: no connection
    LOADING = "loading"  #: it reports that it is not ready
    SLEEPING = "sleeping"  #: it was put to sleep and has freed its memory
    PAUSED = "paused"  #: it takes requests and starts none, as while its weights are changed
    SCALING = "scaling"  #: it starts or ends engines of its own, and refuses requests meanwhile
    STOPPING = "stopping"  #: it finishes its requests and accepts no new ones
    HUNG = "hung"  #: it accepts connections and does not answer


class Health:
    """The verdict on one endpoint."""

    __slots__ = (
        "_ejections", "_failures", "_refusals", "_told_until_s", "ejected_until_s", "held_until_s", "presence",
        "settings", "trial", "trial_until_s", "up",
    )  # fmt: skip

    def __init__(self, settings: HealthSettings, *, up: bool) -> None:
        self.settings = settings
        self.presence = Presence.UP if up else Presence.DOWN
        self.up = up
        self.trial: int | None = None  #: leases it may hold while it is on trial
        self.trial_until_s = 0.0
        self.ejected_until_s = 0.0
        self.held_until_s = 0.0
        self._failures = 0
        self._ejections = 0
        self._refusals = 0
        self._told_until_s = 0.0  # by Retry-After

    def succeeded(self) -> None:
        """Clear all failures after a good answer; a Retry-After still holds."""
        self._failures = self._ejections = self._refusals = 0
        self.held_until_s, self.ejected_until_s = self._told_until_s, 0.0

    def failed(self, now: float) -> None:
        """Count a failure. Enough in a row eject the endpoint, and so does one on trial after an ejection."""
        self._failures += 1
        on_trial = self._ejections > 0 and self.ejected_until_s <= now < self.trial_until_s
        if self._failures >= self.settings.eject_after or on_trial:
            self._failures = 0
            for_s = min(self.settings.eject_for_s * 2**self._ejections, self.settings.eject_for_s_max)
            self._ejections = min(self._ejections + 1, 32)
            self.ejected_until_s = now + for_s
            self._try_out(self.ejected_until_s)

    def answered(self, slots: int) -> None:
        """Note that an answer began: an endpoint on trial gets more, until it has all its `slots`."""
        if self.trial is not None:
            self.trial = self.trial + TRIAL_LEASES if self.trial + TRIAL_LEASES < slots else None

    def refused(self, now: float, retry_after_s: float = 0.0) -> None:
        """Count a request refused as busy, with the engine's `retry_after_s`. Several in a row hold the endpoint."""
        if retry_after_s > 0:
            self._told_until_s = max(self._told_until_s, now + min(retry_after_s, TOLD_HOLD_S_MAX))
        self._refusals = min(self._refusals + 1, 32)
        if self._refusals >= HOLD_AFTER:
            self.held_until_s = now + min(HOLD_S * 2 ** (self._refusals - HOLD_AFTER), HOLD_S_MAX)
        self.held_until_s = max(self.held_until_s, self._told_until_s)

    def probed(
        self, *, up: bool, presence: Presence = Presence.DOWN, now: float, leases: int = 0, slots: int = 0
    ) -> None:
        """Take in the result of a probe.

        An endpoint that returns is put on trial with a part of its `slots`, in addition to the `leases` it holds.
        """
        if up and not self.up:
            self.returned(now, leases, slots)
        self.up = up
        self.presence = Presence.UP if up else presence

    def returned(self, now: float, leases: int = 0, slots: int = 0) -> None:
        """Put the endpoint on trial and clear its failures. `leases` from before are not part of the trial."""
        self._told_until_s = 0.0
        self.succeeded()
        self._try_out(now, leases + max(0, slots // RETURN_PART - TRIAL_LEASES))

    def on_trial(self, leases: int, now: float) -> bool:
        """True if the endpoint is on trial and has as many `leases` as it may have meanwhile."""
        return self.trial is not None and leases >= self.trial and now < self.trial_until_s

    def _try_out(self, from_s: float, leases: int = 0) -> None:
        self.trial, self.trial_until_s = TRIAL_LEASES + leases, from_s + TRIAL_S

    def ejected(self, now: float) -> bool:
        """True while the endpoint is left out after failures."""
        return now < self.ejected_until_s

    def held(self, now: float) -> bool:
        """True while the endpoint gets nothing because it refused requests as busy."""
        return now < self.held_until_s
