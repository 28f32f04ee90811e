"""Who decides, in virtual time: never two at once, whatever the store, the links and the clocks do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.share.election import Contender, Follows, Leads, Nobody, Record
from tests.gateway.elect.virtual import TICK_S, Node, World, virtually

REST_S = 5.0
STOP_S = 2.0
TTL_S = 3.0

Story = Callable[[World], Awaitable[None]]


def told(story: Story, *, seed: int = 0, nodes: int = 3, linked: bool = False, together_s: float = 0.0) -> None:
    """Run `story`; at its end no two have led at once, and no epoch was two gateways'."""

    async def main() -> None:
        world = World(seed, nodes=nodes, linked=linked)
        await story(world)
        assert world.together_s <= together_s
        if together_s:
            return await world.end()
        epochs = [epoch for _, _, epoch in world.led]
        assert len(epochs) == len(set(epochs))
        assert epochs == sorted(epochs)
        return await world.end()

    virtually(main)


async def first(world: World) -> Node:
    """The first one that is elected. An empty store is watched for a while."""
    took_s = await world.until(lambda: world.leader)
    assert TTL_S * 0.98 <= took_s <= TTL_S * 1.02 + 0.2
    assert world.leader is not None
    await world.passes(1.0)
    return world.leader


def others(world: World, but: Node) -> list[Node]:
    return [node for node in world.nodes if node is not but and node.alive]


def test_one_is_elected_and_the_others_know_it() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        await world.passes(60)
        assert world.leader is leader
        assert len(world.led) == 1
        for node in others(world, leader):
            assert node.elector.standing == Follows(leader.name, 1)
            assert node.elector.trouble is None
        assert leader.told[-1] == Leads(1)

    told(story)


def test_one_that_dies_is_replaced_within_its_lease_and_a_look() -> None:
    async def story(world: World) -> None:
        await first(world)
        for _ in range(2):
            leader = world.leader
            assert leader is not None
            await leader.die()
            took_s = await world.until(lambda: world.leader)
            assert 1.9 <= took_s <= 3.6
            await world.passes(5)
        assert [epoch for _, _, epoch in world.led] == [1, 2, 3]

    told(story)


def test_a_leader_that_steps_down_is_replaced_at_once_and_does_not_come_back_first() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        leader.elector.step_down()
        assert leader.elector.leads() is None
        assert await world.until(lambda: world.leader) <= 0.7
        await world.passes(REST_S + 5)
        assert world.leader is not leader

    told(story)


def test_one_alone_that_steps_down_comes_back_after_its_rest() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        leader.elector.step_down()
        assert 0.9 * REST_S <= await world.until(lambda: world.leader) <= 1.1 * REST_S + 0.6
        assert world.leaders() == [(leader, 2)]

    told(story, nodes=1)


def test_a_draining_leader_releases_its_record() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        await leader.elector.close()
        assert world.store.record.id == ""
        assert await world.until(lambda: world.leader) <= 0.7
        assert world.leader is not leader

    told(story)


def test_a_leader_that_cannot_renew_stops_before_another_begins() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        leader.way.cut = True
        renewed_s = world.time()
        stopped_s = await world.until(lambda: leader.elector.leads() is None)
        assert 1.0 - 3 * TICK_S <= stopped_s <= STOP_S * 1.02 + 3 * TICK_S
        assert isinstance(leader.told[-1], Nobody), "its timer says so, not only its clock"
        await world.until(lambda: world.leader)
        assert world.time() - renewed_s <= TTL_S * 1.02 + 0.7
        assert leader.elector.trouble == "the store does not answer within 1 s"
        leader.way.cut = False
        await world.passes(3)
        assert leader.elector.standing == Follows(world.leaders()[0][0].name, 2)
        assert leader.elector.trouble is None

    told(story)


@pytest.mark.parametrize(("trip_s", "leads"), [(0.2, True), (0.4, True), (0.7, False)])
def test_a_slow_store(trip_s: float, leads: bool) -> None:
    """There and back within a second is quick enough. What is slower elects nobody, and says why."""

    async def story(world: World) -> None:
        for node in world.nodes:
            node.way.delays_s = (trip_s * 0.9, trip_s)
        await world.passes(60)
        if leads:
            assert len(world.led) <= 2
            assert world.leader is not None
        else:
            assert world.led == []
            assert world.nodes[0].elector.trouble == "the store does not answer within 1 s"

    told(story)


# --- a store that is away, or forgets ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_that_is_away_for_ten_minutes_changes_nothing_while_all_follow() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        world.store.down = True
        await world.passes(600)
        assert world.leaders() == [(leader, 1)]
        for node in world.nodes:
            assert node.elector.trouble == "the store: refused"
        world.store.down = False
        await world.passes(10)
        assert world.leaders() == [(leader, 1)]
        assert len(world.led) == 1

    told(story, linked=True)


def test_without_links_a_store_that_is_away_ends_it() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        world.store.down = True
        await world.passes(STOP_S * 1.02 + TICK_S)
        assert world.leaders() == []
        assert leader.elector.standing == Nobody("this gateway no longer leads: the store: refused")
        world.store.down = False
        assert await world.until(lambda: world.leader) <= TTL_S + 0.6

    told(story)


def test_with_the_store_a_gateway_is_away_so_the_decider_stops() -> None:
    """One that hears nothing might be elected by a store that only the decider does not reach."""

    async def story(world: World) -> None:
        leader = await first(world)
        away = others(world, leader)[0]
        leader.way.cut = True
        await world.passes(20)
        assert world.leaders() == [(leader, 1)], "all follow"
        world.cut.add(frozenset((leader.name, away.name)))
        assert await world.until(lambda: leader.elector.leads() is None) <= STOP_S * 1.02 + 0.3
        await world.until(lambda: world.leader)
        assert world.leaders()[0][1] == 2
        assert world.leader is not leader

    told(story, linked=True)


def test_a_store_that_comes_back_empty_changes_nothing() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        for away_s in (0.0, 5.0):
            world.store.down = away_s > 0
            await world.passes(away_s)
            world.store.down, world.store.record = False, Record()
            await world.passes(20)
            assert world.leaders() == [(leader, 1)]
            assert world.store.record.address == leader.name
        for node in others(world, leader):
            assert {standing for standing in node.told if isinstance(standing, Follows)} == {Follows(leader.name, 1)}

    told(story, linked=True)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("older", [1, 2, 3, 4, 9])
def test_a_store_that_lost_its_last_writes_brings_no_old_decider_back(older: int, linked: bool) -> None:
    async def story(world: World) -> None:
        old = await first(world)
        await world.passes(5)
        old.way.cut = True
        world.cut = {frozenset((old.name, other.name)) for other in others(world, old)}
        await world.until(lambda: world.leader is not None and world.leader is not old)
        new, history = world.leader, len(world.store.history)
        assert new is not None
        await world.passes(0.7)
        world.store.record = world.store.history[history - 1 - older]
        old.way.cut, world.cut = False, set()
        await world.passes(20)
        assert world.leaders() == [(new, 2)]
        assert old.elector.standing == Follows(new.name, 2)

    told(story, linked=linked)


def test_a_store_that_lost_the_very_write_that_elected_one_has_two_for_a_moment() -> None:
    """That no store with one record can help: nobody else has seen it. Edges keep to the one that they followed."""

    async def story(world: World) -> None:
        old = await first(world)
        await old.die()
        await world.until(lambda: world.leader)
        world.store.record = world.store.history[-2]
        await world.passes(10)
        assert len(world.leaders()) == 1

    told(story, together_s=STOP_S)


def test_an_empty_store_and_a_dead_decider_give_a_higher_epoch() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        await leader.die()
        world.store.record = Record()
        node = others(world, leader)[0]
        await world.until(lambda: node.elector.trouble, within_s=1.0)
        assert node.elector.trouble == ("the store lost the last write: it is empty, and 1 was there before")
        await world.until(lambda: world.leader)
        assert world.leaders()[0][1] == 2

    told(story, linked=True)


def test_a_decider_that_hears_of_a_higher_epoch_takes_one_that_is_higher_still() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        leader.elector.at_least(41)
        assert await world.until(lambda: world.leaders() == [(leader, 42)]) <= 0.2
        assert leader.told[-1] == Leads(42)
        await world.passes(3)
        assert all(node.elector.standing == Follows(leader.name, 42) for node in others(world, leader))

    told(story)


def test_a_newcomer_learns_the_leader_at_once() -> None:
    async def story(world: World) -> None:
        leader = await first(world)
        newcomer = world.add("late")
        await world.passes(0.1)
        assert newcomer.elector.standing == Follows(leader.name, 1)

    told(story)


# --- by chance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_never_two_by_chance(seed: int) -> None:
    """Words that are lost, late or answered to nobody, gateways cut off, killed and started again, clocks apart."""

    async def story(world: World) -> None:
        random = world.random
        for life in range(40):
            node = random.choice(world.nodes)
            node.way.cut = random.random() < 0.3
            node.way.lost = random.choice((0.0, 0.0, 0.1, 0.4))
            node.way.delays_s = random.choice(((0.001, 0.02), (0.001, 0.02), (0.0, 0.6), (0.0, 3.0)))
            if random.random() < 0.25:
                await node.die()
                world.nodes.remove(node)
                world.add(f"{node.name.split('.')[0]}.{life}")
            if random.random() < 0.1:
                node.elector.step_down()
            await world.passes(random.uniform(0.0, 6.0))
        for node in world.nodes:
            node.way.cut, node.way.lost, node.way.delays_s = False, 0.0, (0.001, 0.02)
        await world.passes(12)
        assert world.leader is not None
        assert len(world.led) > 2

    told(story, seed=seed)


@pytest.mark.parametrize("seed", range(8))
def test_never_two_with_links_by_chance(seed: int) -> None:
    """A decider that is followed by all goes on without the store, and yet no two lead."""

    async def story(world: World) -> None:
        random = world.random
        await world.passes(5)
        names = [node.name for node in world.nodes]
        pairs = [frozenset((one, other)) for one in names for other in names if one < other]
        for _ in range(40):
            for node in world.nodes:
                node.way.cut = random.random() < 0.3
            world.cut = {pair for pair in pairs if random.random() < 0.2}
            world.store.down = random.random() < 0.25
            await world.passes(random.uniform(0.0, 6.0))
        world.cut, world.store.down = set(), False
        for node in world.nodes:
            node.way.cut = False
        await world.passes(12)
        assert world.leader is not None
        assert len(world.led) > 1

    told(story, seed=seed, linked=True)


@pytest.mark.parametrize("seed", range(8))
def test_never_two_by_chance_with_a_store_that_forgets(seed: int) -> None:
    """Between two losses each gateway has had a look at what was written."""

    async def story(world: World) -> None:
        random, store = world.random, world.store
        await world.passes(5)
        for life in range(30):
            if random.random() < 0.2:
                node = random.choice(world.nodes)
                await node.die()
                world.nodes.remove(node)
                world.add(f"{node.name.split('.')[0]}.{life}")
            await world.passes(random.uniform(1.0, 6.0))
            await world.until(lambda: world.leader)
            await world.passes(0.7)
            store.record = random.choice((Record(), *store.history[-8:]))
            store.down = random.random() < 0.3
            await world.passes(random.uniform(0.0, 6.0))
            store.down = False
        await world.passes(12)
        assert world.leader is not None

    told(story, seed=seed, linked=True)


# --- the rule alone ---------------------------------------------------------------------------------------------------


def sitting() -> Contender:
    contender = Contender("me", "here:1", now=100.0)
    contender.asks(100.0)
    contender.saw(Record(), 100.0)
    claim = contender.claim(103.0)
    assert claim is not None
    contender.wrote(Record("v1", claim.id, claim.address, claim.epoch), 103.0, 103.1)
    assert contender.leads(103.1) == 1
    return contender


def test_it_leads_from_when_the_renewal_was_sent_not_from_when_it_was_answered() -> None:
    contender = sitting()
    assert contender.until_s == 103.0 + STOP_S
    assert contender.leads(104.999) == 1
    assert contender.leads(105.0) is None


def test_what_ended_in_a_pause_is_not_brought_back_by_what_was_read_after_it() -> None:
    contender = sitting()
    contender.followed(110.0, 110.0)
    assert contender.leads(110.0) is None
    contender.wrote(Record("v2", "me", "here:1", 1), 104.0, 110.0)
    assert contender.leads(110.0) is None


def test_an_answer_that_comes_after_stepping_down_means_nothing() -> None:
    contender = sitting()
    contender.steps_down(104.0)
    contender.wrote(Record("v2", "me", "here:1", 1), 103.9, 104.1)
    assert contender.leads(104.1) is None
    assert contender.claim(104.2) is None
    contender.saw(Record("v2", "me", "here:1", 1), 104.2)
    assert contender.given_back().id == ""


def test_being_followed_does_not_count_once_somebody_followed_another() -> None:
    contender = sitting()
    contender.followed(106.0 - STOP_S, 104.5)
    contender.at_least(2)
    assert contender.leads(105.0) is None, "only the renewal counts"


def test_to_hear_the_decider_is_to_see_it_renewed() -> None:
    contender = Contender("me", "here:1", now=0.0)
    contender.saw(Record("v1", "other", "there:1", 4), 0.0)
    contender.hears(50.0)
    assert contender.claim(50.0 + TTL_S - 0.01) is None
    claim = contender.claim(50.0 + TTL_S)
    assert claim is not None
    assert claim.epoch == 5


def test_who_was_elected_by_a_store_that_had_forgotten_is_looked_for_and_so_learns_of_the_higher_epoch() -> None:
    """It renews, so its record never becomes free; nobody else would ever tell it."""
    contender = Contender("me", "here:1", now=0.0)
    contender.saw(Record("v9", "old", "old:1", 4), 0.0)
    contender.hears(10.0)
    forgetful = Record("w1", "new", "new:1", 1)
    contender.saw(forgetful, 10.5)
    assert contender.at(10.5) == Follows("old:1", 4), "it is heard: what the store has forgotten changes nothing"
    assert contender.at(10.0 + TTL_S) == Follows("new:1", 1)


def test_a_store_that_only_reads_is_a_trouble_also_while_it_is_asked_again() -> None:
    contender = Contender("me", "here:1", now=0.0)

    def trouble_after(record: Record, now: float) -> str | None:
        contender.saw(record, now)
        return contender.trouble

    for now in (0.0, TTL_S / 2, TTL_S):
        contender.saw(Record(), now)
    assert contender.claim(TTL_S) is not None
    contender.failed("no rights to write", TTL_S)
    assert trouble_after(Record(), TTL_S + 0.5) == "no rights to write", "what was read says nothing of that"
    assert contender.at(TTL_S + 0.5) == Nobody("no rights to write")
    another = Record("v1", "other", "there:1", 1)
    assert trouble_after(another, TTL_S + 1.0) is None, "nothing is to be written"
    contender.failed("no answer", TTL_S + 1.5)
    assert trouble_after(another, TTL_S + 2.0) is None


def test_the_loop_is_not_asked_to_spin_while_the_store_refuses() -> None:
    async def main() -> None:
        world = World(nodes=1)
        world.store.down = True
        await world.passes(10)
        assert world.nodes[0].way.trips <= 22
        await world.end()

    virtually(main)


def test_what_it_is_told_wrong_by_a_store_ends_nothing() -> None:
    async def main() -> None:
        world = World(nodes=1)

        async def broken() -> Record:
            raise KeyError("a mistake of ours")

        world.nodes[0].way.read = broken  # type: ignore[method-assign]
        await world.passes(2)
        assert world.nodes[0].elector.trouble == "the store: KeyError"
        assert not world.nodes[0].task.done()
        await world.end()

    virtually(main)


def test_virtual_time_is_virtual() -> None:
    async def main() -> None:
        begun_s = asyncio.get_running_loop().time()
        await asyncio.sleep(3600)
        assert asyncio.get_running_loop().time() - begun_s >= 3600

    virtually(main)
