"""Why a request waited: causes with their durations, who went before it, what decided its dispatch, how it ended."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.explain.explanation import Explanation
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, EndpointSpec, Limits, RoutingSettings
from tests.core.drive import request, scheduler, the_lease

KEPT = 1000
SLACK = 1000  # beyond these, before the oldest are forgotten
SHOWN_MAX = 50

TWO_BANDS = SchedulerSettings(bands=(BandSettings("high"), BandSettings("low")))


def explained(made: CheckedScheduler, request_id: str, now: float) -> Explanation:
    found = made.explain(request_id, now=now)
    assert found is not None
    return found


def causes(made: CheckedScheduler, request_id: str, now: float) -> dict[str, object]:
    return {waited.cause: pytest.approx(waited.seconds, abs=1e-6) for waited in explained(made, request_id, now).waits}


def full(now: float, kv_usage: float) -> Observation:
    return Observation(now, 1, 0, kv_usage=kv_usage, kv_capacity_tokens=10_000, progress=now)


def test_a_wait_is_explained_cause_by_cause() -> None:
    made = scheduler(a=2)
    first = the_lease(made.arrived(request("first"), now=0.0))
    the_lease(made.arrived(request("second"), now=0.0))
    made.arrived(request("r"), now=1.0)
    made.observed("a", full(3.0, 0.99), now=3.0)  # slots are still what keeps it
    made.finished(first, Usage(1, 1), now=4.0)  # now there is one, but no memory
    assert causes(made, "r", 5.0) == {"slots_full": 3.0, "kv_full": 1.0}
    assert explained(made, "r", 5.0).waits_for == Cause.KV_FULL
    made.observed("a", full(6.0, 0.1), now=6.0)
    told = explained(made, "r", 9.0)
    assert (told.state, told.waited_s, told.waits_for) == (State.RUNNING, 5.0, None)
    assert causes(made, "r", 9.0) == {"slots_full": 3.0, "kv_full": 2.0}


def test_a_request_that_never_waited_waited_for_nothing() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("r"), now=1.0))
    made.first_token(lease, now=1.5)
    made.finished(lease, Usage(7, 9), now=3.0)
    told = explained(made, "r", 10.0)
    assert (told.state, told.waits, told.came_s_ago, told.first_byte_s, told.ended_s) == ("completed", [], 9, 0.5, 2.0)
    assert (told.prompt_tokens, told.output_tokens, told.reason) == (7, 9, None)


def test_a_request_that_left_unserved_waited_until_then() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("only", wait_s_max=10.0),)), a=1)
    the_lease(made.arrived(request("running"), now=0.0))
    for name in ("timed out", "cancelled", "removed"):
        made.arrived(request(name), now=1.0)
    made.cancelled("cancelled", now=3.0)
    made.evicted("removed", now=4.0)
    made.expire(now=11.0)
    waited = {name: explained(made, name, 20.0).waited_s for name in ("timed out", "cancelled", "removed")}
    assert waited == {"timed out": 10.0, "cancelled": 2.0, "removed": 3.0}
    assert {row.id: row.waited_s for row in made.snapshot(now=20.0).requests.ended} == waited


def test_what_only_one_tenant_waits_for_is_not_what_others_wait_for() -> None:
    made = scheduler(SchedulerSettings(tenants={"capped": Limits(running=1)}), a=2)
    first = the_lease(made.arrived(request("c1", tenant="capped"), now=0.0))
    made.arrived(request("c2", tenant="capped"), now=0.0)
    the_lease(made.arrived(request("o1", tenant="other"), now=1.0))
    made.arrived(request("o2", tenant="other"), now=1.0)
    assert causes(made, "c2", 3.0) == {"tenant_cap": 3.0}
    assert causes(made, "o2", 3.0) == {"slots_full": 2.0}
    made.finished(first, now=3.0)
    assert [explained(made, name, 3.0).state for name in ("c2", "o2")] == [State.RUNNING, State.WAITING]


def test_a_model_that_nobody_told_of_yet_is_warming_and_one_without_an_engine_has_none() -> None:
    made = scheduler(a=1)
    made.endpoint_changed("a", models=["m"], now=0.0)
    made.endpoint_down("a", now=0.0)
    made.arrived(request("r"), now=0.0)
    assert causes(made, "r", 2.0) == {"no_backend": 2.0}
    assert explained(made, "r", 2.0).closed == {Cause.NO_BACKEND: 1}


def test_a_pause_is_a_cause_from_the_moment_it_begins() -> None:
    made = scheduler(a=1)
    the_lease(made.arrived(request("first"), now=0.0))
    made.arrived(request("r"), now=0.0)
    made.paused(None, now=2.0)
    assert causes(made, "r", 5.0) == {"slots_full": 2.0, "paused": 3.0}


def test_predecessors_are_named_with_the_reason() -> None:
    made = scheduler(TWO_BANDS, a=1)
    lease = the_lease(made.arrived(request("running", band=1, tenant="x"), now=0.0))
    made.arrived(request("own", band=1, tenant="mine"), now=0.1)
    made.arrived(request("r", band=1, tenant="mine"), now=0.2)
    made.arrived(request("other", band=1, tenant="other"), now=0.3)
    made.arrived(request("urgent", band=0, tenant="boss"), now=0.4)
    for at in range(1, 5):
        lease = the_lease(made.finished(lease, Usage(10, 10), now=float(at)))
    told = explained(made, "r", 5.0)
    assert told.state == State.RUNNING
    assert {(served.tenant, served.band, served.why) for served in told.before} == {
        ("boss", "high", "band"),
        ("other", "low", "turn"),
        ("mine", "low", "order"),
    }
    assert told.before_total == 3
    assert told.sent is not None
    assert (told.sent.endpoint, told.sent.open_endpoints) == ("a", 1)
    assert (told.sent.candidates[0].leases, told.sent.candidates[0].slots) == (0, 1)


def test_a_bumped_request_is_named_as_such_by_those_it_passed() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("running"), now=0.0))
    made.arrived(request("r"), now=0.0)
    made.arrived(request("vip"), now=0.0)
    made.bumped("vip", now=0.5)
    made.finished(lease, now=1.0)
    assert [served.why for served in explained(made, "r", 1.0).before] == ["bumped"]


def test_requeues_are_reported_and_both_waits_count() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("r"), now=0.0))
    made.failed(lease, Failure.BUSY, now=1.0)
    told = explained(made, "r", 1.05)
    assert [(step.at_s, step.endpoint, step.failure) for step in told.requeues] == [(1.0, "a", Failure.BUSY)]
    assert told.waits_for == Cause.SHUNNED
    assert [endpoint.failure for endpoint in made.snapshot(now=2.0).endpoints] == [Failure.BUSY]


def test_refusals_and_evictions_are_explained_too() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=5.0), a=1)
    the_lease(made.arrived(request("first"), now=0.0))
    made.arrived(request("late"), now=0.0)
    made.expire(now=5.0)
    told = explained(made, "late", 6.0)
    assert (told.state, told.reason, told.ended_s) == (State.EVICTED, Reason.QUEUE_TIMEOUT, 5.0)
    assert causes(made, "late", 6.0) == {"slots_full": 5.0}
    made.drain(queue_until_s=9.0, stop_at_s=9.0, now=6.0)
    made.arrived(request("refused"), now=6.0)
    assert explained(made, "refused", 6.0).reason == Reason.DRAINING
    assert made.explain("never here", now=6.0) is None


def test_a_request_that_an_operator_ended_has_that_reason() -> None:
    made = scheduler(a=1)
    the_lease(made.arrived(request("running"), now=0.0))
    made.arrived(request("waiting"), now=0.0)
    made.evicted("waiting", now=1.0)
    made.evicted("running", now=1.0)
    made.cancelled("running", now=1.0)  # the driver reports that it is over
    assert {explained(made, name, 2.0).reason for name in ("running", "waiting")} == {Reason.OPERATOR}


def test_the_last_thousand_are_kept_and_not_many_more() -> None:
    made = scheduler(a=1)
    for at in range(KEPT + SLACK):
        made.finished(the_lease(made.arrived(request(f"r{at}"), now=0.0)), now=0.0)
    assert made.explain(f"r{SLACK - 1}", now=1.0) is None
    assert explained(made, f"r{SLACK}", 1.0).state == State.COMPLETED
    assert made.snapshot(now=1.0).requests.ended[0].id == f"r{KEPT + SLACK - 1}"
    assert sum(1 for _ in made.requests(now=1.0)) == KEPT


FLOOD = 3_000


def served(made: CheckedScheduler, name: str, tenant: str, now: float = 0.0) -> None:
    made.finished(the_lease(made.arrived(request(name, tenant=tenant), now=now)), now=now)


def kept(made: CheckedScheduler, names: list[str], now: float = 1.0) -> int:
    return sum(made.explain(name, now=now) is not None for name in names)


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "answered"])
def test_a_flood_leaves_the_stories_of_others_and_those_of_its_own_other_ends(refused: bool) -> None:
    made = scheduler(SchedulerSettings(tenants={"flooder": Limits(queued=0)} if refused else {}), a=1)
    quiet = [f"quiet{at}" for at in range(300)]
    for name in quiet:
        served(made, name, "quiet")
    own = [f"own{at}" for at in range(100)]
    for name in own:
        served(made, name, "flooder")
    busy = the_lease(made.arrived(request("busy", tenant="other"), now=0.0)) if refused else None
    for at in range(FLOOD):
        if busy is None:
            served(made, f"flood{at}", "flooder")
        else:
            made.arrived(request(f"flood{at}", tenant="flooder"), now=0.0)
    flood = [f"flood{at}" for at in range(FLOOD)]
    assert kept(made, quiet) == 300
    assert kept(made, own) == (100 if refused else 0)
    assert 600 <= kept(made, flood) <= 1_700
    assert kept(made, flood[-1:]) == 1


def test_callers_without_a_key_are_one_owner_so_invented_names_push_out_no_tenant() -> None:
    made = scheduler(a=1)
    quiet = [f"quiet{at}" for at in range(600)]
    for name in quiet:
        served(made, name, "quiet")
    for at in range(1_400):
        invented = request(f"flood{at}", tenant=f"client:{at % 100}", account="anonymous")
        made.finished(the_lease(made.arrived(invented, now=0.0)), now=0.0)
    assert kept(made, quiet) == 500  # half of the room


def test_room_that_a_tenant_was_kept_for_an_hour_goes_to_those_who_need_it() -> None:
    made = scheduler(a=1)
    quiet = [f"quiet{at}" for at in range(300)]
    for name in quiet:
        served(made, name, "quiet")
    latest = [f"later{at}" for at in range(FLOOD)]
    for name in latest:
        served(made, name, "busy", now=3_601.0)
    assert kept(made, quiet, 3_602.0) == 0
    assert kept(made, latest[-KEPT:], 3_602.0) == KEPT


def test_an_id_that_came_twice_means_the_later_one() -> None:
    made = scheduler(a=1)
    for at in (1.0, 2.0):
        made.finished(the_lease(made.arrived(request("same"), now=at)), now=at)
    assert explained(made, "same", 3.0).came_s_ago == 1.0


# --- the picture ------------------------------------------------------------------------------------------------------


def test_shares_follow_the_weights_of_waiting_tenants() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("running", tenant="x"), now=0.0))
    for at in range(30):
        made.arrived(request(f"a{at}", tenant="a", weights=(2.0,)), now=0.0)
        made.arrived(request(f"b{at}", tenant="b", weights=(1.0,)), now=0.0)
    for at in range(30):
        lease = the_lease(made.finished(lease, Usage(100, 100), now=at * 0.1))
    flows = {flow.tenant: flow for flow in made.snapshot(now=3.0).flows}
    assert flows["a"].share == pytest.approx(2 / 3, abs=0.05)
    assert flows["a"].fair_share == pytest.approx(2 / 3, abs=0.03)
    assert flows["b"].fair_share == pytest.approx(1 / 3, abs=0.03)
    assert (flows["a"].waiting + flows["b"].waiting, flows["a"].oldest_wait_s) == (30, 3.0)
    assert flows["x"].fair_share is None  # it has all it asked for


def test_new_weights_show_at_once_for_waiting_running_and_served_tenants() -> None:
    settings = SchedulerSettings(tenant_weights={"running": 2.0, "waiting": 2.0, "served": 2.0})
    made = scheduler(settings, a=1)
    made.finished(the_lease(made.arrived(request("s", tenant="served", weights=(2.0,)), now=0.0)), now=0.0)
    the_lease(made.arrived(request("r", tenant="running", weights=(2.0,)), now=0.0))
    made.arrived(request("w", tenant="waiting", weights=(2.0,)), now=0.0)
    made.arrived(request("o", tenant="other"), now=0.0)
    assert weights(made) == {"served": 2.0, "running": 2.0, "waiting": 2.0, "other": 1.0}

    made.reconfigured(replace(settings, tenant_weights={"running": 3.0, "waiting": 4.0, "served": 5.0}), now=1.0)
    assert weights(made) == {"served": 5.0, "running": 3.0, "waiting": 4.0, "other": 1.0}
    (waiting,) = [flow for flow in made.snapshot(now=1.0).flows if flow.tenant == "waiting"]
    assert waiting.fair_share == pytest.approx(4 / (3 + 4 + 1))


def weights(made: CheckedScheduler) -> dict[str, float]:
    return {flow.tenant: flow.weight for flow in made.snapshot(now=1.0).flows}


def test_a_model_reports_its_cause_and_the_number_of_endpoints() -> None:
    made = scheduler(SchedulerSettings(admission=AdmissionSettings(kv_usage_max=0.9)), a=4, b=4)
    for at in range(2):
        the_lease(made.arrived(request(f"r{at}"), now=0.0))
    made.observed("a", full(1.0, 0.93), now=1.0)
    made.observed("b", full(1.0, 0.95), now=1.0)
    made.arrived(request("w"), now=1.0)
    (model,) = made.snapshot(now=3.0).models
    assert (model.cause, model.closed, model.endpoints, model.up) == (Cause.KV_FULL, {Cause.KV_FULL: 2}, 2, 2)
    assert (model.waiting, model.running, model.slots, model.oldest_wait_s) == (1, 2, 8, 2.0)
    assert model.kv_usage_min == pytest.approx(0.93)
    assert [endpoint.closed for endpoint in made.snapshot(now=3.0).endpoints] == [Cause.KV_FULL] * 2
    (row,) = made.snapshot(now=3.0).requests.waiting
    assert (row.id, row.cause, row.waited_s) == ("w", Cause.KV_FULL, 2.0)


def test_lists_are_cut_and_say_how_many_more_there_are() -> None:
    made = scheduler(a=1)
    for at in range(SHOWN_MAX + 31):
        made.arrived(request(f"r{at}", tenant=f"t{at}"), now=0.0)
    picture = made.snapshot(now=1.0)
    assert (len(picture.flows), picture.flows_more) == (SHOWN_MAX, 30)  # one of them runs and has nothing waiting
    assert all(flow.waiting == 1 for flow in picture.flows)


def test_meters_of_absent_callers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.explain.shares.METERS_MAX", 100)
    made = Scheduler(SchedulerSettings(), random=Random(1))
    made.endpoint_added(EndpointSpec(name="a", slots=1, models=frozenset({"m"})), now=0.0)
    for at in range(1_000):
        made.finished(the_lease(made.arrived(request(f"r{at}", tenant=f"t{at}"), now=0.0)), Usage(1, 1), now=0.0)
    assert len(made.inspect().shares._meters) <= 100


def test_service_of_a_minute_ago_counts_a_third() -> None:
    made = scheduler(a=1)
    for tenant, now in (("a", 0.0), ("b", 60.0)):
        made.finished(the_lease(made.arrived(request(tenant, tenant=tenant), now=now)), Usage(50, 50), now=now)
    shares = {flow.tenant: flow.share for flow in made.snapshot(now=60.0).flows}
    assert shares == {"a": pytest.approx(0.27, abs=0.01), "b": pytest.approx(0.73, abs=0.01)}


def test_where_nothing_ran_for_a_minute_nobody_got_anything() -> None:
    """An idle gateway told for hours who had got how much of "the last minute"."""
    made = scheduler(TWO_BANDS, a=2)
    made.finished(the_lease(made.arrived(request("a", band=0, tenant="a"), now=0.0)), Usage(50, 50), now=0.0)
    long = the_lease(made.arrived(request("b", band=1, tenant="b"), now=0.0))

    def told(now: float) -> tuple[dict[str, float], list[float]]:
        picture = made.snapshot(now=now)
        shares = {flow.tenant: flow.share_of_all for flow in picture.flows}
        assert sum(shares.values()) == pytest.approx(sum(band.share for band in picture.bands))
        return shares, [band.share for band in picture.bands]

    assert told(59.0)[0].keys() == {"a", "b"}
    assert told(61.0) == ({"b": 1.0}, [0.0, 1.0]), "an answer of a minute is still use"
    made.finished(long, Usage(50, 50), now=100.0)
    assert told(159.0) == ({"b": 1.0}, [0.0, 1.0])
    assert told(161.0) == ({}, [0.0, 0.0])


def test_shares_survive_a_long_life() -> None:
    made = scheduler(a=1)
    for day in range(40):
        now = day * 86_400.0
        for tenant in ("a", "a", "b"):
            made.finished(the_lease(made.arrived(request(f"{day}", tenant=tenant), now=now)), Usage(50, 50), now=now)
    shares = {flow.tenant: flow.share for flow in made.snapshot(now=now).flows}
    assert shares == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}


def test_other_bands_while_requests_wait_and_run_lose_no_wait_and_no_share() -> None:
    made = scheduler(TWO_BANDS, a=1)
    lease = the_lease(made.arrived(request("running", band=1, tenant="a"), now=0.0))
    made.arrived(request("r", band=1, tenant="a"), now=0.0)
    made.reconfigured(SchedulerSettings(bands=(BandSettings("new"), BandSettings("mid"), BandSettings("low"))), now=2.0)
    assert causes(made, "r", 5.0) == {"slots_full": 5.0}
    (flow,) = made.snapshot(now=5.0).flows
    assert (flow.band, flow.waiting, flow.running, flow.share) == ("low", 1, 1, 1.0)
    lease = the_lease(made.finished(lease, Usage(1, 1), now=6.0))
    made.finished(lease, Usage(1, 1), now=7.0)
    assert explained(made, "r", 8.0).band == "low"
    assert [(f.waiting, f.running) for f in made.snapshot(now=8.0).flows] == [(0, 0)]


def test_a_lower_band_waits_for_its_turn_while_a_higher_one_waits_for_room() -> None:
    made = scheduler(TWO_BANDS, a=1)
    lease = the_lease(made.arrived(request("running"), now=0.0))
    made.arrived(request("low", band=1), now=0.0)
    made.arrived(request("high", band=0), now=1.0)
    made.observed("a", None, now=1.0)
    assert explained(made, "high", 3.0).waits_for == Cause.SLOTS_FULL
    assert explained(made, "low", 3.0).waits_for == Cause.TURN
    the_lease(made.finished(lease, Usage(1, 1), now=3.0))
    made.observed("a", None, now=3.5)
    assert causes(made, "low", 4.0) == {"slots_full": 2.0, "turn": 2.0}
    assert made.snapshot(now=4.0).models[0].cause == Cause.SLOTS_FULL


def test_what_ended_keeps_no_keys_of_its_prompt() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("r", prefix=tuple(range(5_000))), now=0.0))
    made.finished(lease, Usage(1, 1), now=1.0)
    (kept,) = made.inspect().recorder.latest()
    assert (kept.request.prefix, kept.blocks, kept.looked_up) == ((), None, None)


def test_the_picture_names_the_request_that_goes_next_and_what_it_needs() -> None:
    settings = SchedulerSettings(bands=TWO_BANDS.bands, admission=AdmissionSettings(kv_usage_max=0.9))
    made = scheduler(settings, a=8)
    the_lease(made.arrived(request("running"), now=0.0))
    reading = Observation(1.0, 1, 0, kv_usage=0.8, kv_capacity_tokens=10_000, progress=1)
    made.observed("a", reading, now=1.0)
    made.arrived(request("later", band=1, tenant="night", prompt_tokens=2_000), now=1.0)
    made.arrived(request("next", band=0, tenant="chat", prompt_tokens=3_000, output_tokens=100), now=1.0)
    picture = made.snapshot(now=1.0)
    head = picture.models[0].head
    assert head is not None
    assert (head.band, head.tenant, head.tokens, head.kv_tokens_free) == ("high", "chat", 3_100, 1_000)
    assert (picture.endpoints[0].needed_tokens, picture.endpoints[0].kv_tokens_free) == (3_100, 1_000)
    assert picture.kv_usage_ceiling == 0.9


def test_a_share_of_its_band_is_not_told_of_a_tenant_without_rivals() -> None:
    made = scheduler(TWO_BANDS, a=1)
    lease = the_lease(made.arrived(request("r", band=0, tenant="chat"), now=0.0))
    for at, tenant in enumerate(("docs", "web")):
        made.arrived(request(f"w{at}", band=1, tenant=tenant), now=0.0)
        lease = the_lease(made.finished(lease, Usage(100, 100), now=1.0 + at))
    flows = {flow.tenant: flow for flow in made.snapshot(now=2.0).flows}
    assert {name: flow.is_alone for name, flow in flows.items()} == {"chat": True, "docs": False, "web": False}
    assert flows["chat"].share == 1.0
    assert sum(flow.share_of_all for flow in flows.values()) == pytest.approx(1.0)


def test_limited_tenants_are_cut_too_and_those_that_wait_are_shown() -> None:
    limits = {f"t{at}": Limits(queued=9) for at in range(SHOWN_MAX + 7)}
    made = scheduler(SchedulerSettings(tenants=limits), a=1)
    made.arrived(request("running"), now=0.0)
    made.arrived(request("waiting", tenant=f"t{SHOWN_MAX + 6}"), now=0.0)
    picture = made.snapshot(now=1.0)
    assert (len(picture.tenants), picture.tenants_more) == (SHOWN_MAX, 7)
    assert picture.tenants[0].name == f"t{SHOWN_MAX + 6}"


@pytest.mark.parametrize(
    ("policy", "by", "loaded", "free"),
    [("least_loaded", "load per slot", 0.5, 0.0), ("round_robin", None, None, None)],
)
def test_a_dispatch_keeps_what_the_policy_compared(
    policy: str, by: str | None, loaded: float | None, free: float | None
) -> None:
    made = scheduler(SchedulerSettings(routing=policy), a=2, b=2)
    the_lease(made.arrived(request("first"), now=0.0))
    the_lease(made.arrived(request("r"), now=0.0))
    sent = explained(made, "r", 1.0).sent
    assert sent is not None
    assert (sent.endpoint, sent.scored_by) == ("b", by)
    assert [(one.endpoint, one.score) for one in sent.candidates] == [("b", free), ("a", loaded)]


@pytest.mark.parametrize(
    ("policy", "router", "by", "scores"),
    [
        ("prefix", RoutingSettings(), "tokens held", [("a", 384), ("b", 0)]),
        ("load_balanced_kv", RoutingSettings(imbalance_threshold=2.0), "tokens held", [("a", 384), ("b", 0)]),
        ("load_balanced_kv", RoutingSettings(imbalance_threshold=1.0), "load per slot", [("b", 0.0), ("a", 0.25)]),
    ],
)
def test_what_is_told_is_what_decided_and_not_what_the_policy_goes_by_otherwise(
    policy: str, router: RoutingSettings, by: str, scores: list[tuple[str, float]]
) -> None:
    made = scheduler(SchedulerSettings(routing=policy, router=router), a=4, b=4)
    held: dict[str, Any] = {"body_bytes": 3 * 512, "prefix": (1, 2, 3), "streamed": True}
    first = the_lease(made.arrived(request("first", **held), now=0.0))
    made.first_token(first, now=0.5)
    the_lease(made.arrived(request("r", **held), now=1.0))
    sent = explained(made, "r", 1.0).sent
    assert sent is not None
    assert sent.scored_by == by
    assert [(one.endpoint, one.score) for one in sent.candidates] == scores


def test_where_no_prefix_and_no_home_is_known_it_was_load_that_decided_and_at_home_no_numbers() -> None:
    made = scheduler(SchedulerSettings(routing="prefix"), a=4, b=4)
    the_lease(made.arrived(request("first", session="s"), now=0.0))
    the_lease(made.arrived(request("second", session="s"), now=1.0))
    first, second = (explained(made, name, 2.0).sent for name in ("first", "second"))
    assert first is not None
    assert second is not None
    assert (first.endpoint, first.scored_by) == ("a", "load per slot")
    assert (second.endpoint, second.scored_by) == ("a", None)


def test_predicted_costs_are_seconds() -> None:
    made = scheduler(SchedulerSettings(routing="predicted_ttft"), a=4, b=4)
    the_lease(made.arrived(request("first", prompt_tokens=10_000), now=0.0))
    the_lease(made.arrived(request("r", prompt_tokens=100), now=0.0))
    sent = explained(made, "r", 1.0).sent
    assert sent is not None
    assert (sent.endpoint, sent.scored_by) == ("b", "predicted cost, s")
    chosen, other = (one.score or 0.0 for one in sent.candidates)
    assert 0.0 < chosen < other


def test_the_last_thousand_that_ended_are_searched_the_newest_first() -> None:
    made = scheduler(a=1)
    for at in range(KEPT + SLACK + 2):
        made.finished(the_lease(made.arrived(request(f"r{at}"), now=float(at))), None, now=float(at))
    made.arrived(request("runs"), now=2_000.0)
    made.arrived(request("waits"), now=2_001.0)
    rows = list(made.requests(now=2_002.0))
    assert [row.id for row in rows][:4] == ["waits", "runs", "r2001", "r2000"]
    assert (len(rows), rows[-1].id) == (1_004, "r1000")
