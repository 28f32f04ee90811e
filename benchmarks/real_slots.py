"""Two real vLLM and a real llama.cpp on this CPU, and nobody tells how many they run: what is their throughput?

Needs what `make test-engines` installs. For each size of the engines a closed loop of clients asks for short and for
long answers: the engines directly (by turns), a gateway told nothing, the same gateway told the slots, and one with
queueing off. All stand beside one another and are asked in rounds. Read the ratios: the hop itself shares the two cores
with the engines, so `told` and `off` say what of a loss is the hop's.

    python -m benchmarks.real_slots [--sizes 8 64 256] [--seconds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.engines.real.processes import LLAMA_SIZE, MODEL, Engine, Gateway, LlamaCpp, Vllm

WARM_S = 10.0  # before anything counts: what the goal allows for finding out
TOKENS = {"short": 8, "long": 128}


async def load(urls: list[str], clients: int, tokens: int, seconds: float, warm_s: float) -> float:
    """Answers a second of a closed loop, after the warm-up. Half of the clients stream."""
    until_s = time.monotonic() + warm_s + seconds
    counted_from_s = until_s - seconds
    done = 0

    async def client(port: int, serial: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        for turn in itertools.count():
            if time.monotonic() >= until_s:
                break
            body: dict[str, Any] = {"model": MODEL, "prompt": f"{serial} {turn} the river runs", "max_tokens": tokens}
            body |= {"ignore_eos": True, "temperature": 0, "stream": serial % 2 == 0}
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
            assert b" 200 " in answer.split(b"\r\n", 1)[0], answer
            if b"chunked" in answer:
                while size := int(await reader.readuntil(b"\r\n"), 16):
                    await reader.readexactly(size + 2)
                await reader.readexactly(2)
            else:
                await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
            if counted_from_s <= time.monotonic() < until_s:
                done += 1
        writer.close()

    ports = [int(url.rpartition(":")[2]) for url in urls]
    await asyncio.gather(*(client(ports[n % len(ports)], n) for n in range(clients)))
    return done / seconds


def gateways(folder: Path, engines: list[Engine], size: int) -> dict[str, Gateway]:
    untold = [engine.endpoint for engine in engines]
    told = [{**endpoint, "slots": size} for endpoint in untold]
    made = {
        "untold": Gateway(folder, {"endpoints": untold}),
        "told": Gateway(folder, {"endpoints": told}),
        "off": Gateway(folder, {"endpoints": untold, "queue": {"enabled": False}}),
    }
    for gateway in made.values():
        gateway.start()
    return made


def measure(name: str, engines: list[Engine], size: int, args: argparse.Namespace, folder: Path) -> None:
    for engine in engines:
        engine.process.start()
    for engine in engines:
        engine.ensure()
    made = gateways(folder, engines, size)
    ways = {"direct": [e.url for e in engines], **{way: [gateway.url] for way, gateway in made.items()}}
    clients = int(size * len(engines) * 1.5)
    try:
        for length, tokens in TOKENS.items():
            rates: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(args.rounds):
                for way, urls in ways.items():
                    warm_s = WARM_S if not turn else 2.0
                    rates[way].append(asyncio.run(load(urls, clients, tokens, args.seconds, warm_s)))
            found = {way: statistics.median(values) for way, values in rates.items()}
            slots = [endpoint["slots"] for endpoint in made["untold"].state()["endpoints"]]
            print(
                f"{name:12} {size:5} {length:6} {clients:8} {found['direct']:9.1f} "
                f"{found['untold'] / found['direct']:8.2f} {found['told'] / found['direct']:8.2f} "
                f"{found['off'] / found['direct']:8.2f} {found['untold'] / found['told']:12.2f}   {slots}",
                flush=True,
            )
    finally:
        for gateway in made.values():
            gateway.process.stop()
        for engine in engines:
            engine.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 64, 256], help="--max-num-seqs of each vLLM")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    print("engines       size answer  clients  direct/s   untold     told      off  untold/told   slots believed")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for size in args.sizes:
            vllms: list[Engine] = [Vllm(f"vllm-{n}-{size}", folder, "--max-num-seqs", str(size)) for n in "ab"]
            measure("2 x vLLM", vllms, size, args, folder)
        measure("llama.cpp", [LlamaCpp("llama", folder)], LLAMA_SIZE, args, folder)


if __name__ == "__main__":
    main()
