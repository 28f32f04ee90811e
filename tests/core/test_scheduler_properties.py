"""Two thousand requests in a hostile world, the checkers on after every event: nothing leaks, nothing is lost."""

from __future__ import annotations

import pytest

from penstock.core.actions import Dispatch
from penstock.core.band import BandSettings
from penstock.core.ledger import Observation
from penstock.core.request import Request
from penstock.core.scheduler import SchedulerSettings
from tests.core.chaos import Chaos

ONE_BAND = SchedulerSettings(requests_max=60, wait_s_max=3.0)
THREE_BANDS = SchedulerSettings(
    bands=(
        BandSettings("high", engine_waiting_max=3),
        BandSettings("middle", wait_s_max=1.5, requests_max=20),
        BandSettings("low", engine_waiting_max=0, ceiling=0.7),
    ),
    requests_max=80,
    bytes_max=60_000,
    wait_s_max=4.0,
    routing="round_robin",
)
SEEDS = range(4)


def prove_nothing_is_left(chaos: Chaos) -> None:
    """Leases are 0, the queue is empty, and as many requests as there are slots can be sent at once."""
    scheduler, now = chaos.scheduler, chaos.now + 100.0
    picture = scheduler.snapshot(now=now)
    assert (picture.waiting, picture.waiting_bytes, picture.running) == (0, 0, 0)
    assert not scheduler.books.requests
    assert sum(scheduler.books.outcomes.values()) == chaos.requests
    if chaos.drain:
        return
    for engine in chaos.engines.values():
        scheduler.endpoint_up(engine.name, now=now)
        scheduler.endpoint_changed(engine.name, models=["only-" + engine.name], slots=engine.slots, now=now)
        scheduler.observed(engine.name, Observation(now, 0, 0, progress=1e9), now=now)
        now += 31.0  # ejections and holds end, and others' load is forgotten
        scheduler.expire(now=now)
        scheduler.observed(engine.name, Observation(now, 0, 0, progress=2e9), now=now)
        for at in range(engine.slots + 1):
            request = Request(id=f"{engine.name}-{at}", model="only-" + engine.name, band=0)
            dispatched = any(isinstance(x, Dispatch) for x in scheduler.arrived(request, now=now))
            assert dispatched == (at < engine.slots or not chaos.settings.queue_enabled)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("settings", [ONE_BAND, THREE_BANDS], ids=["one_band", "three_bands"])
def test_nothing_leaks_and_nothing_is_lost(seed: int, settings: SchedulerSettings) -> None:
    chaos = Chaos(seed, settings, requests=1000)
    chaos.run()
    prove_nothing_is_left(chaos)
