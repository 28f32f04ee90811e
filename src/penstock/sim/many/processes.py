"""What are the processes of a gateway, in virtual time? Edges with clients, and whoever decides for them.

Every process has a clock of its own, far from all others: what crosses between them are ages and remaining spans.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Requeue
from penstock.core.values.observation import Observation
from penstock.core.values.settings import EndpointSpec
from penstock.share.decider import Decider
from penstock.share.edge import Edge
from penstock.share.frames import decider_reader, edge_reader, written
from penstock.share.messages import Announcement, Aside, Down, EndpointRow, Endpoints, Fact, Loads
from penstock.share.seats import Remote, Seat
from penstock.sim.many.link import Clockwork, OneWay, Wire
from penstock.sim.world.world_values import SimulatedJourney

if TYPE_CHECKING:
    from penstock.core.scheduler import SchedulerSettings


class Deciding:
    """One decider at work: the scheduler, and the driver's part of knowing whose each request is."""

    def __init__(
        self, name: str, clockwork: Clockwork, scheduler: Scheduler, settings: SchedulerSettings, *, skew_s: float
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.over = False
        self._clockwork = clockwork
        self._skew_s = skew_s
        self._remotes: dict[str, Remote] = {}
        bands = [band.name for band in settings.bands]
        self.decider = Decider(scheduler, self, now=self.now, bands=bands, levels=len(settings.levels))
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
        if reading is not None:
            reading = replace(reading, asked_s=reading.asked_s + self._skew_s)
        self.tell(self.scheduler.observed(engine, reading, now=self.now()))

    def due_s(self) -> float | None:
        """Returns when time alone changes something, by the world's clock; None: never."""
        due_s = self.scheduler.next_deadline()
        return None if due_s is None else due_s - self._skew_s

    def expire(self) -> None:
        """Time has passed."""
        self.tell(self.scheduler.expire(now=max(self.now(), self.scheduler.next_deadline() or self.now())))

    # --- edges ----------------------------------------------------------------------------------------------------

    def opened(self, seat: Seat) -> None:
        """An edge's link holds: it is told what there is."""
        self.decider.opened(seat)
        seat.send(Endpoints(self._rows))
        seat.send(Loads([0.0] * len(self._rows)))

    def lost(self, seat: Seat) -> None:
        """An edge's link is over."""
        if not self.over and not seat.gone:
            self.tell(self.decider.lost(seat))


class EdgeLink:
    """The link of one edge to one decider, for as long as it holds."""

    def __init__(self, world: Clockwork, wire: Wire, random: Random, gateway: SimulatedGateway, to: Deciding) -> None:
        self.to = to
        self.gateway = gateway
        self._world = world
        self._reads_up, self._reads_down = decider_reader(), edge_reader()
        write = partial(written, 1)
        self.up: OneWay[Fact | Aside | Announcement] = OneWay(world, wire, random, write=write, arrive=self._arrive_up)
        self.down: OneWay[Down] = OneWay(world, wire, random, write=write, arrive=self._arrive_down)
        self.seat = Seat(gateway.name, self.down.say, to.decider.bands)
        to.opened(self.seat)
        gateway.carry_out(gateway.edge.linked(self.up.say, to.decider.epoch, now=world.now + gateway.skew_s))

    def close(self) -> None:
        """Nothing arrives any more."""
        self.up.close()
        self.down.close()

    def _arrive_up(self, data: bytes) -> None:
        for frame in self._reads_up.feed(data):
            for message in frame.messages:
                if not self.seat.gone and not self.to.over:
                    self.to.tell(self.to.decider.take(self.seat, message))  # type: ignore[arg-type]

    def _arrive_down(self, data: bytes) -> None:
        edge, now = self.gateway.edge, self._world.now + self.gateway.skew_s
        for frame in self._reads_down.feed(data):
            actions, _ = edge.take(frame, now=now)
            self.gateway.carry_out(actions)


class SimulatedGateway:
    """One process that has clients: its edge, its clock, and the requests that it carries."""

    def __init__(self, number: int, carry_out: Callable[[list[Action]], None], *, skew_s: float) -> None:
        self.number = number
        self.name = f"gateway-{number}"
        self.skew_s = skew_s
        self.carry_out = carry_out
        self.alive = True
        self.carried: dict[str, SimulatedJourney] = {}
        self.link: EdgeLink | None = None
        self.edge = Edge()

    def start_again(self) -> None:
        """A new process stands where a dead one stood."""
        self.alive = True
        self.edge = Edge()
