"""Which processes are a gateway's workers?"""

from __future__ import annotations

import contextlib
from pathlib import Path


def workers_of(pid: int) -> dict[int, str]:
    """The workers of the gateway whose first process this is, and what they are called."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if b"penstock.gateway.workers" in words and parent == pid:
                found[int(entry.name)] = words[words.index(b"--name") + 1].decode()
    return found
