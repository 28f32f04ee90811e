"""KV blocks: a pool with a prefix cache.

A pool of equal blocks. A *private* block holds tokens that no other request can use; a *shared* block is known by the
chained hash of the prompt up to its end, and counts its holders. A shared block without holders stays as cache; the
oldest is given up first when blank blocks run out. Blocks have no identity of their own: three counts and two tables
are the whole truth, so that a request's growth costs nothing but arithmetic. vLLM's queue mixes blank and cached free
blocks; taking the blank ones first is the one simplification.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence


class BlockPool:
    """All blocks of one engine; ``blank + cached + shared + private == total`` at all times."""

    __slots__ = ("_blank", "_cached", "_private", "_record", "_shared", "releases", "removed", "total")

    def __init__(self, total: int, *, record: bool = False) -> None:
        self.total = total
        self.releases = 0  # grows when blocks are released: a request that did not fit need not retry before
        self.removed: list[int] = []  # with `record`: hashes evicted since the owner last looked
        self._record = record
        self._blank = total
        self._private = 0
        self._shared: dict[int, int] = {}  # hash -> holders
        self._cached: OrderedDict[int, None] = OrderedDict()  # hashes without holders, oldest first

    @property
    def free(self) -> int:
        """Blocks that can be taken now, blank or cached."""
        return self._blank + len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def cached(self) -> int:
        return len(self._cached)

    def hashes(self) -> Iterator[int]:
        """Yields the hashes of all shared blocks, held or cached."""
        yield from self._shared
        yield from self._cached

    def match(self, hashes: Sequence[int], limit: int) -> int:
        """Returns how many leading blocks of this chain, at most `limit`, are in the pool."""
        count = 0
        for block_hash in hashes:
            if count >= limit or (block_hash not in self._shared and block_hash not in self._cached):
                break
            count += 1
        return count

    def idle_among(self, hashes: Sequence[int]) -> int:
        """Returns how many of these blocks are cached without a holder: taking them uses up free blocks."""
        return sum(1 for block_hash in hashes if block_hash in self._cached)

    def share(self, hashes: Sequence[int]) -> None:
        """Hold blocks that `match` found."""
        for block_hash in hashes:
            if block_hash in self._cached:
                del self._cached[block_hash]
                self._shared[block_hash] = 1
            else:
                self._shared[block_hash] += 1

    def take(self, count: int) -> None:
        """Take `count` private blocks, giving up the oldest cached blocks when blank ones run out."""
        assert count <= self.free
        while self._blank < count:
            oldest, _ = self._cached.popitem(last=False)
            if self._record:
                self.removed.append(oldest)
            self._blank += 1
        self._blank -= count
        self._private += count

    def publish(self, block_hash: int) -> bool:
        """Turn a private block into a shared one. Returns False if a twin exists already."""
        if block_hash in self._shared or block_hash in self._cached:
            return False
        assert self._private > 0
        self._private -= 1
        self._shared[block_hash] = 1
        return True

    def release(self, shared: Sequence[int], private: int) -> None:
        """Release a request's blocks. The end of its chain leaves the cache before its start."""
        assert private <= self._private
        self._private -= private
        self._blank += private
        self.releases += 1
        for block_hash in reversed(shared):
            holders = self._shared[block_hash]
            if holders > 1:
                self._shared[block_hash] = holders - 1
            else:
                del self._shared[block_hash]
                self._cached[block_hash] = None

    def clear_cache(self) -> None:
        self._blank += len(self._cached)
        self._cached.clear()

    def check(self) -> None:
        """Asserts the invariant, for tests and checkers."""
        assert self._blank >= 0
        assert self._private >= 0
        assert all(holders > 0 for holders in self._shared.values())
        assert not self._shared.keys() & self._cached.keys()
        assert self._blank + len(self._cached) + len(self._shared) + self._private == self.total
