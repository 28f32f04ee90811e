"""Strange engines over real sockets.

Cells of the lab (`python -m bench lab --list`), and some that exist only on the wire, each with a simulated engine, a
gateway and clients of their own for each of the three ways: untold (`slots: auto`), told, and through (queueing off).
The three run at the same time, so that whatever else the machine does slows all of them: read the ratios.

    python benchmarks/strange_engines.py
    python benchmarks/strange_engines.py --cells 'pages/frozen*/64*,wire/*' --seconds 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from subprocess import PIPE
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from rig import Gateway, gateway, machine, started

from bench.lab.cells import CELLS, LIGHT_ANSWER, QUEUE_MAX, WARM_S, Cell, CellLoad
from bench.lab.matrix import LIGHT_MAX, OF_THROUGH_MIN, OF_TOLD_MIN, PICTURE_SHARE, Way
from bench.lab.pages import fields_of
from bench.workload import Lognormal
from penstock.sim.engine.pages import TRUE
from penstock.sim.engine.strange import Strange
from penstock.sim.world.report import percentile, ratio
from penstock.sim.world.workload import Lengths

DEFAULT_CELLS = (
    "grid/8x50ms/20", "grid/64x100ms/20", "grid/200x100ms/20", "whole/never-streams/64x20ms/100",
    "flood/plain/8x20ms/20",
    "pages/missing/64x20ms/100", "pages/frozen-overloaded/64x20ms/100", "pages/too-high/64x20ms/100",
    "pages/other-model/64x20ms/100", "pictures/8", "speeds/slows-4x/64x20ms/100",
    "doors/door-jumps/64x20ms/100", "wire/*",
)  # fmt: skip
LOOK_S = 0.1
RETRY_S = 1.0  # after a refusal


@dataclass(frozen=True)
class Wired:
    """A cell, and what only the wire knows of it."""

    cell: Cell
    lacks: tuple[str, ...] = ()  #: kinds of faults of answers


PLAIN = Cell("", slots=64, step_s=0.05, answer=60)
WIRE = {
    f"wire/{name}": Wired(replace(PLAIN, name=f"wire/{name}"), lacks)
    for name, lacks in {
        "no-done": ("no_done",),
        "no-finish-reason": ("no_finish_reason",),
        "no-usage": ("no_usage",),
        "no-stream": ("no_stream",),
        "says-nothing": ("no_stream", "no_usage", "no_finish_reason"),
    }.items()
}


@dataclass
class Tally:
    """What one way's clients saw."""

    tokens: int = 0
    answers: int = 0
    refused: int = 0
    light_s: list[float] = field(default_factory=list)
    beyond: list[float] = field(default_factory=list)
    slots: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(DEFAULT_CELLS), help="patterns of names")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured, after the first ten")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    cells = list(_chosen(args.cells.split(",")))
    print(machine())
    print(f"{'cell':40} {'tokens/s':>9} {'of told':>8} {'of through':>10} {'queue':>6} {'light s':>8} {'of told':>8} "
          f"{'refused':>8} {'slots':>6}")  # fmt: skip
    missed = 0
    for wired in cells:
        tallies = asyncio.run(_cell(wired, args.seconds, args.seed))
        missed += _report(wired.cell, tallies, args.seconds)
    print(f"{len(cells)} cells, {missed} missed a goal")
    return 1 if missed else 0


def _chosen(patterns: list[str]) -> Iterator[Wired]:
    every = {name: Wired(cell) for name, cell in CELLS.items() if _can_be_wired(cell)} | WIRE
    for pattern in patterns:
        found = [wired for name, wired in every.items() if fnmatchcase(name, pattern)]
        if not found:
            raise SystemExit(f"no cell that can be had over HTTP matches {pattern!r}")
        yield from found


def _can_be_wired(cell: Cell) -> bool:
    return cell.load is not CellLoad.OPEN and not (cell.documents or cell.foreign or cell.long_share)


# --- one cell ---------------------------------------------------------------------------------------------------


async def _cell(wired: Wired, seconds: float, seed: int) -> dict[Way, Tally]:
    """All three ways, at once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = []
        for way in Way:
            (folder / way).mkdir()
            engines = [stack.enter_context(_engine(wired, strange)) for strange in wired.cell.engines]
            running.append((way, engines, stack.enter_context(_gateway(folder / way, wired.cell, way, engines))))
        tallies = await asyncio.gather(
            *(_way(wired.cell, gate, engines, seconds, seed) for _, engines, gate in running)
        )
        return dict(zip(Way, tallies, strict=True))


def _engine(wired: Wired, strange: Strange) -> Any:
    return _Engine(wired, strange)


class _Engine:
    """A `penstock engine` of its own process; `url` once it listens."""

    def __init__(self, wired: Wired, strange: Strange) -> None:
        cell = wired.cell
        self.slots = cell.slots
        command = ["engine", "--port", "0", "--slots", str(cell.slots)]
        command += ["--step-ms", str(cell.step_s * 1000)] if cell.step_s is not None else []
        command += ["--max-batched-tokens", str(cell.config.max_num_batched_tokens)]
        command += ["--kv-blocks", str(cell.config.kv_blocks)]
        for fault in _faults(wired, strange):
            command += ["--fault", json.dumps(fault)]
        self._context = started([sys.executable, "-m", "penstock", *command], stdout=PIPE)
        self.url = ""

    def __enter__(self) -> _Engine:
        process = self._context.__enter__()
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if not line:
            raise SystemExit("the engine did not start")
        self.url = line.split()[-1]
        return self

    def __exit__(self, *why: object) -> None:
        self._context.__exit__(None, None, None)


def _faults(wired: Wired, strange: Strange) -> Iterator[dict[str, Any]]:
    for kind in wired.lacks:
        yield {"kind": kind}
    if not strange.streams:
        yield {"kind": "no_stream"}
    if not strange.tells_usage:
        yield {"kind": "no_usage"}
    if strange.speeds:
        yield {"kind": "slow", "course": [list(entry) for entry in strange.speeds]}
    if strange.doors:
        yield {"kind": "door", "course": [list(entry) for entry in strange.doors]}
    if strange.page != TRUE:
        yield {"kind": "metrics_lie", "value": fields_of(strange.page)}


def _gateway(folder: Path, cell: Cell, way: Way, engines: list[_Engine]) -> Any:
    slots = cell.slots if way is Way.TOLD else "auto"
    settings: dict[str, Any] = {"endpoints": [{"url": engine.url, "slots": slots} for engine in engines]}
    if way is Way.THROUGH:
        settings["queue"] = {"enabled": False}
    return gateway(folder, settings)


async def _way(cell: Cell, gate: Gateway, engines: list[_Engine], seconds: float, seed: int) -> Tally:
    tally, rng = Tally(), random.Random(seed)
    await _ready(gate)
    loop = asyncio.get_running_loop()
    from_s, until_s = loop.time() + WARM_S, loop.time() + WARM_S + seconds
    asking = [
        _client(cell, gate.port, tally, random.Random(rng.getrandbits(64)), from_s, until_s)
        for _ in range(cell.clients_each * len(engines))
    ]
    if cell.load is CellLoad.FLOOD:
        asking.append(_light(cell, gate.port, tally, random.Random(rng.getrandbits(64)), from_s, until_s))
    tasks = [asyncio.create_task(work) for work in (*asking, _look(engines, tally, from_s, until_s))]
    await asyncio.sleep(until_s - loop.time())
    tally.slots = await asyncio.to_thread(gate.metric, "penstock_slots")
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return tally


async def _ready(gate: Gateway) -> None:
    for _ in range(600):
        try:
            await asyncio.to_thread(gate.get, "/ready")
        except OSError:
            await asyncio.sleep(0.05)
        else:
            return
    raise SystemExit("the gateway did not get ready")


# --- clients ----------------------------------------------------------------------------------------------------


def _lengths(mean: int) -> Lengths | None:
    return Lognormal(mean, 2.5 * mean) if mean >= 10 else None


def _request(who: str, prompt_tokens: int, output_tokens: int, *, stream: bool, picture: str = "") -> bytes:
    content: Any = "word" * prompt_tokens
    if picture:
        url = {"url": f"data:image/png;base64,{picture}"}
        content = [{"type": "text", "text": content}, {"type": "image_url", "image_url": url}]
    body = json.dumps(
        {
            "model": "sim",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": output_tokens,
            "stream": stream,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-tenant-id: {who}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Asker:
    """One client on one connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes, took: Any) -> int:
        """The status. `took` is told each piece of a good answer's body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._streams
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if "transfer-encoding: chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                took((await reader.readexactly(size + 2))[:-2])
            await reader.readexactly(2)
        else:
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0] or 0)
            took(await reader.readexactly(size))
        if "connection: close" in head:
            self.close()
        return status

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _client(cell: Cell, port: int, tally: Tally, rng: random.Random, from_s: float, until_s: float) -> None:
    """Asks, and asks again when it was answered."""
    loop, asker = asyncio.get_running_loop(), _Asker(port)
    answers, prompts = _lengths(cell.answer), _lengths(cell.prompt)
    try:
        while loop.time() < until_s:
            tokens = answers.draw(rng) if answers else cell.answer
            prompt = prompts.draw(rng) if prompts else cell.prompt

            def took(piece: bytes, tokens: int = tokens) -> None:
                if from_s <= loop.time() < until_s:
                    streamed = piece.count(b'"delta":{"content"')
                    tally.tokens += streamed or (tokens if piece.startswith(b"{") else 0)

            picture = ""
            if cell.picture_bytes and rng.random() < PICTURE_SHARE:
                picture = f"{rng.getrandbits(64):016x}" + "A" * cell.picture_bytes
            data = _request("heavy", prompt, tokens, stream=cell.streamed, picture=picture)
            status = await asker.ask(data, took)
            if status == 200:
                tally.answers += 1
            else:
                tally.refused += 1
                await asyncio.sleep(RETRY_S)
    finally:
        asker.close()


async def _light(cell: Cell, port: int, tally: Tally, rng: random.Random, from_s: float, until_s: float) -> None:
    """Asks now and then, whether it was answered or not."""
    loop = asyncio.get_running_loop()
    asked: set[asyncio.Task[None]] = set()

    async def one() -> None:
        asker, began_s = _Asker(port), loop.time()
        firsts: list[float] = []
        try:
            data = _request("light", cell.prompt, LIGHT_ANSWER, stream=cell.streamed)
            await asker.ask(data, lambda _: firsts.append(loop.time()))
        finally:
            asker.close()
            if began_s >= from_s:
                tally.light_s.append((firsts[0] if firsts else loop.time()) - began_s)

    try:
        while loop.time() < until_s:
            await asyncio.sleep(rng.expovariate(cell.light_per_s))
            task = asyncio.create_task(one())
            asked.add(task)
            task.add_done_callback(asked.discard)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _look(engines: list[_Engine], tally: Tally, from_s: float, until_s: float) -> None:
    """How many requests are in each engine beyond its slots, as its `/load` says."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(from_s - loop.time())
    askers = [(engine, _Asker(int(engine.url.rpartition(":")[2]))) for engine in engines]
    try:
        while loop.time() < until_s:
            for engine, asker in askers:
                body: list[bytes] = []
                await asker.ask(b"GET /load HTTP/1.1\r\nhost: x\r\n\r\n", body.append)
                load = json.loads(b"".join(body))["server_load"]
                tally.beyond.append(max(0.0, load - engine.slots))
            await asyncio.sleep(LOOK_S)
    finally:
        for _, asker in askers:
            asker.close()


# --- the table --------------------------------------------------------------------------------------------------


def _report(cell: Cell, tallies: dict[Way, Tally], seconds: float) -> bool:
    """Print a row; True when it misses a goal."""
    untold, told, through = (tallies[way] for way in Way)
    of_told, of_through = ratio(untold.tokens, told.tokens), ratio(untold.tokens, through.tokens)
    queue = percentile(untold.beyond, 0.99)
    light_s = percentile(untold.light_s, 0.99)
    light = ratio(light_s, percentile(told.light_s, 0.99))
    at_odds = cell.turnover_max < OF_THROUGH_MIN
    held = {
        "told": not of_told < OF_TOLD_MIN,
        "through": cell.load is CellLoad.FLOOD or at_odds or not of_through < OF_THROUGH_MIN,
        "queue": at_odds or queue <= QUEUE_MAX,
        "light": not light > LIGHT_MAX,
        "wrong": untold.refused <= through.refused,
    }
    missed = [name for name, met in held.items() if not met]
    verdict = f"missed: {', '.join(missed)}" if missed else ""
    print(
        f"{cell.name:40} {untold.tokens / seconds:9.0f} {of_told:8.3f} {of_through:10.3f} {queue:6.0f} {light_s:8.3f} "
        f"{light:8.3f} {untold.refused:8} {untold.slots:6.0f}  {verdict}".rstrip(),
        flush=True,
    )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
