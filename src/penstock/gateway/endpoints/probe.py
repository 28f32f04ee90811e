"""Is an engine there, and does it serve? What an answer to a probe means, and what no answer means in the end.

Told apart are: *loading* (503 before it was ever well), *stopping* (503 after it was), *sleeping*, *down* (the
connection is refused), *hung* (the connection is accepted, and nothing comes back). Slow is not hung: an engine in a
long step answers late, and the time-outs of its requests judge that. An engine counts as hung only when several probes
in a row, each on a connection of its own, got nothing for longer than any step takes, and no answer under way moved
either.
"""

from __future__ import annotations

from penstock.core.endpoints.health import Presence
from penstock.gateway.endpoints.probe_client import ProbeAnswer
from penstock.http.client.pool import UpstreamErrorKind

HUNG_AFTER_S = 10.0  # an engine's HTTP side answers within milliseconds even while a step takes seconds
HUNG_PROBES_MIN = 3
LATE_S = 1.0  # a time-out that fires so much later than asked for was our own loop's fault
_NO_ANSWER = (UpstreamErrorKind.FIRST_BYTE_TIMEOUT, UpstreamErrorKind.IDLE_TIMEOUT)
_LOADING = b"loading"  # llama.cpp's 503


class Prober:
    """Judges one engine's presence, probe after probe."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.presence = Presence.UP  # until known otherwise: a request would find out as fast as a probe
        self._was_well = False  # True: answered well since it was last found down
        self._silent_since_s: float | None = None
        self._silent_probes = 0

    @property
    def silent(self) -> bool:
        """True if the last probe got no answer in time: probe again soon."""
        return self._silent_probes > 0

    def judged(self, answer: ProbeAnswer, *, asked_s: float, now: float, moved_s: float) -> Presence:
        """Returns the presence that follows from the answer to a probe, which is also kept in `presence`.

        `asked_s` is when the probe was sent, `moved_s` when an answer last showed that the engine works.
        """
        failure = answer.failure
        if failure is not None and failure.error.kind in _NO_ANSWER:
            self.presence = self._unanswered(asked_s, now, moved_s)
            return self.presence
        self._silent_since_s, self._silent_probes = None, 0
        if failure is not None:
            self._was_well = False
            self.presence = Presence.DOWN
        elif answer.status < 500:  # a 404 is an answer too
            self._was_well = True
            self.presence = Presence.UP
        elif _LOADING in answer.body[:1000].lower() or not self._was_well:
            self.presence = Presence.LOADING
        else:
            self.presence = Presence.STOPPING
        return self.presence

    def _unanswered(self, asked_s: float, now: float, moved_s: float) -> Presence:
        if now - asked_s > self._timeout_s + LATE_S:
            return self.presence
        if self._silent_since_s is None or moved_s > self._silent_since_s:
            self._silent_since_s, self._silent_probes = asked_s, 0
        self._silent_probes += 1
        lasted_s = now - self._silent_since_s
        is_silent = self._silent_probes >= HUNG_PROBES_MIN and lasted_s >= HUNG_AFTER_S
        return Presence.HUNG if is_silent and self.presence is Presence.UP else self.presence
