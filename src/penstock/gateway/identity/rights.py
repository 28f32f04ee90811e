"""A key's restrictions. Values, and whether a model is among those that it names."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from penstock.config.sections.tenancy import OwnLimits, TenantKey
from penstock.core.values.settings import Limits


class Rights(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of a key. A bound that is not set leaves all that the tenant may."""

    models: tuple[str, ...] = ()  #: as clients name them, with `*` as wildcard; empty: all
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    limits: Limits | None = None  #: of an issued key; those of the settings' keys are found there

    def allows(self, model: str) -> bool:
        """Whether the key may use a model of this name. An alias is a separate name."""
        return not self.models or any(fnmatchcase(model, _pattern(named)) for named in self.models)


NONE = Rights()


def rights_of(key: TenantKey, *, with_limits: bool = False) -> Rights | None:
    """Returns the bounds of a key, those of an issued one `with_limits`; None: it has none."""
    limits = core_limits(key.limits) if with_limits else None
    return known(Rights(key.models, key.max_prompt_tokens, key.max_output_tokens, limits))


def core_limits(limits: OwnLimits) -> Limits | None:
    """Returns limits as the scheduler knows them; None for none at all."""
    found = Limits(**limits.model_dump(exclude={"models"}))
    return None if found == Limits() else found


def known(rights: Rights) -> Rights | None:
    """Returns the bounds; None without any, so that most requests skip the checks."""
    return None if rights == NONE else rights


def written(rights: Rights | None) -> str:
    return msgspec.json.encode(NONE if rights is None else rights).decode()


def read(text: str) -> Rights | None:
    return None if text == "{}" else known(msgspec.json.decode(text, type=Rights))


def _pattern(named: str) -> str:
    """Only `*` means something: names of models may hold the other characters."""
    return named.replace("[", "[[]").replace("?", "[?]")
