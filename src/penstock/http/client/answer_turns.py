"""Which answers are read next, when thousands of streams have bytes at once?

libuv reads ready sockets in batches of 1,024, and goes on with the next batch within the same turn of the loop while
batches are full, 48 times. So with more streams than a batch, on a busy core, a turn is 49,000 reads: a second in which
no timer runs, no newcomer is read and no byte is written. Here a turn that has brought too many reads lets each
connection be read once and pauses it; `RESUMED_MAX` go on in each later turn, in the order they were paused, until none
is left. Fewer streams, or an idle core, never get there: a read costs a subtraction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from penstock.http.client.upstream_connection import UpstreamConnection

READS_MAX: Final = 2048  # in a turn, before connections are paused: two of libuv's batches
RESUMED_MAX: Final = 512  # in a turn: some 10 ms of reads and writes


class AnswerTurns:
    """Shares the turns of a loop among all connections to engines."""

    __slots__ = ("_crowded", "_paused", "_turning", "left")

    def __init__(self) -> None:
        self.left = (
            READS_MAX // 2
        )  #: reads until the next look whether the turn has ended; connections count them down to 1
        self._paused: deque[UpstreamConnection] = deque()
        self._crowded = False  # every connection is paused after a read
        self._turning = False  # `_turn` is called in the next turn of the loop

    def read(self, connection: UpstreamConnection) -> None:
        """Count a read of an answer that goes on. Pauses the connection if this turn has brought too many."""
        self.left -= 1
        if self.left > 0:
            return
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        if self._crowded or self.left <= -(READS_MAX // 2):
            self._crowded = True
            connection.pause_turn()
            self._paused.append(connection)

    def _turn(self) -> None:
        paused = self._paused
        for _ in range(min(RESUMED_MAX, len(paused))):
            paused.popleft().resume_turn()
        self._crowded = self._turning = bool(paused)
        if paused:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self.left = READS_MAX // 2


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, AnswerTurns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> AnswerTurns:
    """Returns the one of this loop."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = AnswerTurns()
    return turns
