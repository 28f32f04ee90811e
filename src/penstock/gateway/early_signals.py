"""What becomes of a signal that comes before anybody listens to it?

Until its handlers stand, a process has the system's: SIGHUP and SIGTERM end it on the spot, SIGINT somewhere in the
middle of an import. So `penstock serve` holds all three back from its first line on, and lets them come when the
gateway listens to them: an early reload is a reload, an early stop a clean one. They are held, not forgotten: the
kernel keeps one of each.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

HELD = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """None of these arrives until `release`, or until this is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        release()


def release() -> None:
    """What came meanwhile arrives now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
