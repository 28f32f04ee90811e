"""A CPU profile of Penstock. The gateway under a profiler, with the engine and the client of `overhead.py`.

How to read it. It is CPU time: others on the machine don't show. cProfile charges calls more than what they do, so
small functions look dearer than they are: read the list as a ranking. The first table adds up own time, and calls per
request, by module; C functions count where they are called from, and sending and receiving count for the loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import pstats
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import overhead
import uvloop
from proxies import peers

from penstock.config import load as config
from penstock.gateway.serve import Gateway


async def _serve(path: str, client: list[str]) -> cProfile.Profile:
    gateway = Gateway(config.load(path, {}))
    await gateway.start()
    process = await asyncio.create_subprocess_exec(*client, stdout=subprocess.PIPE)
    await asyncio.sleep(1.5)
    profile = cProfile.Profile(time.thread_time)
    profile.enable()
    assert process.stdout is not None
    await process.stdout.readline()
    profile.disable()
    await process.wait()
    await gateway.close()
    return profile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=300)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--slots", type=int, default=256, help="of each of the two engines")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--lines", type=int, default=45)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ports = [overhead.free_port(), overhead.free_port()]
        engine = [sys.executable, str(overhead.HERE / "engine.py"), *map(str, ports)]
        stack.enter_context(overhead.running(engine, Path(folder) / "engine.log"))
        overhead.await_answer("the engine", ports[0], "", Path(folder) / "engine.log")
        place = peers.Place(overhead.free_port(), 0, ports, Path(folder), Path(folder))
        start = peers.penstock(place, slots=args.slots)
        client = [sys.executable, str(overhead.HERE / "client.py"), "--port", str(place.port), "--key", start.key]
        client += ["--connections", str(args.connections), "--size", str(args.size), "--seconds", str(args.seconds)]
        client += ["--warm-up", "1", *(["--stream"] if args.stream else [])]
        profile = uvloop.run(_serve(start.command[-1], client))
    stats = pstats.Stats(profile)
    seen = ("relay.py", "on_data") if args.stream else ("journey.py", "succeeded")
    units = sum(counted[1] for at, counted in stats.stats.items() if (Path(at[0]).name, at[2]) == seen)  # type: ignore[attr-defined]
    own: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for (path, _, _), (_, count, own_s, _, callers) in stats.stats.items():  # type: ignore[attr-defined]
        for caller, part_count, part_s in (
            [(_module(at[0]), part[1], part[2]) for at, part in callers.items()]
            if path == "~"
            else [(_module(path), count, own_s)]
        ):
            own[caller] += part_s
            calls[caller] += part_count
    unit = "piece" if args.stream else "request"
    print(f"{units:.0f} {unit}s, {sum(calls.values()) / units:.0f} calls each\n   time  calls")
    for module, own_s in own.most_common(30):
        print(f"{own_s / sum(own.values()):7.1%}{calls[module] / units:7.1f}  {module}")
    stats.sort_stats("tottime").print_stats(args.lines)
    return 0


def _module(path: str) -> str:
    parts = Path(path).parts
    return "/".join(parts[parts.index("penstock") + 1 :]) if "penstock" in parts else Path(path).name


if __name__ == "__main__":
    sys.exit(main())
