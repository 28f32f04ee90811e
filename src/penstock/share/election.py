"""Which of several gateways decides? One record in a store, written over by compare-and-set, and what may be concluded.

Everyday picture: a chair that is taken by whoever puts a name on it, and kept by moving the name tag each second. A tag
that nobody moved while one watched for three seconds means an empty chair. Each watches with a watch of its own, so
clocks may differ as they like, a store's included: only how fast they run has to be about the same. Who moved the tag
last, and can't do so again, stands up after two seconds, one before anybody else may sit down.

A gateway's time in the chair has a number, its *epoch*. Epochs only grow: a newcomer takes one more than the store's
and than the highest that anybody says to have followed, so a store that forgot what was written last can't bring an old
decider back. A store that is empty, has forgotten, or did not answer for a while is watched for three seconds from then
on: whoever decides writes over what has a lower epoch at once, long before.

A store that answers nobody is no reason to stand up. While each gateway that the decider knows still follows it, none
of them takes the chair: to hear a decider counts as to see the tag moved. So being followed by all counts for the
decider as having moved it.

This is how client-go elects by a Lease (tools/leaderelection), with epochs, and with being followed. Pure: nothing here
reads a clock or waits; `gateway/elect` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

TTL_S: Final = 3.0  # a record that did not change for so long is free
RENEW_S: Final = 1.0
STOP_S: Final = 2.0  # after the last renewal was sent: one second is left for clocks that run apart
LOOK_S: Final = 0.5  # between two looks of those who do not decide
REST_S: Final = 5.0  # who stepped down lets others go first for so long


# --- what comes of it -------------------------------------------------------------------------------------------------


class Leads(msgspec.Struct, frozen=True, tag=True):
    """This gateway decides."""

    epoch: int


class Follows(msgspec.Struct, frozen=True, tag=True):
    """The gateway at `address` decides, as far as is known."""

    address: str
    epoch: int


class Nobody(msgspec.Struct, frozen=True, tag=True):
    """Nobody is known to decide."""

    why: str


Standing = Leads | Follows | Nobody


class Election(Protocol):
    """Says which gateway decides, as long as it runs."""

    @property
    def standing(self) -> Standing:
        """Who decides, as this gateway knows."""

    @property
    def since_s(self) -> float:
        """Since when it stands so, by `penstock.clock.now`."""

    @property
    def trouble(self) -> str | None:
        """What is wrong with the store, in words; None: nothing."""

    @property
    def where(self) -> str:
        """What the election is held by, such as `the Lease gate in prod`."""

    async def run(self, changed: Callable[[Standing], None]) -> None:
        """Take part until cancelled. `changed` is called with each new standing; a renewal is none."""

    def leads(self) -> int | None:
        """Returns the epoch if this gateway may decide at this very moment, else None.

        To be asked before actions are sent: a process that was stopped hears its links before its timers.
        """

    def at_least(self, epoch: int) -> None:
        """Somebody has followed `epoch`. A decider of a lower one takes one that is higher still."""

    def followed(self, at_s: float) -> None:
        """Each gateway that this decider knows has answered a word that was sent it at or after `at_s`."""

    def hears(self, at_s: float) -> None:
        """A decider of the highest epoch known said at `at_s` that it leads."""

    def look_now(self) -> None:
        """The decider is said to have gone: look whether it has."""

    def step_down(self) -> None:
        """Lead no more from now on, and let others go first for a while."""

    async def close(self) -> None:
        """Lead no more, say so in the store, and take no further part."""


# --- the store --------------------------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True):
    """What is in the store. Each write makes another `version`; empty: nothing is there."""

    version: str = ""
    id: str = ""  #: of the life of a process; empty: it was given back
    address: str = ""
    epoch: int = 0


class Claim(msgspec.Struct, frozen=True):
    """What is to be written."""

    id: str
    address: str
    epoch: int


class ElectionError(Exception):
    """The store can't be asked. The message is for the operator."""


class RecordStore(Protocol):
    """One record that can be read, and written over by who has read it last. Both raise `ElectionError`."""

    where: str

    async def read(self) -> Record:
        """Returns what is there now."""

    async def write(self, over: Record, claim: Claim) -> Record | None:
        """Write `claim` where `over` still stands; returns what is there then. None: something else stands there."""

    async def close(self) -> None:
        """Let go of connections."""


# --- the rule ---------------------------------------------------------------------------------------------------------


class Contender:
    """One gateway in an election, told what it reads and writes and hears, each with the time."""

    def __init__(self, id_: str, address: str, *, now: float) -> None:
        self.id = id_
        self.address = address
        self.floor = 0  #: the highest epoch that the store had or anybody followed
        self.trouble: str | None = None
        self.since_s = now
        self._standing: Standing = Nobody("the store has not answered yet")
        self._sits = False
        self._epoch = 0  # in which we sit, or sat last
        self._renewed_s = self._followed_s = self._heard_s = self._rests_until_s = -math.inf
        self._asked_s = now
        self._failed = False
        self._record: Record | None = None  # as it was read or written last
        self._seen_s = self._looked_s = now  # since when it is known to be so, without a gap, and until when

    # --- what it is told ------------------------------------------------------------------------------------------

    def asks(self, now: float) -> None:
        """The store is asked."""
        self._asked_s, self._failed = now, False

    def saw(self, record: Record, now: float) -> None:
        """The store's answer, which is here since `now`."""
        if self._record is None or record.version != self._record.version or now > self._looked_s + STOP_S:
            self._record, self._seen_s = record, now
        self._looked_s = now
        self.floor = max(self.floor, record.epoch)
        if record.epoch > self._epoch or (record.epoch == self._epoch and record.id not in ("", self.id)):
            self._sits = False  # another was elected
        if self.claim(now) is None:  # else the trouble with the last claim is there until this one is taken
            self.trouble = self._forgotten(record)
        self.at(now)

    def wrote(self, record: Record, sent_s: float, now: float) -> None:
        """The store took our claim, which was sent at `sent_s`."""
        self.at(now)
        self._record, self.trouble = record, None
        self._seen_s = self._looked_s = now
        goes_on = self._sits and record.epoch == self._epoch
        begins = record.epoch > self._epoch and record.epoch >= self.floor and self.stands(now)
        self.floor = max(self.floor, record.epoch)
        if record.id == self.id and (goes_on or begins) and now < sent_s + STOP_S:
            self._sits, self._epoch, self._renewed_s = True, record.epoch, sent_s
        self.at(now)

    def failed(self, why: str, now: float) -> None:
        """The store did not do what it was asked for."""
        self.trouble, self._failed = why, True
        self.at(now)

    def at_least(self, epoch: int) -> None:
        """Somebody has followed `epoch`."""
        self.floor = max(self.floor, epoch)

    def followed(self, at_s: float, now: float) -> None:
        """All that this decider knows have answered what was sent them at `at_s`. It brings back nothing that ended."""
        self.at(now)
        if self._sits:
            self._followed_s = max(self._followed_s, at_s)

    def hears(self, at_s: float) -> None:
        """A decider said at `at_s` that it leads."""
        self._heard_s = max(self._heard_s, at_s)

    def steps_down(self, now: float, *, rest_s: float = REST_S) -> None:
        """Lead no more, and let others go first for `rest_s`."""
        self._sits = False
        self._rests_until_s = now + rest_s
        self.at(now)

    # --- what follows from it -------------------------------------------------------------------------------------

    @property
    def seen(self) -> Record:
        """What is in the store, as was read or written last."""
        return self._record or Record()

    @property
    def until_s(self) -> float:
        """How long it leads if nothing more is heard."""
        if not self._sits:
            return -math.inf
        followed_s = self._followed_s if self.floor <= self._epoch else -math.inf  # some follow another already
        return max(self._renewed_s, followed_s) + STOP_S

    def leads(self, now: float) -> int | None:
        """Returns the epoch if this gateway may decide `now`, else None."""
        return self._epoch if self._sits and now < self.until_s else None

    def stands(self, now: float) -> bool:
        """Whether it would take the chair."""
        return now >= self._rests_until_s

    def at(self, now: float) -> Standing:
        """Returns how it stands `now`."""
        if self._sits and now >= self.until_s:
            self._sits = False
        standing = self._stands_as(now)
        if standing != self._standing:
            self._standing, self.since_s = standing, now
        return standing

    def claim(self, now: float) -> Claim | None:
        """Returns what is to be written over the record that was seen last; None: nothing."""
        self.at(now)
        if self._sits:
            # What has a lower epoch was brought back by a store that lost the rest: it is written over at once.
            return Claim(self.id, self.address, self._epoch if self.floor <= self._epoch else self.floor + 1)
        if self._record is None or not self.stands(now) or now < self._free_s(self._record):
            return None
        return Claim(self.id, self.address, self.floor + 1)

    def given_back(self) -> Claim:
        """Returns what is to be written over our record when we are done."""
        return Claim("", "", max(self._epoch, self.floor))

    def asks_again_s(self) -> float:
        """When the store is to be asked next."""
        if self._sits:
            return self._asked_s + (LOOK_S if self._failed else RENEW_S)
        again_s = self._asked_s + LOOK_S
        if self._record is not None and not self._failed:
            free_s = max(self._free_s(self._record), self._rests_until_s)
            if self._asked_s < free_s < again_s:
                return free_s
        return again_s

    def _free_s(self, record: Record) -> float:
        """From when on the chair may be taken, if nothing changes."""
        if record.version and not record.id and record.epoch >= self.floor:
            return -math.inf  # it was given back
        return max(self._seen_s, self._heard_s) + TTL_S

    def _stands_as(self, now: float) -> Standing:
        record, before = self._record, self._standing
        if self._sits:
            return Leads(self._epoch)
        if record is None:
            return Nobody(self.trouble or "the store has not answered yet")
        if record.id == self.id:
            return Nobody(f"this gateway decided, and decides no more{self._because()}")
        if record.id and (record.epoch >= self.floor or now >= self._heard_s + TTL_S):
            # One of a lower epoch was elected by a store that had forgotten. Whoever dials it tells it of the higher.
            return Follows(record.address, record.epoch)
        if isinstance(before, Follows) and (not record.version or record.epoch < before.epoch):
            return before  # the store has forgotten: that does not change who decides
        if record.version and not record.id:
            return Nobody(f"the last one gave its place back{self._because()}")
        return Nobody(self.trouble or "nobody was elected yet")

    def _because(self) -> str:
        return f": {self.trouble}" if self.trouble else ""

    def _forgotten(self, record: Record) -> str | None:
        if record.epoch >= self.floor:
            return None
        has = f"it has epoch {record.epoch}" if record.version else "it is empty"
        return f"the store has forgotten what was written last: {has}, and {self.floor} was there before"
