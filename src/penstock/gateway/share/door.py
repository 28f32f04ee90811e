"""Which edges of other gateways does this one decide for? Those that come to its port and fit: same version, same
settings, a name of their own, and no higher epoch than its own.

Whatever does not fit is told why in one message, and so is our own log: what goes wrong between two machines has to be
found at either.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

import penstock
from penstock.config.sections.share import OWN
from penstock.gateway.admin.events import EventLog
from penstock.gateway.share.dial import SharePort
from penstock.gateway.workers.link import Link
from penstock.gateway.workers.office import Office
from penstock.gateway.workers.place import EdgePlace
from penstock.share.frames import decider_reader, why_not
from penstock.share.messages import Frame, Hello, NotTaken, Up

logger = logging.getLogger(__name__)

EDGES_MAX: Final = 1_000  # of other gateways: some tens of machines with tens of workers
HELLO_S: Final = 5.0  # for the first message
SILENT_S: Final = 3.0  # an edge says something each second; after three without, its machine or the way to it is gone
KNOWN_S: Final = 10.0  # a gateway whose link broke counts for so long among those that may follow another one
LOOK_S: Final = 0.25
REFUSALS_KEPT: Final = 8
NAME_CHARACTERS_MAX: Final = 160


class TurnedAway(msgspec.Struct, frozen=True):
    """An edge that was not taken."""

    at_s: float
    where: str
    why: str


class Door:
    """Lets edges of other gateways in, and sees to it that each still speaks."""

    def __init__(
        self, port: SharePort, office: Office, events: EventLog, *, address: str, now: Callable[[], float]
    ) -> None:
        self._port = port
        self._office = office
        self._events = events
        self._address = address  # of this gateway, as edges know it
        self._now = now
        self._newcomers: dict[EdgePlace, None] = {}  # that have not said hello, the oldest first
        self._gone: dict[str, float] = {}  # gateways whose link broke, and when each had heard this one
        self._timer: asyncio.TimerHandle | None = None
        self.superseded: Callable[[int], None] = lambda _: None  #: an edge has followed this epoch
        self.refusals: deque[TurnedAway] = deque(maxlen=REFUSALS_KEPT)
        port.edge = self._came

    async def start(self) -> None:
        """Listen. OSError: the address is taken."""
        await self._port.start()
        self._look()

    async def close(self) -> None:
        """Let nobody in, and close what is open."""
        if self._timer is not None:
            self._timer.cancel()
        await self._port.close()
        for place in tuple(self._newcomers):
            self._end(place, "the gateway ends")

    def followed_s(self) -> float:
        """Since when each other gateway has certainly heard this one: the time that it gave back. Now, without others.

        Not when it was heard: a process that was stopped for a while finds words in its sockets that are as old.
        """
        gateways = [place for place in self._office.others.values() if place.is_gateway]
        return min([*(place.followed_s for place in gateways), *self._gone.values()], default=self._now())

    # --- coming ---------------------------------------------------------------------------------------------------

    def _came(self, transport: asyncio.Transport, rest: bytes) -> None:
        peer = transport.get_extra_info("peername")
        place = EdgePlace("", where=f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?")
        link: Link[Up] = Link(
            decider_reader(),
            epoch=0,
            heard=lambda frame: self._heard(place, frame),
            lost=lambda why: self._lost(place, why),
        )
        if len(self._newcomers) + len(self._office.others) >= EDGES_MAX:
            logger.warning("share: an edge at %s was closed: there are %d already", place.where, EDGES_MAX)
            transport.abort()
            return
        place.linked(link, self._now())
        self._newcomers[place] = None
        link.adopt(transport, rest)

    def _heard(self, place: EdgePlace, frame: Frame[Up]) -> None:
        if place.greeted:
            if any(isinstance(message, Hello) for message in frame.messages):
                self._end(place, "a link begins with a hello, once")
            else:
                self._office.heard(place, frame)
            return
        first = frame.messages[0] if frame.messages else None
        why = self._unfit(first, place) if isinstance(first, Hello) else "a link begins with a hello, once"
        if why or not isinstance(first, Hello):
            self._refuse(place, why or "")
            return
        del self._newcomers[place]
        place.name, place.settings = first.name, first.settings
        place.greeted = True
        place.heard_s = self._now()
        self._gone.pop(place.name, None)
        self._office.take(place)
        logger.info("share: %s (%s) is one of our edges", place.name, place.where)
        if len(frame.messages) > 1:
            self._office.heard(place, msgspec.structs.replace(frame, messages=frame.messages[1:]))

    def _unfit(self, hello: Hello, place: EdgePlace) -> str:
        """Why an edge is not taken; empty: it is."""
        office = self._office
        if why := why_not(hello, version=penstock.__version__):
            return why
        if hello.settings != office.shared_hash:
            return (
                f"two gateways with different settings: the edge has {hello.settings:.16}, the decider "
                f"{office.shared_hash} (they may differ in {', '.join(sorted(OWN))})"
            )
        if not 0 < len(hello.name) <= NAME_CHARACTERS_MAX or not hello.name.isprintable():
            return "an edge needs a name that people can read"
        office.awake()
        if office.decider.phase == "idle":
            return "this gateway does not decide"
        epoch = office.decider.epoch
        if hello.epoch > epoch or (hello.epoch == epoch and hello.follows not in ("", self._address)):
            self.superseded(max(hello.epoch, epoch + 1))
            return f"it has followed epoch {hello.epoch}, and this decider's is {epoch}: a higher one is to be taken"
        before = office.others.get(hello.name)
        if hello.name in office.worker_names or (
            before is not None and before.pid != hello.pid and self._now() - before.heard_s < SILENT_S / 2
        ):
            return f"another edge is called {hello.name}: give each gateway a `share.name` of its own"
        place.pid = hello.pid
        if before is not None:
            self._end(before, "it has dialled again")
        return ""

    def _refuse(self, place: EdgePlace, why: str) -> None:
        logger.warning("share: an edge at %s is not taken: %s", place.where, why)
        self._events.note("share", f"{place.where} is not taken: {why}")
        self.refusals.append(TurnedAway(self._now(), place.where or "", why))
        link = place.link
        self._newcomers.pop(place, None)
        place.link = None
        if link is not None:
            link.say(NotTaken(why))
            link.close()

    # --- going ----------------------------------------------------------------------------------------------------

    def _lost(self, place: EdgePlace, why: str) -> None:
        if place in self._newcomers:
            del self._newcomers[place]
            logger.warning("share: a link from %s was closed before a hello: %s", place.where, why)
        elif place.greeted:
            if place.is_gateway:
                self._gone[place.name] = place.followed_s
            self._office.lost(place, why)

    def _end(self, place: EdgePlace, why: str) -> None:
        if place.link is not None:
            place.link.end(why)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)  # first: whatever fails, it looks again
        now = self._now()
        for place in tuple(self._newcomers):
            if now - place.since_s > HELLO_S:
                self._end(place, f"no hello within {HELLO_S:g} s")
        for place in tuple(self._office.others.values()):
            if now - place.heard_s > SILENT_S:
                self._end(place, f"it has said nothing for {SILENT_S:g} s")
        for name, followed_s in tuple(self._gone.items()):
            if now - followed_s > KNOWN_S:
                del self._gone[name]
