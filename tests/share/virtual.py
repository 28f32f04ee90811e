"""A gateway of one decider and many edges, in virtual time: links with delay, engines, clients, deaths of all kinds.

Messages are really written and read, so what passes is what would pass. The scheduler is the checked one: after every
fact it proves itself. The engines count what they run, and nobody may ever be over its slots.

Several gateways are several parents that may decide, each with edges; which one does says a store that they renew a
lease in (`elections.py`). Links break, gateways die with or without their edges, and what lies between them is cut.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure
from penstock.core.values.observation import Observation
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import EndpointSpec
from penstock.share.decider import Decider, Peer, Phase, Remote
from penstock.share.edge import Edge
from penstock.share.frames import decider_reader, edge_reader, written
from penstock.share.messages import Down, EndpointRow, Endpoints, Loads, Up, Welcome

KV_TOKENS = 250  # of each engine: two contexts of a hundred tokens
BANDS = ("interactive", "standard", "batch")


@dataclass
class Chances:
    """How much goes wrong, of one request each; and how often edges die."""

    refused: float = 0.05
    reset: float = 0.05
    broken: float = 0.05
    hangs_up: float = 0.15
    dies_every_s: float = 0.0
    freezes_every_s: float = 0.0
    link_s: tuple[float, float] = (0.0001, 0.02)


@dataclass
class Engine:
    name: str
    slots: int
    running: dict[tuple[str, int, int], Client] = field(default_factory=dict)
    most: int = 0
    frozen_until_s: float = 0.0
    tokens: int = 0


@dataclass(eq=False)
class Client:
    """One client with its request."""

    request: Request
    tokens: int
    edge: EdgeProcess | None = None
    lease: int | None = None
    engine: Engine | None = None
    began: bool = False
    ends: list[str] = field(default_factory=list)  # what became of it: exactly one, in the end
    run: int = 0  # of its runs in engines
    arrived_s: float = 0.0


class Line:
    """One link, from its hello on. It keeps the order of what it carries, whatever the delay of each frame."""

    def __init__(self, world: SharedWorld, process: EdgeProcess, parent: Parent) -> None:
        self.world = world
        self.process = process
        self.parent = parent
        self.peer = Peer(process.name, self._hear, BANDS)
        self.broken = False  # whatever is on its way is lost
        self.welcomed = False
        self._up: list[Up] = []
        self._down: list[Down] = []
        self._up_s = self._down_s = 0.0
        self._reads_up = decider_reader()
        self._reads_down = edge_reader()

    def open(self) -> None:
        """The parent welcomes the edge."""
        parent, world = self.parent, self.world
        parent.lines[self.process.name] = self
        parent.decider.opened(self.peer)
        rows = [EndpointRow(engine.name, "http://x", "vllm", models=["m"]) for engine in world.engines.values()]
        for word in (Welcome("", ""), Endpoints(rows), Loads([0.0] * len(rows))):
            self.peer.send(word)

    def _say(self, fact: object) -> None:
        if not self._up:
            self.world.at(self.world.now, self._flush_up)
        self._up.append(fact)  # type: ignore[arg-type]

    def _flush_up(self) -> None:
        data, self._up = written(1, self._up), []
        self._up_s = max(self._up_s, self.world.now + self.world.delay())
        self.world.at(self._up_s, partial(self._arrive_up, data))

    def _arrive_up(self, data: bytes) -> None:
        if self.broken or self.peer.gone or not self.parent.alive:
            return
        for frame in self._reads_up.feed(data):
            for message in frame.messages:
                self.parent.fact(self.peer, message)

    def _hear(self, message: Down) -> None:
        if not self._down:
            self.world.at(self.world.now, self._flush_down)
        self._down.append(message)

    def _flush_down(self) -> None:
        data, self._down = written(self.parent.decider.epoch, self._down), []
        self._down_s = max(self._down_s, self.world.now + self.world.delay())
        self.world.at(self._down_s, partial(self._arrive_down, data))

    def _arrive_down(self, data: bytes) -> None:
        process = self.process
        if self.broken or not process.alive or process.line is not self:
            return
        for frame in self._reads_down.feed(data):
            if not process.edge.follows(frame.epoch):
                process.hang_up()
                return
            if not self.welcomed:
                self.welcomed = True
                self.world.carry(process, process.edge.linked(self._say, frame.epoch, now=self.world.now))
            actions, _ = process.edge.take(frame, now=self.world.now)
            for action in actions:
                self.world.carry_out(process, action)


class EdgeProcess:
    """One life of one edge."""

    def __init__(self, world: SharedWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.clients: dict[str, Client] = {}
        self.edge = Edge()
        self.edge.bands = BANDS
        self.line: Line | None = None
        self.leaderless_s = 0.0  # since when nobody decides about what is here

    @property
    def is_decided(self) -> bool:
        return self.line is not None and self.line.welcomed and self.edge.is_linked

    def dial(self, parent: Parent) -> None:
        """Leave the link there is, and try another one."""
        self.hang_up()
        self.line = line = Line(self.world, self, parent)
        self.world.at(self.world.now + self.world.delay(), partial(self.world.dialled, line))

    def hang_up(self) -> None:
        """Leave it. The other side finds out a little later."""
        line, self.line = self.line, None
        if line is not None:
            if self.edge.is_linked:
                self.leaderless_s = self.world.now
            self.world.carry(self, self.edge.unlinked(now=self.world.now))
            self.world.at(self.world.now + self.world.delay(), partial(self.world.noticed, line, dead=False))


class Parent:
    """One life of a process that may decide: a driver of its scheduler."""

    def __init__(self, world: SharedWorld, name: str, *, leads: bool) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.lines: dict[str, Line] = {}  # by the edge's name: the latest
        self.journeys: dict[str, Remote] = {}
        self.scheduler = world.kind(world.settings, random=Random(world.random.random()))
        now = world.now
        for endpoint, engine in world.engines.items():
            spec = EndpointSpec(endpoint, engine.slots, frozenset({"m"}), kv_tokens=KV_TOKENS)
            self.scheduler.endpoint_added(spec, now=now)
            self.scheduler.endpoint_up(endpoint, now=now)
            world.at(now + 0.1, partial(self._gauges, engine))
        self.decider = Decider(self.scheduler, self, now=lambda: world.now, bands=BANDS, levels=1, leads=leads)

    # --- a driver -----------------------------------------------------------------------------------------------

    def join(self, request_id: str, journey: Remote) -> None:
        assert request_id not in self.journeys
        self.journeys[request_id] = journey

    def leave(self, request_id: str) -> None:
        del self.journeys[request_id]

    def knows(self, request_id: str) -> bool:
        return request_id in self.journeys

    def fact(self, peer: Peer, message: Up) -> None:
        self.tell(self.decider.take(peer, message))  # type: ignore[arg-type]

    def tell(self, actions: list[Action]) -> None:
        for action in actions:
            journey = self.journeys.get(action.request_id)
            match action:
                case _ if journey is None:
                    continue
                case Dispatch():
                    assert self.decider.phase is Phase.DECIDING, f"{self.name} sends, and {self.decider.phase}"
                    journey.dispatched(action)
                case Decode():
                    journey.decoding(action)
                case Requeue():
                    journey.requeued(action)
                case Abort():
                    journey.aborted(action)
                case _:
                    journey.ended(action)

    def next_deadline(self) -> float | None:
        times = (self.scheduler.next_deadline(), self.decider.next_deadline())
        return min((time for time in times if time is not None), default=None)

    def let_time_pass(self) -> None:
        due_s = self.decider.next_deadline()
        if due_s is not None and due_s <= self.world.now:
            self.decider.expire()
        self.tell(self.scheduler.expire(now=self.world.now))

    def _gauges(self, engine: Engine) -> None:
        if not self.alive:
            return
        now = self.world.now
        if now >= engine.frozen_until_s:
            reading = Observation(now, len(engine.running), 0, progress=float(engine.tokens))
            self.tell(self.scheduler.observed(engine.name, reading, now=now))
        self.world.at(now + 0.25, partial(self._gauges, engine))


class SharedWorld:
    """All of it: here one parent, which decides from the start."""

    makes_parents = False  # whether others than that one are made, by a world of more

    def __init__(
        self,
        *,
        seed: int,
        edges: int,
        engines: dict[str, int],
        chances: Chances,
        settings: SchedulerSettings,
        kind: type[Scheduler] = CheckedScheduler,
    ) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.chances = chances
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self.settings, self.kind = settings, kind
        self.engines = {name: Engine(name, slots) for name, slots in engines.items()}
        self.edges: dict[str, EdgeProcess] = {}
        self.clients: list[Client] = []
        self.outcomes: Counter[str] = Counter()
        self.deaths = 0
        self.sent_s = 0.0  # when an edge last sent something
        self.parents: dict[str, Parent] = {}
        if not self.makes_parents:
            self.parents["p"] = Parent(self, "p", leads=True)
        for number in range(edges):
            self._start(f"edge{number}")
        if chances.dies_every_s:
            self.at(chances.dies_every_s, self._somebody_dies)
        if chances.freezes_every_s:
            self.at(chances.freezes_every_s, self._somebody_freezes)

    # --- the loop -----------------------------------------------------------------------------------------------

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, event))

    def run(self, until_s: float) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            when, _, event = heapq.heappop(self._heap)
            while (parent := self._next(when)) is not None:
                self.now = max(self.now, parent.next_deadline() or 0.0)
                parent.let_time_pass()
            self.now = max(self.now, when)
            event()
            self.after()

    def _next(self, until_s: float) -> Parent | None:
        """The parent that has something to do first, by then."""
        due = [(due_s, at) for at, one in enumerate(self.alive()) if (due_s := one.next_deadline()) is not None]
        due_s, at = min(due, default=(until_s + 1.0, 0))
        return self.alive()[at] if due_s <= until_s else None

    def after(self) -> None:
        """Something happened: what must hold of all."""

    def alive(self) -> list[Parent]:
        return [parent for parent in self.parents.values() if parent.alive]

    @property
    def parent(self) -> Parent:
        (one,) = self.parents.values()
        return one

    @property
    def decider(self) -> Decider:
        return self.parent.decider

    @property
    def scheduler(self) -> Scheduler:
        return self.parent.scheduler

    @property
    def journeys(self) -> dict[str, Remote]:
        return self.parent.journeys

    def tell(self, actions: list[Action]) -> None:
        self.parent.tell(actions)

    def delay(self) -> float:
        least, most = self.chances.link_s
        return least + (most - least) * self.random.random() ** 3

    # --- edges --------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> EdgeProcess:
        process = self.edges[name] = EdgeProcess(self, name)
        process.leaderless_s = self.now
        if not self.makes_parents:
            process.line = line = Line(self, process, self.parent)
            line.open()
        return process

    def dialled(self, line: Line) -> None:
        """An edge's hello arrives, if it does: here links are there from the start."""

    def noticed(self, line: Line, *, dead: bool) -> None:
        """A parent finds out that a link is no more."""
        parent, peer = line.parent, line.peer
        line.broken = True
        if parent.alive and not peer.gone and peer in parent.decider.peers:
            parent.tell(parent.decider.lost(peer) if dead else parent.decider.cut(peer))

    def _somebody_dies(self) -> None:
        self.die(self.random.choice(list(self.edges)))
        self.at(self.now + self.chances.dies_every_s * (0.5 + self.random.random()), self._somebody_dies)

    def die(self, name: str) -> None:
        """An edge is killed: its sockets close at once, so engines stop; the decider finds out a little later."""
        process = self.edges[name]
        process.alive = False
        self.deaths += 1
        for client in process.clients.values():
            self._stop(client)
            client.ends.append("edge died")
        process.clients.clear()

        def noticed() -> None:
            if process.line is not None:
                self.noticed(process.line, dead=True)
            self._start(name)

        self.at(self.now + self.delay(), noticed)

    def _somebody_freezes(self) -> None:
        engine = self.random.choice(list(self.engines.values()))
        engine.frozen_until_s = self.now + 8.0 * self.random.random()
        self.at(self.now + self.chances.freezes_every_s, self._somebody_freezes)

    def carry_out(self, process: EdgeProcess, action: Action) -> None:
        client = process.clients.get(action.request_id)
        if client is None:
            return
        match action:
            case Dispatch():
                assert client.engine is None, "sent twice at a time"
                assert not client.began, "sent again although its client reads"
                client.lease = action.lease
                client.engine = self.engines[action.endpoint]
                self.sent_s = self.now
                client.run += 1
                self.at(self.now + self.delay(), partial(self._reach, process, client, client.run))
            case Requeue():
                assert not client.began, "taken back although its client reads"
                self._stop(client)
                client.lease = None
            case Abort():
                self._gone(client)
            case Reject() | Evict() | Fail():
                self._stop(client)
                self._end(client, f"{action.outcome} {action.reason}")

    # --- clients and engines ------------------------------------------------------------------------------------

    def arrive(self, edge: str, request: Request, *, tokens: int) -> Client:
        process = self.edges[edge]
        client = Client(request, tokens, process, arrived_s=self.now)
        self.clients.append(client)
        if not process.alive:
            client.ends.append("edge died")
            return client
        process.clients[request.id] = client
        self.carry(process, process.edge.arrived(request, now=self.now))
        if client.ends:
            return client
        if self.random.random() < self.chances.hangs_up:
            self.at(self.now + self.random.expovariate(0.5), partial(self._gone, client))
        return client

    def _end(self, client: Client, how: str) -> None:
        assert client.edge is not None
        client.ends.append(how)
        del client.edge.clients[client.request.id]
        self.outcomes[how] += 1

    def _gone(self, client: Client) -> None:
        process = client.edge
        assert process is not None
        if not process.alive or process.clients.get(client.request.id) is not client:
            return
        self._stop(client)
        self._end(client, "gone")
        process.edge.cancelled(client.request.id, now=self.now)

    def _key(self, client: Client) -> tuple[str, int, int]:
        assert client.edge is not None
        return client.edge.name, id(client), client.run

    def _stop(self, client: Client) -> None:
        engine, client.engine = client.engine, None
        if engine is not None:
            engine.running.pop(self._key(client), None)

    def _runs(self, process: EdgeProcess, client: Client, run: int) -> bool:
        return process.alive and client.run == run and client.engine is not None and not client.ends

    def _reach(self, process: EdgeProcess, client: Client, run: int) -> None:
        """The engine has the request."""
        if not self._runs(process, client, run):
            return
        engine = client.engine
        assert engine is not None
        roll = self.random.random()
        if roll < self.chances.refused + self.chances.reset:
            failure = Failure.BUSY if roll < self.chances.refused else Failure.RESET
            self._fail(process, client, failure)
            return
        engine.running[self._key(client)] = client
        ours = self.ours(engine)
        engine.most = max(engine.most, ours)
        assert ours <= engine.slots, f"{engine.name} runs {ours} of ours, and has {engine.slots} slots"
        self._later(0.05 + 0.2 * self.random.random(), process, client, run, 0)

    def ours(self, engine: Engine) -> int:
        """What the engine has of ours, and may have no more of than slots."""
        if not self.chances.freezes_every_s:
            return len(engine.running)
        # What was taken back from a frozen engine is there until its edge hears of it.
        assert isinstance(self.scheduler, CheckedScheduler)
        return sum(other.lease in self.scheduler.books.leases for other in engine.running.values())

    def _later(self, after_s: float, process: EdgeProcess, client: Client, run: int, done: int) -> None:
        self.at(self.now + after_s, partial(self._step, process, client, run, done))

    def _step(self, process: EdgeProcess, client: Client, run: int, done: int) -> None:
        """Sixteen more tokens."""
        if not self._runs(process, client, run):
            return
        engine, lease = client.engine, client.lease
        assert engine is not None
        assert lease is not None
        if self.now < engine.frozen_until_s:
            self._later(engine.frozen_until_s - self.now + 0.01, process, client, run, done)
            return
        engine.tokens += 16
        edge = process.edge
        if edge.wants_moved(self.now):
            edge.moved([engine.name], now=self.now)
        if not client.began and client.request.streamed:
            client.began = True
            edge.first_token(lease, now=self.now)
        done += 16
        if client.began and self.random.random() < self.chances.broken * 16 / client.tokens:
            self._fail(process, client, Failure.BROKEN)
        elif done >= client.tokens:
            self._stop(client)
            self._end(client, "completed")
            self.carry(process, edge.finished(lease, Usage(100, client.tokens), now=self.now))
        else:
            edge.progressed(lease, done, now=self.now)
            self._later(0.1, process, client, run, done)

    def _fail(self, process: EdgeProcess, client: Client, failure: Failure) -> None:
        lease, client.lease = client.lease, None
        assert lease is not None
        self._stop(client)
        self.carry(process, process.edge.failed(lease, failure, now=self.now))

    def carry(self, process: EdgeProcess, actions: list[Action]) -> None:
        for action in actions:
            self.carry_out(process, action)

    # --- the end ------------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """All is over: each request ended once, and nobody holds anything."""
        for client in self.clients:
            assert len(client.ends) == 1, (client.request.id, client.ends)
        for parent in self.alive():
            assert not parent.journeys, parent.name
            picture = parent.scheduler.snapshot(now=self.now)
            assert (picture.running, picture.waiting) == (0, 0), parent.name
            assert not isinstance(parent.scheduler, CheckedScheduler) or not parent.scheduler.books.requests
            for peer in parent.decider.peers:
                assert not peer.requests, peer.name
        for process in self.edges.values():
            assert not process.edge.requests, process.name
            assert not process.edge._leases, process.name
        for engine in self.engines.values():
            assert not engine.running, engine.name
