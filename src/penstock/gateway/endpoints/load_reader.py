"""Reads the load of an endpoint from its metrics page, its cheaper load path and the load headers of its answers.

A reading never mixes two moments of one number: if an engine has a load path, running, waiting and memory come from
there, and the page adds only its counters. The time of a reading is the time of its request. A page that is slow,
missing or invalid gives no reading, and by itself neither opens nor closes the endpoint (docs/design.md#load).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import msgspec

from penstock.core.endpoints.ledger import restarted_between
from penstock.core.values.observation import Glimpse, Observation
from penstock.engines import orca
from penstock.engines.base import Engine, Facts, Load, PageReader
from penstock.engines.page import THIN_FROM_BYTES, plain, thinned
from penstock.gateway.endpoints.probe import Ask, ProbeAnswer
from penstock.http.client.pool import UpstreamErrorKind

AskPort = Callable[[int], Ask]  #: asks the same host at another port
GLIMPSE_INTERVAL_S = 0.05  # an engine's gauges move once per step: reading them more often brings nothing new
TRIES_BEFORE_GIVING_UP = 3  # then a path that never answered is left alone until the engine restarts


class LoadReader:
    """Reads the load of one endpoint. Call `use` first, and again after the engine has restarted."""

    def __init__(self, ask: Ask, now: Callable[[], float], ask_port: AskPort) -> None:
        self._ask = ask
        self._ask_port = ask_port
        self._now = now
        self._pages: PageReader | None = None
        self._engine: Engine | None = None
        self._metrics_at = ""  # the path of the page; empty: try all that the engine may have
        self._load_path = ""
        self._load_misses = 0
        self._door_path = ""
        self._door_misses = 0
        self._last: Observation | None = None
        self._heard_s = -math.inf
        self._took_s = 0.0  # how long the engine took to answer with its last page
        self.facts = Facts()  #: of the last page, besides load
        self.answered = False  #: the last reading got any answer
        self.unsaid = False  #: the last answer came without load, which is no failure
        self.trouble = ""  #: a fault of the page for the log; empty if there is none
        self.restarted = False  #: the last full reading came from another process

    def use(self, engine: Engine) -> None:
        """Start again, because the endpoint is a new process of this `engine`."""
        self._engine = engine
        self._pages = PageReader(engine) if engine.series is not None else None
        self._metrics_at = ""
        self._load_path = engine.load_path
        self._load_misses = 0
        self._door_path = engine.door_path
        self._door_misses = 0
        self._last = None
        self.facts = Facts()

    @property
    def reads(self) -> bool:
        """True if this engine reports its load."""
        return self._pages is not None or bool(self._load_path)

    @property
    def has_page(self) -> bool:
        """True if a valid metrics page was found."""
        return bool(self._metrics_at)

    @property
    def _cheap(self) -> bool:
        """True if the load path has answered: it is cheaper than the page and reports as much."""
        return bool(self._load_path) and self._load_misses < 0

    async def full(self) -> Observation | None:
        """Read every signal of the engine. Returns None if no load could be read; see `unsaid` and `restarted`."""
        assert self._engine is not None
        asked_s = self._now()
        self.answered = self.unsaid = False
        reading = await self._page(asked_s)
        load = None
        if self._load_path and (reading is None or self._engine.load_leads):
            load = await self._load()
        reading = _fused(reading, load, asked_s=asked_s)
        if reading is not None and self._door_path:
            reading = await self._with_door(reading)
        before, self._last = self._last, reading or self._last
        self.restarted = before is not None and reading is not None and restarted_between(before, reading)
        return reading

    async def fast(self) -> Observation | None:
        """Read the signals that admission needs, with the counters of the last page. None as for `full`.

        An engine with nothing cheaper than its page gets a full reading.
        """
        assert self._engine is not None
        asked_s = self._now()
        if not (self._cheap and (self._engine.load_leads or self._last is None)):
            return await self.full()
        self.answered = self.unsaid = False
        return _fused(self._last, await self._load(), asked_s=asked_s)

    def heard(self, header: bytes) -> Glimpse | None:
        """Read the load header of an answer (ORCA), which the engine wrote about now.

        Returns None if the header is invalid, or comes too soon after the last one to be news.
        """
        asked_s = self._now() - self._took_s
        if asked_s < self._heard_s + GLIMPSE_INTERVAL_S or (load := orca.load(header)) is None:
            return None
        self._heard_s = asked_s
        return Glimpse(asked_s=asked_s, waiting=load.waiting, kv_usage=load.kv_usage)

    async def _page(self, asked_s: float) -> Observation | None:
        pages, engine = self._pages, self._engine
        if pages is None or engine is None:
            return None
        for path in (self._metrics_at,) if self._metrics_at else engine.metrics:
            answer = await self._get(path)
            took_s = self._now() - asked_s
            self.trouble = _trouble(answer)
            self.answered = self.answered or bool(answer.status)
            if not answer.ok:
                continue
            reading = pages.again(answer.body, asked_s=asked_s)
            if reading is None:
                page = await _readable(answer.body)
                if (reading := pages.observation(page, asked_s=asked_s)) is None:
                    continue
                self.facts = pages.facts(page)
            self._metrics_at = _led_to(path, answer.path)
            self._took_s = took_s
            return reading
        return None

    async def _with_door(self, reading: Observation) -> Observation:
        """Add the number of requests in the engine's HTTP server, accepted or not.

        A count of 0 while the engine has work is a miss; after some misses it is not asked for again.
        """
        assert self._engine is not None
        assert self._engine.door is not None
        answer = await self._ask(self._door_path)
        in_all = self._engine.door(answer.json())
        if in_all is None or (in_all == 0 and reading.running + reading.waiting > 0):
            self._door_misses += bool(answer.status)
            if self._door_misses >= TRIES_BEFORE_GIVING_UP:
                self._door_path = ""
            return reading
        return msgspec.structs.replace(reading, in_all=in_all)

    async def _get(self, path: str) -> ProbeAnswer:
        if not path.startswith(":"):
            return await self._ask(path)
        port, slash, rest = path[1:].partition("/")
        return await self._ask_port(int(port))(slash + rest)

    async def _load(self) -> Load | None:
        assert self._engine is not None
        assert self._engine.load is not None
        answer = await self._ask(self._load_path)
        self.answered = self.answered or bool(answer.status)
        load = self._engine.load(answer.json()) if answer.ok else None
        self.unsaid = load is not None and load.waiting is None
        if load is not None:
            self._load_misses = -1
        elif answer.status and self._load_misses >= 0:
            self._load_misses += 1
            if self._load_misses >= TRIES_BEFORE_GIVING_UP:
                self._load_path = ""
        return load


def _trouble(answer: ProbeAnswer) -> str:
    """Returns why a page cannot be read; empty if it can."""
    if answer.refuses_key:
        return f"its metrics page refuses the gateway's key ({answer.status})"
    if answer.location:
        return f"its metrics page redirects to {answer.location[:200]}, which is outside the endpoint"
    if answer.failure is not None and answer.failure.error.kind is UpstreamErrorKind.PROTOCOL:
        return f"its metrics page can't be read: {answer.failure.error.detail}"
    return ""


def _led_to(path: str, redirected: str) -> str:
    """Returns the path of a page after a redirect, with its port if that is another one."""
    if not redirected:
        return path
    return path[: path.index("/")] + redirected if path.startswith(":") else redirected


async def _readable(page: bytes) -> bytes:
    """Reduce a page to the lines that may matter, in steps of a few milliseconds."""
    page = plain(page)
    if len(page) <= THIN_FROM_BYTES:
        return page
    pieces: list[bytes] = []
    at = 0
    while at < len(page):
        end = page.find(b"\n", at + THIN_FROM_BYTES) + 1 or len(page)
        pieces.append(thinned(page[at:end]))
        at = end
        await asyncio.sleep(0)
    return b"".join(pieces)


def _fused(page: Observation | None, load: Load | None, *, asked_s: float) -> Observation | None:
    """Returns one reading with the numbers of `load` and the counters of `page`, which may be older.

    Without usable numbers in `load`, returns the page if it was asked for just now, otherwise None.
    """
    if load is None or load.running is None or load.waiting is None:
        return page if page is None or page.asked_s == asked_s else None
    if page is None:
        return Observation(asked_s=asked_s, running=load.running, waiting=load.waiting, kv_usage=load.kv_usage)
    return msgspec.structs.replace(
        page,
        asked_s=asked_s,
        running=load.running,
        waiting=load.waiting,
        queued=None,
        kv_usage=page.kv_usage if load.kv_usage is None else load.kv_usage,
    )
