"""From counts in memory to the store, off the way of requests.

Twice a second all rows since the last addition are added in one transaction, so a `kill -9` loses a second at most.
While the store can't be written, rows gather in memory (bounded, `use_counts.py`). An addition is repeated under the
same number until the store confirms it, so a lost answer counts nothing twice. Rows older than `usage.keep` are erased.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator

from penstock.batch.store.port import StoreError
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import UsageAsked, UsageRow
from penstock.config.model import Settings
from penstock.gateway.telemetry.exposition import level
from penstock.gateway.usage.use_counts import HOUR_S, UseCounts

logger = logging.getLogger(__name__)

ADD_S = 0.5  # half of the promised second: the other half is for workers' reports and a busy store
PURGE_S = 600.0


class UsageBook:
    """The ledger in the store."""

    def __init__(
        self, store: StoreThread, ledger: UseCounts, settings: Callable[[], Settings], wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._settings = settings
        self._wall = wall
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._unconfirmed: list[UsageRow] = []  # of the addition with that number
        self._keep_s = 0.0  # as of the last look for old rows
        self._adding = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._purge_s = 0.0  # Unix time of the next look for old rows
        self.trouble: str | None = None  #: why the store can't be written, in words for operators

    def start(self) -> None:
        """Add from now on. Returns at once, also if the store can't be reached yet."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Add the remaining rows."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _ in range(2):  # an addition that was interrupted, and the rows since
            await self._try()

    def lines(self) -> Iterator[str]:
        text = "Whether the ledger of use was written lately; otherwise it is counted in memory."
        yield from level("penstock_usage_store_up", text, float(self.trouble is None))
        text = "Requests that the ledger counts as `other`, because there were too many rows."
        yield from level("penstock_usage_folded_requests", text, float(self._ledger.folded))

    async def asked(self, asked: UsageAsked) -> list[UsageRow]:
        """Returns what the ledger has, this moment's requests included. Raises StoreError."""
        await self._add()
        return await self._store.do(lambda store: store.usage(asked))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ADD_S)
            await self._try()

    async def _try(self) -> None:
        try:
            await self._add()
            await self._purge()
            self.trouble = None
        except StoreError as error:
            if self.trouble is None:
                logger.warning("the ledger of use is counted in memory: `store` can't be written: %s", error)
            self.trouble = str(error)
        except Exception:
            logger.exception("unexpected error while writing the ledger of use")

    async def _add(self) -> None:
        async with self._adding:
            if not self._unconfirmed:
                self._unconfirmed = self._ledger.take()
                self._number += 1
            if self._unconfirmed:
                writer, number, rows, now = self._writer, self._number, self._unconfirmed, self._wall()
                await self._store.do(lambda store: store.add_usage(writer, number, rows, now))
                self._unconfirmed = []

    async def _purge(self) -> None:
        now, keep_s = self._wall(), self._settings().usage.keep
        if not keep_s or (now < self._purge_s and keep_s == self._keep_s):  # without a ledger, earlier rows stay
            return
        self._keep_s = keep_s
        before = int((now - self._keep_s) // HOUR_S)
        if not await self._store.do(lambda store: store.purge_usage(before, now)):
            self._purge_s = now + PURGE_S
