"""Who was overtaken by requests that fit where it does not, how often, and what room is then kept for it (DESIGN §4.9).

Within a turn of the pump it is noted who was passed over; when somebody is found, all of them count as overtaken. One
that was overtaken as often as may be has room kept for it: wherever it may go, nobody else goes until it fits.
"""

from __future__ import annotations

from penstock.core.endpoint import Endpoint
from penstock.core.flow import Entry
from penstock.core.lifecycle import TERMINAL, State

BYPASS_MAX = 32  # times one request may be overtaken by others that fit; then room is kept for it


class Overtaking:
    """What one turn of the pump has come across, and who has been overtaken too often."""

    def __init__(self) -> None:
        self.passed: list[Entry] = []  # in this turn: requests that did not fit
        self.kept: set[Endpoint] = set()  # in this turn: endpoints whose room is kept for some of them
        self._starved: list[Entry] = []  # overtaken as often as may be: room is kept for those of them that wait

    def begin(self) -> None:
        """A turn begins."""
        self.passed.clear()
        self.kept.clear()

    def not_kept(self, endpoints: list[Endpoint]) -> list[Endpoint]:
        """Those of the endpoints whose room is for anybody."""
        return [e for e in endpoints if e not in self.kept] if self.kept else endpoints

    def passes(self, entry: Entry) -> None:
        """It is passed over in this turn."""
        if entry not in self.passed:
            self.passed.append(entry)

    def keep(self, entry: Entry, free: list[Endpoint], now: float) -> None:
        """Keep room for one that was passed over, if that was so often enough."""
        if entry.bypassed >= BYPASS_MAX:
            model = entry.model
            self.kept.update([e for e in free if e.serves(model) and not entry.shuns(e.name, now)])

    def found(self, endpoints: list[Endpoint]) -> None:
        """Somebody goes to one of these endpoints: it overtakes those who were passed over and could go there."""
        self.passed = [x for x in self.passed if any(e.serves(x.request.model) for e in endpoints)]
        for overtaken in self.passed:
            overtaken.bypassed += 1
            if overtaken.bypassed == BYPASS_MAX:
                self._starved = [x for x in self._starved if x.state not in TERMINAL]
                self._starved.append(overtaken)

    def room_is_kept(self, endpoint: Endpoint, now: float) -> bool:
        """Whether one that was overtaken as often as may be waits for room there."""
        if endpoint in self.kept:
            return True
        for entry in self._starved:  # a loop, for mostly there is nobody
            if entry.state is State.WAITING and endpoint.serves(entry.model) and not entry.shuns(endpoint.name, now):
                return True
        return False
