"""An engine that refuses the gateway's key, over real sockets: its state, its callers' answers, its return."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.gateway.conftest import CHAT, World, chat
from tests.gateway.endpoints.test_not_an_engine import COMPLETION, answer_json, http
from tests.gateway.raw_engine import Peer, RawEngine

LISTED = answer_json({"object": "list", "data": [{"id": "sim", "object": "model", "owned_by": "vllm"}]})
PAGE = http(200, b"vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n", "text/plain")
UNAUTHORIZED = answer_json({"error": "Unauthorized"}, 401)
REFUSALS = {
    "401": UNAUTHORIZED,
    "403": answer_json({"error": {"message": "Forbidden", "code": 403}}, 403),
    "a proxy's 401": http(401, b"<html><h1>401 Authorization Required</h1></html>"),
    "a proxy's 403": http(403, b"<html><h1>403 Forbidden</h1></html>"),
}


class Guarded(RawEngine):
    """An engine that wants `key` on its /v1 paths, as `vllm --api-key` does; None: it takes any request."""

    def __init__(self, key: str | None = "right", refusal: bytes = UNAUTHORIZED, *, paths: bytes = b"/v1/") -> None:
        self.key, self.refusal, self.paths = key, refusal, paths
        self.posts = 0
        super().__init__(self._answers)

    async def _answers(self, peer: Peer) -> None:
        while True:
            data = await peer.request()
            method, path, _ = data.split(b" ", 2)
            self.posts += method == b"POST"
            known = self.key is None or f"authorization: bearer {self.key}".encode() in data.lower()
            if path.startswith(self.paths) and not known:
                await peer.send(self.refusal)
            elif method == b"POST":
                await peer.send(COMPLETION)
            elif path == b"/v1/models":
                await peer.send(LISTED)
            elif path == b"/metrics":
                await peer.send(PAGE)
            else:
                await peer.send(http(200 if path == b"/health" else 404))

    @property
    def name(self) -> str:
        return self.url.partition("//")[2]


def states(world: World) -> list[str]:
    return [endpoint.state for endpoint in world.picture().endpoints]


async def gateway(world: World, *endpoints: dict[str, Any], **settings: Any) -> None:
    engines = list(world.engines)
    world.engines.clear()  # not all endpoints will tell their models
    await world.gateway(endpoints=list(endpoints), **settings)
    world.engines.extend(engines)


@pytest.mark.parametrize("key", [{}, {"api_key": "wrong"}], ids=["no key", "a wrong key"])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refused_key_is_a_state_of_its_own_and_callers_are_answered_at_once(
    world: World, caplog: pytest.LogCaptureFixture, refusal: str, key: dict[str, str]
) -> None:
    caplog.set_level(logging.WARNING)
    engine = await world.beside(Guarded(refusal=REFUSALS[refusal]))
    await gateway(world, {"url": engine.url, **key})
    await world.until(lambda: states(world) == ["refused_key"])
    answer = await world.chat()
    assert (answer.status, answer.header("x-penstock-reason")) == (502, "upstream_error")
    assert answer.header("retry-after") is None
    assert answer.error()["message"] == (
        f"The engine `{engine.name}` refuses this gateway's key. The gateway's operator has to set"
        " `endpoints[].api_key`; trying again does not help until then."
    )
    seen = (await world.ask("GET", "/admin/state")).json()
    assert seen["endpoints"][0]["state"] == "refused_key"
    assert "refusing the gateway's key" in seen["headline"]
    assert "`endpoints[].api_key`" in seen["advice"]
    ready = (await world.ask("GET", "/ready")).json()
    assert ready["states"] == {engine.name: "refused_key"}
    assert ready["missing"]["endpoints"] == [engine.name]
    assert caplog.text.count("it refuses the gateway's key") == 1
    assert "`endpoints[].api_key`" in caplog.text
    assert "gives no sign of an engine" not in caplog.text
    counted = await world.ask("POST", "/v1/messages/count_tokens", {"model": "sim", "messages": []})
    assert (counted.status, counted.header("x-penstock-reason")) == (502, "upstream_error")
    assert "refuses this gateway's key" in counted.json()["error"]["message"]


async def test_an_engine_that_refuses_the_key_gets_nothing_that_another_serves(world: World) -> None:
    engine = await world.engine(max_num_seqs=8)
    guarded = await world.beside(Guarded())
    await gateway(world, {"url": guarded.url, "models": ["sim"]}, {"url": engine.url, "slots": 8})
    await world.until(lambda: states(world) == ["refused_key", "up"])
    assert [(await world.chat()).status for _ in range(10)] == [200] * 10
    assert guarded.posts == 0


@pytest.mark.parametrize("refusal", ["401", "a proxy's 401"])
async def test_a_key_that_is_revoked_while_running_costs_no_request_and_one_that_is_back_is_noticed(
    world: World, refusal: str
) -> None:
    engine = await world.engine(max_num_seqs=8)
    guarded = await world.beside(Guarded(refusal=REFUSALS[refusal]))
    await gateway(world, {"url": guarded.url, "api_key": "right"}, {"url": engine.url, "slots": 4})
    await world.until(lambda: [e.models for e in world.picture().endpoints] == [["sim"], ["sim"]])
    await world.until(lambda: states(world) == ["up", "up"])
    guarded.key = "another"
    assert [(await world.chat()).status for _ in range(10)] == [200] * 10
    await world.until(lambda: states(world) == ["refused_key", "up"])
    guarded.key = "right"
    await world.until(lambda: states(world) == ["up", "up"])


async def test_a_key_is_accepted_again_at_once_by_the_only_engine_that_refuses_requests_alone(world: World) -> None:
    guarded = await world.beside(Guarded(paths=b"/v1/chat"))
    await gateway(world, {"url": guarded.url})
    await world.until(lambda: states(world) == ["up"])
    assert (await world.chat()).status == 502
    assert states(world) == ["refused_key"]
    guarded.key = None
    assert (await world.chat()).status == 200
    assert states(world) == ["up"]


@pytest.mark.parametrize("named", [{}, {"models": ["sim"]}], ids=["models asked", "models named"])
async def test_callers_keys_pass_where_the_gateway_has_none(world: World, named: dict[str, Any]) -> None:
    """And what the engine says of them is the callers' own answer."""
    guarded = await world.beside(Guarded())
    await gateway(world, {"url": guarded.url, **named})
    await world.until(lambda: states(world) == ["refused_key"])
    wrong = await world.chat_with({"authorization": "Bearer wrong"})
    assert (wrong.status, wrong.json()) == (401, {"error": "Unauthorized"})
    right = {"authorization": "Bearer right"}
    assert [(await world.chat_with(right)).status for _ in range(3)] == [200] * 3
    assert states(world) == ["up"]
    assert (await world.chat()).status == 401
    assert (await world.chat_with(right)).status == 200
    assert states(world) == ["up"]


async def test_a_403_of_an_engine_that_answers_well_is_about_the_request(world: World) -> None:
    guarded = await world.beside(Guarded(None))
    await gateway(world, {"url": guarded.url, "api_key": "right"})
    assert (await world.chat()).status == 200
    guarded.key, guarded.refusal = "another", REFUSALS["403"]
    guarded.paths = b"/v1/chat"
    answer = await world.ask("POST", CHAT, chat())
    assert (answer.status, answer.json()["error"]["message"]) == (403, "Forbidden")
    assert states(world) == ["up"]


async def test_a_metrics_page_that_refuses_is_not_the_state(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    guarded = await world.beside(Guarded(paths=b"/metrics"))
    await gateway(world, {"url": guarded.url})
    await world.until(lambda: "its metrics page refuses the gateway's key (401)" in caplog.text)
    assert (await world.chat()).status == 200
    assert states(world) == ["up"]
