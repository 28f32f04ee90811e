"""The line that production-stack's router writes for each request that it sends (`log.routing`).

Scripts read it: its words and their order are theirs. A request that is computed in two places has two lines. Callers
choose ids and sessions, so their invisible characters are written as in a URL: nobody can forge words of the line.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock import logs
from penstock.gateway.telemetry.access_log import NAME_CHARS_MAX

if TYPE_CHECKING:
    from penstock.gateway.telemetry.line_log import LineLog

_VISIBLE = string.punctuation


class RoutingLog:
    """Notes requests that go to engines."""

    def __init__(self, lines: LineLog) -> None:
        self._lines = lines

    def sent(self, request_id: bytes, session: str | None, url: str, elapsed_s: float) -> None:
        """A request goes to an engine now, so long after it was complete."""
        told = None if session is None else session[:NAME_CHARS_MAX]
        self._lines.add(_line, (request_id, told, url, elapsed_s))


def _line(at_s: float, values: tuple[bytes, str | None, str, float], is_json: bool) -> bytes:  # noqa: FBT001
    request_id, session, url, elapsed_s = values
    message = (
        f"Routing request {quote(request_id, _VISIBLE)} with session id "
        f"{None if session is None else quote(session, _VISIBLE)} to {url} at {at_s:.6f}, "
        f"process time = {elapsed_s:.4f}"
    )
    return logs.line(at_s, "INFO", "penstock.routing", message, {} if is_json else None)
