"""Files and batches over HTTP, as the `openai` client uses them: on real sockets, over simulated engines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from penstock.batch.runner import Runner
from penstock.cli.main import main
from penstock.gateway.serve import Gateway
from tests.gateway.conftest import CHAT, Answer, World, chat, fault, request
from tests.patience import WAIT_S

ONE_STEP_BYTES = 256 * 1024

FORM = "multipart/form-data; boundary=edge"


def line(custom_id: str, content: str = "hello", *, url: str = CHAT, tokens: int = 2, **more: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": chat(content, tokens, **more)}


def jsonl(*lines: dict[str, Any] | bytes) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def form(data: bytes, name: str = "in.jsonl", **fields: str) -> bytes:
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()
    ]
    head = f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return "".join(parts).encode() + head.encode() + data + b"\r\n--edge--\r\n"


class Batches:
    """The API, for one caller."""

    def __init__(self, world: World, tenant: str = "a") -> None:
        self.world = world
        self.headers = {"x-tenant-id": tenant}

    async def call(self, method: str, path: str, body: Any = b"") -> Answer:
        return await self.world.ask(method, path, body, self.headers)

    async def upload(self, data: bytes, **fields: str) -> Answer:
        body = form(data, **{"purpose": "batch", **fields})
        return await self.world.ask("POST", "/v1/files", body, {**self.headers, "content-type": FORM})

    async def create(self, file: str, window: str = "24h", **more: Any) -> Answer:
        body = {"input_file_id": file, "endpoint": CHAT, "completion_window": window, **more}
        return await self.call("POST", "/v1/batches", body)

    async def start(self, *lines: dict[str, Any] | bytes, window: str = "24h", **more: Any) -> str:
        file = await self.upload(jsonl(*lines))
        assert file.status == 200, file
        batch = await self.create(file.json()["id"], window, **more)
        assert batch.status == 200, batch
        return str(batch.json()["id"])

    async def show(self, batch: str) -> dict[str, Any]:
        shown: dict[str, Any] = (await self.call("GET", f"/v1/batches/{batch}")).json()
        return shown

    async def ended(self, batch: str) -> dict[str, Any]:
        """The batch when it has ended. Its counts are right whenever it is looked at."""
        async with asyncio.timeout(WAIT_S):
            while True:
                shown = await self.show(batch)
                counts = shown["request_counts"]
                assert 0 <= counts["completed"] + counts["failed"] <= counts["total"]
                if shown["status"] in ("completed", "failed", "expired", "cancelled"):
                    return shown
                await asyncio.sleep(0.02)

    async def lines(self, file: str | None) -> list[dict[str, Any]]:
        assert file is not None
        answer = await self.call("GET", f"/v1/files/{file}/content")
        assert answer.status == 200
        assert int(answer.header("content-length") or 0) == len(answer.body)
        return [json.loads(one) for one in answer.body.splitlines()]


@pytest.fixture
async def api(world: World, tmp_path: Path) -> Batches:
    """A gateway with files and batches, in front of one engine."""
    await world.engine()
    await gateway(world, tmp_path)
    return Batches(world)


async def gateway(world: World, folder: Path, limits: dict[str, Any] | None = None, **settings: Any) -> Gateway:
    return await world.gateway(**{"batch": {"data": str(folder / "data"), "limits": limits or {}}, **settings})


@pytest.mark.virtual_time
async def test_a_runner_looks_for_work_and_room_each_second() -> None:
    loop = asyncio.get_running_loop()
    looked_s: list[float] = []

    class Port:
        @property
        def decides(self) -> bool:
            looked_s.append(round(loop.time() - began_s, 1))
            return True

    nothing: Any = None
    port: Any = Port()
    began_s = loop.time()
    task = asyncio.ensure_future(Runner(nothing, port, name="r", now=loop.time).fill())
    await asyncio.sleep(3.5)
    task.cancel()
    assert looked_s == [1.0, 2.0, 3.0]


async def test_the_openai_client_runs_a_batch(world: World, tmp_path: Path) -> None:
    for _ in range(2):
        await world.engine()
    gate = await gateway(world, tmp_path, slots=8)
    client = openai.AsyncOpenAI(base_url=f"{world.url}/v1", api_key="none", max_retries=0)
    data = jsonl(*(line(f"r{n}", f"prompt {n}") for n in range(300)))
    file = await client.files.create(
        file=("in.jsonl", data), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert (file.bytes, file.filename, file.purpose, file.status) == (len(data), "in.jsonl", "batch", "processed")
    assert file.expires_at == file.created_at + 7200
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"team": "x"}
    )
    assert batch.status == "validating"
    seen = 0
    while batch.status in ("validating", "in_progress", "finalizing"):
        batch = await client.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        assert batch.request_counts.total == 300
        assert seen <= batch.request_counts.completed <= 300
        seen = batch.request_counts.completed
        await asyncio.sleep(0.02)
    assert (batch.status, batch.model, batch.metadata, seen) == ("completed", "sim", {"team": "x"}, 300)
    assert batch.usage is not None
    assert batch.usage.output_tokens == 600
    assert batch.output_file_id is not None
    assert batch.error_file_id is None
    results = [json.loads(one) for one in (await client.files.content(batch.output_file_id)).text.splitlines()]
    assert sorted(r["custom_id"] for r in results) == sorted(f"r{n}" for n in range(300))
    assert all(r["error"] is None and r["response"]["status_code"] == 200 for r in results)
    assert results[0]["response"]["body"]["object"] == "chat.completion"
    listed = [one.id async for one in client.files.list(purpose="batch_output")]
    assert listed == [batch.output_file_id]
    assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)
    await client.close()
    assert len(world.seen()) == 300
    assert await world.metric("penstock_batch_items_total", outcome="completed") == 300
    assert await world.metric("penstock_requests_total", band="batch", outcome="completed") == 300
    service = gate.batch
    assert service is not None
    await world.until(lambda: not service.manager.outlook)
    assert await world.metric("penstock_batch_open") == 0


async def test_no_client_sees_anothers_files_and_batches(api: Batches) -> None:
    batch = await api.start(line("a"))
    shown = await api.ended(batch)
    other = Batches(api.world, "b")
    for path in (f"/v1/batches/{batch}", *(f"/v1/files/{shown[key]}" for key in ("input_file_id", "output_file_id"))):
        assert (await other.call("GET", path)).status == 404
    assert (await other.call("GET", f"/v1/files/{shown['output_file_id']}/content")).status == 404
    assert (await other.call("POST", f"/v1/batches/{batch}/cancel")).status == 404
    assert (await other.call("DELETE", f"/v1/files/{shown['input_file_id']}")).status == 404
    assert (await other.create(shown["input_file_id"])).error()["param"] == "input_file_id"
    for path in ("/v1/files", "/v1/batches"):
        assert (await other.call("GET", path)).json() == {
            "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"", "empty_file", None),
        (jsonl(line("a"), b"no json"), "invalid_json_line", 2),
        (bytes(range(256)) * 50, "invalid_json_line", 1),
        (b"\xef\xbb\xbf" + jsonl(line("a")), "byte_order_mark", 1),
        (jsonl(line("a")).replace(b"\n", b"\r\n"), "invalid_line_ending", 1),
        (jsonl(line("a"), line("b"), line("a")), "duplicate_custom_id", 3),
        (jsonl(line("a"), line("b", url="/v1/completions")), "mismatched_url", 2),
        (jsonl(line("a", url="/v1/files")), "invalid_url", 1),
        (jsonl(line("a"), line("b", stream=True)), "stream_unsupported", 2),
        (jsonl(line("a"), line("b", url="/v1/responses", background=True)), "background_unsupported", 2),
        (jsonl(line("a"), line("b", model="unknown")), "model_not_found", 2),
        (jsonl(line("a", "x" * 10_000_000), line("b")), "line_too_large", 1),
    ],
)
async def test_a_bad_file_names_its_line_and_runs_nothing(
    api: Batches, data: bytes, code: str, number: int | None
) -> None:
    file = (await api.upload(data)).json()
    late = code in ("mismatched_url", "model_not_found")  # only the batch can tell
    assert file["status"] == ("processed" if late else "error")
    shown = await api.ended((await api.create(file["id"])).json()["id"])
    assert (shown["status"], shown["request_counts"]["total"]) == ("failed", 0)
    [problem] = [one for one in shown["errors"]["data"] if one["line"] == number]
    assert problem["code"] == code
    assert (problem["message"] in (file["status_details"] or "")) is not late
    assert shown["output_file_id"] is shown["error_file_id"] is None
    assert shown["failed_at"] >= shown["created_at"]
    assert api.world.seen() == []


async def test_an_engines_refusals_are_in_the_error_file(api: Batches) -> None:
    batch = await api.start(line("good"), line("bad", max_tokens=-5), line("fine"))
    shown = await api.ended(batch)
    assert (shown["status"], shown["request_counts"]) == ("completed", {"total": 3, "completed": 2, "failed": 1})
    [bad] = await api.lines(shown["error_file_id"])
    assert (bad["custom_id"], bad["error"], bad["response"]["status_code"]) == ("bad", None, 400)
    assert "message" in bad["response"]["body"].get("error", bad["response"]["body"])
    assert {one["custom_id"] for one in await api.lines(shown["output_file_id"])} == {"good", "fine"}


async def test_a_cancelled_batch_keeps_its_results(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.02)
    await gateway(world, tmp_path, slots=2)
    api = Batches(world)
    batch = await api.start(*(line(f"r{n}", tokens=4) for n in range(200)))
    await world.until(lambda: len(world.seen()) >= 6)
    shown = (await api.call("POST", f"/v1/batches/{batch}/cancel")).json()
    assert (shown["status"], shown["cancelling_at"] is not None) == ("cancelling", True)
    shown = await api.ended(batch)
    counts = shown["request_counts"]
    assert (shown["status"], counts["total"]) == ("cancelled", 200)
    assert counts["completed"] + counts["failed"] == 200
    assert 4 <= counts["completed"] < 100
    done, undone = await api.lines(shown["output_file_id"]), await api.lines(shown["error_file_id"])
    assert (len(done), len(undone)) == (counts["completed"], counts["failed"])
    assert {one["custom_id"] for one in done + undone} == {f"r{n}" for n in range(200)}
    assert undone[0]["response"] is None
    assert undone[0]["error"]["code"] == "batch_cancelled"
    assert (await api.call("POST", f"/v1/batches/{batch}/cancel")).json()["status"] == "cancelled"  # again is fine


async def test_an_expired_batch_keeps_its_results(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.02)
    await gateway(world, tmp_path, slots=2)
    api = Batches(world)
    shown = await api.ended(await api.start(*(line(f"r{n}", tokens=4) for n in range(200)), window="1s"))
    counts = shown["request_counts"]
    assert (shown["status"], counts["completed"] + counts["failed"]) == ("expired", 200)
    assert shown["expired_at"] >= shown["expires_at"]
    assert counts["completed"] > 0
    undone = await api.lines(shown["error_file_id"])
    assert undone[0]["error"] == {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    }
    assert (await api.call("POST", f"/v1/batches/{shown['id']}/cancel")).error()["param"] == "batch_id"


async def test_an_item_too_large_to_be_read_in_one_step_runs_too(api: Batches) -> None:
    shown = await api.ended(await api.start(line("small"), line("large", padding="x" * ONE_STEP_BYTES)))
    assert (shown["status"], shown["request_counts"]["completed"]) == ("completed", 2)


async def test_one_batch_may_ask_for_several_models(world: World, tmp_path: Path) -> None:
    await world.engine(model="one")
    await world.engine(model="two")
    await gateway(world, tmp_path)
    api = Batches(world)
    shown = await api.ended(await api.start(*(line(f"r{n}", model=("one", "two")[n % 2]) for n in range(20))))
    assert (shown["status"], shown["model"], shown["request_counts"]["completed"]) == ("completed", None, 20)
    assert [len(engine.log.entries) for engine in world.engines] == [10, 10]


async def test_the_earlier_deadline_goes_first(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.005)
    await gateway(world, tmp_path, slots=2)
    api = Batches(world)
    late = await api.start(*(line(f"r{n}") for n in range(300)), window="24h")
    soon = await api.start(*(line(f"r{n}") for n in range(20)), window="1h")
    assert (await api.ended(soon))["status"] == "completed"
    shown = await api.show(late)
    assert (shown["status"], shown["request_counts"]["completed"] < 200) == ("in_progress", True)
    await api.call("POST", f"/v1/batches/{late}/cancel")
    await api.ended(late)


async def test_tenants_share_by_weight(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.005)
    await gateway(world, tmp_path, slots=2, tenants=[{"name": "a", "weight": 3}, {"name": "b", "weight": 1}])
    batches = {tenant: await Batches(world, tenant).start(*(line(f"r{n}") for n in range(300))) for tenant in "ab"}
    await world.until(lambda: any(batches["b"][6:] in entry.id for entry in world.seen()))
    before = len(world.seen())
    await world.until(lambda: len(world.seen()) >= before + 100)
    seen = [
        tenant for entry in world.seen()[before : before + 100] for tenant in "ab" if batches[tenant][6:] in entry.id
    ]
    assert 68 <= seen.count("a") <= 82
    for tenant, batch in batches.items():
        await Batches(world, tenant).call("POST", f"/v1/batches/{batch}/cancel")
        await Batches(world, tenant).ended(batch)


async def test_an_engine_that_dies_costs_no_item(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.005)
    dies = await world.engine(step_s=0.005)
    await gateway(world, tmp_path, slots=8)
    api = Batches(world)
    batch = await api.start(*(line(f"r{n}", tokens=5) for n in range(200)))
    await world.until(lambda: len(dies.log.entries) > 20)
    fault(dies, "die")
    shown = await api.ended(batch)
    assert shown["request_counts"] == {"total": 200, "completed": 200, "failed": 0}
    assert len(await api.lines(shown["output_file_id"])) == 200


async def test_a_restart_loses_no_result_and_repeats_none(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    gate = await gateway(world, tmp_path, slots=4)
    api = Batches(world)
    batch = await api.start(*(line(f"r{n}", tokens=2) for n in range(60)))
    await world.until(lambda: len(world.seen()) >= 20)
    await gate.drain()
    await gate.close()
    await gateway(world, tmp_path, slots=4)
    shown = await api.ended(batch)
    assert shown["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    assert sorted(one["custom_id"] for one in await api.lines(shown["output_file_id"])) == sorted(
        f"r{n}" for n in range(60)
    )
    assert len(world.seen()) == 60  # those that ran when it stopped were let end


async def test_operators_see_running_batches(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine(step_s=0.05)
    await gateway(world, tmp_path, slots=1)
    api = Batches(world)
    assert (await world.ask("GET", "/admin/state")).json()["batches"] == []
    batch = await api.start(*(line(f"r{n}", tokens=2) for n in range(100)))
    await world.until(lambda: len(world.seen()) > 0)
    [row] = (await world.ask("GET", "/admin/state")).json()["batches"]
    assert (row["id"], row["tenant"], row["total"], row["misses_window"]) == (batch, "a", 100, False)
    shown = await api.show(batch)
    assert shown["penstock"] == {"requests_per_second": 0.0, "estimated_end_at": None, "misses_window": False}
    for words in (["status"], ["top", "--once"]):
        assert await asyncio.to_thread(main, [*words, "--url", world.url]) == 0
        [told] = (one for one in capsys.readouterr().out.splitlines() if one.startswith(batch[:7]))
        assert "/100" in told
        assert "in_progress" in told
    assert await world.metric("penstock_batch_misses_window") == 0
    assert await world.metric("penstock_batch_open", status="in_progress") == 1
    await api.call("POST", f"/v1/batches/{batch}/cancel")
    await api.ended(batch)


async def test_interactive_requests_go_first(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    await gateway(world, tmp_path, slots=2)
    api = Batches(world)
    await api.start(*(line(f"r{n}", tokens=3) for n in range(60)))
    await world.until(lambda: world.picture().waiting > 10)
    before = len(world.seen())
    answer = await world.chat("me first", tokens=3)
    assert answer.status == 200
    assert len(world.seen()) - before <= 4  # what ran already, and one that followed it
    bands = {band.name: band.waiting for band in world.picture().bands}
    assert bands["batch"] > 10
    assert bands["standard"] == 0


async def test_a_batch_that_people_preempt_loses_no_item_and_answers_none_twice(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.005)
    await gateway(world, tmp_path, slots=2)
    api = Batches(world)
    batch = await api.start(*(line(f"r{n}", tokens=20) for n in range(20)))
    await world.until(lambda: world.picture().running == 2)
    for _ in range(10):
        assert (await world.chat("now", tokens=2)).status == 200
    ended = await api.ended(batch)
    assert ended["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    results = await api.lines(ended["output_file_id"])
    assert sorted(one["custom_id"] for one in results) == sorted(f"r{n}" for n in range(20))
    assert await world.metric("penstock_requeues_total", reason="preempted") > 0


# --- uploads ------------------------------------------------------------------------------------------------------


async def test_an_upload_that_breaks_off_leaves_nothing(api: Batches) -> None:
    body = form(b"x" * 3_000_000, purpose="batch")
    client = await api.world.client(
        request("POST", "/v1/files", body, {**api.headers, "content-type": FORM})[:2_000_000]
    )
    gate = api.world.gate
    await api.world.until(lambda: gate.server.connections == 1)
    client.hang_up()
    await api.world.until(lambda: gate.server.connections == 0)
    assert (await api.call("GET", "/v1/files")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "content_type", "param"),
    [
        (b"{}", "application/json", None),
        (form(b"x"), FORM, "purpose"),
        (form(b"x", purpose="assistants"), FORM, "purpose"),
        (form(b"x", purpose="batch")[:-12], FORM, None),
        (b"--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge--", FORM, "file"),
        (form(b"x", purpose="batch", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"}), FORM,
         "expires_after[seconds]"),
        (form(b"x", purpose="batch", **{"expires_after[anchor]": "now"}), FORM, "expires_after[anchor]"),
    ],
)  # fmt: skip
async def test_a_wrong_upload_is_refused(api: Batches, body: bytes, content_type: str, param: str | None) -> None:
    answer = await api.world.ask("POST", "/v1/files", body, {"content-type": content_type})
    assert (answer.status, answer.error()["code"], answer.error()["param"]) == (400, "bad_request", param)
    assert (await api.world.ask("GET", "/v1/files")).json()["data"] == []


async def test_limits_of_a_tenant(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path, limits={"files": 2, "bytes": 4000, "items": 3, "max_file": 3000, "max_line": 2000})
    api = Batches(world)
    too_large = await api.upload(b"x" * 100_000)
    assert (too_large.status, too_large.error()["code"]) == (413, "request_too_large")
    file = (await api.upload(jsonl(*(line(str(n)) for n in range(4))))).json()["id"]
    many = await api.create(file)
    assert (many.status, many.error()["code"]) == (429, "tenant_limit")
    assert many.header("retry-after") is not None
    assert many.header("x-penstock-limit") == "batch.limits.items"
    assert (await api.upload(b"x" * 2900)).status == 200
    full = await api.upload(b"x")
    assert (full.status, full.error()["code"]) == (429, "tenant_limit")
    assert "2 files" in full.error()["message"]
    assert (full.header("x-penstock-limit"), "(`batch.limits.files`)" in full.error()["message"]) == (
        "batch.limits.files",
        True,
    )
    assert (await Batches(world, "b").upload(b"x")).status == 200
    assert (await api.call("DELETE", f"/v1/files/{file}")).json() == {"id": file, "object": "file", "deleted": True}
    assert (await api.upload(b"x")).status == 200


async def test_a_full_disk_is_reported_and_nothing_is_kept(api: Batches) -> None:
    batch = api.world.gate.batch
    assert batch is not None
    store = batch.routes._files._store

    def fill(store: Any) -> None:
        pages = store.sqlite.execute("PRAGMA page_count").fetchone()[0]
        store.sqlite.execute(f"PRAGMA max_page_count = {pages + 100}")

    await store.do(fill)
    full = await api.upload(jsonl(*(line(str(n), "x" * 1000) for n in range(1000))))
    assert (full.status, full.error()["code"]) == (507, "storage_full")
    assert (await api.call("GET", "/v1/files")).json()["data"] == []
    assert (await api.upload(jsonl(line("a")))).status == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"input_file_id": "file-unknown"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "file-\0"}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after[seconds]"),
    ],
)
async def test_a_wrong_batch_is_refused(api: Batches, change: dict[str, Any], param: str) -> None:
    file = (await api.upload(jsonl(line("a")))).json()["id"]
    answer = await api.create(file, **change)
    assert (answer.status, answer.error()["param"]) == (400, param)


async def test_paths_and_methods(api: Batches) -> None:
    for method, path, status in (
        ("PUT", "/v1/files", 405),
        ("POST", "/v1/files/file-1", 405),
        ("GET", "/v1/files/file-1", 404),
        ("GET", "/v1/files/file-1/other", 404),
        ("GET", "/v1/batches/batch_1/cancel", 405),
        ("GET", "/v1/batches/batch_1", 404),
        ("GET", "/v1/files?limit=0", 400),
        ("GET", "/v1/batches?limit=101", 400),
        ("GET", "/v1/files?order=up", 400),
        ("GET", "/v1/files?after=%00", 400),
    ):
        assert (await api.call(method, path)).status == status, path


async def test_without_a_folder_there_are_no_files(world: World) -> None:
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}])
    answer = await world.ask("GET", "/v1/files")
    assert answer.status == 404


async def test_a_slow_reader_of_a_file_is_waited_for(api: Batches) -> None:
    lines = [line(f"r{n}", "x" * 4000, tokens=1) for n in range(1500)]
    file = (await api.upload(jsonl(*lines))).json()
    client = await api.world.client(request("GET", f"/v1/files/{file['id']}/content", headers=api.headers))
    head = await client.head()
    assert head.header("content-length") == str(file["bytes"]) == str(len(jsonl(*lines)))
    await asyncio.sleep(0)
    assert await client.piece() == jsonl(*lines)
