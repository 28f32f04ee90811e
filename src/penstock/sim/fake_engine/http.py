"""The engine's HTTP.

One `asyncio.Protocol` per connection on httptools, no tasks: a plain function gets a whole request and answers now or
later. Requests on one connection are answered in turn. A client that closes or half-closes is gone. Connections that
are idle after an answer are closed after 5 s, like vLLM's. `cut_after` breaks an answer, for faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
import msgspec

KEEP_ALIVE_S = 5.0  # VLLM_HTTP_TIMEOUT_KEEP_ALIVE
READ_S_MAX = 60.0  # between two pieces of one request, and before the first one, which may come late
BODY_BYTES_MAX = 64 * 1024 * 1024
HEADER_BYTES_MAX = 64 * 1024
PIPELINED_MAX = 8
WRITE_BUFFER_BYTES_MAX = 64 * 1024

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class HttpRequest(msgspec.Struct):
    method: str
    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes
    keep_alive: bool


class EngineConnection(asyncio.Protocol):
    """One client's connection. The handler owns the answer until it called `respond` or `end`, or `on_gone` fired."""

    def __init__(self, handle: Callable[[HttpRequest, EngineConnection], None], peers: set[EngineConnection]) -> None:
        self.paused = False  # the client reads too slowly
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.body_bytes = 0  # of the answer under way
        self._handle = handle
        self._peers = peers
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.TimerHandle | None = None
        self._pending: deque[HttpRequest] = deque()
        self._request: HttpRequest | None = None  # the one being answered
        self._cut: tuple[int, Callable[[], None]] | None = None
        self._start_message()

    # reading ---------------------------------------------------------------------------------------

    def _start_message(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._header_bytes = self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        self._peers.add(self)
        self._wait(READ_S_MAX)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._peers.discard(self)
        self._stop_idle()
        self._pending.clear()
        gone, self.on_gone, self.on_writable = self.on_gone, None, None
        if gone is not None:
            gone()

    def data_received(self, data: bytes) -> None:
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:  # also asked to upgrade, or one of our own limits
            if self._request is None and not self._transport.is_closing():
                status = error.__context__.args[0] if isinstance(error.__context__, _RefusedRequestError) else 400
                self._refuse(status)
            else:
                self._transport.abort()
            return
        if self._request is None and self._pending:
            self._serve(self._pending.popleft())
        elif self._request is None:
            self._wait(READ_S_MAX)

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES_MAX:
            raise _RefusedRequestError(431)

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._received += len(body)
        if self._received > BODY_BYTES_MAX:
            raise _RefusedRequestError(413)
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = unquote(self._url.partition(b"?")[0].decode("latin-1"))
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            path=path,
            headers=self._headers,
            body=b"".join(self._body),
            keep_alive=self._parser.should_keep_alive(),
        )
        self._start_message()
        if len(self._pending) >= PIPELINED_MAX:
            raise _RefusedRequestError(429)
        self._pending.append(request)

    def _serve(self, request: HttpRequest) -> None:
        self._request = request
        self.body_bytes = 0
        self._handle(request, self)

    # writing ---------------------------------------------------------------------------------------

    def respond(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Send a whole answer."""
        head = self._head(status, content_type) + b"content-length: %d\r\n\r\n" % len(body)
        if self._cut is not None and self._cut[0] < len(body):
            self._transport.write(head + body[: self._cut[0]])
            self._fire_cut()
            return
        self._transport.write(head + body)
        self._done()

    def respond_json(self, status: int, value: Any) -> None:
        self.respond(status, msgspec.json.encode(value))

    def begin(self, status: int, content_type: str) -> None:
        """Send the head of an answer whose body follows in chunks."""
        head = self._head(status, content_type)
        self._transport.write(head + b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n")

    def chunk(self, payload: bytes) -> None:
        if self._cut is not None:
            left = self._cut[0] - self.body_bytes
            if left < len(payload):
                self._write_chunk(payload[: max(0, left)])
                self._fire_cut()
                return
        self._write_chunk(payload)

    def _write_chunk(self, payload: bytes) -> None:
        if payload:  # an empty chunk would end the body
            self.body_bytes += len(payload)
            self._transport.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    def end(self) -> None:
        self._transport.write(b"0\r\n\r\n")
        self._done()

    def reset(self) -> None:
        """Close as a crashed process does: no FIN, a reset."""
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def cut_after(self, body_bytes: int, action: Callable[[], None]) -> None:
        """Send only `body_bytes` of the next answer's body, then call `action` instead of going on."""
        self._cut = (body_bytes, action)

    def _fire_cut(self) -> None:
        assert self._cut is not None
        action, self._cut = self._cut[1], None
        action()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._loop.call_soon(self._writable)  # asyncio does not allow `close` inside this call

    def _writable(self) -> None:
        if self.on_writable is not None:
            self.on_writable()

    def _head(self, status: int, content_type: str) -> bytes:
        head = f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\ncontent-type: {content_type}\r\n"
        request = self._request
        if request is not None:
            if (request_id := request.headers.get("x-request-id")) is not None:
                head += f"x-request-id: {request_id}\r\n"
            if not request.keep_alive:
                head += "connection: close\r\n"
        return head.encode("latin-1")

    def _done(self) -> None:
        request, self._request = self._request, None
        self.on_gone = self.on_writable = self._cut = None
        assert request is not None
        if not request.keep_alive:
            self._transport.close()
        elif self._pending:
            self._serve(self._pending.popleft())
        else:
            self._wait(KEEP_ALIVE_S)

    def _refuse(self, status: int) -> None:
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        self._transport.write(head.encode())
        self._transport.close()

    # idle ------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self._idle = self._loop.call_later(seconds, self._close_idle)

    def _close_idle(self) -> None:
        self._idle = None
        self._transport.close()

    def _stop_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


class _RefusedRequestError(Exception):
    """A limit was reached while parsing; the argument is the status."""
