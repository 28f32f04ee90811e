"""What is remembered of where prompts went weighs as much as is said, compiled or not."""

from __future__ import annotations

import tracemalloc

from penstock.core.routing.last_sent import DEPTHS, LastSent

KEYS_MAX = 128 * 1024

DEEP = 20  # keys of each prompt that are remembered
TABLE_BYTES = 70  # of a dict, for each of its keys, at most


def test_all_keys_of_a_prompt_share_what_is_remembered_of_it() -> None:
    long = DEPTHS[DEEP - 1]
    prompts = [range(first, first + long) for first in range(0, KEYS_MAX // DEEP * long, long)]
    prefixes = [list(prompt) for prompt in prompts]
    tracemalloc.start()
    try:
        made = LastSent()
        for number, prefix in enumerate(prefixes):
            made.sent(prefix, number % 3)
        weighs, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(made) > 0.99 * KEYS_MAX
    assert weighs / len(made) < TABLE_BYTES
