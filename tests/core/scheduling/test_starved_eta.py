"""No wait is forecast for a request of a band below busy ones: whatever room there will be is theirs."""

from __future__ import annotations

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import BandSettings
from tests.core.drive import request, scheduler, the_lease


@pytest.mark.parametrize(("promised", "known"), [(0.0, False), (0.2, True)])
def test_a_starved_request_is_promised_no_time(promised: float, known: bool) -> None:
    bands = (BandSettings("chat"), BandSettings("batch", min_share=promised))
    made = scheduler(SchedulerSettings(bands=bands), a=1)
    lease = the_lease(made.arrived(request("r0"), now=0.0))
    for at in range(1, 6):
        made.arrived(request(f"r{at}"), now=float(at))
        lease = the_lease(made.finished(lease, None, now=at + 0.5))
    made.arrived(request("item", band=1), now=6.0)
    assert made.places(["item"], now=6.0)["item"].eta_s is not None, "nothing of the higher band waits"
    made.arrived(request("r9"), now=6.0)
    place = made.places(["item", "r9"], now=6.0)
    assert (place["item"].eta_s is not None) is known
    assert place["r9"].eta_s is not None
