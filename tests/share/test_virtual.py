"""One queue whoever carries the bytes: many edges, one decider, links with delay, and deaths; the scheduler checked."""

from __future__ import annotations

from functools import partial
from random import Random

import msgspec
import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.request import Request
from penstock.core.values.settings import BandSettings, QueueBounds
from tests.share.virtual import BANDS, Chances, SharedWorld


def _load(world: SharedWorld, *, requests: int, over_s: float, seed: int) -> None:
    random = Random(seed)
    for number in range(requests):
        tenant = random.choice(["a", "b", "c"])
        request = Request(
            f"r{number % 40}" if random.random() < 0.1 else f"r-{number}",  # clients choose ids, and choose them again
            "m",
            random.randrange(3),
            tenant=tenant,
            flow=(tenant,),
            body_bytes=400,
            streamed=random.random() < 0.7,
            deadline_s=random.expovariate(0.1) if random.random() < 0.1 else None,
            output_tokens_max=random.choice([16, 64, 256]),
        )
        world.at(over_s * random.random(), partial(_arrive, world, request, random.choice(list(world.edges))))


def _arrive(world: SharedWorld, request: Request, edge: str) -> None:
    process = world.edges[edge]
    if request.id in process.clients or any(held.request.id == request.id for held in process.edge.requests.values()):
        return  # an edge gives such a one another name
    if request.deadline_s is not None:
        request = msgspec.structs.replace(request, deadline_s=world.now + request.deadline_s)
    world.arrive(edge, request, tokens=request.output_tokens_max or 16)


WILD = Chances(dies_every_s=2.0, freezes_every_s=9.0)


@pytest.mark.parametrize(
    ("seed", "chances"),
    [
        (1, Chances(refused=0, reset=0, broken=0, hangs_up=0)),
        (2, Chances()),
        (3, Chances(link_s=(0.0, 0.5))),
        (4, Chances(dies_every_s=1.0)),
        (5, Chances(freezes_every_s=5.0, link_s=(0.001, 0.3))),
        *((seed, WILD) for seed in range(6, 10)),
    ],
)
def test_each_request_ends_once_and_no_slot_is_used_twice_or_lost(seed: int, chances: Chances) -> None:
    world = SharedWorld(
        seed=seed,
        edges=4,
        engines={"x": 3, "y": 6},
        chances=chances,
        settings=SchedulerSettings(
            bands=tuple(BandSettings(name) for name in BANDS), bounds=QueueBounds(requests_max=60)
        ),
    )
    _load(world, requests=200, over_s=16.0, seed=seed)
    world.run(200.0)
    world.check_idle()
    assert world.outcomes["completed"] > 60
    assert max(engine.most for engine in world.engines.values()) > 2
    assert (world.deaths > 4) == bool(chances.dies_every_s)
