"""A trace as a workload: jobs in recorded order, at another speed, spread by a seed.

Jobs keep their prompt's blocks, so equal prefixes are equal in the gateway's index and in the engines' caches. Traces
have no sessions; requests that share the first two blocks are taken for one (block 0 is the system prompt).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from penstock.sim.traces.trace import BLOCK_TOKENS, Row, Trace, spread
from penstock.sim.world.workload import BYTES_PER_TOKEN, BYTES_SPREAD, ArrivalSource, Constant, Job, Stream

TENANTS_MAX = 10_000  # separate ones; the rest are one
KNOWN_BLOCKS_MAX = 5_000_000  # in a cache without bound; a trace with more blocks gets no such figure


@dataclass(frozen=True)
class Recorded:
    """Arrivals are as they were."""

    def times(self, start_s: float, random: Random, /) -> Iterator[float]:  # noqa: ARG002
        return iter(())


class TraceSource(ArrivalSource):
    """Makes a trace's jobs, in order."""

    def __init__(self, trace: Trace, *, seed: int, speed: float, end_s: float, bypass: bool) -> None:
        """Requests after `end_s` are left out. With `bypass` they go directly to an engine."""
        self._trace = trace
        self._speed = speed
        self._end_s = end_s
        self._bypass = bypass
        self._streams: dict[str, Stream] = {}
        self.jobs = 0
        self.prompt_tokens = 0
        self.repeated_tokens = 0  #: prompt tokens that a cache without bound would have held
        self._known: set[int] = set()
        super().__init__(self._stream_of("all"), 0, Random(seed))

    def open_jobs(self) -> Iterator[Job]:
        rows = self._trace.rows()
        for row in spread(rows, self._random) if self._trace.stamped_in_ticks else rows:
            if row.at_s / self._speed >= self._end_s:
                return
            yield self._job_of(row)

    def repeated_share(self) -> float | None:
        """Returns the token hit rate of an unbounded cache, if known."""
        if not self.prompt_tokens or not self._known or len(self._known) > KNOWN_BLOCKS_MAX:
            return None
        return self.repeated_tokens / self.prompt_tokens

    def _job_of(self, row: Row) -> Job:
        self.jobs += 1
        self._remember(row)
        bytes_per_token = BYTES_PER_TOKEN * max(0.1, self._random.gauss(1.0, BYTES_SPREAD))
        return Job(
            id=f"r{self.jobs}",
            stream=self._stream_of(row.tenant),
            at_s=row.at_s / self._speed,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            body_bytes=max(2, round(row.prompt_tokens * bytes_per_token)),
            blocks=row.blocks,
            block_tokens=BLOCK_TOKENS,
            session=str(row.blocks[1]) if len(row.blocks) > 1 else None,
        )

    def _remember(self, row: Row) -> None:
        self.prompt_tokens += row.prompt_tokens
        known = self._known
        if len(known) > KNOWN_BLOCKS_MAX:
            return
        for block in row.blocks[: (row.prompt_tokens - 1) // BLOCK_TOKENS]:
            if block not in known:
                break
            self.repeated_tokens += BLOCK_TOKENS
        known.update(row.blocks)

    def _stream_of(self, tenant: str) -> Stream:
        if tenant not in self._streams:
            if len(self._streams) >= TENANTS_MAX:
                return self._stream_of("other") if "other" in self._streams else self.stream
            self._streams[tenant] = Stream(tenant, Recorded(), Constant(1), Constant(1), bypass=self._bypass)
        return self._streams[tenant]
