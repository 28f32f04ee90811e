"""The sentence that the page, `top` and `status` open with: state, cause and the numbers that show it."""

from __future__ import annotations

import msgspec

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.explain.snapshot import ALL
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.catalogue import Cause, Failure
from penstock.core.values.lifecycle import State
from penstock.core.values.observation import Observation
from penstock.core.values.rows import FlowSnapshot
from penstock.core.values.settings import AdmissionSettings, BandSettings, QueueBounds
from penstock.gateway.admin.failing.advice import advice
from penstock.gateway.admin.failing.lately import FailureWindow
from penstock.gateway.admin.headline import Around, headline, is_by_operators, sentences, tone
from penstock.gateway.admin.requests import DRAIN, PAUSE, StoppedBy
from penstock.gateway.admin.why import endpoint_why, model_why, within
from penstock.gateway.telemetry.failures import Failures, Kind
from tests.core.drive import request, scheduler, the_lease
from tests.core.endpoints.test_liveness import Shop, streams

KV = SchedulerSettings(admission=AdmissionSettings(kv_usage_max=0.9))

KV_FULL = "too little KV memory is free below the ceiling"
TURN = "other requests go first: higher bands, or tenants that got less for their weight"


def said(made: CheckedScheduler, now: float) -> str:
    return headline(made.snapshot(now=now))


def held_by_kv(a: float, b: float, *, prompt_tokens: int = 10) -> CheckedScheduler:
    """Two engines whose memory is that full, and somebody who waits."""
    made = scheduler(KV, a=8, b=8)
    for at in range(2):
        the_lease(made.arrived(request(f"r{at}"), now=0.0))
    for name, usage in (("a", a), ("b", b)):
        reading = Observation(1.0, 1, 0, kv_usage=usage, kv_capacity_tokens=100_000, progress=1)
        made.observed(name, reading, now=1.0)
    made.arrived(request("w", prompt_tokens=prompt_tokens, output_tokens=10), now=1.0)
    assert made.state_of("w") is State.WAITING
    return made


def test_it_names_model_cause_and_the_numbers_that_show_it() -> None:
    made = held_by_kv(0.93, 0.97)
    assert said(made, 5.2) == f"Holding 1 for m: {KV_FULL} of 90 %: 2 of 2 engines, 93–97 % used. Oldest 4.2 s."
    assert tone(made.snapshot(now=5.2)) == "busy"


def test_memory_that_is_not_full_but_too_little_is_told_with_what_is_needed_and_what_is_free() -> None:
    made = held_by_kv(0.6, 0.7, prompt_tokens=60_000)
    needs = "the next request needs ~60,010 tokens (prompt and answer), at most 30,000 are free"
    expected = f"Holding 1 for m: {KV_FULL} of 90 %: 2 of 2 engines, 60–70 % used; {needs}."
    assert said(made, 1.5) == f"{expected} Oldest 500 ms."
    picture = made.snapshot(now=1.5)
    assert [endpoint_why(endpoint, picture) for endpoint in picture.endpoints] == [
        "next request needs ~60,010 KV tokens, 30,000 free below the ceiling of 90 %",
        "next request needs ~60,010 KV tokens, 20,000 free below the ceiling of 90 %",
    ]


def test_slots_that_work_for_disconnected_clients_are_reported() -> None:
    made = scheduler(a=4)
    made.endpoint_changed("a", lingers=True, now=0.0)
    for at in range(8):
        made.arrived(request(f"r{at}"), now=0.0)
    made.observed("a", Observation(1.0, 4, 0, progress=1), now=1.0)
    made.observed("a", Observation(1.5, 4, 0, progress=2), now=1.5)
    for at in range(3):
        made.cancelled(f"r{at}", now=2.0)
    picture = made.snapshot(now=2.5)
    assert picture.endpoints[0].given_up == 3
    assert endpoint_why(picture.endpoints[0], picture) == "3 slots are still busy for clients that hung up"


def test_an_endpoint_over_its_ceiling_says_both() -> None:
    picture = held_by_kv(0.93, 0.97).snapshot(now=2.0)
    assert endpoint_why(picture.endpoints[0], picture) == "93 % of its KV memory is used, the ceiling is 90 %"


def test_the_next_tenant_and_those_behind_by_priority_are_distinguished() -> None:
    bands = (BandSettings("high"), BandSettings("mid"), BandSettings("low"))
    made = scheduler(SchedulerSettings(bands=bands), a=1)
    the_lease(made.arrived(request("r", tenant="x"), now=0.0))
    for at, (band, tenant) in enumerate([(0, "chat"), (1, "search"), (1, "docs"), (1, "web"), *[(2, "nightly")] * 4]):
        made.arrived(request(f"w{at}", band=band, tenant=tenant), now=float(at))
    assert said(made, 9.0) == (
        "Holding 8 for m: all slots are taken, 1 of 1 on 1 engine. Next: 1 high (from chat);"
        " behind, as lower bands wait by design: 3 mid, 4 low (all from nightly). Oldest 9.0 s (high)."
    )


def test_an_endpoint_that_is_missing_leads_the_sentence_and_needs_attention() -> None:
    made = scheduler(a=1, b=1)
    assert said(made, 0.0) == "Idle: nothing waits, nothing runs. 2 of 2 engines are up."
    made.endpoint_down("a", now=0.0)
    assert said(made, 0.0) == "a is down. Idle: nothing waits, nothing runs. 1 of 2 engines is up."
    assert tone(made.snapshot(now=0.0)) == "bad", "although b is there"
    made.endpoint_down("b", now=0.0)
    made.arrived(request("w"), now=0.0)
    assert (
        said(made, 2.0)
        == "2 of 2 endpoints are down. Holding 1 for m: no live endpoint can serve the request. Oldest 2.0 s."
    )
    assert tone(made.snapshot(now=2.0)) == "bad"


def test_an_endpoint_that_an_operator_drained_is_told_last_and_needs_no_attention() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_drained("a", now=0.0)
    assert said(made, 0.0) == "Idle: nothing waits, nothing runs. 1 of 2 engines is up. a is drained by an operator."
    assert tone(made.snapshot(now=0.0)) == "busy"


def test_an_unfinished_drain_is_distinguished_from_a_finished_one() -> None:
    """It said "drained" beside requests that ran there."""
    made = full(scheduler(a=2), 2, waiting=0)
    made.endpoint_drained("a", now=0.5)
    assert "a is being drained by an operator, 2 requests still run there." in said(made, 1.0)
    made.drained("m", now=1.0)
    assert said(made, 1.0).startswith("Being drained by an operator: nothing new is let in for m.")
    made.drained(None, now=1.0)
    assert said(made, 1.0).startswith(
        "Being drained by an operator: nothing new is let in. Nothing waits, 2 requests still run."
    )
    for at in range(2):
        made.cancelled(f"r{at}", now=2.0)
    assert said(made, 2.0).startswith(
        "Drained by an operator: nothing new is let in. Nothing waits, nothing runs: the drain is complete."
    )


def test_whose_word_a_stop_is_and_since_when_is_told() -> None:
    made = scheduler(a=1)
    made.paused("m", now=0.0)
    made.drained(None, now=0.0)
    around = Around(stops={(PAUSE, "m"): StoppedBy("10.0.0.7", 90.0), (DRAIN, ALL): StoppedBy("10.0.0.9", 4.0)})
    assert sentences(made.snapshot(now=1.0), around)[:2] == [
        "Paused by an operator (10.0.0.7, 1 min 30 s ago): m.",
        "Drained by an operator (10.0.0.9, 4.0 s ago): nothing new is let in.",
    ]


def test_a_store_that_is_down_asks_for_attention() -> None:
    """It stood in `status` alone, beside "ok"."""
    made = scheduler(a=1)
    around = Around(batch_store="disk full", key_store="damaged")
    assert sentences(made.snapshot(now=0.0), around)[:2] == [
        "Files and batches are down: disk full.",
        "Issued keys cannot be read, those known so far work: damaged.",
    ]
    assert tone(made.snapshot(now=0.0), around) == "bad"


def test_since_when_an_engine_is_missing_stands_in_the_lead() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_down("a", now=0.0)
    assert sentences(made.snapshot(now=0.0), Around(state_s={"a": 14.2, "b": 90.0}))[0] == "a is down (for 14.2 s)."
    made.endpoint_down("b", now=5.0)
    both = sentences(made.snapshot(now=5.0), Around(state_s={"a": 19.2, "b": 0.0}))
    assert both[0] == "2 of 2 endpoints are down (the first for 19.2 s)."


def test_without_a_known_leader_nothing_is_reported_as_paused() -> None:
    """It said "m is paused", as if an operator had been there."""
    made = scheduler(a=1)
    made.halted(now=0.0)
    made.arrived(request("w"), now=0.0)
    picture = made.snapshot(now=1.0)
    assert picture.models[0].cause is Cause.NO_DECIDER
    assert "it is not known which gateway leads, so nothing is sent." in headline(picture)
    assert picture.requests.waiting[0].cause is Cause.NO_DECIDER
    made.begun(now=2.0)
    assert made.state_of("w") is State.RUNNING


def full(made: CheckedScheduler, count: int, waiting: int = 1) -> CheckedScheduler:
    """So many requests run, and others wait."""
    for at in range(count):
        the_lease(made.arrived(request(f"r{at}"), now=0.0))
    for at in range(waiting):
        made.arrived(request(f"w{at}"), now=0.0)
        assert made.state_of(f"w{at}") is State.WAITING
    return made


def test_slots_are_counted_on_the_engines_that_are_there() -> None:
    """It said "16 of 16 on 2 engines" with one of the two dead."""
    made = scheduler(a=16, b=16)
    made.endpoint_down("b", now=0.0)
    full(made, 16)
    assert said(made, 1.0) == (
        "b is down. Holding 1 for m: all slots are taken, 16 of 16 on 1 engine (1 of 2 out of service). Oldest 1.0 s."
    )


def test_a_turn_is_no_reason_where_no_slot_is_left() -> None:
    """It said "is being handed out in turn" beside 16 of 16, until the first in line was looked at again."""
    picture = full(scheduler(a=2), 2).snapshot(now=1.0)
    in_turn = msgspec.structs.replace(picture.models[0], cause=Cause.TURN)
    assert model_why(in_turn, picture) == "all slots are taken, 2 of 2 on 1 engine"
    room = msgspec.structs.replace(in_turn, taken=1, closed={})
    assert model_why(room, picture) == TURN


def test_what_still_runs_where_nothing_more_goes_takes_no_slot_elsewhere() -> None:
    """It said "19 of 16" while an endpoint was drained."""
    made = full(scheduler(a=16, b=3), 19, waiting=0)
    made.endpoint_drained("b", now=0.5)
    made.arrived(request("w"), now=0.5)
    assert "all slots are taken, 16 of 16 on 1 engine (1 of 2 out of service)." in said(made, 1.0)
    model = made.snapshot(now=1.0).models[0]
    assert (model.running, model.taken, model.slots) == (19, 16, 16)


def test_slots_that_were_taken_away_under_requests_are_told_as_what_they_are() -> None:
    made = full(scheduler(a=8), 8)
    made.endpoint_changed("a", slots=5, now=0.5)
    assert "all slots are taken, 5 of 5 on 1 engine, and 3 more requests run there." in said(made, 1.0)


def test_slots_of_another_model_count_as_taken() -> None:
    """It said "all slots taken, 1 of 4": those of the model itself."""
    made = scheduler(a=4)
    made.endpoint_changed("a", models=["m", "n"], now=0.0)
    for at, model in enumerate("mnnn"):
        the_lease(made.arrived(request(f"r{at}", model=model), now=0.0))
    made.arrived(request("w"), now=0.0)
    assert "all slots are taken, 4 of 4 on 1 engine." in said(made, 1.0)


def test_a_model_with_a_live_endpoint_is_never_reported_without_one() -> None:
    """It said "no endpoint alive" beside one that was alive and refused as busy, or was drained."""
    made = scheduler(a=8, b=8)
    made.endpoint_down("b", now=0.0)
    for lease in [the_lease(made.arrived(request(f"r{at}"), now=1.0)) for at in range(4)]:
        made.failed(lease, Failure.BUSY, now=1.0)  # which leaves it alone for a moment
    for at in range(4):
        made.cancelled(f"r{at}", now=1.0)
    made.arrived(request("w"), now=1.2)
    picture = made.snapshot(now=1.25)
    assert picture.models[0].cause is Cause.HELD
    assert "no live endpoint" not in headline(picture)

    drained = scheduler(a=8, b=8)
    drained.endpoint_down("b", now=0.0)
    drained.endpoint_drained("a", now=0.0)
    drained.arrived(request("w"), now=0.0)
    assert said(drained, 1.0) == (
        "b is down. Holding 1 for m: an operator paused the model or drained the endpoint, 1 of 2 engines."
        " Oldest 1.0 s. a is drained by an operator."
    )


def test_a_row_of_an_endpoint_that_is_away_speaks_of_that_endpoint() -> None:
    """It said "no endpoint for the model is alive" in the row of each one that was down."""
    made = scheduler(a=1, b=1)
    made.endpoint_down("b", now=0.0)
    full(made, 1)
    picture = made.snapshot(now=1.0)
    assert picture.endpoints[1].closed is Cause.NO_BACKEND
    assert endpoint_why(picture.endpoints[1], picture) == "it is down"


def test_a_row_of_an_endpoint_that_only_nobody_elses_requests_reach_says_what_is_wrong_with_it() -> None:
    """It was empty, beside free slots and requests that waited, because the endpoint is open to some."""
    made = scheduler(a=1, b=1)
    made.endpoint_changed("b", key_refused=True, now=0.0)
    assert endpoint_why(made.snapshot(now=0.0).endpoints[1], made.snapshot(now=0.0)) is None, "nothing waits"
    full(made, 1)
    picture = made.snapshot(now=1.0)
    assert endpoint_why(picture.endpoints[1], picture) == "it is refusing the gateway's key"
    assert endpoint_why(picture.endpoints[0], picture) is None, "the cause's own sentence does"
    made.endpoint_drained("b", now=1.0)
    made.endpoint_down("a", now=1.0)
    picture = made.snapshot(now=1.0)
    assert [endpoint_why(endpoint, picture) for endpoint in picture.endpoints] == ["it is down", None]


def test_beside_a_stuck_engine_full_slots_are_the_cause_as_beside_any_other_that_is_gone() -> None:
    """It said that the engine makes no progress, "1 of 2 engines", and that the others carry its load."""
    shop = Shop(slots=2)
    streams(shop)
    streams(shop, "b")
    shop.go_on(5.0, "a", "b")
    shop.go_on(2.0, "b")
    waiting = [shop.ask() for _ in range(3)][1:]
    picture = shop.made.snapshot(now=shop.now)
    assert [endpoint.state for endpoint in picture.endpoints] == ["stuck", "up"]
    assert picture.waiting == len(waiting)
    assert headline(picture).startswith(
        "a is stuck. Holding 2 for m: all slots are taken, 2 of 2 on 1 engine (1 of 2 out of service)."
    )
    assert advice(picture, FailureWindow(Failures()).now(shop.now)).endswith(
        "The others are not enough: requests wait."
    )


def test_more_slots_are_no_advice_while_an_engine_refuses_requests_as_too_many() -> None:
    made = scheduler(a=2, b=2)
    made.endpoint_drained("b", now=0.0)
    leases = [the_lease(made.arrived(request(f"r{at}"), now=0.0)) for at in range(2)]
    made.endpoint_resumed("b", now=0.0)
    for at in range(2):
        the_lease(made.arrived(request(f"s{at}"), now=0.0))
    made.arrived(request("w"), now=0.0)
    quiet = FailureWindow(Failures()).now(1.0)
    assert advice(made.snapshot(now=0.0), quiet) == "More engines help, or more `slots` if engines have room."
    for lease in leases:
        made.failed(lease, Failure.BUSY, now=0.1)
    picture = made.snapshot(now=0.15)
    assert picture.models[0].closed == {Cause.HELD: 1, Cause.SLOTS_FULL: 1}
    assert advice(picture, quiet) == "Give the endpoints fewer `slots`."


def test_nothing_to_send_to_is_said() -> None:
    made = scheduler()
    assert said(made, 0.0) == "No endpoint is configured or discovered. Idle: nothing waits, nothing runs."
    assert tone(made.snapshot(now=0.0)) == "bad"


def test_a_model_that_nobody_serves_is_not_reported_with_endpoints() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_changed("b", models=["n"], now=0.0)
    made.endpoint_removed("a", now=0.0)
    made.arrived(request("w"), now=0.0)
    assert said(made, 1.0) == "Holding 1 for m: no live endpoint can serve the request. Oldest 1.0 s."


def test_a_full_queue_names_its_measure_and_the_setting_that_bounds_it() -> None:
    """It said "Holding 40", and that so many were refused because the queue is full: of how many?"""
    bands = (BandSettings("high", requests_max=3), BandSettings("low"))
    settings = SchedulerSettings(bands=bands, bounds=QueueBounds(requests_max=10, tokens_max=1_000))
    made = scheduler(settings, a=1)
    the_lease(made.arrived(request("r"), now=0.0))
    for at in range(2):
        made.arrived(request(f"h{at}"), now=0.0)
    assert "The queue is" not in said(made, 1.0)
    made.arrived(request("h2"), now=0.0)
    assert "The queue is full: 3 of at most 3 requests (bands.high.max_requests)." in said(made, 1.0)
    for at in range(6):
        made.arrived(request(f"w{at}", band=1, prompt_tokens=10), now=0.0)
    assert "The queue is full: 9 of at most 10 requests (queue.max_requests), 3 of" in said(made, 1.0)
    made.cancelled("h0", now=1.0)
    made.arrived(request("w6", band=1, prompt_tokens=10), now=1.0)
    assert "The queue is nearly full: 9 of at most 10 requests (queue.max_requests)." in said(made, 1.0)
    made.arrived(request("w7", band=1, prompt_tokens=900), now=1.0)
    assert " of at most 1,000 prompt tokens (queue.max_tokens)." in said(made, 1.0)


def test_operators_stops_are_distinguished_from_faults() -> None:
    """A drained gateway looked as one whose engines are dead."""
    made = scheduler(a=1, b=1)
    assert not is_by_operators(made.snapshot(now=0.0))
    for stop in (made.paused, made.drained):
        stop(None, now=0.0)
        picture = made.snapshot(now=0.0)
        assert (tone(picture), is_by_operators(picture)) == ("bad", True)
        made.resumed(None, now=0.0)
    for name in "ab":
        made.endpoint_drained(name, now=0.0)
    picture = made.snapshot(now=0.0)
    assert (tone(picture), is_by_operators(picture)) == ("bad", True), "no endpoint is left, by an operator's word"
    made.endpoint_down("a", now=0.0)
    assert not is_by_operators(made.snapshot(now=0.0)), "one of them is missing by itself"
    made.endpoint_removed("a", now=0.0)
    made.endpoint_removed("b", now=0.0)
    assert not is_by_operators(made.snapshot(now=0.0))


def test_the_tenant_with_most_queued_requests_is_named() -> None:
    made = scheduler(a=1)
    the_lease(made.arrived(request("r", tenant="x"), now=0.0))
    for at, tenant in enumerate(("big", "big", "big", "small")):
        made.arrived(request(f"w{at}", tenant=tenant), now=0.0)
    assert said(made, 1.0).startswith("Holding 4 for m, 3 from big: all slots are taken, 1 of 1 on 1 engine.")


def test_several_models_are_counted() -> None:
    made = scheduler(a=1)
    made.endpoint_changed("a", models=["m", "n"], now=0.0)
    the_lease(made.arrived(request("r"), now=0.0))
    for at, model in enumerate(("m", "m", "n")):
        made.arrived(request(f"w{at}", model=model), now=0.0)
    assert "Holding 3, 2 of them for m: all slots are taken, 1 of 1 on 1 engine (1 other model too)." in said(made, 1.0)


def test_a_tenants_share_is_shown_beside_its_fair_one_only_if_it_waits_for_more() -> None:
    flow = FlowSnapshot("a", "standard", 1.0, 3, 0, 4.0, 0.08, 0.08, is_alone=False, fair_share=0.25)
    assert within(flow, {}) == "8 %, fair 25 %"
    assert within(msgspec.structs.replace(flow, oldest_wait_s=0.1), {}) == "8 %, all it asks for"
    assert within(msgspec.structs.replace(flow, oldest_wait_s=0.1), {Kind.REFUSED: 1}) == "8 %", "it asked for more"
    assert within(msgspec.structs.replace(flow, is_alone=True), {}) == "alone"
