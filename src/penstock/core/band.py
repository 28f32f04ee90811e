"""One priority band: what waits in it, and which endpoints are known to be open to it.

Bands are strict: a band is asked only when those above it can send nothing. Asking every endpoint at every event
would make each decision cost O(endpoints), so a band remembers answers: an endpoint found closed is not asked again
until something happened to it (`touch`), one found open stays so until it is touched.
"""

from __future__ import annotations

import msgspec

from penstock.core.endpoint import Endpoint
from penstock.core.fairness.tree import QueueTree
from penstock.core.flow import Entry


class BandSettings(msgspec.Struct, frozen=True):
    """A band as configured; bands are listed highest first."""

    name: str
    engine_waiting_max: int = 2  #: it may send while fewer than that wait inside the engine; 0: only when none does
    ceiling: float = 1.0  #: share of an endpoint's slots up to which it may send
    wait_s_max: float | None = None  #: else the queue's
    requests_max: int | None = None  #: how many may wait; else only the queue's bound holds


class Band:
    """The waiting requests of one band."""

    def __init__(self, settings: BandSettings, rank: int) -> None:
        self.settings = settings
        self.rank = rank
        self.tree = QueueTree()
        self.entries: dict[int, Entry] = {}  # by arrival number, in order of entering
        self.open: dict[Endpoint, None] = {}
        self.unchecked: dict[Endpoint, None] = {}

    def touch(self, endpoint: Endpoint) -> None:
        """Something happened to the endpoint: ask again whether it is open."""
        self.open.pop(endpoint, None)
        self.unchecked[endpoint] = None

    def forget(self, endpoint: Endpoint) -> None:
        self.open.pop(endpoint, None)
        self.unchecked.pop(endpoint, None)

    def push(self, entry: Entry) -> None:
        self.entries[entry.seq] = entry
        self.tree.push(entry)

    def remove(self, entry: Entry) -> None:
        del self.entries[entry.seq]
        self.tree.remove(entry)
