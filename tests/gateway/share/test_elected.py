"""Gateways that elect the one which decides: it dies, it is told to step down, the store dies.

By a real Valkey, and where another one takes over also by a real PostgreSQL and by a Lease.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import World, hurry
from tests.gateway.elect import valkey
from tests.gateway.elect.stores import KINDS, store
from tests.gateway.share.group import GatewayProcess, group
from tests.gateway.share.network import Way

AWAY_S = 7.0  # longer than any of its times, and than `alone_after`; with 600 it is in docs/results.md


def elected(server: valkey.Server) -> dict[str, object]:
    """Settings of a group."""
    return elected_by({"valkey": {"url": server.url, "key": "test"}})


def elected_by(elect: dict[str, Any]) -> dict[str, object]:
    return {"elect": elect, "alone_after": "5s"}


async def decider(gateways: list[GatewayProcess]) -> GatewayProcess:
    """Which one decides."""
    roles = [(await one.state())["share"] for one in gateways]
    return next(one for one in gateways if all(role["name"] == one.name for role in roles))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_another_gateway_decides_within_seconds_and_no_stream_of_others_breaks(
    world: World, tmp_path: Path, kind: str
) -> None:
    """By one kind of store three gateways, two of which would follow; three at each store are in `test_elections`. How
    many seconds it takes is in `test_election`, in virtual time.
    """
    engine = await world.engine(step_s=0.01)
    names = ("gw1", "gw2", "gw3") if kind == "valkey" else ("gw1", "gw2")
    with store(kind) as stores:
        async with group(world, tmp_path) as made:
            gateways = await made.start(*names, share=elected_by(stores.settings))
            first = await decider(gateways)
            others = [one for one in gateways if one is not first]
            two = (*others, *others)[:2]
            runs = [await one.streaming(tokens=1000) for one in (*two, *two)]
            for client in runs:
                await client.begun()
            waits = [await one.streaming(tokens=2) for one in two]
            for one in others:
                await one.until(lambda state: state["waiting"] == 2)
            first.kill()
            edges = 2 * len(others) - 1
            state = await others[0].until(lambda state: len(state["edges"]) == edges and state["waiting"] == 2)
            assert state["running"] == 4
            runs[0].hang_up()  # a slot is free: whoever waits gets it from the one that decides now
            assert (await waits[0].answer()).body.endswith(b"data: [DONE]\n\n")
            hurry(engine)
            for client in runs[1:]:
                assert (await client.whole()).endswith(b"data: [DONE]\n\n")
            assert (await waits[1].answer()).body.endswith(b"data: [DONE]\n\n")
            assert engine.log.in_engine_max == 4
            assert len(engine.log.entries) == 6, "nothing was sent twice"
            if kind == "valkey":
                await first.start()
                state = await first.until(lambda state: len(state["edges"]) == 5)
                assert state["share"]["name"] != first.name, "who decides goes on to"


async def test_a_leader_steps_down_on_command_and_running_and_queued_requests_go_on(
    world: World, tmp_path: Path
) -> None:
    engine = await world.engine(step_s=0.1)  # answers of minutes, until all is hurried
    with valkey.server() as server:
        async with group(world, tmp_path) as made:
            gateways = await made.start("gw1", "gw2", share=elected(server))
            first = await decider(gateways)
            second = next(one for one in gateways if one is not first)
            runs = [await one.streaming(tokens=1500) for one in (first, second, first, second)]
            for client in runs:
                await client.begun()
            waits = [await one.streaming(tokens=2) for one in (first, second)]
            await second.until(lambda state: state["waiting"] == 2)
            token = (next(tmp_path.glob("gw*/penstock/*/admin-token"))).read_text().strip()
            await second.step_down(token)
            state = await first.until(lambda state: state["share"]["name"] == second.name and state["waiting"] == 2)
            assert state["running"] == 4
            # And as systemd ends it: the one that decides now hands over, and ends when its own clients are served.
            assert second.process is not None
            second.process.signal()
            await second.said("draining")
            await first.until(lambda state: state["share"]["name"] == first.name)
            hurry(engine, 200)
            for client in runs:
                assert (await client.whole()).endswith(b"data: [DONE]\n\n")
            for client in waits:
                assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
            await second.said("stopped")
            assert engine.log.in_engine_max == 4


@pytest.mark.slow
async def test_a_store_that_is_stopped_and_comes_back_empty_changes_nothing(world: World, tmp_path: Path) -> None:
    engine = await world.engine(step_s=0.01)
    with valkey.server() as server:
        async with group(world, tmp_path) as made:
            gateways = await made.start("gw1", "gw2", share=elected(server))
            first = await decider(gateways)
            epoch = (await first.state())["share"]["epoch"]
            server.stop()
            await asyncio.sleep(AWAY_S)
            for one in gateways:
                state = (await one.state())["share"]
                assert (state["name"], state["epoch"]) == (first.name, epoch), one.log
                assert (await one.chat()).status == 200
            assert (await first.state())["share"]["trouble"]
            server.start()
            await asyncio.sleep(4)
            for one in gateways:
                state = (await one.until(lambda state: state["share"]["trouble"] is None))["share"]
                assert state["name"] == first.name, one.log
                assert (await one.chat()).status == 200
            assert engine.log.in_engine_max <= 4


@pytest.mark.slow
async def test_a_suspended_decider_follows_the_one_elected_meanwhile(world: World, tmp_path: Path) -> None:
    """As a machine that swaps, or a process in a debugger: its workers go on, it knows nothing of the time."""
    engine = await world.engine(step_s=0.1)  # answers of minutes, until all is hurried
    with valkey.server() as server:
        async with group(world, tmp_path) as made:
            gateways = await made.start("gw1", "gw2", share=elected(server))
            first = await decider(gateways)
            second = next(one for one in gateways if one is not first)
            runs = [await one.streaming(tokens=1500) for one in (first, second)]
            for client in runs:
                await client.begun()
            assert first.process is not None
            first.process.signal(signal.SIGSTOP)
            await second.until(lambda state: state["share"]["role"] == "leads")
            waits = [await one.streaming(tokens=2) for one in (first, second)]
            assert (await waits[1].answer()).body.endswith(b"data: [DONE]\n\n")
            first.process.signal(signal.SIGCONT)
            await first.until(lambda state: state["share"]["name"] == second.name and len(state["edges"]) == 3)
            assert (await waits[0].answer()).body.endswith(b"data: [DONE]\n\n")
            await first.until(lambda state: state["running"] == 2)  # the end of an answer is told a moment later
            hurry(engine, 200)
            for client in runs:
                assert (await client.whole()).endswith(b"data: [DONE]\n\n")


@pytest.mark.slow
async def test_a_gateway_that_is_cut_off_serves_alone_and_then_with_the_others_again(
    world: World, tmp_path: Path
) -> None:
    """The store says who decides, but there is no way to it: an `advertise` that leads nowhere for a while."""
    engine = await world.engine(step_s=0.5)  # answers of many minutes, until all is hurried
    with valkey.server() as server:
        async with group(world, tmp_path) as made, Way() as way:
            share = {**elected(server), "alone_after": "2s"}
            first = made.made("gw1", share={**share, "advertise": way.address})
            way.to = first.share
            await first.start()
            await first.until(lambda state: state["share"]["role"] == "leads")
            second = made.made("gw2", share=share)
            await second.start()
            await second.until(lambda state: len(state["edges"]) == 3)
            runs = [await one.streaming(tokens=1500) for one in (first, second)]
            for client in runs:
                await client.begun()
            way.cut()
            await second.until(lambda state: state["share"]["role"] == "alone")
            assert "it has said nothing for 3 s" in first.log + second.log, "whoever looks first ends it"
            assert (await second.chat()).status == (await first.chat()).status == 200
            assert (await first.state())["share"]["role"] == "leads"
            way.mend()
            await second.until(lambda state: state["share"]["name"] == "gw1" and len(state["edges"]) == 3)
            await second.until(lambda state: state["running"] == 2)
            hurry(engine, 1000)
            for client in runs:
                assert (await client.whole()).endswith(b"data: [DONE]\n\n")
