"""A run's setup, and the journey of each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Usage
from penstock.sim.engine.model import EngineModel
from penstock.sim.engine.pages import StrangePage
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.engine.strange import PLAIN, Strange
from penstock.sim.world.workload import ArrivalSource, Job


@dataclass(frozen=True)
class EngineSpec:
    """An engine of the world, and its configuration in the scheduler."""

    name: str
    config: EngineConfig
    slots: int | None = None  #: None: the scheduler has to learn them
    role: str = "both"  #: prefill, decode or both
    strange: Strange = PLAIN  #: how it differs from its configuration


@dataclass(frozen=True)
class Death:
    """An engine dies and restarts later."""

    engine: str
    at_s: float
    for_s: float


class FreezeKind(StrEnum):
    """The activity of a frozen engine."""

    STANDS = "stands"  #: none; its page answers, but does not move
    STOPPED = "stopped"  #: none; its page does not answer either
    HANGS = "hangs"  #: it continues its requests; new ones are lost


@dataclass(frozen=True)
class Freeze:
    """An engine freezes for a while."""

    engine: str
    at_s: float
    for_s: float
    kind: FreezeKind = FreezeKind.STANDS

    def holds(self, now: float, *kinds: FreezeKind) -> bool:
        """True if it is active at `now` and of one of these kinds."""
        return self.kind in kinds and self.at_s <= now < self.at_s + self.for_s


@dataclass(frozen=True)
class Spell:
    """All engines are slower for a while."""

    at_s: float
    for_s: float
    factor: float


@dataclass(frozen=True)
class WorldSettings:
    """A run's settings, without its workload."""

    scheduler: SchedulerSettings
    engines: tuple[EngineSpec, ...]
    seed: int
    duration_s: float
    network_s: float = 0.0005  #: one way between gateway and engine
    scrape_s: float = 0.5
    scrape_answer_s: float = 0.002  #: delay of a scrape
    probe_s: float = 0.5
    deaths: tuple[Death, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    spells: tuple[Spell, ...] = ()
    sample_s: float = 1.0
    ends_idle: bool = False  #: end the run once the workload is done
    checked: bool = False  #: check the invariants after every fact


class Hearer(Protocol):
    """The receiver of facts about requests: the scheduler, or its stand-in at an edge."""

    def first_token(self, lease: int, *, now: float) -> list[Action]: ...
    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]: ...
    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]: ...
    def finished(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]: ...
    def failed(self, lease: int, failure: Failure, *, now: float) -> list[Action]: ...
    def cancelled(self, request_id: str, *, now: float) -> list[Action]: ...


class SimulatedJourney:
    """One request on its way."""

    __slots__ = (
        "cached_tokens", "dispatched_s", "ended_s", "estimate_s", "first_s", "job", "lease", "node", "outcome",
        "output_tokens", "prefills", "queue_s", "reason", "requeues", "retry_after_s", "source", "told", "transferred",
        "waits",
    )  # fmt: skip

    def __init__(self, job: Job, source: ArrivalSource) -> None:
        self.job = job
        self.source = source
        self.told: Hearer  #: the receiver of facts about it
        self.node: EngineNode | None = None
        self.lease = 0
        self.queue_s = 0.0
        self.dispatched_s: float | None = None
        self.first_s: float | None = None
        self.ended_s: float | None = None
        self.output_tokens = 0
        self.cached_tokens = 0  #: of its prompt, found in the engine's cache; known at its end
        self.outcome = ""  #: "" while under way; otherwise an `Outcome`, or "cancelled"
        self.reason = ""
        self.retry_after_s: float | None = None
        self.estimate_s: float | None = None  #: the wait that was estimated at arrival
        self.requeues = 0
        self.prefills = False  #: its current engine computes only its prompt
        self.transferred = False  #: its prompt's KV comes from another engine
        self.waits = False  #: in the gateway's queue


@dataclass
class TokensDone:
    """Tokens done for one tenant and user."""

    prompt_tokens: int = 0
    output_tokens: int = 0


Who = tuple[str, str]  # tenant, user
Sample = tuple[float, dict[Who, tuple[int, int]]]  # when, prompt and output tokens done so far


@dataclass
class EngineNode:
    """An engine in the world."""

    spec: EngineSpec
    engine: EngineModel
    page: StrangePage = field(default_factory=StrangePage)
    alive: bool = True
    life: int = 0  #: the number of its process: events for an earlier process are void
    started_s: float = 1.0
    stepping: bool = False
    freeze: Freeze | None = None  #: the latest one
    journeys: dict[str, SimulatedJourney] = field(default_factory=dict)

    def stands(self, now: float, *kinds: FreezeKind) -> bool:
        """True if it is frozen at `now`, in one of these ways."""
        return self.freeze is not None and self.freeze.holds(now, *kinds)
