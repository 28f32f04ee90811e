"""Which connection is read next, when many clients send large bodies at once?

The event loop reads a socket as long as there are bytes, up to 32 times in one turn: 8 MiB from one fast client, and as
much from the next one, before the token of any answer gets through. So there is a bound on the bytes of all large
bodies (of more than one read) in one turn. The connections over it are paused and go on in later turns, one per turn,
in the order they were paused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.http.server.connection import Connection

_TURN_BYTES: Final = 512 * 1024  # takes a millisecond to read and parse


class ReadTurns:
    """Shares the turns of the loop among a server's connections with large bodies."""

    __slots__ = ("_bytes", "_paused", "_turning")

    def __init__(self) -> None:
        self._bytes = 0  # read in this turn, from all connections
        self._paused: deque[Connection] = deque()
        self._turning = False  # True: `_turn` is called in the next turn of the loop

    def read(self, connection: Connection, size: int) -> None:
        """Count `size` bytes of a body that goes on. Pauses the connection if this turn has brought too many."""
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
