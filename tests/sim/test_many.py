"""One queue whoever carries the requests, in virtual time: lines, deaths, and small versions of the scenarios.

The full ones are `python -m bench scenarios workers` and `gateways`; docs/results.md has their figures.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from bench.many.link import OneWay, Wire
from bench.many.many_world import Fleet, Kill, ManyWorld
from bench.scenarios.base import STANDARD, Setup, Variant, engines, run
from bench.scenarios.gateways import INGRESS, PLACEMENTS, tokens_got
from penstock.sim.world.report import jain
from penstock.sim.world.workload import Constant, InFlight, Poisson, Stream
from tests.sim.goals import kept

# --- lines ------------------------------------------------------------------------------------------------------------


class Hours:
    """A clock, and what happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, event: Callable[[], None], /) -> None:
        self._events += 1
        heapq.heappush(self._heap, (when, self._events, event))

    def run(self, until_s: float) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            self.now, _, event = heapq.heappop(self._heap)
            event()
        self.now = until_s


def _line(hours: Hours, wire: Wire) -> tuple[OneWay[int], list[tuple[float, list[int]]]]:
    came: list[tuple[float, list[int]]] = []

    def write(messages: Sequence[int]) -> bytes:
        return bytes(messages)

    return OneWay(hours, wire, Random(1), write=write, arrive=lambda data: came.append((hours.now, list(data)))), came


def test_all_that_is_said_in_one_turn_is_one_frame() -> None:
    hours = Hours()
    line, came = _line(hours, Wire(0.01, 0.01))
    line.say(1)
    line.say(2)
    hours.run(0.005)
    line.say(3)
    hours.run(1.0)
    assert came == [(0.01, [1, 2]), (pytest.approx(0.015), [3])]


def test_nothing_overtakes_a_resent_message() -> None:
    hours = Hours()
    line, came = _line(hours, Wire(0.001, 0.02, lost=0.2))
    for number in range(100):
        hours.at(number * 0.01, partial(line.say, number))
    hours.run(10.0)
    assert [number for _, numbers in came for number in numbers] == list(range(100))
    assert max(when - numbers[0] * 0.01 for when, numbers in came) > 0.2


def test_a_partition_keeps_messages_until_it_heals_or_is_given_up() -> None:
    hours = Hours()
    line, came = _line(hours, Wire(0.001, 0.001))
    line.cut()
    line.say(1)
    hours.run(1.0)
    assert came == []
    line.mend()
    assert came == [(1.0, [1])]
    line.cut()
    line.say(2)
    hours.run(2.0)
    line.close()
    line.mend()
    line.say(3)
    hours.run(3.0)
    assert came == [(1.0, [1])]


# --- the world --------------------------------------------------------------------------------------------------------


def _chats(**more: float) -> tuple[Stream, ...]:
    return tuple(
        Stream(f"t{number}", Poisson(12.0), Constant(400), Constant(60), band=STANDARD, deadline_s=2.0, **more)  # type: ignore[arg-type]
        for number in range(3)
    )


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(4, kills=(Kill(1, 3.0, 0.5), Kill(2, 4.0, 0.5), Kill(1, 5.0, 2.0))),
        Fleet(3, Wire(0.0, 0.2, lost=0.02), apart=True, kills=(Kill(0, 4.0, 0.5), Kill(1, 4.0, 0.5))),
        Fleet(3, one_queue=False),
    ],
    ids=["gateways", "workers on a bad line", "each alone"],
)
def test_the_scheduler_proves_itself_behind_edges_and_nothing_is_left_behind(fleet: Fleet) -> None:
    """Clocks are days apart, and deadlines are kept all the same: clients hang up, gateways die."""
    streams = _chats(hang_up_share=0.2, hang_up_s=1.0)
    variant = Variant("checked", engines=engines(2, slots=6))
    done = run(Setup(1, 8.0, checked=True), variant, streams, warm_s=0.0, kind=partial(ManyWorld, fleet=fleet))
    world = done.world
    assert isinstance(world, ManyWorld)
    reasons = {j.reason for j in world.done if j.outcome == "failed"}
    assert reasons == ({"gateway_died"} if fleet.kills else set())
    assert sum(j.outcome == "completed" for j in world.done) > 60
    assert any(j.reason == "deadline_missed" for j in world.done)
    assert world.most_over_slots == 0
    assert world.left_behind() == 0


def test_a_run_repeats_to_the_last_event() -> None:
    def ends() -> list[tuple[str, float | None]]:
        variant = Variant("twice", engines=engines(1, slots=8))
        fleet = Fleet(3, kills=(Kill(1, 2.0, 0.5),))
        streams = (Stream("a", InFlight(20), Constant(100), Constant(40), band=STANDARD), *_chats())
        done = run(Setup(5, 5.0), variant, streams, warm_s=0.0, kind=partial(ManyWorld, fleet=fleet))
        return [(j.job.id, j.ended_s) for j in done.world.done]

    assert ends() == ends()


# --- the scenarios ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ingress", ["skewed", pytest.param("swapped", marks=pytest.mark.slow)])
def test_weights_hold_wherever_requests_come_in_and_are_lost_where_each_decides_alone(ingress: str) -> None:
    asked, weights = Setup(1, 60.0), {"a": 4.0, "b": 1.0}
    got = tokens_got(asked, "one queue", weights, INGRESS[ingress], 2, one_queue=True)
    assert got["a"] / got["b"] == pytest.approx(4.0, rel=0.05), got  # over three minutes it is 2 %
    alone = tokens_got(asked, "each alone", weights, INGRESS[ingress], 2, one_queue=False)
    assert alone["a"] / alone["b"] == pytest.approx(1.0, rel=0.1), alone


@pytest.mark.slow
def test_four_tenants_get_the_same_at_four_gateways() -> None:
    count, placement = PLACEMENTS["A|B|C|C+D on 4"]
    asked, weights = Setup(1, 60.0), dict.fromkeys("abcd", 1.0)
    got = tokens_got(asked, "one queue", weights, placement, count, one_queue=True)
    assert jain(list(got.values())) >= 0.995, got
    alone = tokens_got(asked, "each alone", weights, placement, count, one_queue=False)
    assert jain(list(alone.values())) < 0.95, alone


@pytest.mark.slow
def test_workers_isolate_like_one_process_and_a_killed_one_loses_only_its_requests() -> None:
    kept("workers", 60.0, "")
