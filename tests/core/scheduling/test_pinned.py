"""Requests that name their endpoint (`?id=`): when is it worth to come again?"""

from __future__ import annotations

import pytest

from penstock.core.values.actions import Reject
from tests.core.drive import request, scheduler, the_lease


def test_cold_its_retry_after_is_as_long_as_the_answer_there_has_run() -> None:
    made = scheduler(a=1, b=1)
    made.arrived(request("runs", pinned="a"), now=0.0)
    refusals = [made.arrived(request(f"next{now}", pinned="a"), now=now)[0] for now in (0.4, 2.0)]
    assert [refusal.retry_after_s for refusal in refusals if isinstance(refusal, Reject)] == [
        pytest.approx(1.0),  # never less
        pytest.approx(2.25, abs=0.25),  # spread by up to a quarter
    ]


def test_its_retry_after_is_the_time_until_its_own_endpoint_has_a_slot_whatever_queues_elsewhere() -> None:
    made = scheduler(a=1, b=1)
    lease = the_lease(made.arrived(request("runs", pinned="a", streamed=True, output_tokens=50), now=0.0))
    made.arrived(request("long", output_tokens=50), now=0.0)
    for number in range(50):
        made.arrived(request(f"queued{number}"), now=0.0)
    made.first_token(lease, now=0.1)
    for step in range(1, 41):
        made.progressed(lease, 1 + step, now=0.1 + step / 20)
    (refusal,) = made.arrived(request("next", pinned="a"), now=2.1)
    assert isinstance(refusal, Reject)
    assert refusal.retry_after_s == pytest.approx(1.0), "nine tokens are left of fifty, at twenty a second"
