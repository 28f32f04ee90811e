"""Keys issued at runtime, and publishing their changes.

They are kept in the store of files and batches, which several gateways may share. Each gateway polls for others'
changes twice a second, so a key revoked anywhere stops working everywhere within a second; local changes are published
at once. While the store is down, the keys that were read last go on working.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from penstock.batch.store.port import StoreError
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import MadeKey

logger = logging.getLogger(__name__)

LOOK_S = 0.5  # half of the promised time: the other half is for a busy store


class KeyBook:
    """All made keys, as the store has them."""

    def __init__(self, store: StoreThread, tell: Callable[[Sequence[MadeKey]], None]) -> None:
        self._store = store
        self._tell = [tell]
        self._seen: str | None = None  # the last change that was read; None: read all the next time
        self._task: asyncio.Task[None] | None = None
        self.keys: dict[str, MadeKey] = {}  #: by name
        self.trouble: str | None = None  #: why the store can't be read, in words for operators

    def tell_workers(self, tell: Callable[[bytes], None]) -> None:
        """Publish all keys, as JSON, whenever they have changed."""
        self._tell.append(lambda keys: tell(msgspec.json.encode(keys)))

    def start(self) -> None:
        """Look from now on. Returns at once, also if the store can't be reached yet."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def add(self, key: MadeKey) -> None:
        """Keep a key. It works when this returns. Raises `NameTakenError`, `TooManyKeysError` or `StoreError`."""
        await self._store.do(lambda store: store.add_key(key))
        self._know(None, [*self.keys.values(), key])

    async def change(self, name: str, rights: str) -> MadeKey | None:
        """Give a key other rights, which hold when this returns. None: it is gone. Raises `StoreError`."""
        if not await self._store.do(lambda store: store.change_key(name, rights)) or name not in self.keys:
            return None
        changed = msgspec.structs.replace(self.keys[name], rights=rights)
        self._know(None, [changed if key.name == name else key for key in self.keys.values()])
        return changed

    async def erase(self, name: str) -> bool:
        """Revoke a key. It no longer works when this returns. False: there was none. Raises `StoreError`."""
        erased = await self._store.do(lambda store: store.erase_key(name))
        self._know(None, [key for key in self.keys.values() if key.name != name])
        return erased

    async def _watch(self) -> None:
        while True:
            try:
                await self._look()
                self.trouble = None
            except StoreError as error:
                if self.trouble is None:
                    logger.warning("cannot read issued keys; those known so far still work: %s", error)
                self.trouble = str(error)
            except Exception:
                logger.exception("unexpected error while reading issued keys")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        seen = self._seen
        found = await self._store.do(lambda store: store.keys(seen))
        if found is not None:
            self._know(*found)

    def _know(self, seen: str | None, keys: Sequence[MadeKey]) -> None:
        """These there are now. The store serialises jobs, so no poll restores a revoked key."""
        self._seen = seen
        self.keys = {key.name: key for key in keys}
        for tell in self._tell:
            tell(keys)
