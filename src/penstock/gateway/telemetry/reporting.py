"""Reports of each request beside the counts: spans to a collector, lines in the access log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.config.model import Settings
from penstock.config.sections.operation import Tracing
from penstock.gateway.telemetry import access_log, routing_log

if TYPE_CHECKING:
    from penstock.gateway.proxy.journey import OnEnd, OnSent
    from penstock.gateway.telemetry.tracing import Tracer  # needs an extra


class Reporting:
    """What journeys are given when they begin."""

    def __init__(self) -> None:
        self.tracer: Tracer | None = None  #: None: nothing is traced
        self.on_end: OnEnd | None = None  #: called at the end of each request
        self.on_sent: OnSent | None = None  #: called at each dispatch
        self._tracing = Tracing()
        self._closing: asyncio.Task[None] | None = None  # of a tracer that was replaced

    def follow(self, settings: Settings) -> None:
        """Report later requests by these settings."""
        self.on_end = access_log.ended if settings.log.access else None
        self.on_sent = routing_log.sent if settings.log.routing else None
        if settings.tracing == self._tracing:
            return
        self._tracing = settings.tracing
        before, self.tracer = self.tracer, _tracer(settings.tracing)
        if before is not None:
            self._closing = asyncio.get_running_loop().create_task(before.close())

    async def close(self) -> None:
        """Send the remaining spans."""
        if self.tracer is not None:
            await self.tracer.close()


def _tracer(tracing: Tracing) -> Tracer | None:
    if tracing.endpoint is None:
        return None
    from penstock.gateway.telemetry.tracing import otlp  # noqa: PLC0415  (an extra)

    return otlp(tracing.endpoint, sample=tracing.sample)
