"""Which tenant gets how much? Shares of the work done, when all want more than there is.

Service is counted in priced tokens as they come out of the engines, prompt tokens when the first token comes. A
tenant here is backlogged throughout: it offers more than all engines could do for it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from bench.report import Measure, RunResult, at_least, at_most, service_between
from bench.scenarios.base import CHAT, ENGINE, STANDARD, Kind, Run, Setup, Variant, capacity_per_s, engines, run
from bench.scenarios.bound import BoundWatch
from bench.workload import Lognormal
from penstock.sim.world.report import jain, ratio
from penstock.sim.world.workload import Constant, InFlight, Lengths, Poisson, Stream
from penstock.sim.world.world_values import EngineSpec

WARM_S = 20.0  # of a run of a minute or more; a third of a shorter one
WINDOW_S = 60.0


def _warm_s(setup: Setup) -> float:
    return min(WARM_S, setup.duration_s / 3)


def _backlogged(tenant: str, kind: Kind, *, times: float = 1.5, weight: float = 1.0, user: str = "") -> Stream:
    per_s = times * capacity_per_s(engines(), kind)
    return Stream(tenant, Poisson(per_s), *kind, weight=weight, user=user, band=STANDARD)


def _shares(done: Run, from_s: float, to_s: float) -> dict[str, float]:
    """Each tenant's part of the work done in a window."""
    service: dict[str, float] = {}
    for (tenant, _), tokens in service_between(done.world.samples, from_s, to_s).items():
        service[tenant] = service.get(tenant, 0.0) + tokens
    total = sum(service.values())
    return {tenant: tokens / total for tenant, tokens in service.items()}


def _off(shares: dict[str, float], fair: dict[str, float]) -> float:
    """The largest relative distance from the fair share."""
    total = sum(fair.values())
    return max(abs(shares.get(tenant, 0.0) * total / part - 1.0) for tenant, part in fair.items())


def _result(runs: list[Run], setup: Setup, name: str, measures: list[Measure]) -> RunResult:
    lines = [
        each.line(tenant, tenant.__eq__)
        for each in runs
        for tenant in dict.fromkeys(journey.job.stream.tenant for journey in each.world.done)
    ]
    return RunResult(name, setup.seed, setup.duration_s, tuple(measures), tuple(lines))


def weights(setup: Setup) -> RunResult:
    """Three backlogged tenants with weights 1, 2 and 4."""
    fair = {"one": 1.0, "two": 2.0, "four": 4.0}
    streams = tuple(_backlogged(tenant, CHAT, weight=weight) for tenant, weight in fair.items())
    done = run(setup, Variant("weights 1:2:4"), streams, warm_s=_warm_s(setup))
    shares = _shares(done, done.warm_s, setup.duration_s)
    # The first estimates are guesses: it shows for a while.
    early = _shares(done, done.warm_s, done.warm_s + 2 * WINDOW_S)
    measures = [
        Measure("largest distance from 1:2:4, first two minutes", _off(early, fair), at_most(0.03)),
        Measure("largest distance from 1:2:4, all", _off(shares, fair), at_most(0.03)),
    ]
    measures += [
        Measure(f"share of {tenant}, over that of one", ratio(shares.get(tenant, 0.0), shares.get("one", 0.0)))
        for tenant in ("two", "four")
    ]
    return _result([done], setup, "weights", measures)


def users(setup: Setup) -> RunResult:
    """A tenant with two users beside one with a single user: users share their tenant's part."""
    streams = (
        _backlogged("firm", CHAT, user="ann"),
        _backlogged("firm", CHAT, user="ben"),
        _backlogged("shop", CHAT, user="cay"),
    )
    done = run(setup, Variant("two users and one"), streams, warm_s=_warm_s(setup))
    service = service_between(done.world.samples, done.warm_s, setup.duration_s)
    total = sum(service.values())
    parts = {user: tokens / total for (_, user), tokens in service.items()}
    measures = [
        Measure(
            "largest distance from 1/2 for each tenant",
            _off(_shares(done, done.warm_s, setup.duration_s), {"firm": 1.0, "shop": 1.0}),
            at_most(0.03),
        ),
        Measure(
            "largest distance from 1/4, 1/4, 1/2", _off(parts, {"ann": 1.0, "ben": 1.0, "cay": 2.0}), at_most(0.03)
        ),
    ]
    return _result([done], setup, "users", measures)


SIZES = (1, 2, 4, 8)


def mixed_sizes(setup: Setup) -> RunResult:
    """Four backlogged tenants whose requests differ eightfold in size, under each policy."""
    streams = []
    for size in SIZES:
        kind = (Lognormal(150.0 * size, 500.0 * size), Lognormal(50.0 * size, 150.0 * size))
        streams.append(_backlogged(f"size-{size}", kind))
    measures: list[Measure] = []
    runs: list[Run] = []
    for policy in ("weighted_tokens", "round_robin", "fcfs"):
        if policy in setup.without:
            continue
        done = run(setup, Variant(policy, fairness=policy), tuple(streams), warm_s=_warm_s(setup))
        worst = min(jain(list(_shares(done, start_s, start_s + WINDOW_S).values())) for start_s in _windows(setup))
        measures.append(
            Measure(f"Jain over 60 s, worst window: {policy}", worst, at_least(0.995) if len(runs) == 0 else None)
        )
        runs.append(done)
    return _result(runs, setup, "mixed_sizes", measures)


SCARCE_TOKENS = 20_000


def scarce_memory(setup: Setup) -> RunResult:
    """An engine with memory for two large requests or twenty small ones: often a small one fits where a large does not.

    The tenant of the large requests has few of them waiting at a time, so that none waits long enough for backfill to
    pass it often.
    """
    config = replace(ENGINE, kv_blocks=SCARCE_TOKENS // ENGINE.block_size)
    streams = (
        Stream("large", InFlight(4), Constant(8_000), Constant(200), band=STANDARD),
        Stream("small", InFlight(100), Constant(500), Constant(400), band=STANDARD),
    )
    watch = BoundWatch()
    variant = Variant("scarce memory", engines=(EngineSpec("engine", config, 64),), wait_s_max=600.0)
    done = run(setup, variant, streams, warm_s=_warm_s(setup), watch=watch)
    shares = _shares(done, done.warm_s, setup.duration_s)
    measures = [
        Measure("largest distance from 1/2", _off(shares, {"large": 1.0, "small": 1.0}), at_most(0.05)),
        Measure("priced tokens per s", done.tokens_per_s(lambda _: True)),
        Measure("failed, bound as stated", watch.failed["stated"], at_most(0)),
        Measure("widest gap / strict bound", watch.widest["strict"]),
    ]
    return _result([done], setup, "scarce_memory", measures)


def _windows(setup: Setup) -> list[float]:
    count = max(1, int((setup.duration_s - _warm_s(setup)) // WINDOW_S))
    return [_warm_s(setup) + number * WINDOW_S for number in range(count)]


IDLE_S = (10.0, 60.0, 300.0)


def returning_tenant(setup: Setup) -> RunResult:
    """Two backlogged tenants, and a third that comes back after having been idle."""
    measures: list[Measure] = []
    runs: list[Run] = []
    for idle_s in IDLE_S:
        name = f"idle for {idle_s:g} s"
        if name in setup.without:
            continue
        start_s = WARM_S + 20.0 + idle_s  # the tenant was busy from 0 to WARM_S + 20
        back = _backlogged("returning", CHAT)
        first = Stream(back.tenant, back.arrivals, *CHAT, band=STANDARD, end_s=WARM_S + 20.0)
        second = Stream(back.tenant, back.arrivals, *CHAT, band=STANDARD, start_s=start_s)
        streams = (_backlogged("busy-1", CHAT), _backlogged("busy-2", CHAT), first, second)
        asked = Setup(setup.seed, start_s + WINDOW_S + 1.0, setup.checked, setup.progress)
        done = run(asked, Variant(name, wait_s_max=15.0), streams, warm_s=start_s)
        share = _shares(done, start_s, start_s + WINDOW_S)["returning"]
        measures.append(Measure(f"share in the next 60 s / fair share, {name}", share * 3, at_most(1.1)))
        runs.append(done)
    return _result(runs, setup, "returning_tenant", measures)


@dataclass(frozen=True)
class OneOf:
    """Either of two lengths, so that no average predicts the next one."""

    short: int
    long: int
    long_share: float

    @property
    def mean(self) -> float:
        return self.short + self.long_share * (self.long - self.short)

    def draw(self, random: Random, /) -> int:
        return self.long if random.random() < self.long_share else self.short


def estimates_wrong(setup: Setup) -> RunResult:
    """One tenant in eight whose estimates are wrong by 10x: by its bodies' size, or by its answers' length."""
    plain = _backlogged("plain", CHAT)
    neighbours = tuple(replace(plain, tenant=f"plain-{number}") for number in range(7))
    moody: Lengths = OneOf(40, 400, 0.5)
    wrong = {
        "40 bytes a token": replace(plain, tenant="wrong", bytes_per_token=40.0),
        "0.4 bytes a token": replace(plain, tenant="wrong", bytes_per_token=0.4),
        "answers of 40 or 400": replace(plain, tenant="wrong", output=moody),
    }
    measures: list[Measure] = []
    runs: list[Run] = []
    for name, stream in wrong.items():
        watch = BoundWatch()
        done = run(setup, Variant(name), (stream, *neighbours), warm_s=_warm_s(setup), watch=watch)
        share = _shares(done, done.warm_s, setup.duration_s).get("wrong", 0.0)
        measures += [
            Measure(f"distance from the fair share: {name}", abs(share * 8 - 1.0), at_most(0.02)),
            Measure(f"pair checks of the bound: {name}", watch.checks, at_least(100_000)),
            Measure(f"failed: {name}, bound as stated", watch.failed["stated"], at_most(0)),
            Measure(f"failed: {name}, without the K * c_max of overtaking", watch.failed["strict"]),
            Measure(f"failed: {name}, without, E at its peak", watch.failed["peak"]),
            Measure(f"widest gap / strict bound: {name}", watch.widest["strict"]),
            Measure(f"widest gap / peak bound: {name}", watch.widest["peak"]),
        ]
        runs.append(done)
    return _result(runs, setup, "estimates_wrong", measures)
