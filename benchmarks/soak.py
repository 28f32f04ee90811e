"""A soak test: hours of load and faults without leaks or wrong answers. Mixed load, faults, reloads, and a verdict.

Real processes: three simulated engines, the gateway, and this client. Callers stream and do not, hang up at any moment,
send bodies from a few bytes to a megabyte, nonsense, deadlines, batches; engines refuse, break, hang, slow down, die
and come back; settings are reloaded. Each answer is held against what its prompt must give, so one that is lost,
doubled or another caller's is seen. Memory, open files and tasks are sampled; every few minutes all load stops, and
then leases, waiting requests, tasks and files must be back where they were.

python benchmarks/soak.py --minutes 120          # the verdict is the exit status; 0 is well

Memory is the gateway's resident set, every two seconds, under load and at rest. It is told as a slope (least squares)
over what follows the warm-up: the first third, ten minutes at most, and on a slow machine until `WARM_REQUESTS`, half
of the run at most. What is learned of prompts is bounded, and an engine's death empties what is known of it: some
megabytes come and go within minutes, and an allocator keeps what it had at most. So most prompts are long enough to
fill what is learned within half of the warm-up, and no engine dies before that; in the other half memory settles, and
later on engines die seldom enough for it to be full again between them. Neighbouring samples are no evidence of their
own: the slope is that of the means of three minutes each, and its standard error counts these. Faults come with
requests, not with time: else memory would follow the load, and a busier hour look like a leak. Told beside it: the
slope of memory at rest, and how the file of batches grew, of which SQLite keeps up to 4 MiB in memory: an ended batch
is a row there for thirty days.

With many `--tenants` and `--users` each request is another caller's, so that the tables of callers fill, too.
`--tables` tells at each rest which containers of the gateway are largest (`tables.py`): what grows has a name.

Memory is judged from half an hour on; below, an ordinary warm-up is steeper than any leak worth the name. It is
`MISSED` where it surely grows by more than the goal (by two standard errors), `ok` where it surely does not, else
`unclear`: only a longer run can tell.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from rig import free_port

from penstock.sim.fake_engine import text as engine_text

SLOPE_MB_PER_H_MAX = 1.0
JUDGED_FROM_S = 1800.0
WARM_S_MAX = 600.0
FULL_REQUESTS = 30_000  # by then all that is learned is at its bounds
WARM_REQUESTS = 2 * FULL_REQUESTS  # and by then it is what it stays beside engines that die
DEATH_TURNS = 40  # faults from one engine's death to the next: some 12,000 requests
SAMPLE_S = 2.0
REST_EVERY_S = 180.0  # all load stops, and what is held is counted; memory's means are over as long
PATIENCE_S = 90.0  # for one answer; longer than any wait that the settings below allow
TASKS_SPARE = 12
SLOTS = 16
ENGINES = 3
FILES_SPARE = ENGINES * SLOTS + 12  # idle connections to engines, which come and go with load
PROMPT_BYTES = (10, 100, 1000, 10_000, 40_000)
TENANTS = 3
TABLES = Path(__file__).with_name("tables.py")
FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "busy", "count": 5},
    {"kind": "refuse", "count": 5},
    {"kind": "error", "count": 3},
    {"kind": "die", "after_bytes": 400, "count": 2},
    {"kind": "hang", "count": 1},
    {"kind": "slow", "factor": 5},
    {"kind": "metrics_garbage", "count": 20},
    {"kind": "metrics_freeze"},
    {"kind": "no_finish_reason", "count": 5},
    {"kind": "none"},
)
NONSENSE = (
    b"GET / RTSP/1.0\r\n\r\n",
    b'POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 9\r\n\r\n{"model":',
    b"POST /v1/files HTTP/1.1\r\nhost: g\r\ncontent-type: multipart/form-data;boundary=x\r\ncontent-length:9\r\n\r\n-",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 2\r\n\r\n[]",
)


@dataclass
class Tally:
    """What came of the requests, and what must not have."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def blame(self, what: str) -> None:
        self.ends["WRONG"] += 1
        if len(self.wrong) < 50:
            self.wrong.append(what)


@dataclass
class Sample:
    """The gateway's process at one moment."""

    at_s: float
    rss_bytes: int
    files: int
    requests: int


class Soak:
    """One run."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args = args
        self.folder = folder
        self.rng = random.Random(args.seed)
        self.tally = Tally()
        self.samples: list[Sample] = []
        self.port = free_port()
        self.engine_ports = [free_port() for _ in range(ENGINES)]
        self.engines: dict[int, asyncio.subprocess.Process] = {}
        self.gateway: asyncio.subprocess.Process
        self.serial = 0
        self.calm = asyncio.Event()  # faults rest
        self.flows = asyncio.Event()  # load flows
        self.under_way = 0
        self.rests: list[dict[str, float]] = []
        self.began_s = time.monotonic()
        self.warm_s: float | None = None  # since then, as samples have it; None: it is warming up

    # --- processes ------------------------------------------------------------------------------------------------

    async def start_engine(self, port: int) -> None:
        self.engines[port] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", "engine", "--port", str(port), "--slots", str(SLOTS)),
            *("--step-ms", "4", "--seed", str(port)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    def settings(self, turn: int) -> dict[str, Any]:
        """The settings, a little different with each reload."""
        return {
            "listen": f"127.0.0.1:{self.port}",
            "endpoints": [
                {"url": f"http://127.0.0.1:{port}", "slots": "auto" if (turn + i) % 3 else SLOTS}
                for i, port in enumerate(self.engine_ports)
            ],
            "queue": {"max_requests": 500 + turn % 2, "max_wait": "20s", "drain_timeout": "5s"},
            "timeouts": {"first_byte": "10s", "between_bytes": "10s", "client_body": "5s"},
            "observe": {"interval": "1s", "fast_interval": "200ms"},
            "tenants": [{"name": f"t{i}", "weight": 1 + (turn + i) % 3} for i in range(TENANTS)],
            "identity": {"max_dynamic": max(1000, self.args.tenants, self.args.users)},
            "batch": {"data": str(self.folder / "batch")},
        }

    async def start_gateway(self) -> None:
        file = self.folder / "penstock.json"
        file.write_text(json.dumps(self.settings(0)))
        log = (self.folder / "gateway.log").open("wb")
        program = [str(TABLES)] if self.args.tables else ["-m", "penstock"]
        self.gateway = await asyncio.create_subprocess_exec(
            *(self.args.python, *program, "serve", "-c", str(file), "--log-level", "error"),
            stdout=log,
            stderr=log,
        )
        async with asyncio.timeout(60):
            while not await self.ready():
                assert self.gateway.returncode is None, (self.folder / "gateway.log").read_text()
                await asyncio.sleep(0.1)

    async def ready(self) -> bool:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            status, _, body = await self.ask("GET", "/readyz")
            return status == 200 and "sim" in json.loads(body)["models"]
        return False

    async def close(self) -> None:
        for process in (self.gateway, *self.engines.values()):
            if process.returncode is None:
                process.kill()
            await process.wait()

    # --- one request ----------------------------------------------------------------------------------------------

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: str = "", port: int = 0
    ) -> tuple[int, str, bytes]:
        """A request on a connection of its own: status, head, body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port, limit=1 << 22)
        try:
            writer.write(
                f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{headers}"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            data = await reader.read(-1)
            if "transfer-encoding: chunked" in head.lower():
                data = unchunked(data)
            return int(head.split(" ", 2)[1]), head, data
        finally:
            writer.close()

    def tenant(self) -> str:
        return f"t{self.rng.randrange(self.args.tenants)}"

    async def chat(self) -> None:
        rng = self.rng
        self.serial += 1
        name = f"soak-{self.args.seed}-{self.serial}"
        stream, tokens = rng.random() < 0.6, rng.choice((1, 2, 4, 8, 16, 40))
        prompt = f"{name} " + "x" * rng.choice(PROMPT_BYTES)
        body = {"model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": stream}
        if self.args.users:
            body["user"] = f"u{self.serial % self.args.users}"
        if rng.random() < 0.01:
            body["padding"] = "x" * 1_000_000
        headers = f"x-request-id: {name}\r\nx-tenant-id: {self.tenant()}\r\ncontent-type: application/json\r\n"
        if rng.random() < 0.05:
            headers += "x-slo-ttft-ms: 3000\r\n"
        if rng.random() < 0.1:
            await self.hang_up(json.dumps(body).encode(), headers)
            return
        status, head, answer = await self.ask("POST", "/v1/completions", json.dumps(body).encode(), headers)
        if f"x-request-id: {name}" not in head.lower():
            self.tally.blame(f"{name} got the answer of another: {head}")
        elif status == 200:
            self.judge(name, prompt, tokens, answer, stream=stream)
        elif status in (429, 502, 503, 504):
            self.tally.ends[f"{status} {json.loads(answer)['error']['code']}"] += 1
        elif status == 500:
            self.tally.ends["500 of an engine"] += 1
        else:
            self.tally.blame(f"{name}: {status} {answer[:200]!r}")

    def judge(self, name: str, prompt: str, tokens: int, answer: bytes, *, stream: bool) -> None:
        """Whether the answer is the one to this prompt, whole, once."""
        if not stream:
            text = json.loads(answer)["choices"][0]["text"]
        else:
            events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: ")]
            if any(event.startswith(b'{"error"') for event in events):
                self.tally.ends["stream broken, and told"] += 1
                return
            if not events or events[-1] != b"[DONE]" or events.count(b"[DONE]") != 1:
                self.tally.blame(f"{name} ended without a word: {answer[-200:]!r}")
                return
            text = "".join(choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"])
        if text == engine_text.text(engine_text.first_word(prompt.encode()), tokens):
            self.tally.ends["whole stream" if stream else "whole"] += 1
        else:
            self.tally.blame(f"{name} of {tokens} tokens got {text!r}")

    async def hang_up(self, body: bytes, headers: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(
                f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}"
                f"content-length: {len(body)}\r\n\r\n".encode()
            )
            writer.write(body[: self.rng.choice((0, len(body) // 2, len(body)))])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.rng.random() * 0.3):
                    await reader.read(1 << 16)
        finally:
            if self.rng.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()
        self.tally.ends["hung up"] += 1

    async def nonsense(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.rng.choice(NONSENSE))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await reader.read(1 << 16)
        finally:
            writer.close()
        self.tally.ends["nonsense"] += 1

    async def batch(self) -> None:
        """A file in, a batch, its answers out; then all of it deleted."""
        count = self.rng.randrange(1, 30)
        lines = b"".join(
            json.dumps(
                {
                    "custom_id": str(n),
                    "method": "POST",
                    "url": "/v1/completions",
                    "body": {"model": "sim", "prompt": f"batch {n}", "max_tokens": 3},
                }
            ).encode()
            + b"\n"
            for n in range(count)
        )
        tenant = f"x-tenant-id: {self.tenant()}\r\n"
        form = (
            b'--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--edge\r\n'
            b'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n' + lines + b"\r\n--edge--\r\n"
        )
        multipart = "content-type: multipart/form-data; boundary=edge\r\n"
        status, _, body = await self.ask("POST", "/v1/files", form, tenant + multipart)
        if status != 200:
            self.tally.ends[f"file {status}"] += 1
            return
        file = json.loads(body)["id"]
        wish = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "1h"}
        status, _, body = await self.ask("POST", "/v1/batches", json.dumps(wish).encode(), tenant)
        if status != 200:
            self.tally.ends[f"batch {status}"] += 1
            return
        name = json.loads(body)["id"]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                shown = json.loads((await self.ask("GET", f"/v1/batches/{name}", headers=tenant))[2])
                if shown["status"] not in ("validating", "in_progress", "finalizing"):
                    break
                await asyncio.sleep(0.2)
        counts = shown["request_counts"]
        if shown["status"] != "completed" or counts["completed"] + counts["failed"] != count:
            self.tally.blame(f"{name}: {shown}")
        for kept in (file, shown.get("output_file_id"), shown.get("error_file_id")):
            if kept:
                await self.ask("DELETE", f"/v1/files/{kept}", headers=tenant)
        self.tally.ends["batch"] += 1

    # --- around them ----------------------------------------------------------------------------------------------

    async def caller(self) -> None:
        while True:
            await self.flows.wait()
            self.under_way += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    kind = self.rng.random()
                    await (self.nonsense() if kind < 0.01 else self.batch() if kind < 0.012 else self.chat())
            except TimeoutError:
                self.tally.blame("an answer did not come at all")
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self.tally.blame(f"a connection was closed without an answer: {error!r}")
            finally:
                self.under_way -= 1
            if self.args.pause_ms:
                await asyncio.sleep(self.rng.random() * 2 * self.args.pause_ms / 1000)

    async def weather(self) -> None:
        """Engines misbehave, one at a time, and now and then one dies."""
        turn = death = 0
        while True:
            due = self.serial + self.rng.random() * 2 * self.args.fault_every
            while self.serial < due or self.calm.is_set():  # noqa: ASYNC110 - requests tell nobody
                await asyncio.sleep(0.05)
            turn += 1
            port = self.rng.choice(self.engine_ports)
            full = self.serial >= FULL_REQUESTS or time.monotonic() - self.began_s >= self.args.minutes * 60 / 4
            if full and turn >= death:
                death = turn + DEATH_TURNS
                self.engines[port].kill()
                await self.engines[port].wait()
                await asyncio.sleep(self.rng.random() * 2)
                await self.start_engine(port)
            elif turn % 10 == 5:
                (self.folder / "penstock.json").write_text(json.dumps(self.settings(turn)))
                self.gateway.send_signal(signal.SIGHUP)
            else:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await self.ask("POST", "/sim/fault", json.dumps(self.rng.choice(FAULTS)).encode(), port=port)

    async def clear_sky(self) -> None:
        for port in self.engine_ports:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self.ask("POST", "/sim/fault", b'{"kind": "none"}', port=port)

    async def sampling(self) -> None:
        seconds = self.args.minutes * 60
        while True:
            self.samples.append(sample := self.sample())
            past_s = sample.at_s - self.began_s
            settled = sample.requests >= WARM_REQUESTS or past_s >= seconds / 2
            if self.warm_s is None and past_s >= min(seconds / 3, WARM_S_MAX) and settled:
                self.warm_s = sample.at_s
            await asyncio.sleep(SAMPLE_S)

    def sample(self) -> Sample:
        folder = Path(f"/proc/{self.gateway.pid}")
        pages = int((folder / "statm").read_text().split()[1])
        files = len(list((folder / "fd").iterdir()))
        return Sample(time.monotonic(), pages * os.sysconf("SC_PAGE_SIZE"), files, self.serial)

    async def rest(self) -> None:
        """Stop all load; what is held then must be nothing."""
        self.calm.set()
        self.flows.clear()
        await self.clear_sky()
        async with asyncio.timeout(2 * PATIENCE_S):
            while self.under_way:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.05)
        state: dict[str, Any] = {}
        held = 1
        for _ in range(200):
            state = json.loads((await self.ask("GET", "/admin/state"))[2])
            held = sum(e["leases"] + e["given_up"] for e in state["endpoints"]) + state["waiting"] + state["running"]
            if not held and not state["batches"]:
                break
            await asyncio.sleep(0.1)
        found = {
            "at_s": time.monotonic() - self.began_s,
            "held": held,
            "tasks": state["tasks"],
            "files": self.sample().files,
            "rss_mb": self.sample().rss_bytes / 1e6,
            "store_mb": (self.folder / "batch" / "batch.sqlite3").stat().st_size / 1e6,
        }
        self.rests.append(found)
        if held:
            self.tally.blame(f"{held} leases or requests are held though nothing is under way")
        self.calm.clear()
        self.flows.set()

    async def run(self) -> None:
        for port in self.engine_ports:
            await self.start_engine(port)
        await self.start_gateway()
        self.began_s = time.monotonic()
        tasks = [asyncio.ensure_future(self.caller()) for _ in range(self.args.callers)]
        tasks += [asyncio.ensure_future(self.weather()), asyncio.ensure_future(self.sampling())]
        self.flows.set()
        seconds = self.args.minutes * 60
        every_s = min(REST_EVERY_S, max(seconds / 3, 2.0))
        try:
            while (left := self.began_s + seconds - time.monotonic()) > 0:
                await asyncio.sleep(min(every_s, left))
                await self.rest()
                self.progress()
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- the verdict ----------------------------------------------------------------------------------------------

    def progress(self) -> None:
        last = self.rests[-1]
        print(
            f"{last['at_s'] / 60:6.1f} min  {self.tally.ends.total():9} requests  {len(self.tally.wrong)} wrong  "
            f"at rest: {last['rss_mb']:.1f} MB, {last['files']} files, {last['tasks']} tasks, {last['held']} held",
            flush=True,
        )
        if self.args.tables:  # printed to the log, the last lines of which the verdict shows
            self.gateway.send_signal(signal.SIGUSR1)

    def verdict(self) -> bool:
        """Say what was seen, and whether all is well."""
        seconds = time.monotonic() - self.began_s
        for what, count in sorted(self.tally.ends.items()):
            print(f"{count:10}  {what}")
        for what in self.tally.wrong:
            print(f"WRONG: {what}")
        assert self.warm_s is not None, "half of the run is over"
        warm = [(s.at_s, s.rss_bytes / 1e6) for s in self.samples if s.at_s >= self.warm_s]
        slope, error = least_squares(means(warm))
        slope, error = slope * 3600, error * 3600
        warm_s = self.warm_s - self.began_s
        resting = [(rest["at_s"], rest["rss_mb"]) for rest in self.rests if rest["at_s"] >= warm_s]
        at_rest, rest_error = least_squares(resting)
        print(f"memory: {slope:+.2f} MB/h (standard error {error:.2f}) after the first {warm_s:.0f} s")
        print(f"memory at rest: {at_rest * 3600:+.2f} MB/h (standard error {rest_error * 3600:.2f})")
        print(f"file of batches: {self.rests[0]['store_mb']:.1f} to {self.rests[-1]['store_mb']:.1f} MB")
        first, last = self.rests[0], self.rests[-1]
        log = (self.folder / "gateway.log").read_text()
        if log:
            print(log[-4000:])
        failures = {
            "wrong, lost or doubled answers": bool(self.tally.wrong),
            "tasks left behind": last["tasks"] > first["tasks"] + TASKS_SPARE,
            "files left behind": last["files"] > first["files"] + FILES_SPARE,
            "memory grows": seconds >= JUDGED_FROM_S and slope - 2 * error > SLOPE_MB_PER_H_MAX,
            "something was told as an error or a traceback": "Traceback" in log,
            "the gateway ended": self.gateway.returncode is not None,
        }
        unclear = {"memory grows"} if seconds < JUDGED_FROM_S or slope + 2 * error > SLOPE_MB_PER_H_MAX else set()
        for what, bad in failures.items():
            print(f"{'MISSED' if bad else 'unclear' if what in unclear else 'ok':8} {what}")
        return not any(failures.values())


def unchunked(data: bytes) -> bytes:
    """A chunked body. IncompleteReadError where its end is missing."""
    pieces, at = [], 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            raise asyncio.IncompleteReadError(data, None)
        size = int(data[at:end], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size


def means(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of the points of each `REST_EVERY_S`: their mean time, and their mean."""
    groups = itertools.groupby(points, lambda point: (point[0] - points[0][0]) // REST_EVERY_S)
    found = []
    for _, group in groups:
        of_one = list(group)
        found.append((statistics.fmean(x for x, _ in of_one), statistics.fmean(y for _, y in of_one)))
    return found


def least_squares(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The slope, and its standard error."""
    count = len(points)
    if count < 3:
        return 0.0, math.inf
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, math.sqrt(rest / (count - 2) / spread)


async def soak(args: argparse.Namespace) -> bool:
    """Run, and judge."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        run = Soak(args, Path(folder))
        try:
            await run.run()
            return run.verdict()
        finally:
            await run.close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (5)")
    parser.add_argument("--callers", type=int, default=48, help="how many at a time (48)")
    parser.add_argument("--pause-ms", type=float, default=100.0, help="that each pauses on average (100)")
    parser.add_argument("--fault-every", type=int, default=300, help="so many requests on average (300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tenants", type=int, default=TENANTS, help=f"of which each request has one ({TENANTS})")
    parser.add_argument("--users", type=int, default=0, help="of which each request has the next one (0: none)")
    parser.add_argument("--tables", action="store_true", help="tell which tables of the gateway are largest, and grow")
    parser.add_argument("--python", default=sys.executable, help="whose gateway: that of a compiled build, too")
    return 0 if uvloop.run(soak(parser.parse_args(argv))) else 1


if __name__ == "__main__":
    sys.exit(main())
