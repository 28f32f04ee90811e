"""The story of a request in words, and the causes of the rows below the headline."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.explain.explanation import Explanation
from penstock.core.explain.snapshot import Snapshot
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.catalogue import Cause
from penstock.core.values.settings import BandSettings
from penstock.gateway.admin.headline import Around, sentences, verdict
from penstock.gateway.admin.picture.steady import Steady
from penstock.gateway.admin.story import story
from tests.core.drive import request, scheduler, the_lease
from tests.core.sessions.test_gate import Bench

TURN = "other requests go first: higher bands, or tenants that got less for their weight"


def starved() -> CheckedScheduler:
    """One slot for two bands: `item` waits while requests of the higher one go first."""
    made = scheduler(SchedulerSettings(bands=(BandSettings("chat"), BandSettings("batch"))), a=1)
    lease = the_lease(made.arrived(request("r0"), now=0.0))
    made.arrived(request("item", band=1, tenant="nightly"), now=0.0)
    for at in range(1, 9):
        made.arrived(request(f"r{at}"), now=float(at))
        lease = the_lease(made.finished(lease, None, now=at + 0.5))
    made.arrived(request("r9"), now=9.0)
    return made


def explained(made: CheckedScheduler, name: str, **changes: Any) -> str:
    told = made.explain(name, now=9.0)
    assert isinstance(told, Explanation)
    return next(line for line in story(msgspec.structs.replace(told, **changes)) if line.startswith("Waits now: "))


def test_a_request_that_higher_bands_overtake_is_promised_no_time() -> None:
    assert explained(starved(), "item", estimated_wait_s=9.0) == (
        f"Waits now: {TURN} (turn); at 1 endpoint all slots it may use are taken; "
        "at least 9.0 s more, and as long as higher bands keep sending."
    )


def test_a_request_of_the_highest_band_gets_the_forecast_and_its_cause_once() -> None:
    assert explained(starved(), "r9", estimated_wait_s=2.0) == (
        "Waits now: all slots it may use are taken (slots_full), at 1 endpoint; about 2.0 s more."
    )


@pytest.mark.parametrize(
    ("judges", "said"),
    [
        ({"page": 1}, "; 1 size found by the engine's page"),
        ({"streams": 2, "answers": 1}, "; 2 sizes found by our own streams; 1 size found by the time of whole answers"),
        ({}, ""),
    ],
)
def test_a_full_endpoint_of_unknown_size_is_told_with_the_judge_of_it(judges: dict[str, int], said: str) -> None:
    full = f"{Cause.SLOTS_FULL.sentence} (slots_full), at 1 endpoint"
    assert explained(starved(), "r9", estimated_wait_s=2.0, slots_by=judges) == (
        f"Waits now: {full}{said}; about 2.0 s more."
    )
    paused = explained(starved(), "r9", estimated_wait_s=2.0, slots_by=judges, waits_for=Cause.PAUSED, closed={})
    assert "found by" not in paused, "the size is not what it waits for"


def with_cause(picture: Snapshot, cause: Cause) -> Snapshot:
    """All that wait in the model's first band wait for this; lower bands for their turn."""
    rows = [
        msgspec.structs.replace(row, cause=cause if row.band == "chat" else Cause.TURN)
        for row in picture.requests.waiting
    ]
    return msgspec.structs.replace(
        picture,
        models=[
            msgspec.structs.replace(picture.models[0], cause=cause, closed={Cause.KV_FULL: 1, Cause.PACE: 1}, taken=0)
        ],
        requests=msgspec.structs.replace(picture.requests, waiting=rows),
    )


def test_rows_of_the_next_band_name_the_cause_of_the_headline_and_lower_ones_their_own() -> None:
    steady, picture = Steady(), starved().snapshot(now=9.0)
    for at, cause in enumerate([Cause.KV_FULL, Cause.PACE, Cause.KV_FULL, Cause.PACE]):
        shown = steady.look(with_cause(picture, cause), float(at))
        assert shown.models[0].cause is Cause.KV_FULL
        assert {(row.band, row.cause) for row in shown.requests.waiting} == {
            ("chat", Cause.KV_FULL),
            ("batch", Cause.TURN),
        }


def test_whether_something_is_wrong_is_one_line() -> None:
    made = scheduler(a=1, b=1)

    def said(around: Around | None = None) -> str:
        return verdict(made.snapshot(now=1.0), around)

    assert said() == "Is something wrong? No."
    made.endpoint_drained("b", now=0.0)
    assert said() == "Is something wrong? No, but not everything is as usual."
    for at in range(2):
        made.arrived(request(f"r{at}"), now=0.0)
    assert said() == "Is something wrong? No: there is more work than room."
    assert said(Around(batch_store="disk full")) == "Is something wrong? Yes."
    made.paused(None, now=0.0)
    assert said() == "Is something wrong? No: it was stopped on purpose."
    made.endpoint_down("a", now=0.0)
    assert said() == "Is something wrong? Yes."


def told_of(bench: Bench, request_id: str) -> list[str]:
    told = bench.scheduler.explain(request_id, now=bench.now)
    assert isinstance(told, Explanation)
    return story(told)


def test_a_turn_that_waits_for_memory_is_told_by_its_session() -> None:
    bench = Bench(100_000)
    for _ in range(13):
        bench.whole("refactor", 40_000)
    bench.whole("b", 50_000)
    bench.do(bench.scheduler.session_paused("t", "refactor", now=bench.now))
    bench.turn("c", 45_000)
    waiting = bench.turn("refactor", 83_000)
    bench.later(4.0)
    assert "It is turn 14 of session refactor, which an operator paused." in told_of(bench, waiting)
    assert told_of(bench, waiting)[2].endswith("; unknown how long.")
    bench.do(bench.scheduler.session_resumed("t", "refactor", now=bench.now))
    said = told_of(bench, waiting)
    assert "Waits now: " in said[2]
    assert said[3].startswith(
        "It is turn 14 of session refactor: its 83,000 tokens do not fit beside 1 session; expected "
    )
    assert said[4].startswith("No session waits much longer than 5 min 0 s (`sessions.wait`); that costs ")
    costs = re.fullmatch(r".*; that costs ([\d.]+) % of all prefill now, and 60 s would cost ([\d.]+) %\.", said[4])
    assert costs is not None
    assert float(costs[2]) == pytest.approx(5 * float(costs[1]), abs=2.5)


def test_the_headline_counts_sessions_that_wait_for_memory() -> None:
    bench = Bench(1000)
    bench.turn("a", 900)
    bench.turn("b", 500)
    bench.turn("c", 500)
    bench.later(10.0)
    picture = bench.scheduler.snapshot(now=bench.now)
    whole, sessions, oldest = sentences(picture)
    assert whole == f"Holding 2 for m: {Cause.SESSION_MEMORY.sentence}."
    assert sessions.startswith("2 sessions wait for memory beside 1 resident one: 900 of 1,000 tokens are held, ")
    assert sessions.endswith(", and a wait is bounded by 5 min 0 s.")
    assert oldest == "Oldest 10.0 s."
    assert verdict(picture) == "Is something wrong? No: there is more work than room."


def test_requests_that_ask_for_a_slot_are_the_models_next_ones_before_held_sessions() -> None:
    bench = Bench(1000)
    bench.do(bench.scheduler.endpoint_changed("e0", slots=1, now=bench.now))
    bench.turn("a", 900)
    bench.turn("b", 500)
    bench.do(bench.scheduler.arrived(request("chat", model="m", tenant="t"), now=bench.now))
    picture = bench.scheduler.snapshot(now=bench.now)
    assert picture.models[0].cause is Cause.SLOTS_FULL
    assert sentences(picture)[1].startswith("1 session waits for memory beside 1 resident one: ")
