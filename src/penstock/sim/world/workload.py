"""Streams of requests, drawn from one seed.

A stream is one kind of request of one user: arrivals, lengths and properties. Each stream has its own generator, seeded
from the run's seed in the order of listing, so omitting one changes nothing about the rest. Jobs are made lazily, so
memory stays flat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import msgspec

BYTES_PER_TOKEN = 4.0
BYTES_SPREAD = 0.15  # bodies of equally many tokens differ by that much in size (one sigma)


class Job(msgspec.Struct, frozen=True):
    """One request with its true lengths, which no gateway can know."""

    id: str
    stream: Stream
    at_s: float
    prompt_tokens: int
    output_tokens: int
    body_bytes: int
    deadline_s: float | None = None  #: of the first token, absolute
    hangs_up_s: float | None = None  #: when the client gives up, absolute
    blocks: tuple[int, ...] = ()  #: chained hashes of the prompt's full blocks
    block_tokens: int = 512  #: the block size of the world's engines
    session: str | None = None
    root: str | None = None  #: the session that this one is a sub-agent of, or itself
    picture_bytes: int = 0  #: how much of the body is one picture in base64


# --- lengths ----------------------------------------------------------------------------------------------------


class Lengths(Protocol):
    """How many tokens the prompts or answers of a stream have."""

    @property
    def mean(self) -> float: ...
    def draw(self, random: Random, /) -> int: ...


@dataclass(frozen=True)
class Constant:
    """Always the same."""

    tokens: int

    @property
    def mean(self) -> float:
        return float(self.tokens)

    def draw(self, random: Random, /) -> int:  # noqa: ARG002
        return self.tokens


# --- arrivals ---------------------------------------------------------------------------------------------------


class Arrivals(Protocol):
    """Arrival times, independent of earlier requests."""

    def times(self, start_s: float, random: Random, /) -> Iterator[float]: ...


@dataclass(frozen=True)
class Poisson:
    """`per_s` arrivals a second, each independent of the others."""

    per_s: float

    def times(self, start_s: float, random: Random, /) -> Iterator[float]:
        at_s = start_s
        while True:
            at_s += random.expovariate(self.per_s)
            yield at_s


@dataclass(frozen=True)
class InFlight:
    """A closed loop: always `requests` under way; a new request `think_s` seconds after one ended well."""

    requests: int
    think_s: float = 0.0
    retry_s: float = 1.0  # after a refusal


# --- streams ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """Requests of one kind, of one user of one tenant."""

    tenant: str
    arrivals: Arrivals | InFlight
    prompt: Lengths
    output: Lengths
    user: str = ""
    weight: float = 1.0
    band: int = 0
    model: str = "sim"
    start_s: float = 0.0
    end_s: float = math.inf
    output_tokens_max: int | None = None  #: the client's `max_tokens`
    bytes_per_token: float = BYTES_PER_TOKEN  #: of its bodies
    streamed: bool = True
    deadline_s: float | None = None  #: for the first token, after arrival
    hang_up_share: float = 0.0  #: the share of its clients that give up …
    hang_up_s: float = 5.0  #: … on average after this time
    bypass: bool = False  #: its requests go directly to an engine


class ArrivalSource:
    """Makes a stream's jobs, in order."""

    def __init__(self, stream: Stream, number: int, random: Random) -> None:
        self.stream = stream
        self._random = random
        self._number = number
        self._made = 0

    def open_jobs(self) -> Iterator[Job]:
        """Yields all jobs of an open-loop stream."""
        stream = self.stream
        assert not isinstance(stream.arrivals, InFlight)
        for at_s in stream.arrivals.times(stream.start_s, self._random):
            if at_s >= stream.end_s:
                return
            yield self.job(at_s)

    def following(self, job: Job, now: float) -> Sequence[Job]:  # noqa: ARG002
        """Returns the jobs that the end of `job` leads to, each with its time, at `now` or later."""
        return ()

    def job(self, at_s: float) -> Job:
        """Returns the next job, which arrives at `at_s`."""
        stream, random = self.stream, self._random
        self._made += 1
        prompt_tokens = max(1, stream.prompt.draw(random))
        output_tokens = max(1, stream.output.draw(random))
        if stream.output_tokens_max is not None:
            output_tokens = min(output_tokens, stream.output_tokens_max)
        spread = max(0.1, random.gauss(1.0, BYTES_SPREAD))
        hangs_up_s = None
        if stream.hang_up_share and random.random() < stream.hang_up_share:
            hangs_up_s = at_s + random.expovariate(1.0 / stream.hang_up_s)
        return Job(
            id=f"{stream.tenant}-{self._number}-{self._made}",
            stream=stream,
            at_s=at_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            body_bytes=max(2, round(prompt_tokens * stream.bytes_per_token * spread)),
            deadline_s=at_s + stream.deadline_s if stream.deadline_s is not None else None,
            hangs_up_s=hangs_up_s,
        )


def sources(streams: tuple[Stream, ...], seed: int, *, without: frozenset[str] = frozenset()) -> list[ArrivalSource]:
    """Returns one source per stream; the streams of the tenants named in `without` are left out."""
    random = Random(seed)
    made = [ArrivalSource(stream, number, Random(random.getrandbits(64))) for number, stream in enumerate(streams)]
    return [source for source in made if source.stream.tenant not in without]
