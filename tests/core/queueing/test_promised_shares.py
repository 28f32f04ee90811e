"""A band's `min_share` is one of work, whatever the sizes of requests, and credits and debts stay within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.queueing.band import Band
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings, EndpointSpec
from tests.core.drive import request, scheduler, sent, the_lease
from tests.core.shop import PATIENT, Customer, Shop, ShopJob

HIGH, LOW = 0, 1
SMALL: dict[str, Any] = {"prompt_tokens": (50, 150), "output_tokens": (50, 150)}
LARGE: dict[str, Any] = {"prompt_tokens": (30_000, 60_000), "output_tokens": (1, 1)}
TALKING: dict[str, Any] = {"prompt_tokens": (100, 100), "output_tokens": (1_000, 3_000)}
MIXED: dict[str, Any] = {"prompt_tokens": (10, 60_000), "output_tokens": (1, 1_000)}


def bands(share: float, **high: Any) -> tuple[BandSettings, ...]:
    return BandSettings("high", **high), BandSettings("low", min_share=share)


class Bands(Shop):
    """Customers whose name begins with `low` are of the lower band."""

    def __init__(
        self,
        customers: Sequence[Customer],
        share: float,
        *,
        models: str = "m",
        wrong: dict[str, float] | None = None,
        **high: Any,
    ) -> None:
        settings = replace(PATIENT, bands=bands(share, **high))
        super().__init__(customers, wrong=wrong or None, slots=(8,), settings=settings)
        self._models = models
        self.watch = self._note
        self.got: list[tuple[float, str, float]] = []

    def _open(self) -> None:
        super()._open()
        self._tell(self.scheduler.endpoint_removed("e0", now=0.0))
        for model in self._models:
            self._tell(self.scheduler.endpoint_added(EndpointSpec(model, 8, frozenset(model)), now=0.0))

    def _request(self, name: str, customer: Customer, prompt_tokens: int) -> Request:
        return super()._request(name, customer, prompt_tokens).but(band=int(customer.name.startswith("low")))

    def _note(self, job: ShopJob | None) -> None:
        if job is not None:
            self.got.append((self.now, job.customer.name, job.cost))

    def low(self, since_s: float, until_s: float = 1e9, *, name: str = "low") -> float:
        """The part of the band above's and that customer's work in that time."""
        work = {
            who: sum([w for at, x, w in self.got if x == who and since_s <= at < until_s]) for who in ("high", name)
        }
        return work[name] / sum(work.values())


@pytest.mark.parametrize(
    ("high", "for_s", "cancels", "wrong"),
    [
        (SMALL, 1_000.0, 0.0, {}),
        (SMALL, 1_000.0, 0.5, {}),
        pytest.param(SMALL, 1_000.0, 0.0, {"high": 8.0, "low": 0.2}, marks=pytest.mark.interpreted),
        pytest.param(SMALL, 1_000.0, 0.0, {"high": 0.2, "low": 3.0}, marks=pytest.mark.interpreted),
        (TALKING, 2_500.0, 0.0, {}),
        (MIXED, 2_000.0, 0.0, {}),
    ],
    ids=["short", "half cancelled", "estimated as long", "estimated as shorter", "long answers", "all"],
)
def test_it_is_one_of_work_for_large_requests_beside(
    high: dict[str, Any], for_s: float, cancels: float, wrong: dict[str, float]
) -> None:
    customers = [Customer(name, cancels=cancels, **sizes) for name, sizes in (("high", high), ("low", LARGE))]
    shop = Bands(customers, 0.25, wrong=wrong)
    shop.run(for_s)
    assert shop.low(0.0) == pytest.approx(0.25, abs=0.03)


def test_work_for_a_model_that_nobody_above_waits_for_does_not_cost_it_its_share() -> None:
    """Neither while there is such work nor afterwards."""
    elsewhere = Customer("low elsewhere", **LARGE, model="y", times_s=((0.0, 100.0),))
    shop = Bands(
        [Customer("high", **SMALL, model="x"), Customer("low", **SMALL, model="x"), elsewhere], 0.25, models="xy"
    )
    shop.run(200.0)
    assert sum([name == "low elsewhere" for _, name, _ in shop.got]) > 64
    assert [shop.low(0.0, 100.0), shop.low(100.0)] == pytest.approx([0.25, 0.25], abs=0.01)


def test_what_those_above_could_not_use_does_not_cost_it_its_share() -> None:
    """Under a ceiling of the band above it took all slots. Then both compete, and it is owed soon."""
    shop = Bands([Customer("high", **SMALL), Customer("low", **SMALL)], 0.25, ceiling=0.5)
    settings = replace(PATIENT, bands=bands(0.25))
    shop._at(50.0, lambda: shop._tell(shop.scheduler.reconfigured(settings, now=50.0)))
    shop.run(80.0)
    assert shop.low(1.0, 50.0) > 0.9
    assert shop.low(50.0, 80.0) == pytest.approx(0.25, abs=0.05)


def backlogged(*, low: int) -> tuple[CheckedScheduler, int, Band]:
    """One slot, taken; so many requests of the lower band wait, and more of the one above."""
    made = scheduler(SchedulerSettings(bands=bands(0.25), wait_s_max=1e9), a=1)
    lease = the_lease(made.arrived(request("first"), now=0.0))
    for at in range(low):
        made.arrived(request(f"low-{at}", band=LOW, streamed=True), now=0.0)
    for at in range(50):
        made.arrived(request(f"high-{at}"), now=0.0)
    return made, lease, made.inspect().queues.bands[LOW]


def test_a_band_that_asks_for_nothing_for_an_hour_is_owed_one_request_at_most() -> None:
    made, lease, band = backlogged(low=0)
    band.credit = 1e6  # whatever it was owed when its last request was sent
    for at in range(10):
        lease = the_lease(made.finished(lease, Usage(0, 50), now=360.0 * at))
    for at in range(20):
        made.arrived(request(f"low-{at}", band=LOW), now=3_600.0)
    names = []
    for at in range(20):
        actions = made.finished(lease, Usage(0, 50), now=3_600.0 + at)
        names.append(sent(actions)[0][0].split("-")[0])
        lease = the_lease(actions)
    assert names[:3] == ["low", "high", "high"]
    assert names.count("low") == pytest.approx(5, abs=1)


@pytest.mark.parametrize(("tokens", "turns"), [(0, 0), (50, 3), (500, 30)])
def test_a_request_counts_as_it_was_in_the_end(tokens: int, turns: int) -> None:
    """Estimated at 50 tokens, it is cancelled, or has so many. Then so many of the band above are next."""
    made, lease, _ = backlogged(low=2)
    sends = made.finished(lease, Usage(0, 50), now=1.0)
    assert sent(sends) == [("high-0", "a")]
    sends = made.finished(the_lease(sends), Usage(0, 50), now=2.0)
    assert sent(sends) == [("low-0", "a")]
    ends = made.finished(the_lease(sends), Usage(0, tokens), now=3.0) if tokens else made.cancelled("low-0", now=3.0)
    passed = 0
    while sent(ends) != [("low-1", "a")]:
        ends = made.finished(the_lease(ends), Usage(0, 50), now=4.0 + passed)
        passed += 1
    assert passed == pytest.approx(turns, abs=1)


def test_a_band_without_a_promise_is_owed_nothing() -> None:
    """Even if a request that was counted before a reload is cancelled after it."""
    made, lease, band = backlogged(low=2)
    sends = made.finished(the_lease(made.finished(lease, Usage(0, 50), now=1.0)), Usage(0, 50), now=2.0)
    assert sent(sends) == [("low-0", "a")]
    made.reconfigured(SchedulerSettings(bands=bands(0.0), wait_s_max=1e9), now=3.0)
    made.cancelled("low-0", now=4.0)
    assert band.credit == 0.0
