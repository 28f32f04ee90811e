"""The CPU of a request as user instructions, counted by valgrind's callgrind.

`python instructions.py PATH/bin/penstock [OTHER/bin/penstock ...] [--command "... {port} {a} {b}"]`: the ratio of two
builds in one call repeats to about one per cent on a busy machine, where times move by a half; single counts repeat to
about four. Time in the kernel is not in it. Each gateway stands before two engines of `engine.py`, is warmed up, and
serves `--n` requests over 32 kept connections. `--keep DIR` keeps callgrind's files for callgrind_annotate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
START_S_MAX = 150.0  # valgrind starts Python some forty times as slowly
_WORDS = 'the quick brown fox jumps over the lazy dog \\n \\"café\\" '.encode()
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: */*\r\n"
    b"Authorization: Bearer sk-bench\r\nUser-Agent: bench\r\nContent-Length: %d\r\n\r\n"
)


def request(number: int, size: int, *, stream: bool) -> bytes:
    """Returns a request with a body of about `size` bytes, one of 32 topics."""
    head = (
        '{"model":"bench-model","messages":[{"role":"system","content":"You are a helpful assistant."},'
        f'{{"role":"user","content":"topic {number % 32}: '
    ).encode()
    tail = b'%012d"}],"max_tokens":100,"temperature":0.7,"stream":%s}' % (number, b"true" if stream else b"false")
    room = max(0, size - len(head) - len(tail))
    fill = (_WORDS * (room // len(_WORDS) + 1))[:room]
    while fill and (fill[-1] >= 128 or fill[-1:] == b"\\"):
        fill = fill[:-1]
    body = head + fill + b"x" * (room - len(fill)) + tail
    return _HEAD % len(body) + body


class _Asked:
    """A connection's request."""

    def __init__(self) -> None:
        self.data = b""

    def ended(self, *, stream: bool) -> bool:
        if stream:
            return self.data.endswith(b"0\r\n\r\n")
        end = self.data.find(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", self.data[:end], re.IGNORECASE) if end > 0 else None
        return length is not None and len(self.data) >= end + 4 + int(length[1])


def load(port: int, count: int, told: argparse.Namespace, first: int = 0) -> tuple[int, int]:
    """Send `count` requests. Returns how many were answered badly, and the events of all streams."""
    selector, asked = selectors.DefaultSelector(), dict[socket.socket, _Asked]()
    sent = done = bad = events = 0

    def send(connection: socket.socket) -> None:
        nonlocal sent
        asked[connection] = _Asked()
        connection.setblocking(True)
        connection.sendall(request(first + sent, told.size, stream=told.stream))
        connection.setblocking(False)
        sent += 1

    for _ in range(min(told.connections, count)):
        connection = socket.create_connection(("127.0.0.1", port), 60)
        send(connection)
        selector.register(connection, selectors.EVENT_READ)
    while done < count:
        for key, _ in selector.select(60):
            connection = key.fileobj  # type: ignore[assignment]
            one = asked[connection]
            if not (data := connection.recv(1 << 18)):
                raise SystemExit("the gateway closed a connection")
            one.data += data
            if not one.ended(stream=told.stream):
                continue
            done, events = done + 1, events + one.data.count(b"data: {")
            bad += not one.data.startswith(b"HTTP/1.1 200")
            if sent < count:
                send(connection)
            else:
                selector.unregister(connection)
                connection.close()
    return bad, events


@contextlib.contextmanager
def _running(command: list[str], log: Path | None = None, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    with contextlib.ExitStack() as stack:
        out = subprocess.DEVNULL if log is None else stack.enter_context(log.open("wb"))
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **env})
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(8)
            process.kill()


def _await(port: int, gateway: subprocess.Popen[bytes], log: Path) -> None:
    begun_s = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), 2)
            connection.settimeout(60)
            connection.sendall(request(10**6, 300, stream=False))
            if b" 200 " in connection.recv(65536)[:20]:
                return
        time.sleep(0.5)
        if gateway.poll() is not None or time.monotonic() - begun_s > START_S_MAX:
            raise SystemExit(log.read_text(errors="replace") or f"no answer: {log}")


def measure(name: str, command: str, told: argparse.Namespace, folder: Path) -> tuple[float, int]:
    """Returns the instructions per request (with `--stream` per event), and how many answers were bad."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    port, *engines = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    out, log = folder / f"{name}.callgrind", folder / f"{name}.log"
    gap = ["--delay-ms", "400", "--gap-ms", "20"] if told.stream else []
    urls = [f"http://127.0.0.1:{each}" for each in engines]
    counted = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", "-q"]
    counted += shlex.split(command.format(port=port, a=urls[0], b=urls[1]))
    with contextlib.ExitStack() as stack:
        for each_port in engines:
            stack.enter_context(_running([sys.executable, str(HERE / "engine.py"), str(each_port), *gap]))
        gateway = stack.enter_context(_running(counted, log, PYTHONHASHSEED="0"))
        _await(port, gateway, log)
        time.sleep(3.0)  # until the endpoints' first readings are in
        load(port, told.connections if told.stream else max(told.connections, told.n // 2), told, 5 * 10**6)

        def control(*words: str) -> None:
            subprocess.run(["callgrind_control", *words, str(gateway.pid)], capture_output=True, check=False)

        control("-i", "on")
        bad, events = load(port, told.n, told)
        control("-i", "off")
        control("-d")
        time.sleep(1.0)  # until the dump is written
    totals = [0]
    for file in folder.glob(f"{name}.callgrind*"):
        totals += [int(line.split()[1]) for line in file.open(errors="replace") if line.startswith("totals:")]
    return max(totals) / (events if told.stream else told.n), bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock", nargs="*", help="paths of `penstock` of several builds; the first is the measure")
    parser.add_argument("--command", action="append", default=[], help="another router, with {port}, {a} and {b}")
    parser.add_argument("--size", type=int, default=300, help="bytes of a body")
    parser.add_argument("--n", type=int, default=200, help="requests counted")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--stream", action="store_true", help="instructions per event of a stream")
    parser.add_argument("--flags", default="", help='more of `penstock serve`, such as "--slots 256"')
    parser.add_argument("--keep", type=Path, help="the folder for callgrind's files")
    told = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed: apt-get install valgrind")
    serve = "serve --listen 127.0.0.1:{port} --endpoint {a} --endpoint {b}"
    commands = [(f"gateway{at}", f"{path} {serve} {told.flags}") for at, path in enumerate(told.penstock)]
    commands += [(f"other{at}", command) for at, command in enumerate(told.command)]
    folder = told.keep or Path(tempfile.mkdtemp(prefix="instructions-"))
    folder.mkdir(parents=True, exist_ok=True)
    first = 0.0
    for name, command in commands:
        count, bad = measure(name, command, told, folder)
        first = first or count
        per = "event" if told.stream else "request"
        program = command.split()[0]
        print(f"{count:,.0f} instructions a {per}, {count / first:.3f} of the first; {bad} bad; {program}", flush=True)


if __name__ == "__main__":
    main()
