"""Which models are served, and what do other names stand for? The union of what the endpoints list, as `GET /v1/models`
shows it, with aliases and splits. Those of the settings come before the rewrites of pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.config.model import Settings
from penstock.engines.base import Model
from penstock.gateway.endpoints.pool_rules import ModelRewrite, PoolRules

if TYPE_CHECKING:
    from penstock.gateway.endpoints.splits import Split


class Catalog:
    """The model entries of each endpoint, and the names that stand for other models."""

    def __init__(self) -> None:
        self.aliases: Mapping[str, str] = {}  #: by the clients' name, the engines' name; of a split, its largest
        self._splits: dict[str, Split] = {}
        self._any: Split | None = None  # for all other names
        self.splits = False  #: whether any name stands for another
        self._listed: dict[str, list[Model]] = {}
        self._settings: Mapping[str, dict[str, int]] = {}
        self._rewrites: Sequence[ModelRewrite] = ()

    def follow(self, settings: Settings) -> None:
        """Use the aliases and splits of these settings."""
        aliases = {name: {model.to: 1} for name, model in settings.models.items() if model.to is not None}
        splits = {name: dict(model.split) for name, model in settings.models.items() if model.split}
        self._settings = aliases | splits
        self._use()

    def know(self, rules: PoolRules) -> None:
        """Use these rewrites of pools."""
        self._rewrites = rules.rewrites
        self._use()

    def _use(self) -> None:
        """Apply these splits; unchanged ones keep their counts."""
        wanted: dict[str, dict[str, int]] = {**self._settings}
        for rewrite in self._rewrites:
            for name in rewrite.models:
                wanted.setdefault(name, rewrite.weights)
        before = self._splits
        self._splits = {
            name: before[name] if name in before and before[name].weights == weights else _split(weights)
            for name, weights in wanted.items()
        }
        rest = next((rewrite.weights for rewrite in self._rewrites if not rewrite.models), None)
        if self._any is None or self._any.weights != rest:
            self._any = None if rest is None else _split(rest)
        self.splits = bool(self._splits) or self._any is not None
        self.aliases = {name: split.main for name, split in self._splits.items() if name not in split.weights}

    def split(self, name: str) -> Split | None:
        """Returns what a client's name stands for; None: for itself."""
        return self._splits.get(name, self._any)

    def listed(self, endpoint: str, models: list[Model]) -> None:
        """Set the `models` that `endpoint` lists, in place of any before."""
        self._listed[endpoint] = models

    def configured(self, endpoint: str, names: Iterable[str]) -> None:
        """Set the `names` that the settings give `endpoint`, until it lists its models."""
        self._listed[endpoint] = [
            Model(name, {"id": name, "object": "model", "created": 0, "owned_by": "penstock"}) for name in names
        ]

    def forgotten(self, endpoint: str) -> None:
        """Remove `endpoint`, and the models that no other endpoint serves."""
        self._listed.pop(endpoint, None)

    def entries_of(self, endpoint: str) -> list[dict[str, object]]:
        """Returns the entries that `endpoint` lists, unchanged; empty while there is no list."""
        return [model.fields for model in self._listed.get(endpoint, ())]

    def entries(self) -> list[dict[str, object]]:
        """Returns one entry per name, aliases last. A model of several endpoints has their shortest context length."""
        found: dict[str, dict[str, object]] = {}
        for models in self._listed.values():
            for model in models:
                entry = found.setdefault(model.id, dict(model.fields))
                ours, theirs = entry.get("max_model_len"), model.fields.get("max_model_len")
                if isinstance(ours, int) and isinstance(theirs, int):
                    entry["max_model_len"] = min(ours, theirs)
        for alias in self.aliases:
            target = next((name for name in self._splits[alias].weights if name in found), None)
            if target is not None:
                found[alias] = {**found[target], "id": alias, "root": target}
        return list(found.values())

    def lists(self, endpoint: str, model: str) -> bool:
        """Returns True if `endpoint` lists `model`."""
        return any(listed.id == model for listed in self._listed.get(endpoint, ()))

    def names_of(self, model: str) -> list[str]:
        """Returns the names under which engines know `model`: its own first, then those it was loaded from."""
        names = {model: None}
        for models in self._listed.values():
            for listed in models:
                if listed.id == model and isinstance(root := listed.fields.get("root"), str):
                    names[root] = None
        return list(names)

    def entry(self, name: str) -> dict[str, object] | None:
        """Returns the entry of a model or alias; None if no endpoint serves it."""
        return next((entry for entry in self.entries() if entry["id"] == name), None)


def _split(weights: Mapping[str, int]) -> Split:
    from penstock.gateway.endpoints.splits import Split  # noqa: PLC0415 - most gateways have no such names

    return Split(weights)
