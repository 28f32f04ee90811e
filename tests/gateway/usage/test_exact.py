"""The ledger against the engines' own counts: faults, hang-ups, reloads, and `kill -9` of a worker and of all.

Each request states the fifth of a second in which it was sent, as its user. So the ledger can be compared slice by
slice: it agrees to the token with the engines' logs and with what clients read, except in the second before a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from penstock.sim.fake_engine.log import LogEntry
from tests.gateway.conftest import Client, World, chat, fault, request
from tests.gateway.workers.pids import workers_of
from tests.patience import WAIT_S, looks
from tests.ports import free_port

REQUESTS = int(os.environ.get("PENSTOCK_TEST_REQUESTS", "4000"))
CLIENTS = 32
SLICE_S = 0.2
STEADY, LEAVING = "steady", "leaving"  # tenants: one reads all its answers, one hangs up in the middle


class Traffic:
    """Clients, and what they read."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began_s = monotonic()
        self.sent = 0
        self.read: Counter[int] = Counter()  # whole answers with usage, by slice
        self.tokens: Counter[int] = Counter()
        self.left: Counter[int] = Counter()  # answers that were hung up on, by slice
        self.ended: Counter[int] = Counter()  # the slice in which the last request of a slice ended
        self.kills: list[int] = []  # their slices
        self.is_up = asyncio.Event()
        self.is_up.set()

    @property
    def slice(self) -> int:
        return int((monotonic() - self.began_s) / SLICE_S)

    def spoilt(self, at: int) -> bool:
        """Whether a request of this slice ended in the second before a kill, or was under way then."""
        last = max(at, self.ended[at])
        return any(at <= killed and killed - 1.0 / SLICE_S - 1 <= last for killed in self.kills)

    async def client(self) -> None:
        connection: Client | None = None
        while self.sent < REQUESTS:
            self.sent += 1
            await self.is_up.wait()
            number, at = self.sent, self.slice
            try:
                connection = connection or await self.world.client()
                connection = await self._one(connection, number, at)
            except (OSError, asyncio.IncompleteReadError):  # of a gateway that was killed
                connection = None
                await asyncio.sleep(0.05)
            finally:
                self.ended[at] = max(self.ended[at], self.slice)

    async def _one(self, connection: Client, number: int, at: int) -> Client | None:
        leaves, streams = number % 10 == 0, number % 3 == 0
        headers = {
            "x-tenant-id": LEAVING if leaves else STEADY,
            "x-user-id": str(at),
            "x-request-id": f"{'l' if leaves else 's'}-{at}-{number}",
        }
        more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streams or leaves else {}
        connection.send(
            request(body=chat(f"request {number}", tokens=40 if leaves else 2 + number % 7, **more), headers=headers)
        )
        if leaves:
            self.left[at] += 1
            if (await connection.begun()).status == 200:
                connection.hang_up()
                return None
            return connection
        answer = await connection.answer()
        if answer.status == 200 and (not streams or answer.body.endswith(b"data: [DONE]\n\n")):
            told = answer.events()[-1] if streams else answer.json()
            if usage := told.get("usage"):  # otherwise its engine failed in the middle
                self.read[at] += 1
                self.tokens[at] += usage["prompt_tokens"] + usage["completion_tokens"]
        return connection

    async def reached(self, part: float) -> None:
        while self.sent < part * REQUESTS:
            await asyncio.sleep(0.01)


class Serving:
    """A gateway of two workers as processes, which is killed and started again."""

    def __init__(self, world: World, folder: Path) -> None:
        self.file = folder / "penstock.json"
        self.port = world.port = free_port()
        self.settings: dict[str, Any] = {
            "listen": f"127.0.0.1:{self.port}",
            "workers": 2,
            "endpoints": [{"url": engine.url, "slots": 16} for engine in world.engines],
            "tenants": [{"name": STEADY}, {"name": LEAVING}],
            "identity": {"max_dynamic": 5_000},
            "batch": {"data": str(folder / "data")},
        }
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        self.file.write_text(json.dumps(self.settings))
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", "serve", "-c", str(self.file), "--log-level", "error"),
            stderr=asyncio.subprocess.DEVNULL,
        )
        async for _ in looks(WAIT_S, 0.05):
            assert self.process.returncode is None, "it ended at once"
            with contextlib.suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", self.port))[1].close()
                return

    async def reload(self, weight: float) -> None:
        self.settings["tenants"][0]["weight"] = weight
        self.file.write_text(json.dumps(self.settings))
        self.process.send_signal(signal.SIGHUP)

    async def kill(self) -> None:
        workers = workers_of(self.process.pid)
        for pid in (self.process.pid, *workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def serving(world: World, folder: Path) -> AsyncIterator[Serving]:
    gateway = Serving(world, folder)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.kill()


async def troubles(world: World, traffic: Traffic, gateway: Serving) -> None:
    """What happens meanwhile, each at its part of the requests."""
    first, second = world.engines

    def killed() -> None:
        traffic.kills.append(traffic.slice)

    async def kill_worker() -> None:
        killed()
        os.kill(min(workers_of(gateway.process.pid)), signal.SIGKILL)

    async def kill_all() -> None:
        traffic.is_up.clear()
        killed()
        await gateway.kill()
        await gateway.start()
        traffic.is_up.set()

    async def fails(kind: str, **more: Any) -> None:
        fault(second if kind == "abort" else first, kind, **more)

    plan: list[tuple[float, Callable[[], Any]]] = [
        (0.10, lambda: fails("error", count=40)),
        (0.20, lambda: gateway.reload(2.0)),
        (0.30, lambda: fails("busy", count=40)),
        (0.40, kill_worker),
        (0.50, lambda: fails("abort", count=20, after_bytes=300)),
        (0.60, kill_all),
        (0.70, lambda: gateway.reload(3.0)),
        (0.80, lambda: fails("abort", count=20, after_bytes=300)),
        (0.90, kill_all),
    ]
    for part, happens in plan:
        await traffic.reached(part)
        await happens()


async def settled(world: World) -> None:
    """Wait until workers have reported their last rows."""
    before = -1
    async for _ in looks(WAIT_S, 0.5):
        total = (await world.ask("GET", "/admin/usage?by=")).json()["total"]["requests"]
        if total == before:
            return
        before = total


def counted(entries: list[LogEntry], kind: str) -> tuple[Counter[int], Counter[int]]:
    """The engines' own counts of answers that they ended well: answers and tokens, by slice."""
    answers, tokens = Counter[int](), Counter[int]()
    for entry in entries:
        if entry.id.startswith(f"{kind}-") and entry.outcome == "finished":
            at = int(entry.id.split("-")[1])
            answers[at] += 1
            tokens[at] += entry.prompt_tokens + entry.tokens
    return answers, tokens


@pytest.mark.slow
async def test_the_ledger_agrees_with_the_engines_except_in_the_second_before_a_kill(
    world: World, tmp_path: Path
) -> None:
    for _ in range(2):
        engine = await world.engine(step_s=0.004)
        engine.log.entries = deque()
    async with serving(world, tmp_path) as gateway:
        traffic = Traffic(world)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(troubles(world, traffic, gateway))
            for _ in range(CLIENTS):
                tasks.create_task(traffic.client())
        await settled(world)
        rows = (await world.ask("GET", "/admin/usage?by=tenant,user,reason")).json()["rows"]
        left = (await world.ask("GET", "/admin/usage?by=tenant&tenant=leaving")).json()["total"]
    ledger = {(row["tenant"], int(row["user"])): row for row in rows if not row["reason"]}
    ended = Counter[int]()
    for row in rows:
        if row["tenant"] == LEAVING:
            ended[int(row["user"])] += row["requests"]
    answers, tokens = counted(world.seen(), "s")
    slices = sorted(set(traffic.read) | set(answers) | {at for tenant, at in ledger if tenant == STEADY})
    whole = [at for at in slices if not traffic.spoilt(at)]
    assert len(traffic.kills) == 3
    missing = Counter[int]()
    for at in slices:
        row = ledger.get((STEADY, at), {"answered": 0, "prompt_tokens": 0, "completion_tokens": 0})
        used = row["prompt_tokens"] + row["completion_tokens"]
        if traffic.spoilt(at):
            missing[at] = traffic.read[at] - row["answered"]
        else:
            assert (row["answered"], used) == (traffic.read[at], traffic.tokens[at]) == (answers[at], tokens[at]), at
    reached = sum(traffic.left[at] for at in traffic.left if not traffic.spoilt(at))
    assert sum(ended[at] for at in traffic.left if not traffic.spoilt(at)) == reached
    assert left["completion_tokens"] + left["estimated_tokens"] <= 40 * left["requests"]
    print(
        f"{traffic.sent} requests in {traffic.slice * SLICE_S:.0f} s, {sum(traffic.read.values())} whole answers; "
        f"{sum(traffic.tokens[at] for at in whole):,} tokens in {len(whole)} slices agree; "
        f"missing before {len(traffic.kills)} kills: {sum(missing.values())} answers, {dict(missing)}"
    )
