"""A world with changing engines: an autoscaler and its cost.

As Kubernetes does it: a controller looks every so often, computes a number of replicas and asks for it. A replica that
is asked for costs from then on, and serves `start_s` later; one that is let go takes nothing new, and costs until what
runs there has ended. Scaling down goes by the largest of what was computed within a while (the stabilization window).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.sim.engine.model import EngineModel
from penstock.sim.engine.pages import StrangePage
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.world import translate
from penstock.sim.world.world import World
from penstock.sim.world.world_values import EngineNode, EngineSpec

TOLERANCE = 0.1  # of HPA: a ratio so near to 1 changes nothing


@dataclass(frozen=True)
class Sight:
    """What a scaler can see."""

    waiting: int  #: in the gateway
    running: int  #: at the engines
    replicas: int  #: asked for
    busy: float  #: the share of the time that engines in service worked, since the last look


Scaler = Callable[[Sight], float]  # replicas; fractions are rounded up


@dataclass(frozen=True)
class Cluster:
    """What an autoscaler may do."""

    config: EngineConfig
    least: int
    most: int
    start_s: float
    first: int  #: replicas at the start, which serve at once
    look_s: float = 15.0
    stabilize_s: float = 300.0  #: HPA's default
    tolerance: float = TOLERANCE


class ScalingWorld(World):
    """A world with a cluster behind it, and a scaler that looks at it."""

    cluster: Cluster
    scaler: Scaler

    def begin_scaling(self, cluster: Cluster, scaler: Scaler) -> None:
        """Before `run`."""
        self.cluster, self.scaler = cluster, scaler
        self.engine_s = 0.0  # that engines cost, from being asked for to being gone
        self.replicas: list[tuple[float, int]] = []  # asked for, whenever that changed
        self._asked_for: dict[str, float] = {}  # by name: since when it costs
        self._leaving: dict[str, None] = {}
        self._unread: list[str] = []  # gone, but a reading of their gauges may be on its way for a moment
        self._computed: deque[tuple[float, int]] = deque()
        self._looks = self._busy_looks = 0  # at engines in service, once a second; and those that found one at work
        for _ in range(cluster.first):
            self.at(0.0, partial(self._serve_from_now, self._ask()))
        self.at(cluster.look_s, self._look)
        self.at(1.0, self._tidy_up)

    def run(self) -> None:
        super().run()
        self.engine_s += sum(self.now - since for since in self._asked_for.values())

    @property
    def _wanted(self) -> list[str]:
        return [name for name in self._asked_for if name not in self._leaving]

    # --- the controller -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        cluster, present = self.cluster, len(self._wanted)
        waiting = sum(self.waiting.values())
        share = self.scaler(Sight(waiting, len(self.journeys) - waiting, present, self._busy_share()))
        wanted = math.ceil(share - 1e-9)
        if present and abs(share / present - 1.0) <= cluster.tolerance:
            wanted = present
        self._follow(min(cluster.most, max(cluster.least, wanted)))
        self.at(self.now + cluster.look_s, self._look)

    def _follow(self, wanted: int) -> None:
        self._computed.append((self.now, wanted))
        while self._computed[0][0] < self.now - self.cluster.stabilize_s:
            self._computed.popleft()
        present = len(self._wanted)
        if wanted < present:
            wanted = min(present, max(number for _, number in self._computed))
        for _ in range(wanted - present):
            name = self._ask()
            self.at(self.now + self.cluster.start_s, partial(self._serve_from_now, name))
        for name in self._wanted[wanted:]:
            self._let_go(name)
        if wanted != present:
            self.replicas.append((self.now, wanted))

    def _busy_share(self) -> float:
        """As a card's utilisation is told: the share of the time that anything ran there."""
        share = self._busy_looks / self._looks if self._looks else 0.0
        self._looks = self._busy_looks = 0
        return share

    # --- replicas -------------------------------------------------------------------------------------------------

    def _ask(self) -> str:
        name = f"engine-{self.events}"
        self.events += 1
        self._asked_for[name] = self.now
        return name

    def _serve_from_now(self, name: str) -> None:
        if name not in self._asked_for or name in self._leaving:
            return
        spec = EngineSpec(name, self.cluster.config, self.cluster.config.max_num_seqs)
        seed = self.settings.seed * 1000 + len(self._asked_for) + self.events
        node = self.nodes[name] = EngineNode(spec, EngineModel(spec.config, seed=seed), StrangePage(seed=seed))
        node.started_s = self.now
        self._tell(self.scheduler.endpoint_added(translate.endpoint_spec(spec), now=self.now))
        self.at(self.now + self.settings.scrape_s, partial(self._ask_gauges, node))

    def _let_go(self, name: str) -> None:
        self._leaving[name] = None
        if name in self.nodes:
            self._tell(self.scheduler.endpoint_drained(name, now=self.now))

    def _ask_gauges(self, node: EngineNode) -> None:
        if self.nodes.get(node.spec.name) is node:
            super()._ask_gauges(node)

    def _tidy_up(self) -> None:
        self._looks += len(self.nodes)
        self._busy_looks += sum(node.engine.in_engine > 0 for node in self.nodes.values())
        for name in self._unread:
            self._tell(self.scheduler.endpoint_removed(name, now=self.now))
        self._unread = []
        for name in [name for name in self._leaving if name not in self.nodes or not self.nodes[name].journeys]:
            del self._leaving[name]
            self.engine_s += self.now - self._asked_for.pop(name)
            if self.nodes.pop(name, None) is not None:
                self._unread.append(name)
        self.at(self.now + 1.0, self._tidy_up)
