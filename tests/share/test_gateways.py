"""Deciders and edges die, links break, gateways are cut off: streams go on, requests wait, nothing is lost or doubled.

A failing seed is run again by `python -m tests.share.long_gateways --each 120 --seed SEED --kind KIND`.
"""

from __future__ import annotations

from functools import partial

import pytest

from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.request import Request
from penstock.core.values.settings import BandSettings
from tests.share.gateways import Gateways, Troubles
from tests.share.long_gateways import KINDS, tried
from tests.share.virtual import BANDS, Chances


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(KINDS, 1)))
def test_nothing_is_lost_or_doubled_whatever_ends(seed: int, kind: str) -> None:
    world = tried(kind, seed, requests=120)
    assert world.outcomes["completed"] > 60
    assert world.seen["elected"] > 0
    assert len(world.seen) > 1


@pytest.mark.slow
def test_weights_hold_through_the_deaths_of_deciders() -> None:
    """4:1, each tenant at gateways of its own, a decider dead every twelve seconds or so: no share begins anew."""
    world = Gateways(
        seed=1,
        gateways=3,
        edges=1,
        engines={"x": 8},
        chances=Chances(refused=0, reset=0, broken=0, hangs_up=0),
        troubles=Troubles(parent_dies_s=12.0),
        settings=SchedulerSettings(bands=tuple(BandSettings(name) for name in BANDS), wait_s_max=1000.0),
        until_s=90.0,
        kind=Scheduler,  # with so many waiting the checked one takes minutes
    )
    weights, places = {"a": 4.0, "b": 1.0}, {"a": [0, 0, 0, 1], "b": [2]}
    for number in range(1500):
        for name, weight in weights.items():
            request = Request(
                f"{name}{number}",
                "m",
                1,
                tenant=name,
                flow=(name,),
                weights=(weight,),
                body_bytes=400,
                streamed=True,
                output_tokens_max=64,
            )
            edge = f"g{places[name][number % len(places[name])]}/w0"
            world.at(number * 0.0002, partial(world.arrive, edge, request, tokens=64))  # type: ignore[arg-type]
    world.run(90.0)
    got = dict.fromkeys(weights, 0)
    for client in world.clients:
        if client.ends == ["completed"]:
            got[client.request.tenant] += client.tokens
    assert world.seen["parent died"] >= 4
    assert got["a"] / got["b"] == pytest.approx(4.0, rel=0.04), got
