"""How does a gateway stand in its group, in values and in a sentence for people?"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.gateway.admin.phrases import seconds
from penstock.gateway.share.door import TurnedAway

REFUSED_SHOWN_S: Final = 60.0  # an edge that is not taken is in the first sentence for so long after its last try

Role = Literal["leads", "stands_by", "alone", "looks"]


class ShareNow(msgspec.Struct, frozen=True):
    """How the group stands, as this gateway knows it."""

    name: str
    address: str
    role: Role
    decider: str | None  #: the address of whoever decides; None: nobody that this gateway knows
    since_s: float  #: for how long it has been so
    epoch: int
    gateways: int  #: that were there when it was last known
    election: str  #: who says so
    trouble: str | None  #: what is wrong, in words
    refused: list[TurnedAway]  #: edges that were not taken, the latest last; seconds ago

    @property
    def sentence(self) -> str:
        """What is wrong, for people; empty: nothing."""
        why = f": {self.trouble}" if self.trouble else ""
        if self.role == "alone":
            part = f"1/{self.gateways} of slots and limits"
            return f"This gateway decides alone, with {part}, for {seconds(self.since_s)}{why}."
        if self.role == "looks":
            return f"Nobody decides that this gateway knows, for {seconds(self.since_s)}{why}."
        latest = self.refused[-1] if self.refused else None
        if latest is not None and latest.at_s < REFUSED_SHOWN_S:
            return f"An edge at {latest.where} is not taken: {latest.why}."
        return ""
