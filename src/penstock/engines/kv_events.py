"""KV events of vLLM and SGLang: blocks stored and removed.

A payload is msgpack of `[ts, [event, ...], dp_rank]`. Since the middle of 2026 vLLM sends events as maps with a `type`,
as SGLang does; before, it sent arrays that begin with the type. Both come out the same here. Block hashes are opaque
(an integer or bytes): only their equality matters. The attributes that distinguish prompts of equal tokens (adapter,
salt, pictures) are in different fields per engine, and are unified too.

Unintelligible parts become None or are left out, and never raise: the sender may be anyone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

BlockHash = int | bytes | str

EVENTS_MAX = 100_000  # in one message: a step stores a few thousand blocks at most
WHOLE_PREFIX = frozenset({"full_attention", "mla_attention", "sink_full_attention"})  # groups that keep every block
MEDIUM = "GPU"  # the tier that the engine itself reads
# Loading a token's 0.1 MB from the host's memory (25 GB/s) takes a tenth of computing it, so a block there counts as
# held. From disks and other machines it takes about as long as computing it, so those tiers do not count.
OFFLOADED = frozenset({"CPU", "CPU_PINNED"})

_ARRAY_STORED = (
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx", "kv_cache_spec_kind",
)  # fmt: skip
_ARRAY_REMOVED = ("type", "block_hashes", "medium", "group_idx")


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks that are there now, in a row behind `parent` (None: from the prompt's first token on)."""

    hashes: Sequence[BlockHash]
    parent: BlockHash | None
    tokens: Sequence[int]
    block_tokens: int
    adapter: str = ""
    salt: str = ""
    extras: Sequence[bytes] = ()  #: per block, attributes that distinguish it from one of equal tokens
    group: int = 0


class Offloaded(msgspec.Struct, frozen=True, gc=False):
    """Blocks of which the host's memory holds a copy now; `group` None: of every group."""

    hashes: Sequence[BlockHash]
    group: int | None = None


class Removed(msgspec.Struct, frozen=True, gc=False):
    """Blocks that are gone, from the engine's own tier or `offloaded` ones; `group` None: from every group."""

    hashes: Sequence[BlockHash]
    group: int | None = None
    offloaded: bool = False


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """All blocks are gone."""


Event = Stored | Offloaded | Removed | Cleared


class EventBatch(msgspec.Struct, frozen=True, gc=False):
    """The events of one message."""

    events: Sequence[Event]
    rank: int | None  #: of the data-parallel engine that sent it
    strange: int = 0  #: events in it that could not be understood


_decode = msgspec.msgpack.Decoder().decode


def decode(payload: bytes) -> EventBatch | None:
    """Returns the events of a message; None if `payload` is no such message."""
    try:
        message = _decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, TypeError, ValueError):
        return None
    if not isinstance(message, list) or len(message) < 2 or not isinstance(message[1], list):
        return None
    rank = message[2] if len(message) > 2 and isinstance(message[2], int) else None
    events: list[Event] = []
    strange = max(0, len(message[1]) - EVENTS_MAX)
    for raw in message[1][:EVENTS_MAX]:
        fields = _fields(raw)
        event = None if fields is None else _event(fields)
        if event is not None:
            events.append(event)
        elif fields is None or not _elsewhere(fields):
            strange += 1
    return EventBatch(events, rank, strange)


def _fields(raw: object) -> Mapping[str, Any] | None:
    """Returns an event as a map, whichever form it came in; None if it is neither."""
    if isinstance(raw, dict):
        return raw
    if isinstance(raw, list) and raw:
        return dict(zip(_ARRAY_STORED if raw[0] == "BlockStored" else _ARRAY_REMOVED, raw, strict=False))
    return None


def _elsewhere(fields: Mapping[str, Any]) -> bool:
    """True if an event is about a tier that does not count, or about a group that keeps only part of a prefix."""
    kind, medium = fields.get("kv_cache_spec_kind"), fields.get("medium")
    counts = medium is None or (isinstance(medium, str) and (medium == MEDIUM or medium in OFFLOADED))
    return not counts or (isinstance(kind, str) and kind not in WHOLE_PREFIX)


def _event(fields: Mapping[str, Any]) -> Event | None:
    kind = fields.get("type")
    if kind == "AllBlocksCleared":
        return Cleared()
    hashes = _hashes(fields.get("block_hashes"))
    if kind not in ("BlockStored", "BlockRemoved") or _elsewhere(fields) or hashes is None:
        return None
    group = fields.get("group_idx")
    group = group if isinstance(group, int) else None
    offloaded = fields.get("medium") in OFFLOADED
    if kind == "BlockRemoved":
        return Removed(hashes, group, offloaded)
    return Offloaded(hashes, group) if offloaded else _stored(fields, hashes, group or 0)


def _hashes(value: object) -> list[BlockHash] | None:
    return value if isinstance(value, list) and all(isinstance(item, int | bytes | str) for item in value) else None


def _stored(fields: Mapping[str, Any], hashes: list[BlockHash], group: int) -> Stored | None:
    tokens, size, parent = fields.get("token_ids"), fields.get("block_size"), fields.get("parent_block_hash")
    if not (hashes and isinstance(tokens, list) and isinstance(size, int) and size > 0):
        return None
    if len(tokens) != size * len(hashes):  # a block that is not full, or pairs of tokens
        return None
    if not all(type(token) is int and 0 <= token < 2**32 for token in tokens):
        return None
    if not (parent is None or isinstance(parent, int | bytes | str)):
        return None
    adapter = fields.get("lora_name")
    if not isinstance(adapter, str):  # old releases number adapters: kept apart, no request hits them
        adapter = "" if fields.get("lora_id") is None else f"#{fields['lora_id']}"
    salt = fields.get("cache_salt")
    salt = salt if isinstance(salt, str) else ""
    extras: list[bytes] = []
    told = fields.get("extra_keys")
    for index, keys in enumerate(told[: len(hashes)] if isinstance(told, list) else ()):
        rest = list(keys) if isinstance(keys, list) else []
        if rest and rest[0] == adapter:
            del rest[0]
        if rest and index == 0 and parent is None and isinstance(rest[-1], str):
            salt = rest.pop()
        extras.append(msgspec.msgpack.encode(rest) if rest else b"")
    told_all = len(extras) == len(hashes) and any(extras)
    return Stored(hashes, parent, tokens, size, adapter, salt, extras if told_all else (), group)
