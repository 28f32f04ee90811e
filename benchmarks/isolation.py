"""The cost of isolation: light tenants' time to first token against throughput, for several methods. Virtual time.

How to read it. `isolation` is the p99 of the light tenants' time to first token beside a flood over that without it, of
all seeds together; `throughput` is the engines' work over that of pass-through. A method is better than another if it
has less of the first for the same of the second.

`small`: slots kept free on two engines of 8: a fixed share, or measured, for so many deviations of the light arrivals;
`ends known` is told when each answer ends, which no gateway is: what better estimates could be worth at most. `turns`:
long prompts on two engines of 64, sent by turns with so much patience (`core/dispatch/prefill_stagger.py`), as a part
of what a usual one takes; `inf`: not by turns. `bound`: the optimum of any gateway, if engines compute prompts to their
ends (docs/decisions/0021).
"""

from __future__ import annotations

import argparse
import math
import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from operator import add
from pathlib import Path
from random import Random
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import ttfts
from bench.scenarios.base import (
    CHAT,
    ENGINE,
    LONG_ANSWERS,
    LONG_PROMPTS,
    Kind,
    Run,
    Setup,
    Variant,
    engines,
    run,
)
from bench.scenarios.isolation import FLOOD, flooded, is_light
from penstock.core.dispatch import reserved_slots, under_share
from penstock.core.dispatch.prefill_stagger import PrefillStagger
from penstock.core.dispatch.reserved_slots import FREES_MAX
from penstock.core.dispatch.under_share import UnderShare
from penstock.sim.world.report import percentile
from penstock.sim.world.world import World

WARM_S = 40.0


@dataclass(frozen=True)
class Way:
    """One way to buy isolation."""

    family: str
    name: str
    share: float | None = None  #: of the slots, kept; None: measured
    deviations: float = reserved_slots.DEVIATIONS
    ends_known: bool = False
    by_rate: bool = False  #: slots are taken to free evenly
    patience: float = 0.5


SMALL = (
    *(Way("fixed share", f"{share:g}", share=share) for share in (0.125, 0.1875, 0.25)),
    *(Way("measured", f"{z:g} deviations", deviations=z) for z in (1.5, 2.0, 3.0)),
    *(Way("measured by rate", f"{z:g} deviations", deviations=z, by_rate=True) for z in (1.5, 2.0)),
    *(Way("measured, ends known", f"{z:g} deviations", deviations=z, ends_known=True) for z in (1.5, 3.0)),
)
TURNS = tuple(Way("by turns", f"{patience:g}", patience=patience) for patience in (float("inf"), 0.75, 0.5, 0.35, 0.2))


Points = dict[Way, tuple[float, float]]  # throughput and isolation


class Bought:
    """What all seeds together say."""

    def __init__(self) -> None:
        self.ttfts_s: list[float] = []
        self.kept: list[float] = []

    def add(self, done: Run, base: float) -> None:
        self.ttfts_s += ttfts(done.journeys(is_light), done.end_s)
        self.kept.append(done.utilisation() / base)

    @property
    def p99_s(self) -> float:
        return percentile(self.ttfts_s, 0.99)

    @property
    def throughput(self) -> float:
        return sum(self.kept) / len(self.kept)


def frees_truly(world: World, of: UnderShare, now: float) -> list[float]:
    """When the next slots will free, if every answer's length were known."""
    ends_s = []
    for endpoint in of.inspect().pool:
        pace_s = endpoint.ledger.speed.time_per_output_token_s(now)
        config = world.nodes[endpoint.name].spec.config
        for sequence in world.nodes[endpoint.name].engine._sequences.values():
            prefill_s = (sequence.tokens - sequence.computed) * config.prefill_s_per_token if not sequence.said else 0.0
            ends_s.append(max(pace_s, (sequence.output - sequence.said) * pace_s + prefill_s))
    return sorted(ends_s)[:FREES_MAX]


def one(way: Way, kind: Kind, slots: int, light_share: float, setup: Setup) -> Run:
    worlds: list[World] = []
    begin = World._begin

    def begun(world: World) -> None:
        worlds.append(world)
        begin(world)

    with ExitStack() as patches:
        patches.enter_context(patch.object(reserved_slots, "DEVIATIONS", way.deviations))
        squares_over_sum = property(lambda self: way.patience * self._squares / (self._seconds or 1e-9))
        patches.enter_context(patch.object(PrefillStagger, "patience_s", squares_over_sum))
        if way.by_rate:
            patches.enter_context(patch.object(under_share, "FORESEEN_SLOTS_MAX", 0))
        if way.ends_known:
            patches.enter_context(patch.object(World, "_begin", begun))
            known = lambda of, _model, now: frees_truly(worlds[-1], of, now)  # noqa: E731
            patches.enter_context(patch.object(UnderShare, "_frees_s", known))
        pool = engines(slots=slots)
        variant = Variant(way.name, engines=pool, reserved_share=way.share, routing="predicted_ttft")
        return run(setup, variant, flooded(kind, slots=slots, light_share=light_share), warm_s=WARM_S)


def compare(
    ways: Sequence[Way], kind: Kind, slots: int, light_share: float, seeds: list[int], duration_s: float
) -> Points:
    streams = flooded(kind, slots=slots, light_share=light_share)
    alone, bought = Bought(), {way: Bought() for way in ways}
    for seed in seeds:
        setup = Setup(seed, duration_s)
        without = Variant("alone", engines=engines(slots=slots), without=frozenset({FLOOD}))
        alone.add(run(setup, without, streams, warm_s=WARM_S), 1.0)
        through = run(setup, Variant("through", engines=engines(slots=slots), queue=False), streams, warm_s=WARM_S)
        for way in ways:
            bought[way].add(one(way, kind, slots, light_share, setup), through.utilisation())
    print("| way | | isolation | throughput |\n|---|---|---|---|")
    for way in ways:
        print(f"| {way.family} | {way.name} | {bought[way].p99_s / alone.p99_s:.2f} | {bought[way].throughput:.3f} |")
    return {way: (bought[way].throughput, bought[way].p99_s / alone.p99_s) for way in ways}


def bound(seed: int, draws: int = 20_000) -> None:
    """How long light requests wait at least, by the part of the time that each of two engines is in a heavy prompt."""
    config, random = ENGINE, Random(seed)

    def prefill_s(tokens: int) -> float:
        steps = math.ceil(tokens / config.max_num_batched_tokens)
        return tokens * config.prefill_s_per_token + steps * (config.step_base_s + 20 * config.decode_s_per_running)

    heavy_s = [prefill_s(LONG_PROMPTS[0].draw(random)) for _ in range(draws)]
    own_s = [prefill_s(CHAT[0].draw(random)) for _ in range(draws)]
    grid_s = [at / 100 for at in range(301)]
    print("| part of the time | in perfect turns | independent |\n|---|---|---|")
    for part in (0.7, 0.75, 0.8, 0.85, 0.9):
        rate = part / (sum(heavy_s) / draws)
        longer = [rate * sum(s - w for s in heavy_s if s > w) / draws for w in grid_s]  # P(more than w is left)
        ratios = []
        for both in ([max(0.0, 2 * p - 1) for p in longer], [p * p for p in longer]):
            rising = [1 - p for p in both]
            waits = [grid_s[min(bisect_left(rising, random.random()), len(grid_s) - 1)] for _ in range(draws)]
            ratios.append(percentile(map(add, waits, own_s), 0.99) / percentile(own_s, 0.99))
        print(f"| {part:g} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


def plot(path: Path, points_of: Points) -> None:
    """Isolation against throughput, a line per family. Needs matplotlib, which nothing else here does."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib import pyplot  # noqa: PLC0415

    mpl.use("Agg")
    figure, axes = pyplot.subplots(figsize=(7, 4.6))
    for family in dict.fromkeys(way.family for way in points_of):
        points = [point for way, point in points_of.items() if way.family == family]
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=family)
    axes.set(xlabel="throughput / pass-through", ylabel="light p99 TTFT / alone", ylim=(0, None))
    axes.grid(color="0.9")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("small", "turns", "bound"))
    parser.add_argument("--seeds", default="1,2,3,4,5", help="comma-separated")
    parser.add_argument("--duration", type=float, default=300.0, help="simulated seconds")
    parser.add_argument("--plot", type=Path, help="a .png to draw")
    args = parser.parse_args()
    seeds = [int(seed) for seed in args.seeds.split(",")]
    if args.what == "bound":
        bound(seeds[0])
        return
    if args.what == "small":
        points = compare(SMALL, LONG_ANSWERS, 8, 1 / 3, seeds, args.duration)
    else:
        points = compare(TURNS, LONG_PROMPTS, 64, 0.2, seeds, args.duration)
    if args.plot:
        plot(args.plot, points)


if __name__ == "__main__":
    main()
