"""Lengths and arrivals for the bench's workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

Z99 = 2.326347874  # the 99th percentile of a standard normal


@dataclass(frozen=True)
class Lognormal:
    """Lengths skewed to the right, as prompts and answers are; given by mean and p99, as traces report them."""

    mean: float
    p99: float
    tokens_max: int = 16_000

    def draw(self, random: Random, /) -> int:
        # mean = exp(m + s^2/2) and p99 = exp(m + z*s): the smaller root for s.
        sigma = Z99 - math.sqrt(Z99 * Z99 - 2.0 * math.log(self.p99 / self.mean))
        mu = math.log(self.mean) - sigma * sigma / 2.0
        return min(self.tokens_max, max(1, round(random.lognormvariate(mu, sigma))))


@dataclass(frozen=True)
class Bursts:
    """`size` requests at once, every `every_s` seconds."""

    size: int
    every_s: float

    def times(self, start_s: float, random: Random, /) -> Iterator[float]:  # noqa: ARG002
        at_s = start_s
        while True:
            for _ in range(self.size):
                yield at_s
            at_s += self.every_s


@dataclass(frozen=True)
class OnOff:
    """Poisson for `on_s` seconds, silence for `off_s`, and again."""

    per_s: float
    on_s: float
    off_s: float

    def times(self, start_s: float, random: Random, /) -> Iterator[float]:
        busy_s = 0.0  # time as if there were no silence
        while True:
            busy_s += random.expovariate(self.per_s)
            yield start_s + busy_s + self.off_s * math.floor(busy_s / self.on_s)
