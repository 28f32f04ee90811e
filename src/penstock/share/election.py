"""Leader election by one record in a store, written by compare-and-set.

The leader renews the record each second. A record that did not change while a gateway watched it for three seconds is
free. Each gateway measures spans by its own clock, so clocks may differ, the store's included, if they run about
equally fast. A leader that can't renew stops after two seconds, one before any other may begin.

A leader's term has a number, its *epoch*. Epochs only grow: a new leader takes one more than the store's and than any
that a gateway has followed, so a store that lost its last writes can't bring an old leader back. A store that is empty,
has lost writes or did not answer for a while is watched for three seconds from then on; a leader overwrites a lower
epoch at once, long before.

A store that answers no gateway ends no term. While every gateway that the leader knows follows it, none of them claims
the record: hearing the leader counts as seeing the record renewed. So being followed by all counts as a renewal.

This is how client-go elects by a Lease (tools/leaderelection), with epochs and followers added. Pure: nothing here
reads a clock or waits; `gateway/elect` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

TTL_S: Final = 3.0  # a record that did not change for so long is free
RENEW_S: Final = 1.0
STOP_S: Final = 2.0  # after the last renewal was sent: one second is left for clocks of unequal speed
LOOK_S: Final = 0.5  # between two reads by others
REST_S: Final = 5.0  # after a step-down others go first


# --- what comes of it -------------------------------------------------------------------------------------------------


class Leads(msgspec.Struct, frozen=True, tag=True):
    """This gateway decides."""

    epoch: int


class Follows(msgspec.Struct, frozen=True, tag=True):
    """The gateway at `address` decides, as last known."""

    address: str
    epoch: int


class Nobody(msgspec.Struct, frozen=True, tag=True):
    """No gateway is known to decide."""

    why: str


Standing = Leads | Follows | Nobody


class Election(Protocol):
    """Reports which gateway decides, as long as it runs."""

    @property
    def standing(self) -> Standing:
        """The gateway that decides, as known here."""

    @property
    def since_s(self) -> float:
        """Since when, by `penstock.clock.now`."""

    @property
    def trouble(self) -> str | None:
        """What is wrong with the store; None: nothing."""

    @property
    def where(self) -> str:
        """The store, such as `the Lease gate in prod`."""

    async def run(self, changed: Callable[[Standing], None]) -> None:
        """Take part until cancelled. `changed` is called with each new standing, not with renewals."""

    def leads(self) -> int | None:
        """Returns the epoch if this gateway may decide right now, otherwise None.

        Ask before actions are sent: a process that was stopped hears its links before its timers.
        """

    def at_least(self, epoch: int) -> None:
        """A gateway has followed `epoch`: a leader of a lower one takes a higher one."""

    def followed(self, at_s: float) -> None:
        """Each gateway that this leader knows has answered a message sent at or after `at_s`."""

    def hears(self, at_s: float) -> None:
        """The leader of the highest known epoch reported at `at_s` that it leads."""

    def look_now(self) -> None:
        """The leader seems gone: read the store now."""

    def step_down(self) -> None:
        """Lead no longer, and let others go first for a while."""

    async def close(self) -> None:
        """Lead no longer, give the record back, and end."""


# --- the store --------------------------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True):
    """The record. Each write makes another `version`; empty: there is none."""

    version: str = ""
    id: str = ""  #: of one run of a process; empty: it was given back
    address: str = ""
    epoch: int = 0


class Claim(msgspec.Struct, frozen=True):
    """The record to write."""

    id: str
    address: str
    epoch: int


class ElectionError(Exception):
    """The store can't be used. The message is for the operator."""


class RecordStore(Protocol):
    """One record with compare-and-set. Both methods raise `ElectionError`."""

    where: str

    async def read(self) -> Record:
        """Returns the present record."""

    async def write(self, over: Record, claim: Claim) -> Record | None:
        """Replace `over` by `claim`, and return the new record; None: another was written meanwhile."""

    async def close(self) -> None:
        """Close connections."""


# --- the rule ---------------------------------------------------------------------------------------------------------


class Contender:
    """One gateway in an election; takes what it reads, writes and hears, each with the time."""

    def __init__(self, id_: str, address: str, *, now: float) -> None:
        self.id = id_
        self.address = address
        self.floor = 0  #: the highest epoch known
        self.trouble: str | None = None
        self.since_s = now
        self._standing: Standing = Nobody("the store has not answered yet")
        self._in_term = False
        self._epoch = 0  # of our present or last term
        self._renewed_s = self._followed_s = self._heard_s = self._rests_until_s = -math.inf
        self._asked_s = now
        self._failed = False
        self._record: Record | None = None  # as last read or written
        self._seen_s = self._looked_s = now  # it was seen unchanged from and until

    # --- facts ---------------------------------------------------------------------------------------------------

    def asks(self, now: float) -> None:
        """A question to the store begins."""
        self._asked_s, self._failed = now, False

    def saw(self, record: Record, now: float) -> None:
        """The store's record came at `now`."""
        if self._record is None or record.version != self._record.version or now > self._looked_s + STOP_S:
            self._record, self._seen_s = record, now
        self._looked_s = now
        self.floor = max(self.floor, record.epoch)
        if record.epoch > self._epoch or (record.epoch == self._epoch and record.id not in ("", self.id)):
            self._in_term = False  # another was elected
        if self.claim(now) is None:  # otherwise the last claim's trouble stays until one is written
            self.trouble = self._forgotten(record)
        self.at(now)

    def wrote(self, record: Record, sent_s: float, now: float) -> None:
        """The store accepted our claim, sent at `sent_s`."""
        self.at(now)
        self._record, self.trouble = record, None
        self._seen_s = self._looked_s = now
        goes_on = self._in_term and record.epoch == self._epoch
        begins = record.epoch > self._epoch and record.epoch >= self.floor and self.is_candidate(now)
        self.floor = max(self.floor, record.epoch)
        if record.id == self.id and (goes_on or begins) and now < sent_s + STOP_S:
            self._in_term, self._epoch, self._renewed_s = True, record.epoch, sent_s
        self.at(now)

    def failed(self, why: str, now: float) -> None:
        """The question to the store failed."""
        self.trouble, self._failed = why, True
        self.at(now)

    def at_least(self, epoch: int) -> None:
        """A gateway has followed `epoch`."""
        self.floor = max(self.floor, epoch)

    def followed(self, at_s: float, now: float) -> None:
        """All gateways that this leader knows have answered a message of `at_s`. It revives no ended term."""
        self.at(now)
        if self._in_term:
            self._followed_s = max(self._followed_s, at_s)

    def hears(self, at_s: float) -> None:
        """The leader reported at `at_s` that it leads."""
        self._heard_s = max(self._heard_s, at_s)

    def steps_down(self, now: float, *, rest_s: float = REST_S) -> None:
        """Lead no longer, and let others go first for `rest_s`."""
        self._in_term = False
        self._rests_until_s = now + rest_s
        self.at(now)

    # --- conclusions ----------------------------------------------------------------------------------------------

    @property
    def seen(self) -> Record:
        """The record as last read or written."""
        return self._record or Record()

    @property
    def until_s(self) -> float:
        """Until when it leads without further renewal."""
        if not self._in_term:
            return -math.inf
        followed_s = self._followed_s if self.floor <= self._epoch else -math.inf  # some already follow another
        return max(self._renewed_s, followed_s) + STOP_S

    def leads(self, now: float) -> int | None:
        """Returns the epoch if this gateway may decide `now`, otherwise None."""
        return self._epoch if self._in_term and now < self.until_s else None

    def is_candidate(self, now: float) -> bool:
        """Returns whether it is a candidate."""
        return now >= self._rests_until_s

    def at(self, now: float) -> Standing:
        """Returns the standing `now`."""
        if self._in_term and now >= self.until_s:
            self._in_term = False
        standing = self._stands_as(now)
        if standing != self._standing:
            self._standing, self.since_s = standing, now
        return standing

    def claim(self, now: float) -> Claim | None:
        """Returns the record to write over the last one seen; None: nothing."""
        self.at(now)
        if self._in_term:
            # A lower epoch comes from a store that lost writes: overwrite it at once.
            return Claim(self.id, self.address, self._epoch if self.floor <= self._epoch else self.floor + 1)
        if self._record is None or not self.is_candidate(now) or now < self._free_s(self._record):
            return None
        return Claim(self.id, self.address, self.floor + 1)

    def given_back(self) -> Claim:
        """Returns the record by which ours is given back."""
        return Claim("", "", max(self._epoch, self.floor))

    def asks_again_s(self) -> float:
        """Returns when to ask the store next."""
        if self._in_term:
            return self._asked_s + (LOOK_S if self._failed else RENEW_S)
        again_s = self._asked_s + LOOK_S
        if self._record is not None and not self._failed:
            free_s = max(self._free_s(self._record), self._rests_until_s)
            if self._asked_s < free_s < again_s:
                return free_s
        return again_s

    def _free_s(self, record: Record) -> float:
        """From when on the record is free, if nothing changes."""
        if record.version and not record.id and record.epoch >= self.floor:
            return -math.inf  # it was given back
        return max(self._seen_s, self._heard_s) + TTL_S

    def _stands_as(self, now: float) -> Standing:
        record, before = self._record, self._standing
        if self._in_term:
            return Leads(self._epoch)
        if record is None:
            return Nobody(self.trouble or "the store has not answered yet")
        if record.id == self.id:
            return Nobody(f"this gateway no longer leads{self._because()}")
        if record.id and (record.epoch >= self.floor or now >= self._heard_s + TTL_S):
            # A lower epoch: elected by a store that lost writes. Gateways that dial it report the higher one.
            return Follows(record.address, record.epoch)
        if isinstance(before, Follows) and (not record.version or record.epoch < before.epoch):
            return before  # a store that lost writes does not change who decides
        if record.version and not record.id:
            return Nobody(f"the last one gave its place back{self._because()}")
        return Nobody(self.trouble or "no leader is elected yet")

    def _because(self) -> str:
        return f": {self.trouble}" if self.trouble else ""

    def _forgotten(self, record: Record) -> str | None:
        if record.epoch >= self.floor:
            return None
        has = f"it has epoch {record.epoch}" if record.version else "it is empty"
        return f"the store lost the last write: {has}, and {self.floor} was there before"
