"""Models: what are they called, how urgent are their requests, what is their share, and what do their tokens cost?"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from penstock.config import values
from penstock.config.sections.section import Section, setting
from penstock.config.sections.tenancy import PricesSection

FALLBACKS_MAX = 8  # each may be asked, one after another, before a caller hears anything


class ModelPrices(Section):
    """What this model's tokens cost in the account of their flow. A kind that is not given: as in `fairness.prices`."""

    prompt: values.OptionalNumber = setting(None, "A prompt token that the engine has to compute.", ge=0)
    cached_prompt: values.OptionalNumber = setting(None, "A prompt token that was in the engine's prefix cache.", ge=0)
    completion: values.OptionalNumber = setting(None, "A generated token.", ge=0)


class ModelSection(Section):
    """What holds for one model. An entry with `to` is an alias, another name for that model: callers ask for
    `models.<name>`, engines see `to`. An entry without `to` is about a model that engines serve under this name. What
    an alias does not say holds as for the model it stands for.
    """

    to: values.OptionalModelName = setting(None, "The name that the engines know. Not itself an alias.")
    band: values.BandNameOrEmpty = setting(
        "",
        "The band of its requests that ask for none, instead of `default_band`; they have it without asking, so "
        "`identity.max_band` does not lower it, unless it is below `default_band`. A tenant's own `max_band` does.",
    )
    weight: values.OptionalWeight = setting(
        None, "Its part of the service, compared with other models, where `fairness.levels` names `model`. Default: 1."
    )
    prices: ModelPrices = ModelPrices()
    fallback: Annotated[tuple[values.ModelName, ...], BeforeValidator(values.items(0, FALLBACKS_MAX))] = setting(
        (),
        "Models or aliases that a request is given instead, in this order, where this one has no endpoint in service, "
        "is not known, refuses it for overload, or fails in every attempt before the first byte. Each is asked once; "
        "their own fallbacks are not followed. `x-penstock-model` names the one that answers.",
    )

    @property
    def says_nothing(self) -> bool:
        """True if leaving the entry out would change nothing."""
        return self == ModelSection()


def model_prices(model: ModelSection, usual: PricesSection) -> dict[str, float]:
    """Returns what a model's tokens cost, by kind: its own prices, or those of `fairness.prices` (`usual`)."""
    own: dict[str, float] = model.prices.model_dump(exclude_none=True)
    return usual.model_dump() | own
