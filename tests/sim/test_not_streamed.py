"""Answers that do not stream show no first token: their prompts hold the prefill budget for as long as was predicted.

At a first guess of the engine's speed that cost a third to a half of the throughput, where nothing streams at all:
the engine computed 10,000 prompt tokens a second and was given 4,000. What the engine tells of first tokens is enough.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.lab.pages import MISSING
from bench.scenarios.base import CHAT, LONG_PROMPTS, STANDARD, Kind, Setup, Variant, capacity_per_s, engines, run
from penstock.sim.engine.strange import Strange
from penstock.sim.world.workload import Poisson, Stream

DURATION_S, WARM_S = 60.0, 15.0


@pytest.mark.parametrize(
    ("kind", "budget", "at_least"),
    [(CHAT, 16_384, 0.98), (CHAT, 2048, 0.98), (LONG_PROMPTS, 16_384, 0.96)],
    ids=["chat", "chat, a small budget", "long prompts"],
)
def test_without_streams_the_prefill_budget_costs_no_throughput(kind: Kind, budget: int, at_least: float) -> None:
    pool = engines()
    streams = (Stream("t", Poisson(1.3 * capacity_per_s(pool, kind)), *kind, band=STANDARD, streamed=False),)
    through, ours = (
        run(Setup(1, DURATION_S), variant, streams, warm_s=WARM_S).utilisation()
        for variant in (
            Variant("pass-through", engines=pool, queue=False),
            Variant("penstock", engines=pool, prefill_tokens_max=budget),
        )
    )
    assert ours >= at_least * through


@pytest.mark.parametrize(("kind", "at_least"), [(CHAT, 0.95), (LONG_PROMPTS, 0.8)], ids=["chat", "long prompts"])
def test_also_without_first_tokens_on_the_page(kind: Kind, at_least: float) -> None:
    """It was 0.65 and 0.63 of pass-through: how long whole answers take shows how long their prompts do."""
    pool = tuple(replace(engine, strange=Strange(page=MISSING)) for engine in engines())
    streams = (Stream("t", Poisson(1.3 * capacity_per_s(pool, kind)), *kind, band=STANDARD, streamed=False),)
    through, ours = (
        run(Setup(1, DURATION_S), Variant(name, engines=pool, queue=queue), streams, warm_s=WARM_S).utilisation()
        for name, queue in (("pass-through", False), ("penstock", True))
    )
    assert ours >= at_least * through
