"""Which band is a request of an InferenceObjective in?

Bands have numbers (`bands[].priority`), objectives have priorities: a request belongs to the highest band whose number
is not above its objective's priority, or to the lowest band.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from penstock.config.model import BandSection, Settings, numbers_of
from penstock.gateway.endpoints.pool_rules import PoolRules

logger = logging.getLogger(__name__)


class Objectives:
    """The band of each objective, by its name."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.ranks: Mapping[str, int] = {}
        self._priorities: Mapping[str, int] = {}
        self._bands: Sequence[BandSection] = ()
        self._numbers: Sequence[int] = ()

    def follow(self, settings: Settings) -> None:
        self._bands, self._numbers = settings.bands, numbers_of(settings.bands, settings.default_band)
        self._place()

    def know(self, rules: PoolRules) -> None:
        self._priorities = rules.priorities
        self._place()

    def _place(self) -> None:
        before, self.ranks = self.ranks, {name: self._rank(priority) for name, priority in self._priorities.items()}
        self._changed()
        for name, rank in self.ranks.items():
            if before.get(name) != rank and self._priorities[name] < 0 and not self._bands[rank].best_effort:
                logger.warning(
                    "objective %s: priority %d means that it is shed first, but its band %s is not best_effort",
                    *(name, self._priorities[name], self._bands[rank].name),
                )

    def _rank(self, priority: int) -> int:
        for rank, number in enumerate(self._numbers):
            if number <= priority:
                return rank
        return len(self._numbers) - 1
