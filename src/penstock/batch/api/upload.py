"""Receiving a file of any size. From the connection through the form to the store, piece by piece.

Only a bounded part of the file is in memory: when the store is behind, the connection is not read. An upload that
breaks off (a hang-up, a full disk, a limit) leaves nothing behind. The file's lines are checked on the way; their
problems show in the file's status, and in any batch that is made of the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import msgspec

from penstock.batch import api_objects
from penstock.batch.api.calls import ApiError, answer
from penstock.batch.input_file import InputReader
from penstock.batch.store.port import CHUNK_BYTES, Store, StoreError
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import File, FileKind, FileState, LineProblem, Quota
from penstock.core.values.catalogue import Reason
from penstock.gateway.openai.multipart import BadForm, Form
from penstock.http.server.server import SocketExchange

BUFFER_BYTES_MAX = 1 << 20  # beyond that the connection waits for the store
WRITE_BYTES = 4 * CHUNK_BYTES  # in one transaction: it costs a sync of the disk, and checking its lines milliseconds
FORM_BYTES_MAX = 64 * 1024  # of a form, beside its file
NAME_CHARACTERS_MAX = 255
KEEP_S_MIN, KEEP_S_MAX = 3_600, 2_592_000
DETAILS_MAX = 20  # problems shown with the file; the batch shows all


class Upload:
    """One upload under way. Raises `ApiError` if the request's head announces no usable form."""

    def __init__(
        self,
        exchange: SocketExchange,
        store: StoreThread,
        tenant: str,
        *,
        runner: str,
        quota: Quota,
        keep_s: float,
        reader: InputReader,
        now: float,
    ) -> None:
        self._exchange = exchange
        self._store = store
        self._runner = runner
        self._quota = quota
        self._keep_s = keep_s
        self._reader = reader
        length = exchange.header(b"content-length")
        self._file = File(
            id=f"file-{secrets.token_hex(12)}",
            tenant=tenant,
            kind=str(FileKind.INPUT),
            filename="",
            bytes=int(length) if length is not None else 0,
            lines=0,
            created_at=now,
            expires_at=now + keep_s,
            status=str(FileState.UPLOADING),
        )
        self._buffer = bytearray()
        try:
            self._form = Form(exchange.header(b"content-type") or b"", "file", self._buffer.extend)
        except BadForm as problem:
            raise ApiError(Reason.BAD_REQUEST, str(problem)) from None
        self._seq = 0
        self._bytes = 0
        self._whole = False
        self._error: str | None = None  # the exception itself would hold this upload in a cycle
        self._more = asyncio.Event()
        exchange.on_body = self._feed
        exchange.on_over = self._more.set

    # --- from the connection ----------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        if self._error is not None:
            return
        try:
            self._form.feed(data)
        except BadForm as problem:
            self._error = str(problem)
            self._more.set()
        if len(self._buffer) >= WRITE_BYTES:
            self._more.set()
        if len(self._buffer) > BUFFER_BYTES_MAX:
            self._exchange.pause_body()

    def complete(self) -> None:
        """The whole body has been read: `run` can end."""
        self._whole = True
        self._more.set()

    # --- to the store -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Store the file as it comes, then answer. Raises `ApiError`, or the store's errors; then nothing is kept."""
        begun, quota, runner = self._file, self._quota, self._runner
        await self._store.do(lambda store: store.begin_file(begun, quota, runner))
        try:
            kept = await self._keep()
        except BaseException:
            with contextlib.suppress(StoreError):  # if so, `purge` drops the upload with this gateway's claims
                await asyncio.shield(self._store.do(lambda store: store.drop_upload(begun.id)))
            raise
        if kept is not None:
            answer(self._exchange, api_objects.file_object(kept))

    async def _keep(self) -> File | None:
        while not self._whole or len(self._buffer) >= WRITE_BYTES:
            await self._more.wait()
            self._more.clear()
            self._look()
            while len(self._buffer) >= WRITE_BYTES:
                await self._write(WRITE_BYTES)
                self._look()
            self._exchange.resume_body()
        if self._buffer:
            await self._write(len(self._buffer))
        self._reader.end()
        made = self._ended()
        await self._store.do(lambda store: store.end_file(made, self._quota))
        return made

    def _look(self) -> None:
        if self._exchange.over:  # the client is gone, or the server has refused the body
            raise ApiError(Reason.CLIENT_GONE, "gone")
        if self._error is not None:
            raise ApiError(Reason.BAD_REQUEST, self._error)

    async def _write(self, size: int) -> None:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, size, CHUNK_BYTES)]
        seq, name, reader = self._seq, self._file.id, self._reader
        self._seq += len(chunks)
        self._bytes += size

        def work(store: Store) -> None:
            store.append(name, seq, chunks)
            reader.feed(data)

        await self._store.do(work)

    def _ended(self) -> File:
        form, fields = self._form, self._form.fields
        if not form.ended:
            raise ApiError(Reason.BAD_REQUEST, "The form is incomplete.")
        if form.filename is None:
            raise ApiError(Reason.BAD_REQUEST, "The form has no `file`.", "file")
        if fields.get("purpose") != FileKind.INPUT:
            raise ApiError(Reason.BAD_REQUEST, "`purpose` has to be `batch`: no other files are kept.", "purpose")
        name = "".join(c for c in form.filename if c.isprintable())[:NAME_CHARACTERS_MAX]
        problems = self._reader.problems
        return msgspec.structs.replace(
            self._file,
            filename=name or "file",
            bytes=self._bytes,
            lines=self._reader.requests,
            expires_at=self._file.created_at + _keep_s(fields, self._keep_s),
            status=str(FileState.ERROR if problems else FileState.PROCESSED),
            details=_told(problems) if problems else None,
        )


def _keep_s(fields: dict[str, str], default: float) -> float:
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return default
    if anchor != "created_at":
        raise ApiError(Reason.BAD_REQUEST, "`expires_after[anchor]` has to be `created_at`.", "expires_after[anchor]")
    return keep_seconds(int(seconds) if seconds and seconds.isascii() and seconds.isdigit() else None, "expires_after")


def keep_seconds(seconds: object, name: str) -> float:
    """Returns the retention that a client asks for. Raises `ApiError` if it is no number in the allowed range."""
    if type(seconds) is not int or not KEEP_S_MIN <= seconds <= KEEP_S_MAX:
        text = f"`{name}[seconds]` has to be a number from {KEEP_S_MIN} to {KEEP_S_MAX}."
        raise ApiError(Reason.BAD_REQUEST, text, f"{name}[seconds]")
    return float(seconds)


def _told(problems: list[LineProblem]) -> str:
    """The first problems of a file as a text, one per line."""
    told = [f"line {p.line}: {p.message}" if p.line is not None else p.message for p in problems[:DETAILS_MAX]]
    more = len(problems) - len(told)
    return "\n".join([*told, *([f"and {more} more"] if more else [])])
