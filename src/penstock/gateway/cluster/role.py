"""The role of this gateway in its group: it leads, stands by, or decides alone.

The election determines which gateway decides. If it is another one, a link to it shows that it is there. If nobody
has been found for `alone_after`, this gateway decides alone for its own workers, with its part of slots and limits,
and goes on looking; as soon as there is a decider, the group is one queue again.

A decider checks before each batch of facts whether it still leads, because a process that was stopped for a while
hears its links before its timers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

import penstock
from penstock.config.sections.share import ShareSection
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.phrases import seconds
from penstock.gateway.cluster.edge_table import Table, TurnedAway
from penstock.gateway.cluster.leader_link import LeaderLink
from penstock.gateway.cluster.listener import Dialler, GroupListener
from penstock.gateway.cluster.operator_orders import OperatorOrders
from penstock.share.edge import Edge
from penstock.share.election import Election, Follows, Leads, Standing
from penstock.share.messages import PROTOCOL, AnswerMade, Down, EdgeStanding, Frame, Heard, Hello, OperatorsSaid

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
FAULT_S: Final = 0.5  # before a task that failed unexpectedly is restarted; doubles
FAULT_S_MAX: Final = 15.0
STEADY_S: Final = 30.0  # a fault after so long counts as the first
THERE_S: Final = 60.0  # a gateway that is gone may be cut off: it counts for so long
GATEWAYS: Final = 2  # until one is met: one that decides, and this one
REFUSED_SHOWN_S: Final = 60.0  # a refused edge is in the headline for so long after its last try
GONE_S: Final = 1.0  # a leader that hands over was heard in this time; one that died is replaced after 2 to 3.5 s

Role = Literal["leads", "stands_by", "alone", "looks"]


class GroupNow(msgspec.Struct, frozen=True):
    """Status of the group, as this gateway knows it."""

    name: str
    address: str
    role: Role
    decider: str | None  #: the address of the gateway that decides; None: none that this one knows
    since_s: float  #: for how long it has been so
    epoch: int
    gateways: int  #: as last known
    election: str  #: the election's store
    trouble: str | None  #: trouble
    refused: list[TurnedAway]  #: the latest last; seconds ago

    @property
    def sentence(self) -> str:
        """Returns the trouble in words, or an empty text."""
        why = f": {self.trouble}" if self.trouble else ""
        if self.role == "alone":
            part = f"1/{self.gateways} of slots and limits"
            return f"This gateway decides alone, with {part}, for {seconds(self.since_s)}{why}."
        if self.role == "looks":
            return f"Nobody decides that this gateway knows, for {seconds(self.since_s)}{why}."
        latest = self.refused[-1] if self.refused else None
        if latest is not None and latest.at_s < REFUSED_SHOWN_S:
            return f"An edge at {latest.where} was refused: {latest.why}."
        return ""


class GroupRole:
    """Changes the role by election and links."""

    def __init__(
        self,
        share: ShareSection,
        table: Table,
        election: Election,
        listener: GroupListener,
        dial: Dialler,
        *,
        events: EventLog,
        orders: OperatorOrders,
        now: Callable[[], float],
        drains: Callable[[], bool],
    ) -> None:
        self._share = share
        self._table = table
        self._election = election
        self._listener = listener
        self._events = events
        self.orders = orders  #: of operators
        self._now = now
        self._drains = drains
        self.role: Role = "looks"
        self._since_s = self._seen_s = now()  # when there was a decider, the last time
        self._edge = Edge(remembers=False)  # one that carries nothing
        self._group: dict[str, float] = {}  # gateways, and when each was there while others were heard of
        self._link = LeaderLink(
            dial, self._edge, hello=self._hello, heard=self._heard, now=now, linked=self._linked, lost=self._lost
        )
        self._called = f"{share.called}/"  # as an edge
        self._link_s = self._echo_s = 0.0
        self._followed = ""  # the epoch followed last
        self._tasks: list[asyncio.Task[None]] = []
        table.role = self
        table.answers.tell_decider = self._link.say

    async def start(self) -> None:
        """Take part. OSError: the port is taken."""
        await self._listener.start()
        self._since_s = self._seen_s = self._now()
        loop = asyncio.get_running_loop()
        works = (lambda: self._election.run(self._changed), self._watch)
        self._tasks = [loop.create_task(self._lasting(work)) for work in works]

    async def close(self) -> None:
        """Take part no longer."""
        await self._election.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()
        await self._listener.close()

    def step_down(self) -> str:
        """Let another gateway decide. Returns why that can't be; empty: another one will."""
        if self.role != "leads":
            return "This gateway does not decide for all."
        if self._share.elect.static is not None:
            return "share.elect.static names this gateway: no other may decide."
        if self.gateways < 2:
            return "No other gateway is there to decide."
        self._election.step_down()
        return ""

    @property
    def decides(self) -> bool:
        """Whether this gateway decides about its own requests."""
        return self.role in ("leads", "alone")

    @property
    def epoch(self) -> int:
        """The epoch of the decider that it follows, or of its own."""
        return self._table.decider.epoch if self.decides else self._edge.epoch

    @property
    def gateways(self) -> int:
        """How many there are, or were when that was last known: those of the last minute, and this one."""
        return len(self._group) or GATEWAYS

    @property
    def leader(self) -> str | None:
        """The address of the decider, if it is another gateway that can be reached."""
        return self._link.address if self.role == "stands_by" else None

    def now(self) -> GroupNow:
        """Returns the status of the group."""
        now, standing = self._now(), self._election.standing
        trouble = self._link.trouble or self._election.trouble or getattr(standing, "why", "")
        ours = self._share.place
        return GroupNow(
            name=self._share.called,
            address=ours,
            role=self.role,
            decider=ours if self.decides else self.leader,
            since_s=now - self._since_s,
            epoch=self.epoch,
            gateways=self.gateways,
            election=self._election.where,
            trouble=trouble or None,
            refused=[msgspec.structs.replace(one, at_s=now - one.at_s) for one in self._table.refusals],
        )

    # --- from the election ----------------------------------------------------------------------------------------

    def _changed(self, standing: Standing) -> None:
        decider = self._table.decider
        match standing:
            case Leads(epoch):
                if self.role == "leads" and decider.epoch == epoch:
                    decider.go_on()
                    return
                followed = max(self._edge.epoch, decider.epoch)
                if epoch <= followed:
                    self._election.at_least(max(followed, epoch + 1))  # and it reports again
                    return
                if self.role == "leads":
                    self._table.lead(epoch)
                    decider.go_on()
                    self._events.note("share", f"this gateway decides for all still, epoch {epoch}")
                    return
                silent = self._silent()
                self._step_down()
                self._link.to("")
                self._turn("leads", f"this gateway decides for all, epoch {epoch}")
                self._followed = self._share.place
                self._table.lead(epoch, self._edge.edges, silent=silent)
            case Follows(address, epoch):
                self._seen_s = self._now()  # it was elected just now, or was there when this gateway came
                if self.role == "leads":
                    self._step_down()
                    self._turn("looks", f"this gateway decides no more: {address} does")
                if address == self._share.place:
                    return  # left by this gateway's previous life
                if self.role != "alone":
                    self._table.obey(address, epoch)
                self._link.to(address)
            case _:
                if self.role == "leads":
                    decider.hold()

    def _silent(self) -> list[str]:
        """Returns the edges that announce nothing: this process, and all of a leader that died."""
        if self._now() - self._seen_s <= GONE_S:
            return [self._called]
        edges = [*self._edge.edges, self._called]
        # Every gateway except the leader has its first process, called `NAME/`, among the edges.
        return [self._called, *(name for name in edges if f"{name.rpartition('/')[0]}/" not in edges)]

    def superseded(self, epoch: int) -> None:
        """An edge has followed `epoch`."""
        self._election.at_least(epoch)

    def check(self) -> None:
        """Hold the decider unless this gateway may decide now."""
        if self.role == "leads" and self._election.leads() is None and self._table.decider.phase == "deciding":
            self._table.decider.hold()

    # --- from the link to the decider -----------------------------------------------------------------------------

    def _hello(self) -> Hello:
        follows, epoch = self._followed, max(self._edge.epoch, self._table.decider.epoch)
        return Hello(PROTOCOL, penstock.__version__, self._called, epoch, self._table.shared_hash, os.getpid(), follows)

    def _linked(self) -> None:
        """The decider is there."""
        self._seen_s = self._now()
        self._followed = self._link.address
        if self.role == "alone":
            self._step_down()
        self.orders.stand_by()
        self._link.say(self.orders.message)
        self._table.answers.tell(self._link.say)
        self._turn("stands_by", f"{self._link.address} decides, epoch {self._edge.epoch}")
        self._count(self._now())
        self._table.obey(self._link.address, self._edge.epoch)

    def _lost(self) -> None:
        if not self._link.address:
            return  # this gateway has closed it
        self._election.look_now()
        if self.role == "stands_by":
            self._turn("looks", f"{self._link.address}, which decides, is not there: {self._link.trouble}")

    def _heard(self, frame: Frame[Down]) -> None:
        now = self._now()
        _, others = self._edge.take(frame, now=now)
        for message in others:
            match message:
                case Heard():
                    self._link_s = now - message.sent_s
                    if message.at_s:
                        self._is_there(now, message.at_s)
                case OperatorsSaid():
                    self.orders.heard(message)
                case AnswerMade():
                    self._table.answers.heard(message, None)

    def _is_there(self, now: float, at_s: float) -> None:
        """The decider reports that it decides."""
        self._echo_s, self._seen_s = at_s, now
        self._election.hears(now)
        if self.role == "alone":  # the decider was not sure for a while
            self._linked()

    # --- from the clock -------------------------------------------------------------------------------------------

    async def _lasting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` again whenever it fails: an unexpected error must not cut this gateway off for good."""
        pause_s = 0.0
        while True:
            began_s = self._now()
            try:
                await work()
            except Exception:
                is_first = pause_s == 0.0 or self._now() - began_s > STEADY_S
                pause_s = FAULT_S if is_first else min(2 * pause_s, FAULT_S_MAX)
                logger.exception("share: unexpected error; restarting in %g s", pause_s)
                self._events.note("share", f"unexpected error (see the log); restarting in {pause_s:g} s")
            else:
                return  # it was closed
            await asyncio.sleep(pause_s)

    async def _watch(self) -> None:
        while True:
            due_s = self._now() + LOOK_S
            await asyncio.sleep(LOOK_S)
            now = self._now()
            lag_s = now - due_s
            self.check()
            self._count(now)
            if self.role == "leads":
                self._election.followed(self._table.followed_s())
                self.orders.look(self._table.decider.epoch)
                self._table.send_orders(self.orders.message)
                if self._table.decider.phase != "holding":
                    self._seen_s = now
            elif self._link.is_linked:
                self._report(now, lag_s)
            if self.role != "alone" and now - self._seen_s > self._share.alone_after:
                self._be_alone(now)

    def _count(self, now: float) -> None:
        """Count the gateways. While none can be heard of, the count stays."""
        if self.role not in ("leads", "stands_by"):
            return
        names = [member.name for member in self._table.members()] if self.role == "leads" else self._edge.edges
        there = {name.rpartition("/")[0] for name in (*names, self._called)}
        if self.role == "stands_by" and len(there) == 1:
            there.add(self._link.address)  # the decider's name is not known yet
        else:
            self._group.pop(self._link.address, None)
        self._group |= dict.fromkeys(there, now)
        for name in [name for name, at_s in self._group.items() if now - at_s > THERE_S]:
            del self._group[name]

    def _report(self, now: float, lag_s: float) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = used.ru_utime + used.ru_stime
        self._link.say(EdgeStanding(now, self._link_s, max(0.0, lag_s), cpu_s, echo_s=self._echo_s))

    def _be_alone(self, now: float) -> None:
        """There has been no decider for too long."""
        if self._drains():
            return
        epoch = max(self._edge.epoch, self._table.decider.epoch) + 1
        why = self._link.trouble or self._election.trouble or "nobody was elected"
        self._step_down()
        part = f"1/{self.gateways} of slots and limits"
        self._turn("alone", f"this gateway decides alone, with {part}: {why}", bad=True)
        self._followed = self._share.place
        self._table.lead(epoch, self._table.worker_names, alone=self.gateways)
        self._seen_s = now

    def _step_down(self) -> None:
        if self._table.decider.phase != "idle":
            self._table.step_down()

    def _turn(self, role: Role, words: str, *, bad: bool = False) -> None:
        self.role, self._since_s = role, self._now()
        if bad:
            logger.error("share: %s", words)
        self._events.note("share", words)
