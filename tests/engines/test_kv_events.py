"""What engines' KV events say, in the forms that vLLM and SGLang send them, and in those that nobody should."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from penstock.engines.kv_events import Cleared, Event, EventBatch, Offloaded, Removed, Stored, decode

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [11, -22],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
ARRAY = ["BlockStored", [11, -22], None, [1, 2, 3, 4], 2, None, "GPU", None, [None, None], 0, "full_attention"]


def batch(*events: object, rank: object = 0) -> EventBatch:
    read = decode(msgspec.msgpack.encode([1.5, list(events), rank]))
    assert read is not None
    return read


def one(event: object) -> Event:
    (read,) = batch(event).events
    return read


def stored(event: object) -> Stored:
    read = one(event)
    assert isinstance(read, Stored)
    return read


def test_maps_and_arrays_say_the_same() -> None:
    assert stored(STORED) == stored(ARRAY) == Stored([11, -22], None, [1, 2, 3, 4], 2)


def test_an_array_may_be_as_short_as_old_engines_sent_it() -> None:
    assert stored(ARRAY[:6]) == Stored([11, -22], None, [1, 2, 3, 4], 2)


def test_removals_and_a_cleared_cache_are_read_in_both_forms() -> None:
    assert one({"type": "BlockRemoved", "block_hashes": [1, b"x"], "medium": "GPU", "group_idx": 2}) == Removed(
        [1, b"x"], 2
    )
    assert one(["BlockRemoved", [1, b"x"]]) == Removed([1, b"x"])
    assert one({"type": "AllBlocksCleared"}) == one(["AllBlocksCleared"]) == Cleared()


def test_hashes_may_be_bytes_and_have_a_parent() -> None:
    event = stored({**STORED, "block_hashes": [b"a", b"b"], "parent_block_hash": b"p"})
    assert (event.hashes, event.parent) == ([b"a", b"b"], b"p")


def test_adapter_and_salt_are_found_in_each_engines_fields() -> None:
    vllm = stored({**STORED, "lora_name": "sql", "extra_keys": [["sql", "salty"], ["sql"]]})
    sglang = {name: value for name, value in STORED.items() if name not in ("extra_keys", "group_idx")}
    assert vllm == stored({**sglang, "lora_name": "sql", "cache_salt": "salty"})
    assert (vllm.adapter, vllm.salt, vllm.extras) == ("sql", "salty", ())


def test_a_picture_distinguishes_blocks_of_equal_tokens() -> None:
    event = stored({**STORED, "extra_keys": [None, [["picture", 3]]]})
    assert event.extras[0] == b""
    assert event.extras[1] != b""


def test_an_adapter_that_has_only_a_number_is_kept_apart() -> None:
    assert stored({**STORED, "lora_id": 7}).adapter == "#7"


def test_blocks_of_slower_tiers_or_windows_are_left_out_without_error() -> None:
    read = batch(
        *({**STORED, "medium": medium} for medium in ("DISK", "EXTERNAL", "", 7, ["CPU"])),
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "DISK"},
        {**STORED, "kv_cache_spec_kind": "sliding_window"},
        {**STORED, "medium": "CPU", "kv_cache_spec_kind": "sliding_window"},
    )
    assert read == EventBatch([], 0)


@pytest.mark.parametrize("medium", ["CPU", "CPU_PINNED"])
def test_blocks_in_the_hosts_memory_are_told_by_their_hashes_alone(medium: str) -> None:
    nameless = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [], "block_size": 16, "medium": medium}
    assert one(nameless) == Offloaded([1, 2])
    assert one({**STORED, "medium": medium}) == Offloaded([11, -22], 0)
    assert one(["BlockStored", [1, 2], None, [], 16, None, medium]) == Offloaded([1, 2])
    assert one({"type": "BlockRemoved", "block_hashes": [1], "medium": medium}) == Removed([1], offloaded=True)


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        "BlockStored",
        {"type": "BlockMoved", "block_hashes": [1]},
        {**STORED, "token_ids": [1, 2, 3]},
        {**STORED, "token_ids": [[1, 2], [2, 3], [3, 4], [4, 5]]},
        {**STORED, "token_ids": [1, 2, 3, -4]},
        {**STORED, "token_ids": [1, 2, 3, 2**40]},
        {**STORED, "block_size": 0},
        {**STORED, "block_size": None},
        {**STORED, "block_hashes": [], "token_ids": []},
        {**STORED, "block_hashes": [1.5, 2]},
        {**STORED, "block_hashes": [[1], {}]},
        {**STORED, "parent_block_hash": [1]},
        {"type": "BlockRemoved"},
    ],
)
def test_an_event_that_makes_no_sense_is_left_out_and_counted(event: object) -> None:
    assert batch(event, STORED) == EventBatch([Stored([11, -22], None, [1, 2, 3, 4], 2)], 0, strange=1)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93", msgspec.msgpack.encode({"ts": 1}), b"\x91" * 5000])
def test_a_malformed_message_is_none(payload: bytes) -> None:
    assert decode(payload) is None


def test_the_rank_is_read_where_there_is_one() -> None:
    assert batch(rank=3).rank == 3
    assert batch(rank=None).rank is None


def test_no_bytes_can_make_it_fail() -> None:
    random = Random(3)
    good = msgspec.msgpack.encode([1.5, [STORED, ARRAY], 0])
    for _ in range(3000):
        broken = bytearray(good)
        for _ in range(random.randrange(1, 4)):
            broken[random.randrange(len(broken))] = random.randrange(256)
        decode(bytes(broken[: random.randrange(len(broken) + 1)]))


def test_no_values_can_make_it_fail() -> None:
    random = Random(4)
    odd: list[Any] = [
        None,
        True,
        -1,
        2**64 - 1,
        1.5,
        float("nan"),
        "",
        "x",
        b"",
        [],
        [1],
        [[]],
        [None],
        {},
        {"a": 1},
        [["x"], "y"],
    ]
    for _ in range(3000):
        batch({**STORED, **{name: random.choice(odd) for name in random.sample(sorted(STORED), 3)}})
        batch([random.choice(odd) if random.random() < 0.3 else value for value in ARRAY])
