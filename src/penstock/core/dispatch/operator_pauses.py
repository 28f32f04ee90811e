"""Operators' pauses (no dispatch) and drains (no new requests).

Each for one model or for all. Queued requests keep their place and their time limits. That an endpoint is drained is
the endpoint's own matter (`Endpoint.drained`). One stop is no operator's: a scheduler that does not lead is *halted*,
and sends nothing until it does.
"""

from __future__ import annotations

STOPPED_MAX = 1_000  # models named by operators; models may be paused before any endpoint serves them


class TooManyStoppedError(ValueError):
    """So many models are stopped that no further one can be: stop all."""


class OperatorPauses:
    """Models that are stopped; None stands for all."""

    __slots__ = ("drained", "halted", "paused", "stops")

    def __init__(self) -> None:
        self.paused: dict[str | None, None] = {}
        self.drained: dict[str | None, None] = {}
        self.halted = False  #: nothing is sent at all, because another scheduler may decide
        self.stops = False  #: anything is paused, or all is halted

    def sends(self, model: str) -> bool:
        """True if requests for the model may be sent."""
        return not self.stops or not (self.halted or model in self.paused or None in self.paused)

    def halt(self, *, halted: bool) -> None:
        """Send nothing of any model from now on; or again."""
        self.halted = halted
        self.stops = halted or bool(self.paused)

    def admits(self, model: str) -> bool:
        """True if new requests for the model are let in."""
        return not self.drained or (model not in self.drained and None not in self.drained)

    def pause(self, model: str | None) -> None:
        """Send nothing for `model` from now on; None: for any."""
        _add(self.paused, model)
        self.stops = True

    def drain(self, model: str | None) -> None:
        """Let in nothing new for `model` from now on; None: for any."""
        _add(self.drained, model)

    def resume(self, model: str | None) -> None:
        """End a pause and a drain; for None all of them, also those of single models."""
        for stopped in (self.paused, self.drained):
            if model is None:
                stopped.clear()
            stopped.pop(model, None)
        self.stops = self.halted or bool(self.paused)


def _add(stopped: dict[str | None, None], model: str | None) -> None:
    if model is not None and model not in stopped and len(stopped) >= STOPPED_MAX:
        raise TooManyStoppedError(f"{STOPPED_MAX} models are stopped already")
    stopped[model] = None
