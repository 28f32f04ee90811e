"""What have operators stopped: of what is paused nothing is sent, of what is drained nothing new is let in.

Each for one model or for all. Who waits keeps its place and its time limits meanwhile. That an endpoint is drained is
the endpoint's own matter (`Endpoint.drained`).
"""

from __future__ import annotations

STOPPED_MAX = 1_000  # models named by operators; models may be paused before any endpoint serves them


class TooManyStoppedError(ValueError):
    """So many models are stopped that no further one can be: stop all."""


class OperatorPauses:
    """Models that are stopped; None stands for all."""

    __slots__ = ("drained", "paused")

    def __init__(self) -> None:
        self.paused: dict[str | None, None] = {}
        self.drained: dict[str | None, None] = {}

    def sends(self, model: str) -> bool:
        """True if requests for the model may be sent."""
        return not self.paused or (model not in self.paused and None not in self.paused)

    def admits(self, model: str) -> bool:
        """True if new requests for the model are let in."""
        return not self.drained or (model not in self.drained and None not in self.drained)

    def pause(self, model: str | None) -> None:
        """Send nothing for `model` from now on; None: for any."""
        _add(self.paused, model)

    def drain(self, model: str | None) -> None:
        """Let in nothing new for `model` from now on; None: for any."""
        _add(self.drained, model)

    def resume(self, model: str | None) -> None:
        """Take back a pause and a drain; for None all of them, also those of single models."""
        for stopped in (self.paused, self.drained):
            if model is None:
                stopped.clear()
            stopped.pop(model, None)


def _add(stopped: dict[str | None, None], model: str | None) -> None:
    if model is not None and model not in stopped and len(stopped) >= STOPPED_MAX:
        raise TooManyStoppedError(f"{STOPPED_MAX} models are stopped already")
    stopped[model] = None
