"""The line that production-stack's router writes for each request that it sends (`log.routing`).

Scripts read it: its words and their order are theirs. A request that is computed in two places has two lines. Callers
choose ids and sessions, so their invisible characters are written as in a URL: nobody can forge words of the line.
"""

from __future__ import annotations

import logging
import string
from typing import TYPE_CHECKING
from urllib.parse import quote

from penstock import clock
from penstock.gateway.telemetry.access_log import NAME_CHARS_MAX

if TYPE_CHECKING:
    from penstock.gateway.proxy.journey import QueuedJourney

logger = logging.getLogger("penstock.routing")

_VISIBLE = string.punctuation


def sent(journey: QueuedJourney, url: str) -> None:
    """A journey's request goes to an engine now."""
    session = journey.request.session
    logger.info(
        "Routing request %s with session id %s to %s at %.6f, process time = %.4f",
        quote(journey.request_id.decode(), _VISIBLE),
        None if session is None else quote(session[:NAME_CHARS_MAX], _VISIBLE),
        url,
        clock.wall(),
        journey.elapsed_s(),
    )
