"""What does an engine's refusal mean: is it about a field that Penstock added, can the request be served elsewhere, and
is it an engine that answers at all (docs/decisions/0066)?

A refusal that may be about a field of ours is followed by the same request without that field, once per dispatch: a 400
or 422, an error 500 or 501 that names the field, or such an error as the first event of a stream. Where the request
can't be sent again (through a proxy), the next one goes without the field.
After a refusal because the request does not fit (too long, a picture), another endpoint tries. File servers, login
pages and ingresses without a route answer too, with a redirect or that there is no such path. Engines do so as well
if they lack a path; so such an answer speaks against an engine only if it has answered well on this path before, or
if nothing shows yet that it is one.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from penstock.engines.openai import OPENAI
from penstock.gateway.proxy.target import PRIORITY, USAGE, Target

if TYPE_CHECKING:
    from penstock.gateway.proxy.journey import QueuedJourney

logger: Final = logging.getLogger(__name__)

FIELD_REFUSED: Final = frozenset({400, 422})  # statuses of an engine that does not take a field
FIELD_NAMED: Final = FIELD_REFUSED | {200, 500, 501}  # statuses of one that says so by the field's name
#: What an engine's error names them by.
_NAMED_BY: Final = {
    field: re.compile(pattern, re.IGNORECASE)
    for field, pattern in ((USAGE, rb"stream[ _-]?options|include[ _-]?usage"), (PRIORITY, rb"\bpriority\b"))
}
_UNFIT: Final = frozenset({400, 404, 405, 410, 413, 422, 500, 501})  # statuses that `unfit.py` reads
_NO_SUCH_PATH: Final = frozenset({301, 302, 303, 307, 308, 404, 405, 410, 501})
_FORBIDDEN: Final = frozenset({401, 403})  # of buckets; an engine's are about keys


def may_mend(journey: QueuedJourney, status: int) -> bool:
    """True if a refusal of this status may be about a field of ours, or the request may fit elsewhere."""
    return may_refuse_ours(journey, status) or _may_fit_elsewhere(journey, status)


def mended(journey: QueuedJourney, status: int, body: bytearray) -> bool:
    """Send a refused request again without fields of ours, or report that it does not fit there. False: neither."""
    if may_refuse_ours(journey, status):
        target = journey.target
        fields = named_fields(journey, body)
        if not fields and status in FIELD_REFUSED:
            fields = journey.added - target.takes
        if fields:
            shown = ", ".join(sorted(fields))
            logger.debug("%s: %s refuses it, maybe because of %s", journey.request.id, journey.endpoint, shown)
            journey.left_out = fields
            journey.ask(target, journey.endpoint, journey.rank, journey.body, counts=True)
            return True
    return asked_elsewhere(journey, status, body)


def named_fields(journey: QueuedJourney, error: bytes | bytearray) -> frozenset[str]:
    """Returns the fields of ours that an engine's error names."""
    return frozenset([field for field in journey.added if _NAMED_BY[field].search(error)])


def may_refuse_ours(journey: QueuedJourney, status: int) -> bool:
    """True if an error of this status may be about a field of ours."""
    fresh = bool(journey.added) and not journey.left_out
    return status in FIELD_NAMED and fresh and journey.division is None


def _may_fit_elsewhere(journey: QueuedJourney, status: int) -> bool:
    """True if a refusal of this status may be about what another endpoint takes."""
    if status not in _UNFIT or journey.request.pinned is not None or journey.division is not None:
        return False
    return journey.has_others


def asked_elsewhere(journey: QueuedJourney, status: int, body: bytearray) -> bool:
    """Report that a request does not fit there, if that is why it was refused. Returns True if it was."""
    if not _may_fit_elsewhere(journey, status) or journey.suspected or journey.target.engine.lacks(journey.named, body):
        return False
    from penstock.gateway.openai import unfit  # noqa: PLC0415 - engines refuse little

    held = journey.request.contents
    has_media = held is not None and held.pictures + held.sounds + held.videos > 0
    failure = unfit.refuses(status, body, has_media=has_media)
    if failure is None:
        return False
    journey.is_unfit = True
    journey.failed(failure, f"status {status}")
    return True


def leave_out(journey: QueuedJourney, target: Target, fields: frozenset[str], now: float) -> None:
    """Send that engine no such `fields` from now on, until it restarts or for ten minutes."""
    target.refuses_fields(fields, now)
    logger.warning(
        "endpoint %s refuses %s, which this gateway adds to requests; leaving it out there",
        *(journey.endpoint, " and ".join(f"`{field}`" for field in sorted(fields))),
    )


def is_suspect(target: Target, path: str, status: int, *, proven: bool) -> bool:
    """True if an answer of this status may not be an engine's; its body will show. `proven`: the endpoint is one."""
    if status not in _NO_SUCH_PATH and (proven or status not in _FORBIDDEN):
        return False
    # An engine may lack a path that it never served; one of unknown kind that never served any is a stranger.
    unknown = target.engine is OPENAI and not target.served
    return not proven or unknown or path in target.served
