"""The small world of the conformance suite, also with estimates that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.conformance import shop
from penstock.conformance.shop import PATIENT, Customer, ShopJob
from penstock.core.queueing.estimate import Estimator
from penstock.core.values.request import Contents, Estimate

__all__ = ["PATIENT", "Customer", "Shop", "ShopJob"]


class Wrong(Estimator):
    """Estimates that are off by a factor, per tenant, and never learn."""

    def __init__(self, factors: dict[str, float], truth: dict[str, tuple[float, float]]) -> None:
        super().__init__()
        self._factors = factors
        self._truth = truth

    def estimate(self, tenant: str, model: str, contents: Contents, output_tokens_max: int | None) -> Estimate:
        prompt, output = self._truth[tenant]
        factor = self._factors.get(tenant, 1.0)
        return Estimate(max(1, round(prompt * factor)), max(1, round(output * factor)))


class Shop(shop.Shop):
    """The same world. `wrong`: by what factor each customer's requests are estimated wrongly."""

    def __init__(self, customers: Sequence[Customer], *, wrong: dict[str, float] | None = None, **more: Any) -> None:
        super().__init__(customers, **more)
        if wrong is not None:
            self.scheduler._state.estimator = Wrong(wrong, {x.name: _mean(x) for x in customers})

    def run(self, until_s: float) -> Shop:
        super().run(until_s)
        return self


def _mean(customer: Customer) -> tuple[float, float]:
    return sum(customer.prompt_tokens) / 2, sum(customer.output_tokens) / 2
