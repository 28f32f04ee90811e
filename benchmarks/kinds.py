"""The throughput cost of bodies of several kinds. The gateway beside the engine alone.

One simulated engine over HTTP (a picture is a thousand tokens to it), as many requests at once as it has slots, first
straight to it and then through a gateway with its default settings and the engine's slots told. `ratio` is the time
straight over the time through; the work is the same. Nothing is learned yet when the first of them come.

python benchmarks/kinds.py
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import overhead

REQUESTS = 64
_SERIAL = itertools.count()
RANDOM = random.Random(5)


def _b64(size: int) -> str:
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + RANDOM.randbytes(size)).decode()


def _chat(*parts: object) -> dict[str, object]:
    return {"model": "sim", "max_tokens": 20, "messages": [{"role": "user", "content": list(parts)}]}


def _text(words: int = 200) -> dict[str, object]:
    return {"type": "text", "text": "some words to go on with " * (words // 5)}


PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_b64(300_000)}"}}
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "texts": ("/v1/chat/completions", _chat(_text())),
    "pictures of 300 KB": ("/v1/chat/completions", _chat(_text(), PICTURE)),
    "sounds of 300 KB": (
        "/v1/chat/completions",
        _chat(_text(), {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{_b64(300_000)}"}}),
    ),
    "files of 300 KB": (
        "/v1/chat/completions",
        _chat(_text(), {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{_b64(300_000)}"}}),
    ),
    "embeddings of 2,000 inputs": ("/v1/embeddings", {"model": "sim", "input": ["a few words"] * 2000}),
}


def _alone(asked: list[tuple[str, dict[str, object]]]) -> list[tuple[str, bytes]]:
    """Bodies that no other one begins like: an engine finds nothing of them in its cache."""
    return [(path, json.dumps(body).replace("words", f"{next(_SERIAL):06d}", 1).encode()) for path, body in asked]


async def _ask(port: int, path: str, body: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % path.encode())
    writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    await reader.readexactly(int(length.split(b":")[1]))
    writer.close()
    return int(head.split(b" ")[1])


async def _timed(port: int, bodies: list[tuple[str, bytes]]) -> tuple[float, dict[int, int]]:
    begun_s = time.monotonic()
    answers = await asyncio.gather(*[_ask(port, path, body) for path, body in bodies])
    counts = {status: answers.count(status) for status in set(answers)}
    return time.monotonic() - begun_s, counts


def _lists_models(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2) as page:
        return bool(page.status == 200)
    return False


@contextlib.contextmanager
def _both() -> Iterator[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        engine, gateway = overhead.free_port(), overhead.free_port()
        python = [sys.executable, "-m", "penstock"]
        command = [*python, "engine", "--port", str(engine)]
        stack.enter_context(overhead.running(command, Path(folder) / "engine.log"))
        settings = Path(folder) / "gateway.yaml"
        settings.write_text(
            json.dumps(
                {
                    "listen": f"127.0.0.1:{gateway}",
                    "endpoints": [{"url": f"http://127.0.0.1:{engine}", "slots": 64}],
                }
            )
        )
        for port, more in ((engine, None), (gateway, [*python, "serve", "--config", str(settings)])):
            if more is not None:
                stack.enter_context(overhead.running(more, Path(folder) / "gateway.log"))
            until_s = time.monotonic() + 60
            while not _lists_models(port):
                if time.monotonic() > until_s:
                    raise SystemExit((Path(folder) / "gateway.log").read_text()[-2000:])
                time.sleep(0.2)
        time.sleep(1.5)  # the engine's page is read
        yield engine, gateway


def main() -> int:
    mixed = [KINDS["texts"], KINDS["pictures of 300 KB"]] * (REQUESTS // 2)
    rows = {name: [kind] * REQUESTS for name, kind in KINDS.items()} | {"texts and pictures, half each": mixed}
    with _both() as (engine, gateway):
        for name, asked in rows.items():
            straight_s, _ = asyncio.run(_timed(engine, _alone(asked)))
            through_s, answers = asyncio.run(_timed(gateway, _alone(asked)))
            row = {"kind": name, "straight_s": round(straight_s, 2), "through_s": round(through_s, 2)}
            print(json.dumps({**row, "ratio": round(straight_s / through_s, 2), "answers": answers}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
