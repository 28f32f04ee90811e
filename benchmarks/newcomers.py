"""How long does a new connection wait for its first byte while 500 streams run? Beside the same without streams.

Each newcomer connects, asks for a short answer that the engine has at once, and leaves. The streams come from another
process and begin one by one within the time that one takes, so they end and begin anew evenly: begun at once, all 500
would end in one moment and send 500 requests in the next, and the newcomers would wait for those, not for the streams.
The engines step all streams of theirs at once, as engines do. Rounds are interleaved; read the difference of the 99th
percentiles, and that of a raw hop in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time

from closed_loop import HERE, free_port, started

STREAM_STEP_MS = 50
STREAM_S = 100 * STREAM_STEP_MS / 1000  # `engine.EVENTS` steps


async def newcomers(port: int, seconds: float, every_s: float) -> list[float]:
    """The milliseconds from connecting to the first byte of each answer."""
    body = b'{"model": "bench", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}'
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    times: list[float] = []

    async def one() -> None:
        began_s = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        assert await reader.read(1) == b"H"
        times.append((time.perf_counter() - began_s) * 1000)
        writer.close()

    until_s = time.perf_counter() + seconds
    tasks = []
    while time.perf_counter() < until_s:
        tasks.append(asyncio.ensure_future(one()))
        await asyncio.sleep(every_s)
    await asyncio.gather(*tasks)
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--every-ms", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="whose gateway: that of a compiled build, too")
    args = parser.parse_args()
    engines = [free_port(), free_port()]
    urls = [part for port in engines for part in ("--endpoint", f"http://127.0.0.1:{port}")]
    hop, gate = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(engines[0], sys.executable, HERE / "engine.py", *engines))
        stack.enter_context(started(hop, sys.executable, HERE / "hop.py", "--port", hop, "--engines", *engines))
        serve = [args.python, "-m", "penstock", "serve", "--listen", f"127.0.0.1:{gate}", *urls]
        stack.enter_context(started(gate, *serve, "--slots", "1000", "--log-level", "error"))
        time.sleep(1.0)
        subprocess.run(
            ["curl", "-s", f"http://127.0.0.1:{engines[0]}/step/{STREAM_STEP_MS}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        print("what       streams   newcomers   p50 ms   p99 ms   max ms")
        for _ in range(args.rounds):
            for name, port in (("hop", hop), ("penstock", gate)):
                p99: list[float] = []
                for streams in (0, args.streams):
                    with contextlib.ExitStack() as load:
                        if streams:
                            command = [
                                sys.executable,
                                HERE / "client.py",
                                "--port",
                                port,
                                "--stream",
                                "--connections",
                                streams,
                            ]
                            command += ["--spread", STREAM_S, "--warm-up", "1", "--seconds", args.seconds + 5]
                            process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
                            load.callback(process.wait)
                            load.callback(process.kill)
                            time.sleep(STREAM_S + 3.0)
                        times = asyncio.run(newcomers(port, args.seconds, args.every_ms / 1000))
                    p99.append(times[int(len(times) * 0.99)])
                    p50 = times[len(times) // 2]
                    told = f"{name:10} {streams:7} {len(times):11} {p50:8.1f} {p99[-1]:8.1f} {times[-1]:8.1f}"
                    print(told, flush=True)
                    time.sleep(1.0)
                print(
                    f"{name}: 99 of 100 wait {p99[1] - p99[0]:+.1f} ms beside the streams (goal of Penstock: 50)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
