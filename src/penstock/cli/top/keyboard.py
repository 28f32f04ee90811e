"""Keys, read one by one without a line's end; the terminal is always restored.

Ctrl-C stays the terminal's own. A signal that ends the process becomes an exit, so that everything is closed on the
way. If standard input is no terminal there are no keys, and `keys` only waits.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from types import FrameType, TracebackType
from typing import Any

READ_BYTES_MAX = 1024  # a paste by mistake; the rest is read the next time
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Keyboard:
    """Reads keys while it is entered."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._fd = sys.stdin.fileno() if descriptor is None else descriptor
        self.heard = os.isatty(self._fd)  #: whether there are keys
        self._before: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Keyboard:
        if self.heard:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSADRAIN)
        for number in _ENDING:
            self._handlers[number] = signal.signal(number, _exit)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self.heard:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def keys(self, wait_s: float) -> list[str]:
        """The keys pressed within a time, as soon as there is any; empty if none."""
        if not self.heard:
            time.sleep(wait_s)
            return []
        if not select.select([self._fd], [], [], wait_s)[0]:
            return []
        data = os.read(self._fd, READ_BYTES_MAX)
        if not data:  # the terminal is gone
            raise SystemExit(0)
        return read(data)


def read(data: bytes) -> list[str]:
    """The keys of some bytes. Keys that send a sequence (arrows, Alt and another) are ignored."""
    if data == b"\x1b":
        return ["escape"]
    if data.startswith(b"\x1b"):
        return []
    return [key for key in data.decode(errors="ignore") if key.isprintable()]


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
