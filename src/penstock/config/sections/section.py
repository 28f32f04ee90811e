"""Section: the base class of all settings.

Each section is frozen, refuses unknown keys, and describes each setting for docs/configuration.md. `removed` names
removed settings with their replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


def setting(default: object, meaning: str, **bounds: Any) -> Any:
    return Field(default=default, description=meaning, **bounds)


class Section(BaseModel):
    """A part of the settings: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    removed: ClassVar[dict[str, str]] = {}

    @classmethod
    def valid(cls, raw: object) -> Self | None:
        """Returns the section as written; None if it is invalid, which `explain.py` reports."""
        try:
            return cls.model_validate(raw)
        except ValidationError:
            return None

    @model_validator(mode="before")
    @classmethod
    def _nothing_written_means_defaults(cls, data: object) -> object:
        """Accepts an empty `queue:` or `endpoints:` as the defaults."""
        if not isinstance(data, Mapping):
            return {} if data is None else data
        return {key: value for key, value in data.items() if value is not None or not cls._is_collection(key)}

    @classmethod
    def _is_collection(cls, key: object) -> bool:
        field = cls.model_fields.get(key) if isinstance(key, str) else None
        return field is not None and isinstance(field.default, tuple | dict)
