"""What do thousands of open streams and twice as many waiting requests cost one process?

A paced engine, the gateway and the client are processes of their own. `--streams` long streams share `--rate` events a
second, spread over time as those of many engines are; then `--waiting` requests queue behind them. While both stand,
for `--seconds`: the gateway's CPU time per event, the round trip of `GET /livez` on a kept connection (the loop's lag
as others feel it, from a process of its own), and the loop's lag as the gateway measures it. Memory is the growth of
the resident set, divided by what was added. Then SIGTERM comes and the engine ends its streams: draining is the time
until the last waiting request is answered and the process is gone. An open stream takes two files of the gateway's,
a waiting request one: `ulimit -n` has to allow 2 × streams + waiting + 256.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rig import Gateway, cpu_s_of, free_port, gateway, machine, started
from streams import ENGINE_HEAD, LAST, Engine, Stream, chunk, chunks, request

STEP_S = 0.02
READ_EVERY_S = 0.25
SHORT_EVENTS = 4
PROBE_EVERY_S = 0.02
LONG_EVENTS = 1 << 30
DRAIN_S_MAX = 300.0


class LongStream(Stream):
    """An answer of any length; what it sends is not kept."""

    def __init__(self, sock: socket.socket, name: int, events: int) -> None:
        self.sock, self.unsent, self.left = sock, ENGINE_HEAD, []
        self.name, self.events = name, events
        self.ends = [b"0\r\n\r\n", *(chunk(event) for event in reversed(LAST))]

    def step(self) -> bool:
        """Send the next event; False when there is nothing left."""
        if self.events > 0:
            self.events -= 1
            own = chunks()
            self.left = [own[(self.name * 577 + self.events * 7) % len(own)]]
        elif self.ends:
            self.left = [self.ends.pop()]
        return super().step() or self.events > 0 or bool(self.ends)


class PacedEngine(Engine):
    """Steps a part of its streams every `STEP_S`. SIGUSR1 ends the long ones."""

    def __init__(self, port: int, streams: int, rate: float) -> None:
        super().__init__(port, 0, 0.0, 0)
        self._long, self._parts = streams, max(1, round(streams / rate / STEP_S))
        signal.signal(signal.SIGUSR1, self._end)

    def run(self) -> None:
        """Serve until killed."""
        chunks()
        part, next_s = 0, time.monotonic()
        while True:
            over = {id(stream) for stream in self._streams[part :: self._parts] if not stream.step()}
            if over:
                self._streams = [stream for stream in self._streams if id(stream) not in over]
            part = (part + 1) % self._parts
            next_s = max(next_s + STEP_S, time.monotonic() - 1.0)
            self._hear(max(0.0, next_s - time.monotonic()))
            while (left_s := next_s - time.monotonic()) > 0:
                self._hear(left_s)

    def _answer(self, sock: socket.socket, data: bytes) -> bytes:
        before = len(self._streams)
        left = super()._answer(sock, data)
        for at in range(before, len(self._streams)):
            name = int(json.loads(data.partition(b"\r\n\r\n")[2])["messages"][0]["content"])
            self._streams[at] = LongStream(sock, name, LONG_EVENTS if name < self._long else SHORT_EVENTS)
        return left

    def _end(self, *_: object) -> None:
        self._parts, self._long = 1, 0
        for stream in self._streams:
            if isinstance(stream, LongStream):
                stream.events = 0


class Clients:
    """Connections that are read in a thread: how many events came, and how many answers are whole."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reading: list[tuple[socket.socket, list[bytes]]] = []
        self._opened: list[tuple[socket.socket, list[bytes]]] = []
        self._at_work = True
        self.events = self.whole = self.broken = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def open(self, names: range) -> None:
        for name in names:
            sock = socket.create_connection(("127.0.0.1", self._port), source_address=(f"127.0.0.{2 + name % 8}", 0))
            sock.sendall(request(name))
            sock.setblocking(False)
            self._opened.append((sock, [b""]))

    @property
    def left(self) -> int:
        return len(self._reading) + len(self._opened)

    def _read(self) -> None:
        while True:
            opened, self._opened = self._opened, []
            self._reading = [it for it in self._reading + opened if self._more(*it)]
            time.sleep(READ_EVERY_S)

    def _more(self, sock: socket.socket, tail: list[bytes]) -> bool:
        try:
            data = sock.recv(1 << 18)
        except BlockingIOError:
            return True
        except ConnectionError:
            data = b""
        if data:
            self.events += data.count(b"data: ")
            tail[0] = (tail[0] + data)[-40:]
            return True
        whole = tail[0].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        self.whole, self.broken = self.whole + whole, self.broken + (not whole)
        sock.close()
        return False


def probe(port: int, seconds: float) -> None:
    """Print how long `GET /livez` took, in milliseconds, again and again."""
    connection, took = http.client.HTTPConnection("127.0.0.1", port), []
    until_s = time.monotonic() + seconds
    while (began_s := time.monotonic()) < until_s:
        connection.request("GET", "/livez")
        connection.getresponse().read()
        took.append((time.monotonic() - began_s) * 1e3)
        time.sleep(PROBE_EVERY_S)
    print(json.dumps(took))


def until(penstock: Gateway, series: str, count: int) -> int:
    """Wait for a level; the resident memory then."""
    while penstock.metric(series) < count:
        time.sleep(0.5)
    time.sleep(1.0)
    return penstock.rss_bytes()


def steady(penstock: Gateway, clients: Clients, seconds: float) -> dict[str, float]:
    """What is measured while all stand."""
    command = [sys.executable, __file__, "--probe", str(penstock.port), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as prober:
        cpu_s, events, began_s = penstock.cpu_s(), clients.events, time.monotonic()
        time.sleep(seconds)
        took_s, cpu_s, events = time.monotonic() - began_s, penstock.cpu_s() - cpu_s, clients.events - events
        assert prober.stdout is not None
        trips = sorted(json.loads(prober.stdout.read()))
    lags = [penstock.metric("penstock_event_loop_lag_seconds") * 1e3]
    for _ in range(9):
        time.sleep(0.5)
        lags.append(penstock.metric("penstock_event_loop_lag_seconds") * 1e3)
    return {
        "events_per_s": round(events / took_s),
        "cpu_us_per_event": round(cpu_s * 1e6 / max(1, events), 1),
        "cpu_share": round(cpu_s / took_s, 2),
        "livez_ms_p50": round(trips[len(trips) // 2], 1),
        "livez_ms_p99": round(trips[len(trips) * 99 // 100], 1),
        "loop_lag_ms_median_of_10": round(sorted(lags)[5], 1),
        "loop_lag_ms_most_of_10": round(max(lags), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=50_000, help="events a second, of all streams together")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.engine:
        PacedEngine(args.engine, args.streams, args.rate).run()
        return 0
    if args.probe:
        probe(args.probe, args.seconds)
        return 0
    count, needed = args.streams + args.waiting, 2 * args.streams + args.waiting + 256
    if hard != resource.RLIM_INFINITY and hard < needed:
        parser.error(f"a process may open {hard} files here, {needed} are needed: raise `ulimit -n`, or ask for less")
    port = free_port()
    settings = {
        "endpoints": [
            {"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["m"], "slots": max(1, args.streams)}
        ],
        "queue": {"max_requests": 2 * count, "max_wait": "1h", "drain_timeout": DRAIN_S_MAX},
        "limits": {"max_connections": count + 100, "max_connections_per_address": count + 100},
        "observe": {"interval": "60s", "fast_interval": "60s"},
    }
    command = [sys.executable, __file__, *sys.argv[1:], "--engine", str(port)]
    with (
        tempfile.TemporaryDirectory() as folder,
        started(command) as engine,
        gateway(Path(folder), settings) as penstock,
    ):
        clients, began_s = Clients(penstock.port), time.monotonic()
        empty = until(penstock, "penstock_leases", 0)  # some modules are imported after the start
        clients.open(range(args.streams))
        print(f"{args.streams:,} sent, {time.monotonic() - began_s:.1f} s", file=sys.stderr)
        streaming = until(penstock, "penstock_leases", args.streams)
        clients.open(range(args.streams, count))
        print(f"all sent, {time.monotonic() - began_s:.1f} s", file=sys.stderr)
        standing = until(penstock, "penstock_queued_requests", args.waiting)
        figures: dict[str, float] = {"opened_s": round(time.monotonic() - began_s, 1)}
        figures |= {
            "stream_kib": round((streaming - empty) / 1024 / max(1, args.streams), 1),
            "waiting_kib": round((standing - streaming) / 1024 / max(1, args.waiting), 1),
            "rss_mib": round(standing / 2**20, 1),
        }
        figures |= steady(penstock, clients, args.seconds)
        figures["engine_cpu_s"] = round(cpu_s_of(engine.pid), 1)
        cpu_s, began_s = penstock.cpu_s(), time.monotonic()
        figures |= drained(penstock, engine, clients, cpu_s, began_s)
    print(machine())
    for name, value in figures.items():
        print(f"{name:>25}  {value:,}")
    return 1 if clients.broken or clients.left else 0


def drained(
    penstock: Gateway, engine: subprocess.Popen[bytes], clients: Clients, cpu_s: float, began_s: float
) -> dict[str, float]:
    """SIGTERM to the gateway and the end of all streams, until all are answered."""
    os.kill(penstock.pid, signal.SIGTERM)
    engine.send_signal(signal.SIGUSR1)
    last_s = cpu_s
    while clients.left and time.monotonic() - began_s < DRAIN_S_MAX:
        time.sleep(0.1)
        last_s = max(last_s, cpu_s_of(penstock.pid))
    return {
        "drained_s": round(time.monotonic() - began_s, 1),
        "drain_cpu_s": round(last_s - cpu_s, 1),
        "whole_answers": clients.whole,
        "broken_answers": clients.broken + clients.left,
    }


if __name__ == "__main__":
    sys.exit(main())
