"""What does an edge say to a decider that takes it? All that it holds, for it alone knows what is true.

What waits and what runs is in the edge's own books (`edge.py`). Beside these it remembers here, within bounds, what no
request that is left would tell: what flows got in the last minute, and where sessions and prefixes went memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.core.util.bounded_map import BoundedMap
from penstock.core.util.decaying import Decaying
from penstock.core.values.request import SERVICE_S, Request, ServiceGot, Underway, Usage
from penstock.core.values.settings import Prices
from penstock.share.messages import Announced, Announcement, Announcing, Homes, RunsHere, ServedHere, WaitsHere

if TYPE_CHECKING:
    from penstock.share.edge import HeldRequest

FLOWS_MAX = 10_000
SESSIONS_MAX = 10_000
PREFIXES_MAX = 1_000
PREFIX_KEYS_MAX = 50_000  # that are announced of them, the latest first: less than half a megabyte
ROWS_PER_MESSAGE = 250

Row = TypeVar("Row")
Flow = tuple[int, tuple[str, ...], tuple[float, ...], str, Prices | None]


class _Got:
    """What one flow got: requests, and tokens of prompts, of these cached, and of answers."""

    __slots__ = ("cached", "completion", "prompt", "requests")

    def __init__(self) -> None:
        self.requests, self.prompt = Decaying(SERVICE_S), Decaying(SERVICE_S)
        self.cached, self.completion = Decaying(SERVICE_S), Decaying(SERVICE_S)


class EdgeMemory:
    """What an edge remembers of requests that it has forgotten."""

    def __init__(self) -> None:
        self._flows: BoundedMap[Flow, tuple[Flow, _Got]] = BoundedMap(FLOWS_MAX)
        self._sessions: BoundedMap[tuple[str, str], tuple[str, str, str]] = BoundedMap(SESSIONS_MAX)
        self._prefixes: BoundedMap[int, tuple[str, tuple[int, ...]]] = BoundedMap(PREFIXES_MAX)

    def sent(self, request: Request, endpoint: str) -> None:
        """Note where a request goes."""
        if request.session is not None:
            self._sessions.set((request.model, request.session), (request.model, request.session, endpoint))
        if request.prefix:
            self._prefixes.set(request.prefix[-1], (endpoint, request.prefix))

    def ended(self, request: Request, usage: Usage | None, output_tokens: int, now: float) -> None:
        """Note what a request got; where no engine told, `output_tokens` were seen."""
        flow = (request.band, request.flow, request.weights, request.account or request.tenant, request.prices)
        got = self._flows.renewed_or(flow, lambda: (flow, _Got()))[1]
        if usage is None:
            usage = Usage(0, output_tokens)
        got.requests.add(1.0, now)
        got.prompt.add(usage.prompt_tokens, now)
        got.cached.add(usage.cached_tokens, now)
        got.completion.add(usage.completion_tokens, now)

    def services(self, now: float) -> list[ServiceGot]:
        """Returns what flows got, and is not forgotten."""
        rows = [
            ServiceGot(*flow, got.requests.at(now), got.prompt.at(now), got.cached.at(now), got.completion.at(now))
            for flow, got in self._flows.values()
        ]
        return [row for row in rows if row.requests > 0.01]

    def homes(self) -> tuple[list[tuple[str, str, str]], list[tuple[str, tuple[int, ...]]]]:
        """Returns where sessions and prefixes went, the oldest first; of prefixes as many as are worth the bytes."""
        prefixes: list[tuple[str, tuple[int, ...]]] = []
        left = PREFIX_KEYS_MAX
        for row in reversed(self._prefixes.values()):
            left -= len(row[1])
            if left < 0:
                break
            prefixes.append(row)
        return self._sessions.values(), prefixes[::-1]


def announce(
    send: Callable[[Announcement], None],
    *,
    bands: Sequence[str],
    requests: Iterable[HeldRequest],
    memory: EdgeMemory,
    edges: Sequence[str],
    gateways: int,
    now: float,
) -> None:
    """Say all that an edge holds: each request of it either waits or runs."""
    send(Announcing(list(bands)))
    for held in requests:
        request = held.request
        if request.deadline_s is not None or request.locate_s:
            left_s = None if request.deadline_s is None else request.deadline_s - now
            request = msgspec.structs.replace(request, deadline_s=left_s, locate_s=0.0)
        came_s = now - held.since_s
        if held.lease is None:
            send(WaitsHere(held.number, request, came_s, held.waited_s + now - held.waits_s))
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
    for services in _pieces(memory.services(now)):
        send(ServedHere(services))
    sessions, prefixes = memory.homes()
    for some in _pieces(sessions):
        send(Homes(some, []))
    for others in _pieces(prefixes):
        send(Homes([], others))
    send(Announced(list(edges), gateways))


def _pieces(rows: list[Row]) -> Iterator[list[Row]]:
    for at in range(0, len(rows), ROWS_PER_MESSAGE):
        yield rows[at : at + ROWS_PER_MESSAGE]
