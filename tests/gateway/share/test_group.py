"""Several gateways, one queue: real processes on one machine, linked over TCP, the first one decides."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.config.sections.share import ShareSection
from penstock.gateway.cluster.listener import prefix_seed
from tests.gateway.conftest import Answer, World, fault, hurry
from tests.gateway.raw_engine import RawEngine, answering_when
from tests.gateway.share.group import GatewayProcess, certificate, group
from tests.patience import WAIT_S, looks
from tests.ports import free_port


async def test_slots_and_queue_are_those_of_one_gateway_and_one_that_ends_serves_what_it_has(
    world: World, tmp_path: Path
) -> None:
    engine = await world.engine(step_s=0.01)
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2")
        runs = [await one.streaming(tokens=1000) for one in (first, second, first, second)]
        for client in runs:
            await client.begun()
        waits = [await one.streaming(tokens=2) for one in (first, second, second)]
        for one in (first, second):
            state = await one.until(lambda state: state["waiting"] == 3)
            assert state["running"] == 4
            assert state["share"]["name"] == "gw1"
        hurry(engine)
        for client in runs:
            assert (await client.whole()).endswith(b"data: [DONE]\n\n")
        for client in waits:
            assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        assert engine.log.in_engine_max == 4

        fault(engine, "none")
        runs = [await second.streaming(tokens=1000) for _ in range(4)]
        for client in runs:
            await client.begun()
        waits = [await one.streaming(tokens=2) for one in (second, first)]
        await first.until(lambda state: state["waiting"] == 2)
        assert second.process is not None
        second.process.signal()
        await second.said("draining")
        hurry(engine)
        for client in runs:
            assert (await client.whole()).endswith(b"data: [DONE]\n\n")
        for client in waits:
            assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        await second.said("stopped")
        assert (await first.chat()).status == 200
        assert engine.log.in_engine_max == 4


@pytest.mark.slow
async def test_a_fair_share_is_kept_whichever_gateway_a_tenant_comes_to(world: World, tmp_path: Path) -> None:
    """Weights 4:1, and each tenant at a gateway of its own. The engine answers when all requests are in the queue or
    with it, one by one: so each choice is between both, on any machine.
    """
    over, one_by_one = asyncio.Event(), asyncio.Lock()
    callers = {"large": 10, "small": 10}

    async def all_asked() -> None:
        async with one_by_one:
            async for _ in looks(WAIT_S, 0.005):
                state = await first.state()
                if over.is_set() or state["waiting"] + state["running"] == sum(callers.values()):
                    return

    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    raw = await world.beside(RawEngine(answering_when(all_asked, answer)))
    endpoints = [{"url": raw.url, "engine": "openai", "models": ["sim"], "slots": 4}]
    tenants = [{"name": "large", "weight": 4}, {"name": "small", "weight": 1}]
    settings: dict[str, Any] = {"admission": {"reserved_slots": 0}, "endpoints": endpoints, "tenants": tenants}
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2", **settings)
        served: Counter[str] = Counter()

        async def ask(one: GatewayProcess, tenant: str) -> None:
            while not over.is_set():
                answer = await one.chat(tenant, {"x-tenant-id": tenant}, tokens=20)
                served[tenant] += answer.status == 200 and not over.is_set()

        asks = [
            asyncio.create_task(ask(one, tenant))
            for (tenant, count), one in zip(callers.items(), (first, second), strict=True)
            for _ in range(count)
        ]
        await world.until(lambda: sum(served.values()) > 40)
        served.clear()
        await world.until(lambda: sum(served.values()) > 200)
        over.set()
        await asyncio.gather(*asks)
        assert abs(served["large"] / sum(served.values()) - 0.8) < 0.02, served


@pytest.mark.slow
async def test_an_edge_gateway_that_is_killed_takes_its_own_requests_only(world: World, tmp_path: Path) -> None:
    engine = await world.engine(step_s=0.01)
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2")
        kept = [await first.streaming(tokens=900) for _ in range(2)]
        lost = [await second.streaming(tokens=3000) for _ in range(2)]
        for client in (*kept, *lost):
            await client.begun()
        waits = [await first.streaming(tokens=2) for _ in range(2)]
        await first.until(lambda state: state["waiting"] == 2)
        second.kill()
        for client in waits:
            assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        state = await first.until(lambda state: state["running"] == 2)
        assert len(state["edges"]) == 1
        hurry(engine)
        for client in kept:
            assert (await client.whole()).endswith(b"data: [DONE]\n\n")
        assert engine.log.in_engine_max == 4
        await second.start()  # and comes back as what it was
        await second.until(lambda state: state["share"]["name"] == "gw1" and len(state["edges"]) == 3)
        assert (await second.chat()).status == 200


@pytest.mark.slow
async def test_a_decider_that_is_killed_breaks_no_stream_of_others_and_loses_no_request(
    world: World, tmp_path: Path
) -> None:
    """Nobody else may decide here, so the other gateway does for itself, until the decider is back."""
    engine = await world.engine(step_s=0.1)  # answers of minutes, until all is hurried
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2")
        runs = [await second.streaming(tokens=1500) for _ in range(4)]
        for client in runs:
            await client.begun()
        waits = [await second.streaming(tokens=2) for _ in range(3)]
        await second.until(lambda state: state["waiting"] == 3)
        first.kill()
        alone = await second.until(lambda state: state["share"]["role"] == "alone")
        assert alone["headline"].startswith("This gateway decides alone, with 1/2 of slots and limits, for "), (
            second.log
        )
        assert alone["tone"] == "bad"
        assert (await second.metric("penstock_share_alone"), await second.metric("penstock_share_decides")) == (1, 1)
        state = await second.until(lambda state: state["waiting"] == 3 and state["slots"] == 2)
        assert state["running"] == 4  # what ran goes on; nothing is sent until it is below
        await second.said("this gateway decides alone, with 1/2 of slots and limits: ")
        hurry(engine, 200)
        for client in runs:
            assert (await client.whole()).endswith(b"data: [DONE]\n\n")
        for client in waits:
            assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        fault(engine, "none")
        runs = [await second.streaming(tokens=1500) for _ in range(2)]
        for client in runs:
            await client.begun()
        await first.start()  # as systemd would
        state = await first.until(lambda state: len(state["edges"]) == 3 and state["running"] == 2)
        assert state["share"]["role"] == "leads"
        state = await second.until(lambda state: state["share"]["name"] == "gw1")
        assert await second.metric("penstock_share_alone") == 0
        more = [await first.streaming(tokens=2) for _ in range(6)]
        for client in more:
            assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        hurry(engine, 200)
        for client in runs:
            assert (await client.whole()).endswith(b"data: [DONE]\n\n")
        assert engine.log.in_engine_max == 4
        assert len(engine.log.entries) == 4 + 3 + 2 + 6, "nothing was sent twice"


@pytest.mark.slow
async def test_prompts_and_kept_answers_are_known_to_all_gateways_and_to_one_that_was_restarted(
    world: World, tmp_path: Path
) -> None:
    for _ in range(2):
        await world.engine()
    prompts = [f"{name}, keeper of a weir. " * 60 for name in ("Ada", "Ben", "Cleo", "Dora")]
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2", routing={"policy": "prefix"})

        async def homes(one: GatewayProcess) -> list[str | None]:
            return [(await one.chat(prompt)).header("x-penstock-endpoint") for prompt in prompts]

        async def response(one: GatewayProcess, earlier: str | None = None) -> Answer:
            body = {"model": "sim", "input": "hello", "max_output_tokens": 1, "previous_response_id": earlier}
            return await one.ask("POST", "/v1/responses", body)

        known = await homes(first)
        assert len(set(known)) == 2
        answers = [await response(one) for one in (first, second) * 3]
        answers.sort(key=lambda answer: answer.header("x-penstock-endpoint") or "")  # not by turns, as new ones go
        kept = {answer.json()["id"]: answer.header("x-penstock-endpoint") for answer in answers}
        assert len(kept) == 6
        assert await homes(second) == known
        for restarted in (first, second):  # the one that decides hears all again from the other one
            restarted.kill()
            await restarted.start()
            for one in (first, second):
                await one.until(lambda state: len(state["edges"]) == 3 and state["share"]["role"] == "leads")
            for one in (first, second):
                assert await homes(one) == known
                assert {name: (await response(one, name)).header("x-penstock-endpoint") for name in kept} == kept


def test_the_seed_of_prompts_keys_is_the_groups(tmp_path: Path) -> None:
    def seed(**share: object) -> int:
        return prefix_seed(ShareSection.model_validate({"listen": ":8081", **share}))

    assert seed(secret="a-secret-of-this-group", name="gw1") == 0x54CBEE9245B623E3, (
        "whatever the gateway and its version"
    )
    assert seed(secret="a-secret-of-this-group", name="gw2") == seed(secret="a-secret-of-this-group")
    assert seed(secret="a-secret-of-another-group") != seed(secret="a-secret-of-this-group")
    one, other = certificate(tmp_path, "gw1"), certificate(tmp_path, "gw2")
    assert seed(tls=one) == seed(tls={**other, "ca": one["ca"]}), "one authority"
    assert seed(tls=one) != seed(tls=other)


@pytest.mark.slow
async def test_another_secret_and_other_settings_are_logged_at_both_ends_and_each_serves_alone(
    world: World, tmp_path: Path
) -> None:
    await world.engine()
    async with group(world, tmp_path) as made:
        first = made.made("gw1")
        secret = made.made("gw2", share={"secret": "another-secret-of-nobody"})
        settings = made.made("gw3", queue={"max_requests": 7})
        await asyncio.gather(first.start(), secret.start(), settings.start())
        await first.said("was closed: its share.secret differs")
        await secret.said(f"no link to the leader {first.share}: its share.secret differs")
        differ = "two gateways with different settings"
        await first.said(differ)
        await settings.said(differ)
        for one, words in ((secret, "its share.secret differs"), (settings, differ)):
            state = await one.until(lambda state: state["share"]["role"] == "alone")
            assert words in state["headline"]
        assert differ in (await first.until(lambda state: state["tone"] == "bad"))["headline"]
        assert {(await one.chat()).status for one in (first, secret, settings)} == {200}


@pytest.mark.slow
async def test_an_unreachable_address_is_reported_and_the_gateway_serves_alone(world: World, tmp_path: Path) -> None:
    """Where a gateway listens, and where the others are told that it does, are two things: here one port is wrong."""
    await world.engine()
    async with group(world, tmp_path) as made:
        first = made.made("gw1", share={"listen": "127.0.0.1:0", "advertise": made.decider})
        second = made.made("gw2")
        await asyncio.gather(first.start(), second.start())
        await second.said(f"no link to the leader {made.decider}: ")
        state = await second.until(lambda state: state["share"]["role"] == "alone")
        assert made.decider in second.log
        assert state["share"]["trouble"]
        assert (await second.chat()).status == (await first.chat()).status == 200


@pytest.mark.slow
async def test_pods_whose_addresses_are_ipv6_share(world: World, tmp_path: Path) -> None:
    """As the chart writes it: every interface is listened on, and the pod's address stands in brackets."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    await world.engine()
    ports = free_port(), free_port()
    async with group(world, tmp_path) as made:
        first, second = [
            made.made(
                name,
                share={"listen": f":{port}", "advertise": f"[::1]:{port}", "elect": {"static": f"[::1]:{ports[0]}"}},
            )
            for name, port in zip(("gw1", "gw2"), ports, strict=True)
        ]
        await asyncio.gather(first.start(), second.start())
        state = await second.until(lambda state: len(state["edges"]) == 3)
        assert state["share"]["name"] == "gw1"
        assert (await second.chat()).status == 200


@pytest.mark.slow
async def test_certificates_of_one_authority_are_enough(world: World, tmp_path: Path) -> None:
    await world.engine()
    ours, other = certificate(tmp_path, "ours"), certificate(tmp_path, "other")
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2", share={"secret": None, "tls": ours})
        assert (await second.chat()).status == 200
        state = await second.until(lambda state: len(state["edges"]) == 3)
        assert state["share"]["name"] == "gw1"
        stranger = made.made("gw3", share={"secret": None, "tls": other})
        plain = made.made("gw4")
        await asyncio.gather(stranger.start(), plain.start())
        for one in (stranger, plain):
            await one.until(lambda state: state["share"]["role"] == "alone")
            assert (await one.chat()).status == 200
        assert len((await first.state())["edges"]) == 3


@pytest.mark.slow
async def test_operators_see_the_whole_at_any_gateway(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And change it there: the group has one admin token of its own, which the commands find."""
    await world.engine(step_s=0.01)
    async with group(world, tmp_path) as made:
        first, second = await made.start("gw1", "gw2", share={"alone_after": "60s"}, workers=2)

        async def run(one: GatewayProcess, *words: str) -> tuple[int, str]:
            monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / one.name))
            code = await asyncio.to_thread(main, [*words, "--url", f"http://127.0.0.1:{one.port}"])
            out, err = capsys.readouterr()
            return code, out + err

        for one in (first, second):
            code, out = await run(one, "edges")
            assert code == 0
            assert "gw1 decides for" in out
            assert "2 gateways" in out
            assert all(name in out for name in ("gw1/w1", "gw1/w2", "gw2/w1", "gw2/w2"))
            assert (await run(one, "decider", "show"))[1].startswith("gw1 decides for")
            code, out = await run(one, "decider", "step-down")
            assert (code, "share.elect.static names this gateway" in out) == (1, True)
        code, out = await run(second, "status")
        assert "gw1 decides for" in out
        assert (await run(second, "pause"))[0] == 0
        assert (await first.state())["paused"]
        assert (await run(second, "resume"))[0] == 0
        assert (await run(second, "reload"))[0] == 0  # of its own settings: that is not the decider's to do
        await second.said("settings: reloaded")
        assert "reloaded" not in first.log
        assert (await first.metric("penstock_share_decides"), await second.metric("penstock_share_decides")) == (1, 0)
        assert await second.metric("penstock_share_gateways") == 2
