"""Storms of facts at the gate: whatever comes, all invariants hold after each fact, and nothing is left at the end.

And what a fact costs with ten thousand sessions, counted in calls.
"""

from __future__ import annotations

import sys
from random import Random
from types import FrameType

import msgspec
import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.values.settings import QueueBounds, SessionSettings
from tests.core.sessions.test_gate import Bench

STEPS = 400


def check(bench: Bench) -> None:
    """All invariants hold."""
    assert isinstance(bench.scheduler, CheckedScheduler)
    bench.scheduler.check(now=bench.now)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_storm_of_everything_leaves_nothing_behind(seed: int) -> None:
    random = Random(seed)
    bench = Bench(1000, 600, 1500, wait_s=20.0, lease_s=5.0, slice_s=8.0, bands=("high", "low"), routing="kv")
    names = [f"s{n}" for n in range(40)]
    on = bench.settings
    off = msgspec.structs.replace(on, sessions=SessionSettings(memory=False))
    here = {"e0", "e1", "e2"}
    for _ in range(STEPS):
        what = random.random()
        turns = [*bench.leases, *(x for x in bench.scheduler.requests_of("t0", running=False))]
        if what < 0.42:
            name = random.choice(names)
            tokens = random.choice((1, 90, 200, 400, 5000))
            part = random.choice(("", "", "", "agent"))
            tenant = f"t{random.randrange(3)}"
            keys = tuple(random.sample(range(30), 3)) if random.random() < 0.5 else ()
            last = random.random() < 0.1
            bench.turn(name, tokens, tenant=tenant, part=part, band=random.randrange(2), last=last, keys=keys)
        elif what < 0.7 and bench.leases:
            bench.end(random.choice(list(bench.leases)), random.randrange(50), cached=random.choice((None, 0, 80)))
        elif what < 0.8 and turns:
            bench.give_up(random.choice(turns))
        elif what < 0.81:
            bench.gave_up(*random.sample(range(30), 5), endpoint=random.choice(("e0", "e1", "e2")))
        elif what < 0.84:
            bench.now += random.choice((0.1, 3.0, 30.0, 100_000.0))  # the clock jumps
            bench.later(0.0)
        elif what < 0.87:
            bench.do(bench.scheduler.reconfigured(random.choice((on, off)), now=bench.now))
        elif what < 0.9 and len(here) > 1:
            gone = random.choice(sorted(here))
            here.discard(gone)
            bench.do(bench.scheduler.endpoint_removed(gone, now=bench.now))
        elif what < 0.93:
            for name in sorted({"e0", "e1", "e2"} - here):
                bench.add(name, random.choice((500, 1000, 4000)))
            here = {"e0", "e1", "e2"}
        elif what < 0.96:
            name = random.choice(sorted(here))
            bench.do(bench.scheduler.endpoint_down(name, now=bench.now))
            bench.later(0.5)
            if name in here:
                bench.do(bench.scheduler.endpoint_up(name, now=bench.now))
        else:
            act = random.choice(
                (bench.scheduler.session_paused, bench.scheduler.session_resumed, bench.scheduler.session_preferred)
            )
            bench.do(act("t0", random.choice(names), now=bench.now))
        bench.later(0.3 * random.random())
        check(bench)
    for turn in list(bench.scheduler.inspect().entries):
        bench.give_up(turn)
    for name in sorted(here):
        bench.do(bench.scheduler.endpoint_removed(name, now=bench.now))
    check(bench)
    assert bench.idle()
    assert not any(holder.booked or holder.line for holder in bench.gate.ledger.holders.values())
    assert bench.gate.pauses + bench.gate.forced > 0, "the storm was none"


def calls(what: object) -> int:
    """How many functions are called, those of the interpreter too."""
    count = 0

    def note(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        what()  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("held", "resident"), [(10_000, 1), (0, 40), (5_000, 20)])
def test_a_fact_costs_no_walk_over_all_sessions(held: int, resident: int) -> None:
    """Endpoints with 250 residents each: ten thousand sessions are at forty of them."""
    few, many = turn_costs(20, 1, 20), turn_costs(held, resident, 250)
    assert many <= few + 60 * resident, "it asks each endpoint, and no session"


def turn_costs(held: int, endpoints: int, residents: int) -> int:
    """How many calls a turn's end and the next one's beginning take, with so many sessions held and resident."""
    tokens = [residents * 20] * endpoints
    bench = Bench(*tokens, lease_s=1e9, checked=False, bounds=QueueBounds(requests_max=100_000))
    for number in range(residents * endpoints - 1):
        bench.whole(f"r{number}", 10)
    running = bench.turn("running", 10)
    for name, memory in bench.gate.ledger.memories.items():
        bench.scheduler.endpoint_changed(name, kv_tokens=max(memory.booked, 1), now=bench.now)
    for number in range(held):
        bench.turn(f"h{number}", 10)
    assert (bench.gate.waiting, bench.held("t")) == (held, residents * endpoints * 10)

    def fact() -> None:
        nonlocal running
        bench.end(running)
        running = bench.turn("running", 10)

    return min(calls(fact) for _ in range(2))  # one end in a thousand also divides the kept stories
