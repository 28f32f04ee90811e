"""Two groups of gateways, as in two clusters, and a tenant with one budget of tokens for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gateway.conftest import World
from tests.gateway.elect import valkey
from tests.gateway.share.group import group
from tests.patience import looks

TENANT = {"x-tenant-id": "team-a"}


async def test_what_is_used_at_one_is_used_at_the_other(world: World, tmp_path: Path) -> None:
    await world.engine(step_s=0.0005)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    limits = {"tokens_per_minute": 2_000}
    with valkey.server() as server:
        given: dict[str, Any] = {
            "tenants": [{"name": "team-a", "limits": limits}],
            "share": {"budgets": {"valkey": {"url": server.url, "key": "both"}}},
        }
        async with group(world, tmp_path / "a") as made, group(world, tmp_path / "b") as others:
            (here,) = await made.start("here", **given)
            (there,) = await others.start("there", **given)
            answers = [await here.chat(headers=TENANT, tokens=700) for _ in range(4)]
            assert {answer.status for answer in answers} == {200, 429}
            left = 2_000
            async for _ in looks(10.0, 0.1):  # as if it had its own
                answer = await there.chat(headers=TENANT, tokens=1)
                left = int(answer.header("x-ratelimit-remaining-tokens") or left)
                if left <= 900:
                    break
            assert server.say("EXISTS", "both:budgets") == 1

            server.stop()
            state = await here.until(lambda state: "budgets can't be shared" in (state["share"]["trouble"] or ""))
            assert state["share"]["role"] == "leads", "nothing else changes"
            assert await here.metric("penstock_share_budgets_apart") == 1
            server.start()
            await here.until(lambda state: not state["share"]["trouble"])
            assert await here.metric("penstock_share_budgets_apart") == 0
