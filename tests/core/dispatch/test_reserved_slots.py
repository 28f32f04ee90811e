"""How many slots are kept for light flows: enough that few of them wait, none when nobody comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

import pytest

from penstock.core.dispatch.reserved_slots import ReservedSlots, slots_reserved
from penstock.core.queueing.fair_tree import Node

MODELS_MAX = 1000


def reserve_of(model: str = "m", *, every_s: float = 0.1) -> ReservedSlots:
    """A reserve that saw light arrivals for half a minute."""
    reserve = ReservedSlots(None)
    for at in range(round(30.0 / every_s)):
        reserve.arrived(model, at * every_s)
    return reserve


def frees(*after_s: float) -> Callable[[str, float], list[float]]:
    return lambda model, now: list(after_s)


def test_without_light_arrivals_nothing_is_kept() -> None:
    assert slots_reserved(0.0, [1.0], 64) == 0
    assert slots_reserved(0.04, [1.0], 64) == 0
    assert ReservedSlots(None).count("m", 64, frees(1.0), 0.0) == 0


def test_where_nothing_is_about_to_free_nothing_is_known() -> None:
    assert slots_reserved(5.0, [], 64) == 0


@pytest.mark.parametrize("slots", [0, 1, 3, 8, 64])
def test_it_is_never_more_than_a_share_of_the_slots(slots: int) -> None:
    assert slots_reserved(1000.0, [100.0, 200.0], slots) == int(slots * 0.25)


def test_a_fixed_share_is_what_was_asked_for_whatever_happens() -> None:
    reserve = ReservedSlots(0.1)
    assert [reserve.count("m", slots, frees(), 0.0) for slots in (9, 10, 64)] == [0, 1, 6]


@pytest.mark.parametrize(("per_s", "gap_s"), [(1.0, 0.5), (1.0, 2.0), (4.0, 1.0)])
def test_few_light_arrivals_find_no_slot_while_others_free_one_by_one(per_s: float, gap_s: float) -> None:
    """The stock against a simulated one: it is full, then light requests come while slots free at known times."""
    random, ends_s = Random(1), [gap_s * at for at in range(1, 9)]
    stock = slots_reserved(per_s, ends_s, 1000)
    missed = arrived = 0
    for _ in range(3000):
        free, at = stock, random.expovariate(per_s)
        due_s = deque(ends_s)
        while at <= ends_s[-1]:
            while due_s and due_s[0] <= at:
                due_s.popleft()
                free += 1
            arrived += 1
            missed += free == 0
            free = max(free - 1, 0)
            at += random.expovariate(per_s)
    assert missed / arrived <= 0.05


def test_it_grows_with_arrivals_and_is_gone_some_time_after_the_last() -> None:
    often, seldom = reserve_of(every_s=0.1), reserve_of(every_s=1.0)
    assert often.count("m", 64, frees(0.5), 30.0) > seldom.count("m", 64, frees(0.5), 30.0) > 0
    assert often.count("n", 64, frees(0.5), 30.0) == 0
    assert often.count("m", 64, frees(0.5), 100.0) == 0


def test_slots_about_to_free_make_it_smaller() -> None:
    assert reserve_of().count("m", 64, frees(0.01, 0.02, 0.03), 30.0) < reserve_of().count("m", 64, frees(2.0), 30.0)


def test_active_weight_fades_and_does_not_fall_at_once() -> None:
    reserve, tree = ReservedSlots(None), Node("", None, 1.0, 0)
    reserve.weight_seen(tree, 9.0, 0.0)
    reserve.weight_seen(tree, 1.0, 1.0)
    assert 8.0 < reserve.weight(tree, 1.0) < 9.0
    assert reserve.weight(tree, 1000.0) < 0.1


def test_weight_of_another_band_does_not_count() -> None:
    reserve, tree = ReservedSlots(None), Node("", None, 1.0, 0)
    reserve.weight_seen(Node("", None, 1.0, 0), 9.0, 0.0)
    assert reserve.weight(tree, 0.0) == 0.0
    reserve.weight_seen(tree, 2.0, 0.0)
    reserve.reconfigured(None)
    assert reserve.weight(tree, 0.0) == 0.0


def test_callers_who_invent_models_cost_a_bounded_amount_of_memory() -> None:
    reserve = ReservedSlots(None)
    for at in range(3 * MODELS_MAX):
        reserve.arrived(f"m{at}", 0.0)
        reserve.freed(f"m{at}", 0.0)
        reserve.count(f"m{at}", 64, frees(1.0), 0.0)
    assert max(len(reserve._arrivals), len(reserve._freed), len(reserve._counts)) <= MODELS_MAX
