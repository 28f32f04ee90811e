"""What operators said where it was decided holds where it is decided next."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.tenant_orders import PAUSED, Order, TenantOrders
from penstock.gateway.cluster.operator_orders import OperatorOrders
from penstock.gateway.proxy.driver import Driver
from penstock.share.messages import OperatorsSaid
from tests.gateway.conftest import World
from tests.gateway.elect import valkey
from tests.gateway.share.group import GatewayProcess, group
from tests.gateway.share.test_elected import decider, elected


class Endpoints:
    """What is drained and removed by hand, in the place of a registry."""

    def __init__(self) -> None:
        self.drained: list[str] = []
        self.removed: list[str] = []

    def by_hand(self) -> tuple[list[str], list[str]]:
        return self.drained, self.removed

    def go_by_hand(self, *, drained: Collection[str], removed: Collection[str]) -> None:
        self.drained, self.removed = [*drained], [*removed]


class One:
    """A gateway's words, and what they are about."""

    def __init__(self) -> None:
        self.driver = Driver(Scheduler(SchedulerSettings(), random=Random(1)), now=lambda: 1.0)
        self.orders = TenantOrders(EventLog())
        self.endpoints = Endpoints()
        endpoints: Any = self.endpoints
        self.words = OperatorOrders(self.driver, endpoints, self.orders)

    @property
    def stopped(self) -> tuple[set[str | None], set[str | None]]:
        paused, drained = self.driver.scheduler.stopped()
        return set(paused), set(drained)

    def pause(self, *models: str | None) -> None:
        for model in models:
            self.driver.scheduler.paused(model, now=1.0)

    def drain(self, model: str | None) -> None:
        self.driver.scheduler.drained(model, now=1.0)


@pytest.fixture
async def first() -> One:
    return One()


@pytest.fixture
async def second() -> One:
    return One()


async def test_all_of_it_is_told_whole(first: One, second: One) -> None:
    first.pause("a", None)
    first.drain("a")
    first.orders.say("team", {PAUSED: Order(), "running": Order(3, until_reload=True)})
    first.endpoints.drained, first.endpoints.removed = ["x"], ["y"]
    first.words.look(7)
    second.words.heard(first.words.message)
    assert second.stopped == ({"a", None}, {"a"})
    assert second.orders.of("team") == {PAUSED: Order(), "running": Order(3, until_reload=True)}
    limits = second.driver.scheduler.limits_of("team")
    assert limits is not None
    assert limits.running == 0
    assert second.endpoints.by_hand() == (["x"], ["y"])

    first.driver.scheduler.resumed("a", now=1.0)
    first.drain("b")
    first.orders.take_back("team", PAUSED)
    first.endpoints.drained = []
    first.words.look(7)
    second.words.heard(first.words.message)
    assert second.stopped == first.stopped == ({None}, {"b"})
    assert second.orders.of("team") == {"running": Order(3, until_reload=True)}
    assert second.endpoints.by_hand() == ([], ["y"])


async def test_pauses_of_sessions_are_told_and_end_with_their_resumption(first: One, second: One) -> None:
    for name in ("a", "b"):
        first.driver.scheduler.session_paused("team", name, now=1.0)
    first.words.look(1)
    second.words.heard(first.words.message)
    assert second.driver.scheduler.stopped_sessions() == [("team", "a"), ("team", "b")]
    first.driver.scheduler.session_resumed("team", "a", now=1.0)
    first.words.look(1)
    second.words.heard(first.words.message)
    assert second.driver.scheduler.stopped_sessions() == [("team", "b")]


async def test_a_pause_that_ends_leaves_a_drain_of_the_same_model(first: One, second: One) -> None:
    first.pause("a")
    first.drain("a")
    first.words.look(1)
    second.words.heard(first.words.message)
    first.driver.scheduler.resumed("a", now=1.0)
    first.drain("a")
    first.words.look(1)
    second.words.heard(first.words.message)
    assert second.stopped == (set(), {"a"})


async def test_the_later_word_holds_and_that_of_a_later_decider_before_all(first: One, second: One) -> None:
    for model in "abc":
        first.pause(model)
        first.words.look(3)
    old = first.words.message
    second.pause("z")
    second.words.look(4)
    second.words.heard(old)
    assert second.stopped == ({"z"}, set()), "it was said under an earlier decider"
    first.words.heard(second.words.message)
    assert first.stopped == ({"z"}, set())
    number = first.words.message.number
    first.words.look(4)
    assert first.words.message.number == number, "what was heard is nothing new"


async def test_what_was_said_to_one_that_decided_alone_is_over_when_another_one_decides(first: One) -> None:
    first.pause("a")
    first.words.look(3)
    first.driver.scheduler.resumed(None, now=1.0)
    first.pause("b")
    first.words.stand_by()
    assert first.stopped == ({"a"}, set())


@pytest.mark.parametrize(
    "document",
    [b"no json", b'{"tenants": 1}', b'{"paused": ["' + b'x", "' * 10_001 + b'"]}'],
    ids=["no JSON", "a number for a table", "too much"],
)
async def test_words_that_make_no_sense_are_left_with_a_line(
    first: One, caplog: pytest.LogCaptureFixture, document: bytes
) -> None:
    first.pause("a")
    first.words.look(1)
    with caplog.at_level(logging.WARNING):
        first.words.heard(OperatorsSaid(1 << 60, document))
    assert first.stopped == ({"a"}, set())
    assert first.words.message.number < 1 << 60
    assert "share: " in caplog.text
    assert msgspec.json.decode(first.words.message.document)["paused"] == ["a"]


@pytest.mark.slow
async def test_what_is_stopped_stays_so_when_the_decider_is_killed_or_steps_down(world: World, tmp_path: Path) -> None:
    engine = await world.engine(step_s=0.01)
    await world.engine(model="other")
    name = engine.url.removeprefix("http://")
    with valkey.server() as server:
        async with group(world, tmp_path) as made:
            tenants = [{"name": "team-a"}, {"name": "team-b"}]
            gateways = await made.start("gw1", "gw2", share=elected(server), tenants=tenants)
            first = await decider(gateways)
            second = next(one for one in gateways if one is not first)
            token = (next(tmp_path.glob("gw*/penstock/*/admin-token"))).read_text().strip()
            operator = {"authorization": f"Bearer {token}"}

            async def say(one: GatewayProcess, path: str, **body: Any) -> None:
                assert (await one.ask("POST", f"/admin/{path}", body or b"{}", operator)).status == 200

            async def holds(one: GatewayProcess) -> None:
                state = await one.until(lambda state: state["paused"] == ["other"] and len(state["edges"]) >= 1)
                states = {row["name"]: row["state"] for row in state["endpoints"]}
                assert states[name] == "draining", states
                told = (await one.ask("GET", "/admin/tenants/team-a", headers=operator)).json()
                assert told["paused"] == {"by": "operator", "until": "restart"}
                assert told["limits"]["queued"] == {"value": 5, "by": "operator", "until": "restart", "settings": None}
                assert (told["weight"], told["weight_by"]["settings"]) == (4, 1)

            await say(second, "tenants/team-a/pause")
            await say(second, "tenants/team-a/weight", weight=4)
            await say(second, "tenants/team-a/limit", queued=5)
            await say(first, "pause", model="other")
            await say(first, f"endpoints/{name}/drain")
            waits = await second.streaming(headers={"x-tenant-id": "team-b"}, tokens=1)
            await second.until(lambda state: state["waiting"] == 1)
            await holds(first)
            for _ in range(20):  # what was said a moment before a death may be lost
                await asyncio.sleep(0.05)
                await first.state()  # a second of its own: a busy machine slows down its answers and its words alike
            first.kill()
            await second.until(
                lambda state: state["share"]["role"] == "leads" and state["share"]["name"] == second.name
            )
            await holds(second)
            await say(second, f"endpoints/{name}/resume")
            assert (await waits.answer()).body.endswith(b"data: [DONE]\n\n")
            await say(second, f"endpoints/{name}/drain")

            await first.start()  # it knows of nothing, and is told
            await first.until(lambda state: len(state["edges"]) == 3)
            await second.until(lambda state: len(state["edges"]) == 3)
            await second.step_down(token)
            await first.until(lambda state: state["share"]["name"] == first.name)
            await holds(first)
            await say(first, f"endpoints/{name}/resume")
            assert (await first.chat(headers={"x-tenant-id": "team-b"})).status == 200
