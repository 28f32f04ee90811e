"""Gateways that share a queue: each counts what its own workers serve, whoever decides, and one store has the sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.batch import postgres
from tests.gateway.conftest import World
from tests.gateway.share.group import group
from tests.gateway.share.test_elected import decider, elected_by
from tests.patience import WAIT_S, looks


@pytest.mark.slow
async def test_what_the_leader_settles_for_another_gateway_is_counted_once(world: World, tmp_path: Path) -> None:
    postgres.require()
    for _ in range(2):
        await world.engine()
    with postgres.own_server() as database:
        async with group(world, tmp_path) as made:
            given = {"share": elected_by({"postgres": {"url": database.url}})}
            batch = {"store": "postgres", "url": database.url}
            gateways = await made.start("gw1", "gw2", batch=batch, workers=2, tenants=[{"name": "team"}], **given)
            await decider(gateways)
            for gateway in gateways:
                for _ in range(6):
                    answer = await gateway.chat(headers={"x-tenant-id": "team"}, tokens=5)
                    assert answer.status == 200, answer
            for gateway in gateways:
                async for _ in looks(WAIT_S):
                    told = (await gateway.ask("GET", "/admin/usage?by=tenant")).json()
                    if told["total"]["requests"] >= 12:
                        break
                (row,) = told["rows"]
                assert (row["tenant"], row["answered"], row["completion_tokens"]) == ("team", 12, 60)
                assert row["prompt_tokens"] == sum(entry.prompt_tokens for entry in world.seen())
