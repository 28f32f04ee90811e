"""Signals that arrive before the gateway handles them are held back, not lost.

By default SIGHUP and SIGTERM end a process, SIGINT maybe in the middle of an import. So `penstock serve` holds all
three back from its first line until the gateway handles them; the kernel keeps one of each. Before that line the
interpreter starts, for some ten milliseconds in which nothing can be held back. Workers ignore all three from their
first line on: a terminal or a container sends signals to all processes alike.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

HELD = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold these signals back until `release`, or until this is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        release()


def ignore() -> None:
    """Ignore these signals, those held back, too."""
    for number in HELD:
        signal.signal(number, signal.SIG_IGN)
    release()


def release() -> None:
    """Let signals arrive that were held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
