"""A flood through a gateway without settings: 64 streams in flight, and one light request a second.

For each way in which the two callers may differ (API key, `user`, address, the header `x-tenant-id`, nothing), the
light one's time to first token. Before engines that are there, real or simulated:

penstock serve --listen 127.0.0.1:8080 --endpoint URL1 --endpoint URL2
python -m benchmarks.first_day http://127.0.0.1:8080 MODEL [--seconds 40] [--ways key nothing]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from typing import Any

import httpx2

FLOOD, FLOOD_TOKENS, LIGHT_TOKENS = 64, 128, 16
WARM_S = 3.0  # until the flood stands
WAYS = ("key", "user", "address", "header", "nothing")


def caller(way: str, name: str) -> tuple[dict[str, str], dict[str, str], str | None]:
    """Returns headers, fields of the body and the address by which a caller differs from the other."""
    headers = {"key": {"authorization": f"Bearer sk-{name}"}, "header": {"x-tenant-id": name}}.get(way, {})
    address = {"flood": "127.0.0.2", "light": "127.0.0.3"}[name] if way == "address" else None
    return headers, {"user": name} if way == "user" else {}, address


async def first_token_s(client: httpx2.AsyncClient, model: str, tokens: int, more: dict[str, str]) -> float | None:
    """Returns the time to the first event of one stream; None if it failed."""
    prompt = " ".join(str(random.randrange(1000)) for _ in range(20))
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, **more}
    began_s, first_s = time.monotonic(), None
    try:
        async with client.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as answer:
            async for line in answer.aiter_lines():
                if first_s is None and answer.status_code == 200 and line.startswith("data:"):
                    first_s = time.monotonic() - began_s
    except httpx2.HTTPError:
        return None
    return first_s


async def measure(url: str, model: str, way: str, seconds: float) -> None:
    """Print one line for one way."""

    def client(name: str) -> tuple[httpx2.AsyncClient, dict[str, str]]:
        headers, fields, address = caller(way, name)
        limits = httpx2.Limits(max_connections=2 * FLOOD)
        transport = httpx2.AsyncHTTPTransport(local_address=address, limits=limits)
        return httpx2.AsyncClient(base_url=url, headers=headers, timeout=120.0, transport=transport), fields

    (flood, of_flood), (light, of_light) = client("flood"), client("light")

    async def keep_asking() -> None:
        while True:
            await first_token_s(flood, model, FLOOD_TOKENS, of_flood)

    async with flood, light:
        load = [asyncio.create_task(keep_asking()) for _ in range(FLOOD)]
        await asyncio.sleep(WARM_S)
        asked = []
        for _ in range(int(seconds)):
            asked.append(asyncio.create_task(first_token_s(light, model, LIGHT_TOKENS, of_light)))
            await asyncio.sleep(1.0)
        times = sorted([one for one in await asyncio.gather(*asked) if one is not None])
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    p50, p90 = (times[min(len(times) - 1, int(part * len(times)))] if times else -1.0 for part in (0.5, 0.9))
    most = times[-1] if times else -1.0
    print(
        f"{way:8} light TTFT p50 {p50:.2f} s, p90 {p90:.2f} s, most {most:.2f} s; {len(times)} of {len(asked)} answered"
    )


async def run(args: argparse.Namespace) -> None:
    for way in args.ways:
        await measure(args.url, args.model, way, args.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--seconds", type=float, default=40.0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
