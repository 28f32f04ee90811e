"""Nothing of a lower band is sent while a request of a higher one waits for a slot, whatever its tenants' weights."""

from __future__ import annotations

import heapq

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Requeue
from penstock.core.values.request import Usage
from penstock.core.values.settings import BandSettings
from tests.core.drive import request, scheduler, until

SLOTS = 8
ANSWER_S = 2.0
STANDARD, BATCH = 0, 1


def batch_sent_beside_a_flood(weight: float, *, light: bool, preemptible: bool) -> tuple[int, int]:
    """Batch of a tenant of this weight fills all slots, then a flood of another one comes in the band above.

    `light`: with a third tenant there that asks for little. Returns how many requests of batch and of the flood were
    sent while the flood waited, without the time of the first answers.
    """
    bands = (BandSettings("standard"), BandSettings("batch", preemptible=preemptible, engine_waiting_max=0))
    made = scheduler(SchedulerSettings(bands=bands, wait_s_max=1e6), a=SLOTS)
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
        do(made.arrived(request(name, band=band, tenant=tenant, weights=(weight,), output_tokens=50), now=now), now)

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
        if light:
            ask("light", STANDARD, 1.0, next_s)
        next_s += 0.5
        assert next_s < 600.0
    return sent["night"], sent["flood"]


@pytest.mark.parametrize("preemptible", [False, True])
@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("weight", [1.0, 2.0, 5.0])
def test_a_flood_goes_before_a_lower_band(weight: float, light: bool, preemptible: bool) -> None:
    night, flood = batch_sent_beside_a_flood(weight, light=light, preemptible=preemptible)
    assert flood > 40
    assert night == 0
