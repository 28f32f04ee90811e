"""Keeps the objects of one kind in step with a Kubernetes API server.

We list the objects, then watch from the list's version. A watch that ends in order is continued from its end. A broken
watch, or an answer 410 Gone (our version is too old for the server), means a new list. So do some minutes, in case of
undetected errors. Until a new list is complete, the old one stays valid. All this goes over our own transport: a list
and a stream of lines need no client library.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Generic
from urllib.parse import urlencode

import msgspec

from penstock.gateway.endpoints.discovery.base import PAUSE_S, PAUSE_S_MAX, SourceError
from penstock.gateway.endpoints.discovery.kubernetes_access import Access
from penstock.gateway.endpoints.discovery.kubernetes_cache import Cache, Relist, T
from penstock.gateway.endpoints.discovery.kubernetes_objects import ApiStatus, Bookmark, ObjectPage, WatchEvent
from penstock.http.client.pool import Headers, Upstream, UpstreamError, UpstreamException, UpstreamTimeouts

logger = logging.getLogger(__name__)

PAGE_OBJECTS = 500
PAGES_MAX = 40  # 20,000 objects
LIST_TIMEOUT_S = 30.0
LIST_BYTES_MAX = 64 << 20  # in one page of a list
LINE_BYTES_MAX = 8 << 20  # in one line of a watch: a slice of 1,000 endpoints has some 300 KB
WATCH_S = 60  # how long one watch is asked for: a connection that died unseen (in a firewall) is noticed by then
WATCH_GRACE_S = 15.0  # beyond that, for the server to end the watch
RELIST_S = 600.0  # how often everything is listed again, in case a change went by unseen
SHORT_S = 5.0  # if watches end sooner, one after another, the pauses between them grow


class MissingError(SourceError):
    """The server does not know this kind of object (404): its definition is not installed."""


def connect(access: Access) -> Upstream:
    """Returns connections to the API server. Raises `SourceError` if its certificates to trust can't be read."""
    quiet_s = WATCH_S + WATCH_GRACE_S
    timeouts = UpstreamTimeouts(connect_s=5.0, first_byte_s=quiet_s, between_bytes_s=quiet_s)
    return Upstream(access.server, timeouts=timeouts, ssl_context=access.tls())


class ObjectFollower(Generic[T]):
    """Keeps a cache of one kind of object in step with the API server."""

    def __init__(
        self,
        upstream: Upstream,
        access: Access,
        path: str,
        *,
        select: Mapping[str, str],
        kind: type[T],
    ) -> None:
        """`select`: the query that selects objects, such as `labelSelector`. `kind`: their type."""
        self._upstream = upstream
        self._access = access
        self._path = path
        self._select = dict(select)
        self._kind = kind
        self._page_type = ObjectPage[kind]  # type: ignore[valid-type]
        self._cache: Cache[T] = Cache()

    async def follow(self, changed: Callable[[Iterable[T]], None]) -> None:
        """Call `changed` with all objects, now and after each change. Never returns; raises SourceError."""
        time, short = self._upstream.time, 0
        while True:
            await self._list()
            changed(self._cache)
            relist_at_s = time() + RELIST_S * random.uniform(0.8, 1.0)
            is_current = True
            while is_current and time() < relist_at_s:
                began_s = time()
                try:
                    await self._watch(changed)
                except Relist as reason:
                    logger.info("kubernetes: listing all of %s again: %s", self._path, reason)
                    is_current = False
                short = short + 1 if time() - began_s < SHORT_S else 0
                await asyncio.sleep(min(PAUSE_S * 2 ** min(short, 16), PAUSE_S_MAX) if short > 1 else 0.0)

    # --- a list ---------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        objects: list[T] = []
        query = {**self._select, "limit": str(PAGE_OBJECTS)}
        for _ in range(PAGES_MAX):
            page = await self._page(query)
            objects += page.items or []
            if not page.metadata.continue_:
                self._cache.listed(objects, page.metadata.resource_version)
                return
            query["continue"] = page.metadata.continue_
        raise SourceError(f"the list has more than {PAGES_MAX} pages")

    async def _page(self, query: dict[str, str]) -> ObjectPage[T]:
        try:
            answer = await self._upstream.fetch(
                "GET",
                f"{self._path}?{urlencode(query)}",
                headers=await self._access.headers(),
                timeout_s=LIST_TIMEOUT_S,
                bytes_max=LIST_BYTES_MAX,
            )
        except UpstreamException as failure:
            raise SourceError(f"{self._access.server} does not answer: {failure.error.detail}") from None
        if answer.status != 200:
            kind = MissingError if answer.status == 404 else SourceError
            raise kind(_refused(answer.status, answer.body, self._path))
        try:
            return msgspec.json.decode(answer.body, type=self._page_type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(f"the list can't be read: {error}") from None

    # --- a watch --------------------------------------------------------------------------------------------------

    async def _watch(self, changed: Callable[[Iterable[T]], None]) -> None:
        """Take in changes until the server ends the watch. Raises Relist if a new list is needed, or SourceError."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            **self._select,
            "resourceVersion": self._cache.version,
            "timeoutSeconds": str(WATCH_S),
        }
        lines = _Lines(asyncio.get_running_loop().create_future(), lambda batch: self._take_in(batch, changed))
        headers = await self._access.headers()
        call = self._upstream.send("GET", f"{self._path}?{urlencode(query)}", headers, b"", lines)
        try:
            status, body = await lines.ended
        finally:
            call.abort()
        if status == 410:
            raise Relist("410 Gone")
        if status != 200:
            raise SourceError(_refused(status, body, self._path))

    def _take_in(self, lines: list[bytes], changed: Callable[[Iterable[T]], None]) -> None:
        news = False
        try:
            for line in lines:
                event = msgspec.json.decode(line, type=WatchEvent)
                if event.type == "BOOKMARK":
                    self._cache.passed(msgspec.json.decode(event.object, type=Bookmark).metadata.resource_version)
                elif event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=ApiStatus)
                    raise Relist(f"{status.code} {status.reason or status.message or 'an error'}")
                else:
                    found = msgspec.json.decode(event.object, type=self._kind)
                    is_gone = event.type == "DELETED"
                    news |= self._cache.went(found.metadata) if is_gone else self._cache.came(found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Relist(f"an event that can't be read: {error}") from None
        finally:
            if news:
                changed(self._cache)


class _Lines:
    """A sink that hands on whole lines as they come. `ended` gets the status, and the body unless it is a success."""

    def __init__(self, ended: asyncio.Future[tuple[int, bytes]], take_in: Callable[[list[bytes]], None]) -> None:
        self.ended = ended
        self._take_in = take_in
        self._status = 0
        self._rest = b""

    def on_response(self, status: int, headers: Headers, /) -> None:  # noqa: ARG002
        self._status = status

    def on_data(self, data: bytes, /) -> None:
        if self.ended.done():
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._status != 200:
            self._rest = b"\n".join([*lines, self._rest])
        elif lines:
            try:
                self._take_in([line for line in lines if line.strip()])
            except Exception as error:  # noqa: BLE001 - handled where `ended` is awaited
                self.ended.set_exception(error)
        if len(self._rest) > LINE_BYTES_MAX and not self.ended.done():
            self.ended.set_exception(Relist(f"an event of more than {LINE_BYTES_MAX >> 20} MiB"))

    def on_end(self) -> None:
        if self.ended.done():
            return
        if self._status == 200 and self._rest.strip():
            self.ended.set_exception(Relist("half an event"))
        else:
            self.ended.set_result((self._status, self._rest))

    def on_error(self, error: UpstreamError, /) -> None:
        if not self.ended.done():
            self.ended.set_exception(Relist(f"the watch broke off: {error.detail}"))


def _refused(status: int, body: bytes, path: str) -> str:
    try:
        message = msgspec.json.decode(body, type=ApiStatus).message or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = ""
    hint = "; the account needs the verbs list and watch there" if status == 403 else ""
    return f"{path} is answered {status}{f': {message[:300]}' if message else ''}{hint}"
