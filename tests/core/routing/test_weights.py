"""Weights: how are requests shared among endpoints of the same model that are to get unequal parts?"""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random
from typing import Any

import pytest

from bench.policies import Lmetric, PowerOfTwo
from penstock.conformance.invariants import CheckedScheduler
from penstock.core.routing.policies.registry import POLICIES
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.settings import EndpointSpec
from tests.core import drive


def shares(
    routing: str,
    weights: dict[str, float],
    *,
    in_flight: float,
    slots: int = 64,
    requests: int = 2_000,
    service_s: float = 10.0,
    sessions: bool = False,
    slower: str = "",
    kind: type[Scheduler] = Scheduler,
) -> dict[str, float]:
    """The part of the requests that each endpoint gets.

    They come at random, so many that on average `in_flight` run, and take from half to one and a half times
    `service_s`, or three times that at an endpoint that is `slower`. A checked scheduler takes three times as long.
    """
    draw = Random(7)
    made = kind(SchedulerSettings(routing=routing, wait_s_max=1e6), random=Random(1))
    for name, weight in weights.items():
        spec = EndpointSpec(name=name, slots=slots, models=frozenset({"m"}), weight=weight)
        made.endpoint_added(spec, now=0.0)
    sent: Counter[str] = Counter()
    ending: list[tuple[float, int]] = []

    def carry_out(actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                sent[action.endpoint] += 1
                times = 3.0 if action.endpoint == slower else 1.0
                heapq.heappush(ending, (now + times * service_s * draw.uniform(0.5, 1.5), action.lease))

    now = 0.0
    for at in range(requests):
        now += draw.expovariate(in_flight / service_s)
        while ending and ending[0][0] <= now:
            end_s, lease = heapq.heappop(ending)
            carry_out(made.finished(lease, now=end_s), end_s)
        more: dict[str, Any] = {"session": f"s{at}"} if sessions else {}
        carry_out(made.arrived(drive.request(f"r{at}", **more), now=now), now)
    return {name: sent[name] / sent.total() for name in weights}


@pytest.mark.parametrize("in_flight", [0.2, 1, 2, 3, 5, 8, 20, 40])
@pytest.mark.parametrize("routing", ["round_robin", "least_loaded"])
def test_three_to_one_is_three_of_four_while_slots_are_free(routing: str, in_flight: float) -> None:
    found = shares(routing, {"a": 3.0, "b": 1.0}, in_flight=in_flight)
    assert found["a"] == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    ("routing", "sessions", "in_flight", "off"),
    [
        ("predicted_ttft", False, 4, 0.02),
        ("prefix", False, 4, 0.02),
        ("kv", False, 4, 0.02),
        ("session", True, 40, 0.03),  # of fewer, whole requests are too large a part for the bound on each one's load
    ],
)
def test_other_policies_go_by_weight_where_nothing_they_go_by_differs(
    routing: str, sessions: bool, in_flight: int, off: float
) -> None:
    found = shares(routing, {"a": 3.0, "b": 1.0}, in_flight=in_flight, sessions=sessions, kind=CheckedScheduler)
    assert found["a"] == pytest.approx(0.75, abs=off)


@pytest.mark.interpreted  # a policy beside the package stands on compiled ones
def test_lots_are_drawn_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "power_of_two", PowerOfTwo)
    found = shares("power_of_two", {"a": 4.0, "b": 1.0, "c": 1.0}, in_flight=12)
    assert found["a"] == pytest.approx(4 / 6, abs=0.06)
    assert found["b"] == pytest.approx(found["c"], abs=0.03)


@pytest.mark.interpreted  # a policy beside the package stands on compiled ones
def test_a_batch_and_a_prompt_weigh_less_where_the_weight_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "lmetric", Lmetric)
    found = shares("lmetric", {"a": 3.0, "b": 1.0}, in_flight=20)
    assert found["a"] == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize("routing", ["round_robin", "least_loaded"])
def test_with_all_slots_taken_slots_rule(routing: str) -> None:
    found = shares(routing, {"a": 3.0, "b": 1.0}, in_flight=16, slots=4, requests=500, kind=CheckedScheduler)
    assert found["a"] == pytest.approx(0.5, abs=0.02)


def test_the_one_that_takes_longer_gets_less_than_its_weight_says_by_load_and_as_much_by_turns() -> None:
    weights = {"a": 3.0, "b": 1.0}
    assert shares("least_loaded", weights, in_flight=20, slower="a")["a"] < 0.65
    assert shares("round_robin", weights, in_flight=20, slower="a")["a"] == pytest.approx(0.75, abs=0.02)


def weighted(**weights: float) -> CheckedScheduler:
    made = drive.scheduler(SchedulerSettings(routing="least_loaded"))
    for name, weight in weights.items():
        made.endpoint_added(EndpointSpec(name=name, slots=8, models=frozenset({"m"}), weight=weight), now=0.0)
    return made


def ask(made: CheckedScheduler, count: int, *, at: int = 0) -> str:
    """Requests that each end before the next comes: where each went."""
    found = ""
    for number in range(at, at + count):
        actions = made.arrived(drive.request(f"r{number}"), now=number)
        made.finished(drive.the_lease(actions), now=number + 0.5)
        found += drive.sent(actions)[0][1]
    return found


def test_turns_are_spread_and_not_taken_in_a_row() -> None:
    assert ask(weighted(a=3.0, b=1.0), 12) == "abaaabaaabaa"


def test_who_comes_late_or_back_is_owed_one_turn_and_not_all_of_them() -> None:
    made = weighted(a=3.0, b=1.0)
    ask(made, 40)
    made.endpoint_added(EndpointSpec(name="c", slots=8, models=frozenset({"m"}), weight=1.0), now=40.0)
    made.endpoint_down("b", now=40.0)
    without = ask(made, 40, at=100)
    assert without.count("c") == 10
    assert "cc" not in without
    made.endpoint_up("b", now=150.0)
    after = ask(made, 50, at=200)
    assert after.count("a") == 29
    assert after.count("b") == 11, "its own ten, and the one that it was owed"


def test_a_weight_that_changes_while_running_divides_from_then_on() -> None:
    made = weighted(a=1.0, b=1.0)
    assert ask(made, 20).count("a") == 10
    made.endpoint_changed("a", weight=4.0, now=20.0)
    assert ask(made, 20, at=100).count("a") == 16
    made.endpoint_changed("a", weight=1.0, now=150.0)
    assert ask(made, 20, at=200).count("a") == 10
