"""A line between two processes, with delay and loss, in order like TCP; it can be cut.

A lost frame is sent again later, and later frames wait for it. A cut line loses nothing as long as both ends keep it:
frames arrive when it is mended. Frames under way when one end gives the link up never arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Generic, Protocol, TypeVar

M = TypeVar("M")


@dataclass(frozen=True)
class Wire:
    """How long a frame takes, one way."""

    least_s: float
    most_s: float
    lost: float = 0.0  #: the share of frames that have to be sent again …
    again_s: float = 0.2  #: … so much later: the shortest time after which TCP does

    def delay_s(self, random: Random) -> float:
        """Returns what the next frame takes."""
        delay_s = self.least_s + (self.most_s - self.least_s) * random.random()
        return delay_s + self.again_s if self.lost and random.random() < self.lost else delay_s


IN_PROCESS = Wire(0.0, 0.0)  # a decider and the edge of its own process
UNIX = Wire(0.000_05, 0.000_05)  # a socket of one machine, as measured there and back: 49 µs and a turn of the loop
LAN = Wire(0.000_1, 0.000_3)
WAN = Wire(0.005, 0.005, lost=0.001)


class Clockwork(Protocol):
    """The world, as a line knows it."""

    now: float

    def at(self, when: float, event: Callable[[], None], /) -> None: ...


class OneWay(Generic[M]):
    """One direction of one link. All that is said in one turn is one frame."""

    def __init__(
        self,
        world: Clockwork,
        wire: Wire,
        random: Random,
        *,
        write: Callable[[Sequence[M]], bytes],
        arrive: Callable[[bytes], None],
    ) -> None:
        self._world = world
        self._wire = wire
        self._random = random
        self._write = write
        self._arrive = arrive
        self._said: list[M] = []
        self._last_s = 0.0  # when what was sent last arrives: nothing overtakes it
        self._stuck: list[bytes] = []  # what the cut keeps from arriving
        self._cut = False
        self._over = False

    def say(self, message: M) -> None:
        """Send a message at the end of this turn."""
        if not self._said:
            self._world.at(self._world.now, self._flush)
        self._said.append(message)

    def cut(self) -> None:
        """Let nothing arrive, until `mend`."""
        self._cut = True

    def mend(self) -> None:
        """The line is whole again: what the cut kept arrives."""
        self._cut = False
        stuck, self._stuck = self._stuck, []
        for data in stuck:
            self._come(data)

    def close(self) -> None:
        """One end gave the link up: what is under way never comes."""
        self._over = True
        self._stuck = []

    def _flush(self) -> None:
        data, self._said = self._write(self._said), []
        self._last_s = max(self._last_s, self._world.now + self._wire.delay_s(self._random))
        self._world.at(self._last_s, partial(self._come, data))

    def _come(self, data: bytes) -> None:
        if self._over:
            return
        if self._cut:
            self._stuck.append(data)
            return
        self._arrive(data)
