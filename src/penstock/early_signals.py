"""What becomes of a signal that comes before anybody listens to it?

Until its handlers stand, a process has the system's: SIGHUP and SIGTERM end it on the spot, SIGINT somewhere in the
middle of an import. So `penstock serve` holds all three back from its first line on, and lets them come when the
gateway listens to them: an early reload is a reload, an early stop a clean one. They are held, not forgotten: the
kernel keeps one of each.
"""

from __future__ import annotations

import signal

HELD = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)


def hold() -> None:
    """Nothing of these arrives until `release`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD)


def release() -> None:
    """What came meanwhile arrives now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
