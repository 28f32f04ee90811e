"""How scenario tests are held against their goals: each scenario runs once, whatever many tests ask of it."""

from __future__ import annotations

from functools import cache

from bench.report import RunResult
from bench.scenarios.registry import SCENARIOS, Setup

#: Variants that no test looks at; and the longest absence of a tenant that comes back: a minute saves up enough.
WITHOUT = {
    "flood_prompts": frozenset({"routed by load", "prefill budget 4096"}),
    "grouping": frozenset({"none, cached at full price"}),
    "mixed_sizes": frozenset({"fcfs"}),
    "returning_tenant": frozenset({"idle for 300 s"}),
}


@cache
def result(name: str, duration_s: float) -> RunResult:
    return SCENARIOS[name].run(Setup(1, duration_s, without=WITHOUT.get(name, frozenset())))


def kept(name: str, duration_s: float, figures: str) -> None:
    """Assert that the figures whose names have this in them meet their goals, and that there are some."""
    found = [m for m in result(name, duration_s).measures if figures in m.name and m.goal is not None]
    assert found, f"{name} has no goal for {figures!r}"
    for measure in found:
        assert measure.met, f"{name}: {measure.name} is {measure.value:.4g}, the goal is {measure.goal}"


def held(name: str, duration_s: float, figure: str, *, at_most: float) -> None:
    """Assert that one figure, whose goal is not reached, is no worse than this."""
    value = result(name, duration_s).value(figure)
    assert value <= at_most, f"{name}: {figure} is {value:.4g}, it was at most {at_most}"
