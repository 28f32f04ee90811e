"""Toy text: a prompt's tokens and blocks, and the engine's answer.

A token is four bytes of UTF-8, so every count can be checked by eye; an embedded picture is a thousand. Blocks are
hashed in a chain over the raw bytes of the prompt, seeded by the model, so two prompts share blocks exactly as far as
their bytes agree. The answer cycles through a list of words from an index given by the prompt's checksum, so every
engine answers a prompt alike.
"""

from __future__ import annotations

import re
import struct
import zlib
from hashlib import blake2b
from typing import Any

import msgspec

BYTES_PER_TOKEN = 4
WORDS = (
    " the", " water", " turns", " a", " wheel", " and", " many", " hands", " share", " one", " gate", " so",
    " that", " no", " stream", " runs", " dry", " while", " another", " floods", " past", " it", " each",
    " waits", " its", " turn", " until", " there", " is", " room", " below",
)  # fmt: skip
_WORD_BYTES = tuple(word.encode() for word in WORDS)


PICTURE_TOKENS = 1000  # of any size: about a large one in a large model
_DATA_URL = re.compile(rb'"data:[^",]{0,128};base64,[^"]*"')


def pictures_seen(raw: bytes) -> bytes:
    """Returns a prompt with each embedded picture replaced by a fixed number of tokens that identify it."""
    return _DATA_URL.sub(_seen, raw) if b";base64," in raw else raw


def _seen(picture: re.Match[bytes]) -> bytes:
    return b"%08x" % zlib.crc32(picture[0]) * (PICTURE_TOKENS * BYTES_PER_TOKEN // 8)


def token_count(prompt: bytes) -> int:
    return max(1, -(-len(prompt) // BYTES_PER_TOKEN))


def tokenize(prompt: bytes) -> list[int]:
    return [
        int.from_bytes(prompt[start : start + BYTES_PER_TOKEN], "big")
        for start in range(0, len(prompt), BYTES_PER_TOKEN)
    ]


def detokenize(tokens: list[int]) -> str:
    parts = [token.to_bytes(max(1, (token.bit_length() + 7) // 8), "big") for token in tokens]
    return b"".join(parts).decode("utf-8", "replace")


def prompt_bytes(raw: bytes) -> bytes:
    """Returns the bytes of a prompt field: of a string, or four per token id; other values unchanged."""
    value: Any = msgspec.json.decode(raw)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        if all(isinstance(item, int) and 0 <= item < 2**32 for item in value):
            return struct.pack(f">{len(value)}I", *value)
        if all(isinstance(item, str) for item in value):
            return "".join(value).encode()
    return raw


def block_hashes(prompt: bytes, *, block_size: int, seed: str) -> tuple[int, ...]:
    """Returns one chained 63-bit hash for each full block of the prompt; empty for less than a block."""
    size = block_size * BYTES_PER_TOKEN
    hashes: list[int] = []
    digest = blake2b(seed.encode(), digest_size=8).digest()
    for start in range(0, len(prompt) - size + 1, size):
        digest = blake2b(digest + prompt[start : start + size], digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "big") >> 1)
    return tuple(hashes)


def first_word(prompt: bytes) -> int:
    return zlib.crc32(prompt) % len(WORDS)


def word(index: int) -> bytes:
    return _WORD_BYTES[index % len(_WORD_BYTES)]


def text(start: int, count: int) -> str:
    return "".join(WORDS[(start + index) % len(WORDS)] for index in range(count))


def vector(prompt: bytes, dimensions: int = 8) -> list[float]:
    """Returns a small embedding: deterministic, of about unit length."""
    digest = blake2b(prompt, digest_size=2 * dimensions).digest()
    return [value / 32768 / dimensions**0.5 for value in struct.unpack(f">{dimensions}h", digest)]
