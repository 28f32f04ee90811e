"""The processes that carry bytes for this one: levels for `/metrics`, one series an edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.gateway.telemetry.exposition import Levels, columns


class ShownEdge(Protocol):
    """A worker process, or another gateway of the same queue, as it stands."""

    @property
    def name(self) -> str: ...
    @property
    def up_s(self) -> float | None: ...
    @property
    def requests(self) -> int: ...
    @property
    def connections(self) -> int: ...
    @property
    def link_s(self) -> float: ...
    @property
    def lag_s(self) -> float: ...
    @property
    def cpu_s(self) -> float: ...
    @property
    def starts(self) -> int: ...


class ShownGroup(Protocol):
    """How this gateway stands among those that share one queue."""

    @property
    def role(self) -> str:
        """`leads` if it decides for all."""

    @property
    def sentence(self) -> str:
        """What is wrong, for people; empty: nothing."""


_SERIES: tuple[tuple[str, str, Callable[[ShownEdge], float]], ...] = (
    ("up", "Whether the edge is there.", lambda edge: float(edge.up_s is not None)),
    ("requests", "Requests it holds, waiting ones included.", lambda edge: edge.requests),
    ("connections", "Clients' connections it has.", lambda edge: edge.connections),
    ("link_seconds", "Round trip of a message to its decider.", lambda edge: edge.link_s),
    ("event_loop_lag_seconds", "How late its event loop ran a timer in the last second.", lambda edge: edge.lag_s),
    ("cpu_seconds_total", "CPU time of its present process.", lambda edge: edge.cpu_s),
    ("starts_total", "How often its process was started.", lambda edge: edge.starts),
)


def edge_levels(edges: Callable[[], Iterable[ShownEdge]]) -> list[Levels]:
    """The families, read when they are printed."""
    return columns("penstock_edge_", "edge", _SERIES, lambda: ((edge.name, edge) for edge in edges()))
