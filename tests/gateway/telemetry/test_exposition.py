"""The page for Prometheus: as the library prints it, in slices, and not more often than it may cost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from penstock.config.load import from_mapping
from penstock.core.scheduler import Scheduler
from penstock.core.values.settings import EndpointSpec
from penstock.gateway import settings_map
from penstock.gateway.telemetry import series
from penstock.gateway.telemetry.exposition import Levels, Page
from penstock.gateway.telemetry.metrics import Metrics

BURST_S = 0.25
TENANTS_MAX = 1000

NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 10**9).map(float)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@settings(max_examples=100)
@given(NAMES, NUMBERS)
def test_a_line_is_what_the_library_prints(name: str, value: float) -> None:
    family = GaugeMetricFamily("level", "How it \\stands\nnow.", labels=["z", "a"])
    family.add_metric([name, "x"], value)
    registry = CollectorRegistry()
    registry.register(type("Collector", (), {"collect": lambda _: [family], "describe": lambda _: []})())
    levels = Levels("level", "How it \\stands\nnow.", ["z", "a"], lambda: [((name, "x"), value)])
    assert "".join(levels.lines()).encode() == generate_latest(registry)


def test_labels_beyond_the_bound_count_as_other() -> None:
    counter = series.Counter("ends", "Ends.", ["model", "reason"], most=2)
    for model in "abcabc":
        counter.labels(model, "x").inc()
    lines = [line for line in counter.lines() if not line.startswith("#")]
    assert lines == [
        'ends_total{model="a",reason="x"} 2.0\n',
        'ends_total{model="b",reason="x"} 2.0\n',
        'ends_total{model="other",reason="other"} 2.0\n',
    ]


@pytest.mark.parametrize("bands", [3, 8])
def test_the_series_of_models_endpoints_and_tenants_are_bounded_in_sum(bands: int) -> None:
    settings = from_mapping(
        {
            "bands": [{"name": f"b{n}"} for n in range(bands)],
            "default_band": "b0",
            "tenants": [{"name": f"t{n}"} for n in range(3_000)],
        }
    )
    scheduler = Scheduler(settings_map.scheduler_settings(settings), random=Random(1))
    for n in range(1_010):
        scheduler.endpoint_added(EndpointSpec(f"e{n}", 1, frozenset({"m"}), {}, adaptive_slots=False), now=0.0)
    metrics = Metrics(snapshot=lambda: scheduler.snapshot(now=0.0))
    metrics.follow(settings)
    for n in range(1_010):
        metrics.endpoint_added(f"e{n}")
    metrics.models_known(f"m{n}" for n in range(2_000))
    page = "".join(metrics.lines())
    assert page.count("\n") < 145_000
    assert page.count("\npenstock_slots{") == 1000
    models = set(re.findall('model="([^"]*)"', page)) - {"other"}
    assert len(models) == {3: 500, 8: 187}[bands]
    assert page.count("\npenstock_tenant_service_tokens_total{") == TENANTS_MAX


async def asked(page: Page) -> bytes:
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    page.ask(future.set_result)
    return await future


async def test_scrapes_that_come_while_a_page_is_made_share_the_next_one() -> None:
    clock, made = Clock(), 0

    def lines() -> Iterator[str]:
        nonlocal made
        made += 1
        for n in range(1_000):
            clock.now_s += 1e-4  # so a slice is forty of them, or what stands between two looks
            yield f"{n}\n"

    page = Page(lines, clock, clock)
    answers = await asyncio.gather(*[asked(page) for _ in range(5)])
    assert made == 2, "what happened since the first one began may not be in it"
    assert set(answers) == {"".join(f"{n}\n" for n in range(1_000)).encode()}


async def test_a_page_shows_what_happened_before_it_was_asked_for_however_busy_the_machine_is() -> None:
    clock, counted = Clock(), 0

    def lines() -> Iterator[str]:
        clock.now_s += 10.0  # others have the CPU meanwhile
        yield f"{counted}\n"

    page = Page(lines, clock, cpu=lambda: 0.0)
    for counted in range(5):
        assert await asked(page) == b"%d\n" % counted


async def test_a_page_is_made_in_slices_of_four_milliseconds() -> None:
    clock, turns = Clock(), 0

    def lines() -> Iterator[str]:
        for n in range(10_000):
            clock.now_s += 1e-5
            yield f"{n}\n"

    task = asyncio.ensure_future(asked(Page(lines, clock, clock)))
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert 20 <= turns <= 30, "a tenth of a second of work"


async def test_pages_take_no_more_than_their_share_of_the_time() -> None:
    clock, made = Clock(), 0

    def lines() -> Iterator[str]:
        nonlocal made
        made += 1
        clock.now_s += 0.05
        yield f"{made}\n"

    page = Page(lines, clock, clock)
    for _ in range(100):
        await asked(page)
    assert made == BURST_S / 0.05 + 1, "then the last one is given again"
    clock.now_s += 1.0
    await asked(page)
    await asked(page)
    assert made == BURST_S / 0.05 + 3
    clock.now_s += 15.0
    assert await asked(page) == b"%d\n" % made
