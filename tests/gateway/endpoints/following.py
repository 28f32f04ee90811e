"""Sources of discovery at work, and the endpoints that they reported last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from penstock.config.load import EndpointSection
from penstock.gateway.endpoints.discovery.base import Discovery, EndpointSource
from tests.patience import WAIT_S

S = TypeVar("S", bound="Seen")


class Seen:
    """The last report of a source, and the number of reports."""

    def __init__(self) -> None:
        self.endpoints: list[EndpointSection] = []
        self.told = 0

    def ranked(self, sources: Sequence[str], /) -> None: ...

    def want(self, _: str, endpoints: Sequence[EndpointSection], /) -> None:
        self.endpoints = list(endpoints)
        self.told += 1

    def names(self) -> list[str]:
        return [endpoint.name for endpoint in self.endpoints]

    def urls(self) -> dict[str, str]:
        return {endpoint.name: endpoint.url for endpoint in self.endpoints}

    async def until(self, claim: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not claim():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def watching(source: EndpointSource, seen: S) -> AsyncIterator[S]:
    """Follows the source into `seen`."""
    discovery = Discovery([source], seen)
    discovery.start()
    try:
        yield seen
    finally:
        await discovery.close()
