"""`/v1/files`: uploading, listing, reading and deleting files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from penstock.batch import api_objects
from penstock.batch.api.calls import ApiError, Owner, answer, page_size, query
from penstock.batch.api.upload import FORM_BYTES_MAX, Upload
from penstock.batch.input_file import InputReader
from penstock.batch.states import ItemState
from penstock.batch.store.port import CHUNK_BYTES
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import File, FileKind, Quota
from penstock.config.sections.batch import BatchSection
from penstock.core.values.catalogue import Reason
from penstock.http.server.server import SocketExchange

LIST_MAX = 10_000
PIECE_BYTES = 4 * CHUNK_BYTES


class Files:
    """Serves the calls about files. A call answers its exchange, or raises `ApiError`."""

    def __init__(
        self,
        store: StoreThread,
        settings: BatchSection,
        quota: Quota,
        *,
        runner: str,
        urls: Callable[[str], bool],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._runner = runner
        self._settings = settings
        self._quota = quota
        self._urls = urls
        self._wall = wall
        self.upload_bytes_max = settings.limits.max_file + FORM_BYTES_MAX

    def upload(self, exchange: SocketExchange, owner: Owner) -> Upload:
        """Returns the upload of a file that is about to come. Raises `ApiError` if the form's head is unusable."""
        limits = self._settings.limits
        reader = InputReader(urls=self._urls, lines_max=limits.max_lines, line_bytes_max=limits.max_line)
        return Upload(
            exchange,
            self._store,
            owner.tenant,
            runner=self._runner,
            quota=self._quota,
            keep_s=self._settings.keep,
            reader=reader,
            now=self._wall(),
        )

    async def list(self, exchange: SocketExchange, owner: Owner) -> None:
        fields = query(exchange)
        limit = page_size(fields, LIST_MAX, LIST_MAX)
        order = fields.get("order", "desc")
        if order not in ("asc", "desc"):
            raise ApiError(Reason.BAD_REQUEST, "`order` has to be `asc` or `desc`.", "order")
        now = self._wall()
        rows = await self._store.do(
            lambda store: store.files(
                owner.tenant,
                kind=fields.get("purpose") or None,
                after=fields.get("after") or None,
                limit=limit + 1,
                ascending=order == "asc",
                now=now,
            )
        )
        shown = [api_objects.file_object(file) for file in rows[:limit]]
        answer(exchange, api_objects.listing(shown, more=len(rows) > limit))

    async def show(self, exchange: SocketExchange, owner: Owner, name: str) -> None:
        answer(exchange, api_objects.file_object(await self._find(owner, name)))

    async def delete(self, exchange: SocketExchange, owner: Owner, name: str) -> None:
        now = self._wall()
        if not await self._store.do(lambda store: store.delete_file(owner.tenant, name, now)):
            raise _missing(name)
        answer(exchange, {"id": name, "object": "file", "deleted": True})

    async def content(self, exchange: SocketExchange, owner: Owner, name: str) -> None:
        """Send a file's bytes as fast as the client reads them. Broken off if the file is deleted meanwhile."""
        file = await self._find(owner, name)
        flows, gone = asyncio.Event(), asyncio.Event()
        flows.set()

        def left() -> None:
            gone.set()
            flows.set()

        exchange.on_pause, exchange.on_resume, exchange.on_disconnect = flows.clear, flows.set, left
        if exchange.gone:
            return
        exchange.start(200, [(b"content-type", b"application/octet-stream")], length=file.bytes)
        pieces = self._stored(file) if file.kind == FileKind.INPUT else self._lines(file)
        written = 0
        async for piece in pieces:
            await flows.wait()
            if gone.is_set():
                return
            written += len(piece)
            if written > file.bytes:
                break
            exchange.write(piece)
        if written == file.bytes:
            exchange.end()
        else:  # the file was deleted meanwhile
            exchange.abort()

    async def _stored(self, file: File) -> AsyncIterator[bytes]:
        for at in range(0, file.bytes, PIECE_BYTES):
            yield await self._store.do(lambda store, at=at: store.read(file.id, at, min(PIECE_BYTES, file.bytes - at)))  # type: ignore[misc]

    async def _lines(self, file: File) -> AsyncIterator[bytes]:
        state = ItemState.COMPLETED if file.kind == FileKind.OUTPUT else ItemState.FAILED
        batch, after = file.batch or "", 0
        while page := await self._store.do(lambda store, after=after: store.results(batch, state, after)):  # type: ignore[misc]
            after = page[-1][0]
            yield b"".join(b"%b\n" % text for _, text in page)

    async def _find(self, owner: Owner, name: str) -> File:
        now = self._wall()
        file = await self._store.do(lambda store: store.file(owner.tenant, name, now))
        if file is None:
            raise _missing(name)
        return file


def _missing(name: str) -> ApiError:
    return ApiError(Reason.PATH_NOT_FOUND, f"There is no file `{name}`.", "file_id")
