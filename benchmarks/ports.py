"""Ports for addresses that are named before anybody listens there, or that somebody leaves and comes back to.

A port that the kernel chose (`:0`) is anybody's as soon as it is closed: the next `:0` may get it, and so may each
connection that is dialled, for it needs a port at its own end. So these ports are none of the kernel's. Processes
divide them in blocks, and which block is whose the kernel knows: its first port is bound, and nobody listens there.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Final

LOWEST: Final = 10_240
BLOCK: Final = 256
_KERNELS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port without a listener, reserved for the caller.

    The same one comes again after all others of this process's block.
    """
    for port in islice(_block(), BLOCK):  # from where it was left
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as all who listen do
            try:
                probe.bind(("", port))
            except OSError:
                continue  # it is in use
            return port
    raise AssertionError("nobody listens at so many ports")


def kernels_own() -> range:
    """What the kernel chooses from; where it does not say, what Linux does unless it is told otherwise."""
    try:
        first, last = _KERNELS.read_text().split()
    except OSError:
        return range(32_768, 61_000)
    return range(int(first), int(last) + 1)


def starts_of_blocks(kernels: range) -> Sequence[int]:
    """Blocks below the kernel's ports, then those above. Where it chooses from all, any: there is nothing better."""
    starts = range(LOWEST, 65_536 - BLOCK, BLOCK)
    free = [start for start in starts if start + BLOCK <= kernels.start or start >= kernels.stop]
    return free or starts


@cache
def _block() -> Iterator[int]:
    """This process's ports, for as long as it lives: its end is what closes the claim."""
    for start in starts_of_blocks(kernels_own()):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", start))
        except OSError:
            claim.close()
        else:
            claim.detach()
            return cycle(range(start + 1, start + BLOCK))
    raise AssertionError("other processes have all ports")
