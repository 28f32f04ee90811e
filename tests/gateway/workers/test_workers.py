"""Workers beside their decider: one queue, one set of limits, one page; and links that say what is no word of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.core.values.request import Request
from penstock.gateway.cluster import edge_table, supervisor, worker
from penstock.share.frames import written
from penstock.share.messages import PROTOCOL, Arrived, Finished, Hello, WireRequest
from tests.gateway.conftest import Client, World, chat, request
from tests.gateway.proxy.test_stored_answers import keepers, made, stored
from tests.gateway.workers.beside import WorkerBeside
from tests.patience import WAIT_S, looks

HUNG_S = 30.0

FIRST, SECOND = "w1", "w2"


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "WorkerProcess", WorkerBeside)
    monkeypatch.setattr(worker, "TICKS_PER_STANDING", 1)
    monkeypatch.setattr(worker, "TICK_S", 0.02)


def workers(world: World) -> dict[str, WorkerBeside]:
    assert world.gate.cluster is not None
    return {one.name: one.process for one in world.gate.cluster.table.workers}  # type: ignore[misc]


def inside(world: World, name: str) -> worker.Worker:
    life = workers(world)[name].life
    assert life is not None
    assert life._worker is not None
    return life._worker


@contextmanager
def only(world: World, name: str) -> Iterator[None]:
    """Connections that come now are this worker's."""
    loop = asyncio.get_running_loop()
    others = [inside(world, other).server._listener for other in workers(world) if other != name]
    for listener in others:
        assert listener is not None
        for one in listener.sockets:
            loop.remove_reader(one)
    yield
    for listener in others:
        assert listener is not None
        listener._watch()


async def at(world: World, name: str, **more: Any) -> Client:
    """A stream that this worker carries."""
    held = len(inside(world, name)._edge.requests)
    with only(world, name):
        client = await world.streaming(**more)
        await world.until(lambda: len(inside(world, name)._edge.requests) == held + 1)
    return client


async def test_a_worker_knows_from_its_first_request_on_what_the_engines_are(world: World) -> None:
    engine = await world.engine()
    world.engines.clear()  # whose models are else waited for
    await world.gateway(endpoints=[{"url": engine.url}], workers=2, admission={"engine_priority": True})
    world.engines.append(engine)
    for name in workers(world):
        with only(world, name):
            assert (await world.ask(path="/v1/completions", body={"prompt": "x", "max_tokens": 1})).status == 200
    assert [entry.priority is not None for entry in engine.log.entries] == [True, True]


async def test_slots_and_queue_are_those_of_one_gateway(world: World) -> None:
    engine = await world.engine(step_s=0.01)
    await world.gateway(slots=2, workers=2)
    runs = [await at(world, name, tokens=60) for name in (FIRST, SECOND)]
    waits = [await at(world, name, tokens=2) for name in (FIRST, FIRST, SECOND)]
    await world.until(lambda: world.picture().waiting == 3)
    assert engine.engine.in_engine == 2
    own = (await world.ask("GET", "/queue")).json()
    assert (own["running"], own["waiting"]) == (2, 3)
    assert [row["position"] for row in own["requests"]] == [1, 2, 3]
    for client in (*runs, *waits):
        answer = await client.answer()
        assert answer.status == 200
        assert answer.body.endswith(b"data: [DONE]\n\n")
    assert engine.log.in_engine_max == 2


async def test_an_id_that_two_workers_have_is_two_requests(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=4, workers=2)
    clients = []
    for name in (FIRST, SECOND):
        with only(world, name):
            body = chat(tokens=20, stream=True)
            clients.append(await world.client(request(body=body, headers={"x-request-id": "mine"})))
            await world.until(lambda name=name: len(inside(world, name)._edge.requests) == 1)  # type: ignore[misc]
    state = (await world.ask("GET", "/admin/state")).json()
    assert sorted(row["id"] for row in state["requests"]["running"]) == ["mine", "mine~w2~1"]
    for client in clients:
        answer = await client.answer()
        assert answer.header("x-request-id") == "mine"


async def test_numbers_of_any_size_in_a_body_hold_up_neither_its_request_nor_another(world: World) -> None:
    await world.engine()
    await world.gateway(slots=4, workers=2)
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "n", "best_of", "priority")
    own = [{name: {"max_new_tokens": 10**30, "n": 10**30}} for name in ("parameters", "sampling_params", "options")]
    odd: list[dict[str, Any]] = [{name: size} for name in names for size in (2**64, 10**30, -(10**30))] + own
    with only(world, SECOND):
        answers = await asyncio.gather(
            *(world.ask(body=chat(tokens=1) | more) for more in odd), *(world.chat(tokens=1) for _ in odd)
        )
    assert {answer.status for answer in answers[: len(odd)]} <= {200, 400}
    assert [answer.status for answer in answers[len(odd) :]] == [200] * len(odd)
    await world.idle()


async def test_a_caller_that_a_worker_met_and_that_asks_for_nothing_now_may_be_limited(world: World) -> None:
    await world.engine()
    await world.gateway(workers=2)
    with only(world, SECOND):
        assert (await world.chat(tokens=1)).status == 200
    await world.idle()
    for name, status in (("client:127.0.0.1", 200), ("client:127.0.0.9", 404)):
        answer = await world.ask("POST", f"/admin/tenants/{name}/limit", body={"running": 1})
        assert answer.status == status, answer


async def test_counts_are_sums(world: World) -> None:
    await world.engine()
    await world.gateway(workers=2)
    for name in (FIRST, SECOND, SECOND):
        assert (await (await at(world, name, tokens=4)).answer()).status == 200
    await world.idle()
    await world.until_metric(3, "penstock_requests_total", outcome="completed")
    await world.until_metric(3, "penstock_ttft_seconds_count")
    await world.until_metric(12, "penstock_tokens_total", kind="completion")
    await world.until_metric(3, "penstock_dispatches_total")
    await world.until_metric(2, "penstock_edge_up")


async def test_use_is_counted_by_the_worker_that_serves_and_added_once(world: World, tmp_path: Path) -> None:
    await world.engine()
    await world.gateway(workers=2, batch={"data": str(tmp_path)})
    for name in (FIRST, SECOND, SECOND):
        assert (await (await at(world, name, tokens=4)).answer()).status == 200
    async for _ in looks(WAIT_S):
        total = (await world.ask("GET", "/admin/usage")).json()["total"]
        if total["requests"] == 3:
            break
    assert (total["answered"], total["completion_tokens"], total["unreported"]) == (3, 12, 0)
    assert total["prompt_tokens"] == sum(entry.prompt_tokens for entry in world.seen())


async def test_an_answer_that_is_kept_is_found_by_whichever_worker_is_asked(world: World) -> None:
    engines = {keeper.name: keeper for keeper in await keepers(world, workers=2)}
    with only(world, FIRST):
        ((name, home),) = (await made(world, 1)).items()
    await world.until(lambda: inside(world, SECOND)._responses.find(name) is not None)
    with only(world, SECOND):
        assert (await stored(world, name)).header("x-penstock-endpoint") == home
        assert (await stored(world, name, method="DELETE")).json()["deleted"] is True
    await world.until(lambda: inside(world, FIRST)._responses.find(name) is None)
    assert [keeper.name for keeper in engines.values() if any(name in line for line in keeper.seen)] == [home]


async def test_a_reload_reaches_workers_and_what_waits_there(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, workers=2)
    runs = await at(world, FIRST, tokens=60)
    waits = await at(world, SECOND, tokens=2)
    world.document["bands"] = [{"name": "gold"}, {"name": "standard"}]
    world.document["queue"] = {"max_requests": 1}
    assert (await world.ask("POST", "/admin/reload", b"{}")).status == 200
    assert world.gate.cluster is not None
    decider = world.gate.cluster.table.decider
    await world.until(lambda: all(peer.bands == ("gold", "standard") for peer in decider.peers))
    for name in (FIRST, SECOND):
        with only(world, name):
            refused = await world.chat_with({"x-penstock-band": "gold"})
            assert refused.header("x-penstock-band") == "gold" or refused.status == 429
    for client in (runs, waits):
        assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")


async def test_an_endpoint_that_comes_is_known_before_anything_is_sent_there(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=1, workers=2)
    streams = [await at(world, name, tokens=30) for name in (FIRST, SECOND, SECOND)]
    other = await world.engine()
    added = {"url": other.url, "name": "other", "slots": 4, "models": ["sim"]}
    assert (await world.ask("POST", "/admin/endpoints", json.dumps(added).encode())).status in (200, 201)
    assert {(await client.answer()).header("x-penstock-endpoint") for client in streams} >= {"other"}
    assert (await world.ask("DELETE", "/admin/endpoints/other")).status in (200, 202)
    await world.until(lambda: "other" not in inside(world, FIRST).targets.targets)
    await world.until(lambda: "other" not in inside(world, SECOND).targets.targets)


async def test_connections_in_all_are_limited_with_what_the_others_have(world: World) -> None:
    await world.engine(step_s=0.01)
    await world.gateway(slots=9, workers=2, limits={"max_connections": 6})
    streams = [await at(world, FIRST, tokens=300) for _ in range(4)]
    await world.until(lambda: inside(world, SECOND).server.limits.connections_max == 2)
    with only(world, SECOND):
        kept = [await world.client() for _ in range(2)]
        await world.until(lambda: inside(world, SECOND).server.connections == 2)
        refused = await world.ask("GET", "/health")
        assert (refused.status, refused.error()["code"]) == (429, "overload")
    for client in (*kept, *streams):
        client.hang_up()


async def test_own_paths_are_answered_by_the_first_process_for_whom_the_worker_names(world: World) -> None:
    await world.engine()
    await world.gateway(workers=2)
    for path in ("/ready", "/version", "/v1/models", "/metrics", "/admin/state", "/queue", "/engines", "/api/tags"):
        answer = await world.ask("GET", path, headers={"x-penstock-peer": "8.8.8.8 1"})
        assert answer.status == 200, path  # /admin is open to this machine alone, and that header is ours
    head = await world.client(request("HEAD", "/v1/models"))
    answer = await head.head()
    assert (answer.status, int(answer.header("content-length") or 0) > 0) == (200, True)
    wrong = await world.ask("POST", "/admin/pause", b"{}", headers={"authorization": "Bearer no"})
    assert wrong.status == 401
    big = await world.ask("POST", "/admin/pause", b"x" * 200_000, headers={"authorization": "Bearer no"})
    assert big.status in (401, 413)
    assert (await world.ask("GET", "/nowhere")).status == 404
    events = await world.client(request("GET", "/admin/events"))
    assert (await events.head()).status == 200
    assert b"data:" in await events.piece()
    events.hang_up()
    await world.until(lambda: world.gate.server.connections == 0)


async def test_a_worker_that_is_away_is_in_the_first_sentence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.engine()
    await world.gateway(workers=2)
    assert world.gate.cluster is not None
    world.gate.cluster.table.workers[0].ready = False
    state = (await world.ask("GET", "/admin/state")).json()
    assert state["headline"].startswith("Away, and being started again: worker w1.")
    assert state["tone"] == "busy"
    world.gate.cluster.table.workers[0].ready = True


class TestLinks:
    """A worker whose link says nonsense is ended; all others go on."""

    @pytest.fixture(autouse=True)
    def _expects_errors(self, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        self.log = caplog
        yield
        caplog.clear()  # that a worker ended is an error in the log, here as it should be

    async def _says(self, world: World, name: str, data: bytes) -> None:
        """Bytes on a worker's link, as if it had written them; then it is another one."""
        process = workers(world)[name]
        assert process.life is not None
        link, starts = process.life.link, process.starts
        assert link._transport is not None
        link._transport.write(data)
        await world.until(lambda: process.starts == starts + 1)
        await world.until(lambda: world.gate.cluster.table.edges()[0].up_s is not None)  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes was announced"),
            (b"\x00\x00\x00\x04junk", "not a message"),
            (written(1, [Hello(PROTOCOL, penstock.__version__, "w1", 0, "")]), "a link begins with a hello, once"),
            (written(1, [Arrived(10**9, WireRequest.of(Request("x", "sim", 99)))]), "in band 99 of 3"),
        ],
        ids=["4 GB", "garbage", "hello twice", "no such band"],
    )
    async def test_nonsense_ends_that_worker_and_its_leases_come_back(
        self, world: World, data: bytes, words: str
    ) -> None:
        await world.engine(step_s=0.01)
        await world.gateway(slots=2, workers=2)
        lost, kept = await at(world, FIRST, tokens=4000), await at(world, SECOND, tokens=60)
        await world.until(lambda: world.picture().running == 2)
        await self._says(world, FIRST, data)
        assert words in self.log.text
        await lost.rest()
        assert world.picture().running == 1
        assert (await kept.answer()).body.endswith(b"data: [DONE]\n\n")
        assert (await (await at(world, FIRST, tokens=2)).answer()).status == 200

    async def test_a_worker_that_is_restarted_knows_the_answers_that_were_made_before(self, world: World) -> None:
        engines = await keepers(world, workers=2)
        with only(world, SECOND):
            kept = await made(world, 4)
            assert (await stored(world, "resp_a1", method="DELETE")).status == 200
        await self._says(world, FIRST, b"\x00\x00\x00\x04junk")
        answers = inside(world, FIRST)._responses
        assert {name: answers.home(name) for name in kept} == {**kept, "resp_a1": None}
        with only(world, FIRST):
            assert (await stored(world, "resp_b1")).status == 200
        assert [keeper.name for keeper in engines if "GET /v1/responses/resp_b1" in keeper.seen] == ["b"]

    async def test_what_is_said_of_another_epoch_or_a_request_that_is_not_there_changes_nothing(
        self, world: World
    ) -> None:
        await world.engine()
        await world.gateway(workers=2)
        process = workers(world)[FIRST]
        assert process.life is not None
        process.life.link.say(Finished(77, 12345))
        await asyncio.sleep(0.05)
        assert process.starts == 1
        assert (await world.chat()).status == 200

    async def test_another_version_is_not_taken_and_says_so(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await world.engine()
        await world.gateway(workers=2)
        process = workers(world)[FIRST]
        with monkeypatch.context() as patched:
            patched.setattr(
                edge_table, "why_not", lambda *_, **__: "the edge is Penstock 0.0.0"
            )  # both are of one version
            process.kill()
            await world.until(lambda: "worker w1 refused: the edge is Penstock 0.0.0" in self.log.text)
            await world.until(lambda: "the leader refused this worker: the edge is Penstock 0.0.0" in self.log.text)
        await world.until(lambda: world.gate.cluster.table.edges()[0].up_s is not None)  # type: ignore[union-attr]
        assert (await (await at(world, FIRST, tokens=2)).answer()).status == 200

    async def test_one_that_says_nothing_is_ended(self, world: World) -> None:
        await world.engine()
        await world.gateway(workers=2)
        process = workers(world)[FIRST]
        inside(world, FIRST)._timer.cancel()  # type: ignore[union-attr]
        world.gate.cluster.table._by_name[FIRST].heard_s -= HUNG_S  # type: ignore[union-attr]
        await world.until(lambda: process.starts == 2)
        assert f"it has said nothing for {HUNG_S:g} s" in self.log.text


async def test_a_request_that_cannot_be_told_to_the_leader_is_refused_and_those_beside_it_are_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = WireRequest.of

    def row(asked: Request) -> WireRequest:
        return msgspec.structs.replace(of(asked), session="\ud800") if asked.tenant == "spoilt" else of(asked)

    monkeypatch.setattr(WireRequest, "of", staticmethod(row))
    await world.engine()
    await world.gateway(workers=2)
    tenants = ["spoilt", "a", "b", "spoilt", "c"] * 4
    answers = await asyncio.gather(*[world.chat_with({"x-tenant-id": tenant}) for tenant in tenants])
    assert [answer.status for answer in answers] == [400 if tenant == "spoilt" else 200 for tenant in tenants]
    await world.until_metric(8, "penstock_unsent_messages_total")
    assert world.picture().running == world.picture().waiting == 0
