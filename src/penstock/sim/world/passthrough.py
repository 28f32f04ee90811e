"""Bypassing the gateway: requests are sent on arrival, and the engines queue.

Used by bypassing streams, and as the baseline of traces. Loads are exact and never stale, the best case of a load
balancer. A rival that is a gate of its own holds requests instead, and lets them go later.
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
        self._turn = 0
        self._at: dict[str, int] = {}  # job -> number of its engine

    def choose(self, job: Job) -> int | None:
        """Returns the number of the engine that `job` goes to; None if the rival holds it until `released` names it."""
        raise NotImplementedError

    def released(self, now: float) -> Sequence[tuple[Job, int]]:  # noqa: ARG002
        """Returns held requests that go now, with their engines. Asked after each arrival and end, and every second."""
        return ()

    def sent(self, job: Job, number: int) -> None:
        self._at[job.id] = number
        self.requests[number] += 1

    def first_token(self, job: Job) -> None:
        """Note that the prompt of `job` is computed."""

    def ended(self, job: Job, now: float) -> None:  # noqa: ARG002
        number = self._at.pop(job.id, None)
        if number is not None:  # otherwise it was held to its end
            self.requests[number] -= 1

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
