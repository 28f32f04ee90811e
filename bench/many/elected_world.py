"""A world of gateways that elect their leader. Deaths, cuts, a store that vanishes; alone, and one queue again.

Every gateway carries requests and may decide. Which one does, the real rule says (`Contender`), over a store in virtual
time; what the one that is elected takes over, its edges announce. What happens between gateways is what they do over
sockets: look for the decider, dial it, follow it; without one for too long, decide alone with a part of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from bench.many.link import IN_PROCESS
from bench.many.many_world import NOTICED_S, Fleet, ManyWorld
from bench.many.processes import Deciding, EdgeLink, SimulatedGateway
from bench.many.store import ElectionStore
from penstock.share.election import Contender, Follows
from penstock.share.messages import Hello
from penstock.sim.engine.values import Progress
from penstock.sim.world.workload import ArrivalSource
from penstock.sim.world.world import WorldObserver, scheduler_for
from penstock.sim.world.world_values import EngineNode, SimulatedJourney, WorldSettings

TICK_S = 0.25  # between a gateway's checks whom to follow
SILENT_S = 3.0  # both ends give a cut line up after so long
DIAL_S = 1.0  # an edge's wait for acceptance
STORE_WAY_S = 0.002  # to the store, and back again
ATTEMPT_S = 1.0  # a gateway's wait for the store
ALONE_AFTER_S = 5.0  # without a decider for so long, it decides alone
KNOWN_S = 10.0  # an edge whose link broke counts so long


class What(StrEnum):
    """A kind of failure."""

    DIES = "dies"  #: a gateway's process, and another one stands there later
    CUT_OFF = "cut off"  #: a gateway from all others and from the store, not from clients and engines
    STORE_GONE = "store gone"  #: it answers no gateway
    STORE_FORGETS = "store forgets"  #: the same, and then it is empty


@dataclass(frozen=True)
class Harm:
    """A failure for a while."""

    what: What
    at_s: float
    for_s: float
    gateway: int | None = None  #: None: the decider at that time


class Voter(SimulatedGateway):
    """A gateway that may be elected."""

    deciding: Deciding
    contender: Contender

    def __init__(self, number: int, world: ElectedWorld) -> None:
        super().__init__(number, world, world.carry_out, skew_s=world.skew_s(), bands=world.bands)
        self._world = world
        self.lives = 0
        self.cut_off = False
        self.alone = False
        self.dials: EdgeLink | None = None  #: to a decider that has not taken it yet
        self.followed: Deciding | None = None  #: whose epoch it followed last
        self.unled_s = 0.0  #: since when its edge follows nobody, by the world's time
        self.heard_s: dict[int, float] = {}  #: by a decider: of each edge, when it last gave a sign of life
        self.asked = 0  #: how often the store was asked: what comes of an earlier question is void

    def follow(self, link: EdgeLink, epoch: int) -> None:
        if self.alone and link.to is not self.deciding:
            self._world.end_alone(self)
        self.dials, self.followed = None, link.to
        super().follow(link, epoch)


class ElectedWorld(ManyWorld):
    """One run with gateways that elect their decider."""

    def __init__(
        self,
        settings: WorldSettings,
        sources: Iterable[ArrivalSource],
        *,
        fleet: Fleet,
        harms: Iterable[Harm] = (),
        sink: Callable[[SimulatedJourney], None] | None = None,
        watch: WorldObserver | None = None,
        progress: Callable[[float, float], None] | None = None,
    ) -> None:
        super().__init__(settings, sources, fleet=fleet, sink=sink, watch=watch, progress=progress)
        self.store = ElectionStore()
        self.harms = tuple(harms)
        self.members = [Voter(number, self) for number in range(fleet.gateways)]
        self.gateways = list(self.members)
        self.begun_twice = 0  #: answers that a client had begun to read, and that began again
        self.elections: list[tuple[float, int, int]] = []  #: when, who, epoch
        self.alone_s: list[tuple[float, int]] = []  #: when somebody began to decide alone, and who
        self.deciders_followed: list[tuple[float, int]] = []  #: each second, how many; 0: a gateway follows none
        self.came_to: dict[str, int] = {}  #: requests, by the gateway that carried them
        self.were_cut_off: set[int] = set()
        self.forgot_s = -math.inf  #: when the store last came back empty
        self.sent_s: list[float] = []  #: when requests were sent to engines

    # --- from the start ---------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        for member in self.members:
            self._come(member)
        for harm in self.harms:
            self.at(harm.at_s, partial(self._harm, harm))

    def _come(self, member: Voter) -> None:
        """A new process: it has forgotten what it decided, and whom it followed."""
        member.start_again()
        member.lives += 1
        member.unled_s, member.heard_s = self.now, {}
        member.alone, member.dials, member.followed = False, None, None
        member.contender = Contender(f"{member.name}.{member.lives}", member.name, now=member.now())
        scheduler = scheduler_for(self.settings)
        member.deciding = self._decide(member.name, scheduler, skew_s=member.skew_s, part=1, leads=False)
        member.deciding.asks = partial(self._may_it_still, member)
        life = member.lives
        self.at(self.now + TICK_S * self._random.random(), partial(self._tick, member, life))
        self.at(self.now + TICK_S * self._random.random(), partial(self._ask_store, member, life, member.asked))

    # --- the election -------------------------------------------------------------------------------------------------

    def _lives(self, member: Voter, life: int) -> bool:
        return member.alive and member.lives == life

    def _store_answers(self, member: Voter) -> bool:
        return self.store.up and not member.cut_off

    def _ask_store(self, member: Voter, life: int, asked: int) -> None:
        if not self._lives(member, life) or member.asked != asked:
            return
        member.asked += 1
        member.contender.asks(member.now())
        self._step_store(member, life, member.asked, self._read)

    def _step_store(self, member: Voter, life: int, asked: int, step: Callable[[Voter, int, int], None]) -> None:
        """One trip to the store and back, unless there is no way."""

        def came() -> None:
            if not self._lives(member, life) or member.asked != asked:
                return
            if self._store_answers(member):
                step(member, life, asked)
            else:
                self.at(self.now + ATTEMPT_S, failed)

        def failed() -> None:
            if self._lives(member, life) and member.asked == asked:
                member.contender.failed("the store does not answer", member.now())
                self._ask_again(member, life, asked)

        self.at(self.now + STORE_WAY_S, came)

    def _read(self, member: Voter, life: int, asked: int) -> None:
        contender, now = member.contender, member.now()
        contender.saw(self.store.record, now)
        claim = contender.claim(now)
        if claim is None:
            self._look(member)
            self._ask_again(member, life, asked)
            return
        seen = self.store.record

        def write(member: Voter, life: int, asked: int) -> None:
            written = self.store.write(seen, claim)
            if written is None:
                contender.saw(self.store.record, member.now())
            else:
                contender.wrote(written, now, member.now())
            self._look(member)
            self._ask_again(member, life, asked)

        self._step_store(member, life, asked, write)

    def _ask_again(self, member: Voter, life: int, asked: int) -> None:
        again_s = member.contender.asks_again_s() - member.skew_s
        self.at(max(again_s, self.now + STORE_WAY_S), partial(self._ask_store, member, life, asked))

    # --- who decides, and who follows whom --------------------------------------------------------------------------

    def _tick(self, member: Voter, life: int) -> None:
        if self._lives(member, life):
            self._note_signs_of_life(member)
            self._look(member)
            self.at(self.now + TICK_S, partial(self._tick, member, life))

    def _may_it_still(self, member: Voter) -> None:
        """Asked before each decision: a process that was out of reach learns of it here first."""
        decider = member.deciding.decider
        leads = decider.phase in ("gathering", "deciding") and not decider.alone
        if leads and member.contender.leads(member.now()) is None:
            decider.hold()

    def _look(self, member: Voter) -> None:
        """Lead if elected; else follow who was; without anybody for too long, decide alone."""
        contender, decider, now = member.contender, member.deciding.decider, member.now()
        epoch = contender.leads(now)
        standing = contender.at(now)
        target: Voter | None = None
        if epoch is not None:
            target = member
            if decider.phase == "idle" or decider.alone or decider.epoch != epoch:
                self._lead(member, epoch)
            elif decider.phase == "holding":
                decider.go_on()
        else:
            if decider.phase != "idle" and not decider.alone:
                decider.hold()
            if isinstance(standing, Follows):
                target = next(each for each in self.members if each.name == standing.address)
                if decider.phase != "idle" and not decider.alone and standing.epoch > decider.epoch:
                    self._stop(member)
        follows = member.link.to if member.link is not None and not member.alone else None
        if target is not None and follows is not target.deciding and member.dials is None:
            self._dial_member(member, target)
        if self._led(member):
            member.unled_s = self.now
        elif self.now > member.unled_s + ALONE_AFTER_S and not member.alone and epoch is None:
            self._alone(member)

    def _led(self, member: Voter) -> bool:
        """Whether it hears somebody who decides."""
        link = member.link
        if link is None or link.closed:
            return False
        if link.to is member.deciding:
            return link.to.decider.phase != "holding"
        leader = self._member_of(link.to)
        return leader is not None and self._reach(member, leader)

    def _lead(self, member: Voter, epoch: int) -> None:
        self.elections.append((self.now, member.number, epoch))
        decider = member.deciding.decider
        if decider.phase == "idle" or decider.alone:
            self._stop(member)
            member.alone, member.heard_s = False, {}
        decider.lead(epoch, expected=(member.edge_name,))

    def _stop(self, member: Voter) -> None:
        """It decides no more: what its edges hold is theirs to announce."""
        links, member.deciding.links = member.deciding.links, []
        if member.deciding.decider.phase != "idle":
            member.deciding.decider.step_down()
        for link in links:
            self._end_link(link)

    def _alone(self, member: Voter) -> None:
        self.alone_s.append((self.now, member.number))
        self._stop(member)
        if member.link is not None:
            self._hang_up_link(member.link)
        member.alone = True
        epoch = member.edge.epoch + 1
        member.deciding.decider.lead(epoch, expected=(member.edge_name,), alone=len(self.members))
        self._dial_member(member, member)

    # --- links --------------------------------------------------------------------------------------------------------

    def _reach(self, one: Voter, other: Voter) -> bool:
        return one is other or not (one.cut_off or other.cut_off)

    def _dial_member(self, member: Voter, target: Voter) -> None:
        if member.dials is not None:
            member.dials.close()
        wire = IN_PROCESS if member is target else self.fleet.wire
        link = EdgeLink(self, wire, self._random, member, target.deciding, greeted=self._greeted, refused=self._refused)
        member.dials = link
        if not target.alive or not self._reach(member, target):
            link.up.cut()
        self.at(self.now + DIAL_S, partial(self._give_up_dialling, member, link))

    def _give_up_dialling(self, member: Voter, link: EdgeLink) -> None:
        if member.dials is link:
            self._refused(link)

    def _refused(self, link: EdgeLink) -> None:
        member = self.members[link.gateway.number]
        if member.dials is link:
            member.dials = None
        self._hang_up_link(link)

    def _greeted(self, link: EdgeLink, hello: Hello) -> str | None:
        target = next((each for each in self.members if each.deciding is link.to), None)
        if target is None or not target.alive:
            return "nobody is here"
        decider = target.deciding.decider
        if decider.alone and link.gateway is target:
            return None
        if decider.alone or target.contender.leads(target.now()) is None or decider.phase in ("idle", "holding"):
            return "this gateway does not decide"
        followed = self.members[link.gateway.number].followed
        if hello.epoch > decider.epoch or (hello.epoch == decider.epoch and followed is not link.to):
            # One that decided alone took the same epoch that was elected: then neither is the higher one.
            target.contender.at_least(max(hello.epoch, decider.epoch + 1))
            self._ask_store(target, target.lives, target.asked)
            return "that epoch was followed under another decider"
        return None

    def end_alone(self, member: Voter) -> None:
        """It was taken by the one that decides for all: what it decided alone is announced there."""
        member.alone = False
        self._stop(member)

    def _hang_up_link(self, link: EdgeLink) -> None:
        """The edge leaves."""
        if link.closed:
            return
        link.close()
        if link.gateway.link is link:
            link.gateway.unlink()
        self.at(self.now + NOTICED_S, partial(link.to.left, link, dead=False))

    def _end_link(self, link: EdgeLink) -> None:
        """The decider leaves."""
        if not link.closed:
            link.close()
            self.at(self.now + NOTICED_S, partial(self._unlinked, link))

    def _unlinked(self, link: EdgeLink) -> None:
        member = self.members[link.gateway.number]
        if member.link is link:
            member.unlink()
            self._ask_store(member, member.lives, member.asked)
        if member.dials is link:
            member.dials = None

    def _note_signs_of_life(self, member: Voter) -> None:
        link = member.link
        if link is not None and not link.closed and link.to is not member.deciding:
            leader = self._member_of(link.to)
            if leader is not None and leader.alive and self._reach(member, leader):
                leader.heard_s[member.number] = self.now
                if leader.contender.leads(leader.now()) is not None:
                    member.contender.hears(member.now())
        if member.contender.leads(member.now()) is not None:
            known = {number: at_s for number, at_s in member.heard_s.items() if at_s > self.now - KNOWN_S}
            member.heard_s = known
            member.contender.followed(min(known.values(), default=self.now) + member.skew_s, member.now())

    def _member_of(self, deciding: Deciding) -> Voter | None:
        return next((each for each in self.members if each.deciding is deciding), None)

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def _harm(self, harm: Harm) -> None:
        member = self.members[harm.gateway] if harm.gateway is not None else self.decides()
        match harm.what:
            case What.DIES:
                if member.alive:
                    self._process_dies(member)
                    self.at(self.now + harm.for_s, partial(self._come, member))
            case What.CUT_OFF:
                if not member.cut_off:
                    self._cut_off(member, harm.for_s)
            case What.STORE_GONE | What.STORE_FORGETS:
                self.store.up = False
                self.at(self.now + harm.for_s, partial(self._store_back, forgets=harm.what is What.STORE_FORGETS))

    def decides(self) -> Voter:
        """The gateway that decides for all, as far as any does."""
        leads = [each for each in self.members if each.alive and each.deciding.decider.phase != "idle"]
        return max(leads or self.members, key=lambda each: (not each.alone, each.deciding.decider.epoch))

    def _store_back(self, *, forgets: bool) -> None:
        self.store.up = True
        if forgets:
            self.store.forget()
            self.forgot_s = self.now

    def _process_dies(self, member: Voter) -> None:
        link = member.link
        self._clients_lost(member)
        member.deciding.over = True
        self.deciders.remove(member.deciding)
        for each in [*member.deciding.links, *self._dialling(member)]:
            self._end_link(each)
        if link is not None and not link.closed and link.to is not member.deciding:
            link.close()
            self.at(self.now + NOTICED_S, partial(link.to.left, link, dead=False))
        if member.dials is not None:
            member.dials.close()

    def _dialling(self, target: Voter) -> list[EdgeLink]:
        return [each.dials for each in self.members if each.dials is not None and each.dials.to is target.deciding]

    def _lines(self, member: Voter) -> list[EdgeLink]:
        """Its open links to other gateways, in either role."""
        own = [member.link] if member.link is not None and member.link.to is not member.deciding else []
        others = [link for link in member.deciding.links if link.gateway is not member]
        return [link for link in (*own, *others) if not link.closed]

    def _cut_off(self, member: Voter, for_s: float) -> None:
        member.cut_off = True
        self.were_cut_off.add(member.number)
        lines = self._lines(member)
        for link in lines:
            link.up.cut()
            link.down.cut()
        self.at(self.now + min(for_s, SILENT_S), partial(self._silent, lines, gives_up=for_s > SILENT_S))
        self.at(self.now + for_s, partial(self._mend, member))

    def _silent(self, lines: list[EdgeLink], *, gives_up: bool) -> None:
        """The cut is over, or has been there for so long that both ends give their links up."""
        for link in lines:
            if link.closed:
                continue
            if gives_up:
                link.close()
                self._unlinked(link)
                link.to.left(link, dead=False)
            else:
                link.up.mend()
                link.down.mend()

    def _mend(self, member: Voter) -> None:
        member.cut_off = False

    # --- what is counted ----------------------------------------------------------------------------------------------

    def _send(self, journey: SimulatedJourney, node: EngineNode, life: int, lease: int) -> None:
        member = self._carriers[journey.job.id]
        self.came_to[journey.job.id] = member.number
        self.sent_s.append(self.now)
        super()._send(journey, node, life, lease)

    def _hear(self, heard: list[tuple[SimulatedJourney, int, int, Progress]]) -> None:
        for journey, lease, _, progress in heard:
            reads = journey.first_s is not None and journey.job.stream.streamed and not journey.outcome
            if progress.first and reads and journey.lease == lease and not journey.waits:
                self.begun_twice += 1
        super()._hear(heard)

    def _sample(self) -> None:
        alive = [each for each in self.members if each.alive]
        followed = [each.link.to if each.link is not None and self._led(each) else None for each in alive]
        self.deciders_followed.append((self.now, 0 if None in followed else len(set(followed))))
        super()._sample()
