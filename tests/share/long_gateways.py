"""Many gateways in virtual time, for as long as is wanted: `python -m tests.share.long_gateways --requests 1000000`.

Each seed is a world of its own for each kind of trouble; `--each N` is how many requests it has.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial
from random import Random

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.request import Request, Turn
from penstock.core.values.settings import BandSettings, QueueBounds, SessionSettings
from tests import long_run
from tests.share.gateways import TTL_S, Gateways, Troubles
from tests.share.virtual import BANDS, Chances

KINDS = {
    "parents": Troubles(parent_dies_s=8.0),
    "gateways": Troubles(gateway_dies_s=9.0),
    "store": Troubles(store_goes_s=10.0, parent_dies_s=20.0),
    "links": Troubles(link_breaks_s=1.0),
    "cuts": Troubles(cut_s=8.0),
    "all": Troubles(8.0, 12.0, 3.0, 8.0, 15.0),
}
PAUSE_S = TTL_S + 0.5 + 0.5  # a look at the record, and the way there and back: the longest that a death costs


def tried(kind: str, seed: int, *, requests: int) -> Gateways:
    """Run one world, and check that all is served or told, once."""
    random, over_s = Random(seed), 10.0 + requests * 0.12
    link_s = random.choice([(0.0001, 0.02), (0.0, 0.2)])
    smooth = seed % 2 == 1  # engines do no wrong: then whatever fails is our fault
    chances = Chances(refused=0, reset=0, broken=0, link_s=link_s) if smooth else Chances(link_s=link_s)
    world = Gateways(
        seed=seed,
        gateways=3,
        edges=2,
        engines={"x": 2, "y": 3},
        chances=chances,
        troubles=KINDS[kind],
        settings=SchedulerSettings(
            bands=tuple(BandSettings(name) for name in BANDS),
            bounds=QueueBounds(requests_max=200),
            sessions=SessionSettings(memory=True, wait_s=10.0, wait_s_max=70.0),
        ),
        until_s=over_s,
    )
    for number in range(requests):
        tenant = random.choice("abc")
        request = Request(
            f"r{number % 40}" if random.random() < 0.1 else f"r-{number}",
            "m",
            random.randrange(3),
            tenant=tenant,
            flow=(tenant,),
            body_bytes=400,
            streamed=random.random() < 0.7,
            deadline_s=20.0 * random.random() if random.random() < 0.1 else None,
            output_tokens_max=random.choice([16, 64, 256]),
            session=random.choice("uvw") if random.random() < 0.3 else None,
            prefix=tuple(range(random.randrange(8))) if random.random() < 0.3 else (),
            pinned=random.choice("xy") if random.random() < 0.03 else None,
            turn=Turn(random.choice("ijkl")) if random.random() < 0.4 else None,
        )
        world.at(over_s * random.random(), partial(_arrives, world, request, random.choice(list(world.edges))))
    world.run(over_s + 120.0)
    world.check_idle()
    assert not smooth or not any(how.startswith("failed") for how in world.outcomes), world.outcomes
    if world.is_strict:  # deaths alone: the record is free after its time, who takes it hears all for half a second
        assert world.paused_s <= PAUSE_S, f"nothing was sent for {world.paused_s} s"
    return world


def _arrives(world: Gateways, request: Request, edge: str) -> None:
    process = world.edges[edge]
    if any(held.request.id == request.id for held in process.edge.requests.values()):
        return
    if request.deadline_s is not None:
        request = request.but(deadline_s=world.now + request.deadline_s)
    world.arrive(edge, request, tokens=request.output_tokens_max or 16)


def _tried(kind: str, seed: int, args: argparse.Namespace) -> long_run.Tried:
    world = tried(kind, seed, requests=args.each)
    beyond = Counter({f"requests of ours in an engine beyond its slots ({kind})": world.most_beyond})
    return long_run.Tried(args.each, Counter(world.seen) + world.outcomes, beyond)


if __name__ == "__main__":
    parser = long_run.parser("tests.share.long_gateways", __doc__, kinds=KINDS)
    parser.add_argument("--each", type=int, default=300, help="requests in each world")
    parser.set_defaults(requests=10_000)
    sys.exit(long_run.run(_tried, parser.parse_args()))
