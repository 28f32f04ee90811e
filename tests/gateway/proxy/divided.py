"""Engines that divide requests between them, a gateway before them, and what each of them saw."""

from __future__ import annotations

import json
from typing import Any

from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine.log import LogEntry
from penstock.sim.fake_engine.server import EngineServer
from tests.gateway.conftest import World
from tests.ports import free_port

PROMPT = "what the long story says " * 40


class Pair:
    """Engines with roles. `meet`: both are asked at once, and those that compute prompts have a bootstrap port."""

    def __init__(self, world: World, *, meet: bool = False) -> None:
        self.world = world
        self.meet = meet
        self.endpoints: list[dict[str, Any]] = []

    async def add(
        self, role: str, *, kv_transfer_s: float | None = 480.0, slots: int = 4, **config: Any
    ) -> EngineServer:
        engine = EngineServer(
            EngineConfig(**{"step_s": 0.002, **config}),
            kv_transfer_s=None if self.meet else kv_transfer_s,
            bootstrap_port=0 if self.meet and role == "prefill" else None,
        )
        await engine.start(port=free_port())
        self.world.engines.append(engine)
        labels = {"role": role}
        if engine.rooms is not None:
            labels["bootstrap_port"] = str(engine.rooms.port)
        self.endpoints.append({"url": engine.url, "slots": slots, "labels": labels})
        return engine

    async def gateway(self, **settings: Any) -> None:
        await self.world.gateway(endpoints=self.endpoints, **settings)


def body(entry: LogEntry) -> dict[str, Any]:
    """What an engine was sent."""
    assert entry.body is not None
    seen: dict[str, Any] = json.loads(bytes(entry.body))
    return seen


def log(engine: EngineServer) -> list[LogEntry]:
    """The requests that an engine saw."""
    return list(engine.log.entries)


def name(engine: EngineServer) -> str:
    """Its endpoint's."""
    return engine.url.removeprefix("http://")
