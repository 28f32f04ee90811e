"""The processes of a gateway in virtual time: edges with clients, and their deciders.

Every process has a clock of its own, far from all others: what crosses between them are ages and remaining spans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bench.many.link import Clockwork, OneWay, Wire
from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Requeue
from penstock.core.values.observation import Observation
from penstock.core.values.settings import EndpointSpec
from penstock.share.decider import Decider, Peer, Remote
from penstock.share.edge import Edge
from penstock.share.frames import decider_reader, edge_reader, written
from penstock.share.messages import (
    PROTOCOL,
    Down,
    EndpointRow,
    Endpoints,
    Frame,
    Hello,
    Loads,
    NotTaken,
    Up,
    Welcome,
)
from penstock.sim.world.world_values import SimulatedJourney

if TYPE_CHECKING:
    from penstock.core.scheduler import SchedulerSettings


def _always() -> None:
    """Whoever was set up to decide decides."""


class Deciding:
    """One decider at work: the scheduler, and the driver's part of knowing whose each request is."""

    def __init__(
        self,
        name: str,
        clockwork: Clockwork,
        scheduler: Scheduler,
        settings: SchedulerSettings,
        *,
        skew_s: float,
        leads: bool = True,
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.links: list[EdgeLink] = []  #: those that are welcome
        self.over = False  #: its process is dead
        self.asks: Callable[[], None] = _always  #: called before anything is decided: may it still?
        self._clockwork = clockwork
        self._skew_s = skew_s
        self._remotes: dict[str, Remote] = {}
        bands = [band.name for band in settings.bands]
        self.decider = Decider(scheduler, self, now=self.now, bands=bands, levels=len(settings.levels), leads=leads)
        self._rows: list[EndpointRow] = []

    def now(self) -> float:
        """Returns the time by the clock of its process."""
        return self._clockwork.now + self._skew_s

    # --- the driver's part --------------------------------------------------------------------------------------------

    def join(self, request_id: str, journey: Remote, /) -> None:
        assert request_id not in self._remotes
        self._remotes[request_id] = journey

    def leave(self, request_id: str, /) -> None:
        del self._remotes[request_id]

    def knows(self, request_id: str, /) -> bool:
        return request_id in self._remotes

    def tell(self, actions: list[Action], /) -> None:
        """Write each action to the edge whose request it is about."""
        for action in actions:
            remote = self._remotes.get(action.request_id)
            if remote is None:
                continue  # its edge ended it while these were carried out
            match action:
                case Dispatch():
                    remote.dispatched(action)
                case Decode():
                    remote.decoding(action)
                case Requeue():
                    remote.requeued(action)
                case Abort():
                    remote.aborted(action)
                case _:
                    remote.ended(action)

    # --- engines and time -----------------------------------------------------------------------------------------

    def serve(self, spec: EndpointSpec) -> None:
        """An engine is there."""
        self._rows.append(EndpointRow(spec.name, "http://simulated", "vllm", models=sorted(spec.models or ())))
        self.tell(self.scheduler.endpoint_added(spec, now=self.now()))

    def observed(self, engine: str, reading: Observation | None) -> None:
        """An engine's gauges were read, by the world's time; None: no answer."""
        self.asks()
        if reading is not None:
            reading = replace(reading, asked_s=reading.asked_s + self._skew_s)
        self.tell(self.scheduler.observed(engine, reading, now=self.now()))

    def probed(self, engine: str, *, alive: bool) -> None:
        """An engine was asked whether it is there."""
        self.asks()
        tell = self.scheduler.endpoint_up if alive else self.scheduler.endpoint_down
        self.tell(tell(engine, now=self.now()))

    def due_s(self) -> float | None:
        """Returns when time alone changes something, by the world's clock; None: never."""
        due = [due_s for due_s in (self.scheduler.next_deadline(), self.decider.next_deadline()) if due_s is not None]
        return min(due) - self._skew_s if due else None

    def expire(self) -> None:
        """Time has passed."""
        self.asks()
        now = self.now()
        if (due_s := self.decider.next_deadline()) is not None and due_s <= now + ROUNDING_S:
            self.decider.expire()
        if (due_s := self.scheduler.next_deadline()) is not None and due_s <= now + ROUNDING_S:
            self.tell(self.scheduler.expire(now=max(now, due_s)))

    # --- edges ----------------------------------------------------------------------------------------------------

    def welcome(self, link: EdgeLink) -> None:
        """Take an edge: it is told what there is, and announces what it holds."""
        peer = link.peer = Peer(link.gateway.edge_name, link.down.say, self.decider.bands)
        self.links.append(link)
        peer.send(Welcome("simulated", ""))
        peer.send(Endpoints(self._rows))
        peer.send(Loads([0.0] * len(self._rows)))
        self.decider.opened(peer)

    def heard(self, link: EdgeLink, messages: Sequence[Up]) -> None:
        """An edge said this."""
        for message in messages:
            if link.peer is None or link.peer.gone or self.over:
                return
            self.asks()
            self.tell(self.decider.take(link.peer, message))  # type: ignore[arg-type]

    def left(self, link: EdgeLink, *, dead: bool) -> None:
        """An edge's link is over. `dead`: its process is known to have ended, and its clients with it."""
        if link in self.links:
            self.links.remove(link)
        if link.peer is not None and not link.peer.gone and not self.over:
            self.asks()
            self.tell(self.decider.lost(link.peer) if dead else self.decider.cut(link.peer))


ROUNDING_S = 1e-9  # what a clock that is days apart loses of a time


class EdgeLink:
    """The link of one edge to one decider, from the edge's dialling until it is closed."""

    def __init__(
        self,
        world: Clockwork,
        wire: Wire,
        random: Random,
        gateway: SimulatedGateway,
        to: Deciding,
        *,
        greeted: Callable[[EdgeLink, Hello], str | None],
        refused: Callable[[EdgeLink], None],
    ) -> None:
        """`greeted` says why a decider does not take the edge, or None; `refused` hears of it at the edge."""
        self.to = to
        self.gateway = gateway
        self.peer: Peer | None = None  #: at the decider, once it is welcome
        self.led = False  #: the edge follows it
        self.closed = False
        self._greeted = greeted
        self._refused = refused
        self._reads_up, self._reads_down = decider_reader(), edge_reader()
        self.up: OneWay[Up] = OneWay(world, wire, random, write=self._written_up, arrive=self._arrive_up)
        self.down: OneWay[Down] = OneWay(world, wire, random, write=self._written_down, arrive=self._arrive_down)
        self.up.say(Hello(PROTOCOL, "simulated", gateway.edge_name, gateway.edge.epoch, ""))

    def close(self) -> None:
        """Nothing arrives any more, in either direction."""
        self.closed = True
        self.up.close()
        self.down.close()

    def _written_up(self, messages: Sequence[Up]) -> bytes:
        return written(self.gateway.edge.epoch, messages)

    def _written_down(self, messages: Sequence[Down]) -> bytes:
        return written(self.to.decider.epoch, messages)

    def _arrive_up(self, data: bytes) -> None:
        for frame in self._reads_up.feed(data):
            messages = frame.messages
            if messages and isinstance(messages[0], Hello):
                why = self._greeted(self, messages[0])
                if why is not None:
                    self.down.say(NotTaken(why))
                else:
                    self.to.welcome(self)
                messages = messages[1:]
            self.to.heard(self, messages)

    def _arrive_down(self, data: bytes) -> None:
        for frame in self._reads_down.feed(data):
            if any(isinstance(message, NotTaken) for message in frame.messages):
                self._refused(self)
            elif not self.closed:
                self._follow(frame)

    def _follow(self, frame: Frame[Down]) -> None:
        gateway = self.gateway
        if not self.led:
            if not gateway.edge.follows(frame.epoch):
                self._refused(self)
                return
            gateway.follow(self, frame.epoch)
        actions, _ = gateway.edge.take(frame, now=gateway.now())
        gateway.carry_out(actions)


class SimulatedGateway:
    """One process that has clients: its edge, its clock, and the requests that it carries."""

    def __init__(
        self,
        number: int,
        clockwork: Clockwork,
        carry_out: Callable[[list[Action]], None],
        *,
        skew_s: float,
        bands: Sequence[str],
    ) -> None:
        self.number = number
        self.name = f"gateway-{number}"
        self.edge_name = f"{self.name}/0"  #: as edges of several machines are called
        self.skew_s = skew_s
        self.carry_out = carry_out
        self.alive = True
        self.carried: dict[str, SimulatedJourney] = {}
        self.link: EdgeLink | None = None  #: to the decider that it follows
        self._bands = bands
        self._clockwork = clockwork
        self.start_again()

    def now(self) -> float:
        """Returns the time by its clock."""
        return self._clockwork.now + self.skew_s

    def start_again(self) -> None:
        """A new process stands where a dead one stood."""
        self.alive = True
        self.edge = Edge()
        self.edge.bands = self._bands

    def follow(self, link: EdgeLink, epoch: int) -> None:
        """It was taken over this link: from here on this decider is the one that it follows."""
        self.unlink()
        self.link, link.led = link, True
        self.carry_out(self.edge.linked(link.up.say, epoch, now=self.now()))

    def unlink(self) -> None:
        """The link is gone: all goes on, and newcomers wait here."""
        if self.link is not None:
            self.link = None
            self.carry_out(self.edge.unlinked(now=self.now()))
