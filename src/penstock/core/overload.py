"""How long would a request wait: behind Retry-After, and behind refusing at once what can't be served in time.

Little's law backwards: the work ahead, divided by the rate at which work has been taken up lately. Ahead of a request
is what its own flow has waiting, stretched by the share that others take meanwhile (weights of active flows over its
own, per level), plus what its flow is in debt; but never more than all that waits in its band. Work of higher bands
comes on top. Rates are kept per model, and only over the time since a queue for it formed: before, dispatches follow
arrivals and say nothing of what the engines could do; until there is enough of that, slots over the time a lease lasts
say it.
"""

from __future__ import annotations

from penstock.core.band import Band
from penstock.core.flow import Entry
from penstock.core.quantile import RecentQuantile
from penstock.core.rate import Rate

RATE_MIN = 1e-3  # of work per second; below, nothing was sent for minutes
RATE_TRUSTED_S = 3.0  # of queueing; less holds too few dispatches
LEARNING_RATE = 0.05  # of what a lease is like
FIRST_TOKEN_S = 0.5  # dispatch to first token, until measured
MODELS_MAX = 1_000  # whose rates are remembered
RETRY_AFTER_UNKNOWN_S = 5.0  # nothing was ever dispatched: an engine that loads, or one that is gone
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0  # SDKs ignore longer ones


class _Model:
    """What was learned of one model's endpoints."""

    __slots__ = ("drain", "first_token_s", "lease_s", "work")

    def __init__(self) -> None:
        self.drain = Rate()
        self.first_token_s = RecentQuantile(0.95, FIRST_TOKEN_S)
        self.lease_s: float | None = None
        self.work = 0.0  # per lease


class Forecast:
    """Learns how fast work is taken up, and says how long a request will wait."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def dispatched(self, model: str, work: float, *, queued: bool, now: float) -> None:
        """Work was sent. `queued`: others for the same model wait."""
        learned = self._of(model)
        if not queued:
            if learned.drain.measured:
                learned.drain = Rate()
        else:
            learned.drain.note(now, work)

    def resumed(self, model: str | None) -> None:
        """Sending goes on after a pause, for a model or for all: what was measured meanwhile says nothing."""
        for learned in self._models.values() if model is None else filter(None, [self._models.get(model)]):
            learned.drain = Rate()

    def first_token(self, model: str, after_s: float) -> None:
        """A first token came that long after the dispatch."""
        self._of(model).first_token_s.add(after_s)

    def lease_ended(self, model: str, work: float, after_s: float) -> None:
        """A request was at an endpoint for that long."""
        learned = self._of(model)
        if learned.lease_s is None:
            learned.lease_s, learned.work = after_s, work
        learned.lease_s += LEARNING_RATE * (after_s - learned.lease_s)
        learned.work += LEARNING_RATE * (work - learned.work)

    def first_token_s(self, model: str) -> float:
        """From dispatch to first token, for 95 in 100."""
        learned = self._models.get(model)
        return learned.first_token_s.value if learned is not None else FIRST_TOKEN_S

    def wait_s(
        self, entry: Entry, bands: list[Band], slots: int, now: float, *, ahead: float | None = None
    ) -> float | None:
        """Seconds until a request is sent that has so much work `ahead` in its flow; None while unknown.

        By default it joins, or has joined, its flow's end.
        """
        rate = self._rate(entry.request.model, slots, now)
        return None if rate is None else _work_ahead(entry, bands, ahead) / rate

    def _rate(self, model: str, slots: int, now: float) -> float | None:
        learned = self._models.get(model)
        if learned is None:
            return None
        drain = learned.drain.per_s(now)
        if drain > RATE_MIN and learned.drain.elapsed_s(now) >= RATE_TRUSTED_S:
            return drain
        if learned.lease_s is not None and learned.lease_s > 0 and learned.work > 0 and slots > 0:
            return slots * learned.work / learned.lease_s
        return drain if drain > RATE_MIN else None

    def _of(self, model: str) -> _Model:
        learned = self._models.get(model)
        if learned is None:
            if len(self._models) >= MODELS_MAX:
                del self._models[next(iter(self._models))]
            learned = self._models[model] = _Model()
        return learned


def _work_ahead(entry: Entry, bands: list[Band], ahead: float | None) -> float:
    model, node = entry.request.model, entry.node
    assert node is not None
    own = entry.work if entry.seq in bands[entry.request.band].entries else 0.0
    higher = sum(band.tree.root.work.get(model, 0.0) for band in bands[: entry.request.band])
    in_band = bands[entry.request.band].tree.root.work.get(model, 0.0) - own
    if ahead is None:
        ahead = node.work.get(model, 0.0) - own
    while node.parent is not None:
        parent = node.parent
        active = parent.active_weight + (0.0 if node.active else node.weight)
        ahead = (ahead / node.weight + max(0.0, node.tag - parent.virtual)) * active
        node = parent
    return higher + max(0.0, min(ahead, in_band))


def retry_after_s(wait_s: float | None, jitter: float) -> float:
    """What to tell a refused caller. `jitter` in 0..1 spreads those who were refused together."""
    seconds = RETRY_AFTER_UNKNOWN_S if wait_s is None else wait_s
    return min(max(seconds * (1.0 + 0.25 * jitter), RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)
