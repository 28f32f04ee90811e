"""Signals that arrive before the gateway handles them are held back, not lost.

By default SIGHUP and SIGTERM end a process, SIGINT maybe in the middle of an import. So `penstock serve` holds all
three back from its first line until the gateway handles them; the kernel keeps one of each.
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


def release() -> None:
    """Let signals arrive that were held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
