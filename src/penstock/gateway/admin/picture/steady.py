"""The cause that is shown of a model, held for some seconds: nobody can read two that alternate.

With mixed requests the first in line changes many times a second, and its cause with it. A cause of load stays shown
until it has not been the true one for `HOLD_S`; faults and operators' orders are shown at once.
"""

from __future__ import annotations

import msgspec

from penstock.core.explain.snapshot import ModelSnapshot, Snapshot
from penstock.core.values.catalogue import Cause
from penstock.gateway.admin.why import cause_now

HOLD_S = 4.0
_LOAD = frozenset(
    {
        *(Cause.SLOTS_FULL, Cause.ENGINE_QUEUE, Cause.PREFILL_FULL, Cause.KV_FULL, Cause.PACE),
        *(Cause.CLASS_SHARE, Cause.TENANT_CAP, Cause.AFFINITY, Cause.TURN, Cause.RETURNING, Cause.HELD),
    }
)


class Steady:
    """The shown cause of each model, with the time it was last true. Bounded by the snapshot's models."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[ModelSnapshot, float]] = {}

    def look(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with the causes to show, of models and of the requests that wait for the same."""
        models = [self._held(model, now) for model in snapshot.models]
        same = {
            (true.name, true.head.band, true.cause): cause_now(held)
            for true, held in zip(snapshot.models, models, strict=True)
            if true.head is not None
        }
        waiting = [
            msgspec.structs.replace(row, cause=same.get((row.model, row.band, row.cause), row.cause))
            for row in snapshot.requests.waiting
        ]
        names = {model.name for model in models if model.cause is not None}
        self._shown = {name: shown for name, shown in self._shown.items() if name in names}
        requests = msgspec.structs.replace(snapshot.requests, waiting=waiting)
        return msgspec.structs.replace(snapshot, models=models, requests=requests)

    def _held(self, model: ModelSnapshot, now: float) -> ModelSnapshot:
        before, true_s = self._shown.get(model.name, (model, now))
        passing = model.cause != before.cause and {model.cause, before.cause} <= _LOAD
        if not passing or now - true_s >= HOLD_S:
            self._shown[model.name] = (model, now)
            return model
        return msgspec.structs.replace(
            model,
            cause=before.cause,
            cause_endpoints=before.cause_endpoints,
            head=before.head,
            kv_usage_min=before.kv_usage_min,
            kv_usage_max=before.kv_usage_max,
        )
