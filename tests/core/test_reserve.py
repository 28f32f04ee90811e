"""How many slots are kept for light flows: enough that one in fifty waits, none when nobody comes."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from penstock.core.reserve import MISS, MODELS_MAX, SHARE_MAX, Rate, Reserve, slots_reserved


def test_a_steady_rate_is_found_and_forgotten() -> None:
    rate = Rate()
    for at in range(600):
        rate.note(at / 10)
    assert rate.per_s(60.0) == pytest.approx(10.0, rel=0.05)
    assert rate.per_s(200.0) < 0.01


def test_many_events_in_one_moment_are_counted_each() -> None:
    rate = Rate()
    for _ in range(50):
        rate.note(1.0)
    assert rate.per_s(1.0) == pytest.approx(5.0)


def test_without_light_arrivals_nothing_is_kept() -> None:
    assert slots_reserved(0.0, 10.0, 64) == 0
    assert slots_reserved(0.04, 10.0, 64) == 0
    assert Reserve(None).kept("m", 64, 0.0) == 0


def test_it_is_never_more_than_a_share_of_the_slots() -> None:
    for slots in (0, 1, 3, 8, 64):
        assert slots_reserved(100.0, 1.0, slots) == slots_reserved(100.0, 0.0, slots) <= slots * SHARE_MAX


def test_a_fixed_share_is_what_was_asked_for_whatever_happens() -> None:
    reserve = Reserve(0.1)
    assert [reserve.kept("m", slots, 0.0) for slots in (9, 10, 64)] == [0, 1, 6]


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.5])
def test_one_light_arrival_in_fifty_finds_no_slot(ratio: float) -> None:
    """The stock against a simulated one: arrivals take a slot, one that frees refills it."""
    random, stock = Random(1), slots_reserved(ratio * 10, 10.0, 1000)
    free, missed, events = stock, 0, [(random.expovariate(ratio), "arrive"), (random.expovariate(1.0), "free")]
    heapq.heapify(events)
    arrived = 0
    while arrived < 50_000:
        at, event = heapq.heappop(events)
        if event == "arrive":
            arrived += 1
            missed += free == 0
            free = max(free - 1, 0)
            heapq.heappush(events, (at + random.expovariate(ratio), event))
        else:
            free = min(free + 1, stock)
            heapq.heappush(events, (at + random.expovariate(1.0), event))
    assert missed / arrived <= 1.1 * MISS
    assert stock == 1 or missed / arrived >= MISS * ratio / 2  # and not many slots more than that takes


def test_it_grows_with_arrivals_and_is_gone_some_time_after_the_last() -> None:
    reserve = Reserve(None)
    for at in range(300):
        reserve.arrived("m", at / 10)
        reserve.freed("m", at / 10)
        reserve.freed("m", at / 10)
    assert reserve.kept("m", 64, 30.0) == 6
    assert reserve.kept("n", 64, 30.0) == 0
    assert reserve.kept("m", 64, 90.0) == 0


def test_callers_who_invent_models_cost_a_bounded_amount_of_memory() -> None:
    reserve = Reserve(None)
    for at in range(3 * MODELS_MAX):
        reserve.arrived(f"m{at}", 0.0)
        reserve.freed(f"m{at}", 0.0)
        reserve.kept(f"m{at}", at, 0.0)
    assert max(len(kept) for kept in (reserve._arrivals, reserve._freed, reserve._kept)) <= MODELS_MAX
