"""Batch work: uses idle slots, yields at once, loses nothing, and stays small. Four proofs, by name.

`share`: the `openai` client runs a batch over two simulated engines beside interactive streams; their time to first
token is compared with the same streams alone, and the slots they leave with those the batch uses. `kill`: the gateway
is killed (-9) every few seconds until the batch is done. `two`: two gateways share a PostgreSQL, and one is killed.
`large`: a file of 200 MB, and the growth of the gateway's memory. `share --real` starts two vLLM instead (of the
installation of `make test-engines`). Engines, gateways and clients are separate processes,
so figures include their competition on a small machine; `--step-ms` makes engines slower and cheaper.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
from rig import Gateway, free_port, gateway, machine, started

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)


def lines(count: int, tokens: int, prompt_bytes: int = 200, model: str = "sim") -> bytes:
    """Requests, each third with another beginning. Of one length they would end, and begin, in waves."""
    return b"".join(
        json.dumps(
            {
                "custom_id": f"r{n}",
                "method": "POST",
                "url": CHAT,
                "body": {
                    "model": model,
                    "ignore_eos": True,
                    "max_tokens": max(1, tokens // 2 + n * 7 % tokens),
                    "messages": [{"role": "user", "content": f"{n % 3} " + "x" * prompt_bytes + f" {n}"}],
                },
            }
        ).encode()
        + b"\n"
        for n in range(count)
    )


@contextlib.contextmanager
def engines(count: int, slots: int, step_ms: float) -> Iterator[list[dict[str, Any]]]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            port = free_port()
            command = [sys.executable, "-m", "penstock", "engine", "--port", str(port), "--slots", str(slots)]
            stack.enter_context(started([*command, "--step-ms", str(step_ms)], stdout=-3, stderr=-3))
            found.append({"url": f"http://127.0.0.1:{port}", "slots": slots})
        yield found


@contextlib.contextmanager
def real_engines(folder: Path, slots: int) -> Iterator[list[dict[str, Any]]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.engines.real.processes import Vllm  # noqa: PLC0415

    found = [Vllm(name, folder, "--max-num-seqs", str(slots)) for name in ("a", "b")]
    try:
        for engine in found:
            engine.process.start()
        for engine in found:
            engine.ensure()
        yield [engine.endpoint | {"slots": slots} for engine in found]
    finally:
        for engine in found:
            engine.process.kill()


def client(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=8, timeout=600.0)


def begin(api: openai.OpenAI, data: bytes, window: str = "24h") -> str:
    file = api.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    batch = api.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)  # type: ignore[arg-type]
    return batch.id


def wait(api: openai.OpenAI, batch: str, total: int) -> Any:
    """The batch when it has ended; its counts have to be right at every poll."""
    seen = 0
    while True:
        try:
            found = api.batches.retrieve(batch)
        except (openai.APIConnectionError, openai.APIStatusError):
            time.sleep(0.2)  # it is being killed
            continue
        counts = found.request_counts
        assert counts is not None
        assert counts.total == total
        assert seen <= counts.completed + counts.failed <= total, (seen, counts)
        seen = counts.completed + counts.failed
        if found.status in ENDED:
            return found
        time.sleep(0.25)


def results(api: openai.OpenAI, batch: Any, count: int) -> None:
    """Every item has exactly one result, and it is an answer."""
    assert batch.status == "completed", batch
    found = [json.loads(line) for line in api.files.content(batch.output_file_id).text.splitlines()]
    ids = Counter(line["custom_id"] for line in found)
    assert ids == Counter(f"r{n}" for n in range(count)), f"{len(ids)} of {count}, most {ids.most_common(1)}"
    assert all(line["response"]["status_code"] == 200 for line in found)
    assert batch.error_file_id is None


# --- share ----------------------------------------------------------------------------------------------------------


async def _stream(port: int, model: str, tokens: int, seed: int) -> float:
    """Seconds to the first byte of the answer's body."""
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "ignore_eos": True,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": f"chat {seed}"}],
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    writer.write(_HEAD % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0], head
    await reader.readline()
    first_s = time.monotonic() - began
    while await reader.read(1 << 16):
        pass
    writer.close()
    return first_s


async def interactive(port: int, args: argparse.Namespace, stop: threading.Event) -> list[float]:
    """Streams at random times, until `stop` and at least `args.samples`."""
    draw = random.Random(7)
    tasks: list[asyncio.Task[float]] = []
    due = time.monotonic()
    while len(tasks) < args.samples or not stop.is_set():
        due += draw.expovariate(args.rate)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.ensure_future(_stream(port, args.model, args.chat_tokens, len(tasks))))
    return list(await asyncio.gather(*tasks))


def _slots(gate: Gateway, stop: threading.Event, found: list[tuple[int, int, int]]) -> None:
    """Slots in all, taken by others than the batch, and by the batch: a look every quarter second."""
    while not stop.wait(0.25):
        state = json.loads(gate.get("/admin/state"))
        running = {band["name"]: band["running"] for band in state["bands"]}
        waiting = {band["name"]: band["waiting"] for band in state["bands"]}
        if waiting["batch"]:
            slots = sum(endpoint["slots"] for endpoint in state["endpoints"])
            found.append((slots, running["interactive"] + running["standard"], running["batch"]))


def share(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    settings: dict[str, Any] = {"batch": {"data": str(folder / "data")}}
    if args.prefill:
        settings["admission"] = {"max_prefill_tokens": args.prefill}
    if args.ceiling < 1:
        bands = [{"name": "interactive", "max_engine_waiting": 3}, {"name": "standard", "max_engine_waiting": 2}]
        low = {"name": "batch", "max_engine_waiting": 0, "best_effort": True, "ceiling": args.ceiling}
        settings["bands"] = [*bands, low]
    standing = real_engines(folder, args.slots) if args.real else engines(2, args.slots, args.step_ms)
    with standing as found, gateway(folder, {"endpoints": found, **settings}) as gate:
        time.sleep(3)
        never = threading.Event()
        never.set()
        alone = asyncio.run(interactive(gate.port, args, never))
        api = client(gate.port)
        stop = threading.Event()
        looks: list[tuple[int, int, int]] = []
        began = time.monotonic()
        batch = begin(api, lines(args.items, args.tokens, model=args.model))
        ended: list[Any] = []

        def run() -> None:
            ended.append(wait(api, batch, args.items))
            stop.set()

        threads = [threading.Thread(target=run), threading.Thread(target=_slots, args=(gate, stop, looks))]
        for thread in threads:
            thread.start()
        beside = asyncio.run(interactive(gate.port, args, stop))
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - began
        results(api, ended[0], args.items)
        used = sum(b for _, _, b in looks) / max(1, sum(max(0, slots - others) for slots, others, _ in looks))
        preempted_s = gate.metric("penstock_preempted_slot_seconds_total")
        return {
            "items": args.items,
            "seconds": took_s,
            "slot time lost, %": 100 * preempted_s / (took_s * 2 * args.slots),
            "ttft p99 alone s": quantile(alone, 0.99),
            "ttft p99 beside s": quantile(beside, 0.99),
            "ttft p99 ratio": quantile(beside, 0.99) / quantile(alone, 0.99),
            "ttft p50 ratio": quantile(beside, 0.5) / quantile(alone, 0.5),
            "samples beside": len(beside),
            "share of left slots used": used,
        }


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


# --- kill, two, large -----------------------------------------------------------------------------------------------


def kill(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    settings = {"batch": {"data": str(folder / "data")}, "listen": f"127.0.0.1:{free_port()}"}
    port = int(str(settings["listen"]).rpartition(":")[2])
    kills = 0
    with engines(2, args.slots, args.step_ms) as found:
        file = folder / "kill.yaml"
        file.write_text(json.dumps({"endpoints": found, **settings}))
        api, batch, done = client(port), "", threading.Event()
        ended: list[Any] = []
        began = time.monotonic()
        thread: threading.Thread | None = None
        while not done.is_set():
            process = serve(file, folder)
            until(port)
            if thread is None:
                batch = begin(api, lines(args.items, args.tokens))

                def run(batch: str = batch) -> None:
                    ended.append(wait(api, batch, args.items))
                    done.set()

                thread = threading.Thread(target=run)
                thread.start()
            done.wait(args.every)
            if not done.is_set():
                kills += 1
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        took_s = time.monotonic() - began
        last = serve(file, folder)
        until(port)
        results(api, ended[0], args.items)
        sent = sum(len(_log(one["url"])) for one in found)
        os.kill(last.pid, signal.SIGTERM)
        last.wait()
        return {"items": args.items, "kills": kills, "seconds": took_s, "requests that engines saw": sent}


def serve(file: Path, folder: Path) -> Any:
    import subprocess  # noqa: PLC0415

    log = (folder / "serve.log").open("ab")
    return subprocess.Popen([sys.executable, "-m", "penstock", "serve", "-c", str(file)], stdout=log, stderr=log)


def until(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError):
            Gateway(0, port).get("/health")
            return
        time.sleep(0.05)
    raise SystemExit("the gateway does not start")


def _log(url: str) -> list[Any]:
    found: list[Any] = json.loads(Gateway(0, int(url.rpartition(":")[2])).get("/sim/log"))
    return found if isinstance(found, list) else found["requests"]


def two(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.batch import postgres  # noqa: PLC0415

    with postgres.server() as url, engines(2, args.slots, args.step_ms) as found:
        ports = [free_port(), free_port()]
        files = []
        for n, port in enumerate(ports):
            files.append(folder / f"{n}.yaml")
            store = {"store": "postgres", "url": url}
            text = {"listen": f"127.0.0.1:{port}", "endpoints": found, "batch": store}
            files[-1].write_text(json.dumps(text))
        processes = [serve(file, folder) for file in files]
        for port in ports:
            until(port)
        api = client(ports[1])
        began = time.monotonic()
        batch = begin(api, lines(args.items, args.tokens))
        time.sleep(args.every)
        killed_at = api.batches.retrieve(batch).request_counts
        shared = Gateway(0, ports[0]).metric("penstock_batch_items_total", 'outcome="completed"')
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].wait()
        results(api, wait(api, batch, args.items), args.items)
        took_s = time.monotonic() - began
        os.kill(processes[1].pid, signal.SIGTERM)
        processes[1].wait()
        assert killed_at is not None
        return {
            "items": args.items,
            "done when one was killed": killed_at.completed,
            "of these by the killed one": shared,
            "seconds": took_s,
        }


def large(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    count, prompt = 50_000, 3_900
    data = lines(count, 1, prompt)
    with engines(2, 64, args.step_ms) as found:
        settings = {"endpoints": found, "batch": {"data": str(folder / "data")}}
        with gateway(folder, settings) as gate:
            api = client(gate.port)
            results(api, wait(api, begin(api, lines(2_000, 1, prompt)), 2_000), 2_000)  # warm
            peaks = {"before": gate.rss_bytes()}
            stop = threading.Event()
            peak = [0]

            def look() -> None:
                while not stop.wait(0.05):
                    peak[0] = max(peak[0], gate.rss_bytes())

            thread = threading.Thread(target=look)
            thread.start()
            began = time.monotonic()
            file = api.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
            uploaded_s = time.monotonic() - began
            peaks["upload"], peak[0] = peak[0], 0
            batch = api.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            time.sleep(args.every * 5)
            peaks["validated, running"], peak[0] = peak[0], 0
            with api.files.with_streaming_response.content(file.id) as answer:
                size = sum(len(piece) for piece in answer.iter_bytes())
            assert size == len(data)
            peaks["download"] = peak[0]
            running = api.batches.retrieve(batch.id)
            stop.set()
            thread.join()
            grown = {f"{name} MB more": (value - peaks["before"]) / 1e6 for name, value in peaks.items()}
            assert running.request_counts is not None
            return {
                "file MB": len(data) / 1e6,
                "upload s": uploaded_s,
                "items done meanwhile": running.request_counts.completed,
                **grown,
            }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("proof", choices=["share", "kill", "two", "large"])
    parser.add_argument("--items", type=int)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--step-ms", type=float, default=40)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--chat-tokens", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--ceiling", type=float, default=1.0)
    parser.add_argument("--prefill", type=int, help="admission.max_prefill_tokens")
    parser.add_argument("--real", action="store_true", help="share: two vLLM of so many slots")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between kills, or until the one")
    args = parser.parse_args()
    args.model = "tiny-llama" if args.real else "sim"
    args.items = args.items or {"share": 10_000}.get(args.proof, 2_000)
    with tempfile.TemporaryDirectory(prefix="penstock-batch-") as folder:
        figures = {"share": share, "kill": kill, "two": two, "large": large}[args.proof](args, Path(folder))
    print(machine())
    for name, value in figures.items():
        print(f"{name:28} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
