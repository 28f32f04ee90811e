"""Which LoRA adapters does an engine have in memory?

Model: an engine lists more adapters than it holds at once; the last used ones are there, and another one displaces the
one that was not used for longest (vLLM's and SGLang's rule). Our own requests show the use, and an engine's page those
that run now, others' among them. How many it holds is reported, or assumed to be one, which is vLLM's default.
"""

from __future__ import annotations

from collections.abc import Iterable

HELD = 1  # adapters, until reported


class AdapterMemory:
    """The adapters of one engine, each a model of its own."""

    __slots__ = ("_held", "_used", "listed")

    def __init__(self) -> None:
        self.listed: frozenset[str] = frozenset()
        self._held = HELD
        self._used: dict[str, None] = {}  # the last used ones, in that order: at most as many as are held

    def lists(self, models: Iterable[str] | None) -> None:
        """Note which of the engine's models are adapters. None: as before."""
        self.listed = self.listed if models is None else frozenset(models)

    @property
    def room(self) -> bool:
        """Whether another adapter displaces none."""
        return len(self._used) < self._held

    def holds(self, model: str) -> bool:
        """True if it is an adapter that is believed to be in memory."""
        return model in self._used

    def used(self, model: str) -> None:
        """Note that a request for a `model` was sent there; most models are no adapters."""
        if model in self.listed:
            self._used.pop(model, None)
            self._used[model] = None
            self._trim()

    def read(self, held: float | None, running: Iterable[str]) -> None:
        """Note what the page reports: how many are held at once, and which ones run. None: as before."""
        if held is not None:
            self._held = max(1, int(held))
            self._trim()
        for model in running:
            self.used(model)

    def forget(self) -> None:
        """Note that another process answers there, with none in memory."""
        self._used.clear()

    def _trim(self) -> None:
        while len(self._used) > self._held:
            del self._used[next(iter(self._used))]
