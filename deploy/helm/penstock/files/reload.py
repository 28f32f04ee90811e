"""Sends the gateway SIGHUP when a mounted folder has other files. For a container beside the gateway's, in a pod whose
containers see each other's processes.

    python reload.py FOLDER...
"""

import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

EVERY_S = float(os.environ.get("EVERY_S", "2"))


def versions() -> list[Path]:
    """Kubernetes replaces a mounted ConfigMap or Secret by turning the link `..data` to another folder, in one step."""
    return [(Path(folder) / "..data").readlink() for folder in sys.argv[1:]]


def gateways() -> list[int]:
    """The processes that were started as `… penstock serve …`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it is over, or another user's
        if any(word == b"serve" and before.endswith(b"penstock") for before, word in pairwise(words)):
            found.append(int(process.name))
    return found


def follow() -> None:
    followed = versions()
    while True:
        time.sleep(EVERY_S)
        now = versions()
        if now == followed:
            continue
        told = gateways()
        for pid in told:
            os.kill(pid, signal.SIGHUP)
        print(f"the files changed: SIGHUP to {told or 'nobody, so again soon'}", flush=True)
        if told:
            followed = now


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    follow()
