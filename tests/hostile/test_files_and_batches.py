"""Files and batches: what callers, disks and clocks do to them must end there, and never reach inference."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.batch.api import calls
from penstock.batch.api.wiring import BatchService
from penstock.batch.store.sqlite import FILE, SqliteStore
from penstock.batch.values import Quota
from penstock.config.problems import ConfigError
from penstock.gateway.serve import Gateway
from tests.batch.test_batch import FORM, Batches, form, gateway, jsonl, line
from tests.gateway.conftest import World, request

CALLS_TENANT_MAX = 64


def service(gate: Gateway) -> BatchService:
    assert gate.batch is not None
    return gate.batch


async def rows(gate: Gateway, status: str) -> int:
    def count(store: Any) -> int:
        found = store.sqlite.execute("SELECT COUNT(*) FROM files WHERE status = :status", {"status": status})
        return int(found.fetchone()[0])

    return await service(gate).routes._files._store.do(count)


# --- uploads --------------------------------------------------------------------------------------------------------


def too_large(body: bytes) -> bytes:
    return request("POST", "/v1/files", body * 100, {"content-type": FORM})


def bad_chunk(body: bytes) -> bytes:
    head = f"POST /v1/files HTTP/1.1\r\nhost: g\r\ncontent-type: {FORM}\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode() + b"5\r\nhello\r\nzz\r\n" + body


def too_slow(body: bytes) -> bytes:
    return request("POST", "/v1/files", body, {"content-type": FORM})[:-20]


@pytest.mark.parametrize(
    ("attack", "status"), [(too_large, 413), (bad_chunk, 400), (too_slow, 408)], ids=["413", "bad_chunk", "408"]
)
async def test_an_upload_that_the_server_refuses_is_let_go(
    world: World, tmp_path: Path, attack: Callable[[bytes], bytes], status: int
) -> None:
    await world.engine()
    gate = await gateway(
        world, tmp_path, limits={"max_file": 30_000, "max_line": 20_000}, timeouts={"client_body": 0.3}
    )
    clients = [await world.client(attack(form(b"x" * 1000, purpose="batch"))) for _ in range(5)]
    for client in clients:
        assert (await client.answer()).status == status
    await world.until(lambda: not service(gate).routes._uploads)
    await world.until(lambda: not service(gate).routes._calls._tasks)
    assert await rows(gate, "uploading") == 0
    assert (await Batches(world).upload(jsonl(line("a")))).status == 200


async def test_an_upload_that_drips_is_let_go_when_its_time_in_all_is_over(world: World, tmp_path: Path) -> None:
    await world.engine()
    gate = await gateway(
        world, tmp_path, limits={"max_file": 30_000, "max_line": 20_000}, timeouts={"client_body_total": 0.3}
    )
    client = await world.client(too_slow(form(b"x" * 1000, purpose="batch"))[:-500])
    reading = asyncio.ensure_future(client.answer())
    while not reading.done():
        client.send(b"x")
        await asyncio.sleep(0.02)
    assert (await reading).status == 408
    await world.until(lambda: not service(gate).routes._uploads)
    assert await rows(gate, "uploading") == 0


async def test_one_tenants_slow_transfers_delay_no_other(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    greedy, other = Batches(world, "greedy"), Batches(world, "other")
    upload = request(
        "POST", "/v1/files", form(b"x" * 100_000, purpose="batch"), {**greedy.headers, "content-type": FORM}
    )
    slow = [await world.client(upload[:500]) for _ in range(CALLS_TENANT_MAX)]
    gate = world.gate
    await world.until(lambda: len(service(gate).routes._uploads) == CALLS_TENANT_MAX)
    refused = await greedy.upload(jsonl(line("a")))
    assert (refused.status, refused.error()["code"]) == (429, "tenant_limit")
    assert refused.header("retry-after") is not None
    assert (await greedy.call("GET", "/v1/files")).status == 200
    assert (await other.upload(jsonl(line("a")))).status == 200
    for client in slow:
        client.hang_up()
    await world.until(lambda: not service(gate).routes._uploads)
    assert (await greedy.upload(jsonl(line("a")))).status == 200


def unread(world: World, data: bytes) -> socket.socket:
    """A client that asks, and takes next to nothing of the answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", world.port))
    client.sendall(data)
    return client


async def test_unread_downloads_leave_the_calls_free(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CALLS_MAX", 8)
    monkeypatch.setattr(calls, "CALLS_TENANT_MAX", 2)
    await world.engine()
    await gateway(world, tmp_path)
    readers: list[socket.socket] = []
    for tenant in range(4):
        api = Batches(world, f"t{tenant}")
        file = (await api.upload(jsonl(*(line(str(n), "x" * 4_000_000) for n in range(3))))).json()["id"]
        for _ in range(2):
            readers.append(unread(world, request("GET", f"/v1/files/{file}/content", headers=api.headers)))
    gate = world.gate
    await world.until(lambda: len(service(gate).routes._calls._tasks) == 8)
    api = Batches(world, "one more")
    assert (await api.upload(jsonl(line("a")))).status == 200
    assert (await api.call("GET", "/v1/batches")).status == 200
    for reader in readers:
        reader.close()
    await world.until(lambda: not service(gate).routes._calls._tasks)


async def test_an_upload_cut_off_by_a_kill_keeps_no_room(tmp_path: Path) -> None:
    from tests.conformance.test_store import MANY, T, a_file  # noqa: PLC0415 - its own small makers

    store = SqliteStore(tmp_path)
    store.begin_file(a_file(size=900, at=T), Quota(files=5, bytes=1000, batches=1, items=1), "killed")
    store.close()  # as the process's end does; nothing was told
    store = SqliteStore(tmp_path)
    store.beat("next", T + 30)
    while store.purge(T):
        pass
    store.begin_file(a_file("file-2", size=900, at=T), Quota(files=5, bytes=1000, batches=1, items=1), "next")
    store.beat("next", T + 60)
    assert not store.purge(T + 30), "that of a living gateway stays"
    store.end_file(a_file("file-2", at=T), MANY)
    store.close()


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        {"tenants": [{"name": "a", "limits": {"queued": 4}}]},
        {"tenants": [{"name": "a", "limits": {"queued": 1}}]},
        {"bands": [{"name": "standard"}, {"name": "batch", "max_requests": 4}]},
        {"queue": {"max_requests": 4}},
    ],
    ids=["tenant", "tenant_of_one", "band", "queue"],
)
async def test_a_batch_lives_within_the_limits_of_its_tenant_its_band_and_the_queue(
    world: World, tmp_path: Path, limit: dict[str, Any]
) -> None:
    await world.engine()
    await gateway(world, tmp_path, slots=8, **limit)
    api = Batches(world)
    shown = await api.ended(await api.start(*(line(f"r{n}") for n in range(200))))
    assert shown["request_counts"] == {"total": 200, "completed": 200, "failed": 0}
    assert await world.metric("penstock_rejections_total") == 0
    assert await world.metric("penstock_batch_retries_total") == 0


async def test_a_batch_leaves_places_to_the_other_requests_of_its_tenant(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.02)
    await gateway(world, tmp_path, slots=1, tenants=[{"name": "a", "limits": {"queued": 4}}])
    api = Batches(world)
    batch = await api.start(*(line(f"r{n}", tokens=4) for n in range(40)))
    await world.until(lambda: world.picture().waiting == 2)
    answers = [await world.chat_with(api.headers, tokens=1) for _ in range(3)]
    assert [answer.status for answer in answers] == [200] * 3
    await api.call("POST", f"/v1/batches/{batch}/cancel")
    await api.ended(batch)


async def test_without_a_queue_a_batch_takes_only_unused_slots(world: World, tmp_path: Path) -> None:
    engine = await world.engine(step_s=0.005, max_num_seqs=64)
    await gateway(world, tmp_path, slots=6, queue={"enabled": False})
    api = Batches(world)
    batch = await api.start(*(line(f"r{n}", tokens=4) for n in range(120)))
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, world.picture().running)
        return len(world.seen()) >= 120

    await world.until(look)
    assert 4 <= most <= 6
    assert (await api.ended(batch))["request_counts"]["completed"] == 120
    assert len(engine.log.entries) == 120


# --- clocks and disks -----------------------------------------------------------------------------------------------


async def test_a_clock_set_back_by_half_a_day_stops_no_batch(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.engine(step_s=0.02)
    gate = await gateway(world, tmp_path, slots=1)
    api = Batches(world)
    running = await api.start(*(line(f"r{n}", tokens=5) for n in range(60)))
    late = await api.start(line("late", tokens=5), *(line(f"l{n}", tokens=5) for n in range(300)), window="1s")
    manager = service(gate).manager
    await world.until(lambda: len(manager.outlook) == 2)
    true_wall = manager._wall
    monkeypatch.setattr(manager, "_wall", lambda: true_wall() - 12 * 3600)
    assert (await api.ended(late))["status"] == "expired"
    await api.call("POST", f"/v1/batches/{running}/cancel")
    assert (await api.ended(running))["status"] == "cancelled"


async def test_a_damaged_store_at_the_start_stops_only_batches_and_recovers(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await world.engine()
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / FILE).write_bytes(b"this is no database " * 1000)
    with caplog.at_level(logging.CRITICAL):  # its warnings are not of interest here
        await gateway(world, tmp_path)
        assert (await world.chat()).status == 200
        api = Batches(world)
        down = await api.call("GET", "/v1/files")
        assert (down.status, down.error()["code"]) == (502, "upstream_error")
        assert await world.metric("penstock_batch_store_up") == 0
        assert "damaged" in (await world.ask("GET", "/admin/state")).json()["batch_store"]
        (folder / FILE).unlink()
        assert (await api.upload(jsonl(line("a")))).status == 200
    assert await world.metric("penstock_batch_store_up") == 1
    assert (await world.ask("GET", "/admin/state")).json()["batch_store"] is None


async def test_a_store_that_is_damaged_under_way_answers_and_comes_back(world: World, tmp_path: Path) -> None:
    await world.engine()
    gate = await gateway(world, tmp_path)
    api = Batches(world)
    assert (await api.upload(jsonl(*(line(str(n), "x" * 1000) for n in range(500))))).status == 200
    store = service(gate).routes._files._store
    folder = tmp_path / "data"

    def damage(opened: Any) -> None:
        opened.sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        size = (folder / FILE).stat().st_size
        with (folder / FILE).open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        opened.sqlite.execute("PRAGMA cache_size = 0").fetchall()

    await store.do(damage)
    down = await api.call("GET", "/v1/files")
    assert (down.status, down.error()["code"]) == (502, "upstream_error")
    assert (await world.chat()).status == 200
    for path in folder.glob(f"{FILE}*"):
        path.unlink()
    assert (await api.upload(jsonl(line("a")))).status == 200


async def test_a_folder_that_cannot_be_used_is_still_a_mistake_in_the_settings(world: World, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"^store: "):
        await gateway(world, tmp_path)
