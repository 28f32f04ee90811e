"""No wait is forecast that no rate of service ends: of a band below busy ones, and one that somebody has to end."""

from __future__ import annotations

import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Evict
from penstock.core.values.settings import BandSettings, Limits
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


@pytest.mark.parametrize("ends", ["a tenant's pause", "a pause of all", "an engine's absence"])
def test_a_wait_that_somebody_has_to_end_has_no_forecast_anywhere(ends: str) -> None:
    settings = SchedulerSettings(bands=(BandSettings("chat"),), wait_s_max=10.0)
    made = scheduler(settings, a=1)
    lease = the_lease(made.arrived(request("r0"), now=0.0))
    for at in range(1, 6):
        made.arrived(request(f"r{at}", tenant="t"), now=float(at))
        lease = the_lease(made.finished(lease, None, now=at + 0.5))
    made.arrived(request("waits", tenant="t"), now=6.0)
    assert made.places(["waits"], now=6.0)["waits"].eta_s is not None
    if ends == "a tenant's pause":
        made.tenants_limited({"t": Limits(running=0)}, now=6.5)
    elif ends == "a pause of all":
        made.paused(None, now=6.5)
    else:
        made.endpoint_down("a", now=6.5)
    assert made.places(["waits"], now=6.6)["waits"].eta_s is None
    told = made.explain("waits", now=6.6)
    assert told is not None
    assert told.estimated_wait_s is None
    (refused,) = [action for action in made.expire(now=16.5) if isinstance(action, Evict)]
    assert refused.retry_after_s is not None
    assert refused.retry_after_s >= 5.0, "as while nothing is known"
