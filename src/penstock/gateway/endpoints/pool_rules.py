"""The rules of InferenceObjectives and InferenceModelRewrites for requests, from all pools that discovery follows.

Each pool reports the complete rules on each change, as sources report endpoints. Of two pools' objectives with one name
the first counts, in the order of `discovery`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

logger = logging.getLogger(__name__)

LOGGED_MAX = 20  # objectives by name in one line


class ModelRewrite(msgspec.Struct, frozen=True):
    """Requests for these models, or (empty) for any, go to the models of `weights`, by weight."""

    models: tuple[str, ...]
    weights: dict[str, int]


class PoolRules(msgspec.Struct, frozen=True):
    """All rules of pools' objects for requests."""

    priorities: dict[str, int] = {}  #: of objectives, by name
    rewrites: tuple[ModelRewrite, ...] = ()  #: by precedence


class RuleBook:
    """The rules of all pools, reported to every part that reads requests whenever they change."""

    def __init__(self, *tell: Callable[[PoolRules], None]) -> None:
        self._tell = [*tell]
        self._wanted: dict[str, PoolRules] = {}  # by source, in order
        self._told = PoolRules()

    def tell_workers(self, tell: Callable[[bytes], None]) -> None:
        """Report to processes, too, as JSON."""
        self._tell.append(lambda rules: tell(msgspec.json.encode(rules)))

    def ranked(self, sources: Sequence[str]) -> None:
        """These are all sources, the one that counts first in front; the rules of others are gone."""
        self._wanted = {name: self._wanted.get(name, PoolRules()) for name in sources}
        self._report()

    def want(self, source: str, rules: PoolRules) -> None:
        """From now on `source` has exactly these rules."""
        if source in self._wanted:
            self._wanted[source] = rules
            self._report()

    def _report(self) -> None:
        priorities: Mapping[str, int] = {}
        for rules in self._wanted.values():
            priorities = {**rules.priorities, **priorities}
        rewrites = tuple(rewrite for rules in self._wanted.values() for rewrite in rules.rewrites)
        now = PoolRules(dict(priorities), rewrites)
        if now != self._told:
            self._told = now
            named = ", ".join(f"{name} {priority}" for name, priority in islice(priorities.items(), LOGGED_MAX))
            logger.info("pools: %d objectives (%s), %d rewrites", len(priorities), named, len(rewrites))
            for tell in self._tell:
                tell(now)
