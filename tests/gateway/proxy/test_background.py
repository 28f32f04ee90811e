"""A background response holds its lease until its engine has computed it, and its usage counts once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.gateway.identity.callers import key_hash, new_key
from tests.gateway.conftest import Answer, World, request
from tests.gateway.raw_engine import Peer, RawEngine

RESPONSES = "/v1/responses"
NAME = "resp_1"
PATH = f"{RESPONSES}/{NAME}"
ASKED = {"model": "sim", "input": "word " * 50, "background": True}
USAGE = {"input_tokens": 70, "output_tokens": 30, "total_tokens": 100}
KEY = new_key()
BEARER = {"authorization": f"Bearer {KEY}"}
TEAM = {"name": "team", "keys": [key_hash(KEY)], "limits": {"running": 1}}


class Computes:
    """An engine that answers at once and computes afterwards, until `done`."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = {"status": "queued", "usage": None}  # None: it does not know the response
        self.seen: list[tuple[str, str, bytes]] = []  # method, target, whole request
        self.padding = ""

    def done(self, status: str = "completed", usage: object = USAGE, **more: Any) -> None:
        self.state = {"status": status, "usage": usage, **more}

    def asked(self, method: str, target: str) -> int:
        return sum((method, target) == seen[:2] for seen in self.seen)

    async def __call__(self, peer: Peer) -> None:
        while True:
            whole = await peer.request()
            method, target, _ = whole.split(b"\r\n", 1)[0].decode().split(" ")
            if not target.startswith(RESPONSES):
                await peer.send(_answer(404, {}))
                continue
            self.seen.append((method, target, whole))
            if method == "POST" and b'"stream": true' in whole:
                await peer.send(_STREAM)
                await peer.gone()
                return
            if method == "DELETE":
                self.state = None
                await peer.send(_answer(200, {"id": NAME, "deleted": True}))
                continue
            if target.endswith("/cancel"):
                self.done("cancelled", None, output=[{"type": "message", "content": [{"text": "x" * 40}]}])
            if method == "POST" and target == RESPONSES:
                told = {"object": "response", "instructions": self.padding, "status": "queued", "usage": None}
                await peer.send(_answer(200, {"id": NAME, **told}))
            elif self.state is None:
                await peer.send(_answer(404, {"error": {"message": "no such response"}}))
            else:
                await peer.send(_answer(200, {"id": NAME, "object": "response", **self.state}))


def _answer(status: int, body: object) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data)) + data


def _event(kind: str, **more: Any) -> bytes:
    data = b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **more}).encode())
    return b"%x\r\n%b\r\n" % (len(data), data)


_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    + _event("response.created", response={"id": NAME, "status": "in_progress", "usage": None})
    + _event("response.output_text.delta", delta="Hello")
)


async def computing(world: World, **settings: Any) -> Computes:
    engine = Computes()
    raw = await world.beside(RawEngine(engine))
    endpoint = {"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4, **settings.pop("endpoint", {})}
    await world.gateway(endpoints=[endpoint], tenants=[TEAM], **settings)
    return engine


async def post(world: World, headers: dict[str, str] = BEARER, **more: Any) -> Answer:
    answer = await world.ask(path=RESPONSES, body={**ASKED, **more}, headers=headers)
    assert answer.status == 200
    return answer


async def tokens(world: World, kind: str) -> float:
    return await world.metric("penstock_tenant_tokens_total", tenant="team", kind=kind)


async def counted_once(world: World) -> None:
    await world.idle()
    assert (await tokens(world, "prompt"), await tokens(world, "completion")) == (70, 30)


async def test_the_lease_lasts_until_the_response_is_done_and_its_usage_counts_once(world: World) -> None:
    engine = await computing(world)
    assert (await post(world)).json()["status"] == "queued"
    assert world.picture().running == 1
    assert (await world.ask("GET", "/queue", headers=BEARER)).json()["running"] == 1
    for _ in range(3):
        assert (await world.ask("GET", PATH, headers=BEARER)).json()["status"] == "queued"
    engine.done()
    for _ in range(3):
        assert (await world.ask("GET", PATH, headers=BEARER)).json()["usage"] == USAGE
    await counted_once(world)


async def test_nobody_has_to_read_it(world: World) -> None:
    engine = await computing(world)
    await post(world)
    engine.state = {"status": "in_progress", "usage": None}
    await world.until(lambda: engine.asked("GET", PATH) >= 2)
    assert world.picture().running == 1
    engine.done("incomplete")
    await counted_once(world)


async def test_a_tenant_of_one_request_runs_one_in_the_background(world: World) -> None:
    engine = await computing(world)
    await post(world)
    second = world.soon(world.ask(path=RESPONSES, body=ASKED, headers=BEARER))
    await world.until(lambda: world.picture().waiting == 1)
    assert engine.asked("POST", RESPONSES) == 1
    engine.done()
    assert (await second).status == 200
    await world.idle()
    assert await tokens(world, "completion") == 60


@pytest.mark.parametrize("said", ["true", 1, "on"])
async def test_what_an_engine_takes_for_true_is_taken_so(world: World, said: object) -> None:
    engine = await computing(world)
    await post(world, background=said)
    assert world.picture().running == 1
    engine.done()
    await counted_once(world)


async def test_an_answer_that_is_long_is_followed_too(world: World) -> None:
    engine = await computing(world)
    engine.padding = "p" * 100_000
    await post(world)
    assert world.picture().running == 1
    engine.done()
    await counted_once(world)


async def test_an_answer_that_is_not_in_the_background_ends_with_its_last_byte(world: World) -> None:
    engine = await computing(world)
    for said in (False, None):
        await post(world, background=said)
        await world.idle()
    assert engine.asked("GET", PATH) == 0


async def test_a_stream_whose_client_is_gone_goes_on_in_the_background(world: World) -> None:
    engine = await computing(world)
    client = await world.client(request(path=RESPONSES, body={**ASKED, "stream": True}, headers=BEARER))
    await client.begun()
    client.hang_up()
    await world.until(lambda: engine.asked("GET", PATH))
    assert world.picture().running == 1
    engine.done()
    await counted_once(world)


async def test_two_workers_hold_it_and_count_it_once(world: World) -> None:
    engine = await computing(world, workers=2)
    await post(world)
    for _ in range(4):
        assert (await world.ask("GET", PATH, headers=BEARER)).json()["status"] == "queued"
    assert world.picture().running == 1
    engine.done()
    for _ in range(4):
        assert (await world.ask("GET", PATH, headers=BEARER)).json()["usage"] == USAGE
    await world.idle()
    await world.until_metric(30, "penstock_tenant_tokens_total", tenant="team", kind="completion")
    assert await tokens(world, "prompt") == 70


async def test_a_response_that_is_cancelled_is_charged_by_estimate(world: World) -> None:
    engine = await computing(world)
    await post(world)
    assert (await world.ask("POST", f"{PATH}/cancel", b"", headers=BEARER)).status == 200
    await world.idle()
    assert engine.asked("GET", PATH) >= 1
    assert await tokens(world, "completion") == 0
    assert 50 <= await tokens(world, "estimated") - 10 <= 100, "its 50 words, and the 40 letters of its answer"


@pytest.mark.parametrize("how", ["deleted", "forgotten", "dead"])
async def test_a_response_whose_end_cannot_be_known_gives_its_lease_back(world: World, how: str) -> None:
    engine = Computes()
    raw = await world.beside(RawEngine(engine))
    await world.gateway(endpoints=[{"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4}], tenants=[TEAM])
    await post(world)
    if how == "deleted":
        assert (await world.ask("DELETE", PATH, headers=BEARER)).status == 200
    elif how == "forgotten":
        engine.state = None
    else:
        engine.state = {"status": 7}
    await world.idle()
    assert await tokens(world, "completion") == 0
    assert 50 <= await tokens(world, "estimated") <= 100, "its prompt of 50 words"


async def test_after_a_time_that_is_set_a_response_gives_its_lease_back(world: World) -> None:
    engine = await computing(world, timeouts={"background": 0.5})
    await post(world)
    await world.idle()
    assert 1 <= engine.asked("GET", PATH) <= 3


async def test_an_operator_cancels_it_at_the_engine(world: World) -> None:
    engine = await computing(world)
    await post(world)
    world.gate.driver.tell(
        world.gate.driver.scheduler.evicted(
            next(iter(world.gate.driver.journeys())).request.id,  # type: ignore[attr-defined]
            now=world.gate.driver.now(),
        )
    )
    await world.until(lambda: engine.asked("POST", f"{PATH}/cancel"))
    await world.idle()


async def test_a_response_without_end_holds_a_shutdown_up_no_longer_than_other_requests(world: World) -> None:
    engine = await computing(world, queue={"drain_timeout": 0.0, "stop_timeout": 0.3})
    await post(world)
    gate = world.gate
    gate.driver.drain(queue_s=0.0, run_s=0.3)
    await asyncio.wait_for(gate.driver.idle(), 30)
    assert engine.asked("POST", f"{PATH}/cancel") == 0, "another gateway may serve it"


@pytest.mark.parametrize("api_key", ["engine-key", None])
async def test_the_engine_is_asked_with_the_key_that_made_it(world: World, api_key: str | None) -> None:
    engine = await computing(world, endpoint={"api_key": api_key})
    await post(world)
    await world.until(lambda: engine.asked("GET", PATH))
    head = engine.seen[-1][2].lower()
    assert KEY.lower().encode() not in head
    assert (b"authorization: bearer engine-key\r\n" in head) == (api_key is not None)
    engine.done()
    await world.idle()


async def test_a_caller_without_a_key_of_ours_asks_with_its_own(world: World) -> None:
    engine = await computing(world)
    await post(world, {"api-key": "of-the-engine"})
    await world.until(lambda: engine.asked("GET", PATH))
    assert b"api-key: of-the-engine\r\n" in engine.seen[-1][2]
    engine.done()
    await world.idle()
