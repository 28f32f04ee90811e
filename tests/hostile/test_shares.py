"""A caller without a key that invents names: what it gets beside a tenant with one, under few names and many."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import World, chat, request

KEY = "pk-of-the-tenant"


async def share_beside_a_flood(world: World, headers: Callable[[bool], dict[str, str]], *, settled: int) -> float:
    """The part of 400 answers that 24 clients get beside a flood of 120; `headers` are of the flood, or of them."""
    answered = {True: 0, False: 0}

    async def keep_asking(floods: bool) -> None:
        client = await world.client()
        while True:
            client.send(request(body=chat(tokens=4), headers=headers(floods)))
            assert (await client.answer()).status == 200
            answered[floods] += 1

    tasks = [asyncio.ensure_future(keep_asking(number < 120)) for number in range(144)]  # the engine runs 8
    await world.until(lambda: all(answered.values()) and sum(answered.values()) > settled)
    before = dict(answered)
    await world.until(lambda: sum(answered.values()) - sum(before.values()) >= 400)
    flood, others = (answered[who] - before[who] for who in (True, False))
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in world.clients:
        client.hang_up()
    return others / (flood + others)


@pytest.mark.parametrize("names", [1, 100, 900])
async def test_a_flood_without_a_key_gets_one_part_however_many_names_it_has(world: World, names: int) -> None:
    """Of two parts, the tenant's has weight 2. The flood had 38 % under one name, 96 % under 100, 98 % under 900."""
    await world.engine(step_s=0.002, max_num_seqs=8)
    await world.gateway(
        slots=8, tenants=[{"name": "team", "weight": 2, "keys": [key_hash(KEY)]}], admission={"reserved_slots": 0.0}
    )
    serial = itertools.count()

    def headers(floods: bool) -> dict[str, str]:
        return {"x-tenant-id": f"flood-{next(serial) % names}"} if floods else {"authorization": f"Bearer {KEY}"}

    assert await share_beside_a_flood(world, headers, settled=100) == pytest.approx(2 / 3, abs=0.05)


async def test_the_limits_of_the_shared_part_hold_for_all_its_names_together(world: World) -> None:
    engine = await world.engine(step_s=0.005, max_num_seqs=8)
    limits = {"running": 2, "requests_per_minute": 12}
    await world.gateway(
        slots=8,
        tenants=[{"name": "team", "keys": [key_hash(KEY)]}],
        identity={"anonymous": {"weight": 2, "limits": limits}},
    )
    asked = [
        world.soon(world.ask(body=chat(tokens=10), headers={"x-tenant-id": f"name-{n}", "x-request-id": f"k{n}"}))
        for n in range(20)
    ]
    keyed = [world.soon(world.ask(body=chat(), headers={"authorization": f"Bearer {KEY}"})) for _ in range(20)]
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status for answer in answers) == [200] * 12 + [429] * 8
    assert {answer.error()["code"] for answer in answers if answer.status == 429} == {"tenant_limit"}
    assert [answer.status for answer in await asyncio.gather(*keyed)] == [200] * 20
    theirs = [entry for entry in engine.log.entries if entry.id.startswith("k")]
    at_once = [sum(o.arrived <= e.arrived < (o.finished or 0.0) for o in theirs) for e in theirs]
    assert max(at_once) <= 2


@pytest.mark.parametrize("invents", ["keys", "users", "nothing"])
async def test_a_client_that_invents_keys_or_users_has_one_share_beside_another_address(
    world: World, invents: str
) -> None:
    """Nobody is named, and no tenant is configured: an address has one share, under one name and under many."""
    await world.engine(step_s=0.002, max_num_seqs=8)
    await world.gateway(slots=8, client_address={"proxies": ["127.0.0.0/8"]}, admission={"reserved_slots": 0.0})
    serial = itertools.count()

    def headers(floods: bool) -> dict[str, str]:
        invented, given = f"name-{next(serial) % 200}", {"x-forwarded-for": f"192.0.2.{1 if floods else 2}"}
        if floods and invents == "keys":
            given["authorization"] = f"Bearer {invented}"
        elif floods and invents == "users":
            given["x-user-id"] = invented
        return given

    assert await share_beside_a_flood(world, headers, settled=400) >= 0.45


@pytest.mark.parametrize(
    ("distinguish", "passed"), [(["address", "key", "user"], range(5)), ([], range(25, 200))], ids=["told apart", "off"]
)
async def test_on_the_first_day_a_flood_holds_up_no_other_client(
    world: World, distinguish: list[str], passed: range
) -> None:
    """No tenant is configured, and nobody names one: the flood and the other client have API keys of their own.
    How many requests of the flood's are sent while one of the other's waits?
    """
    engine = await world.engine(step_s=0.002, max_num_seqs=8)
    await world.gateway(slots=8, identity={"distinguish": distinguish})

    async def flood() -> None:
        client = await world.client()
        while True:
            client.send(request(body=chat(tokens=20), headers={"authorization": "Bearer sk-flood"}))
            await client.answer()

    tasks = [asyncio.ensure_future(flood()) for _ in range(48)]
    await world.until(lambda: world.picture().waiting >= 40 and len(engine.log.entries) >= 100)
    waited = []
    for n in range(9):
        before = len(engine.log.entries)
        headers = {"authorization": "Bearer sk-other", "x-request-id": f"other-{n}"}
        assert (await world.ask(body=chat(tokens=2), headers=headers)).status == 200
        sent = [entry.id for entry in list(engine.log.entries)[before:]]
        waited.append(sent.index(f"other-{n}"))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in world.clients:
        client.hang_up()
    assert sorted(waited)[4] in passed, waited
