"""One edge as its decider, or its gateway's first process, knows it: who it is, its link, and how it stands."""

from __future__ import annotations

import msgspec

from penstock.gateway.workers.link import Link
from penstock.gateway.workers.processes import WorkerProcess
from penstock.share.messages import EdgeStanding, Up
from penstock.share.seats import Seat


class EdgeNow(msgspec.Struct, frozen=True):
    """One edge, as the page and `status` show it."""

    name: str
    where: str
    epoch: int  #: of the decider that it follows
    up_s: float | None  #: None: it is not there at the moment
    requests: int
    connections: int
    link_s: float  #: how long a word to it and its answer take
    lag_s: float  #: how late its loop ran a timer in the last second
    cpu: float  #: share of a core over the last second
    cpu_s: float
    starts: int


class EdgePlace:
    """A worker's place in this gateway, whoever fills it; or an edge of another gateway while its link holds."""

    def __init__(self, name: str, *, where: str | None = None) -> None:
        self.name = name
        self.where = where  #: its address, where it belongs to another gateway
        self.process: WorkerProcess | None = None
        self.link: Link[Up] | None = None
        self.seat: Seat | None = None  #: while this gateway decides for it
        self.epoch = 0  #: since which the seat is there
        self.greeted = False
        self.ready = False
        self.since_s = self.heard_s = 0.0
        self.settings = ""  #: hash of those it follows
        self.pid = 0  #: as it says, where it belongs to another gateway
        self.standing: EdgeStanding | None = None
        self.cpu = 0.0
        self.told: set[str] = set()  #: endpoints that it knows
        self.words = 0  #: the number of the operators' words that it was told, where it is another gateway

    @property
    def is_ours(self) -> bool:
        """Returns True for a worker of this gateway."""
        return self.where is None

    @property
    def is_gateway(self) -> bool:
        """Returns True for the first process of another gateway, which carries nothing. It is called `NAME/`."""
        return not self.is_ours and self.name.endswith("/")

    @property
    def followed_s(self) -> float:
        """When it last heard the decider, by the decider's clock."""
        return self.since_s if self.standing is None else max(self.since_s, self.standing.echo_s)

    def linked(self, link: Link[Up], now: float) -> None:
        """It has a link; its first word is still to come."""
        self.link, self.seat, self.standing = link, None, None
        self.greeted = False
        self.since_s = self.heard_s = now

    def unlinked(self) -> None:
        """Its link is gone, and with it what was known of it."""
        self.link = self.seat = None
        self.greeted = self.ready = False
        self.told = set()

    def say(self, message: object) -> None:
        """Tell it something; nothing where it has no link, or has not said who it is."""
        if self.link is not None and self.greeted:
            self.link.say(message)

    def stands(self, standing: EdgeStanding) -> None:
        """It says how it is."""
        before, self.standing = self.standing, standing
        if before is not None and standing.sent_s > before.sent_s:
            self.cpu = max(0.0, (standing.cpu_s - before.cpu_s) / (standing.sent_s - before.sent_s))

    def now(self, at_s: float, epoch: int) -> EdgeNow:
        """How it stands."""
        standing, process = self.standing, self.process
        where = self.where or (f"process {process.pid}" if process is not None and process.pid else "not started")
        requests = 0 if standing is None else standing.requests
        return EdgeNow(
            name=self.name.rstrip("/"),
            where=where,
            epoch=epoch,
            up_s=at_s - self.since_s if self.ready else None,
            requests=requests if self.seat is None else len(self.seat.requests),
            connections=0 if standing is None else standing.connections,
            link_s=0.0 if standing is None else standing.link_s,
            lag_s=0.0 if standing is None else standing.lag_s,
            cpu=self.cpu if self.ready else 0.0,
            cpu_s=0.0 if standing is None else standing.cpu_s,
            starts=0 if process is None else process.starts,
        )
