"""Which prompts begin alike? A chain of hashes over a prompt's raw bytes, made once, at the edge.

Each key stands for a chunk of the prompt and all before it, so two requests agree for as many keys as their prompts
agree in whole chunks. Chunks grow with their depth (`PREFIX_ENDS`): a long prompt has not many more keys than a short
one, and small chunks (`routing.prefix_chunk`) reach less far into it. The bytes are hashed as they came: no tokenizer,
no JSON objects. The chain is seeded with everything that changes the engine's prompt (the model, an adapter, tools) or
separates caches (a cache salt).

Model: `key = XXH3-64(chunk, seed = previous key)`, and the first key is the hash of the model's name, seeded with 64
secret bits. All processes of a gateway, and all gateways of a group, have the same seed, so their keys agree, after a
restart too. Clients do not know it, so they can neither compute keys nor search for collisions. XXH3 is not a
cryptographic hash: an eavesdropper on a link between gateways may be able to find the seed. A collision costs a cache
miss, because the request goes to the wrong endpoint. It reveals nothing and mixes up no answers.

Roads not taken. Python's `hash()` is seeded differently in each process. Keyed BLAKE2b is cryptographic, and takes 33
µs instead of 5 for a prompt of 16 KB (docs/decisions/0086).

Anthropic's coding client puts a billing header with a hash of the request before its system prompt; engines drop it for
the sake of their caches, so it is left out here too.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from penstock.core.values.request import PREFIX_CHUNK_BYTES, PREFIX_ENDS, keys_within
from penstock.gateway.openai.fields import NOTHING, Text

PATHS: Final = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate", "/generate_stream"),
        *("/chat/completions", "/completions", "/completion", "/invocations", "/api/chat", "/api/generate"),
    }
)
_SEED_BYTES_MAX: Final = 256 << 10  # of tools and so on, hashed
_BILLING: Final = b"x-anthropic-billing-header"
_BILLING_BYTES: Final = 256  # it is the first block, or is none
_BLOCK_BYTES_MAX: Final = 8192
_BILLING_BLOCK: Final = re.compile(rb'\[\s*\{[^{}]*"' + _BILLING + rb'(?:[^"\\]|\\.)*"(?:[^{}]|\{[^{}]*\})*\}\s*,?')


class Cut:
    """How prompts are cut: the first chunks are of so many bytes, the later ones larger."""

    __slots__ = ("bytes_max", "chunk_bytes", "structs")

    def __init__(self, chunk_bytes: int) -> None:
        sizes = [(end - begin) * chunk_bytes for begin, end in pairwise((0, *PREFIX_ENDS))]
        self.chunk_bytes = chunk_bytes
        self.bytes_max = sum(sizes)  #: of a prompt, hashed
        self.structs = [Struct("".join([f"{size}s" for size in sizes[:count]])) for count in range(len(sizes) + 1)]


@lru_cache(maxsize=4)
def cut_at(chunk_bytes: int) -> Cut:
    """The same for the same size: it holds as many structs as there are keys."""
    return Cut(chunk_bytes)


USUAL: Final = cut_at(PREFIX_CHUNK_BYTES)


def keys(text: Text, model: str, seed: int, cut: Cut = USUAL) -> tuple[int, ...]:
    """Return the keys of a prompt's chunks, at most `PREFIX_KEYS_MAX`; none if it is shorter than a chunk.

    `seed`: 64 secret bits. Keys are equal only among processes that have the same.
    """
    bytes_max, absent = cut.bytes_max, NOTHING
    pieces: list[msgspec.Raw | bytes] = []
    for piece in (text.instructions, text.messages, text.prompt, text.input, text.inputs):
        if piece is not absent:
            pieces.append(piece)  # noqa: PERF401 - a comprehension is a call of its own
    if text.system is not absent:
        pieces.insert(0, _without_billing(bytes(memoryview(text.system)[:bytes_max])))
    if not pieces:
        return ()
    whole = memoryview(pieces[0])
    if len(pieces) > 1:
        whole = memoryview(b"".join([memoryview(piece)[:bytes_max] for piece in pieces]))
    count = keys_within(len(whole) // cut.chunk_bytes)
    if not count:
        return ()
    key = xxh3_64_intdigest(model.encode("utf-8", "surrogatepass"), seed)
    if text.tools is not absent or text.cache_salt is not absent or text.lora_path is not absent:
        for raw in (text.tools, text.cache_salt, text.lora_path):
            key = xxh3_64_intdigest(memoryview(raw)[:_SEED_BYTES_MAX], key)
        key = xxh3_64_intdigest(b"", key)  # this end is no chunk, so no prompt has the keys of another one's tools
    chain: list[int] = []
    for chunk in cut.structs[count].unpack_from(whole):
        key = xxh3_64_intdigest(chunk, key)
        chain.append(key)
    return tuple(chain)


def _without_billing(system: bytes) -> bytes:
    if _BILLING not in system[:_BILLING_BYTES]:
        return system
    block = _BILLING_BLOCK.match(system, 0, _BLOCK_BYTES_MAX)
    return system if block is None else b"[" + system[block.end() :]
