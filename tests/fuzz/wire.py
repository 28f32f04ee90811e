"""A gateway process between clients and an engine that send mutated bytes: does it stay whole?

    python -m tests.fuzz.wire [--seconds 60] [--seed N]

Kept requests and answers are mutated (tests/fuzz/mutate.py), with a right length or as they come, and sent in pieces
over real sockets. Whatever comes, the gateway answers `/health`, logs no traceback, ends with status 0, and afterwards
has all its places for uploads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path
from random import Random

from tests.fuzz.mutate import mutated
from tests.fuzz.outcomes import corpus
from tests.patience import WAIT_S
from tests.ports import free_port

CLIENTS = 8
UPLOADS_MAX = 64  # of one tenant, at once
FAULTS = ("Traceback", "SystemError", "Exception in callback", "never retrieved", "Segmentation")
_FORM = b"multipart/form-data; boundary=edge"
#: Path, content type, and the target whose kept inputs are the bodies.
_KINDS = (
    ("/v1/chat/completions", b"application/json", "body"),
    ("/v1/completions", b"application/json", "body"),
    ("/v1/embeddings", b"application/json", "body"),
    ("/v1/batches", b"application/json", "body"),
    ("/v1/files", _FORM, "multipart"),
    ("/v1/audio/transcriptions", _FORM, "form"),
)


def _request(random: Random, seed: int) -> bytes:
    """One request, or what a mutation leaves of it."""
    if random.random() < 0.2:
        return mutated(corpus("request_parser"), "request_parser", seed)
    path, kind, name = random.choice(_KINDS)
    body = mutated(corpus(name), name, seed)
    head = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-type: %b\r\n" % (path.encode(), kind)
    if random.random() < 0.2:
        body = gzip.compress(body, 1)
        body = body[: random.randrange(len(body) + 1)] if random.random() < 0.3 else body
        head += b"content-encoding: gzip\r\n"
    if random.random() < 0.5:
        return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)
    cut = random.randrange(len(body) + 1)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:cut], body[cut:]) if piece)
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _answer(random: Random, seed: int) -> bytes:
    choice = random.random()
    if choice < 0.3:
        return mutated(corpus("response_parser"), "response_parser", seed)[1:]
    if choice < 0.8:
        name = random.choice(("stream", "hidden", "opening"))
        body, kind = mutated(corpus(name), name, seed)[1:], b"text/event-stream"
    else:
        body, kind = mutated(corpus("body"), "body", seed), b"application/json"
    coding = b""
    if random.random() < 0.2:
        body, coding = gzip.compress(body, 1), b"content-encoding: gzip\r\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (kind, coding, len(body), body)


async def _engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with whatever it may be, and lists its model."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = b'{"object":"list","data":[{"id":"m"},{"id":"other"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        else:
            seed = zlib.crc32(head)
            random = Random(seed)
            whole = _answer(random, seed)
            for at in range(0, len(whole), 200):
                writer.write(whole[at : at + 200])
                await writer.drain()
    writer.close()


class Fuzzed:
    """The gateway, and what was sent to it."""

    def __init__(self, folder: Path, port: int, engine: int) -> None:
        self.port = port
        self.log = folder / "log"
        self.sent = 0
        self.settings = folder / "penstock.json"
        self.settings.write_text(
            json.dumps(
                {
                    "listen": f"127.0.0.1:{port}",
                    "endpoints": [
                        {"url": f"http://127.0.0.1:{engine}", "engine": "openai", "models": ["m", "other"], "slots": 64}
                    ],
                    "batch": {"data": str(folder / "store")},
                    "timeouts": {"client_body": "1s", "client_header": "1s", "first_byte": "2s", "between_bytes": "2s"},
                    "queue": {"max_wait": "2s"},
                }
            )
        )

    async def ask(self, data: bytes, pieces: int, wait_s: float) -> bytes:
        """Send bytes in pieces; returns what came within `wait_s`, or until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        came = b""
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(wait_s):
                    for at in range(0, len(data), max(1, len(data) // pieces)):
                        writer.write(data[at : at + max(1, len(data) // pieces)])
                        await writer.drain()
                    while not came.startswith(b"HTTP/1.1 4") and (more := await reader.read(65536)):
                        came += more
        finally:
            writer.transport.abort()
        return came

    async def client(self, seed: int, until_s: float) -> None:
        while time.monotonic() < until_s:
            random = Random(seed)
            await self.ask(_request(random, seed), random.randrange(1, 5), random.choice((0.02, 0.1, 0.3)))
            self.sent += 1
            seed += CLIENTS

    async def healthy(self) -> bool:
        return (await self.ask(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 1, WAIT_S)).startswith(
            b"HTTP/1.1 200"
        )

    async def places(self) -> int:
        """How many uploads may begin at once."""
        head = b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-type: %b\r\ncontent-length: 9999\r\n\r\n--edge" % _FORM
        ends = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(UPLOADS_MAX)]
        free = 0
        for reader, writer in ends:
            writer.write(head)
            await writer.drain()
            try:
                await asyncio.wait_for(reader.read(64), 0.02)  # one that is refused is told so
            except TimeoutError:
                free += 1
        for _, writer in ends:
            writer.transport.abort()
        return free

    def faults(self) -> list[str]:
        text = self.log.read_text(errors="replace")
        return [text[max(0, text.find(word) - 300) : text.find(word) + 3000] for word in FAULTS if word in text]


async def run(folder: Path, seconds: float, seed: int) -> list[str]:
    """Returns what went wrong."""
    engine = await asyncio.start_server(_engine, "127.0.0.1", 0)
    fuzzed = Fuzzed(folder, free_port(), engine.sockets[0].getsockname()[1])
    with fuzzed.log.open("w") as log:
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", "serve", str(fuzzed.settings), stdout=log, stderr=log
        )
    wrong: list[str] = []
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                if await fuzzed.healthy():
                    break
            await asyncio.sleep(0.1)
        until_s = time.monotonic() + seconds
        clients = [asyncio.create_task(fuzzed.client(seed + at, until_s)) for at in range(CLIENTS)]
        while time.monotonic() < until_s and not wrong:
            await asyncio.sleep(min(5.0, seconds / 4))
            if gateway.returncode is not None:
                wrong.append(f"the gateway ended with {gateway.returncode}")
            elif not await fuzzed.healthy():
                wrong.append(f"no answer to /health within {WAIT_S} s")
            wrong += fuzzed.faults()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        if not wrong:
            free = 0
            for _ in range(30):  # those that are given up are noticed within a second or two
                if (free := await fuzzed.places()) == UPLOADS_MAX:
                    break
                await asyncio.sleep(0.5)
            if free != UPLOADS_MAX:
                wrong.append(f"{free} of {UPLOADS_MAX} places for uploads are free")
    finally:
        if gateway.returncode is None:
            gateway.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(gateway.wait(), 60)
        engine.close()
    wrong += [f"the gateway ended with {code}"] if code and not wrong else []
    print(f"{fuzzed.sent} requests from seed {seed} on: {'; '.join(wrong) or 'nothing went wrong'}", flush=True)
    return wrong + fuzzed.faults()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.wire", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 1 if asyncio.run(run(Path(folder), args.seconds, args.seed)) else 0


if __name__ == "__main__":
    sys.exit(main())
