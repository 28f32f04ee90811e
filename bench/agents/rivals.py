"""Gates and placements of other projects, for sessions of agents.

Each is modelled on what its project documents or was measured to do, and given exact knowledge of the engines, as the
rivals of `bench/traces/baselines.py` are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.traces.baselines import ApproximateTree
from penstock.sim.world.passthrough import MakeRival, Rival
from penstock.sim.world.workload import Job
from penstock.sim.world.world_values import EngineNode


class NoGate(Rival):
    """Each session stays at one engine, that with the fewest sessions when it came; turns are sent on arrival."""

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        super().__init__(nodes)
        self._home: dict[str, int] = {}
        self._homes = [0] * len(nodes)

    def choose(self, job: Job) -> int:
        root = job.root or job.id
        if root not in self._home:
            self._home[root] = number = self.least(self.all, self._homes.__getitem__)
            self._homes[number] += 1
        return self._home[root]


class PinnedByPrefix(Rival):
    """llm-d's default scorers: prefix match 3, queue 2, KV use 2, the highest sum.

    The match is of an index of what was sent, as large as the engine's memory, so a session's prefix pins it long after
    the engine gave it up. Queue and KV use are the engines' own, and never stale.
    """

    PREFIX, QUEUE, KV_USE = 3.0, 2.0, 2.0

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        super().__init__(nodes)
        self._index = ApproximateTree(len(nodes), nodes[0].spec.config.kv_blocks)

    def choose(self, job: Job) -> int:
        engines = [node.engine for node in self.nodes]
        queues = [engine.waiting_now for engine in engines]
        fewest, most = min(queues), max(queues)

        def cost(number: int) -> float:
            match = self._index.match(job, number) / max(1, len(job.blocks))
            queue = (most - queues[number]) / (most - fewest) if most > fewest else 1.0
            pool = engines[number].pool
            return -(self.PREFIX * match + self.QUEUE * queue + self.KV_USE * (1.0 - pool.used / pool.total))

        return self.least(self.all, cost)

    def sent(self, job: Job, number: int) -> None:
        super().sent(job, number)
        self._index.insert(job, number)


class _Session:
    """A session as the lease gate knows it, its sub-agents included."""

    __slots__ = ("footprint", "held", "held_since", "idle_since", "known", "last", "number", "running")

    def __init__(self) -> None:
        self.number: int | None = None  # its engine while it is admitted
        self.last: int | None = None  # the engine of its latest admission
        self.known = False  # admitted before: paused, not new
        self.footprint = 0
        self.running = 0
        self.idle_since = 0.0
        self.held: list[Job] = []
        self.held_since = 0.0


class LeaseGate(Rival):
    """llm-d's port of ThunderAgent as a lease (llm-d-router PR 3076), which knows no tenants.

    A session's footprint is its longest prompt with its answer; an engine is full when the footprints of its admitted
    sessions exceed its KV memory. Turns of admitted sessions pass. Others wait, paused ones before new ones, small ones
    first, for the engine with the most room; room is made by pausing sessions that were idle for a lease, the longest
    idle first. A turn that takes its engine over the limit pauses any idle session. Whoever waited for half an hour is
    admitted. No client says that a session has ended, so its room comes back by the lease.
    """

    LEASE_S = 30.0
    FORCED_S = 1800.0

    def __init__(self, nodes: Sequence[EngineNode]) -> None:
        super().__init__(nodes)
        self._capacity = [node.spec.config.kv_blocks * node.spec.config.block_size for node in nodes]
        self._used = [0] * len(nodes)
        self._admitted: list[dict[str, _Session]] = [{} for _ in nodes]
        self._sessions: dict[str, _Session] = {}
        self._held: dict[str, _Session] = {}
        self.pauses = self.moves = self.forced = 0

    def choose(self, job: Job) -> int | None:
        name = _name(job)
        session = self._sessions.setdefault(name, _Session())
        self._grow(session, job.prompt_tokens)
        if session.number is not None:
            session.running += 1
            self._hold_to_limit(session.number)
            return session.number
        if not session.held:
            session.held_since = job.at_s
        session.held.append(job)
        self._held[name] = session
        return None

    def released(self, now: float) -> list[tuple[Job, int]]:
        going: list[tuple[Job, int]] = []
        for name, session in sorted(self._held.items(), key=lambda item: (not item[1].known, item[1].footprint)):
            number = self._place(session, now)
            if number is None:
                continue
            del self._held[name]
            self.moves += session.known and session.last != number
            self._admit(name, session, number)
            going += [(job, number) for job in session.held]
            session.running = len(session.held)
            session.held = []
        return going

    def ended(self, job: Job, now: float) -> None:
        super().ended(job, now)
        session = self._sessions[_name(job)]
        if job in session.held:  # its client gave up
            session.held.remove(job)
            if not session.held:
                del self._held[_name(job)]
            return
        session.running -= 1
        session.idle_since = now
        self._grow(session, job.prompt_tokens + job.output_tokens)

    def _place(self, session: _Session, now: float) -> int | None:
        """Returns the engine that a held session goes to now, with room made for it; None if it has to wait."""
        by_room = sorted(self.all, key=lambda number: self._used[number] - self._capacity[number])
        for number in by_room:
            missing = self._used[number] + session.footprint - self._capacity[number]
            idle = self._idle(number, now - self.LEASE_S)
            if missing <= sum(other.footprint for _, other in idle):
                self._pause(number, idle, missing)
                return number
        if now - session.held_since >= self.FORCED_S:
            self.forced += 1
            return by_room[0]
        return None

    def _idle(self, number: int, before_s: float) -> list[tuple[str, _Session]]:
        """Returns an engine's sessions that were idle since `before_s` or longer, the longest idle first."""
        found = [
            item for item in self._admitted[number].items() if not item[1].running and item[1].idle_since <= before_s
        ]
        return sorted(found, key=lambda item: item[1].idle_since)

    def _pause(self, number: int, idle: Iterable[tuple[str, _Session]], missing: int) -> None:
        for name, session in idle:
            if missing <= 0:
                return
            missing -= session.footprint
            self._used[number] -= session.footprint
            del self._admitted[number][name]
            session.number = None
            self.pauses += 1

    def _admit(self, name: str, session: _Session, number: int) -> None:
        self._admitted[number][name] = session
        self._used[number] += session.footprint
        session.number = session.last = number
        session.known = True

    def _grow(self, session: _Session, tokens: int) -> None:
        if tokens > session.footprint:
            if session.number is not None:
                self._used[session.number] += tokens - session.footprint
            session.footprint = tokens

    def _hold_to_limit(self, number: int) -> None:
        over = self._used[number] - self._capacity[number]
        if over > 0:
            self._pause(number, self._idle(number, float("inf")), over)


def _name(job: Job) -> str:
    return job.root or job.id


RIVALS: dict[str, MakeRival] = {
    "no_gate": NoGate,
    "pinned_by_prefix": PinnedByPrefix,
    "lease_gate": LeaseGate,
}
