"""`penstock serve` as a process: it starts or says why not, and on a signal it leaves as it promised."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import __version__
from penstock.build import kind
from tests.gateway.conftest import CHAT, WORKERS, Answer, Client, World, chat, hurry, request
from tests.patience import WAIT_S, looks


class Process:
    """A running `penstock serve`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = b""

    async def line(self, words: bytes) -> bytes:
        """Read its log up to a line with these words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while line := await self.process.stderr.readline():
                self.log += line
                if words in line:
                    return line
        raise AssertionError(f"{words!r} never came: {self.log.decode()}")

    async def left(self) -> int:
        """Wait for its end: the exit code. Nothing it started is left."""
        assert self.process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            self.log += await self.process.stderr.read()
            code = await self.process.wait()
        assert b"Traceback" not in self.log, self.log.decode()
        assert b"ERROR" not in self.log, self.log.decode()
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        return code

    async def left_after_trouble(self, *, code: int = 0) -> bytes:
        """Wait for its end where errors are to be expected: its log."""
        assert self.process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            self.log += await self.process.stderr.read()
            assert await self.process.wait() == code
        assert b"Traceback" not in self.log, self.log.decode()
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        return self.log

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)


async def penstock(*arguments: str, **settings: str) -> Process:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    if WORKERS:
        ours["PENSTOCK__WORKERS"] = str(WORKERS)
    return Process(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock",
            *arguments,
            stderr=asyncio.subprocess.PIPE,
            env=ours | settings,
            start_new_session=True,
        )
    )


@asynccontextmanager
async def serving(world: World, *arguments: str, **queue: str) -> AsyncIterator[Process]:
    """A gateway process in front of the world's engines, up and acquainted with them."""
    endpoints = [part for engine in world.engines for part in ("--endpoint", engine.url)]
    settings = {f"PENSTOCK__QUEUE__{name.upper()}": value for name, value in queue.items()}
    process = await penstock("serve", "--listen", "127.0.0.1:0", *endpoints, *arguments, **settings)
    try:
        world.port = int((await process.line(b"listening on")).rpartition(b":")[2])
        assert f" penstock {__version__} ({kind()})\n".encode() in process.log.partition(b"listening on")[0]
        if world.engines:
            assert (await world.chat(tokens=1)).status == 200
            world.engines[0].log.clear()
        yield process
    finally:
        if process.process.returncode is None:
            os.killpg(process.process.pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            await process.process.communicate()  # until the last of them is gone: a loop cannot close with an open pipe


async def loaded(world: World, *, running_tokens: int) -> tuple[list[Client], list[Client]]:
    """Two streams that run and three that wait behind them."""
    engine = world.engines[0]
    running = [await world.streaming("running", tokens=running_tokens) for _ in range(2)]
    for client in running:
        await client.begun()
    waiting = [await world.streaming("waiting", tokens=2) for _ in range(3)]
    await world.until_metric(3, "penstock_queued_requests")
    assert engine.engine.running_now == 2
    return running, waiting


async def until_all_workers_drain(world: World) -> None:
    """The first process logs it before its workers hear of it. Connections go to any of them."""
    told = 0
    async for _ in looks(WAIT_S):
        told = told + 1 if (await world.ask("GET", "/health")).header("connection") == "close" else 0
        if told > 20 * WORKERS:
            return


async def rest(client: Client) -> bytes:
    """What is left of a stream that has begun."""
    await client.whole()
    return client.seen


async def test_running_and_queued_requests_are_served_and_new_ones_refused(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "2") as process:
        running, waiting = await loaded(world, running_tokens=500)
        idle = await world.client(request("GET", "/ready"))
        assert (await idle.answer()).status == 200
        process.signal()
        await process.line(b"draining")

        refused = await world.chat()
        assert (refused.status, refused.error()["code"], refused.error()["type"]) == (
            503,
            "draining",
            "server_error",
        )
        assert 1 <= int(refused.header("retry-after") or "") <= 60
        direct = await world.ask(path="/tokenize", body={"model": "sim", "prompt": "x"})
        assert (direct.status, direct.error()["code"]) == (503, "draining")
        assert 1 <= int(direct.header("retry-after") or "") <= 60
        ready = await world.ask("GET", "/ready")
        assert (ready.status, ready.json()["status"]) == (503, "draining")
        assert (await world.ask("GET", "/health")).status == 200

        hurry(engine)
        for client in running:
            assert (await rest(client)).endswith(b"data: [DONE]\n\n")
        for client in waiting:
            answer = await client.answer()
            assert answer.status == 200
            assert answer.body.endswith(b"data: [DONE]\n\n")
        assert await process.left() == 0
    assert [entry.outcome for entry in engine.log.entries] == ["finished"] * 5
    assert engine.log.in_engine_max == 2
    with pytest.raises(ConnectionRefusedError):
        await world.client()


async def test_while_it_drains_every_answer_closes_its_connection(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "2") as process:
        running = await world.streaming(tokens=500)
        await running.begun()
        paths = (*("/health", "/ready", "/metrics", "/v1/models", "/version", "/nowhere"), CHAT)
        kept = [await world.client(request("GET", "/health")) for _ in paths]
        for client in kept:
            assert (await client.answer()).header("connection") == "keep-alive"
        process.signal()
        await process.line(b"draining")
        await until_all_workers_drain(world)
        for client, path in zip(kept, paths, strict=True):
            client.send(request(body=chat()) if path == CHAT else request("GET", path))
            answer = await client.answer()
            assert (path, answer.header("connection"), answer.header("keep-alive")) == (path, "close", None)
            assert await client.rest() == b"", path
        hurry(engine)
        assert (await rest(running)).endswith(b"data: [DONE]\n\n")
        assert await running.rest() == b""
        assert await process.left() == 0


async def test_connections_without_a_request_do_not_outlast_a_drain(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "2") as process:
        running = await world.streaming(tokens=5000)
        await running.begun()
        kept = await world.client(request("GET", "/health"))
        assert (await kept.answer()).status == 200
        process.signal()
        assert await kept.rest() == b""
        assert engine.engine.running_now == 1, "while a stream runs on"
        hurry(engine)
        assert (await rest(running)).endswith(b"data: [DONE]\n\n")
        assert await process.left() == 0


async def test_newcomers_are_served_for_the_delay_while_readiness_says_no(world: World) -> None:
    await world.engine()
    async with serving(world, "--slots", "2", drain_delay="60s") as process:
        process.signal()
        await process.line(b"new requests are still served for 60 s")
        for _ in range(2):
            ready = await world.ask("GET", "/ready")
            assert (ready.status, ready.json()["status"], ready.header("connection")) == (503, "draining", "close")
            served = await world.chat()
            assert (served.status, served.header("connection")) == (200, "close")
        process.signal()  # ends the delay, too
        assert await process.left() == 0


async def test_newcomers_are_refused_after_the_delay(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "2", drain_delay="100ms") as process:
        running = await world.streaming(tokens=5000)
        await running.begun()
        process.signal()
        await process.line(b"draining: no new requests")
        assert (await world.chat()).error()["code"] == "draining"
        hurry(engine)
        assert (await rest(running)).endswith(b"data: [DONE]\n\n")
        assert await process.left() == 0


async def test_requests_queued_at_the_timeout_get_a_503(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "2", drain_timeout="200ms") as process:
        running, waiting = await loaded(world, running_tokens=500)
        process.signal()
        answers: list[Answer] = [await client.answer() for client in waiting]
        assert engine.engine.running_now == 2, "the running ones go on meanwhile"
        for answer in answers:
            assert (answer.status, answer.error()["code"]) == (503, "draining")
            assert 1 <= int(answer.header("retry-after") or "") <= 60
        hurry(engine)
        for client in running:
            assert (await rest(client)).endswith(b"data: [DONE]\n\n")
        assert await process.left() == 0
    assert [entry.outcome for entry in engine.log.entries] == ["finished"] * 2


async def test_requests_running_at_the_timeout_are_aborted(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "3", drain_timeout="0s", stop_timeout="200ms") as process:
        stream = await world.streaming(tokens=5000)
        await stream.begun()
        whole = world.soon(world.chat(tokens=5000))
        await world.until(lambda: engine.engine.in_engine == 2)
        process.signal()
        assert b'"code":"draining"' in await rest(stream)
        assert (await whole).error()["code"] == "draining"
        assert await process.left() == 0
    await world.until(lambda: [entry.outcome for entry in engine.log.entries] == ["aborted"] * 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_forces(world: World, number: signal.Signals) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "2") as process:
        running, waiting = await loaded(world, running_tokens=5000)
        process.signal(number)
        await process.line(b"draining")
        process.signal(number)
        for client in waiting:
            assert (await client.answer()).error()["code"] == "draining"
        for client in running:
            assert b'"code":"draining"' in await rest(client)
        assert await process.left() == 0
    await world.until(lambda: engine.engine.in_engine == 0)


async def test_without_load_it_ends_at_once_despite_idle_connections(world: World) -> None:
    async with serving(world, "--endpoint", "http://127.0.0.1:9") as process:
        kept = await world.client(request("GET", "/health"))
        assert (await kept.answer()).status == 200
        process.signal()
        assert await process.left() == 0
        assert await kept.rest() == b""


async def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await penstock("serve", "--endpoint", "http://127.0.0.1:9", "--listen", f"127.0.0.1:{port}")
        assert await process.left() == 1
    assert process.log.count(b"\n") == 1
    assert process.log.startswith(b"penstock: cannot listen on 127.0.0.1:%d: " % port)


async def test_all_wrong_settings_are_reported_with_exit_code_2(tmp_path: Any) -> None:
    path = tmp_path / "penstock.yaml"
    wrong = {
        "endpoints": [{"url": "gpu-0:8000"}, {"url": "http://a:1"}, {"url": "http://a:1"}],
        "queue": {"max_requests": -1, "max_wiat": "3s"},
        "default_band": "nobody",
    }
    path.write_text(json.dumps(wrong))
    process = await penstock("serve", "-c", str(path), PENSTOCK__LIMITS__MAX_BODY="-1")
    assert await process.left() == 2
    log = process.log.decode()
    expected = (
        "endpoints[0].url",
        "endpoints[2]",
        "queue.max_requests",
        "queue.max_wiat",
        "default_band",
        "limits.max_body",
    )
    for place in expected:
        assert place in log, place
    assert all(line.startswith("penstock: ") for line in log.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve",), "no endpoints"),
        (("serve", "-c", "/nowhere/penstock.yaml"), "/nowhere/penstock.yaml"),
        (("serve", "--endpoint", "http://a:1", "--slots", "0"), "slots"),
        (("serve", "--endpoint", "http://a:1", "--routing", "by_magic"), "routing.policy"),
        (("serve", "--endpoint", "http://a:1", "--listen", "nowhere"), "listen"),
    ],
)
async def test_unservable_flags_are_reported_with_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    process = await penstock(*arguments)
    assert await process.left() == 2
    assert words in process.log.decode()


async def test_it_is_ready_to_queue_without_any_engine(world: World) -> None:
    engine = await world.engine()
    world.engines.clear()
    await engine.close()
    async with serving(world, "--endpoint", engine.url) as process:
        waiter = world.soon(world.ask(body=chat()))
        await world.until_metric(1, "penstock_queued_requests")
        world.engines.append(engine)
        await world.restart(engine)
        assert (await waiter).status == 200
        process.signal()
        assert await process.left() == 0
