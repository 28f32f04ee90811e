"""The link from an edge to the decider on another machine: dialled, watched, and dialled again.

Used by a worker, and by a gateway's first process, which carries nothing and only checks that the decider is there.
What an edge announces when a link begins, and what becomes of its requests without one, is in `share/edge.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.core.values.actions import Action
from penstock.gateway.cluster.greeting import EDGE
from penstock.gateway.cluster.link import Link, taken_over
from penstock.gateway.cluster.listener import Dialler
from penstock.share.edge import Edge
from penstock.share.frames import edge_reader
from penstock.share.messages import Down, Frame, Hello, NotTaken, Welcome

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.1  # before the next try; doubles
PAUSE_S_MAX: Final = 0.5  # what a leader that restarts is waited for in vain
SILENT_S: Final = 3.0  # a decider answers each second; after three without, it or the way to it is gone
LOOK_S: Final = 0.25
LOGGED_S: Final = 30.0  # the same trouble is logged again after so long


class LeaderLink:
    """One link at a time, to the latest address."""

    def __init__(
        self,
        dial: Dialler,
        edge: Edge,
        *,
        hello: Callable[[], Hello],
        heard: Callable[[Frame[Down]], None],
        now: Callable[[], float],
        act: Callable[[list[Action]], None] = lambda _: None,
        linked: Callable[[], None] = lambda: None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._dial = dial
        self._edge = edge
        self._hello = hello
        self._heard = heard
        self._act = act
        self._now = now
        self._linked = linked
        self._lost = lost
        self._task: asyncio.Task[None] | None = None
        self._link: Link[Down] | None = None
        self._ended = asyncio.Event()
        self._welcomed = False
        self._pause_s = PAUSE_S
        self._logged: tuple[str, float] = ("", 0.0)
        self.heard_s = 0.0
        self.unsent: Callable[[object], None] | None = None  #: called with each message that cannot be written
        self.address = ""  #: empty: none is dialled
        self.trouble = ""  #: why there is no link; empty: there is one, or none is wanted

    @property
    def is_linked(self) -> bool:
        """Returns True while the decider accepts this edge."""
        return self._welcomed

    def to(self, address: str) -> None:
        """Dial `address` from now on; empty: none."""
        if address == self.address:
            return
        self.address, self.trouble = address, ""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._hang_up()
        if address:
            self._task = asyncio.get_running_loop().create_task(self._run(address))

    def say(self, message: object) -> None:
        """Tell the decider; without a link nothing is sent."""
        if self._link is not None and self._welcomed:
            self._link.say(message)

    async def close(self) -> None:
        """Close the link."""
        task = self._task
        self.to("")
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, address: str) -> None:
        self._pause_s = PAUSE_S
        while True:
            try:
                transport, came = await self._dial(address, EDGE)
            except OSError as error:
                self._complain(address, error.strerror or str(error))
            else:
                await self._live(address, transport, came)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    async def _live(self, address: str, transport: asyncio.Transport, came: bytes) -> None:
        """One link, from hello to its end."""
        self._ended.clear()
        link: Link[Down] = Link(
            edge_reader(), epoch=self._edge.epoch, heard=self._frame, lost=lambda why: self._broke(address, why)
        )
        link.unsent = self.unsent or link.unsent
        self._link = link
        self.heard_s = self._now()
        try:
            taken_over(transport, came, link)
            link.say(self._hello())
            while not self._ended.is_set():
                if self._now() - self.heard_s > SILENT_S:
                    link.end(f"it has said nothing for {SILENT_S:g} s")
                try:
                    await asyncio.wait_for(self._ended.wait(), LOOK_S)
                except TimeoutError:
                    continue
        finally:
            link.close()

    def _frame(self, frame: Frame[Down]) -> None:
        self.heard_s = self._now()
        messages = frame.messages
        if not self._welcomed:
            first, messages = (messages[0] if messages else None), messages[1:]
            if isinstance(first, NotTaken):
                self._end(f"it does not take this edge: {first.why}")
                return
            if not isinstance(first, Welcome):
                self._end("it did not welcome this edge")
                return
            if not self._edge.follows(frame.epoch):
                self._end(f"its epoch is {frame.epoch}, and {self._edge.epoch} was followed already")
                return
            assert self._link is not None
            self._welcomed, self.trouble, self._pause_s = True, "", PAUSE_S
            self._link.at(frame.epoch)
            logger.info("share: %s leads, epoch %d", self.address, frame.epoch)
            self._act(self._edge.linked(self._link.say, frame.epoch, now=self._now()))
            self._linked()
        for message in messages:
            if isinstance(message, NotTaken):
                self._end(message.why)
                return
        if messages:
            self._heard(msgspec.structs.replace(frame, messages=messages))

    def _end(self, why: str) -> None:
        if self._link is not None:
            self._link.end(why)

    def _broke(self, address: str, why: str) -> None:
        self._hang_up()
        self._complain(address, why)

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        if self._welcomed:
            self._welcomed = False
            self._act(self._edge.unlinked(now=self._now()))
            self._lost()
        self._ended.set()

    def _complain(self, address: str, why: str) -> None:
        """Log it once, and again from time to time."""
        self.trouble = why
        logged, at_s = self._logged
        if why != logged or self._now() - at_s > LOGGED_S:
            self._logged = (why, self._now())
            logger.warning("share: no link to the leader %s: %s", address, why)
