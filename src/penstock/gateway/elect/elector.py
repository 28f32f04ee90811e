"""Runs an election: polls the store, feeds the contender, and reports each change.

A decider asks once a second, the others twice. One query is in flight, for at most a second. An abandoned query is
harmless: it overwrites only the record read before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
from collections.abc import Callable
from typing import Final

from penstock import clock
from penstock.gateway.process import cancel
from penstock.share.election import Claim, Contender, ElectionError, Follows, Leads, Record, RecordStore, Standing

logger = logging.getLogger(__name__)

ATTEMPT_S: Final = 1.0


class Elector:
    """An `Election` by a store."""

    def __init__(self, store: RecordStore, *, address: str, now: Callable[[], float] = clock.now) -> None:
        """`address` is this gateway's address for the others."""
        self._store = store
        self._now = now
        # A restarted process has no memory of its decisions, so it is another candidate.
        self._contender = Contender(secrets.token_hex(4), address, now=self._now())
        self._changed: Callable[[Standing], None] = lambda _standing: None
        self._told: Standing = self._contender.at(self._now())
        self._logged: str | None = None
        self._lapse: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._knows = False  # the store's record: read or written by us, without failures since

    # --- the port -------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        return self._store.where

    @property
    def standing(self) -> Standing:
        return self._contender.at(self._now())

    @property
    def since_s(self) -> float:
        return self._contender.since_s

    @property
    def trouble(self) -> str | None:
        return self._contender.trouble

    @property
    def floor(self) -> int:
        """The highest epoch known."""
        return self._contender.floor

    async def run(self, changed: Callable[[Standing], None]) -> None:
        """Take part until cancelled, or closed."""
        self._changed = changed
        changed(self._told)
        self._task = asyncio.current_task()
        try:
            while True:
                self._wake.clear()
                await self._ask()
                self._tell()
                await self._pause(self._contender.asks_again_s() - self._now())
        finally:
            if self._lapse is not None:
                self._lapse.cancel()

    def leads(self) -> int | None:
        return self._contender.leads(self._now())

    def at_least(self, epoch: int) -> None:
        if epoch > self._contender.floor:
            self._contender.at_least(epoch)
            self.look_now()

    def followed(self, at_s: float) -> None:
        self._contender.followed(at_s, self._now())

    def hears(self, at_s: float) -> None:
        self._contender.hears(at_s)

    def look_now(self) -> None:
        self._wake.set()

    def step_down(self) -> None:
        if self.leads() is not None:
            logger.info("stepping down as leader")
        self._contender.steps_down(self._now())
        self._tell()
        self.look_now()

    async def close(self) -> None:
        self._contender.steps_down(self._now(), rest_s=math.inf)
        self._tell()
        await cancel(self._task, wait_s=ATTEMPT_S)
        with contextlib.suppress(ElectionError, TimeoutError):  # then it lapses
            await self._give_back(await self._read())
        await self._store.close()

    # --- its turns ------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        self._contender.asks(self._now())
        try:
            await self._write_or_read()
        except TimeoutError:
            self._failed(f" does not answer within {ATTEMPT_S:g} s")
        except ElectionError as error:
            self._failed(f": {error}")
        except Exception as error:
            logger.exception("election")
            self._failed(f": {type(error).__name__}")

    def _failed(self, how: str) -> None:
        self._knows = False
        self._contender.failed(f"{self.where}{how}", self._now())

    async def _write_or_read(self) -> None:
        contender = self._contender
        if contender.leads(self._now()) is None or not self._knows:
            await self._look()
        if not contender.is_candidate(self._now()):
            await self._give_back(contender.seen)
        if not await self._claimed():
            await self._look()  # the record differs from the known one
            await self._claimed()

    async def _look(self) -> None:
        self._contender.saw(await self._read(), self._now())
        self._knows = True

    async def _claimed(self) -> bool:
        """Write the pending claim. Returns False if another has written meanwhile."""
        contender = self._contender
        claim = contender.claim(self._now())
        if claim is None:
            return True
        sent_s = self._now()
        written = await self._write(contender.seen, claim)
        if written is not None:
            contender.wrote(written, sent_s, self._now())
        return written is not None

    async def _read(self) -> Record:
        async with asyncio.timeout(ATTEMPT_S):
            return await self._store.read()

    async def _write(self, over: Record, claim: Claim) -> Record | None:
        async with asyncio.timeout(ATTEMPT_S):
            return await self._store.write(over, claim)

    async def _give_back(self, record: Record) -> None:
        """Resign in the store if its record is ours and we no longer lead."""
        contender = self._contender
        if record.id == contender.id and contender.leads(self._now()) is None:
            contender.saw(await self._write(record, contender.given_back()) or record, self._now())

    async def _pause(self, for_s: float) -> None:
        try:
            async with asyncio.timeout(max(for_s, 0.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        """Report changes, and wake up when our term would end."""
        contender, now = self._contender, self._now()
        standing = contender.at(now)
        if contender.trouble != self._logged:
            self._logged = contender.trouble
            if self._logged is not None:
                logger.warning("election: %s", self._logged)
            else:
                logger.info("election: %s answers", self.where)
        if standing != self._told:
            self._told = standing
            logger.info("election: %s", _said(standing))
            self._changed(standing)
        if self._lapse is not None:
            self._lapse.cancel()
            self._lapse = None
        if isinstance(standing, Leads):
            self._lapse = asyncio.get_running_loop().call_later(max(contender.until_s - now, 0.0), self._tell)


def _said(standing: Standing) -> str:
    match standing:
        case Leads(epoch):
            return f"this gateway decides, in epoch {epoch}"
        case Follows(address, epoch):
            return f"{address} decides, in epoch {epoch}"
        case _:
            return f"no leader: {standing.why}"
