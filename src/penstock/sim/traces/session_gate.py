"""Penstock's gate on KV memory, before simulated engines: `core/sessions/gate.py` decides, this translates.

The gate knows what the gateway will know: prompts when they arrive, answers when they end, and the engines' memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.core.sessions.gate import SessionGate
from penstock.sim.world.passthrough import MakeRival, Rival
from penstock.sim.world.workload import Job
from penstock.sim.world.world_values import EngineNode

NAME = "memory_gate"  # in rows


class MemoryGate(Rival):
    """Holds turns, and sends them where the gate says."""

    def __init__(self, nodes: Sequence[EngineNode], wait_s: float) -> None:
        super().__init__(nodes)
        self.gate = SessionGate(wait_s=wait_s)
        self._numbers = {node.spec.name: number for number, node in enumerate(nodes)}
        self._held: dict[str, Job] = {}
        for node in nodes:
            self.gate.ledger.add_endpoint(node.spec.name, node.spec.config.kv_blocks * node.spec.config.block_size)

    def choose(self, job: Job) -> int | None:
        root, stream = job.root or job.id, job.stream
        part = "" if job.session == root else job.session or ""
        endpoint = self.gate.arrived(
            job.id, root, stream.tenant, job.prompt_tokens, part=part, weight=stream.weight, now=job.at_s
        )
        if endpoint is None:
            self._held[job.id] = job
            return None
        return self._numbers[endpoint]

    def released(self, now: float) -> list[tuple[Job, int]]:
        return [(self._held.pop(turn), self._numbers[endpoint]) for turn, endpoint in self.gate.released(now)]

    def ended(self, job: Job, now: float) -> None:
        self._held.pop(job.id, None)
        self.gate.ended(job.id, job.prompt_tokens + job.output_tokens, now=now)
        super().ended(job, now)


def memory_gate(wait_s: float) -> MakeRival:
    """Returns the gate with W = `wait_s` seconds, as a rival of a run."""
    return partial(MemoryGate, wait_s=wait_s)
