"""A store that nobody reaches, or not everybody: line by line what docs/scale.md says of it, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.gateway.conftest import World
from tests.gateway.share.network import Ends
from tests.gateway.share.parted import ALONE_AFTER_S, NAMES, PART, SLOTS, parted

pytestmark = pytest.mark.slow


async def test_the_store_is_cut_off_and_then_everybody_from_everybody(world: World, tmp_path: Path) -> None:
    async with parted(world, tmp_path) as all_three:
        net = all_three.net
        leads = await all_three.leader()
        edge, third = (one for one in all_three.gateways if one is not leads)
        epoch = (await leads.state())["share"]["epoch"]

        # The store, from all, or from the one that decides alone: nothing, but that `status` says so.
        for is_cut in (lambda ends: "store" in ends, lambda ends: ends == (leads.name, "store")):
            net.cut(is_cut)
            await asyncio.sleep(ALONE_AFTER_S + 2)  # longer than any of its times
            for one in all_three.gateways:
                share = (await one.state())["share"]
                assert (share["name"], share["role"], share["epoch"]) == (leads.name, "leads", epoch), one.log
            assert "does not answer" in (await leads.state())["share"]["trouble"]
            await all_three.all_are_served()
            net.mend()
            await leads.until(lambda state: state["share"]["trouble"] is None)
        assert await all_three.most_in_engine() <= SLOTS

        # The store from the one that decides, and a gateway from it, which reaches the store: that one is elected.
        def is_cut(ends: Ends) -> bool:
            return ends == (leads.name, "store") or set(ends) == {leads.name, edge.name}

        net.cut(is_cut)
        state = await edge.until(lambda state: state["share"]["role"] == "leads")
        assert state["share"]["name"] in (edge.name, third.name)
        assert state["share"]["epoch"] > epoch
        await leads.until(lambda state: state["share"]["role"] == "alone" or state["share"]["name"] == third.name)
        await all_three.all_are_served()
        net.mend()
        await all_three.one_queue()
        await all_three.all_are_served()

        # All from all, and from the store: each decides alone with its part; then it is one queue without a restart.
        await all_three.most_in_engine()
        net.cut_off(*NAMES)
        for one in all_three.gateways:
            state = await one.until(lambda state: state["share"]["role"] == "alone" and state["slots"] == PART)
            assert state["share"]["gateways"] == 3
        await all_three.all_are_served()
        assert await all_three.most_in_engine() <= SLOTS + 3 * PART
        net.mend()
        await all_three.one_queue()
        await all_three.all_are_served()  # with that, what each had sent while it decided alone is over
        assert await all_three.most_in_engine() <= SLOTS + 3 * PART
        await all_three.all_are_served()
        assert await all_three.most_in_engine() <= SLOTS
