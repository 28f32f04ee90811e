"""May an endpoint be used at all: the probe's verdict, and what its answers say (docs/design.md#failure).

Three separate things. *Presence*: a probe, or a refused connection, found nobody there, or somebody who can't serve
now (loading, sleeping, stopping, hung); only a probe brings it back. *Ejected*: it answered several requests in a row
with errors; it is left out for a time that doubles with each ejection, and one good answer forgives all. *Held*: it
refused several requests in a row as busy (429, 503); it is left alone for a moment. A single refusal concerns only the
request that got it (`Entry.avoid`), unless it has a Retry-After: then nothing is sent there until that is over.

An endpoint that returns, from an ejection or from being away, is *on trial*: it gets a few requests, two more for each
answer that begins, and all it can take once it runs as many as it has slots, or some seconds are over. A restarted
engine begins with a quarter of its slots, because its probe is good; after an ejection it is two. After an ejection, a
failure on trial before any good answer ejects it again at once.

When too few of a model's endpoints are left, ejection is ignored ("panic", as in Envoy): a bad verdict on most of
them is more likely our mistake or a bad input than that many broken engines. Down endpoints stay out even then.
"""

from __future__ import annotations

from enum import StrEnum

from penstock.core.values.settings import HealthSettings

HOLD_AFTER = 2  # refusals in a row; one may be bad luck
HOLD_S = 0.1  # a few engine steps
HOLD_S_MAX = 5.0  # a restarting engine is found again by then
TOLD_HOLD_S_MAX = 60.0  # a Retry-After is obeyed for so long: a wrong one must not keep an engine away for an hour


TRIAL_LEASES = 2  # at first; each answer that begins allows so many more, so each batch is twice the one before
RETURN_PART = 4  # of its slots an engine that was away gets one in so many: whole answers begin only when they end

TRIAL_S = 10.0  # what an engine does to a crowd it does in the first seconds: compile, fill its caches, or die


class Presence(StrEnum):
    """What a probe found: one closed list."""

    UP = "up"
    DOWN = "down"  #: nobody there
    LOADING = "loading"  #: it says that it is not ready yet
    SLEEPING = "sleeping"  #: it was put to sleep, and its memory given away
    STOPPING = "stopping"  #: it ends what it runs and takes nothing new
    HUNG = "hung"  #: it accepts connections and answers none


class Health:
    """The verdict on one endpoint."""

    __slots__ = (
        "_ejections",
        "_failures",
        "_refusals",
        "_told_until_s",
        "ejected_until_s",
        "held_until_s",
        "presence",
        "settings",
        "trial",
        "trial_until_s",
        "up",
    )

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
        self._told_until_s = 0.0  # until when the engine asked to be left alone

    def succeeded(self) -> None:
        """Forgive all failures, because a request was answered as it should; a Retry-After still holds."""
        self._failures = self._ejections = self._refusals = 0
        self.held_until_s, self.ejected_until_s = self._told_until_s, 0.0

    def failed(self, now: float) -> None:
        """Count an error, or no answer at all.

        Enough in a row eject the endpoint, and so does one on trial after an ejection.
        """
        self._failures += 1
        on_trial = self._ejections > 0 and self.ejected_until_s <= now < self.trial_until_s
        if self._failures >= self.settings.eject_after or on_trial:
            self._failures = 0
            for_s = min(self.settings.eject_for_s * 2**self._ejections, self.settings.eject_for_s_max)
            self._ejections = min(self._ejections + 1, 32)
            self.ejected_until_s = now + for_s
            self._try_out(self.ejected_until_s)

    def answered(self, slots: int) -> None:
        """Note that an answer began.

        An endpoint on trial may take more; once that is as many as its `slots`, the trial is over.
        """
        if self.trial is not None:
            self.trial = self.trial + TRIAL_LEASES if self.trial + TRIAL_LEASES < slots else None

    def refused(self, now: float, retry_after_s: float = 0.0) -> None:
        """Count a request that was turned away as one too many. Several in a row hold the endpoint for a moment.

        `retry_after_s`: how long the engine asked to be left alone.
        """
        if retry_after_s > 0:
            self._told_until_s = max(self._told_until_s, now + min(retry_after_s, TOLD_HOLD_S_MAX))
        self._refusals = min(self._refusals + 1, 32)
        if self._refusals >= HOLD_AFTER:
            self.held_until_s = now + min(HOLD_S * 2 ** (self._refusals - HOLD_AFTER), HOLD_S_MAX)
        self.held_until_s = max(self.held_until_s, self._told_until_s)

    def probed(
        self, *, up: bool, presence: Presence = Presence.DOWN, now: float, leases: int = 0, slots: int = 0
    ) -> None:
        """Take in what a probe found; `presence` says how the endpoint is not up.

        One that returns is put on trial with a part of its `slots`, beside the `leases` that it has: answers went on
        while a probe went wrong.
        """
        if up and not self.up:
            self.returned(now, leases, slots)
        self.up = up
        self.presence = Presence.UP if up else presence

    def returned(self, now: float, leases: int = 0, slots: int = 0) -> None:
        """Put the endpoint on trial and forget its failures: a new process answers, or an old one came back.

        `leases`: of the old one, which are not part of the trial.
        """
        self._told_until_s = 0.0
        self.succeeded()
        self._try_out(now, leases + max(0, slots // RETURN_PART - TRIAL_LEASES))

    def on_trial(self, leases: int, now: float) -> bool:
        """True if the endpoint is on trial and has as many `leases` as it may have meanwhile."""
        return self.trial is not None and leases >= self.trial and now < self.trial_until_s

    def _try_out(self, from_s: float, leases: int = 0) -> None:
        self.trial, self.trial_until_s = TRIAL_LEASES + leases, from_s + TRIAL_S

    def ejected(self, now: float) -> bool:
        """True while the endpoint is left out because of its errors."""
        return now < self.ejected_until_s

    def held(self, now: float) -> bool:
        """True while the endpoint is left alone because it refused requests as busy."""
        return now < self.held_until_s
