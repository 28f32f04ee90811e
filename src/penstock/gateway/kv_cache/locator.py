"""Locates the cached prefix of a request's prompt. It queries the sources and informs the scheduler.

With `kv_events` the endpoints' events fill an exact index in the core, by keys of token blocks; a request is looked up
by the keys of its blocks. With `lmcache` a service is asked about the tokens. Both need the prompt's tokens first. A
request waits for the answer at most `Request.locate_s`: little, and not at all while the source is dead or slow. A
later answer still counts while the request is queued.

Among several processes the one that decides follows events, and fills the index. Workers query for their own requests:
prompts and tokens stay there. They get each endpoint's block size from its events.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.core.values.actions import Action
from penstock.core.values.located import Source
from penstock.engines.kv_blocks import Changes, prompt_keys
from penstock.gateway.kv_cache.lmcache import LmCache
from penstock.gateway.kv_cache.tokenize_request import LATE_S, Question, question
from penstock.gateway.kv_cache.tokenizer import Tokenizer
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.proxy.target import Target

if TYPE_CHECKING:
    import zmq.asyncio

    from penstock.config.model import EndpointSection
    from penstock.gateway.kv_cache.kv_source import KvSource  # needs an extra

logger = logging.getLogger(__name__)

LOCATE_S = LATE_S  # a look-up takes 2 to 10 ms; the rest is for machines that are busy with more than they can do
OPEN_MAX = 256  # concurrent look-ups
OPEN_LATE_MAX = 2  # while answers come too late
PROMPT_BYTES_MIN = 64  # shorter ones fill no block of any engine


@dataclass(frozen=True, slots=True)
class BlockCut:
    """How an endpoint cuts prompts into blocks, by its events."""

    tokens: int  #: of a block
    adapters: Collection[str]  #: of which it ever held blocks


class Locates(Decides, Protocol):
    """The interface to a scheduler or an edge."""

    def serving(self, model: str, *, now: float) -> list[str]: ...
    def located(self, request_id: str, keys: Iterable[int], block_tokens: int, *, now: float) -> list[Action]: ...
    def cached(
        self, request_id: str, tokens: Mapping[str, int], source: Source = Source.LMCACHE, *, now: float
    ) -> list[Action]: ...


@dataclass(frozen=True, slots=True)
class Search:
    """The look-up of one request, prepared. `Locator.begin` it when the scheduler knows of the request."""

    model: str
    asked: Question
    wait_s: float  #: how long the request may be held for the answer
    tokens: array[int] | None  #: if they are known already
    endpoint: str  #: otherwise the endpoints to ask
    cuts: list[BlockCut]  #: of candidate endpoints with events


class Locator:
    """Follows the endpoints' events or asks LMCache, and informs the scheduler."""

    def __init__(
        self,
        driver: Driver[Locates],
        *,
        lmcache: LmCache | None,
        names_of: Callable[[str], Collection[str]],
        tell: Callable[[str, Changes], None] = lambda _endpoint, _changes: None,
    ) -> None:
        """`tell` is called with changes of an endpoint's blocks."""
        self._driver = driver
        self._lmcache = lmcache
        self._tell = tell
        self._names_of = names_of  # a model's names inside the engines
        self._targets: dict[str, Target] = {}
        self.tokenizer = Tokenizer(self._targets, choose=self._able, now=driver.now)
        self.sources: dict[str, KvSource] = {}
        self._cuts: dict[str, BlockCut] = {}  # from another process's events
        self._following: dict[str, asyncio.Task[None]] = {}
        self._context: zmq.asyncio.Context | None = None
        self._started = False
        self._open: dict[str, asyncio.Task[None]] = {}  # look-ups under way, by request

    def _able(self, model: str) -> list[str]:
        """Returns endpoints to ask for a prompt's tokens, the least loaded first."""
        scheduler, now = self._driver.scheduler, self._driver.now()
        first = scheduler.least_loaded(model, now=now)
        return [] if first is None else [first, *scheduler.serving(model, now=now)]

    # --- endpoints ------------------------------------------------------------------------------------------------

    def endpoint_added(self, endpoint: EndpointSection, target: Target) -> None:
        """Listen to an endpoint that the scheduler knows already. `target`: how it is asked."""
        name = endpoint.name
        self.endpoint_known(name, endpoint.url, target, lmcache_instance=endpoint.lmcache_instance)
        if self._lmcache is None and endpoint.kv_events != "off":
            self.sources[name] = self._source(endpoint, target)
            if self._started:
                self._follow(name)

    def endpoint_known(self, name: str, url: str, target: Target, *, lmcache_instance: str | None) -> None:
        """Ask an endpoint from now on, and about it; its events are another process's to follow."""
        self._targets[name] = target
        if self._lmcache is not None:
            self._lmcache.endpoint_added(name, url, lmcache_instance)

    def cuts(self, name: str, cut: BlockCut | None) -> None:
        """Set an endpoint's blocks from events that another process follows; None: unknown."""
        if cut is None:
            self._cuts.pop(name, None)
        else:
            self._cuts[name] = cut

    def cut_of(self, name: str) -> BlockCut | None:
        """How an endpoint cuts prompts into blocks; None: nothing is known of its blocks."""
        source = self.sources.get(name)
        if source is None or not len(source.blocks):
            return self._cuts.get(name)
        return BlockCut(source.blocks.block_tokens, source.blocks.adapters)

    def endpoint_removed(self, name: str) -> None:
        """Stop listening to the endpoint `name`, which the scheduler still knows."""
        del self._targets[name]
        self._cuts.pop(name, None)
        self.tokenizer.endpoint_removed(name)
        if self._lmcache is not None:
            self._lmcache.endpoint_removed(name)
        elif self.sources.pop(name, None) is not None and (task := self._following.pop(name, None)) is not None:
            task.cancel()

    def start(self) -> None:
        self._started = True
        for name in self.sources:
            self._follow(name)

    async def close(self) -> None:
        self._started = False
        tasks = [*self._following.values(), *self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lmcache is not None:
            self._lmcache.close()
        if self._context is not None:
            self._context.destroy(linger=0)

    def _follow(self, name: str) -> None:
        self._following[name] = asyncio.get_running_loop().create_task(self.sources[name].run())

    def _source(self, endpoint: EndpointSection, target: Target) -> KvSource:
        import zmq.asyncio  # noqa: PLC0415  (an extra)

        from penstock.gateway.kv_cache.kv_source import KvSource  # noqa: PLC0415

        if self._context is None:
            self._context = zmq.asyncio.Context()
        return KvSource(
            endpoint.name,
            endpoint.kv_events,
            target.upstream,
            target.own_headers(),
            url=endpoint.url,
            context=self._context,
            tell=lambda changes: self._tell(endpoint.name, changes),
        )

    # --- requests -------------------------------------------------------------------------------------------------

    def search(self, path: str, body: bytes, model: str) -> Search | None:
        """Returns how to locate a request's prompt; None if impossible or pointless."""
        in_time = self._lmcache is None or self._lmcache.in_time
        if len(body) < PROMPT_BYTES_MIN or len(self._open) >= (OPEN_MAX if in_time else OPEN_LATE_MAX):
            return None
        serving = self._driver.scheduler.serving(model, now=self._driver.now())
        if len(serving) < 2:
            return None
        cuts = [cut for name in serving if (cut := self.cut_of(name)) is not None]
        if self._lmcache is None and not cuts:
            return None
        asked = question(path, body, model)
        if asked is None:
            return None
        tokens = self.tokenizer.known(asked)
        endpoint = self.tokenizer.endpoint(model) if tokens is None else ""
        if endpoint is None:
            return None
        return Search(model, asked, LOCATE_S if in_time else 0.0, tokens, endpoint, cuts)

    def begin(self, request_id: str, search: Search) -> None:
        """Locate the prompt of a request by `search`, and inform the scheduler."""
        if self._lmcache is None and search.tokens is not None:
            self._tell_blocks(request_id, search, search.tokens)
            return
        task = asyncio.get_running_loop().create_task(self._locate(request_id, search))
        self._open[request_id] = task
        task.add_done_callback(lambda _: self._closed(request_id, task))

    def _closed(self, request_id: str, task: asyncio.Task[None]) -> None:
        if self._open.get(request_id) is task:
            del self._open[request_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("locating a cached prompt failed", exc_info=error)

    async def _locate(self, request_id: str, search: Search) -> None:
        tokens, held = search.tokens, {}
        if tokens is None:
            tokens = await self.tokenizer.ask(search.asked, search.endpoint)
        if tokens is not None and self._lmcache is not None:
            held = await self._lmcache.lookup(tokens, self._names_of(search.model), search.asked.salt)
        if self._open.get(request_id) is not asyncio.current_task():
            return  # the name is another request's by now
        if tokens is not None and self._lmcache is None:
            self._tell_blocks(request_id, search, tokens)
        else:
            source = Source.KV_EVENTS if self._lmcache is None else Source.LMCACHE
            driver = self._driver
            driver.tell(driver.scheduler.cached(request_id, held, source, now=driver.now()))

    def _tell_blocks(self, request_id: str, search: Search, tokens: array[int]) -> None:
        """Returns the keys of its blocks, of the size of most candidates."""
        sizes = Counter(cut.tokens for cut in search.cuts if cut.tokens)
        keys: list[int] = []
        size = 1
        if sizes:
            size = max(sizes, key=lambda block_tokens: (sizes[block_tokens], -block_tokens))
            adapted = any(search.model in cut.adapters for cut in search.cuts)
            keys = prompt_keys(tokens, size, adapter=search.model if adapted else "", salt=search.asked.salt)
        driver = self._driver
        driver.tell(driver.scheduler.located(request_id, keys, size, now=driver.now()))
