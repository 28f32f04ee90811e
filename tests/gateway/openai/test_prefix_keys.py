"""Keys of prompts agree in all processes that have the same seed, and in no others."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from penstock.gateway.openai.fields import Text
from penstock.gateway.openai.prefix_keys import keys

SEED = 0x0123456789ABCDEF
PROMPT = b'"' + b"The keeper of a weir. " * 60 + b'"'  # 1,322 bytes: two chunks
OTHER_PROCESS = """
import msgspec
from penstock.gateway.openai.fields import Text
from penstock.gateway.openai.prefix_keys import keys
prompt = b'"' + b"The keeper of a weir. " * 60 + b'"'
print(*keys(Text(prompt=msgspec.Raw(prompt)), "m", 0x0123456789ABCDEF))
"""


def of(prompt: bytes, model: str = "m", seed: int = SEED, **fields: bytes) -> tuple[int, ...]:
    raw = {name: msgspec.Raw(value) for name, value in fields.items()}
    return keys(Text(prompt=msgspec.Raw(prompt), **raw), model, seed)


def test_the_keys_of_a_prompt_are_these_numbers_for_a_given_seed() -> None:
    """Gateways of a group may run on machines and Pythons of different kinds."""
    assert of(PROMPT) == (0x8426ECCB303B7C70, 0x8DA5D869E14DEB8E)
    assert of(PROMPT, tools=b"[]") == (0x4637DAB49C7BB7FA, 0x5A1436706FA2760B)
    assert of(PROMPT, model="modèle \udc80") == (0x0B3FB61FE2276EE9, 0x9D15ED29CAD49BAF), (
        "a name that is no text has keys, too"
    )


@pytest.mark.parametrize("hash_seed", ["0", "7"])
def test_another_process_has_the_same_keys_with_any_hash_seed(hash_seed: str) -> None:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run([sys.executable, "-c", OTHER_PROCESS], env=env, check=True, capture_output=True, text=True)
    assert tuple(map(int, told.stdout.split())) == of(PROMPT)


def test_another_seed_changes_every_key() -> None:
    seeds = (0, 1, SEED, SEED ^ 1, (1 << 64) - 1)
    assert len({key for seed in seeds for key in of(PROMPT, seed=seed)}) == 2 * len(seeds)


def test_no_prompt_has_the_keys_of_another_ones_tools() -> None:
    """What is put into the chain in front of a prompt cannot be put into the prompt instead."""
    tools, salt, adapter = b"t" * 512, b"s" * 512, b"l" * 512
    pretended = of(tools + salt + adapter + PROMPT)
    assert not set(pretended) & set(of(PROMPT, tools=tools, cache_salt=salt, lora_path=adapter))
    assert of(PROMPT, tools=b"ab") != of(PROMPT, tools=b"a", cache_salt=b"b")
    assert of(PROMPT, tools=b"a") != of(PROMPT, cache_salt=b"a") != of(PROMPT, lora_path=b"a")
