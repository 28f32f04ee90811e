"""Two real vLLM and a real llama.cpp on this CPU, with unknown slots: their throughput.

Needs the installation of `make test-engines`. For each size of the engines, length of answers and share of streams a
closed loop of clients asks: the engines directly (by turns), a gateway told nothing, the same gateway told the slots,
and one with queueing off, each freshly started. All stand beside one another and are asked in short turns, each round
in the other order, so that what else the machine does falls on all alike; the ratios are of one round each, and their
mean is shown with its standard error. The hop itself shares the two cores with the engines, so `told` and `off` say
what of a loss is the hop's. On a machine that others use the engines' own count of tokens a step says most: it is the
batch they run, and wavers little.

python -m benchmarks.real_slots [--sizes 8 64 256] [--engines 2] [--rounds 6] [--seconds 8] [--tokens 8 128]
    [--streams 0.5] [--ways untold told off envoy] [--minutes 30]

At its end it prints a row for each cell; a cell that would begin after `--minutes` is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.real.processes import LLAMA_SIZE, MODEL, Engine, Gateway, LlamaCpp, Vllm, fetch, say, series
from tests.gateway.epp.conftest import Envoy

WARM_S = 10.0  # before anything counts: what the goal allows for finding out
TURN_WARM_S = 3.0  # of each turn: until the gateway has read that what ran before is over
LOOK_EVERY_S = 0.5
LOOKED_AT = ("slots", "engine_running", "engine_waiting")  # of an endpoint, by the gateway's state
TOKENS_MADE = {"vllm": "vllm:generation_tokens_total", "llamacpp": "llamacpp:tokens_predicted_total"}
STEPS_MADE = {"vllm": "vllm:iteration_tokens_total_count", "llamacpp": "llamacpp:n_decode_total"}


async def load(urls: list[str], clients: int, tokens: int, streams: float, until_s: float) -> None:
    """A closed loop until then. A share of the clients stream."""

    async def client(port: int, serial: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        for number in itertools.count():
            if time.monotonic() >= until_s:
                break
            body: dict[str, Any] = {"model": MODEL, "prompt": f"{serial} {number} the river runs", "max_tokens": tokens}
            body |= {"ignore_eos": True, "temperature": 0, "stream": serial % 2 < 2 * streams}
            data = json.dumps(body).encode()
            head = "POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\n"
            request = f"{head}content-length: {len(data)}\r\n\r\n".encode() + data
            writer.write(request)
            try:
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            except (asyncio.IncompleteReadError, ConnectionError):  # a server may close a connection that idled
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
                writer.write(request)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            status = answer.split(b"\r\n", 1)[0]
            if b" 200 " not in status:
                say(f"not answered: {status.decode()}")
            if b"chunked" in answer:
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    await reader.readexactly(size + 2)
                await reader.readexactly(2)
            else:
                await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.close()

    ports = [int(url.rpartition(":")[2]) for url in urls]
    await asyncio.gather(*(client(ports[n % len(ports)], n) for n in range(clients)))


@dataclass(frozen=True)
class Made:
    """What was made until a moment, by the engines' own counters, and at what cost."""

    tokens: float
    steps: float
    cpu_s: float  # of the engines
    gateway_s: float  # of CPU
    at_s: float

    @classmethod
    def now(cls, engines: list[Engine], gateway: Gateway | None) -> Made:
        pages = [(engine.kind, fetch(engine.url + "/metrics")[1]) for engine in engines]
        tokens = sum(series(page, TOKENS_MADE[kind]) for kind, page in pages)
        steps = sum(series(page, STEPS_MADE[kind]) for kind, page in pages)
        cpu_s = sum(engine.process.cpu_s() for engine in engines)
        return cls(tokens, steps, cpu_s, gateway.process.cpu_s() if gateway else 0.0, time.monotonic())

    def since(self, before: Made) -> dict[str, float]:
        """What a turn is worth."""
        tokens, cpu_s = self.tokens - before.tokens, self.cpu_s - before.cpu_s
        gateway_s = self.gateway_s - before.gateway_s
        return {
            "tokens a second": tokens / (self.at_s - before.at_s),
            "tokens a second of CPU": tokens / (cpu_s + gateway_s),
            "tokens a step": tokens / max(1.0, self.steps - before.steps),
            "ms of the gateway's CPU for 1,000 tokens": 1e6 * gateway_s / max(1.0, tokens),
        }


def gateways(
    folder: Path, engines: list[Engine], size: int, ways: list[str], stack: contextlib.ExitStack
) -> dict[str, tuple[Gateway, str]]:
    """Returns for each way a running gateway and the URL that callers use."""
    untold = [engine.endpoint for engine in engines]
    settings: dict[str, dict[str, Any]] = {
        "untold": {"endpoints": untold},
        "told": {"endpoints": [{**endpoint, "slots": size} for endpoint in untold]},
        "off": {"endpoints": untold, "queue": {"enabled": False}},
    }
    made = {}
    for way in ways:
        url = None
        if way == "envoy":
            envoy = stack.enter_context(contextlib.closing(Envoy()))
            url = f"http://127.0.0.1:{envoy.port}"
            settings[way] = settings["told"] | {"epp": {"listen": f"127.0.0.1:{envoy.picker}"}}
        gateway = Gateway(folder, settings[way])
        stack.callback(gateway.process.stop)
        gateway.start()
        made[way] = gateway, url or gateway.url
    return made


async def looks(gateway: Gateway, until_s: float) -> list[dict[str, float]]:
    """What the endpoints looked like, from now to then."""
    seen = []
    while time.monotonic() < until_s:
        await asyncio.sleep(LOOK_EVERY_S)
        state = await asyncio.to_thread(gateway.state)
        seen += [{key: endpoint[key] or 0 for key in LOOKED_AT} for endpoint in state["endpoints"]]
    return seen


def ratio(values: list[float], others: list[float]) -> str:
    """The geometric mean of what each turn was to the other of its round, and its standard error in per cent."""
    pairs = zip(values, others, strict=True)
    logs = [math.log(value / other) for value, other in pairs if value and other]  # a turn may be starved of all CPU
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return f"{math.exp(statistics.fmean(logs or [math.nan])):.2f} ±{error:.0%}"


async def turn(
    urls: list[str],
    engines: list[Engine],
    gateway: Gateway | None,
    clients: int,
    tokens: int,
    streams: float,
    seconds: float,
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """One turn of one way: what it is worth, and what was seen of the engines meanwhile."""
    asked = asyncio.create_task(load(urls, clients, tokens, streams, time.monotonic() + TURN_WARM_S + seconds))
    await asyncio.sleep(TURN_WARM_S)
    before = await asyncio.to_thread(Made.now, engines, gateway)
    seen = await looks(gateway, before.at_s + seconds) if gateway else []
    await asyncio.sleep(before.at_s + seconds - time.monotonic())
    after = await asyncio.to_thread(Made.now, engines, gateway)
    await asked
    return after.since(before), seen


def measure(
    name: str, engines: list[Engine], size: int, args: argparse.Namespace, folder: Path, until_s: float
) -> list[str]:
    """Measure the cells of engines of one size. Returns their rows; those that would begin after `until_s` lack."""
    rows: list[str] = []
    if time.monotonic() >= until_s:
        return rows
    with contextlib.ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.process.kill)
            engine.process.start()
        for engine in engines:
            engine.ensure()
        for tokens, streams in itertools.product(args.tokens, args.streams):
            if time.monotonic() < until_s:
                rows.append(cell(name, engines, size, tokens, streams, args, folder))
    return rows


def cell(
    name: str, engines: list[Engine], size: int, tokens: int, streams: float, args: argparse.Namespace, folder: Path
) -> str:
    """One length of answers and share of streams, with gateways that know nothing yet. Returns its row."""
    clients = int(size * len(engines) * 1.5)
    with contextlib.ExitStack() as stack:
        standing = gateways(folder, engines, size, args.ways, stack)
        ways = {"direct": [e.url for e in engines]} if args.direct else {}
        ways |= {way: [url] for way, (_, url) in standing.items()}
        turns: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        seen: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        asyncio.run(load(ways[args.ways[0]], clients, tokens, streams, time.monotonic() + WARM_S))
        for number in range(args.rounds):
            for way in list(ways)[:: -1 if number % 2 else 1]:
                gateway = standing[way][0] if way in standing else None
                asked = turn(ways[way], engines, gateway, clients, tokens, streams, args.seconds)
                worth, looked = asyncio.run(asked)
                say(f"{way}: {', '.join(f'{value:.0f} {what}' for what, value in worth.items())}")
                turns[way].append(worth)
                seen[way] += looked
    print(
        f"{name} of {size}, {tokens} tokens, {streams:.0%} streams, {clients} clients, {args.rounds} rounds, ", end=""
    )
    print(f"load {os.getloadavg()[0]:.0f}")
    for what in next(iter(turns.values()))[0]:
        values = {way: [worth[what] for worth in worths] for way, worths in turns.items()}
        medians = ", ".join(f"{way} {statistics.median(values[way]):.1f}" for way in values)
        print(f"  {what}: {medians}", end="")
        if "direct" in values and min(values["direct"]):
            of_direct = ", ".join(f"{way} {ratio(values[way], values['direct'])}" for way in args.ways)
            print(f"; of direct: {of_direct}", end="")
        for way in args.ways:
            if "told" in values and way in ("untold", "envoy"):
                print(f"; {way} of told {ratio(values[way], values['told'])}", end="")
        print()
    for way in args.ways:
        means = [f"{key} {statistics.fmean(look[key] for look in seen[way]):.1f}" for key in LOOKED_AT]
        print(f"  an engine, {way}: {', '.join(means)}", flush=True)
    way = args.ways[0]
    batches = {each: [worth["tokens a step"] for worth in turns[each]] for each in turns}
    medians = ", ".join(f"{statistics.median(batch):.0f}" for batch in batches.values())
    of_told = ratio(batches[way], batches["told"]) if "told" in batches else ""
    limit, _, waiting = [f"{statistics.fmean(look[key] for look in seen[way]):.1f}" for key in LOOKED_AT]
    load_1m = os.getloadavg()[0]
    return f"| {size}, {tokens}, {streams:.0%} | {load_1m:.0f} | {medians} | {of_told} | {limit} | {waiting} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 64, 256], help="--max-num-seqs of each vLLM")
    parser.add_argument("--engines", type=int, default=2, help="vLLMs beside one another")
    parser.add_argument("--tokens", type=int, nargs="*", default=[8, 128], help="of an answer")
    parser.add_argument(
        "--streams", type=float, nargs="*", default=[0.5], choices=[0.0, 0.5, 1.0], help="share of the clients"
    )
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of each turn; better several generations of answers"
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--ways", nargs="*", choices=["untold", "told", "off", "envoy"], default=["untold", "told", "off"]
    )
    parser.add_argument("--no-direct", dest="direct", action="store_false", help="do not ask the engines themselves")
    parser.add_argument("--no-llama", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no cell later than that")
    args = parser.parse_args()
    until_s = time.monotonic() + 60.0 * args.minutes
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for size in args.sizes:
            vllms: list[Engine] = [
                Vllm(f"vllm-{n}-{size}", folder, "--max-num-seqs", str(size)) for n in range(args.engines)
            ]
            rows += measure(f"{args.engines} x vLLM", vllms, size, args, folder, until_s)
        if not args.no_llama:
            rows += measure("llama.cpp", [LlamaCpp("llama", folder)], LLAMA_SIZE, args, folder, until_s)
    ways = ", ".join([*(["direct"] if args.direct else []), *args.ways])
    print(f"| size, tokens, streams | load | tokens a step: {ways} | {args.ways[0]} of told | limit | waiting |")
    print("|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
