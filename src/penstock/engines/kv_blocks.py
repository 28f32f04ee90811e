"""Token blocks: under which key is a block of a prompt known, whichever engine holds it?

Engines name blocks by hashes of their own (seeded, in half a dozen ways), which we never compute. Our key of a block is
chained over token ids alone, so that it can be made from a prompt as well as from an engine's event; an engine's hash
is only looked up. Copies are counted: a prompt of whole blocks stores its last block twice, and the block stays until
both copies are gone, and until no slower tier that counts holds it. Events of such a tier name blocks by their hashes
alone, so it counts for blocks that the engine computed while its events were followed. A block with an unknown parent
is left out and counts as absent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from penstock.engines.kv_events import BlockHash, Cleared, Event, Offloaded, Removed, Stored

BLOCKS_MAX = 500_000  # per endpoint, all ranks together: 8 million tokens in blocks of 16; about 120 MB
RANKS_MAX = 64
ADAPTERS_MAX = 10_000
PROMPT_BLOCKS_MAX = 65_536  # of one prompt; a million tokens in blocks of 16


def prompt_keys(tokens: Sequence[int], block_tokens: int, *, adapter: str = "", salt: str = "") -> list[int]:
    """Returns the keys of a prompt's whole blocks, without one that ends with the last token: it is always computed."""
    blocks = min((len(tokens) - 1) // block_tokens, PROMPT_BLOCKS_MAX)
    if blocks < 1:
        return []
    return _chain(_root(block_tokens, adapter, salt), tokens[: blocks * block_tokens], block_tokens, ())


def _root(block_tokens: int, adapter: str, salt: str) -> bytes:
    return blake2b(f"{block_tokens}\0{adapter}\0{salt}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _chain(parent: bytes, tokens: Sequence[int], block_tokens: int, extras: Sequence[bytes]) -> list[int]:
    data = array("I", tokens).tobytes()
    size = len(data) // len(tokens) * block_tokens
    keys: list[int] = []
    for index, start in enumerate(range(0, len(data), size)):
        extra = extras[index] if extras else b""
        parent = blake2b(parent + data[start : start + size] + extra, digest_size=8).digest()
        keys.append(int.from_bytes(parent, "big"))
    return keys


class Changes(msgspec.Struct):
    """Changes of an endpoint's blocks, by key: first `cleared`, then the others in any order."""

    cleared: bool = False
    lost: bool = False  #: the blocks of all ranks are unknown again
    forgotten: bool = False  #: what was removed is unknown again, and may be there
    stored: dict[int, None] = msgspec.field(default_factory=dict)
    removed: dict[int, None] = msgspec.field(default_factory=dict)


class EndpointBlocks:
    """The blocks that one endpoint holds, on any of its data-parallel ranks."""

    def __init__(self, *, blocks_max: int = BLOCKS_MAX) -> None:
        self.block_tokens = 0  #: tokens per block, from its events; 0: no event yet
        self.adapters: set[str] = set()  #: those with blocks ever held here
        self.orphans = 0  #: blocks left out because their parent is not known
        self.overflowed = 0  #: blocks left out because there were too many
        self._room = blocks_max
        self._ranks: dict[int, _RankBlocks] = {}
        self._holders: dict[int, int] = {}  # by key: how many hashes on all ranks stand for the block

    def __len__(self) -> int:
        return len(self._holders)

    def apply(self, rank: int, events: Iterable[Event]) -> Changes:
        """Apply a message of `rank`. Returns the changes."""
        changes = Changes()
        for event in events:
            if isinstance(event, Stored):
                self._store(rank, event, changes)
            elif isinstance(event, Offloaded):
                self._offload(rank, event)
            elif isinstance(event, Removed):
                self._remove(rank, event, changes)
            elif isinstance(event, Cleared):
                self._clear(rank, changes)
        return changes

    def forget(self, rank: int) -> Changes:
        """Forget the blocks of `rank`, of which nothing is known any more. Returns the changes."""
        changes = Changes()
        self._clear(rank, changes)
        changes.lost = not self._ranks
        changes.forgotten = True
        return changes

    def held(self, keys: Sequence[int]) -> int:
        """Returns how many of a prompt's blocks the endpoint holds, from the prompt's start to the first gap."""
        holders = self._holders
        return next((index for index, key in enumerate(keys) if key not in holders), len(keys))

    def _store(self, rank: int, event: Stored, changes: Changes) -> None:
        blocks = self._ranks.get(rank)
        if blocks is None:
            if len(self._ranks) >= RANKS_MAX:
                return
            blocks = self._ranks[rank] = _RankBlocks(event.group)
        if event.group != blocks.group:
            return  # one group that keeps whole prefixes suffices: the first one
        if event.parent is None:
            parent = _root(event.block_tokens, event.adapter, event.salt)
        elif (key := blocks.keys.get(event.parent)) is not None:
            parent = key.to_bytes(8, "big")
        else:
            self.orphans += len(event.hashes)
            return
        if event.adapter and len(self.adapters) < ADAPTERS_MAX:
            self.adapters.add(event.adapter)
        self.block_tokens = event.block_tokens
        for block, key in zip(
            event.hashes, _chain(parent, event.tokens, event.block_tokens, event.extras), strict=True
        ):
            if block in blocks.keys:
                blocks.copies[block] = blocks.copies.get(block, 1) + 1
            elif not self._room:
                self.overflowed += 1
            else:
                self._room -= 1
                blocks.keys[block] = key
                self._came(key, changes)

    def _offload(self, rank: int, event: Offloaded) -> None:
        blocks = self._ranks.get(rank)
        if blocks is not None and event.group in (None, blocks.group):
            blocks.offloaded.update([block for block in event.hashes if block in blocks.keys])

    def _remove(self, rank: int, event: Removed, changes: Changes) -> None:
        blocks = self._ranks.get(rank)
        if blocks is None or event.group not in (None, blocks.group):
            return
        for block in event.hashes:
            if block not in blocks.keys:
                continue
            copies = blocks.copies.get(block, 1)
            if event.offloaded:
                blocks.offloaded.discard(block)
            elif copies:
                copies -= 1
                if copies == 1:
                    del blocks.copies[block]
                else:
                    blocks.copies[block] = copies
            if not copies and block not in blocks.offloaded:
                blocks.copies.pop(block, None)
                self._room += 1
                self._went(blocks.keys.pop(block), changes)

    def _clear(self, rank: int, changes: Changes) -> None:
        blocks = self._ranks.pop(rank, None)
        if blocks is None:
            return
        self._room += len(blocks.keys)
        if not self._ranks:
            self._holders.clear()
            changes.cleared = True
            changes.stored.clear()
            changes.removed.clear()
            return
        for key in blocks.keys.values():
            self._went(key, changes)

    def _came(self, key: int, changes: Changes) -> None:
        holders = self._holders.get(key, 0)
        self._holders[key] = holders + 1
        if not holders:
            if key in changes.removed:
                del changes.removed[key]
            else:
                changes.stored[key] = None

    def _went(self, key: int, changes: Changes) -> None:
        holders = self._holders[key] - 1
        if holders:
            self._holders[key] = holders
            return
        del self._holders[key]
        if key in changes.stored:
            del changes.stored[key]
        else:
            changes.removed[key] = None


class _RankBlocks:
    """One rank's own names (hashes) for its blocks."""

    __slots__ = ("copies", "group", "keys", "offloaded")

    def __init__(self, group: int) -> None:
        self.group = group
        self.keys: dict[BlockHash, int] = {}
        self.copies: dict[BlockHash, int] = {}  # in the engine's own tier, unless it is one
        self.offloaded: set[BlockHash] = set()  # those of `keys` that a slower tier holds
