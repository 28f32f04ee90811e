"""An engine that reports no size is put to work in every fresh start: `python -m bench slots`, with marks."""

from __future__ import annotations

import pytest

from bench.slots import SITUATIONS, Start, run

SEEDS = (1, 2)


def started(name: str, seed: int) -> Start:
    return run(SITUATIONS[name], seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "name", ["queue64", "queue64/lengths", "starved", "hang-ups", "hang-ups/64", "size/16", "half/64"]
)
def test_no_start_leaves_slots_idle_or_requests_waiting_inside(name: str, seed: int) -> None:
    start = started(name, seed)
    assert start.of_told >= 0.95, start
    assert start.queue_mean <= 2.0, start
    size = SITUATIONS[name].slots
    assert 0.9 * size <= start.slots_least, start
    assert start.slots_most <= max(1.3 * size, size + 2), start


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["mix256", "whole256", "stream256"])
def test_short_answers_behind_a_slow_server_use_all_slots(name: str, seed: int) -> None:
    start = started(name, seed)
    assert start.of_told >= 0.95, start
    assert start.queue_mean <= 4.0, start
    assert start.slots_least >= 0.9 * 256, start


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["whole-then-streams", "whole-then-streams/page"])
def test_streams_after_whole_answers_flow_from_the_second_second_on(name: str, seed: int) -> None:
    assert started(name, seed).ends_second_s >= 200.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["flood1000", "flood1000/idle"])
def test_a_flood_of_a_thousand_waits_in_the_gateway(name: str, seed: int) -> None:
    start = started(name, seed)
    assert start.queue_most <= 10.0, start
    assert start.of_told >= 0.95, start


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["busy64", "busy256", "busy64/no-page"])
def test_whole_answers_of_a_busy_machine_lock_no_limit(name: str, seed: int) -> None:
    """Without a page it was 0.23 and 0.25: the machine's slowness was taken for a queue, and the limit fell to 4."""
    start = started(name, seed)
    assert start.of_told >= 0.9, start
    assert start.queue_mean <= 16.0, start
