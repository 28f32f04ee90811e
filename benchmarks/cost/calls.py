"""How far does one request walk? Python calls, files and changes of file inside `penstock`, for a chat answered by a
stream of three tokens and for one answered whole.

The gateway runs in this process with its defaults, before two engines of `engine.py`; a thread sends requests, each on
a new connection. The gateway's clock goes on with each reading, so a busy machine makes no answer slower, and no work
due that is done once in so many seconds. Work of timers falls between some requests, and now and then two tokens come
together, so each function counts with the lower quartile of its calls in 61 ways. `--record` writes the figures, with
each function's calls, to `calls.json`, which a test compares (`tests/gateway/test_cost.py`). For plain Python only:
compiled functions are not seen.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "calls.json"
WARM_UP, COUNTED = 12, 61
READING_S = 0.001  # of the gateway's clock, from one reading to the next
_BODY = {"model": "bench-model", "max_tokens": 3, "messages": [{"role": "user", "content": "Say three words."}]}

trail: list[tuple[str, str]] = []
counts = False


def _profile(frame: FrameType, kind: str, _: object) -> None:
    if counts and kind == "call":
        file = frame.f_code.co_filename
        at = file.rfind("/penstock/")
        if at >= 0:
            trail.append((file[at + 10 :], frame.f_code.co_qualname))


def _ask(port: int, stream: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"content-type": "application/json", "x-tenant-id": "team"}
    connection.request("POST", "/v1/chat/completions", json.dumps({**_BODY, "stream": stream}), headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.status == 200, answer.status


def _once(port: int, stream: bool) -> list[tuple[str, str]]:
    """Returns the functions that were entered for one request, in order."""
    global counts, trail  # noqa: PLW0603  # the profiler of another thread fills it
    trail = []
    counts = True
    _ask(port, stream)
    time.sleep(0.005)  # until the answer's end is settled
    counts = False
    return trail


def _lower_quartile(found: Iterable[int]) -> int:
    ordered = sorted(found)
    return ordered[len(ordered) // 4]


def _figures(walks: list[list[tuple[str, str]]]) -> dict[str, Any]:
    counted = [collections.Counter(walked) for walked in walks]
    usual = {called: _lower_quartile(its[called] for its in counted) for called in sorted(set().union(*counted))}
    functions = {called: count for called, count in usual.items() if count}
    own = [[file for file, function in walked if (file, function) in functions] for walked in walks]
    return {
        "calls": sum(functions.values()),
        "files": len({file for file, _ in functions}),
        "changes": _lower_quartile(sum(a != b for a, b in itertools.pairwise(files)) for files in own),
        "functions": {f"{file}:{function}": count for (file, function), count in functions.items()},
    }


def measured(port: int) -> dict[str, Any]:
    """Returns the figures of a `stream` and of a `whole` answer."""
    for _ in range(300):
        try:
            _ask(port, stream=True)
            break
        except (OSError, AssertionError):
            time.sleep(0.1)
    time.sleep(2.0)  # until the endpoints' first readings are in
    for _ in range(WARM_UP):
        _ask(port, stream=True)
        _ask(port, stream=False)
    found = {}
    for name, stream in (("stream", True), ("whole", False)):
        found[name] = _figures([_once(port, stream) for _ in range(COUNTED)])
    return found


def _beside(found: dict[str, Any], recorded: dict[str, Any]) -> str:
    """Returns a line for each way, its figures beside the recorded ones."""
    kinds = ("calls", "files", "changes")
    return "\n".join(
        f"{name}: " + ", ".join(f"{its[kind]} {kind} (recorded: {recorded[name][kind]})" for kind in kinds)
        for name, its in found.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("?")[0])
    parser.add_argument("--json", action="store_true", help="all figures, with each function's calls")
    parser.add_argument("--record", action="store_true", help=f"write them to {RECORDED.name}")
    told = parser.parse_args()
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    port, *ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    script = str(HERE / "engine.py")
    engines = [subprocess.Popen([sys.executable, script, str(p), "--chunks", "3", "--gap-ms", "10"]) for p in ports]

    def drive() -> None:
        code = 1
        try:
            found, recorded = measured(port), json.loads(RECORDED.read_text())
            if told.record:
                RECORDED.write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps(found) if told.json else _beside(found, recorded), flush=True)
            code = 0
        finally:
            for engine in engines:
                engine.kill()
            os._exit(code)

    threading.Thread(target=drive, daemon=True).start()
    sys.argv = ["penstock", "serve", "--listen", f"127.0.0.1:{port}"]
    for each_port in ports:
        sys.argv += ["--endpoint", f"http://127.0.0.1:{each_port}"]
    from penstock import clock  # noqa: PLC0415  # only counted from here on

    readings = itertools.count()
    clock.now = lambda: next(readings) * READING_S
    from penstock.cli.main import main as penstock  # noqa: PLC0415  # now that it finds this clock

    sys.setprofile(_profile)
    penstock()


if __name__ == "__main__":
    main()
