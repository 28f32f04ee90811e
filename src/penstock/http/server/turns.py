"""Who may be read from next, where many send large bodies at once?

A socket is read for as long as bytes are there, up to 32 times in one turn of the event loop: 8 MiB from one fast
client, and as much from the next one, before anybody else's token gets through. So what all bodies that are longer than
a read may bring in one turn is bounded; what is over it is paused, and goes on in a later turn, one after another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.http.server.connection import Connection

_TURN_BYTES: Final = 512 * 1024  # a millisecond of reading and parsing


class ReadTurns:
    """The connections of one server whose bodies are longer than a read."""

    __slots__ = ("_bytes", "_paused", "_turning")

    def __init__(self) -> None:
        self._bytes = 0  # read in this turn
        self._paused: deque[Connection] = deque()
        self._turning = False  # the next turn will be heard of

    def read(self, connection: Connection, size: int) -> None:
        """So much of a body came, and more is to come."""
        self._bytes += size
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._bytes > _TURN_BYTES:
            connection.pause_turn()
            self._paused.append(connection)

    def _turn(self) -> None:
        self._bytes = 0
        if self._paused:
            self._paused.popleft().resume_turn()
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._turning = False
