"""Validation of what edges report about requests, and an edge's announcement until it is complete.

Nothing is booked before the announcement is complete: an edge whose link breaks halfway has announced nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.core.values.takeover import ServiceGot
from penstock.share.edge import NAME_CHARACTERS_MAX
from penstock.share.frames import LinkError
from penstock.share.messages import (
    Announced,
    Announcement,
    Announcing,
    Homes,
    RunsHere,
    ServedHere,
    WaitsHere,
    WireRequest,
)

GATHER_S = 0.5  # the wait for edges that have not announced
REQUESTS_MAX = 200_000  # of one edge
ROWS_MAX = 50_000  # of its memory, of each kind
NUMBER_MAX = 1 << 62
ALSO_MAX = 2  # a key and a model
INF: Final = math.inf


def checked(request: WireRequest, *, bands: Sequence[str], here: Sequence[str], levels: int) -> WireRequest:
    """Returns a request of an edge whose settings have these `bands`, in the bands `here`. Raises `LinkError`."""
    names = (request.id, request.model, request.tenant, request.account, *request.flow, *request.also)
    if max(map(len, names)) > NAME_CHARACTERS_MAX or len(request.also) > ALSO_MAX:
        raise LinkError("a request with a name that is too long")
    path = len(request.flow)
    # Requests without a key share a flow, one level further down.
    if len(request.weights) != path or not levels <= path <= levels + 1:
        raise LinkError(f"a request with {path} fairness levels instead of {levels}")
    sane = request.body_bytes >= 0 and -INF < request.locate_s < INF
    for weight in request.weights:
        sane = sane and 0.0 < weight < INF
    if request.deadline_s is not None:
        sane = sane and -INF < request.deadline_s < INF
    if request.time_per_output_token_s_max is not None:
        sane = sane and 0.0 < request.time_per_output_token_s_max < INF
    if (prices := request.prices) is not None:
        sane = sane and all(map(math.isfinite, (prices.prompt, prices.cached_prompt, prices.completion)))
    if not sane:
        raise LinkError("a request with an invalid weight, size or time")
    band = band_here(request.band, bands, here)
    return request if band == request.band else msgspec.structs.replace(request, band=band)


def band_here(rank: int, bands: Sequence[str], here: Sequence[str]) -> int:
    """Returns the rank `here` of an edge's band: by its name, or if that is gone, the same rank or the lowest."""
    if not 0 <= rank < len(bands):
        raise LinkError(f"a request in band {rank} of {len(bands)}")
    if bands is here:
        return rank
    names = list(here)  # the edge does not follow the new settings yet
    return names.index(bands[rank]) if bands[rank] in names else min(rank, len(names) - 1)


class Pieces:
    """The announcement of one edge, as far as it has come."""

    def __init__(self, checked: Callable[[WireRequest], WireRequest], in_band: Callable[[int], int]) -> None:
        self._checked = checked
        self._in_band = in_band
        self.requests: dict[int, WaitsHere | RunsHere] = {}
        self.services: list[ServiceGot] = []
        self.sessions: list[tuple[str, str, str]] = []
        self.prefixes: list[tuple[str, tuple[int, ...]]] = []
        self.end: Announced | None = None

    def add(self, message: Announcement) -> None:
        """Take one piece. Raises `LinkError`."""
        match message:
            case WaitsHere() | RunsHere():
                self._add_request(message)
            case ServedHere():
                self.services += [self._sane(row) for row in message.services]
            case Homes():
                self.sessions += message.sessions
                self.prefixes += message.prefixes
            case Announced():
                self.end = message
            case Announcing():
                raise LinkError("an announcement in an announcement")
        if max(len(self.services), len(self.sessions), len(self.prefixes)) > ROWS_MAX:
            raise LinkError(f"an announcement of more than {ROWS_MAX} rows")

    def _add_request(self, message: WaitsHere | RunsHere) -> None:
        number, times = message.number, [message.came_s, message.waited_s]
        if number in self.requests or not 0 < number < NUMBER_MAX:
            raise LinkError(f"request {number} is announced twice, or is invalid")
        if len(self.requests) >= REQUESTS_MAX:
            raise LinkError(f"an announcement of more than {REQUESTS_MAX} requests")
        if isinstance(message, RunsHere):
            its = message.underway
            times.append(its.running_s)
            if its.output_tokens < 0 or (its.decode is None) != (its.decode_lease is None):
                raise LinkError("an invalid lease")
        if not all(map(math.isfinite, times)) or min(times) < 0.0:
            raise LinkError("a request with an invalid age")
        self.requests[number] = msgspec.structs.replace(message, request=self._checked(message.request))

    def _sane(self, row: ServiceGot) -> ServiceGot:
        sums = (row.requests, row.prompt_tokens, row.cached_tokens, row.completion_tokens)
        if (
            not all(map(math.isfinite, (*sums, *row.weights)))
            or min(sums) < 0.0
            or min(row.weights, default=0.0) <= 0.0
        ):
            raise LinkError("a flow's service is not a number")
        if len(row.weights) != len(row.flow):
            raise LinkError("a flow without a weight")
        return msgspec.structs.replace(row, band=self._in_band(row.band))
