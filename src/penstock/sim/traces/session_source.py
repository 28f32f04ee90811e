"""Recorded sessions as a closed loop.

N sessions are open at a time. A turn is sent when the answer before it has ended, its think time is over (as recorded,
or capped), and the sub-agents that its parent waited for are done; sub-agents run beside their parent. A session that
ends is replaced by the next one of the corpus, for the same tenant; the corpus is shuffled by the seed, and begins anew
when it ends, with blocks of its own. Turns of equal order are the same work under every policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from penstock.sim.traces.sessions import RecordedSession, RecordedTurn, SubAgent
from penstock.sim.traces.trace import BLOCK_TOKENS
from penstock.sim.traces.trace_source import Recorded
from penstock.sim.world.workload import BYTES_PER_TOKEN, BYTES_SPREAD, ArrivalSource, Constant, Job, Stream

SPREAD_S = 5.0  # the first sessions begin within this time
BLOCKS_BITS = 24  # of a block's number within its session: 8 thousand million prompt tokens


@dataclass(frozen=True)
class SessionLoad:
    """How the sessions are played."""

    tenants: tuple[int, ...]  #: open sessions of each
    weights: tuple[float, ...] = ()  #: of the tenants; all 1 if empty
    gap_cap_s: float | None = None  #: on think times
    begun: tuple[float, float] = (0.0, 0.0)  #: a first session begins after a share of its turns between these
    output_factor: float = 1.0  #: on the recorded lengths of answers


class _Run:
    """A session or a sub-agent under way."""

    __slots__ = ("after_turn", "at", "base", "lane", "name", "parent", "root", "turns", "waits_for")

    def __init__(self, name: str, turns: Sequence[RecordedTurn], base: int, lane: int, parent: _Run | None) -> None:
        self.name = name
        self.turns = turns
        self.at = 0  # the turn under way, or the next one
        self.base = base  # added to its blocks' numbers
        self.lane = lane
        self.parent = parent
        self.root: str = parent.root if parent is not None else name
        self.waits_for = 0  # sub-agents that the next turn waits for
        self.after_turn: int = -1  # of its parent, if that waits


class SessionSource(ArrivalSource):
    """Sends the turns of sessions, one after the other."""

    def __init__(self, sessions: Sequence[RecordedSession], load: SessionLoad, *, seed: int, bypass: bool) -> None:
        """With `bypass` requests go directly to an engine."""
        weights = load.weights or (1.0,) * len(load.tenants)
        self.streams = [
            Stream(_tenant(number), Recorded(), Constant(1), Constant(1), weight=weight, bypass=bypass)
            for number, weight in enumerate(weights)
        ]
        super().__init__(self.streams[0], 0, Random(seed))
        self.finished = 0  #: sessions that ended
        self.begun = 0
        self._load = load
        self._corpus = list(sessions)
        self._random.shuffle(self._corpus)
        self._lanes = [number for number, count in enumerate(load.tenants) for _ in range(count)]
        self._random.shuffle(self._lanes)
        self._runs: dict[str, _Run] = {}  # by the job under way
        self._lane_of: list[int] = []  # of each session begun

    def open_jobs(self) -> Iterator[Job]:
        """Yields the first turn of each first session."""
        starts = sorted(SPREAD_S * self._random.random() for _ in self._lanes)
        low, high = self._load.begun
        for lane, at_s in enumerate(starts):
            run = self._next_session(lane)
            run.at = min(int(len(run.turns) * self._random.uniform(low, high)), len(run.turns) - 1)
            yield self._job(run, at_s)

    def following(self, job: Job, now: float) -> list[Job]:
        """Returns the jobs that the end of one leads to, each with its time."""
        run = self._runs.pop(job.id)
        jobs: list[Job] = []
        self._end_turn(run, now, jobs.append)
        return jobs

    def tenant_of(self, block: int) -> str:
        """Returns the tenant of a prompt's block."""
        return self.streams[self._lanes[self._lane_of[(block >> BLOCKS_BITS) - 1]]].tenant

    def _end_turn(self, run: _Run, now: float, send: Callable[[Job], None]) -> None:
        turn = run.turns[run.at]
        run.at += 1
        for number, agent in enumerate(turn.agents):
            self._start_agent(run, agent, number, now, send)
        if run.at < len(run.turns):
            if not run.waits_for:
                send(self._job(run, now + self._gap(run.turns[run.at].think_s)))
            return
        if run.parent is None:
            self.finished += 1
            send(self._job(self._next_session(run.lane), now))
            return
        if run.after_turn >= 0:
            self._joined(run.parent, now, send)

    def _start_agent(self, run: _Run, agent: SubAgent, number: int, now: float, send: Callable[[Job], None]) -> None:
        child = _Run(f"{run.name}/{run.at}.{number}", agent.turns, run.base, run.lane, run)
        if agent.joined and run.at < len(run.turns):
            run.waits_for += 1
            child.after_turn = run.at
        send(self._job(child, now + self._gap(agent.delay_s)))

    def _joined(self, parent: _Run, now: float, send: Callable[[Job], None]) -> None:
        parent.waits_for -= 1
        if not parent.waits_for:
            send(self._job(parent, now))

    def _next_session(self, lane: int) -> _Run:
        session = self._corpus[self.begun % len(self._corpus)]
        self.begun += 1
        self._lane_of.append(lane)
        return _Run(f"s{self.begun}", session.turns(), self.begun << BLOCKS_BITS, lane, None)

    def _gap(self, seconds: float) -> float:
        cap = self._load.gap_cap_s
        return seconds if cap is None else min(seconds, cap)

    def _job(self, run: _Run, at_s: float) -> Job:
        turn = run.turns[run.at]
        job_id = f"{run.name}:{run.at}"
        self._runs[job_id] = run
        bytes_per_token = BYTES_PER_TOKEN * max(0.1, self._random.gauss(1.0, BYTES_SPREAD))
        return Job(
            id=job_id,
            stream=self.streams[self._lanes[run.lane]],
            at_s=at_s,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=max(1, round(turn.output_tokens * self._load.output_factor)),
            body_bytes=max(2, round(turn.prompt_tokens * bytes_per_token)),
            blocks=tuple([run.base + block for block in turn.blocks]),
            block_tokens=BLOCK_TOKENS,
            session=run.name,
            root=run.root,
        )


def _tenant(number: int) -> str:
    return f"tenant-{number + 1}"
