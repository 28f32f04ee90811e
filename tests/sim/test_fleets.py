"""Gateways that elect who decides, while they die and lose each other: nothing is lost, nothing done twice.

A few seeds of what `python -m tests.sim.long_fleet` runs by the thousand.
"""

from __future__ import annotations

import pytest

from bench.many.elected_world import ElectedWorld, Harm, What
from bench.scenarios.base import Setup
from bench.scenarios.failover import cases, cut_measures, harmed
from tests.sim.fleets import fleet, prove
from tests.sim.goals import kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_with_any_fault_each_request_ends_once_and_no_slot_is_lost_or_shared(seed: int) -> None:
    world = fleet(seed)
    prove(world)
    assert world.looks > 5000
    assert len(world.elections) > 1


def test_a_fleet_repeats_to_the_last_event() -> None:
    ends = []
    for _ in range(2):
        world = fleet(2, duration_s=30.0)
        world.run()
        ends.append([(journey.job.id, journey.ended_s) for journey in world.done])
    assert ends[0] == ends[1]
    assert ends[0]


@pytest.mark.slow
def test_a_leaders_death_breaks_no_other_gateways_stream_and_delays_requests_little() -> None:
    kept("decider_death", 60.0, "")


@pytest.mark.slow
def test_without_store_and_decider_each_decides_alone_and_is_one_queue_again_afterwards() -> None:
    setup = Setup(1, 90.0)  # less would leave some seconds after it, in which some get what they missed
    calm = harmed(setup, "nothing happens", ())
    measures = cut_measures(setup, "all three", harmed(setup, "all three", cases(setup)["all three"]), calm)
    found = {measure.name.partition(":")[0]: measure for measure in measures}
    assert all(measure.met for measure in measures), [measure for measure in measures if not measure.met]
    assert found["deciders at a time"].value == 4
    assert found["Jain meanwhile"].value > 0.9
    assert found["Jain after"].value > 0.97


def test_one_that_was_elected_while_another_decided_alone_in_the_same_epoch_gets_it_back() -> None:
    """Both have the epoch after the first decider's: neither is the higher one, and they number leases alike."""
    harms = (Harm(What.CUT_OFF, 5.0, 13.0, 3), Harm(What.DIES, 11.0, 3.0))
    done = harmed(Setup(1, 26.0), "a tie", harms)
    world = done.world
    assert isinstance(world, ElectedWorld)
    assert world.alone_s[0][1] == 3
    assert world.elections[1][2] == 2
    assert world.deciders_followed[-1][1] == 1
    assert {journey.reason for journey in world.done if journey.outcome == "failed"} == {"gateway_died"}
