"""An edge's announcement to a new decider: everything that it holds, because only edges know the truth.

Queued and running requests are in the edge's own books (`edge.py`). `EdgeMemory` keeps, within bounds, what ended
requests leave behind: the service of flows in the last minute, and the endpoints of sessions and prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.core.util.bounded_map import BoundedMap
from penstock.core.util.decaying import Decaying
from penstock.core.values.request import SERVICE_S, Request, Usage
from penstock.core.values.settings import Prices
from penstock.core.values.takeover import ServiceGot, Underway
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

if TYPE_CHECKING:
    from penstock.share.edge import Edge

FLOWS_MAX = 10_000
SESSIONS_MAX = 10_000
PREFIXES_MAX = 1_000
PREFIX_KEYS_MAX = 50_000  # announced, latest prefixes first: less than half a megabyte
ROWS_PER_MESSAGE = 250

Row = TypeVar("Row")
Flow = tuple[int, tuple[str, ...], tuple[float, ...], tuple[str, ...], Prices | None]


class _Got:
    """The service of one flow: requests, and tokens of prompts, cached ones among them, and of answers."""

    __slots__ = ("cached", "completion", "prompt", "requests")

    def __init__(self) -> None:
        self.requests, self.prompt = Decaying(SERVICE_S), Decaying(SERVICE_S)
        self.cached, self.completion = Decaying(SERVICE_S), Decaying(SERVICE_S)


class EdgeMemory:
    """Traces of ended requests."""

    def __init__(self) -> None:
        self._flows: BoundedMap[Flow, tuple[Flow, _Got]] = BoundedMap(FLOWS_MAX)
        self._sessions: BoundedMap[tuple[str, str], tuple[str, str, str]] = BoundedMap(SESSIONS_MAX)
        self._prefixes: BoundedMap[int, tuple[str, tuple[int, ...]]] = BoundedMap(PREFIXES_MAX)

    def sent(self, request: Request, endpoint: str) -> None:
        """Note the endpoint of a request."""
        if request.session is not None:
            self._sessions.set((request.model, request.session), (request.model, request.session, endpoint))
        if request.prefix:
            self._prefixes.set(request.prefix[-1], (endpoint, request.prefix))

    def ended(self, request: Request, usage: Usage | None, output_tokens: int, now: float) -> None:
        """Note a request's service; `output_tokens` count if the engine reported no usage."""
        flow = (request.band, request.flow, request.weights, request.accounts, request.prices)
        got = self._flows.renewed_or(flow, lambda: (flow, _Got()))[1]
        if usage is None:
            usage = Usage(0, output_tokens)
        got.requests.add(1.0, now)
        got.prompt.add(usage.prompt_tokens, now)
        got.cached.add(usage.cached_tokens, now)
        got.completion.add(usage.completion_tokens, now)

    def services(self, now: float) -> list[ServiceGot]:
        """Returns the recent service of each flow."""
        rows = [
            ServiceGot(*flow, got.requests.at(now), got.prompt.at(now), got.cached.at(now), got.completion.at(now))
            for flow, got in self._flows.values()
        ]
        return [row for row in rows if row.requests > 0.01]

    def homes(self) -> tuple[list[tuple[str, str, str]], list[tuple[str, tuple[int, ...]]]]:
        """Returns the endpoints of sessions and prefixes, oldest first; the latest prefixes up to `PREFIX_KEYS_MAX`."""
        prefixes: list[tuple[str, tuple[int, ...]]] = []
        left = PREFIX_KEYS_MAX
        for row in reversed(self._prefixes.values()):
            left -= len(row[1])
            if left < 0:
                break
            prefixes.append(row)
        return self._sessions.values(), prefixes[::-1]


def announce(edge: Edge, send: Callable[[Announcement], None], *, now: float) -> None:
    """Send all that an edge holds. Each of its requests either waits or runs."""
    send(Announcing(list(edge.bands)))
    for held in edge.requests.values():
        request = WireRequest.of(held.request)
        if request.deadline_s is not None or request.locate_s:
            left_s = None if request.deadline_s is None else request.deadline_s - now
            request = msgspec.structs.replace(request, deadline_s=left_s, locate_s=0.0)
        came_s = now - held.since_s
        if held.lease is None:
            send(WaitsHere(held.number, request, came_s, held.waited_s + now - held.waits_s, held.decided))
            held.decided = True
            continue
        decode, decode_lease = held.decode or (None, None)
        underway = Underway(
            held.lease,
            held.endpoint,
            now - held.sent_s,
            begun=held.begun,
            output_tokens=held.output_tokens,
            decode=decode,
            decode_lease=decode_lease,
            handed_over=held.handed_over,
        )
        send(RunsHere(held.number, request, came_s, held.waited_s, underway))
    memory = edge.memory or EdgeMemory()
    for services in _pieces(memory.services(now)):
        send(ServedHere(services))
    sessions, prefixes = memory.homes()
    for some in _pieces(sessions):
        send(Homes(some, []))
    for others in _pieces(prefixes):
        send(Homes([], others))
    send(Announced(list(edge.edges)))


def _pieces(rows: list[Row]) -> Iterator[list[Row]]:
    for at in range(0, len(rows), ROWS_PER_MESSAGE):
        yield rows[at : at + ROWS_PER_MESSAGE]
