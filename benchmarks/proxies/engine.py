"""A pre-rendered engine: the cheapest server that a proxy accepts as an inference engine.

It computes nothing: every answer is bytes made at the start. Raw protocols, one process for all ports. A stream gets
one event per step, and all streams of a port step together, as in a real engine. It answers what proxies ask before
they call an engine ready (health, models, gauges, SGLang's and vLLM's info paths).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re

import uvloop

MODEL = "bench"
EVENTS = 100  # of one stream
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_STREAM = re.compile(rb'"stream": ?true')
_USAGE = re.compile(rb'"include_usage": ?true')


def _response(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nserver: engine\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(value: dict[str, object]) -> bytes:
    return b"data: %b\n\n" % json.dumps(value, separators=(",", ":")).encode()


def _delta(content: str, finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish_reason}
    return _event({**_NAMES, "object": "chat.completion.chunk", "choices": [choice]})


_NAMES: dict[str, object] = {"id": "chatcmpl-8a3b5c1d9e7f4a6b", "created": 1763000000, "model": MODEL}
_COUNTS = {"prompt_tokens": 80, "total_tokens": 180, "completion_tokens": 100}
_MESSAGE = {"role": "assistant", "content": "water on a turbine " * 20}
_CHOICE = {"index": 0, "message": _MESSAGE, "logprobs": None, "finish_reason": "stop"}
_WHOLE = {**_NAMES, "object": "chat.completion", "choices": [_CHOICE], "usage": _COUNTS}
ANSWER = _response(json.dumps(_WHOLE).encode())
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
PIECE = _chunk(_delta(" water", None))
LAST = _chunk(_delta("", "stop"))
USAGE = _chunk(_event({**_NAMES, "object": "chat.completion.chunk", "choices": [], "usage": _COUNTS}))
DONE = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

_METRICS = f"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.0
""".encode()
_INFO = {"model_path": MODEL, "served_model_name": MODEL, "tokenizer_path": "", "is_generation": True}
_PAGES: dict[bytes, bytes] = {
    b"/health": _response(b"{}"),
    b"/health_generate": _response(b"{}"),
    b"/ping": _response(b"{}"),
    b"/version": _response(b'{"version":"0.11.0"}'),
    b"/metrics": _response(_METRICS, b"text/plain; version=0.0.4"),
    b"/v1/models": _response(
        json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 131072}]}).encode()
    ),
    b"/get_load": _response(b'[{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]'),
    b"/v1/loads": _response(b'{"loads":[]}'),
    b"/get_server_info": _response(json.dumps({**_INFO, "dp_size": 1, "internal_states": [{}]}).encode()),
    b"/server_info": _response(json.dumps({**_INFO, "dp_size": 1}).encode()),
    b"/get_model_info": _response(json.dumps(_INFO).encode()),
    b"/model_info": _response(json.dumps(_INFO).encode()),
}
_UNKNOWN = _response(b"{}", status=b"404 Not Found")


class Steps:
    """The step loop of one port."""

    step_s = 0.01  # of all ports

    def __init__(self) -> None:
        self._left: dict[Connection, tuple[int, bool]] = {}

    def begin(self, connection: Connection, *, usage: bool) -> None:
        self._left[connection] = (EVENTS, usage)

    def drop(self, connection: Connection) -> None:
        self._left.pop(connection, None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + self.step_s, loop.time())  # a late step moves all later ones, as in an engine
            await asyncio.sleep(due_s - loop.time())
            for connection, (left, usage) in tuple(self._left.items()):
                if left > 1:
                    self._left[connection] = (left - 1, usage)
                    connection.write(PIECE)
                else:
                    del self._left[connection]
                    connection.write(LAST + (USAGE if usage else b"") + DONE)


class Connection(asyncio.Protocol):
    """One connection from a proxy; requests one at a time."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._buffer = bytearray()
        self._whole_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = transport.write  # type: ignore[attr-defined]  # uvloop's are transports in all but their class

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._steps.drop(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < self._whole_at:
            return
        head_end = self._buffer.find(b"\r\n\r\n") + 4
        if head_end < 4:
            return
        head = bytes(self._buffer[:head_end])
        length = _LENGTH.search(head)
        if length is not None:
            self._whole_at = head_end + int(length[1])
            if len(self._buffer) < self._whole_at:
                return
        elif _CHUNKED.search(head) and not self._buffer.endswith(b"0\r\n\r\n"):
            return
        body = bytes(self._buffer[head_end:])
        self._buffer.clear()
        self._whole_at = 0
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        method, target, _ = head.split(b" ", 2)
        path = target.partition(b"?")[0]
        if method == b"GET" and path.startswith(b"/step/"):
            Steps.step_s = int(path.removeprefix(b"/step/")) / 1000
            self.write(_response(b"{}"))
        elif method != b"POST" or not path.startswith(b"/v1/chat"):
            self.write(_PAGES.get(path, _UNKNOWN))
        elif _STREAM.search(body):
            self.write(STREAM_HEAD)
            self._steps.begin(self, usage=_USAGE.search(body) is not None)
        else:
            self.write(ANSWER)


async def serve(ports: list[int]) -> None:
    """Serve on all ports until killed."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        for port in ports:
            steps = Steps()
            group.create_task(steps.run())
            await loop.create_server(lambda steps=steps: Connection(steps), "127.0.0.1", port, backlog=2048)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ports", type=int, nargs="+")
    uvloop.run(serve(parser.parse_args().ports))
