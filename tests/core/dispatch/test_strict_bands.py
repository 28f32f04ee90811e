"""Nothing of a lower band is sent while a request of a higher one waits for a slot, whatever its tenants' weights."""

from __future__ import annotations

import heapq

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Requeue
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, Limits
from tests.core.drive import request, scheduler, sent, the_lease, until

SLOTS = 8
ANSWER_S = 2.0
STANDARD, BATCH = 0, 1


def batch_sent_beside_a_flood(
    weight: float, *, light_every_s: float | None, preemptible: bool, batch_model: str = "m", prompt_tokens: int = 0
) -> tuple[int, int]:
    """Batch of a tenant of this weight fills all slots, then a flood of another one comes in the band above.

    `light_every_s`: a third tenant asks there so often. `prompt_tokens`: of batch and of the flood. Returns how many
    requests of batch and of the flood were sent while the flood waited, without the time of the first answers.
    """
    bands = (BandSettings("standard"), BandSettings("batch", preemptible=preemptible, engine_waiting_max=0))
    made = scheduler(SchedulerSettings(bands=bands, wait_s_max=1e6), a=SLOTS)
    made.endpoint_changed("a", models={"m", batch_model}, now=0.0)
    ends: list[tuple[float, int]] = []
    lease_of: dict[str, int] = {}
    flood, sent, count = set[str](), {"night": 0, "flood": 0, "light": 0}, 0

    def do(actions: list[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                tenant = action.request_id.split("-")[0]
                flood.discard(action.request_id)
                if now > 1.0 + 2 * ANSWER_S and flood:
                    sent[tenant] += 1
                lease_of[action.request_id] = action.lease
                heapq.heappush(ends, (now + ANSWER_S * (1.0 + (action.lease % 5) / 10), action.lease))
            elif isinstance(action, Requeue):
                ends[:] = [end for end in ends if end[1] != lease_of[action.request_id]]
                heapq.heapify(ends)

    def ask(tenant: str, band: int, weight: float, now: float) -> None:
        nonlocal count
        count += 1
        name = f"{tenant}-{count}"
        if tenant == "flood":
            flood.add(name)
        sizes = {"output_tokens": 50, "prompt_tokens": 0 if tenant == "light" else prompt_tokens}
        model = batch_model if band == BATCH else "m"
        asked = request(name, model=model, band=band, tenant=tenant, weights=(weight,), **sizes)
        do(made.arrived(asked, now=now), now)

    for _ in range(40):
        ask("night", BATCH, weight, 0.0)
    for _ in range(100):
        ask("flood", STANDARD, 1.0, 1.0)
    next_s = 1.5
    while flood:
        while ends and ends[0][0] <= next_s:
            now = ends[0][0]
            do(until(made, now), now)
            if ends and ends[0][0] <= now:
                do(made.finished(heapq.heappop(ends)[1], Usage(10, 50), now=now), now)
        do(until(made, next_s), next_s)
        if light_every_s is not None and next_s % light_every_s == 0.0:
            ask("light", STANDARD, 1.0, next_s)
        next_s += 0.5
        assert next_s < 600.0
    return sent["night"], sent["flood"]


@pytest.mark.parametrize("preemptible", [False, True])
@pytest.mark.parametrize("light_every_s", [None, 0.5, 3.0])
@pytest.mark.parametrize("weight", [1.0, 2.0, 5.0])
def test_a_flood_goes_before_a_lower_band(weight: float, light_every_s: float | None, preemptible: bool) -> None:
    night, flood = batch_sent_beside_a_flood(weight, light_every_s=light_every_s, preemptible=preemptible)
    assert flood > 40
    assert night == 0


def test_slots_reserved_in_one_band_are_not_for_another_model_in_a_lower_one() -> None:
    night, flood = batch_sent_beside_a_flood(1.0, light_every_s=3.0, preemptible=False, batch_model="adapter")
    assert (night, flood > 40) == (0, True)


def test_room_for_prompts_is_not_left_to_a_lower_band() -> None:
    night, flood = batch_sent_beside_a_flood(1.0, light_every_s=3.0, preemptible=False, prompt_tokens=3_000)
    assert (night, flood > 40) == (0, True)


@pytest.mark.parametrize(("owed", "is_over"), [(0.0, True), (1.0, False)])
def test_only_what_a_band_is_owed_by_promise_has_the_room_of_a_higher_one(owed: float, is_over: bool) -> None:
    bands = (BandSettings("standard"), BandSettings("batch", min_share=0.2))
    made = scheduler(SchedulerSettings(bands=bands, wait_s_max=1e6), a=1)
    for tenant in ("flood", "light"):
        for at in range(2):
            made.arrived(request(f"{tenant}-{at}", tenant=tenant), now=0.0)
    made.arrived(request("night", band=BATCH, tenant="night"), now=0.0)
    state = made.inspect()
    state.reserved.arrived("m", 0.0)
    state.queues.bands[BATCH].credit = owed
    assert state.under_share.is_over_share(state.entries["night"], 0.0) == is_over


def test_a_tenant_at_its_limit_does_not_leave_the_reserved_slot_of_its_band_to_a_lower_one() -> None:
    settings = SchedulerSettings(
        bands=(BandSettings("standard", fairness="fcfs"), BandSettings("batch")),
        wait_s_max=1e6,
        tenants={"limited": Limits(running=1)},
        admission=AdmissionSettings(reserved_share=0.25),
    )
    made = scheduler(settings, a=4)
    for at, tenant in enumerate(("limited", "flood", "flood")):
        assert sent(made.arrived(request(f"runs-{at}", tenant=tenant), now=0.0))
    for at, tenant in enumerate(("limited", "flood")):
        assert not sent(made.arrived(request(f"waits-{at}", tenant=tenant), now=1.0))
    assert not sent(made.arrived(request("night", band=BATCH, tenant="night"), now=2.0))


def test_light_requests_of_a_lower_band_keep_no_slot_free_of_a_higher_one() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("standard"), BandSettings("batch")), wait_s_max=1e6), a=8)
    made.arrived(request("long", tenant="other"), now=0.0)
    leases = [the_lease(made.arrived(request(f"runs-{at}", tenant="flood"), now=0.0)) for at in range(7)]
    for at in range(60):
        made.arrived(request(f"waits-{at}", tenant="flood"), now=0.0)
        made.arrived(request(f"night-{at}", band=BATCH, tenant="night"), now=0.0)
    now = 0.0
    for at in range(40):
        now += 0.5
        made.arrived(request(f"light-{at}", band=BATCH, tenant=f"light{at % 20}"), now=now)
        actions = made.finished(leases.pop(0), Usage(10, 50), now=now)
        leases.append(the_lease(actions))
        assert [name.split("-")[0] for name, _ in sent(actions)] == ["waits"]
