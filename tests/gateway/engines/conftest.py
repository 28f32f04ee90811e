"""A world whose engines are faces: for tests of what is learned of engines, and of their own APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.core.explain.snapshot import EndpointSnapshot
from penstock.gateway.proxy.target import Target
from tests.gateway.conftest import World
from tests.gateway.engines.faces import Face, Route
from tests.ports import free_port


class Faces(World):
    """A world whose engines are faces."""

    def __init__(self) -> None:
        super().__init__()
        self.faces: list[Face] = []

    async def face(self, routes: dict[str, Route], *, port: int = 0, **more: Any) -> Face:
        made = Face(routes, **more)
        await made.start(port or free_port())
        self.faces.append(made)
        return made

    async def behind(self, *faces: Face, engine: str = "auto", **settings: Any) -> None:
        """A gateway before them that has learned what they are."""
        endpoints = [{"url": face.url, "engine": engine} for face in faces]
        settings["bands"] = [{"name": name, "max_engine_waiting": 100} for name in ("standard", "batch")]
        await self.gateway(endpoints=endpoints, **settings)
        await self.until(lambda: all(endpoint.models is not None for endpoint in self.picture().endpoints))

    def target(self, face: Face) -> Target:
        return self.gate.endpoints.targets[face.name]

    def endpoint(self, face: Face) -> EndpointSnapshot:
        return next(endpoint for endpoint in self.picture().endpoints if endpoint.name == face.name)

    async def close(self) -> None:
        await super().close()
        for face in self.faces:
            await face.stop()


@pytest.fixture
async def world() -> AsyncIterator[Faces]:
    made = Faces()
    try:
        yield made
    finally:
        await made.close()
