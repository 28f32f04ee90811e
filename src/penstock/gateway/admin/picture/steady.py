"""The cause that is shown of a model, held for some seconds: nobody can read two that alternate.

With mixed requests the first in line changes many times a second, and its cause with it. A cause of load stays shown
until it has not been the true one for `HOLD_S`, but only while it holds at some endpoint: the numbers beside it are
always those of this instant. Faults and operators' orders are shown at once.
"""

from __future__ import annotations

import msgspec

from penstock.core.explain.snapshot import ModelSnapshot, Snapshot
from penstock.core.values.catalogue import Cause
from penstock.gateway.admin.why import ROOM_LEFT, cause_now

HOLD_S = 4.0
_LOAD = frozenset(
    {
        *(Cause.SLOTS_FULL, Cause.ENGINE_QUEUE, Cause.PREFILL_FULL, Cause.KV_FULL, Cause.PACE),
        *(Cause.RETURNING, Cause.HELD),
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
        if before.cause == model.cause or now - true_s >= HOLD_S or not _still(before.cause, model):
            self._shown[model.name] = (model, now)
            return model
        return msgspec.structs.replace(model, cause=before.cause)


def _still(cause: Cause | None, model: ModelSnapshot) -> bool:
    """Whether a cause may stay beside the model's present numbers: it keeps some endpoint closed, as the present one
    does, or both leave room to others.
    """
    return (cause in _LOAD and model.cause in _LOAD and cause in model.closed) or {cause, model.cause} <= ROOM_LEFT
