"""Bypassing the gateway: requests are sent on arrival, and the engines queue.

Used by bypassing streams, and as the baseline of traces. Loads are exact and never stale, the best case of a load
balancer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.sim.world.workload import Job
from penstock.sim.world.world_values import EngineNode


class Rival:
    """Tracks the requests at each engine."""

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        self.nodes = nodes
        self.requests = [0] * len(nodes)  # under way
        self.prefill_tokens = [0] * len(nodes)  # uncached ones as predicted, until the first token
        self._turn = 0
        self._at: dict[str, tuple[int, int]] = {}  # job -> number of its engine, its uncached tokens

    def choose(self, job: Job) -> int:
        """Returns the number of the engine that `job` goes to."""
        raise NotImplementedError

    def cached_tokens(self, job: Job, number: int) -> int:  # noqa: ARG002
        """Returns the tokens of a prompt that an engine should have cached."""
        return 0

    def sent(self, job: Job, number: int) -> None:
        uncached = max(1, job.prompt_tokens - self.cached_tokens(job, number))
        self._at[job.id] = (number, uncached)
        self.requests[number] += 1
        self.prefill_tokens[number] += uncached

    def first_token(self, job: Job) -> None:
        number, uncached = self._at[job.id]
        self._at[job.id] = (number, 0)
        self.prefill_tokens[number] -= uncached

    def ended(self, job: Job) -> None:
        number, uncached = self._at.pop(job.id)
        self.requests[number] -= 1
        self.prefill_tokens[number] -= uncached

    def least(self, numbers: Sequence[int], score: Callable[[int], float]) -> int:
        """The engine with the lowest score; equal ones take turns."""
        self._turn += 1
        count = len(self.nodes)
        return min(numbers, key=lambda number: (score(number), (number - self._turn) % count))

    def fewest_requests(self, numbers: Sequence[int]) -> int:
        return self.least(numbers, self.requests.__getitem__)

    @property
    def all(self) -> range:
        return range(len(self.nodes))


class RoundRobinPassthrough(Rival):
    """Takes one engine after the other, as most load balancers do by default."""

    def choose(self, job: Job) -> int:  # noqa: ARG002
        self._turn += 1
        return self._turn % len(self.nodes)


class LeastRequests(Rival):
    """The engine with the fewest requests under way."""

    def choose(self, job: Job) -> int:  # noqa: ARG002
        return self.fewest_requests(self.all)


MakeRival = Callable[[Sequence[EngineNode]], Rival]
RIVALS: Mapping[str, MakeRival] = {"round_robin_passthrough": RoundRobinPassthrough, "least_requests": LeastRequests}
