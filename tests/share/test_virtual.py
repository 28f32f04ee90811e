"""One queue whoever carries the bytes: many edges, one decider, links with delay, and deaths; the scheduler checked."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest

from penstock.core.scheduler import Scheduler, SchedulerSettings
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
        request = request.but(deadline_s=world.now + request.deadline_s)
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
        *(pytest.param(seed, WILD, marks=pytest.mark.slow) for seed in range(6, 10)),
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


SMOOTH = Chances(refused=0, reset=0, broken=0, hangs_up=0)


def _backlogged(
    placement: dict[str, list[int]], weights: dict[str, float], *, edges: int, seed: int = 1
) -> dict[str, int]:
    """Tokens that each tenant got in two minutes, when all ask for more than there is, each at its own edges."""
    world = SharedWorld(
        seed=seed,
        edges=edges,
        engines={"x": 8},
        chances=SMOOTH,
        settings=SchedulerSettings(bands=tuple(BandSettings(name) for name in BANDS), wait_s_max=1000.0),
        kind=Scheduler,  # with so many waiting the checked one takes minutes
    )
    # Two thousand are served; each tenant has more than its part of these, and many more wait at the end.
    asks = {tenant: round(600 + 2000 * weight / sum(weights.values())) for tenant, weight in weights.items()}
    for number in range(max(asks.values())):
        for tenant, places in placement.items():
            if number >= asks[tenant]:
                continue
            request = Request(
                f"{tenant}{number}",
                "m",
                1,
                tenant=tenant,
                flow=(tenant,),
                weights=(weights[tenant],),
                body_bytes=400,
                streamed=True,
                output_tokens_max=64,
            )
            world.at(number * 0.0002, partial(_arrive, world, request, f"edge{places[number % len(places)]}"))
    world.run(120.0)
    got = dict.fromkeys(placement, 0)
    for client in world.clients:
        if client.ends == ["completed"]:
            got[client.request.tenant] += client.tokens
    assert all(sum(not client.ends for client in world.clients if client.request.tenant == name) > 400 for name in got)
    return got


@pytest.mark.parametrize(
    "placement",
    [
        {"a": [0, 0, 0, 1], "b": [1]},
        *(
            pytest.param(more, marks=pytest.mark.slow)
            for more in ({"a": [0, 1], "b": [0, 1]}, {"a": [0], "b": [1]}, {"a": [1], "b": [0]})
        ),
    ],
    ids=["skewed", "balanced", "apart", "swapped"],
)
def test_weights_hold_wherever_requests_come_in(placement: dict[str, list[int]]) -> None:
    """Two frontends, weights 4:1, one engine; with a queue in each, a skewed ingress gives 1:1."""
    got = _backlogged(placement, {"a": 4.0, "b": 1.0}, edges=2)
    assert got["a"] / got["b"] == pytest.approx(4.0, rel=0.02), got


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param({"a": [0], "b": [1], "c": [1], "d": [1]}, marks=pytest.mark.slow),
        pytest.param({"a": [0], "b": [0, 1], "c": [1], "d": [0, 1]}, marks=pytest.mark.slow),
        pytest.param({"a": [0], "b": [0], "c": [0, 1], "d": [1]}, marks=pytest.mark.slow),
        {"a": [0], "b": [1], "c": [2, 3], "d": [3]},
    ],
    ids=["A|BCD", "ABD|BCD", "ABC|CD", "A|B|C|C+D"],
)
def test_four_tenants_get_the_same_at_any_edge(placement: dict[str, list[int]]) -> None:
    got = list(_backlogged(placement, dict.fromkeys("abcd", 1.0), edges=4).values())
    jain = sum(got) ** 2 / (len(got) * sum(one * one for one in got))
    assert jain >= 0.995, (jain, got)
