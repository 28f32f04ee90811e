"""Does every byte of many streams arrive, in order, at a high rate? The gateway on one core, checksums at both ends.

A pre-rendered engine, the gateway and the client are processes of their own. The engine writes one event per stream
and tick, so that together they offer `--rate` events a second; no two streams carry the same bytes. The client keeps
what comes and, when all is over, takes the chunked coding apart and compares SHA-256 with what the engine must have
sent. It asks for usage itself, so nothing is injected. `--json` prints the figures for machines.

Two cores have to do for all three, so engine and client are as lean as they can be: plain sockets, events rendered
before the first one is sent, one `send` for each of them, and a client that reads what has come by then every
`READ_EVERY_S` (from a gateway that writes each event when it has it: that work is not made less). An engine that finds
no room in a socket keeps the rest and goes on with the next stream.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rig import cpu_s_of, free_port, gateway, machine, started

READ_EVERY_S = 0.05
EVENTS_RENDERED = 4096
ENGINE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = (
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c","model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9}}\n\n',
    b"data: [DONE]\n\n",
)


@functools.cache
def rendered() -> list[bytes]:
    """The events that streams are cut from; each differs from all others in its number."""
    return [
        b'data: {"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,'
        b'"delta":{"content":" token %06d"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n' % number
        for number in range(EVENTS_RENDERED)
    ]


@functools.cache
def chunks() -> list[bytes]:
    """The same, each as a chunk of the transfer coding."""
    return [chunk(event) for event in rendered()]


def places(stream: int, events: int) -> list[int]:
    """Which of the rendered events a stream has, in their order: each stream starts elsewhere."""
    return [(stream * 577 + event * 7) % EVENTS_RENDERED for event in range(events)]


def sent(stream: int, events: int) -> Iterator[bytes]:
    """What the engine sends in one stream: its number, its events, the end."""
    yield b": stream %d\n\n" % stream
    own = rendered()
    for at in places(stream, events):
        yield own[at]
    yield from LAST


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# --- the engine --------------------------------------------------------------------------------------------------


class Stream:
    """One answer: which events it has, how far it is, what the socket had no room for."""

    def __init__(self, sock: socket.socket, name: int, events: int) -> None:
        self.sock = sock
        self.unsent = b""
        own = chunks()
        first = [ENGINE_HEAD + chunk(b": stream %d\n\n" % name)]
        # The last one first: they are popped off the end.
        self.left = [b"0\r\n\r\n", *(chunk(event) for event in reversed(LAST))]
        self.left += [own[at] for at in reversed(places(name, events))]
        self.left += first

    def step(self) -> bool:
        """Send the next event; False when there is nothing left."""
        data = self.unsent + self.left.pop() if self.left else self.unsent
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # it was hung up on: the client will find what is missing
            return False
        self.unsent = data[sent:]
        return bool(self.left or self.unsent)


class Engine:
    """Once all streams are there, sends one event per stream and tick; it catches up when it is late."""

    def __init__(self, port: int, events: int, tick_s: float, streams_expected: int) -> None:
        self._events = events
        self._tick_s = tick_s
        self._expected = streams_expected
        self._streams: list[Stream] = []
        self._selector = selectors.DefaultSelector()
        self._heard: dict[socket.socket, bytes] = {}
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until killed."""
        chunks()
        while len(self._streams) < self._expected:
            self._hear(None)
        next_s = time.monotonic()
        streams = self._streams
        while True:
            streams = [stream for stream in streams if stream.step()]
            next_s += self._tick_s
            self._hear(max(0.0, next_s - time.monotonic()) if streams else None)
            while streams and (left_s := next_s - time.monotonic()) > 0:
                self._hear(left_s)

    def _hear(self, timeout_s: float | None) -> None:
        """Look for what is asked, and answer it: a POST by a stream, a GET by 404."""
        for key, _ in self._selector.select(timeout_s):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if sock is self._listener:
                self._accept()
                continue
            try:
                heard = sock.recv(65536)
            except ConnectionError:
                heard = b""
            if heard:
                self._heard[sock] = self._answer(sock, self._heard[sock] + heard)
            else:
                self._selector.unregister(sock)
                del self._heard[sock]
                sock.close()

    def _accept(self) -> None:
        """Take all connections that stand in line."""
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted, _ = self._listener.accept()
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._heard[accepted] = b""
                self._selector.register(accepted, selectors.EVENT_READ)

    def _answer(self, sock: socket.socket, data: bytes) -> bytes:
        """Returns what is not answered yet, because it is not whole."""
        head, blank, body = data.partition(b"\r\n\r\n")
        if not blank:
            return data
        if head.startswith(b"GET"):
            sock.send(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return b""
        lines = head.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        if len(body) < length:
            return data
        self._streams.append(Stream(sock, int(json.loads(body)["messages"][0]["content"]), self._events))
        return b""


# --- the client --------------------------------------------------------------------------------------------------


def request(stream: int) -> bytes:
    body = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": str(stream)}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def ask(port: int, streams: int) -> list[list[bytes]]:
    """Send all requests, and keep the pieces of each answer until its connection is closed."""
    pieces: list[list[bytes]] = [[] for _ in range(streams)]
    reading: list[tuple[socket.socket, list[bytes]]] = []
    for stream in range(streams):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(request(stream))
        sock.setblocking(False)
        reading.append((sock, pieces[stream]))
    next_s = time.monotonic()
    while reading:
        reading = [(sock, kept) for sock, kept in reading if read(sock, kept)]
        next_s = max(next_s + READ_EVERY_S, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))
    return pieces


def read(sock: socket.socket, kept: list[bytes]) -> bool:
    """Take what has come; False when the connection is closed."""
    try:
        data = sock.recv(1 << 18)
    except BlockingIOError:
        return True
    if data:
        kept.append(data)
        return True
    sock.close()
    return False


def body_of(raw: bytes) -> bytes:
    """The payload of a chunked answer; raises ValueError where it is not whole."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        raise ValueError(f"not a stream: {head[:200]!r}")
    at, pieces = 0, []
    while True:
        line_end = rest.index(b"\r\n", at)
        size = int(rest[at:line_end], 16)
        if not size:
            return b"".join(pieces)
        pieces.append(rest[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2


def wrong(answers: list[list[bytes]], events: int) -> list[int]:
    """The streams whose bytes are not those that the engine sent."""
    found = []
    for stream, pieces in enumerate(answers):
        expected = hashlib.sha256(b"".join(sent(stream, events))).digest()
        try:
            came = hashlib.sha256(body_of(b"".join(pieces))).digest()
        except ValueError:
            came = b""
        if came != expected:
            found.append(stream)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--rate", type=int, default=50_000, help="events a second, of all streams together")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    per_stream_s = args.rate / args.streams
    events = max(1, round(per_stream_s * args.seconds))
    if args.engine:
        Engine(args.engine, events, 1 / per_stream_s, args.streams).run()
        return 0
    port = free_port()
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", str(port)]
    with tempfile.TemporaryDirectory() as folder, started(command) as engine:
        endpoint = {"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["m"], "slots": args.streams}
        with gateway(Path(folder), {"endpoints": [endpoint]}) as penstock:
            cpu_s, client_s, began_s = penstock.cpu_s(), time.process_time(), time.monotonic()
            answers = ask(penstock.port, args.streams)
            took_s, cpu_s = time.monotonic() - began_s, penstock.cpu_s() - cpu_s
            client_s, engine_s = time.process_time() - client_s, cpu_s_of(engine.pid)
            rss, completed = penstock.rss_bytes(), penstock.metric("penstock_requests_total", 'outcome="completed"')
    count = args.streams * (events + 1 + len(LAST))
    bad = wrong(answers, events)
    figures = {
        "streams": args.streams,
        "events": count,
        "bytes": sum(len(piece) for pieces in answers for piece in pieces),
        "wrong_streams": len(bad),
        "completed": completed,
        "offered_s": args.seconds,
        "took_s": round(took_s, 2),
        "events_per_s": round(count / took_s),
        "cpu_s": round(cpu_s, 2),
        "cpu_us_per_event": round(cpu_s * 1e6 / count, 2),
        "cpu_share": round(cpu_s / took_s, 2),
        "engine_cpu_share": round(engine_s / took_s, 2),
        "client_cpu_share": round(client_s / took_s, 2),
        "rss_mib": round(rss / 2**20, 1),
    }
    if args.json:
        print(json.dumps(figures))
    else:
        print(machine())
        for name, value in figures.items():
            print(f"{name:>18}  {value:,}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
