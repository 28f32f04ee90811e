"""The settings of models: band, weight and prices of their requests, by the name that a caller uses."""

from __future__ import annotations

from typing import Final

from penstock.config.model import Settings
from penstock.config.sections.models import ModelPrices, ModelSection, model_prices
from penstock.core.values.settings import Prices


class Profile:
    """The settings of one name."""

    __slots__ = ("band", "fallback", "prices", "weight")

    def __init__(
        self,
        *,
        band: int | None = None,
        weight: float = 1.0,
        prices: Prices | None = None,
        fallback: tuple[str, ...] = (),
    ) -> None:
        self.band: Final = band  #: of requests that ask for none; None: the default one
        self.weight: Final = weight  #: if models are a level of fairness
        self.prices: Final = prices  #: None: those of all models
        self.fallback: Final = fallback  #: models asked instead, in this order


PLAIN = Profile()


def profiles(settings: Settings) -> dict[str, Profile]:
    """Returns profiles by name. An alias inherits what it does not set from its model."""
    ranks = {band.name: rank for rank, band in enumerate(settings.bands)}
    found: dict[str, Profile] = {}
    for name, model in settings.models.items():
        whole = _with_target(model, settings.models.get(model.to or ""))
        prices = model_prices(whole, settings.fairness.prices)
        found[name] = Profile(
            band=ranks[whole.band] if whole.band else None,
            weight=whole.weight or 1.0,
            prices=None if whole.prices == ModelPrices() else Prices(**prices),
            fallback=whole.fallback,
        )
    return found


def _with_target(model: ModelSection, target: ModelSection | None) -> ModelSection:
    """An alias, completed from its model's entry."""
    if target is None:
        return model
    prices = target.prices.model_dump(exclude_none=True) | model.prices.model_dump(exclude_none=True)
    return ModelSection(
        to=model.to,
        band=model.band or target.band,
        weight=target.weight if model.weight is None else model.weight,
        prices=ModelPrices(**prices),
        fallback=model.fallback or target.fallback,
    )
