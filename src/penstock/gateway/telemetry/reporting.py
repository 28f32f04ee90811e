"""Reports of each request beside the counts: spans to a collector, lines in the access log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.config.model import Settings
from penstock.config.sections.operation import Tracing
from penstock.gateway.telemetry.request_events import End, RequestEvents, Sent

if TYPE_CHECKING:
    from penstock.gateway.telemetry.access_log import AccessLog
    from penstock.gateway.telemetry.line_log import LineLog
    from penstock.gateway.telemetry.tracing import Tracer  # needs an extra


#: The caller's id of a request, its session, the URL it is sent to, and the seconds since it was complete.
OnSent = Callable[[bytes, str | None, str, float], None]


class Reporting:
    """What journeys are given when they begin."""

    def __init__(self, dropped: Callable[[int], None], events: RequestEvents) -> None:
        """`dropped` counts the lines that could not be written; `ends` are those that the access log is about."""
        self._dropped = dropped
        self._lines: LineLog | None = None  # once a log has been on
        self._events = events
        events.observers.append(self)
        self.access: AccessLog | None = None  #: None: it is off
        self.tracer: Tracer | None = None  #: None: nothing is traced
        self.on_sent: OnSent | None = None  #: called at each dispatch
        self._tracing = Tracing()
        self._closing: asyncio.Task[None] | None = None  # of a tracer that was replaced

    def follow(self, settings: Settings) -> None:
        """Report later requests by these settings."""
        self._events.fold()  # by the settings that were in force
        self.access = self.on_sent = None
        if settings.log.access and _is_logged("penstock.access"):
            from penstock.gateway.telemetry.access_log import AccessLog  # noqa: PLC0415 - off by default

            self.access = AccessLog(self._line_log())
        if settings.log.routing and _is_logged("penstock.routing"):
            from penstock.gateway.telemetry.routing_log import RoutingLog  # noqa: PLC0415 - off by default

            self.on_sent = RoutingLog(self._line_log()).sent
        if settings.tracing == self._tracing:
            return
        self._tracing = settings.tracing
        before, self.tracer = self.tracer, _tracer(settings.tracing)
        if before is not None:
            self._closing = asyncio.get_running_loop().create_task(before.close())

    def _line_log(self) -> LineLog:
        from penstock.gateway.telemetry.line_log import LineLog  # noqa: PLC0415 - both logs are off by default

        if self._lines is None:
            self._lines = LineLog(self._dropped)
        return self._lines

    def fold(self, sent: Sequence[Sent], ended: Sequence[End], wall_s: float) -> None:  # noqa: ARG002
        """Log the requests that ended."""
        if self.access is not None and ended:
            self.access.fold(ended, wall_s)

    async def close(self) -> None:
        """Write the remaining lines, and send the remaining spans."""
        self._events.fold()
        if self._lines is not None:
            self._lines.close()
        if self.tracer is not None:
            await self.tracer.close()


def _tracer(tracing: Tracing) -> Tracer | None:
    if tracing.endpoint is None:
        return None
    from penstock.gateway.telemetry.tracing import otlp  # noqa: PLC0415  (an extra)

    return otlp(tracing.endpoint, sample=tracing.sample)


def _is_logged(name: str) -> bool:
    return logging.getLogger(name).isEnabledFor(logging.INFO)
