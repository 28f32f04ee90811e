"""The store of an election. One record, overwritten by its last reader; a store may vanish or lose data.

The rule by which gateways stand for election is the real one (`penstock/share/election.py`); here is only a store that
answers in virtual time, or doesn't.
"""

from __future__ import annotations

from penstock.share.election import Claim, Record


class ElectionStore:
    """One record in virtual time."""

    def __init__(self) -> None:
        self.up = True
        self.record = Record()
        self._writes = 0

    def write(self, over: Record, claim: Claim) -> Record | None:
        """Returns what is there now; None if another wrote since `over` was read."""
        if over.version != self.record.version:
            return None
        self._writes += 1
        self.record = Record(str(self._writes), claim.id, claim.address, claim.epoch)
        return self.record

    def forget(self) -> None:
        """It restarts empty."""
        self.record = Record()
