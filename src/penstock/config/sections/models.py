"""Models: aliases, bands, shares, prices and fallbacks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from penstock.config import values
from penstock.config.sections.section import Section, setting
from penstock.config.sections.tenancy import PricesSection

FALLBACKS_MAX = 8  # tried one after another before the client gets an answer
SPLIT_MAX = 32
SHARE_MAX = 1_000_000

Share = Annotated[int, BeforeValidator(values.whole), Field(ge=0, le=SHARE_MAX), values.ValueKind("whole number")]


class ModelPrices(Section):
    """Token prices of this model. Default of each: `fairness.prices`."""

    prompt: values.OptionalNumber = setting(None, "Per computed prompt token.", ge=0)
    cached_prompt: values.OptionalNumber = setting(None, "Per cached prompt token.", ge=0)
    completion: values.OptionalNumber = setting(None, "Per generated token.", ge=0)


class ModelSection(Section):
    """Settings of a model. An entry with `to` is an alias: clients name `models.<name>`, engines see `to`; its other
    settings default to those of that model.
    """

    to: values.OptionalModelName = setting(None, "The engines' name for it; not an alias.")
    split: Annotated[dict[values.ModelName, Share], BeforeValidator(values.items(0, SPLIT_MAX))] = setting(
        {},
        "Instead of `to`: the engines' names of several models, with their shares of requests. A session stays with "
        "one of them; a model without a working endpoint gets nothing while another one has one.",
    )
    band: values.BandNameOrEmpty = setting(
        "",
        "Overrides `default_band`. `identity.max_band` does not lower it, unless it is below `default_band`; a "
        "tenant's own `max_band` does.",
    )
    weight: values.OptionalWeight = setting(
        None, "Its share among models, if `fairness.levels` names `model`. Default: 1."
    )
    prices: ModelPrices = ModelPrices()
    fallback: Annotated[tuple[values.ModelName, ...], BeforeValidator(values.items(0, FALLBACKS_MAX))] = setting(
        (),
        "Models or aliases to use instead, in this order, if this one is unknown, has no endpoint in service, is "
        "overloaded, or fails every attempt before the first byte (docs/fallback.md).",
    )

    @property
    def says_nothing(self) -> bool:
        return self == ModelSection()


def model_prices(model: ModelSection, usual: PricesSection) -> dict[str, float]:
    """Returns a model's token prices by kind, with defaults from `fairness.prices` (`usual`)."""
    own: dict[str, float] = model.prices.model_dump(exclude_none=True)
    return usual.model_dump() | own
