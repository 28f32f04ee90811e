"""Blocks by their own keys: what an engine holds, told by its events, is found by a prompt's tokens alone."""

from __future__ import annotations

from collections import Counter
from random import Random

from penstock.engines.kv_blocks import Changes, EndpointBlocks, prompt_keys
from penstock.engines.kv_events import BlockHash, Cleared, Event, Offloaded, Removed, Stored

TOKENS = list(range(100, 113))  # three whole blocks of four and one token more


def stored(hashes: list[BlockHash], tokens: list[int], parent: BlockHash | None = None, **more: object) -> Stored:
    return Stored(hashes, parent, tokens, len(tokens) // len(hashes), **more)  # type: ignore[arg-type]


def holding(*events: Event) -> EndpointBlocks:
    blocks = EndpointBlocks()
    blocks.apply(0, events)
    return blocks


def test_a_prompt_finds_an_engines_blocks_for_any_hashes() -> None:
    keys = prompt_keys(TOKENS, 4)
    assert len(keys) == 3
    assert holding(stored([1, 2, 3], TOKENS[:12])).held(keys) == 3
    assert holding(stored([b"x", b"y"], TOKENS[:8])).held(keys) == 2


def test_a_chain_goes_on_behind_its_parent() -> None:
    blocks = holding(stored([7], TOKENS[:4]), stored([8, 9], TOKENS[4:12], parent=7))
    assert blocks.held(prompt_keys(TOKENS, 4)) == 3


def test_the_last_token_is_never_counted_as_cached() -> None:
    assert len(prompt_keys(TOKENS[:12], 4)) == 2
    assert prompt_keys(TOKENS[:4], 4) == []
    assert prompt_keys([], 4) == []


def test_another_adapter_salt_block_size_or_picture_is_another_block() -> None:
    plain = prompt_keys(TOKENS, 4)
    others = (prompt_keys(TOKENS, 4, adapter="sql"), prompt_keys(TOKENS, 4, salt="s"), prompt_keys(TOKENS, 2))
    assert all(set(plain).isdisjoint(other) for other in others)
    assert holding(stored([1, 2, 3], TOKENS[:12], extras=[b"", b"picture", b""])).held(plain) == 1
    assert holding(stored([1, 2, 3], TOKENS[:12], adapter="sql")).held(others[0]) == 3


def test_blocks_behind_an_unknown_parent_are_left_out_and_counted() -> None:
    blocks = holding(stored([8, 9], TOKENS[4:12], parent=7))
    assert (len(blocks), blocks.orphans) == (0, 2)


def test_removed_blocks_are_gone_and_a_gap_ends_the_match() -> None:
    blocks = holding(stored([1, 2, 3], TOKENS[:12]))
    assert blocks.apply(0, [Removed([2, 99])]).removed.keys() == {prompt_keys(TOKENS, 4)[1]}
    assert blocks.held(prompt_keys(TOKENS, 4)) == 1


def test_a_block_stored_twice_is_there_until_both_copies_are_gone() -> None:
    blocks = holding(stored([1], TOKENS[:4]), stored([1], TOKENS[:4]), stored([1], TOKENS[:4]))
    assert [len(blocks.apply(0, [Removed([1])]).removed) for _ in range(4)] == [0, 0, 1, 0]
    assert len(blocks) == 0


def test_a_block_stays_while_the_hosts_memory_holds_it() -> None:
    keys = prompt_keys(TOKENS, 4)
    blocks = holding(stored([1, 2, 3], TOKENS[:12]), Offloaded([1, 2, 77]))
    assert blocks.apply(0, [Removed([1, 2, 3])]).removed.keys() == {keys[2]}
    assert blocks.held(keys) == 2
    assert blocks.apply(0, [Removed([2, 99], offloaded=True)]).removed.keys() == {keys[1]}
    assert blocks.held(keys) == 1
    assert blocks.apply(0, [Removed([1]), stored([1], TOKENS[:4]), Removed([1], offloaded=True)]) == Changes()
    assert blocks.held(keys) == 1, "loaded again"
    assert blocks.apply(0, [Removed([1])]).removed.keys() == {keys[0]}
    assert len(blocks) == 0


def test_a_copy_in_the_hosts_memory_counts_for_blocks_that_are_known() -> None:
    blocks = holding(stored([1], TOKENS[:4]), Removed([1]), Offloaded([1]), Offloaded([1], 5))
    assert len(blocks) == 0
    blocks.apply(0, [stored([1], TOKENS[:4])])
    assert blocks.apply(0, [Removed([1], offloaded=True)]) == Changes()
    assert blocks.held(prompt_keys(TOKENS, 4)) == 1


def test_a_random_history_ends_with_what_either_tier_holds() -> None:
    random, blocks = Random(4), EndpointBlocks()
    own, host = Counter[int](), set[int]()
    for _ in range(5_000):
        block = random.randrange(8)
        events: list[Stored | Offloaded | Removed]
        events = [stored([block], [block] * 4), Removed([block]), Offloaded([block]), Removed([block], offloaded=True)]
        event = random.choice(events)
        known = own[block] > 0 or block in host
        if isinstance(event, Stored):
            own[block] += 1
        elif isinstance(event, Offloaded):
            host |= {block} if known else set()
        elif event.offloaded:
            host.discard(block)
        else:
            own[block] = max(0, own[block] - 1)
        blocks.apply(0, [event])
        assert len(blocks) == len({block for block in range(8) if own[block] or block in host})


def test_changes_of_one_message_are_net() -> None:
    blocks = holding(stored([1], TOKENS[:4]))
    first, second, _ = prompt_keys(TOKENS, 4)
    assert blocks.apply(0, [stored([2], TOKENS[4:8], parent=1), Removed([2])]) == Changes()
    assert blocks.apply(0, [Removed([1]), stored([1], TOKENS[:4])]) == Changes()
    changes = blocks.apply(0, [Cleared(), stored([1, 2], TOKENS[:8])])
    assert changes == Changes(cleared=True, stored={first: None, second: None})


def test_an_endpoint_holds_the_blocks_of_all_its_ranks() -> None:
    blocks = EndpointBlocks()
    key = prompt_keys(TOKENS, 4)[0]
    assert blocks.apply(0, [stored([1], TOKENS[:4])]).stored.keys() == {key}
    assert blocks.apply(1, [stored([5], TOKENS[:4])]) == Changes()
    assert blocks.forget(0) == Changes(forgotten=True)
    assert blocks.forget(1) == Changes(cleared=True, lost=True, forgotten=True)
    assert blocks.forget(1) == Changes(lost=True, forgotten=True), "an empty cache that nobody tells of is lost, too"


def test_the_last_rank_that_forgets_clears_the_others_only_remove() -> None:
    blocks = EndpointBlocks()
    blocks.apply(0, [stored([1], TOKENS[:4])])
    blocks.apply(1, [stored([1], TOKENS[4:8])])
    assert blocks.forget(0) == Changes(removed={prompt_keys(TOKENS, 4)[0]: None}, forgotten=True)


def test_another_group_neither_adds_nor_takes() -> None:
    blocks = holding(stored([1], TOKENS[:4]), stored([1], TOKENS[:4], group=1), Removed([1], group=1))
    assert len(blocks) == 1
    assert len(blocks.apply(0, [Removed([1], group=0)]).removed) == 1


def test_an_endpoint_with_too_many_blocks_is_not_trusted_further() -> None:
    blocks = EndpointBlocks(blocks_max=2)
    blocks.apply(0, [stored([1, 2, 3], TOKENS[:12])])
    assert (len(blocks), blocks.overflowed) == (2, 1)
    assert blocks.held(prompt_keys(TOKENS, 4)) == 2
    blocks.apply(0, [Removed([2])])
    blocks.apply(1, [stored([1, 2, 3], TOKENS[:12])])
    assert blocks.overflowed == 3  # what ranks hold counts together
    blocks.forget(0)
    blocks.apply(1, [stored([2], TOKENS[4:8], parent=1)])
    assert blocks.held(prompt_keys(TOKENS, 4)) == 2


def test_reported_changes_add_up_to_the_blocks() -> None:
    """Whatever comes in whatever order: who only hears the changes knows the same."""
    random = Random(5)
    blocks = EndpointBlocks()
    told: set[int] = set()
    chains = [[random.randrange(50) for _ in range(24)] for _ in range(4)]
    for _ in range(2000):
        rank, chain = random.randrange(2), random.choice(chains)
        first, count = random.randrange(6), random.randrange(1, 3)
        hashes: list[BlockHash] = [hash(tuple(chain[: 4 * (n + 1)])) for n in range(6)]
        part = hashes[first : first + count]
        event: Stored | Removed | Cleared = Removed(part)
        if random.random() < 0.5:
            event = stored(part, chain[4 * first : 4 * (first + len(part))], hashes[first - 1] if first else None)
        elif random.random() < 0.02:
            event = Cleared()
        changes = blocks.apply(rank, [event])
        told = (set() if changes.cleared else told) - changes.removed.keys() | changes.stored.keys()
        assert len(told) == len(blocks)
    for chain in chains:
        keys = prompt_keys([*chain, 0], 4)
        assert blocks.held(keys) == next((n for n, key in enumerate(keys) if key not in told), len(keys))
