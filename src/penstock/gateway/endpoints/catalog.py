"""Which models are served: the union of what the endpoints list, as `GET /v1/models` shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.engines.base import Model


class Catalog:
    """Model entries by endpoint, and the aliases that callers may use instead."""

    def __init__(self, aliases: Mapping[str, str]) -> None:
        self.aliases = aliases
        self._listed: dict[str, list[Model]] = {}

    def listed(self, endpoint: str, models: list[Model]) -> None:
        """An endpoint told what it serves."""
        self._listed[endpoint] = models

    def configured(self, endpoint: str, names: Iterable[str]) -> None:
        """The settings say what it serves; its own entries replace these when it lists them."""
        self._listed[endpoint] = [
            Model(name, {"id": name, "object": "model", "created": 0, "owned_by": "penstock"}) for name in names
        ]

    def forgotten(self, endpoint: str) -> None:
        """The endpoint is gone, and with it what only it served."""
        self._listed.pop(endpoint, None)

    def entries(self) -> list[dict[str, object]]:
        """One entry per name. What several replicas list is shown once, with the least context length of them."""
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
        """Under which names engines know a model themselves: its own, and that of what it was loaded from."""
        names = {model: None}
        for models in self._listed.values():
            for listed in models:
                if listed.id == model and isinstance(root := listed.fields.get("root"), str):
                    names[root] = None
        return list(names)

    def entry(self, name: str) -> dict[str, object] | None:
        return next((entry for entry in self.entries() if entry["id"] == name), None)
