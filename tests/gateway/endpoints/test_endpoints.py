"""Endpoints come, change and go while the gateway runs: by hand over HTTP, and as a source wants them."""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from typing import Any

import pytest

from penstock.cli.steering.endpoint import add_arguments, run
from penstock.config.load import EndpointSection, from_mapping
from penstock.gateway.endpoints.registry import SETTINGS
from tests.gateway.conftest import Answer, World
from tests.ports import free_port

LIST = "/admin/endpoints"


async def admin(world: World, method: str, path: str, body: Any = b"") -> Answer:
    return await world.ask(method, LIST + path, body)


def names(world: World) -> list[str]:
    return [endpoint.name for endpoint in world.picture().endpoints]


def state(world: World, name: str) -> str:
    return next(endpoint.state for endpoint in world.picture().endpoints if endpoint.name == name)


def wanted(*documents: dict[str, Any]) -> tuple[EndpointSection, ...]:
    return from_mapping({"endpoints": list(documents)}).endpoints


async def served_by(world: World) -> str | None:
    answer = await world.chat()
    assert answer.status == 200
    return answer.header("x-penstock-endpoint")


async def test_an_added_endpoint_serves_what_waited_for_it(world: World) -> None:
    await world.gateway()
    engine = await world.engine()
    waiting = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    added = await admin(world, "POST", "", {"url": engine.url, "name": "late", "slots": 2})
    assert (added.status, added.json()["name"], added.json()["slots"]) == (201, "late", 2)
    assert (await waiting).header("x-penstock-endpoint") == "late"
    assert [model["id"] for model in (await world.ask("GET", "/v1/models")).json()["data"]] == ["sim"]
    assert (await admin(world, "GET", "")).json()["endpoints"][0]["source"] == "operator"


async def test_the_log_has_the_reason_why_an_endpoint_is_down(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.gateway.endpoints.observer")
    places = {"closed": "http://127.0.0.1:1", "misspelt": "http://no.invalid:1"}
    await world.gateway(endpoints=[{"url": url, "name": name} for name, url in places.items()])
    await world.until(lambda: {state(world, name) for name in places} == {"down"})
    told = [record.getMessage() for record in caplog.records if " is down" in record.getMessage()]
    assert len(told) == 2
    assert all(": [Errno " in line for line in told), told


async def test_the_same_endpoint_is_not_added_twice(world: World) -> None:
    engine = await world.engine()
    await world.gateway()
    for body in ({"url": engine.url}, {"url": engine.url, "name": "again"}):
        answer = await admin(world, "POST", "", body)
        assert (answer.status, answer.error()["code"]) == (409, "conflict")


async def test_the_gateway_is_no_endpoint_of_its_own(world: World, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    await world.gateway(listen=f"127.0.0.1:{port}", endpoints=[{"url": "http://127.0.0.1:1", "name": "other"}])
    for host in ("127.0.0.1", "localhost"):
        answer = await admin(world, "POST", "", {"url": f"http://{host}:{port}"})
        assert answer.status == 409
        assert "this gateway's own address (`listen`)" in answer.error()["message"]
    world.gate.endpoints.ranked(["found"])
    world.gate.endpoints.want("found", wanted({"url": f"http://127.0.0.1:{port}"}, {"url": "http://127.0.0.1:2"}))
    assert sorted(names(world)) == ["127.0.0.1:2", "other"]
    assert "1 endpoints ignored as duplicates, the gateway itself" in caplog.text
    added = await admin(world, "POST", "", {"url": "http://127.0.0.1:8080"})
    assert added.status == 201, "an engine at the port that is the gateway's by default"


async def test_a_drained_endpoint_is_sent_nothing_until_it_is_resumed(world: World) -> None:
    engine = await world.engine()
    await world.gateway(endpoints=[{"url": engine.url, "name": "one"}])
    assert (await admin(world, "POST", "/one/drain")).json()["state"] == "draining"
    waiting = world.soon(world.chat())
    await world.until(lambda: world.picture().waiting == 1)
    assert world.seen() == []
    assert (await admin(world, "POST", "/one/resume")).json()["state"] == "up"
    assert (await waiting).status == 200


async def test_a_removed_endpoint_ends_what_it_runs_and_leaves_nothing_behind(world: World) -> None:
    first, second = await world.engine(step_s=0.02), await world.engine()
    await world.gateway(endpoints=[{"url": first.url, "name": "first"}, {"url": second.url, "name": "second"}])
    await admin(world, "POST", "/second/drain")
    stream = await world.streaming(tokens=20)
    await stream.begun()
    await admin(world, "POST", "/second/resume")
    assert (await admin(world, "DELETE", "/first")).status == 202
    assert state(world, "first") == "draining"
    assert await served_by(world) == "second"
    assert (await stream.whole()).endswith(b"data: [DONE]\n\n")
    await world.until(lambda: names(world) == ["second"])
    page = (await world.ask("GET", "/metrics")).body
    assert b'endpoint="second"' in page
    assert b'endpoint="first"' not in page
    assert (await world.ask(path="/v1/chat/completions?id=first", body=b'{"model":"sim"}')).status == 404


async def test_a_forced_removal_sends_what_had_no_byte_elsewhere(world: World) -> None:
    first, second = await world.engine(step_s=5.0), await world.engine()
    await world.gateway(endpoints=[{"url": first.url, "name": "first"}, {"url": second.url, "name": "second"}])
    await admin(world, "POST", "/second/drain")
    caught = world.soon(world.chat())
    await world.until(lambda: world.picture().running == 1)
    await admin(world, "POST", "/second/resume")
    assert (await admin(world, "DELETE", "/first?force=true")).json()["state"] == "removed"
    assert (await caught).header("x-penstock-endpoint") == "second"


async def test_what_is_due_about_an_endpoint_while_it_is_removed_asks_nothing(world: World) -> None:
    """Its observer ends in the loop's next turn; a loop that is late runs its timers before."""
    for _ in range(8):  # some of them are in the first half of their pause
        await world.engine()
    await world.gateway()
    observers = [member.observer for member in world.gate.endpoints._members.values()]
    await world.until(lambda: all(observer._idle for observer in observers))
    for name in names(world):
        world.gate.endpoints.remove(name, at_once=True)
    for observer in observers:
        observer._unanswered(0.0, world.gate.driver.now())  # as a probe's timer
    time.sleep(0.1)  # as the others' timers, in the next turn
    await world.until(lambda: names(world) == [])


async def test_slots_are_set_by_hand_and_given_back(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    await world.gateway(endpoints=[{"url": engine.url, "name": "one", "slots": 1}])
    requests = [world.soon(world.chat(tokens=20)) for _ in range(3)]
    await world.until(lambda: (world.picture().running, world.picture().waiting) == (1, 2))
    assert (await admin(world, "POST", "/one/slots", {"slots": 3})).json()["slots"] == 3
    assert world.picture().running == 3
    assert [(await request).status for request in requests] == [200, 200, 200]
    assert (await admin(world, "POST", "/one/slots", {"slots": "auto"})).status == 200
    assert (await admin(world, "POST", "/one/slots", {"slots": "many"})).error()["param"] == "slots"


async def test_what_a_source_no_longer_wants_is_drained_and_goes_on_when_it_returns(world: World) -> None:
    engine = await world.engine(step_s=0.02)
    gate = await world.gateway(endpoints=[])
    one = wanted({"url": engine.url, "name": "one"})
    gate.endpoints.want("test", one)
    stream = await world.streaming(tokens=20)
    await stream.begun()
    gate.endpoints.want("test", [])
    assert (names(world), state(world, "one")) == (["one"], "draining")
    gate.endpoints.want("test", one)
    assert state(world, "one") == "up"
    assert await served_by(world) == "one"
    assert (await stream.whole()).endswith(b"data: [DONE]\n\n")
    gate.endpoints.want("test", [])
    await world.until(lambda: names(world) == [])


async def test_another_address_under_the_same_name_is_used_at_once(world: World) -> None:
    """A pod of a stateful set that comes back elsewhere."""
    old, new = await world.engine(step_s=0.02), await world.engine()
    gate = await world.gateway(endpoints=[{"url": old.url, "name": "pod-0"}])
    stream = await world.streaming(tokens=20)
    await stream.begun()
    gate.endpoints.want(SETTINGS, wanted({"url": new.url, "name": "pod-0"}))
    assert await served_by(world) == "pod-0"
    assert len(new.log.entries) == 1
    assert (await stream.whole()).endswith(b"data: [DONE]\n\n")


async def test_an_operators_word_stands_above_the_sources(world: World) -> None:
    engine = await world.engine()
    gate = await world.gateway(endpoints=[])
    one, other = {"url": engine.url, "name": "one"}, {"url": "http://127.0.0.1:1", "name": "other"}
    gate.endpoints.want("test", wanted(one))
    gate.endpoints.drain("one")
    gate.endpoints.want("test", wanted(one, other))
    assert state(world, "one") == "draining"
    gate.endpoints.remove("one")
    gate.endpoints.want("test", wanted(other, one))
    await world.until(lambda: names(world) == ["other"])
    gate.endpoints.want("test", wanted(other))  # its source forgets it: the operator's word has done its work
    gate.endpoints.want("test", wanted(other, one))
    assert names(world) == ["other", "one"]


async def test_the_first_source_that_names_an_endpoint_stands_and_no_engine_counts_twice(world: World) -> None:
    gate = await world.gateway(endpoints=[{"url": "http://127.0.0.1:1", "name": "one", "slots": 3}])
    gate.endpoints.want("a", wanted({"url": "http://127.0.0.1:2", "name": "one"}))
    gate.endpoints.want("b", wanted({"url": "http://127.0.0.1:1", "name": "two"}))
    assert [(view.name, view.url, view.source) for view in gate.endpoints.views()] == [
        ("one", "http://127.0.0.1:1", "settings")
    ]
    gate.endpoints.want(SETTINGS, [])
    await world.until(lambda: [view.source for view in gate.endpoints.views()] == ["a", "b"])


async def test_sources_stand_in_the_order_of_their_settings_whoever_tells_first(world: World) -> None:
    gate = await world.gateway(endpoints=[])

    def views() -> list[tuple[str, str]]:
        return [(view.name, view.source) for view in gate.endpoints.views() if not view.leaving]

    gate.endpoints.ranked(["a", "b"])
    gate.endpoints.want("b", wanted({"url": "http://127.0.0.1:1", "name": "one"}))
    assert views() == [("one", "b")]
    gate.endpoints.want("a", wanted({"url": "http://127.0.0.1:1", "name": "one"}))
    assert views() == [("one", "a")]
    gate.endpoints.ranked(["b", "a"])
    assert views() == [("one", "b")]
    gate.endpoints.ranked(["a"])
    assert views() == [("one", "a")]
    gate.endpoints.ranked(["c"])
    await world.until(lambda: not gate.endpoints.views())
    gate.endpoints.ranked(["a"])
    assert views() == [], "what it wanted was forgotten with it"


async def test_the_command_line_changes_a_running_gateway(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    engine = await world.engine()
    await world.gateway(endpoints=[])
    parser = argparse.ArgumentParser()
    add_arguments(parser)

    async def penstock(*words: str) -> tuple[int, str, str]:
        args = parser.parse_args([*words, "--url", world.url])
        code = await asyncio.to_thread(run, args)
        out = capsys.readouterr()
        return code, out.out, out.err

    assert (await penstock("add", engine.url, "--name", "one", "--slots", "2"))[0] == 0
    await world.until(lambda: world.picture().endpoints[0].models == ["sim"])
    code, out, _ = await penstock("list")
    assert (code, out) == (0, f"one: up, url {engine.url}, source operator, slots 2, leases 0\n")
    assert (await penstock("slots", "one", "7"))[1] == "one: up, slots 7, leases 0\n"
    assert (await penstock("drain", "one"))[1].startswith("one: draining")
    code, out, err = await penstock("resume", "one", "two")
    assert (code, out, err) == (1, "one: up, slots 7, leases 0\n", "penstock: There is no endpoint `two`.\n")
    assert (await penstock("remove", "one"))[0] == 0
    await world.until(lambda: names(world) == [])
