"""A member of the table: one edge as its gateway knows it, its link and its status."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.gateway.cluster.link import Link
from penstock.share.decider import Peer
from penstock.share.messages import EdgeStanding, Up


class RunningProcess(Protocol):
    """A worker's process, as its supervisor keeps it running."""

    pid: int  #: 0: not started
    starts: int

    def kill(self) -> None: ...
    def ending(self) -> None: ...
    async def close(self, timeout_s: float) -> None: ...


class EdgeNow(msgspec.Struct, frozen=True):
    """Status of one edge, as the page and `status` show it."""

    name: str
    where: str
    epoch: int  #: of the decider that it follows
    up_s: float | None  #: None: it is away at the moment
    requests: int
    connections: int
    link_s: float  #: round trip of its link
    lag_s: float  #: how late its loop ran a timer in the last second
    cpu: float  #: share of a core over the last second
    cpu_s: float
    starts: int


class Member:
    """A worker of this gateway, running or not; or an edge of another gateway, as long as its link holds."""

    def __init__(self, name: str, *, where: str | None = None) -> None:
        self.name = name
        self.where = where  #: its address if it belongs to another gateway
        self.process: RunningProcess | None = None
        self.link: Link[Up] | None = None
        self.peer: Peer | None = None  #: while this gateway decides for it
        self.epoch = 0  #: in which it became a peer
        self.greeted = False  #: its hello was accepted
        self.ready = False  #: it follows the settings, so it takes connections
        self.since_s = self.heard_s = 0.0
        self.settings = ""  #: hash of those it follows
        self.pid = 0  #: as reported by an edge of another gateway
        self.standing: EdgeStanding | None = None
        self.cpu = 0.0
        self.told: set[str] = set()  #: endpoints that it knows
        self.orders = 0  #: number of the operators' orders that were sent to it

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
        """It has a link, whose hello is still to come."""
        self.link, self.peer, self.standing = link, None, None
        self.greeted = False
        self.since_s = self.heard_s = now

    def unlinked(self) -> None:
        """Its link is gone."""
        self.link = self.peer = None
        self.greeted = self.ready = False
        self.told = set()

    def say(self, message: object) -> None:
        """Send it a message, unless it has no link or was not accepted."""
        if self.link is not None and self.greeted:
            self.link.say(message)

    def refuse(self, message: object) -> None:
        """Send a last message and close the link."""
        link = self.link
        self.unlinked()
        if link is not None:
            link.say(message)
            link.close()

    def stands(self, standing: EdgeStanding) -> None:
        """Take its report of the last second."""
        before, self.standing = self.standing, standing
        if before is not None and standing.sent_s > before.sent_s:
            self.cpu = max(0.0, (standing.cpu_s - before.cpu_s) / (standing.sent_s - before.sent_s))

    def now(self, at_s: float, epoch: int) -> EdgeNow:
        """Returns its status."""
        standing, process = self.standing or EdgeStanding(0.0, 0.0, 0.0, 0.0), self.process
        return EdgeNow(
            name=self.name.rstrip("/"),
            where=self.where or (f"process {process.pid}" if process is not None and process.pid else "not started"),
            epoch=epoch,
            up_s=at_s - self.since_s if self.ready else None,
            requests=standing.requests if self.peer is None else len(self.peer.requests),
            connections=standing.connections,
            link_s=standing.link_s,
            lag_s=standing.lag_s,
            cpu=self.cpu if self.ready else 0.0,
            cpu_s=standing.cpu_s,
            starts=0 if process is None else process.starts,
        )
