"""Gateways that do not reach each other: line by line what docs/scale.md says of it, over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.conftest import World
from tests.gateway.share.parted import EDGES, PART, SLOTS, parted

pytestmark = pytest.mark.slow

ELECTED_S = 10.0  # until another gateway decides and says so: 4 s, and a question that went to the one that is cut off


async def test_an_edge_is_cut_off_and_then_the_one_that_decides(world: World, tmp_path: Path) -> None:
    async with parted(world, tmp_path) as all_three:
        net = all_three.net
        leads = await all_three.leader()
        edge, third = (one for one in all_three.gateways if one is not leads)
        epoch = (await leads.state())["share"]["epoch"]
        assert await all_three.most_in_engine() <= SLOTS

        # An edge, from the others and from the store: it decides alone, with its part; the others go on as they were.
        net.cut_off(edge.name)
        state = await edge.until(lambda state: state["share"]["role"] == "alone" and state["slots"] == PART)
        assert state["headline"].startswith("This gateway decides alone, with 1/3 of slots and limits, for ")
        assert state["tone"] == "bad"
        assert await edge.metric("penstock_share_alone") == 1
        assert "this gateway decides alone, with 1/3 of slots and limits: " in edge.log
        assert "it has said nothing for 3 s" in leads.log
        for one in (leads, third):
            state = await one.until(lambda state: len(state["edges"]) == EDGES - 2)
            assert (state["share"]["name"], state["share"]["epoch"]) == (leads.name, epoch)
        await all_three.all_are_served()
        assert await all_three.most_in_engine() <= SLOTS + PART + 1
        net.mend()
        assert await all_three.one_queue() is leads
        await all_three.all_are_served()

        # The one that decides: another one does within seconds; the one cut off decides alone, and then follows.
        await all_three.most_in_engine()
        net.cut_off(leads.name)
        state = await third.until(
            lambda state: state["share"]["role"] == "leads" and len(state["edges"]) == EDGES - 2, within_s=ELECTED_S
        )
        assert state["share"]["name"] != leads.name
        assert state["share"]["epoch"] > epoch
        await leads.until(lambda state: state["share"]["role"] == "alone")
        await all_three.all_are_served()
        assert await all_three.most_in_engine() <= SLOTS + PART + 1
        net.mend()
        assert await all_three.one_queue() is not leads
        await all_three.all_are_served()
