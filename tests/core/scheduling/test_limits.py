"""Limits are exact: never one more than there are slots, never one fewer while somebody waits."""

from __future__ import annotations

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, Limits, QueueBounds
from tests.core.drive import ends, request, scheduler, sent, the_lease

STREAMED_OR_NOT = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "not_streamed"])


@STREAMED_OR_NOT
def test_two_slots_and_room_for_four_serve_six_of_ten(streamed: bool) -> None:
    made = scheduler(SchedulerSettings(bounds=QueueBounds(requests_max=4)), a=2)
    actions = [made.arrived(request(str(at), streamed=streamed), now=0.0) for at in range(10)]
    assert [len(sent(x)) for x in actions] == [1, 1] + [0] * 8
    refused = [end for x in actions for end in ends(x)]
    assert refused == [(str(at), "rejected", "queue_full") for at in range(6, 10)]
    assert all(1.0 <= x[0].retry_after_s <= 60.0 for x in actions[6:])  # type: ignore[union-attr,operator]
    leases = [the_lease(x) for x in actions[:2]]
    served = []
    for at in range(6):
        after = made.finished(leases.pop(0), now=3.0 + at)
        served += sent(after)
        leases += [the_lease(after)] if after else []
    assert [name for name, _ in served] == ["2", "3", "4", "5"]


@STREAMED_OR_NOT
@pytest.mark.parametrize("moving", [True, False], ids=["moving", "frozen"])
def test_sixty_four_at_once_fill_sixty_four_slots(moving: bool, streamed: bool) -> None:
    made = scheduler(SchedulerSettings(admission=AdmissionSettings(prefill_tokens_max=1_000_000)), a=64)
    running = 0
    for at in range(70):
        now = at / 10
        if at % 5 == 0:
            gauges = (running, 0) if moving else (0, 0)
            made.observed("a", Observation(now, *gauges, progress=float(at if moving else 0)), now=now)
        running += len(sent(made.arrived(request(str(at), streamed=streamed, prompt_tokens=8000), now=now)))
    assert running == 64


@STREAMED_OR_NOT
def test_a_burst_of_500_against_frozen_gauges_stays_within_the_slots(streamed: bool) -> None:
    made = scheduler(a=16, b=8)
    for name in "ab":
        made.observed(name, Observation(0.0, 0, 0), now=0.0)
    dispatched = [x for at in range(500) for x in sent(made.arrived(request(str(at), streamed=streamed), now=0.1))]
    for at in range(1, 40):
        for name in "ab":
            dispatched += sent(made.observed(name, Observation(float(at), 0, 0), now=float(at)))
    assert sorted(endpoint for _, endpoint in dispatched) == ["a"] * 16 + ["b"] * 8


def test_no_more_wait_inside_an_engine_than_the_band_allows() -> None:
    """The engine turns out to run 4 at once where we believed in 16: two may wait, and no third is sent."""
    made = scheduler(a=16)
    for at in range(4):
        made.arrived(request(f"first{at}", streamed=True), now=0.0)
    made.observed("a", Observation(1.0, 4, 0, progress=1.0), now=1.0)
    made.observed("a", Observation(2.0, 4, 1, progress=2.0), now=2.0)
    dispatched = [x for at in range(10) for x in sent(made.arrived(request(str(at)), now=2.5))]
    assert len(dispatched) == 1


def test_a_limit_that_falls_below_what_is_held_takes_nothing_away_and_gives_nothing_out() -> None:
    made = scheduler(a=4)
    leases = [the_lease(made.arrived(request(str(at)), now=0.0)) for at in range(4)]
    made.arrived(request("waiter"), now=0.0)
    made.endpoint_changed("a", slots=2, now=1.0)
    assert [sent(made.finished(lease, now=2.0)) for lease in leases[:3]] == [[], [], [("waiter", "a")]]


def test_more_slots_are_used_at_once() -> None:
    made = scheduler(a=1)
    for at in range(4):
        made.arrived(request(str(at)), now=0.0)
    assert len(sent(made.endpoint_changed("a", slots=3, now=1.0))) == 2


def test_a_prompt_beyond_its_bound_is_refused_before_it_costs_its_tenant_anything() -> None:
    made = scheduler(SchedulerSettings(tenants={"anonymous": Limits(tokens_per_day=10_000)}), a=2)
    long = request("long", body_bytes=4_000).but(prompt_tokens_max=999)
    refusal = made.arrived(long, now=0.0)
    assert ends(refusal) == [("long", "rejected", "context_length_exceeded")]
    assert refusal[0].retry_after_s is None  # type: ignore[union-attr]
    allowance = made.allowance(("anonymous",), now=0.0)
    assert allowance is not None
    assert allowance.tokens_day is not None
    assert allowance.tokens_day.remaining == 10_000
    enough = request("enough", body_bytes=4_000).but(prompt_tokens_max=1_000)
    assert [name for name, _ in sent(made.arrived(enough, now=0.0))] == ["enough"]


def test_short_prompts_teach_no_way_around_a_bound_on_long_ones() -> None:
    """After some of two tokens a body of 1,500 bytes was taken for 31 tokens, and went through a bound of 50."""
    made = scheduler(a=2)
    for at in range(3):
        lease = the_lease(made.arrived(request(f"short{at}", body_bytes=48), now=float(at)))
        made.finished(lease, Usage(1, 5), now=float(at))
    long = request("long", body_bytes=1_500).but(prompt_tokens_max=50)
    assert ends(made.arrived(long, now=9.0)) == [("long", "rejected", "context_length_exceeded")]
    enough = request("enough", body_bytes=1_500).but(prompt_tokens_max=188)
    assert [name for name, _ in sent(made.arrived(enough, now=9.0))] == ["enough"]
