"""Lines of the log that would cost a request more than its answer: kept as values, formatted and written in batches.

A line is added as a tuple. `DELAY_S` later, or in the next turn if what it reports waited already, the loop formats all
lines and writes them to standard error, in pieces that a pipe takes whole, and only while the pipe has room: a slow
reader stops no request. Then lines wait, `LINES_MAX` at most; later ones are dropped, counted, and a line in their
place reports how many.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from penstock import clock, logs

DELAY_S = 0.1  # from a single line's event to its writing, at most, while the log is read
RETRY_S = 0.01  # until the next look at a full pipe
LINES_MAX = 10_000  # waiting: some 6 MB
PIECE_BYTES = 4096  # a pipe with any room takes as much at once (PIPE_BUF), so lines of several processes stay whole
PIECES_PER_TURN = 32  # some 200 lines, 1 ms of the loop's time
CLOSE_S = 2.0  # for the reader to take the rest

#: Makes a line of (the time, the values), as JSON or as text.
Form = Callable[[float, Any, bool], bytes]
_Line = tuple[Form, float, Any]  # with the Unix time of what it reports


class LineLog:
    """Lines on their way to standard error, in their order."""

    def __init__(self, dropped: Callable[[int], None]) -> None:
        self._dropped = dropped  # counts lines
        self._waiting: deque[_Line] = deque()
        self._gap = 0  # lines dropped since the last one that waits
        self._piece = self._next = b""  # formatted: a piece to write, and the line that it had no room for
        self._timer: asyncio.Handle | None = None

    def add(self, form: Form, values: object) -> None:
        """Write a line soon."""
        self._keep([(form, clock.wall(), values)])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_S, self._flush)

    def add_all(self, lines: Sequence[_Line]) -> None:
        """Write lines of what happened a while ago."""
        self._keep(lines)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._flush)

    def _keep(self, lines: Sequence[_Line]) -> None:
        waiting = self._waiting
        lines_max = max(0, LINES_MAX - len(waiting))
        waiting.extend(lines[:lines_max])
        if len(lines) > lines_max:
            self._gap += len(lines) - lines_max
            self._dropped(len(lines) - lines_max)

    def close(self) -> None:
        """Write everything, as long as it is read within `CLOSE_S`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        until_s = clock.now() + CLOSE_S
        while self._fill():
            if not self._write(max(0.0, until_s - clock.now())):
                self._dropped(self._piece.count(b"\n") + bool(self._next) + len(self._waiting))
                self._piece = self._next = b""
                self._waiting.clear()

    def _flush(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for _ in range(PIECES_PER_TURN):
            if not self._fill():
                return
            if not self._write(0.0):
                self._timer = loop.call_later(RETRY_S, self._flush)
                return
        self._timer = loop.call_soon(self._flush)

    def _fill(self) -> bool:
        """Format the next piece, unless there is one. Returns False if nothing is left."""
        if self._piece:
            return True
        piece, self._next = self._next, b""
        waiting = self._waiting
        is_json = logs.form() == "json"
        while waiting and not self._next:
            form, at_s, values = waiting.popleft()
            line = form(at_s, values, is_json) + b"\n"
            if piece and len(piece) + len(line) > PIECE_BYTES:
                self._next = line
            else:
                piece += line
        if self._gap and len(waiting) < LINES_MAX:
            waiting.append((_gap, clock.wall(), self._gap))
            self._gap = 0
        self._piece = piece
        return bool(piece)

    def _write(self, wait_s: float) -> bool:
        """Write the piece, or drop it if that fails. Returns False if its reader left no room for it in `wait_s`."""
        stream = logs.stream()
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError):  # not a file
            stream.write(self._piece.decode())
            self._piece = b""
            return True
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        if not room.poll(wait_s * 1000):
            return False
        try:
            written = os.write(descriptor, self._piece)
        except BlockingIOError:
            return False
        except OSError:  # nobody will read it
            written = len(self._piece)
            self._dropped(self._piece.count(b"\n"))
        self._piece = self._piece[written:]
        return True


def _gap(at_s: float, lines: int, is_json: bool) -> bytes:  # noqa: FBT001
    message = f"{lines} lines are missing here: standard error was not read fast enough"
    return logs.line(at_s, "WARNING", __name__, message, {} if is_json else None)
