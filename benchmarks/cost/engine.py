"""A pre-rendered engine that is the same each time: `python engine.py PORT [--delay-ms 5] [--chunks 100] [--gap-ms 4]`.

A whole answer with usage comes after the delay; a stream is so many events, one per gap, then usage and `[DONE]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json

COMMON = {"id": "chatcmpl-1", "created": 1, "model": "bench-model"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_PAGE = b"".join(
    b'vllm:%s{engine="0",model_name="bench-model"} %s\n' % row
    for row in ((b"num_requests_running", b"0.0"), (b"num_requests_waiting", b"0.0"), (b"kv_cache_usage_perc", b"0.01"))
)


def _answer(body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _event(choices: list[object], **more: object) -> bytes:
    value = {**COMMON, "object": "chat.completion.chunk", "choices": choices, **more}
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


MODELS = _answer(json.dumps({"object": "list", "data": [{"id": "bench-model", "owned_by": "vllm"}]}).encode())
PAGE = _answer(_PAGE, "text/plain")
CHUNK = _event([{"index": 0, "delta": {"content": "word "}, "finish_reason": None}])
LAST = _event([{"index": 0, "delta": {}, "finish_reason": "stop"}])


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, delay_s: float, chunks: int, gap_s: float) -> None:
        self._delay_s, self._chunks, self._gap_s = delay_s, chunks, gap_s
        usage = {"prompt_tokens": 60, "completion_tokens": chunks, "total_tokens": 60 + chunks}
        self._usage = _event([], usage=usage)
        message = {"role": "assistant", "content": "word " * 16}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 60, "completion_tokens": 16, "total_tokens": 76}
        whole = {**COMMON, "object": "chat.completion", "choices": [choice], "usage": usage}
        self._whole = _answer(json.dumps(whole).encode())
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            body, self._buffer = self._buffer[end + 4 : end + 4 + length], self._buffer[end + 4 + length :]
            self._asked(head, body)

    def _asked(self, head: bytes, body: bytes) -> None:
        later = asyncio.get_running_loop().call_later
        if not head.startswith(b"post"):
            self._write(MODELS if b"/v1/models" in head else PAGE if b"/metrics" in head else _answer(b"{}"))
        elif b'"stream":true' in body or b'"stream": true' in body:
            later(self._delay_s, self._step, b"include_usage" in body, 0)
        else:
            later(self._delay_s, self._write, self._whole)

    def _step(self, usage: bool, sent: int) -> None:
        if self._transport.is_closing():
            return
        data = CHUNK if sent else HEAD + CHUNK
        if sent + 1 < self._chunks:
            asyncio.get_running_loop().call_later(self._gap_s, self._step, usage, sent + 1)
        else:  # in one write, so that it is one read
            data += LAST + (self._usage if usage else b"") + DONE
        self._write(data)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--gap-ms", type=float, default=4.0)
    told = parser.parse_args()

    def made() -> Engine:
        return Engine(told.delay_ms / 1e3, told.chunks, told.gap_ms / 1e3)

    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", told.port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
