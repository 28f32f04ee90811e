"""Common parts of benchmarks: a gateway in its own process, and the kernel's figures of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ports import free_port

__all__ = ["Gateway", "cpu_s_of", "free_port", "gateway", "machine", "started"]

START_S_MAX = 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Gateway:
    """A running `penstock serve`."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def cpu_s(self) -> float:
        """User and system time so far."""
        return cpu_s_of(self.pid)

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30.0) as answer:
            body: bytes = answer.read()
        return body

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a series over its samples that hold a label."""
        lines = self.get("/metrics").decode().splitlines()
        found = [line for line in lines if line.startswith((name + "{", name + " ")) and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def cpu_s_of(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@contextlib.contextmanager
def gateway(folder: Path, settings: dict[str, Any]) -> Iterator[Gateway]:
    """Start one on a free port; it is gone afterwards."""
    port = free_port()
    file = folder / "penstock.yaml"
    file.write_text(json.dumps({"listen": f"127.0.0.1:{port}", **settings}))
    log = (folder / "penstock.log").open("wb")
    with started([sys.executable, "-m", "penstock", "serve", "-c", str(file)], stdout=log, stderr=log) as process:
        running = Gateway(process.pid, port)
        until_s = time.monotonic() + START_S_MAX
        while True:
            try:
                running.get("/health")
            except OSError:
                if time.monotonic() > until_s or process.poll() is not None:
                    raise SystemExit((folder / "penstock.log").read_text()) from None
                time.sleep(0.05)
            else:
                break
        yield running


@contextlib.contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone afterwards."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def machine() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = models[0].partition(":")[2].strip() if models else "unknown CPU"
    return f"{os.cpu_count()} cores, {name}, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}"
