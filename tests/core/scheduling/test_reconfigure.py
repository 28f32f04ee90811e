"""Settings change while requests wait and run: nobody is lost, what was counted stays, new rules rule at once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.scheduling.reconfigure import NeedsRestartError
from penstock.core.values.actions import Dispatch
from penstock.core.values.catalogue import Failure
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, HealthSettings, Limits, Prices, QueueBounds
from tests.core.drive import ends, request, requeued, scheduler, sent, the_lease
from tests.core.shop import PATIENT

HIGH, LOW = BandSettings("high"), BandSettings("low")
TWO = SchedulerSettings(bands=(HIGH, LOW))


def busy(settings: SchedulerSettings) -> tuple[CheckedScheduler, int]:
    """One endpoint of one slot, taken."""
    made = scheduler(settings, a=1)
    return made, the_lease(made.arrived(request("busy", tenant="z", streamed=True), now=0.0))


def served(made: CheckedScheduler, lease: int, count: int, *, now: float = 10.0, output: int = 50) -> list[str]:
    """Who is sent, one after another, as each ends."""
    order = []
    for at in range(count):
        (dispatch,) = made.finished(lease, Usage(1, output), now=now + at)
        assert isinstance(dispatch, Dispatch)
        lease = dispatch.lease
        order.append(dispatch.request_id)
    return order


# --- bands --------------------------------------------------------------------------------------------------------


def test_bands_are_matched_by_name_whatever_their_order() -> None:
    made, lease = busy(TWO)
    made.arrived(request("h", band=0), now=0.0)
    made.arrived(request("l", band=1), now=0.0)
    made.reconfigured(SchedulerSettings(bands=(LOW, BandSettings("new"), HIGH)), now=1.0)
    made.arrived(request("n", band=1), now=1.0)
    assert [(band.name, band.waiting) for band in made.snapshot(now=1.0).bands] == [("low", 1), ("new", 1), ("high", 1)]
    assert served(made, lease, 3) == ["l", "n", "h"]


@pytest.mark.parametrize(
    ("staying", "heir"),
    [(("a", "c"), "c"), (("a",), "a"), (("c", "a"), "c"), (("a", "new"), "new")],
    ids=["the next lower one", "the lowest, where none is lower", "by the old order", "the lowest, a new one"],
)
def test_requests_of_a_removed_band_go_on_in_the_next_lower_one(staying: tuple[str, ...], heir: str) -> None:
    made, lease = busy(SchedulerSettings(bands=tuple(map(BandSettings, "abc"))))
    for at in range(3):
        made.arrived(request(f"r{at}", band=1), now=0.0)
    made.reconfigured(SchedulerSettings(bands=tuple(map(BandSettings, staying))), now=1.0)
    assert {band.name: band.waiting for band in made.snapshot(now=1.0).bands if band.waiting} == {heir: 3}
    assert served(made, lease, 3) == ["r0", "r1", "r2"]


def test_what_runs_in_a_band_that_is_gone_is_settled_in_its_heir() -> None:
    made, lease = busy(TWO)
    made.arrived(request("x", tenant="z", band=1), now=0.0)
    made.arrived(request("y", tenant="y", band=1), now=0.0)
    made.reconfigured(SchedulerSettings(bands=(LOW,)), now=1.0)
    made.arrived(request("late", tenant="z"), now=1.0)
    assert served(made, lease, 3) == ["y", "x", "late"]  # z has got something already


def test_moved_requests_are_displaced_by_age_like_all_others() -> None:
    bounds = QueueBounds(requests_max=4)
    made, _ = busy(SchedulerSettings(bands=(HIGH, BandSettings("middle"), LOW), bounds=bounds))
    for at, band in enumerate((2, 1, 2, 1)):
        made.arrived(request(f"r{at}", band=band), now=float(at))
    made.reconfigured(SchedulerSettings(bands=(HIGH, LOW), bounds=bounds), now=5.0)
    assert ends(made.arrived(request("high"), now=6.0)) == [("r3", "evicted", "displaced")]
    assert ends(made.arrived(request("too"), now=6.0)) == [("r2", "evicted", "displaced")]


def test_new_conditions_of_a_band_hold_at_once() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("b", ceiling=0.5),)), a=4)
    for at in range(4):
        made.arrived(request(f"r{at}"), now=0.0)
    assert made.snapshot(now=0.0).running == 2
    assert len(sent(made.reconfigured(SchedulerSettings(bands=(BandSettings("b"),)), now=1.0))) == 2


def test_a_band_that_was_promised_a_share_and_no_longer_is_has_no_credit_left() -> None:
    made, lease = busy(SchedulerSettings(bands=(HIGH, BandSettings("low", min_share=0.5))))
    for at in range(6):
        made.arrived(request(f"h{at}", band=0), now=0.0)
        made.arrived(request(f"l{at}", band=1), now=0.0)
    assert "l0" in served(made, lease, 2)
    (running,) = made.books.leases
    made.reconfigured(TWO, now=20.0)
    assert {name[0] for name in served(made, running, 4, now=21.0)} == {"h"}


# --- who waits ----------------------------------------------------------------------------------------------------


def test_a_queued_request_keeps_its_promised_time_or_gets_more() -> None:
    made, _ = busy(SchedulerSettings(wait_s_max=10.0))
    made.arrived(request("r"), now=0.0)
    made.reconfigured(SchedulerSettings(wait_s_max=1.0), now=5.0)
    made.arrived(request("new"), now=5.0)
    assert ends(made.expire(now=6.0)) == [("new", "evicted", "queue_timeout")]
    made.reconfigured(SchedulerSettings(wait_s_max=20.0), now=7.0)
    assert made.expire(now=10.0) == []
    assert ends(made.expire(now=20.0)) == [("r", "evicted", "queue_timeout")]


def test_a_queue_that_is_longer_than_it_may_be_now_lets_nobody_in_and_sends_nobody_away() -> None:
    made, lease = busy(SchedulerSettings())
    for at in range(4):
        made.arrived(request(f"r{at}"), now=0.0)
    small = SchedulerSettings(bounds=QueueBounds(requests_max=2))
    assert made.reconfigured(small, now=1.0) == []
    assert ends(made.arrived(request("late"), now=1.0)) == [("late", "rejected", "queue_full")]
    assert served(made, lease, 4) == ["r0", "r1", "r2", "r3"]


def test_another_ordering_holds_for_queued_requests_too() -> None:
    made, lease = busy(SchedulerSettings())
    made.arrived(request("long", output_tokens=128), now=0.0)
    made.arrived(request("short", output_tokens=1, deadline_s=50.0), now=0.1)
    made.arrived(request("pressed", output_tokens=100, deadline_s=40.0), now=0.2)
    made.reconfigured(SchedulerSettings(ordering="shortest_first"), now=1.0)
    assert served(made, lease, 1, now=2.0) == ["short"]
    (running,) = made.books.leases
    made.arrived(request("late", deadline_s=30.0), now=3.0)
    made.reconfigured(SchedulerSettings(ordering="deadline"), now=4.0)
    assert served(made, running, 3, now=5.0) == ["late", "pressed", "long"]


# --- fairness -----------------------------------------------------------------------------------------------------


def test_new_weights_hold_at_once_for_queued_requests_too() -> None:
    made, lease = busy(PATIENT)
    for at in range(12):
        made.arrived(request(f"a{at}", tenant="a"), now=0.0)
        made.arrived(request(f"b{at}", tenant="b"), now=0.0)
    made.reconfigured(replace(PATIENT, tenant_weights={"b": 3.0}), now=1.0)
    order = served(made, lease, 12)
    assert sum(name.startswith("b") for name in order) == 9


def test_service_that_flows_got_stays_counted_when_other_things_change() -> None:
    made, lease = busy(SchedulerSettings())
    for at in range(3):
        made.arrived(request(f"a{at}", tenant="a"), now=0.0)
    assert served(made, lease, 2) == ["a0", "a1"]
    made.arrived(request("b0", tenant="b"), now=12.0)
    made.arrived(request("b1", tenant="b"), now=12.0)
    made.reconfigured(SchedulerSettings(prices=Prices(completion=1.0), wait_s_max=99.0), now=13.0)
    (running,) = made.books.leases
    assert served(made, running, 1, now=14.0, output=500) == ["b0"]  # a got more


def test_under_another_policy_all_flows_start_equal() -> None:
    made, lease = busy(SchedulerSettings())
    for at in range(6):
        made.arrived(request(f"a{at}", tenant="a"), now=0.0)
    served(made, lease, 3, output=5000)
    for at in range(3):
        made.arrived(request(f"b{at}", tenant="b"), now=12.0)
    made.reconfigured(SchedulerSettings(fairness="round_robin"), now=13.0)
    (running,) = made.books.leases
    assert served(made, running, 4, now=14.0) == ["b0", "a3", "b1", "a4"]  # a's own is running
    (running,) = made.books.leases
    made.reconfigured(SchedulerSettings(fairness="fcfs"), now=20.0)
    assert served(made, running, 2, now=21.0) == ["a5", "b2"]


BY_TURNS = SchedulerSettings(
    bands=(HIGH, LOW),
    fairness="round_robin",
    admission=AdmissionSettings(reserved_share=0.25, prefill_tokens_max=10**9),
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (replace(BY_TURNS, fairness="weighted_tokens"), BY_TURNS),
        (BY_TURNS, replace(BY_TURNS, bands=(LOW,))),
        (BY_TURNS, BY_TURNS),
    ],
    ids=["another policy", "its band is gone", "nothing changes"],
)
@pytest.mark.parametrize("band", [0, 1])
def test_slots_stay_kept_for_a_light_flow_that_waits_and_no_heavy_one_takes_them(
    before: SchedulerSettings, after: SchedulerSettings, band: int
) -> None:
    """Both have as many running, so the heavy one, which came first, is the next in turn."""
    made = scheduler(before, a=16)
    for at in range(6):
        made.arrived(request(f"heavy{at}", band=band, tenant="heavy", prompt_tokens=5000), now=0.0)
    for at in range(6):
        made.arrived(request(f"light{at}", band=band, tenant="light", output_tokens=1), now=0.0)
    others = [the_lease(made.arrived(request(f"o{at}", band=band, tenant="other"), now=0.0)) for at in range(4)]
    for at in range(20):
        made.arrived(request(f"backlog{at}", band=band, tenant="heavy", prompt_tokens=5000), now=0.0)
    made.arrived(request("waits", band=band, tenant="light", output_tokens=1), now=0.0)
    assert made.reconfigured(after, now=1.0) == []
    assert sent(made.finished(others[0], Usage(1, 1), now=2.0)) == [("waits", "a")]
    assert sent(made.finished(others[1], Usage(1, 1), now=2.0)) == [], "it is kept for light ones, and none waits"


# --- tenants ------------------------------------------------------------------------------------------------------


def test_new_limits_count_what_is_here_already() -> None:
    made = scheduler(a=4)
    for at in range(2):
        made.arrived(request(f"run{at}", tenant="t"), now=0.0)
    made.reconfigured(SchedulerSettings(tenants={"t": Limits(running=1, queued=1)}), now=1.0)
    assert made.arrived(request("waits", tenant="t"), now=1.0) == []
    assert ends(made.arrived(request("more", tenant="t"), now=1.0)) == [("more", "rejected", "tenant_limit")]
    first, second = made.books.leases
    assert made.finished(first, now=2.0) == []  # one still runs, and that is all it may
    assert sent(made.finished(second, now=3.0)) == [("waits", "a")]


def test_a_limit_that_rises_or_goes_lets_its_tenant_run_more_at_once() -> None:
    made = scheduler(SchedulerSettings(tenants={"t": Limits(running=1)}), a=4)
    for at in range(4):
        made.arrived(request(f"r{at}", tenant="t"), now=0.0)
    assert len(sent(made.reconfigured(SchedulerSettings(tenants={"t": Limits(running=2)}), now=1.0))) == 1
    assert len(sent(made.reconfigured(SchedulerSettings(), now=1.0))) == 2


def test_what_was_spent_of_a_minutes_worth_stays_spent_and_a_debt_stays() -> None:
    made = scheduler(SchedulerSettings(tenants={"t": Limits(requests_per_minute=60, tokens_per_minute=600)}), a=8)
    lease = the_lease(made.arrived(request("r", tenant="t"), now=0.0))
    made.finished(lease, Usage(500, 700), now=0.0)
    made.reconfigured(SchedulerSettings(tenants={"t": Limits(requests_per_minute=30, tokens_per_minute=500)}), now=0.0)
    (seen,) = made.snapshot(now=0.0).tenants
    assert (seen.requests_left, seen.tokens_left) == (29.0, -600.0)
    made.reconfigured(SchedulerSettings(tenants={"t": Limits(tokens_per_minute=6000)}), now=0.0)
    assert made.snapshot(now=0.0).tenants[0].tokens_left == 4900.0


# --- the rest -----------------------------------------------------------------------------------------------------


def test_readings_are_judged_by_the_new_age_and_failures_by_the_new_patience() -> None:
    made = scheduler(a=1, b=1)
    for name in "ab":
        made.observed(name, Observation(0.5, 5, 3, progress=1.0), now=0.5)
    assert made.arrived(request("r"), now=1.0) == []
    changed = SchedulerSettings(stale_after_s=0.4, health=HealthSettings(eject_after=1, panic_threshold=0.0))
    actions = made.reconfigured(changed, now=1.0)
    assert sent(actions) == [("r", "a")]
    made.failed(the_lease(actions), Failure.SERVER_ERROR, now=1.0)
    assert made.snapshot(now=1.0).endpoints[0].state == "ejected"


def test_a_routing_policy_that_changes_keeps_what_is_known_of_endpoints() -> None:
    made = scheduler(SchedulerSettings(routing="prefix"), a=4, b=4)
    sent_to = sent(made.arrived(request("r", prompt_tokens=2000, prefix=(1, 2, 3)), now=0.0))[0][1]
    made.reconfigured(SchedulerSettings(routing="round_robin"), now=1.0)
    assert len({endpoint for at in "xy" for _, endpoint in sent(made.arrived(request(at), now=1.0))}) == 2
    made.reconfigured(SchedulerSettings(routing="prefix"), now=2.0)
    again = [sent(made.arrived(request(f"s{at}", prompt_tokens=2000, prefix=(1, 2, 3)), now=2.0)) for at in range(2)]
    assert [endpoint for ((_, endpoint),) in again] == [sent_to, sent_to]


def test_fewer_attempts_hold_for_requests_that_run() -> None:
    made = scheduler(SchedulerSettings(attempts_max=3), a=1, b=1)
    lease = the_lease(made.arrived(request("r"), now=0.0))
    made.reconfigured(SchedulerSettings(attempts_max=1), now=0.5)
    assert requeued(actions := made.failed(lease, Failure.RESET, now=1.0)) == []
    assert ends(actions) == [("r", "failed", "upstream_error")]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (SchedulerSettings(levels=("tenant", "user")), "fairness.levels"),
    ],
)
def test_what_cannot_change_while_running_is_refused_with_its_key_and_changes_nothing(
    settings: SchedulerSettings, key: str
) -> None:
    made, lease = busy(TWO)
    made.arrived(request("r", band=1), now=0.0)
    with pytest.raises(NeedsRestartError, match=key) as refused:
        made.reconfigured(settings, now=1.0)
    assert refused.value.key == key
    assert [band.name for band in made.snapshot(now=1.0).bands] == ["high", "low"]
    assert served(made, lease, 1) == ["r"]
