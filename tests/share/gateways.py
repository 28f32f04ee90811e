"""Several gateways in virtual time: each a parent that may decide and edges that carry, and a store that says who does.

The store is a record that whoever leads renews each second, and that another one may take three seconds after; who
could not renew for two holds before that. What is tried here is what gateways do about it, not the election itself.
Gateways die with all they carry, parents alone, edges alone; links break; gateways are cut off from the store, from
each other or from all; the store goes away, and comes back empty. At the end all is healed, and all has to be served.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.share.decider import Phase
from tests.share.virtual import Chances, EdgeProcess, Engine, Line, Parent, SharedWorld

TTL_S = 3.0
HOLDS_AFTER_S = 2.0  # without a renewal
LOOK_S = 0.25  # between two looks of a gateway at the store
ALONE_AFTER_S = 5.0
NOTICES_S = 3.0  # at most, that a link is silent
STORE = "store"


@dataclass
class Troubles:
    """What happens to gateways, each about so often; and for how long at most."""

    gateway_dies_s: float = math.inf
    parent_dies_s: float = math.inf
    link_breaks_s: float = math.inf
    cut_s: float = math.inf  #: between two gateways, or one and the store, or one and all
    store_goes_s: float = math.inf
    lasts_s: float = 12.0


@dataclass
class Record:
    """What the store holds."""

    holder: Parent | None = None
    epoch: int = 0
    until_s: float = 0.0
    away_until_s: float = 0.0


@dataclass(eq=False)
class Gateway:
    """One machine."""

    name: str
    parent: Parent
    edges: list[str] = field(default_factory=list)
    leader: Parent | None = None  # as the store said last
    renewed_s: float = 0.0


def void(_made: object) -> None:
    """An event returns nothing."""


class Gateways(SharedWorld):
    """All of them."""

    makes_parents = True

    def __init__(
        self,
        *,
        seed: int,
        gateways: int,
        edges: int,
        engines: dict[str, int],
        chances: Chances,
        troubles: Troubles,
        settings: SchedulerSettings,
        until_s: float,
        kind: type[Scheduler] = CheckedScheduler,
    ) -> None:
        super().__init__(seed=seed, edges=0, engines=engines, chances=chances, settings=settings, kind=kind)
        self.troubles = troubles
        self.troubled_until_s = until_s
        self.record = Record()
        self.gateways: dict[str, Gateway] = {}
        self.followed: dict[str, tuple[int, Parent]] = {}  # by edge: the last epoch, and whose it was
        self._cut: dict[frozenset[str], float] = {}
        self.seen: dict[str, int] = {}  # how often what happened
        self.most_beyond = 0  # slots, in any engine
        self.paused_s = 0.0  # the longest time in which nothing was sent, though some waited
        self.sent_s = 0.0  # when something was sent last, or nothing waited
        self.is_strict = troubles.cut_s == troubles.link_breaks_s == troubles.store_goes_s == math.inf
        for number in range(gateways):
            name = f"g{number}"
            self.gateways[name] = gateway = Gateway(name, self._parent(name))
            for edge in range(edges):
                gateway.edges.append(f"{name}/w{edge}")
                self._start(gateway.edges[-1])
            self.at(self.random.random() * LOOK_S, partial(self._look, gateway))
        for what, every_s in (
            (self._gateway_dies, troubles.gateway_dies_s),
            (self._parent_dies, troubles.parent_dies_s),
            (self._link_breaks, troubles.link_breaks_s),
            (self._is_cut, troubles.cut_s),
            (self._store_goes, troubles.store_goes_s),
        ):
            if every_s < math.inf:
                self.at(every_s * self.random.random(), partial(self._again, what, every_s))

    def _parent(self, name: str) -> Parent:
        parent = self.parents[name] = Parent(self, name, leads=False)
        return parent

    # --- who leads ------------------------------------------------------------------------------------------------

    def reaches(self, one: str, other: str) -> bool:
        return one == other or self._cut.get(frozenset((one, other)), 0.0) <= self.now

    def _look(self, gateway: Gateway) -> None:
        """What a gateway does a few times a second: look at the record, renew it or claim it, and see to its edges."""
        parent, record = gateway.parent, self.record
        decider = parent.decider
        if parent.alive:
            leads = decider.phase is not Phase.IDLE and not decider.alone
            if self.now >= record.away_until_s and self.reaches(gateway.name, STORE):
                if record.holder is parent and leads:
                    gateway.renewed_s, record.until_s = self.now, self.now + TTL_S
                    if decider.phase is Phase.HOLDING:
                        decider.go_on()
                elif self.now >= record.until_s:
                    self._claim(gateway)
                elif leads:
                    self._noted("superseded")
                    self._steps_down(parent)
                gateway.leader = record.holder
            elif leads and self.now > gateway.renewed_s + HOLDS_AFTER_S and decider.phase is not Phase.HOLDING:
                self._noted("held")
                decider.hold()
            self._alone_or_not(gateway)
        for name in gateway.edges:
            self._see_to(gateway, self.edges[name])
        self.at(self.now + LOOK_S * (0.9 + 0.2 * self.random.random()), partial(self._look, gateway))

    def _claim(self, gateway: Gateway) -> None:
        followed = [self.edges[name].edge.epoch for name in gateway.edges]
        self.record.epoch = max(self.record.epoch, gateway.parent.decider.epoch, *followed) + 1
        self.record.holder, self.record.until_s = gateway.parent, self.now + TTL_S
        gateway.renewed_s = self.now
        self._noted("elected")
        if gateway.parent.decider.phase is not Phase.IDLE:
            self._steps_down(gateway.parent)
        gateway.parent.decider.lead(self.record.epoch, gateway.edges)

    def _alone_or_not(self, gateway: Gateway) -> None:
        decider, leader = gateway.parent.decider, gateway.leader
        if decider.alone:
            if leader is not None and leader is not gateway.parent and self._takes(gateway, leader):
                self._noted("alone no more")
                self._steps_down(gateway.parent)
            return
        own = [self.edges[name] for name in gateway.edges if self.edges[name].alive]
        if any(self.now > process.leaderless_s + ALONE_AFTER_S for process in own):
            self._noted("alone")
            epoch = max([decider.epoch, *[process.edge.epoch for process in own]]) + 1
            if decider.phase is not Phase.IDLE:
                self._steps_down(gateway.parent)
            decider.lead(epoch, gateway.edges, alone=len(self.gateways))

    def _takes(self, gateway: Gateway, leader: Parent) -> bool:
        leads = leader.decider.phase in (Phase.GATHERING, Phase.DECIDING) and not leader.decider.alone
        return leader.alive and self.reaches(gateway.name, leader.name) and leads

    def _steps_down(self, parent: Parent) -> None:
        lines = list(parent.lines.values())
        parent.decider.step_down()
        parent.lines.clear()
        for line in lines:
            self.at(self.now + self.delay(), partial(self._hangs_up, line))

    def _hangs_up(self, line: Line) -> None:
        if line.process.line is line:
            line.process.hang_up()

    def _see_to(self, gateway: Gateway, process: EdgeProcess) -> None:
        """Whether its edge is linked to the right one, and that one decides."""
        if not process.alive:
            return
        own, leader, line = gateway.parent, gateway.leader, process.line
        target = own if own.alive and own.decider.alone else leader
        if target is not None and (line is None or line.parent is not target) and self._may_dial(gateway, target):
            process.dial(target)
            line = process.line
        decided = process.is_decided and line is not None and line.parent.decider.phase is not Phase.HOLDING
        if decided:
            process.leaderless_s = math.inf
        elif process.leaderless_s == math.inf:
            process.leaderless_s = self.now

    def _may_dial(self, gateway: Gateway, target: Parent) -> bool:
        return target.alive and self.reaches(gateway.name, target.name)

    def dialled(self, line: Line) -> None:
        process, parent = line.process, line.parent
        if process.line is not line or not process.alive:
            return
        name = process.name.partition("/")[0]
        decider = parent.decider
        if not parent.alive or not self.reaches(name, parent.name) or decider.phase in (Phase.IDLE, Phase.HOLDING):
            process.line = None
            return
        epoch, whose = self.followed.get(process.name, (0, parent))
        if epoch > decider.epoch or (epoch == decider.epoch and whose is not parent):
            self._noted("raised")
            decider.lead(epoch + 1, alone=decider.alone)
            if self.record.holder is parent:
                self.record.epoch = epoch + 1
        self.followed[process.name] = decider.epoch, parent
        line.open()

    # --- what happens ---------------------------------------------------------------------------------------------

    def _noted(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def _again(self, what: object, every_s: float) -> None:
        if self.now >= self.troubled_until_s:
            return
        what()  # type: ignore[operator]
        self.at(self.now + every_s * (0.5 + self.random.random()), partial(self._again, what, every_s))

    def _lasts_s(self) -> float:
        return min(self.now + self.troubles.lasts_s * self.random.random(), self.troubled_until_s)

    def _some_gateway(self) -> Gateway:
        leads = [one for one in self.gateways.values() if one.parent is self.record.holder]
        return leads[0] if leads and self.random.random() < 0.6 else self.random.choice(list(self.gateways.values()))

    def _gateway_dies(self) -> None:
        gateway = self._some_gateway()
        self._noted("gateway died")
        for name in gateway.edges:
            if self.edges[name].alive:
                self.die(name)
        self._kill(gateway)

    def _parent_dies(self) -> None:
        self._noted("parent died")
        self._kill(self._some_gateway())

    def _kill(self, gateway: Gateway) -> None:
        """A parent is killed. Links to it end at once, and another life begins a little later."""
        parent = gateway.parent
        if not parent.alive:
            return
        parent.alive = False
        for line in parent.lines.values():
            line.broken = True
            self.at(self.now + self.delay(), partial(self._hangs_up, line))

        def starts() -> None:
            gateway.parent = self._parent(gateway.name)
            gateway.leader = None

        self.at(self.now + 0.2 + self.random.random(), starts)

    def die(self, name: str) -> None:
        process = self.edges[name]
        process.alive = False
        self.deaths += 1
        for client in process.clients.values():
            self._stop(client)
            client.ends.append("edge died")
        process.clients.clear()
        line = process.line
        if line is not None:
            self.at(self.now + self.delay(), partial(self.noticed, line, dead=True))
        self.followed.pop(name, None)
        self.at(self.now + 0.2 + self.random.random(), lambda: void(self._start(name)))

    def _link_breaks(self) -> None:
        line = self.random.choice(list(self.edges.values())).line
        if line is None:
            return
        self._noted("link broke")
        line.broken = True
        self.at(self.now + self.delay(), partial(self._hangs_up, line))
        self.at(self.now + self.delay(), partial(self.noticed, line, dead=False))

    def _is_cut(self) -> None:
        """Nothing passes between some, until it does again; who had a link finds out when it is silent."""
        self._noted("cut")
        names, until_s = list(self.gateways), self._lasts_s()
        one = self._some_gateway().name
        others = [name for name in names if name != one]
        far = self.random.choice([[STORE], [self.random.choice(others)], others, [STORE, *others], names and [STORE]])
        for other in far:
            self._cut[frozenset((one, other))] = until_s
        for process in self.edges.values():
            line, own = process.line, process.name.partition("/")[0]
            if line is not None and not self.reaches(own, line.parent.name):
                line.broken = True
                self.at(self.now + NOTICES_S * self.random.random(), partial(self._hangs_up, line))
                self.at(self.now + NOTICES_S * self.random.random(), partial(self.noticed, line, dead=False))

    def _store_goes(self) -> None:
        self._noted("store gone")
        self.record.away_until_s = self._lasts_s()
        if self.random.random() < 0.3:  # it comes back empty
            self.record.holder, self.record.epoch, self.record.until_s = None, 0, self.record.away_until_s + TTL_S

    # --- what must hold ---------------------------------------------------------------------------------------------

    def after(self) -> None:
        if self.kind is Scheduler:
            return  # what is to be seen takes too many for looking at each
        self._check_known()
        here = [client for process in self.edges.values() for client in process.clients.values()]
        waits = [client for client in here if not client.engine and client.request.turn is None]  # others may be held
        has_room = any(len(engine.running) < engine.slots for engine in self.engines.values())
        if self.sent_s < self.now and waits and has_room:
            since_s = max(self.sent_s, min(client.arrived_s for client in waits))
            self.paused_s = max(self.paused_s, self.now - since_s)
        else:
            self.sent_s = self.now

    def _check_known(self) -> None:
        """Whatever runs at an edge has a lease of the decider that the edge has announced it to."""
        for process in self.edges.values():
            line = process.line
            if line is None or line.broken or not line.peer.announced or line.peer.gone or not line.parent.alive:
                continue
            known = {remote.told for remote in line.peer.requests.values() if remote.lease is not None}
            for client in process.clients.values():
                if client.engine is not None:
                    assert client.lease in known, f"{client.request.id} runs at {process.name}, and has no lease"

    def ours(self, engine: Engine) -> int:
        """Where edges may be cut off with what they run, no more is claimed than the checked schedulers claim."""
        ours = len(engine.running)
        self.most_beyond = max(self.most_beyond, ours - engine.slots)
        return ours if self.is_strict else min(ours, engine.slots)
