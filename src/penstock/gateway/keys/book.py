"""Which keys were made while gateways ran, and how does everybody who looks a key up hear of a change?

They are kept in the store of files and batches, which several gateways may share. Each looks twice a second whether
another one has changed anything, so a key that is withdrawn anywhere works nowhere a second later; what was changed
here is told at once. While the store is down, the keys that were read last go on working.
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

LOOK_S = 0.5  # half of what is promised: the other half is for a store that is busy


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
        """Tell all keys, as JSON, whenever they have changed."""
        self._tell.append(lambda keys: tell(msgspec.json.encode(keys)))

    def start(self) -> None:
        """Look from now on. Returns at once, also if the store can't be reached yet."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def add(self, key: MadeKey) -> None:
        """Keep a key. It works when this returns. Raises `NameTakenError`, `TooManyKeysError` or `StoreError`."""
        await self._store.do(lambda store: store.add_key(key))
        self._know(None, [*self.keys.values(), key])

    async def erase(self, name: str) -> bool:
        """Withdraw a key. It works no more when this returns. False: there was none. Raises `StoreError`."""
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
                    logger.warning("made keys can't be read; those known so far go on working: %s", error)
                self.trouble = str(error)
            except Exception:
                logger.exception("a fault while made keys were read")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        """Read the keys if they have changed, and tell of it."""
        seen = self._seen
        found = await self._store.do(lambda store: store.keys(seen))
        if found is not None:
            self._know(*found)

    def _know(self, seen: str | None, keys: Sequence[MadeKey]) -> None:
        """These there are now. The store does one job after the other, so no look brings back what is withdrawn."""
        self._seen = seen
        self.keys = {key.name: key for key in keys}
        for tell in self._tell:
            tell(keys)
