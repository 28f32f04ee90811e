"""Section: what is common to all parts of the settings?

Each section is frozen, refuses keys it does not know, and explains each of its settings in a sentence, which ends up in
docs/configuration.md. A setting that is planned but not there yet is named in its section's `later`, so that it is
refused with that reason; a change that adds the setting takes the name out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator


def setting(default: object, meaning: str, **bounds: Any) -> Any:
    return Field(default=default, description=meaning, **bounds)


class Section(BaseModel):
    """A part of the settings: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    later: ClassVar[frozenset[str]] = frozenset()
    later_choices: ClassVar[dict[str, frozenset[str]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _nothing_written_means_defaults(cls, data: object) -> object:
        """Accepts `queue:`, or `endpoints:`, with nothing under it: the defaults are meant."""
        if not isinstance(data, Mapping):
            return {} if data is None else data
        return {key: value for key, value in data.items() if value is not None or not cls._is_collection(key)}

    @classmethod
    def _is_collection(cls, key: object) -> bool:
        field = cls.model_fields.get(key) if isinstance(key, str) else None
        return field is not None and isinstance(field.default, tuple | dict)
