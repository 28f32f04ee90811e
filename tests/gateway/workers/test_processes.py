"""`serve --workers 2` as processes: who dies takes what is its own, the rest goes on, and nobody is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.gateway.process import usable_cpus
from tests.gateway.conftest import Client, World, hurry
from tests.gateway.proxy.test_engine_paths import whole
from tests.gateway.raw_engine import Peer, RawEngine, Script
from tests.gateway.test_shutdown import Process, penstock, serving
from tests.gateway.workers.pids import workers_of
from tests.patience import WAIT_S, looks

STREAMS_MAX = 80  # whoever wakes first accepts: on a machine with nothing else to do that may be the same one often


def _workers(process: Process) -> dict[int, str]:
    """The workers' processes, and what they are called."""
    return workers_of(process.process.pid)


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def _edges(world: World) -> dict[str, tuple[bool, int, int]]:
    """Of each worker: is it up, how many requests it holds, how often it was started."""
    state = (await world.ask("GET", "/admin/state")).json()
    return {edge["name"]: (edge["up_s"] is not None, edge["requests"], edge["starts"]) for edge in state["edges"]}


async def _until(world: World, claim: Callable[[dict[str, tuple[bool, int, int]]], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not claim(await _edges(world)):
            await asyncio.sleep(0.05)


async def _streams_of_both(world: World, count: int, tokens: int) -> dict[str, list[Client]]:
    """Streams under way, by the worker that carries them: as many as it takes until both have some."""
    carried: dict[str, list[Client]] = {"w1": [], "w2": []}
    for number in range(STREAMS_MAX):
        if number >= count and all(carried.values()):
            break
        before = await _edges(world)
        client = await world.streaming(tokens=tokens)
        await client.begun()
        after = await _edges(world)
        (name,) = [name for name in after if after[name][1] > before[name][1]]
        carried[name].append(client)
    assert all(carried.values()), "the kernel gave all connections to one"
    return carried


async def test_a_worker_that_is_killed_takes_its_own_connections_only(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "100", "--workers", "2") as process:
        carried = await _streams_of_both(world, 12, tokens=3000)  # a minute; a worker is back in seconds
        names = _workers(process)
        assert sorted(names.values()) == ["w1", "w2"]
        victim = next(pid for pid, name in names.items() if name == "w1")
        running = engine.engine.running_now
        os.kill(victim, signal.SIGKILL)
        for client in carried["w1"]:
            assert not (await client.rest()).endswith(b"data: [DONE]\n\n")
        await world.until(lambda: engine.engine.running_now == running - len(carried["w1"]))
        await _until(world, lambda edges: edges["w1"] == (True, 0, 2))
        assert (await _edges(world))["w2"] == (True, len(carried["w2"]), 1)
        assert await world.metric("penstock_leases") == len(carried["w2"])
        hurry(engine)
        for client in carried["w2"]:
            assert (await client.whole()).endswith(b"data: [DONE]\n\n")
        assert {(await world.chat()).status for _ in range(6)} == {200}
        await world.until_metric(0, "penstock_leases")
        events = (await world.ask("GET", "/admin/state")).json()["events"]
        assert any(event["kind"] == "worker" and "w1 was killed by signal 9" in event["text"] for event in events)
        process.signal()
        log = (await process.left_after_trouble()).decode()
        assert "worker w1 (process" in log
        assert "is started again in 0.5 s" in log


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_the_first_requests_wait_and_are_tried_again_like_all_others(world: World, workers: str) -> None:
    """Engines that list their models late: nothing is known of them when the gateway is ready."""

    def engine(status: bytes) -> Script:
        async def script(peer: Peer) -> None:
            while True:
                data = await peer.request()
                if data.startswith(b"GET /v1/models"):
                    await asyncio.sleep(1.3)  # later than the gateway's first look, sooner than a probe's time-out
                answers = whole({"object": "list", "data": [{"id": "sim", "owned_by": "vllm"}]})
                await peer.send(answers if data.startswith(b"GET ") else whole({"id": "c", "choices": []}, status))

        return script

    failing = await world.beside(RawEngine(engine(b"500 Internal Server Error")))
    good = await world.beside(RawEngine(engine(b"200 OK")))
    named = ("--endpoint", failing.url, "--endpoint", good.url)
    async with serving(world, "--workers", workers, *named):
        at = good.url.removeprefix("http://")
        answers = await asyncio.gather(*(world.chat() for _ in range(6)))
    assert [(answer.status, answer.header("x-penstock-endpoint")) for answer in answers] == [(200, at)] * 6


@pytest.mark.slow
async def test_a_prompt_is_known_to_all_workers_and_to_one_that_was_restarted(world: World) -> None:
    for _ in range(2):
        await world.engine()
    async with serving(world, "--workers", "2", "--routing", "prefix") as process:
        prompts = [f"{name}, keeper of a weir. " * 60 for name in ("Ada", "Ben", "Cleo", "Dora")]
        homes = [(await world.chat(prompt)).header("x-penstock-endpoint") for prompt in prompts]
        assert len(set(homes)) == 2
        carried = await _at_home_at_both(world, prompts, homes)
        for pid, name in _workers(process).items():
            if name == "w1":
                os.kill(pid, signal.SIGKILL)
        await _until(world, lambda edges: edges["w1"] == (True, 0, 2))
        assert len(await _at_home_at_both(world, prompts, homes) & carried) == 1, "w2's ids go on, w1's are new"


async def _at_home_at_both(world: World, prompts: list[str], homes: list[str | None]) -> set[str]:
    """Ask until both workers have answered. Returns how each begins its requests' ids."""
    carried: set[str] = set()
    for _ in range(STREAMS_MAX):
        answers = await asyncio.gather(*(world.chat(prompt) for prompt in prompts))
        assert [answer.header("x-penstock-endpoint") for answer in answers] == homes
        carried |= {(answer.header("x-request-id") or "").rpartition("-")[0] for answer in answers}
        if len(carried) == 2:
            return carried
    raise AssertionError("the kernel gave all connections to one")


@pytest.mark.slow
async def test_what_waits_at_a_worker_that_dies_is_dropped_and_newcomers_lose_nothing(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "1", "--workers", "2") as process:
        runs = await world.streaming(tokens=600)
        await runs.begun()
        waiting = [await world.streaming("waits", tokens=1) for _ in range(10)]
        await world.until_metric(10, "penstock_queued_requests")
        edges = await _edges(world)
        names = {name: pid for pid, name in _workers(process).items()}
        victim = "w1" if edges["w1"][1] and edges["w2"][1] > 0 else max(edges, key=lambda name: edges[name][1])
        os.kill(names[victim], signal.SIGKILL)
        hurry(engine)
        newcomers = [world.soon(world.chat(tokens=1)) for _ in range(10)]
        assert {(await newcomer).status for newcomer in newcomers} == {200}
        await world.until_metric(0, "penstock_queued_requests")
        await world.until_metric(0, "penstock_leases")
        for client in waiting:
            client.hang_up()
        process.signal()
        await process.left_after_trouble()


@pytest.mark.slow
async def test_a_parent_that_is_killed_ends_its_workers(world: World) -> None:
    await world.engine(step_s=0.02)
    async with serving(world, "--workers", "2") as process:
        stream = await world.streaming(tokens=5000)
        await stream.begun()
        workers = _workers(process)
        assert len(workers) == 2
        process.signal(signal.SIGKILL)
        await stream.rest()
        await world.until(lambda: not any(map(_alive, workers)))
        await world.until(lambda: world.engines[0].engine.in_engine == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
async def test_a_signal_to_all_processes_drains_as_one_to_the_first(world: World, number: signal.Signals) -> None:
    """As a terminal, systemd and most containers send it."""
    engine = await world.engine(step_s=0.02)
    async with serving(world, "--slots", "4", "--workers", "2") as process:
        streams = [await world.streaming(tokens=500) for _ in range(6)]
        for client in streams[:4]:
            await client.begun()
        os.killpg(process.process.pid, number)
        await process.line(b"draining")
        hurry(engine)
        for client in streams:
            data = await client.rest()
            assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert await process.left() == 0


@pytest.mark.slow
async def test_a_reload_reaches_every_worker(world: World, tmp_path: Path) -> None:
    await world.engine()
    path = tmp_path / "penstock.yaml"
    path.write_text("workers: 2\n")
    async with serving(world, "-c", str(path)) as process:
        key = "sk-" + "a" * 40
        digest = hashlib.sha256(key.encode()).hexdigest()
        path.write_text(
            f"workers: 2\ntenants: [{{name: team-a, keys: ['sha256:{digest}']}}]\nidentity: {{require_key: true}}\n"
        )
        process.signal(signal.SIGHUP)
        await process.line(b"reload")
        async for _ in looks(WAIT_S):  # until both have read it
            if {(await world.chat()).status for _ in range(8)} == {401}:
                break
        assert {(await world.chat_with({"authorization": f"Bearer {key}"})).status for _ in range(8)} == {200}
        path.write_text("workers: 3\n")
        process.signal(signal.SIGHUP)
        assert b"needs a restart" in await process.line(b"workers")
        process.signal()
        assert await process.left() == 0


@pytest.mark.slow
async def test_a_made_key_works_at_every_worker_until_it_is_withdrawn(world: World, tmp_path: Path) -> None:
    await world.engine()
    path = tmp_path / "penstock.yaml"
    path.write_text(
        "workers: 2\ntenants: [{name: team}]\nidentity: {made_keys: true}\n"
        f"batch: {{data: {tmp_path / 'store'}, serve: false}}\nadmin: {{token: of-the-operator}}\n"
    )
    operator = {"authorization": "Bearer of-the-operator"}

    async def all_answer(key: str, status: int) -> None:
        async for _ in looks(1.0):  # what is promised
            if {(await world.chat_with({"authorization": f"Bearer {key}"})).status for _ in range(8)} == {status}:
                return

    async with serving(world, "-c", str(path)) as process:
        made = await world.ask("POST", "/admin/keys", {"tenant": "team", "name": "ci"}, operator)
        key = made.json()["key"]
        await all_answer(key, 200)
        tried = await world.ask("POST", "/admin/try", {"tenant": "team", "model": "sim"}, operator)
        assert (tried.json()["status"], tried.json()["explanation"]["tenant"]) == (200, "team")
        victim = next(iter(_workers(process)))
        os.kill(victim, signal.SIGKILL)
        await _until_started_again(world, operator)
        await all_answer(key, 200)
        assert (await world.ask("POST", "/admin/keys/ci/limit", {"requests_per_minute": 1}, operator)).status == 200
        await asyncio.sleep(0.2)  # until the workers know that its requests have an account of their own
        limited = [(await world.chat_with({"authorization": f"Bearer {key}"})).status for _ in range(8)]
        assert sorted(limited) == [200, *[429] * 7]
        assert (await world.ask("DELETE", "/admin/keys/ci", headers=operator)).status == 200
        await all_answer(key, 401)
        process.signal()
        await process.left_after_trouble()


async def _until_started_again(world: World, operator: dict[str, str]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            edges = (await world.ask("GET", "/admin/state", headers=operator)).json()["edges"]
            if sorted(edge["starts"] for edge in edges) == [1, 2] and all(edge["up_s"] is not None for edge in edges):
                return
            await asyncio.sleep(0.05)


async def test_one_worker_is_the_process_itself_and_imports_nothing_of_workers(world: World) -> None:
    await world.engine()
    async with serving(world, "--workers", "1") as process:
        assert not _workers(process)
        assert (await world.ask("GET", "/admin/state")).json()["edges"] == []
        process.signal()
        assert await process.left() == 0


async def test_nothing_of_workers_is_imported_by_a_gateway_of_one_process() -> None:
    code = (
        "import sys, penstock.cli.main, penstock.gateway.serve;"
        "rooms = 'penstock.share', 'penstock.gateway.workers', 'penstock.gateway.share', 'penstock.gateway.elect';"
        "print([m for m in sys.modules if m.startswith(rooms)])"
    )
    process = await asyncio.create_subprocess_exec(*(sys.executable, "-c", code), stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.strip() == b"[]"


async def test_a_worker_that_cannot_start_is_an_error_line_and_exit_code_1(world: World, tmp_path: Path) -> None:
    """As where two versions are mixed, or a file is missing."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'penstock.gateway.workers' in ' '.join(sys.orig_argv):\n    os._exit(7)\n"
    )
    await world.engine()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = await penstock(
        *("serve", "--endpoint", world.engines[0].url, "--listen", "127.0.0.1:0", "--workers", "2"), PYTHONPATH=path
    )
    log = (await process.left_after_trouble(code=1)).decode()
    assert "ended with code 7" in log
    assert log.splitlines()[-1] == "penstock: a worker exited before it served anything; see the log above"


@pytest.mark.parametrize(
    ("limit", "cpus"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1), ("nonsense", None)]
)
def test_auto_is_what_the_machine_or_the_container_gives(
    limit: str, cpus: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(limit + "\n")
    monkeypatch.setattr("penstock.gateway.process._QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cpus() == (8 if cpus is None else cpus)


@pytest.mark.slow
async def test_kills_under_load_leak_nothing_and_no_engine_gets_more_than_its_slots(world: World) -> None:
    """Streams run, others wait, and workers are killed one after the other; who is not theirs is served to the end."""
    slots, kills, theirs = 40, 4, 0
    engine = await world.engine(step_s=0.01)
    answers: list[bool] = []

    async def client() -> None:
        """One request after the other, until it is over; each ends well or with its connection."""
        while not over.is_set():
            try:
                made = await world.streaming(tokens=40)
                answers.append((await made.answer()).body.endswith(b"data: [DONE]\n\n"))
                made.hang_up()
            except (OSError, EOFError):
                answers.append(False)

    over = asyncio.Event()
    async with serving(world, "--slots", str(slots), "--workers", "2") as process:
        load = [asyncio.create_task(client()) for _ in range(100)]
        for number in range(kills):
            await _until(world, lambda edges: all(up for up, _, _ in edges.values()))
            async for _ in looks(WAIT_S):
                if await world.metric("penstock_queued_requests") > 0:
                    break
            names = {name: pid for pid, name in _workers(process).items()}
            victim = f"w{number % 2 + 1}"
            theirs += (await _edges(world))[victim][1]
            os.kill(names[victim], signal.SIGKILL)
            await asyncio.sleep(0.5)
        over.set()
        await asyncio.gather(*load)
        assert await world.metric("penstock_leases") == 0
        assert await world.metric("penstock_queued_requests") == 0
        assert engine.log.in_engine_max <= slots
        cut = answers.count(False)
        assert 0 < cut <= theirs + 10 * kills, "others than a victim's own were cut, beside some that came meanwhile"
        assert answers.count(True) > cut
        process.signal()
        await process.left_after_trouble()
    assert engine.engine.in_engine == 0
