"""First tokens with a frozen page, and learning unknown slots, over HTTP.

Two small experiments, each on two gateways at the same time, so that other load affects both:

    python benchmarks/frozen_gauges.py            # a page frozen at 64 running and 200 waiting, beside a true one
    python benchmarks/frozen_gauges.py --size     # 200 slots, 300 clients in a closed loop: `auto` beside told

The load is small enough for two cores (`--rate`, `--step-ms`). The one that is told shows whether it was: first tokens
take a step or two, and tokens a second are slots over the step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rig import Gateway, cpu_s_of, gateway, machine, started
from strange_engines import _Asker, _ready, _request

from penstock.sim.world.report import percentile

OVERLOADED = {"frozen": True, "frozen_running": 64, "frozen_waiting": 200}
FOUND_S = 2.0  # from then on it is to be as it is with a true page


async def frozen(options: argparse.Namespace) -> None:
    """First tokens of a steady stream of requests, by when they were asked for."""
    lies: tuple[dict[str, Any], ...] = ({}, OVERLOADED)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gates = [_behind(stack, folder / str(at), (64, options.step_ms), 64, lie) for at, lie in enumerate(lies)]
        took = await asyncio.gather(*(_stream(gate, options.rate, options.seconds) for gate, _ in gates))
        for name, (gate, engine), told in zip(("true page", "frozen page"), gates, took, strict=True):
            early = [first_s for at_s, first_s in told if at_s < FOUND_S]
            late = [first_s for at_s, first_s in told if at_s >= FOUND_S]
            cpu = (gate.cpu_s() + cpu_s_of(engine)) / options.seconds
            print(
                f"{name:12} {len(told)} answered; "
                f"first tokens in the first {FOUND_S:g} s: p95 {percentile(early, 0.95):.2f} s; "
                f"later: p50 {percentile(late, 0.5):.3f} s, p95 {percentile(late, 0.95):.3f} s; {cpu:.2f} cores"
            )


async def _stream(gate: Gateway, rate: float, seconds: float) -> list[tuple[float, float]]:
    await _ready(gate)
    loop, draw = asyncio.get_running_loop(), random.Random(1)
    began_s, told = loop.time(), list[tuple[float, float]]()

    async def one() -> None:
        asker, asked_s, firsts = _Asker(gate.port), loop.time(), list[float]()
        await asker.ask(_request("t", 100, 20, stream=True), lambda _: firsts.append(loop.time()))
        asker.close()
        told.append((asked_s - began_s, firsts[0] - asked_s))

    async with asyncio.TaskGroup() as group:
        while loop.time() < began_s + seconds:
            group.create_task(one())
            await asyncio.sleep(draw.expovariate(rate))
    return told


async def size(options: argparse.Namespace) -> None:
    """Tokens a second of a closed loop, by the time since its beginning."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = {"told": 200, "auto": "auto"}
        gates = [_behind(stack, folder / way, (200, options.step_ms), slots) for way, slots in ways.items()]
        counts = await asyncio.gather(*(_closed(gate, options.seconds) for gate, _ in gates))
        for way, (gate, engine), tokens in zip(ways, gates, counts, strict=True):
            cpu = (gate.cpu_s() + cpu_s_of(engine)) / options.seconds
            slots = await asyncio.to_thread(gate.metric, "penstock_slots")
            row = ", ".join(f"{10 * at} s {count / 10:.0f}" for at, count in enumerate(tokens))
            print(
                f"{way:5} tokens a second from {row} (at best {200_000 / options.step_ms:.0f}); "
                f"slots {slots:.0f}; {cpu:.2f} cores"
            )


async def _closed(gate: Gateway, seconds: float) -> list[int]:
    await _ready(gate)
    loop = asyncio.get_running_loop()
    began_s, counts = loop.time(), [0] * int(seconds / 10)

    def took(piece: bytes) -> None:
        at = int((loop.time() - began_s) / 10)
        if at < len(counts):
            counts[at] += piece.count(b'"delta":{"content"')

    async def client() -> None:
        asker = _Asker(gate.port)
        try:
            while True:
                await asker.ask(_request("t", 20, 20, stream=True), took)
        finally:
            asker.close()

    clients = [asyncio.create_task(client()) for _ in range(300)]
    await asyncio.sleep(seconds)
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return counts


def _behind(
    stack: ExitStack, folder: Path, engine: tuple[int, float], slots: int | str, lie: dict[str, Any] | None = None
) -> tuple[Gateway, int]:
    """A gateway before an engine of its own, and that one's process."""
    folder.mkdir()
    size, step_ms = engine
    command = [
        sys.executable,
        "-m",
        "penstock",
        "engine",
        "--port",
        "0",
        "--slots",
        str(size),
        "--step-ms",
        str(step_ms),
    ]
    if lie:
        command += ["--fault", json.dumps({"kind": "metrics_lie", "value": lie})]
    process = stack.enter_context(started(command, stdout=PIPE))
    assert process.stdout is not None
    url = process.stdout.readline().decode().split()[-1]
    return stack.enter_context(gateway(folder, {"endpoints": [{"url": url, "slots": slots}]})), process.pid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="store_true")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--step-ms", type=float, default=0.0, help="of the engines: 100, with --size 500")
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    options.step_ms = options.step_ms or (500.0 if options.size else 100.0)
    print(machine())
    asyncio.run(size(options) if options.size else frozen(options))


if __name__ == "__main__":
    main()
