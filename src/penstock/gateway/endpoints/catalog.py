"""Which models are served? The union of what the endpoints list, as `GET /v1/models` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.config.model import Settings
from penstock.engines.base import Model


class Catalog:
    """The model entries of each endpoint, and the aliases of models."""

    def __init__(self) -> None:
        self.aliases: Mapping[str, str] = {}  #: by the clients' name, the engines' name
        self._listed: dict[str, list[Model]] = {}

    def follow(self, settings: Settings) -> None:
        """Use the aliases of these settings."""
        self.aliases = {name: model.to for name, model in settings.models.items() if model.to is not None}

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
        for alias, target in self.aliases.items():
            if target in found:
                found[alias] = {**found[target], "id": alias, "root": target}
        return list(found.values())

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
