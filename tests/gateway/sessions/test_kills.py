"""Sessions that hold and want KV memory, while the gateway that decides, or a worker, is killed.

Two gateways of two workers elect by a real Valkey, before two engines that hold half of the sessions. A client whose
connection is cut sends its turn again, as agents do, to the other gateway if its own is down.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import Client, World, hurry
from tests.gateway.elect import valkey
from tests.gateway.share.group import GatewayProcess, group
from tests.gateway.share.test_elected import decider, elected
from tests.gateway.workers.pids import workers_of
from tests.patience import WAIT_S, looks

pytestmark = pytest.mark.slow

MEMORY: dict[str, Any] = {"kv_blocks": 100, "block_size": 16}  # 1,600 tokens: two sessions of 560 to 600
TIMES_ASKED_MAX = 50  # of one turn; each cut is followed by the next try
TURNS_BETWEEN_KILLS = 16
APART_S = 1.0
EDGES = 5  # of two gateways of two workers: these, and the link between the gateways


def prompt(session: str, turn: int) -> str:
    """The prompt of a session's turn begins with all of its earlier ones."""
    return f"word{session} " * 370 + "and then " * turn


def named(session: str) -> dict[str, str]:
    return {"x-claude-code-session-id": session}


async def listed(one: GatewayProcess) -> Any:
    return (await one.ask("GET", "/admin/sessions?limit=1000")).json()


async def waiting(one: GatewayProcess) -> list[dict[str, Any]]:
    return [row for row in (await listed(one))["sessions"] if row["state"] == "waiting"]


async def residents(one: GatewayProcess) -> dict[str, str]:
    """Where each session is resident. None is booked at two endpoints: the rows are what the endpoints hold."""
    told = await listed(one)
    at_home = [row for row in told["sessions"] if row["endpoint"] is not None]
    assert len({row["session"] for row in at_home}) == len(at_home)
    held: Counter[str] = Counter()
    for row in at_home:
        held[row["endpoint"]] += row["tokens"]
    for memory in told["sums"]["memory"]:
        assert memory["held_tokens"] == held[memory["endpoint"]], told
        assert memory["sessions"] == sum(row["endpoint"] == memory["endpoint"] for row in at_home), told
    return {row["session"]: row["endpoint"] for row in at_home}


async def memory_is_known(gateways: list[GatewayProcess]) -> None:
    for one in gateways:
        async for _ in looks(WAIT_S):
            rows = (await listed(one)).get("sums", {}).get("memory", [])
            if [row["kv_tokens"] for row in rows] == [1600, 1600]:
                break


async def test_a_new_leader_has_the_residents_and_those_that_wait_keep_their_place(
    world: World, tmp_path: Path
) -> None:
    for _ in range(2):
        await world.engine(step_s=0.3, **MEMORY)
    with valkey.server() as store:
        async with group(world, tmp_path) as made:
            gateways = await made.start("gw1", "gw2", share=elected(store), sessions={"wait": "100s"}, workers=2)
            await memory_is_known(gateways)
            first = await decider(gateways)
            (other,) = [one for one in gateways if one is not first]

            async def turn(session: str, number: int, tokens: int) -> Client:
                return await other.streaming(prompt(session, number), named(session), tokens=tokens)

            runs = {name: await turn(name, 1, 150) for name in "abcd"}
            for client in runs.values():
                assert (await client.begun()).status == 200
            waits = {}
            for name in "efg":
                waits[name] = await turn(name, 1, 2)
                async for _ in looks(WAIT_S):  # apart: workers announce ages, which the way to the next leader blurs
                    line = await waiting(other)
                    if len(line) == len(waits) and line[-1]["waits_s"] >= APART_S:
                        break
            homes = await residents(other)
            assert sorted(homes) == ["a", "b", "c", "d"]
            first.kill()
            await other.until(lambda state: state["share"]["name"] == other.name)
            async for _ in looks(WAIT_S):
                now = await waiting(other)
                if len(now) == 3:
                    break
            assert await residents(other) == homes
            assert [row["session"] for row in now] == [row["session"] for row in line] == ["e", "f", "g"]
            assert all(row["waits_s"] > before["waits_s"] for row, before in zip(now, line, strict=True))
            for engine in world.engines:
                hurry(engine)
            for client in runs.values():
                assert (await client.whole()).endswith(b"data: [DONE]\n\n")
            for client in waits.values():
                assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
            await residents(other)


@pytest.mark.parametrize("elects", ["by a store", "one decides always"])
async def test_no_session_is_lost_or_resident_twice_while_leaders_and_workers_are_killed(
    world: World, tmp_path: Path, elects: str
) -> None:
    for _ in range(2):
        await world.engine(step_s=0.01, **MEMORY)
    answered: Counter[str] = Counter()
    over = asyncio.Event()
    with valkey.server() as store:
        async with group(world, tmp_path) as made:
            share = elected(store) if elects == "by a store" else {}
            gateways = await made.start("gw1", "gw2", share=share, sessions={"wait": "2s"}, workers=2)
            await memory_is_known(gateways)

            async def one_turn(session: str, number: int, at: int) -> None:
                for again in range(TIMES_ASKED_MAX):
                    one = gateways[(at + again) % 2]
                    client: Client | None = None
                    try:
                        client = await one.streaming(prompt(session, number), named(session), tokens=10)
                        answer = await client.answer()
                    except (OSError, EOFError):
                        await asyncio.sleep(0.1)
                        continue
                    finally:
                        if client is not None:
                            client.hang_up()
                            world.clients.remove(client)
                    assert answer.status == 200, answer
                    if answer.body.endswith(b"data: [DONE]\n\n"):
                        answered[session] += 1
                        return
                raise AssertionError(f"turn {number} of {session} was lost")

            async def agent(session: str, at: int) -> None:
                number = 0
                while not over.is_set():
                    number += 1
                    await one_turn(session, number % 20, at)

            agents = [asyncio.create_task(agent(name, at)) for at, name in enumerate("abcdefgh")]

            async def go_on() -> None:
                """Each session has its next turn, and enough turns are answered."""
                before, all_before = answered.copy(), answered.total()
                async for _ in looks(2 * WAIT_S):
                    for task in agents:
                        if task.done():
                            task.result()
                    each = all(answered[name] > before[name] for name in "abcdefgh")
                    if each and answered.total() >= all_before + TURNS_BETWEEN_KILLS:
                        return

            async def whole() -> None:
                for one in gateways:
                    await one.until(lambda state: len([e for e in state["edges"] if e["up_s"] is not None]) == EDGES)

            try:
                await go_on()
                for victim in ("leader", "worker", "leader"):
                    leader = await decider(gateways)
                    (other,) = [one for one in gateways if one is not leader]
                    assert leader.process is not None
                    assert other.process is not None
                    if victim == "leader":
                        leader.kill()
                        await leader.process.process.wait()
                        await other.until(lambda state: state["share"]["role"] in ("leads", "alone"))
                        await go_on()
                        await residents(other)
                        await leader.start()
                    else:
                        os.kill(min(workers_of(other.process.process.pid)), signal.SIGKILL)
                    await whole()
                    await go_on()
                    for one in gateways:
                        await residents(one)
            finally:
                over.set()
                await asyncio.gather(*agents)
            for one in gateways:
                await one.until(lambda state: state["running"] == state["waiting"] == 0)
                assert await one.metric("penstock_leases") == 0
                assert "Traceback" not in one.earlier + one.log
            told = await listed(gateways[0])
            assert len(told["sessions"]) == 8
            assert any(row["waited_s"] > 0 for row in told["sessions"])
