"""What production-stack's users find where its router was: paths, the log line, series, a prefix of paths."""

from __future__ import annotations

import io
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.gateway.telemetry.production_stack import LastMinute, Machine, ProductionStack
from tests.gateway.conftest import CHAT, World, chat
from tests.gateway.raw_engine import Peer, RawEngine

MODELS_MAX = 500

# As their end-to-end test reads it.
LINE = re.compile(r"penstock\.routing Routing request ([^ ]*) with session id ([^ ]*) to ([^ ]*) at .*process time")
STACK: dict[str, Any] = {"metrics": {"aliases": ["production_stack"]}, "log": {"routing": True}}


def lines(log: io.StringIO) -> list[tuple[str, ...]]:
    return LINE.findall(log.getvalue())


async def test_each_request_to_an_engine_is_a_line(world: World, log: io.StringIO) -> None:
    engine = await world.engine()
    await world.gateway(routing={"policy": "session", "session": {"header": "x-user-id"}}, **STACK)
    await world.chat_with({"x-user-id": "ann", "x-request-id": "one"})
    await world.chat_with({"x-user-id": "a b=c\tto http://elsewhere at", "x-request-id": "two"})
    await world.chat_with({"x-request-id": "three"})
    await world.until(lambda: len(lines(log)) == 3)
    assert lines(log) == [
        ("one", "ann", engine.url),
        ("two", "a%20b=cto%20http://elsewhere%20at~e4ffcaf6209ff760", engine.url),
        ("three", "None", engine.url),
    ]


async def test_a_request_in_two_halves_is_two_lines(world: World, log: io.StringIO) -> None:
    first, second = await world.engine(), await world.engine()
    roles = [
        {"url": first.url, "labels": {"role": "prefill"}, "slots": 4},
        {"url": second.url, "labels": {"role": "decode"}, "slots": 4},
    ]
    await world.gateway(endpoints=roles, **STACK)
    assert (await world.chat_with({"x-request-id": "one"})).status == 200
    await world.until(lambda: len(lines(log)) == 2)
    assert lines(log) == [("one", "None", first.url), ("one", "None", second.url)]


async def test_without_the_setting_there_are_no_lines(world: World, log: io.StringIO) -> None:
    await world.engine()
    await world.gateway()
    await world.chat()
    assert lines(log) == []
    world.document["log"] = {"routing": True}
    await world.gate.reload()
    await world.chat()
    await world.until(lambda: len(lines(log)) == 1)


async def test_the_series_that_their_dashboards_and_scalers_read(world: World) -> None:
    engine = await world.engine()
    await world.gateway(**STACK)
    assert await world.metric("vllm:num_incoming_requests_total", model="sim") == 0
    await world.chat()
    await world.chat()
    server = engine.url
    assert await world.metric("vllm:num_incoming_requests_total", model="sim") == 2
    assert await world.metric("vllm:healthy_pods_total", server=server) == 1
    assert await world.metric("vllm:current_qps", server=server) == pytest.approx(2 / 60)
    assert await world.metric("vllm:gpu_prefix_cache_queries_total", server=server) > 0
    page = (await world.ask("GET", "/metrics")).body.decode()
    assert "\nvllm:gpu_prefix_cache_hits_total{" in page
    for name in ("cpu", "memory", "disk"):
        assert 0 <= await world.metric(f"router_{name}_usage_percent") <= 100


async def test_requests_waiting_for_a_missing_engine_are_counted(world: World) -> None:
    """KEDA wakes a model that was scaled to zero by this series."""
    await world.gateway(endpoints=[], **STACK)
    waiting = await world.client_for(chat(model="asleep"))
    await world.until(lambda: world.picture().waiting == 1)
    assert await world.metric("vllm:num_incoming_requests_total", model="asleep") == 1
    waiting.hang_up()


async def test_an_engine_that_is_gone_is_not_healthy(world: World) -> None:
    engine = await world.engine()
    await world.gateway(**STACK)
    await engine.close()
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    assert await world.metric("vllm:healthy_pods_total", server=engine.url) == 0


def test_the_series_made_by_callers_are_bounded() -> None:
    stack = ProductionStack(lambda: Scheduler(SchedulerSettings(), random=Random(0)).snapshot(now=0.0), now=lambda: 0.0)
    stack.model_known("real")
    for number in range(MODELS_MAX + 10):
        stack.arrived(f"made-up-{number}")
    stack.arrived("real")
    counts = dict(re.findall(r'num_incoming_requests_total{model="([^"]*)"} (\d+)', "".join(stack.lines())))
    assert len(counts) == MODELS_MAX + 1
    assert (counts["other"], counts["real"]) == ("11", "1")


def test_the_last_minute_forgets() -> None:
    minute = LastMinute()
    for second in range(120):
        minute.note(100.0 + second)
    assert minute.per_s(219.0) == 1.0
    assert minute.per_s(249.0) == 0.5
    assert minute.per_s(1000.0) == 0.0


def test_a_machine_without_figures_has_a_disk(tmp_path: Path) -> None:
    assert [name for name, _ in Machine(tmp_path).usage()] == ["disk"]
    (tmp_path / "stat").write_text("cpu  10 0 10 60 20 0 0 0 0 0\ncpu0 1\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
    machine = Machine(tmp_path)
    assert dict(machine.usage())["cpu"] == 20.0
    (tmp_path / "stat").write_text("cpu  60 0 60 60 20 0 0 0 0 0\n")
    assert dict(machine.usage())["cpu"] == 100.0
    assert dict(machine.usage())["memory"] == 75.0


async def test_paths_are_served_with_and_without_their_prefix(world: World) -> None:
    engine = await world.engine()
    await world.gateway(root_path="/vllm")
    assert (await world.ask("GET", "/vllm/v1/models")).json() == (await world.ask("GET", "/v1/models")).json()
    assert (await world.ask(path="/vllm" + CHAT, body=chat())).status == 200
    assert engine.log.entries[-1].path == CHAT
    assert (await world.ask(path=CHAT, body=chat())).status == 200
    assert (await world.ask("GET", "/vllmv1/models")).status == 404
    assert (await world.ask("GET", "/vllm/vllm/v1/models")).status == 404
    assert (await world.ask("GET", "/vllm/admin/endpoints")).status == 200


async def test_engines_by_their_names(world: World) -> None:
    engine = await world.engine()
    await world.gateway()
    found = (await world.ask("GET", "/engines")).json()
    name = engine.url.removeprefix("http://")
    assert [(each["engine_id"], each["serving_models"]) for each in found] == [(name, ["sim"])]
    assert found[0]["created"] > 1.7e9
    assert (await world.ask(path=f"{CHAT}?id={name}", body=chat())).status == 200
    assert (await world.ask("POST", "/engines")).status == 405


class Sleeper:
    """An engine that can be put to sleep, as vLLM can with --enable-sleep-mode."""

    def __init__(self) -> None:
        self.asleep = False
        self.seen: list[str] = []

    async def script(self, peer: Peer) -> None:
        while True:
            line = (await peer.request()).split(b"\r\n", 1)[0].decode()
            method, target, _ = line.split(" ")
            path = target.partition("?")[0]
            body = b"{}"
            if path in ("/sleep", "/wake_up") and method == "POST":
                self.seen.append(target)
                self.asleep = path == "/sleep"
            elif path == "/is_sleeping":
                body = b'{"is_sleeping": %s}' % (b"true" if self.asleep else b"false")
            elif path == "/v1/models":
                body = b'{"object":"list","data":[{"id":"sim","owned_by":"vllm"}]}'
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def test_an_engine_is_put_to_sleep_and_woken(world: World) -> None:
    sleeper = Sleeper()
    raw = await world.beside(RawEngine(sleeper.script))
    gate = await world.gateway(endpoints=[{"url": raw.url, "engine": "vllm", "name": "one"}])
    token = {"authorization": f"Bearer {gate.own_token.token}"}
    await world.until(lambda: world.picture().endpoints[0].state == "up")
    assert (await world.ask("GET", "/is_sleeping?id=one")).json() == {"is_sleeping": False}
    answer = await world.ask("POST", "/sleep?id=one&level=2", headers=token)
    assert (answer.status, answer.json()) == (200, {"status": "success"})
    assert sleeper.seen == ["/sleep?level=2"]
    await world.until(lambda: world.picture().endpoints[0].state == "sleeping")
    assert (await world.ask("GET", "/is_sleeping?id=one")).json() == {"is_sleeping": True}
    assert (await world.ask("POST", "/wake_up?id=one", headers=token)).status == 200
    await world.until(lambda: world.picture().endpoints[0].state == "up")


async def test_only_authorised_requests_put_engines_to_sleep(world: World) -> None:
    engine = await world.engine()
    gate = await world.gateway()
    name = engine.url.removeprefix("http://")
    token = {"authorization": f"Bearer {gate.own_token.token}"}
    assert (await world.ask("POST", f"/sleep?id={name}", headers={})).status == 401
    answer = await world.ask("POST", f"/sleep?id={name}", headers={"authorization": "Bearer wrong-token"})
    assert answer.status == 401
    assert (await world.ask("GET", f"/sleep?id={name}", headers=token)).status == 405
    assert (await world.ask("POST", "/sleep", headers=token)).status == 400
    assert (await world.ask("POST", "/sleep?id=nobody", headers=token)).error()["code"] == "endpoint_not_found"
    answer = await world.ask("POST", f"/sleep?id={name}", headers=token)  # a simulated engine never sleeps
    assert answer.status == 502
    assert "--enable-sleep-mode" in answer.error()["message"]


async def test_required_keys_also_protect_the_list_of_engines(world: World) -> None:
    await world.engine()
    tenants: list[dict[str, Any]] = [{"name": "a", "keys": ["sha256:" + "0" * 64]}]
    await world.gateway(tenants=tenants, identity={"require_key": True})
    for path in ("/engines", "/is_sleeping?id=x"):
        assert (await world.ask("GET", path)).status == 401
