"""What the scheduler promises of isolation, in virtual time: small versions of the scenarios, held against their goals.

The full ones are `penstock simulate --scenario all --seeds 1,2,3`; docs/results.md has their figures. Where a goal is
not reached, the test holds what is (`held`), so that it gets no worse unseen.
"""

from __future__ import annotations

from tests.sim.goals import held, kept, result


def test_a_flood_of_long_answers_does_not_slow_the_light_tenants() -> None:
    kept("flood", 100.0, "p99 TTFT / alone: penstock")


def test_isolation_from_long_answers_costs_no_throughput() -> None:
    kept("flood", 100.0, "throughput / pass-through: penstock")


def test_isolation_holds_where_nobody_told_the_engines_size() -> None:
    kept("flood", 100.0, "light p99 TTFT / alone: slots unknown")


def test_a_flood_of_long_prompts_slows_the_light_tenants_by_half_a_prompt() -> None:
    """The engine computes prompts first come, first served: a light one waits for the one that is being computed where
    less is left of it.
    """
    held("flood_prompts", 100.0, "light p99 TTFT / alone: penstock", at_most=2.4)


def test_isolation_from_long_prompts_costs_no_throughput() -> None:
    kept("flood_prompts", 100.0, "throughput / pass-through: penstock")


def test_on_small_engines_isolation_is_bought_with_a_sixth_of_the_throughput() -> None:
    """In so short a run the p99 is that of a few requests: 1.4 to 4.7 from state to state and seed to seed."""
    held("flood_small", 240.0, "light p99 TTFT / alone: reserve auto", at_most=5.0)
    assert result("flood_small", 240.0).value("throughput / pass-through: reserve auto") >= 0.82
