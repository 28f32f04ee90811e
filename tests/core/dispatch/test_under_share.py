"""Who counts as asking for little: not who asks for nearly all there is, however that came about."""

from __future__ import annotations

import heapq

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Dispatch
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, EndpointSpec, Limits
from tests.core.drive import request, scheduler, sent, the_lease, until

SLOTS = 8
CLIENTS = 3 * SLOTS  # of the flood: each asks again when it was answered
HEAVY_S, LIGHT_S = 4.0, 0.2  # an answer takes
HEAVY_TOKENS, LIGHT_TOKENS = 200, 10
FIRST_S, END_S = 10.0, 180.0
AT_ONCE_S = 0.01


@pytest.mark.parametrize("light_flows", [1, 3])
def test_a_flood_of_clients_that_ask_again_is_never_taken_for_a_light_one(light_flows: int) -> None:
    """After some windows it asks for no more than it gets, which is nearly all there is."""
    made = scheduler(SchedulerSettings(wait_s_max=1e6), a=SLOTS)
    asked_s: dict[str, float] = {}
    waits: list[tuple[float, float]] = []  # of the light ones: when each came, and for how long it waited
    events: list[tuple[float, int, int]] = []  # what ends: when, its lease, and how many tokens it was
    sent: list[str] = []
    number = 0

    def take(actions: list[object], now: float) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                is_light = action.request_id.startswith("light")
                sent.append(action.request_id)
                if is_light:
                    came_s = asked_s.pop(action.request_id)
                    waits.append((came_s, now - came_s))
                took_s, tokens = (LIGHT_S, LIGHT_TOKENS) if is_light else (HEAVY_S, HEAVY_TOKENS)
                heapq.heappush(events, (now + took_s * (1.0 + len(sent) % 7 / 20), action.lease, tokens))

    def ask(tenant: str, tokens: int, now: float) -> None:
        nonlocal number
        number += 1
        name = f"{tenant}-{number}"
        asked_s[name] = now
        take(list(made.arrived(request(name, tenant=tenant, output_tokens=tokens), now=now)), now)

    for _ in range(CLIENTS):
        ask("heavy", HEAVY_TOKENS, 0.0)
    next_s, turn = 0.5, 0
    while next_s < END_S:
        while events and events[0][0] <= next_s:
            now, lease, tokens = heapq.heappop(events)
            take(list(until(made, now)), now)
            take(list(made.finished(lease, Usage(10, tokens), now=now)), now)
            if tokens == HEAVY_TOKENS:
                ask("heavy", HEAVY_TOKENS, now)
        take(list(until(made, next_s)), next_s)
        turn += 1
        ask(f"light{turn % light_flows}", LIGHT_TOKENS, next_s)
        next_s += 0.5
    late = [wait_s <= AT_ONCE_S for came_s, wait_s in waits if came_s >= END_S / 2]
    early = [wait_s <= AT_ONCE_S for came_s, wait_s in waits if FIRST_S <= came_s < END_S / 2]
    assert len(late) > 100
    assert sum(early) / len(early) > 0.95
    assert sum(late) / len(late) > 0.95


def test_slots_that_time_alone_frees_are_no_longer_taken_for_the_last_ones() -> None:
    """One more of someone else's was on the page; who waits is sent the moment the page is too old, not at some time
    within the second.
    """
    made = scheduler(SchedulerSettings(admission=AdmissionSettings(reserved_share=0.25), stale_after_s=2.5), e=4)
    for name in ("h0", "h1"):
        assert sent(made.arrived(request(name, tenant="heavy"), now=0.0)) == [(name, "e")]
    made.finished(the_lease(made.arrived(request("l", tenant="light"), now=0.1)), Usage(1, 50), now=0.2)
    made.observed("e", Observation(0.3, 3, 0, progress=1.0), now=0.3)
    assert made.arrived(request("h2", tenant="heavy"), now=0.5) == [], "the last slot is kept for the light one"
    now = 0.5
    following: list[tuple[str, str]] = []
    while not following:
        now = made.next_deadline() or 99.0
        following = sent(made.expire(now=now))
    assert following == [("h2", "e")]
    assert now == pytest.approx(2.8)


def full_but_for_a_reserve(*, preemptible: bool) -> CheckedScheduler:
    """Two of the four slots at `a` are kept for flows under their share, and a request of a low band has that at `b`.
    A tenant may run one request.
    """
    settings = SchedulerSettings(
        bands=(BandSettings("high"), BandSettings("middle"), BandSettings("low", preemptible=preemptible)),
        tenants={"held": Limits(running=1)},
        admission=AdmissionSettings(reserved_share=0.5),
    )
    made = scheduler(settings)
    for name, slots in (("a", 4), ("b", 1)):
        made.endpoint_added(EndpointSpec(name=name, slots=slots, models=frozenset({"m" + name})), now=0.0)
    made.first_token(the_lease(made.arrived(request("low", model="mb", band=2, tenant="low"), now=0.0)), now=0.1)
    return made


def take_half(made: CheckedScheduler, now: float) -> None:
    """A tenant takes the slots at `a` that are not kept, and asks for a third one."""
    h0, h1, h2 = (request(f"h{at}", model="ma", band=1, tenant="heavy", prompt_tokens=500) for at in range(3))
    assert sent(made.arrived(h0, now=now) + made.arrived(h1, now=now)) == [("h0", "a"), ("h1", "a")]
    assert made.arrived(h2, now=now) == []


def test_when_a_tenant_is_found_to_be_held_others_get_its_share_at_once() -> None:
    """It waits for a model without a free slot, so that is found only where one is looked for that can be taken."""
    made = full_but_for_a_reserve(preemptible=True)
    assert made.arrived(request("waits", model="mb", band=1, tenant="held"), now=0.2) == []
    take_half(made, 0.3)
    actions = made.arrived(request("runs", model="ma", band=0, tenant="held"), now=0.5)
    assert sent(actions) == [("runs", "a"), ("h2", "a")]


def test_when_a_request_comes_that_is_held_others_get_its_share_at_once() -> None:
    made = full_but_for_a_reserve(preemptible=False)
    made.arrived(request("before", model="mb", band=1, tenant="held"), now=0.2)
    take_half(made, 0.3)
    made.cancelled("before", now=0.4)
    assert sent(made.arrived(request("runs", model="ma", band=0, tenant="held"), now=0.5)) == [("runs", "a")]
    assert sent(made.arrived(request("more", model="mb", band=1, tenant="held"), now=0.6)) == [("h2", "a")]


def more(made: CheckedScheduler, now: float) -> dict[str, bool]:
    return {flow.tenant: flow.asks_for_more for flow in made.snapshot(now=now).flows}


def test_the_snapshot_reports_which_tenants_take_more_than_their_share() -> None:
    made = scheduler(a=4)
    for at in range(12):
        made.arrived(request(f"f{at}", tenant="flood"), now=0.0)
    assert more(made, 0.0) == {"flood": True}, "alone its share is all there is, and it asks for more"
    made.arrived(request("quiet", tenant="quiet"), now=1.0)
    assert more(made, 1.0) == {"flood": True, "quiet": False}, "it waits, and took nothing"
    made.arrived(request("odd", tenant="odd", model="other"), now=1.0)
    for at in range(12):
        made.evicted(f"f{at}", now=2.0)
    assert not more(made, 2.0)["flood"], "none of its requests waits"


def test_alone_in_its_band_a_tenant_takes_more_than_its_share_if_most_of_what_runs_is_its_own() -> None:
    bands = (BandSettings("high"), BandSettings("low"))
    made = scheduler(SchedulerSettings(bands=bands), a=3)
    for at in range(3):
        made.arrived(request(f"l{at}", band=1, tenant="low"), now=0.0)
    made.arrived(request("h", band=0, tenant="high"), now=1.0)
    made.arrived(request("late", band=1, tenant="low"), now=1.0)
    assert more(made, 1.0) == {"high": False, "low": True}


def test_without_flows_nobody_takes_more_than_a_share() -> None:
    made = scheduler(SchedulerSettings(fairness="fcfs"), a=1)
    for at in range(5):
        made.arrived(request(f"r{at}", tenant="ann"), now=0.0)
    assert more(made, 0.0) == {"ann": False}
