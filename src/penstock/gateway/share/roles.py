"""What is this gateway, among those that share: does it decide for all, does it stand by, or does it decide alone?

The election says who decides. Where that is another gateway, a link to it shows that it is there. Where nobody has been
found for `alone_after`, this gateway decides alone for its own workers, with its part of the slots and limits, and goes
on looking; as soon as there is a decider again it is one queue again.

A decider asks before each batch of facts whether it still may (`awake`): a process that was stopped for a while hears
its links before its timers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

import penstock
from penstock.config.sections.share import ShareSection
from penstock.gateway.admin.events import EventLog
from penstock.gateway.share.dial import Dialler
from penstock.gateway.share.door import Door
from penstock.gateway.share.outward import Outward
from penstock.gateway.share.standing import Role, ShareNow
from penstock.gateway.share.words import OperatorWords
from penstock.gateway.workers.office import Office
from penstock.share.edge import Edge
from penstock.share.election import Election, Follows, Leads, Standing
from penstock.share.messages import PROTOCOL, AnswerMade, Down, EdgeStanding, Frame, Heard, Hello, OperatorsSaid

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.25
FAULT_S: Final = 0.5  # before what failed by a fault of ours is begun again; doubles
FAULT_S_MAX: Final = 15.0
STEADY_S: Final = 30.0  # that it went well until a fault: then that one is the first
THERE_S: Final = 60.0  # a gateway that is gone may be cut off: it counts for so long
NEVER_TOLD: Final = 2  # gateways, as long as none was met: one that decides, and this one


class GroupRole:
    """Turns from one role to another as election and links say."""

    def __init__(
        self,
        share: ShareSection,
        office: Office,
        election: Election,
        door: Door,
        events: EventLog,
        *,
        words: OperatorWords,
        now: Callable[[], float],
        drains: Callable[[], bool],
    ) -> None:
        self._share = share
        self._office = office
        self._election = election
        self._door = door
        self._events = events
        self._words = words
        self._now = now
        self._drains = drains
        self.role: Role = "looks"
        self._since_s = self._seen_s = now()  # when there was a decider, the last time
        self._edge = Edge(remembers=False)  # one that carries nothing
        self._group: dict[str, float] = {}  # gateways, and when each was there, while this one heard of the others
        self._outward = Outward(
            Dialler(share),
            self._edge,
            hello=self._hello,
            heard=self._heard,
            act=lambda _: None,
            now=now,
            linked=self._linked,
            lost=self._lost,
        )
        self._called = f"{share.called}/"  # as an edge
        self._link_s = self._echo_s = 0.0
        self._followed = ""  # whose epoch was followed last
        self._tasks: list[asyncio.Task[None]] = []
        self.beside: Callable[[], str | None] = lambda: None  #: what else is wrong between gateways, in words
        office.awake = self._may
        office.operators_said = words.heard
        office.answers.tell_decider = self._outward.say
        door.superseded = election.at_least

    async def start(self) -> None:
        """Take part. OSError: the port is taken."""
        await self._door.start()
        self._since_s = self._seen_s = self._now()
        loop = asyncio.get_running_loop()
        works = (lambda: self._election.run(self._changed), self._watch)
        self._tasks = [loop.create_task(self._lasting(work)) for work in works]

    def drain(self) -> None:
        """The gateway ends: another one shall decide, where there is any."""
        self.step_down()

    async def close(self) -> None:
        """Take part no more."""
        await self._election.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outward.close()
        await self._door.close()

    def step_down(self) -> str:
        """Let another one decide. Returns why it can't be; empty: another one will."""
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
        """Whether this gateway decides about what it is asked."""
        return self.role in ("leads", "alone")

    @property
    def gateways(self) -> int:
        """How many there are, or were when that was last known: those of the last minute, and this one."""
        return len(self._group) or NEVER_TOLD

    @property
    def leader(self) -> str | None:
        """Where the whole is known, if that is elsewhere and can be reached."""
        return self._outward.address if self.role == "stands_by" else None

    def now(self) -> ShareNow:
        """How the group stands."""
        now, standing = self._now(), self._election.standing
        trouble = self._outward.trouble or self._election.trouble or getattr(standing, "why", "") or self.beside()
        ours = self._share.place
        return ShareNow(
            name=self._share.called,
            address=ours,
            role=self.role,
            decider=ours if self.decides else self.leader,
            since_s=now - self._since_s,
            epoch=self._office.decider.epoch if self.decides else self._edge.epoch,
            gateways=self.gateways,
            election=self._election.where,
            trouble=trouble or None,
            refused=[msgspec.structs.replace(one, at_s=now - one.at_s) for one in self._door.refusals],
        )

    # --- from the election ----------------------------------------------------------------------------------------

    def _changed(self, standing: Standing) -> None:
        decider = self._office.decider
        match standing:
            case Leads(epoch):
                if self.role == "leads" and decider.epoch == epoch:
                    self._office.go_on()
                    return
                followed = max(self._edge.epoch, decider.epoch)
                if epoch <= followed:
                    self._election.at_least(max(followed, epoch + 1))  # and it says so again
                    return
                if self.role == "leads":
                    self._office.lead(epoch)
                    self._office.go_on()
                    self._events.note("share", f"this gateway decides for all still, epoch {epoch}")
                    return
                self._step_down()
                self._outward.to("")
                self._turn("leads", f"this gateway decides for all, epoch {epoch}")
                self._followed = self._share.place
                self._office.lead(epoch, [name for name in self._edge.edges if name != self._called])
            case Follows(address, epoch):
                self._seen_s = self._now()  # somebody was elected just now, or was there when this gateway came
                if self.role == "leads":
                    self._step_down()
                    self._turn("looks", f"this gateway decides no more: {address} does")
                if address == self._share.place:
                    return  # what was left of an earlier life of ours
                if self.role != "alone":
                    self._office.obey(address, epoch)
                self._outward.to(address)
            case _:
                if self.role == "leads":
                    self._office.hold()

    def _may(self) -> None:
        """Look whether this gateway may decide, before it does."""
        if self.role == "leads" and self._election.leads() is None and self._office.decider.phase == "deciding":
            self._office.hold()

    # --- from the link to the decider -----------------------------------------------------------------------------

    def _hello(self) -> Hello:
        follows, epoch = self._followed, max(self._edge.epoch, self._office.decider.epoch)
        return Hello(
            PROTOCOL, penstock.__version__, self._called, epoch, self._office.shared_hash, os.getpid(), follows
        )

    def _linked(self) -> None:
        """The decider is there."""
        self._seen_s = self._now()
        self._followed = self._outward.address
        if self.role == "alone":
            self._step_down()
        self._words.stand_by()
        self._outward.say(self._words.message)
        self._office.answers.tell(self._outward.say)
        self._turn("stands_by", f"{self._outward.address} decides, epoch {self._edge.epoch}")
        self._count(self._now())
        self._office.obey(self._outward.address, self._edge.epoch)

    def _lost(self) -> None:
        if not self._outward.address:
            return  # this gateway has hung up
        self._election.look_now()
        if self.role == "stands_by":
            self._turn("looks", f"{self._outward.address}, which decides, is not there: {self._outward.trouble}")

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
                    self._words.heard(message)
                case AnswerMade():
                    self._office.answers.heard_above(message)

    def _is_there(self, now: float, at_s: float) -> None:
        """The decider says that it decides."""
        self._echo_s, self._seen_s = at_s, now
        self._election.hears(now)
        if self.role == "alone":  # it was not sure for a while
            self._linked()

    # --- from the clock -------------------------------------------------------------------------------------------

    async def _lasting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` again whenever it fails: by a fault of ours no gateway is to lose sight of the others for good."""
        pause_s = 0.0
        while True:
            began_s = self._now()
            try:
                await work()
            except Exception:
                is_first = pause_s == 0.0 or self._now() - began_s > STEADY_S
                pause_s = FAULT_S if is_first else min(2 * pause_s, FAULT_S_MAX)
                logger.exception("share: a fault of ours; it is begun again in %g s", pause_s)
                self._events.note("share", f"a fault of ours, which the log tells; begun again in {pause_s:g} s")
            else:
                return  # it was closed
            await asyncio.sleep(pause_s)

    async def _watch(self) -> None:
        while True:
            due_s = self._now() + LOOK_S
            await asyncio.sleep(LOOK_S)
            now = self._now()
            lag_s = now - due_s
            self._may()
            self._count(now)
            if self.role == "leads":
                self._election.followed(self._door.followed_s())
                self._words.look(self._office.decider.epoch)
                self._office.tell_gateways(self._words.message)
                if self._office.decider.phase != "holding":
                    self._seen_s = now
            elif self._outward.is_linked:
                self._say_standing(now, lag_s)
            if self.role != "alone" and now - self._seen_s > self._share.alone_after:
                self._be_alone(now)

    def _count(self, now: float) -> None:
        """Which gateways are there? Where nobody can be heard of, it stays as it was."""
        if self.role not in ("leads", "stands_by"):
            return
        names = [place.name for place in self._office.places()] if self.role == "leads" else self._edge.edges
        there = {name.rpartition("/")[0] for name in (*names, self._called)}
        if self.role == "stands_by" and len(there) == 1:
            there.add(self._outward.address)  # whoever decides has not said yet what it is called
        else:
            self._group.pop(self._outward.address, None)
        self._group |= dict.fromkeys(there, now)
        for name in [name for name, at_s in self._group.items() if now - at_s > THERE_S]:
            del self._group[name]

    def _say_standing(self, now: float, lag_s: float) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = used.ru_utime + used.ru_stime
        self._outward.say(EdgeStanding(now, self._link_s, max(0.0, lag_s), cpu_s, 0, 0, 0, self._echo_s))

    def _be_alone(self, now: float) -> None:
        """Nobody has decided for too long."""
        if self._drains():
            return
        epoch = max(self._edge.epoch, self._office.decider.epoch) + 1
        why = self._outward.trouble or self._election.trouble or "nobody was elected"
        self._step_down()
        part = f"1/{self.gateways} of slots and limits"
        self._turn("alone", f"this gateway decides alone, with {part}: {why}", bad=True)
        self._followed = self._share.place
        self._office.lead(epoch, self._office.worker_names, alone=self.gateways)
        self._seen_s = now

    def _step_down(self) -> None:
        if self._office.decider.phase != "idle":
            self._office.step_down()

    def _turn(self, role: Role, words: str, *, bad: bool = False) -> None:
        self.role, self._since_s = role, self._now()
        if bad:
            logger.error("share: %s", words)
        self._events.note("share", words)
