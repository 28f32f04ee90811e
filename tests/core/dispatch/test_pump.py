"""Turns, room and the reserve: who is next, and that nobody is forgotten when what held it back is gone."""

from __future__ import annotations

from random import Random

import pytest
from msgspec import structs

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Dispatch
from penstock.core.values.catalogue import Failure
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, EndpointSpec, Limits
from tests.core.drive import ends, request, requeued, scheduler, sent, the_lease, until

BAND_RANKS = 1024

PLENTY = AdmissionSettings(prefill_tokens_max=10**9)
TWO_BANDS = (BandSettings("high"), BandSettings("low"))


def fill(made: CheckedScheduler, count: int, *, now: float = 0.0, **more: object) -> list[int]:
    names = [f"fill-{now}-{at}" for at in range(count)]
    return [the_lease(made.arrived(request(name, **more), now=now)) for name in names]  # type: ignore[arg-type]


def crowded(made: CheckedScheduler, *, slots: int) -> list[str]:
    """A light flow has one request running, a heavy one has many waiting; others end, one by one. Who is sent?"""
    made.arrived(request("l", tenant="light"), now=0.0)
    others = [the_lease(made.arrived(request(f"o{at}", tenant=f"o{at}"), now=0.0)) for at in range(slots - 1)]
    for at in range(5 * slots):
        made.arrived(request(f"h{at}", tenant="heavy"), now=0.0)
    return [name for lease in others for name, _ in sent(made.finished(lease, Usage(1, 50), now=1.0))]


# --- bands --------------------------------------------------------------------------------------------------------


def test_thirty_low_wait_then_five_high_the_high_ones_are_the_next_five_served() -> None:
    made = scheduler(SchedulerSettings(bands=TWO_BANDS), a=1)
    (lease,) = fill(made, 1)
    for at in range(30):
        made.arrived(request(f"low{at}", band=1), now=0.0)
    for at in range(5):
        made.arrived(request(f"high{at}"), now=1.0)
    served = []
    for at in range(6):
        actions = made.finished(lease, now=2.0 + at)
        served += [name for name, _ in sent(actions)]
        lease = the_lease(actions)
    assert served == [*(f"high{at}" for at in range(5)), "low0"]


def test_a_band_gets_its_promised_share_whatever_waits_above_it() -> None:
    bands = (BandSettings("high"), BandSettings("low", min_share=0.2))
    made = scheduler(SchedulerSettings(bands=bands), a=1)
    (lease,) = fill(made, 1)
    low = 0
    for at in range(200):
        made.arrived(request(f"high{at}"), now=float(at))
        made.arrived(request(f"low{at}", band=1), now=float(at))
        actions = made.finished(lease, now=float(at))
        low += sent(actions)[0][0].startswith("low")
        lease = the_lease(actions)
    assert low == pytest.approx(40, abs=2)


def test_what_a_band_got_while_nobody_above_it_wanted_anything_does_not_cost_it_its_share() -> None:
    bands = (BandSettings("high"), BandSettings("low", min_share=0.2))
    made = scheduler(SchedulerSettings(bands=bands, wait_s_max=1e6), a=1)
    lease = the_lease(made.arrived(request("first", band=1), now=0.0))
    for at in range(500):  # an hour alone
        made.arrived(request(f"alone{at}", band=1), now=float(at))
        lease = the_lease(made.finished(lease, now=float(at)))
    for at in range(100):
        made.arrived(request(f"low{at}", band=1), now=500.0)
        made.arrived(request(f"high{at}"), now=500.0)
    low = 0
    for _ in range(50):
        actions = made.finished(lease, now=501.0)
        low += "low" in sent(actions)[0][0]
        lease = the_lease(actions)
    assert low == pytest.approx(10, abs=2)


def test_engines_get_a_priority_from_the_band_and_the_tenants_pending_work() -> None:
    made = scheduler(SchedulerSettings(bands=TWO_BANDS, engine_priority=True), a=9)
    ranks = [made.arrived(request(f"{at}", band=at % 2, tenant="t"), now=0.0)[0].rank for at in range(4)]  # type: ignore[union-attr]
    assert ranks == [1, BAND_RANKS + 1, 2, BAND_RANKS + 2]


# --- tenants that run all they may --------------------------------------------------------------------------------


def limited(*, running: int = 1, **more: object) -> SchedulerSettings:
    return SchedulerSettings(tenants={"limited": Limits(running=running)}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("passed", "goes"), [(31, True), (32, False)])
def test_the_first_32_requests_in_fair_order_are_looked_at(passed: int, goes: bool) -> None:
    made = scheduler(SchedulerSettings(admission=PLENTY), a=99)
    made.arrived(request("running", output_tokens=1), now=0.0)
    made.observed("a", Observation(0.1, 1, 0, kv_usage=0.5, kv_capacity_tokens=1000), now=0.1)
    for at in range(passed):
        assert made.arrived(request(str(at), prompt_tokens=800), now=0.1) == []
    assert sent(made.arrived(request("small", output_tokens=1), now=0.1)) == ([("small", "a")] if goes else [])


def test_a_tenant_at_its_limit_waits_and_hides_no_other() -> None:
    made = scheduler(limited(), a=9)
    lease = the_lease(made.arrived(request("one", tenant="limited"), now=0.0))
    for at in range(2 * 32):
        assert made.arrived(request(str(at), tenant="limited"), now=0.0) == []
    assert sent(made.arrived(request("other", tenant="other"), now=0.0)) == [("other", "a")]
    assert sent(made.finished(lease, now=1.0)) == [("0", "a")]


@pytest.mark.parametrize("fairness", ["weighted_tokens", "fcfs"])
def test_no_room_is_reserved_for_a_tenant_at_its_limit_however_often_it_is_passed(fairness: str) -> None:
    """Its requests of a second band, and all of them where flows are shared, are passed over one by one."""
    made = scheduler(limited(bands=TWO_BANDS, fairness=fairness), a=999)
    made.arrived(request("one", tenant="limited"), now=0.0)
    made.arrived(request("held", tenant="limited", band=1), now=0.0)
    for at in range(3 * 32):
        assert sent(made.arrived(request(str(at), tenant="other", band=1), now=0.0)), at


def test_a_tenant_below_another_level_at_its_limit_hides_no_other() -> None:
    made = scheduler(limited(tenant_level=1), a=9)
    flow, other = ("x", "limited"), ("y", "other")
    ones = (1.0, 1.0)
    made.arrived(request("one", tenant="limited", flow=flow, weights=ones), now=0.0)
    made.arrived(request("two", tenant="limited", flow=flow, weights=ones), now=0.0)
    actions = made.arrived(request("other", tenant="other", flow=other, weights=ones), now=0.0)
    assert sent(actions) == [("other", "a")]


def test_arrivals_that_leave_again_while_their_tenant_is_held_leave_nothing_behind() -> None:
    made = scheduler(limited(bands=TWO_BANDS), a=9)
    made.arrived(request("one", tenant="limited"), now=0.0)
    for at in range(100):
        made.arrived(request(str(at), tenant="limited", band=1), now=0.0)
        made.cancelled(str(at), now=0.0)
    assert len(made.inspect().capped.flows["limited"]) <= 2


def test_a_failed_request_of_a_held_tenant_goes_out_again() -> None:
    made = scheduler(limited(), a=1, b=1)
    lease = the_lease(made.arrived(request("one", tenant="limited"), now=0.0))
    made.arrived(request("two", tenant="limited"), now=0.0)
    actions = made.failed(lease, Failure.RESET, now=1.0)
    assert requeued(actions) == ["one"]
    assert sent(actions) == [("one", "b")]


def test_a_pinned_request_of_a_held_tenant_is_refused() -> None:
    made = scheduler(limited(), a=9)
    made.arrived(request("one", tenant="limited"), now=0.0)
    actions = made.arrived(request("two", tenant="limited", pinned="a"), now=0.0)
    assert ends(actions) == [("two", "rejected", "tenant_limit")]


def test_a_tenants_queue_is_bounded_and_its_rates_too() -> None:
    limits = {"t": Limits(queued=1), "r": Limits(requests_per_minute=2)}
    made = scheduler(SchedulerSettings(tenants=limits), a=1)
    fill(made, 1)
    outcomes = [ends(made.arrived(request(name, tenant=name[0]), now=0.0)) for name in ("t1", "t2", "r1", "r2", "r3")]
    assert outcomes == [[], [("t2", "rejected", "tenant_limit")], [], [], [("r3", "rejected", "tenant_limit")]]


# --- pace ---------------------------------------------------------------------------------------------------------

PACED = SchedulerSettings(admission=structs.replace(PLENTY, time_per_output_token_s_max=0.1))


def slow(made: CheckedScheduler) -> int:
    """One stream that shows 0.5 s per token."""
    lease = the_lease(made.arrived(request("slow", streamed=True), now=0.0))
    made.first_token(lease, now=0.0)
    made.progressed(lease, 21, now=10.0)
    return lease


def test_a_slow_endpoint_is_given_no_more_until_its_streams_are_faster() -> None:
    made = scheduler(PACED, a=4)
    lease = slow(made)
    assert made.arrived(request("next"), now=10.0) == []
    actions = [made.progressed(lease, 21 + 1000 * at, now=10.0 + at) for at in range(1, 20)]
    assert [name for step in actions for name, _ in sent(step)] == ["next"]


def test_a_pace_that_nobody_shows_any_more_is_forgotten() -> None:
    """Streams end, answers that do not stream go on: they show no pace, and would be sent one by one for ever."""
    made = scheduler(structs.replace(PACED, wait_s_max=1000.0), a=4)
    lease = slow(made)
    for name in ("one", "two"):
        assert made.arrived(request(name), now=10.0) == []
    assert sent(made.finished(lease, now=11.0)) == [("one", "a")]
    assert sent(until(made, 70.0)) == [("two", "a")]


def test_a_band_may_ask_for_a_better_pace_than_others() -> None:
    bands = (BandSettings("picky", time_per_output_token_s_max=0.1), BandSettings("easy"))
    made = scheduler(SchedulerSettings(bands=bands), a=4)
    slow(made)
    assert made.arrived(request("picky"), now=10.0) == []
    assert sent(made.arrived(request("easy", band=1), now=10.0)) == [("easy", "a")]


def test_a_request_with_a_pace_of_its_own_goes_to_an_endpoint_that_keeps_it_and_otherwise_to_any() -> None:
    settings = SchedulerSettings(routing="least_loaded", admission=PLENTY)
    made = scheduler(settings, a=4)
    slow(made)
    made.endpoint_added(EndpointSpec("b", 2, frozenset({"m"})), now=10.0)
    for at in range(2):
        own = request(f"own{at}", time_per_output_token_s_max=0.1)
        assert sent(made.arrived(own, now=10.0)) == [(f"own{at}", "b")]
    assert sent(made.arrived(request("late", time_per_output_token_s_max=0.1), now=10.0)) == [("late", "a")]
    made.finished(made.books.lease_of["own0"], now=10.0)
    assert sent(made.arrived(request("patient", time_per_output_token_s_max=0.6), now=10.0)) == [("patient", "b")]


# --- room ---------------------------------------------------------------------------------------------------------


def test_prompts_being_computed_are_bounded_and_an_idle_endpoint_takes_one_of_any_size() -> None:
    made = scheduler(SchedulerSettings(admission=AdmissionSettings(prefill_tokens_max=1000)), a=9)
    lease = the_lease(made.arrived(request("huge", prompt_tokens=90_000, streamed=True), now=0.0))
    assert made.arrived(request("small", prompt_tokens=1), now=0.0) == []
    assert sent(made.first_token(lease, now=1.0)) == [("small", "a")]


def test_a_prompt_that_is_partly_computed_leaves_room_for_the_next_one_before_its_first_token() -> None:
    made = scheduler(SchedulerSettings(admission=AdmissionSettings(prefill_tokens_max=16_000)), a=9)
    for at in range(5):  # it computes 4,000 tokens a second
        lease = the_lease(made.arrived(request(f"known{at}", prompt_tokens=4_000, streamed=True), now=2.0 * at))
        made.first_token(lease, now=2.0 * at + 1.0 + 0.05)
    the_lease(made.arrived(request("long", prompt_tokens=40_000, streamed=True), now=20.0))
    assert made.arrived(request("next", prompt_tokens=4_000, streamed=True), now=20.0) == []
    rate = made.inspect().pool["a"].ledger.speed.rate
    fits_s = 20.0 + (40_000 + 4_000 - 16_000) / rate
    assert until(made, fits_s - 0.01) == []
    assert sent(until(made, fits_s + 2048 / rate)) == [("next", "a")]


def test_only_those_are_overtaken_that_the_endpoint_serves() -> None:
    made = scheduler(SchedulerSettings(admission=PLENTY), a=99)
    made.endpoint_added(EndpointSpec(name="n", slots=99, models=frozenset("n")), now=0.0)
    made.observed("a", Observation(0.0, 1, 0, kv_usage=0.5, kv_capacity_tokens=1_000), now=0.0)
    made.arrived(request("large", prompt_tokens=900), now=0.0)
    for at in range(10):
        assert sent(made.arrived(request(str(at), model="n", tenant="other"), now=0.0)) == [(str(at), "n")]
    assert made.inspect().entries["large"].backfilled == 0


# --- the reserve --------------------------------------------------------------------------------------------------

RESERVED = SchedulerSettings(admission=structs.replace(PLENTY, reserved_share=0.25))


def test_the_last_slots_are_for_flows_under_their_share() -> None:
    made = scheduler(RESERVED, a=16)
    assert crowded(made, slots=16) == [f"h{at}" for at in range(11)]  # 12 of 16 are in use
    for tenant in ("light", "also light", "new"):
        assert sent(made.arrived(request(tenant, tenant=tenant), now=1.0)) == [(tenant, "a")]


def test_what_is_kept_for_one_model_hides_no_other() -> None:
    made = scheduler(RESERVED, a=16)
    made.endpoint_added(EndpointSpec(name="n", slots=1, models=frozenset("n")), now=0.0)
    crowded(made, slots=16)
    assert sent(made.arrived(request("n", model="n", tenant="heavy"), now=1.0)) == [("n", "n")]


def test_a_light_request_that_does_not_fit_hides_no_light_one_behind_it() -> None:
    made = scheduler(structs.replace(RESERVED, attempts_max=9), a=16)
    crowded(made, slots=16)
    lease = the_lease(made.arrived(request("shuns", tenant="light"), now=1.0))
    assert requeued(actions := made.failed(lease, Failure.RESET, now=1.0)) == ["shuns"]
    assert sent(actions) == []
    assert sent(made.arrived(request("next", tenant="light"), now=1.0)) == [("next", "a")]
    assert sent(made.arrived(request("other", tenant="also light"), now=1.0)) == [("other", "a")]


def test_a_light_request_that_was_sent_at_once_finds_a_kept_slot_when_it_comes_back() -> None:
    """It went past the queue, so it was not noted as light; and its flow has got so much since that it is not next."""
    made = scheduler(structs.replace(RESERVED, attempts_max=9), a=17)
    long = the_lease(made.arrived(request("long", tenant="light"), now=0.0))
    crowded(made, slots=16)
    made.finished(long, Usage(1, 100_000), now=1.0)
    (light,) = (lease for lease, entry in made.inspect().leases.items() if entry.request.id == "l")
    assert requeued(made.failed(light, Failure.RESET, now=1.0)) == ["l"]
    assert made.inspect().queues.bands[0].tree.head(["m"]).request.tenant == "heavy"  # type: ignore[union-attr]
    assert sent(until(made, 3.0))[:1] == [("l", "a")]


def test_after_32_requests_under_their_share_room_is_reserved_for_a_large_one_over_its_share() -> None:
    made = scheduler(a=100)
    made.arrived(request("computed", prompt_tokens=10_000, tenant="other"), now=0.0)
    fill(made, 25, tenant="heavy", output_tokens=1)
    for at in range(2):
        made.arrived(request(f"ahead{at}", tenant=f"light{at}"), now=0.0)  # so the large one's flow is next
    assert made.arrived(request("large", prompt_tokens=9_000, tenant="heavy"), now=0.0) == []
    for at in range(32):
        name = f"passes{at}"
        assert sent(made.arrived(request(name, tenant=f"light{at % 2}"), now=0.0)) == [(name, "a")]
    assert made.arrived(request("waits", tenant="light0"), now=0.0) == []
    assert sent(until(made, 5.0)) == [("large", "a"), ("waits", "a")]  # the prompts before it are computed


def test_slots_are_not_kept_where_all_stand_in_one_line() -> None:
    made = scheduler(structs.replace(RESERVED, fairness="fcfs"), a=8)
    assert all(made.arrived(request(str(at)), now=0.0) for at in range(8))


def test_a_measured_reserve_that_nobody_needs_any_more_is_given_up_by_time_alone() -> None:
    made = scheduler(SchedulerSettings(admission=PLENTY, wait_s_max=1e6), a=16)
    for _ in range(100):
        made.inspect().reserved.arrived("m", 0.0)
    crowded(made, slots=16)
    assert made.inspect().pool["a"].ledger.load(1.0) < 16
    until(made, 100.0)
    assert made.inspect().pool["a"].ledger.load(100.0) == 16


# --- names that callers choose ------------------------------------------------------------------------------------


def test_callers_who_invent_models_and_users_leave_nothing_behind() -> None:
    """An endpoint that cannot tell its models serves any name; all of them wait, are sent and end."""
    made = Scheduler(SchedulerSettings(admission=PLENTY), random=Random(1))
    made.endpoint_added(EndpointSpec(name="a", slots=4), now=0.0)
    made.endpoint_changed("a", tells_models=False, now=0.0)
    running: list[int] = []
    for at in range(3000):
        actions = made.arrived(request(str(at), model=f"m{at}", tenant=f"t{at}"), now=at / 10)
        running += [x.lease for x in actions if isinstance(x, Dispatch)]
        if at % 50 > 10:
            for _ in range(min(2, len(running))):
                actions = made.finished(running.pop(0), Usage(1, 1), now=at / 10)
                running += [x.lease for x in actions if isinstance(x, Dispatch)]
    made.drain(queue_until_s=0.0, stop_at_s=1e9, now=300.0)
    for lease in running:
        made.finished(lease, Usage(1, 1), now=301.0)
    (band,) = made.inspect().queues.bands
    assert (band.tokens_of, band.tree.root.backlog, band.tree.root.work, band.tree.root.heaps) == ({}, {}, {}, {})
    assert not band._under_share
    assert len(made.inspect().pool._counts) <= 1000
    assert not made.inspect().entries
    assert len(made.inspect().timers) <= 1
