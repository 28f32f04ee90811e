"""Does one connection wait while others are served? A closed loop on kept connections, engines that answer at once.

Each connection sends its next request after its answer, so the median shows the common speed and the 99th percentile
the longest waits. Read p99/p50 of Penstock beside that of the raw hop in the same round: both share the machine, the
engines and the client. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rig import free_port

HERE = Path(__file__).parent / "proxies"
READY_S_MAX = 60.0


@contextlib.contextmanager
def started(port: int, *command: object) -> Iterator[int]:
    """A process that listens on the port."""
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + READY_S_MAX
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"does not listen on {port}: {command}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def measure(port: int, pid: int, connections: int, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, HERE / "client.py", "--port", port, "--pid", pid, "--connections", connections]
    command += ["--seconds", args.seconds, "--warm-up", args.warm_up, "--size", args.size]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--size", type=int, default=300, help="bytes of a body")
    parser.add_argument("--serve", default="", help="more arguments of `penstock serve`, in one string")
    args = parser.parse_args()
    engines = [free_port(), free_port()]
    urls = [part for port in engines for part in ("--endpoint", f"http://127.0.0.1:{port}")]
    hop, gate = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(started(engines[0], sys.executable, HERE / "engine.py", *engines))
        hop_pid = stack.enter_context(
            started(hop, sys.executable, HERE / "hop.py", "--port", hop, "--engines", *engines)
        )
        serve = [sys.executable, "-m", "penstock", "serve", "--listen", f"127.0.0.1:{gate}", *urls, *args.serve.split()]
        gate_pid = stack.enter_context(started(gate, *serve))
        time.sleep(1.0)
        print("connections  what       requests/s   p50 ms   p99 ms   max ms  p99/p50   (failed)")
        for connections in args.connections:
            ratios: dict[str, list[float]] = {"hop": [], "penstock": []}
            for _ in range(args.rounds):
                for name, port, pid in (("hop", hop, hop_pid), ("penstock", gate, gate_pid)):
                    f = measure(port, pid, connections, args)
                    ratio = f["p99_ms"] / f["p50_ms"]
                    ratios[name].append(ratio)
                    print(
                        f"{connections:11} {name:10} {f['requests'] / f['wall_s']:11.0f} {f['p50_ms']:8.1f} "
                        f"{f['p99_ms']:8.1f} {f['max_ms']:8.1f} {ratio:8.1f}   ({f['failed']:.0f})",
                        flush=True,
                    )
            found = {name: statistics.median(values) for name, values in ratios.items()}
            print(
                f"{connections} connections: p99/p50 {found['penstock']:.2f}, that of the hop {found['hop']:.2f}: "
                f"{found['penstock'] / found['hop']:.2f} of it (goals: 3, 1.3)"
            )


if __name__ == "__main__":
    main()
