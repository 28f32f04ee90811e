"""Agents' sessions before a real vLLM on this CPU whose KV memory does not hold them: the gate, and no gate.

Needs the installation of `make test-engines`. Each session is a chat that grows from 2,000 to 6,000 tokens, a new one
follows; its client thinks for a while between turns. The gateways with `sessions.memory: auto` and `off` stand before
the same vLLM and are asked in turn, each round in the other order. Hit rate and tokens are of the engine's own
counters, `left` is what the gateway knows of its memory.

python -m benchmarks.agents_real [--sessions 8 16 24] [--rounds 3] [--seconds 45] [--blocks 1024] [--wait 20s]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from tests.engines.real.processes import BLOCK_TOKENS, MODEL, Gateway, Vllm, fetch, say, series

FIRST_TOKENS, LAST_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 2000, 6000, 250, 24
THINKS_S = (0.2, 1.0)
WARM_S = 12.0  # of each turn of a way
ANSWER_S_MAX = 120.0
COUNTED = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:generation_tokens_total")


class Agent:
    """One client after another of one place: sessions that grow, each with words of its own."""

    def __init__(self, name: str, words_a_token: float) -> None:
        self._name = name
        self._words_a_token = words_a_token
        self._random = random.Random(name)
        self._session = 0
        self._messages: list[dict[str, str]] = []
        self._tokens = self._random.randrange(FIRST_TOKENS, LAST_TOKENS)  # the first ones stand anywhere
        self._grow(self._tokens)

    def _grow(self, tokens: int) -> None:
        words = [str(self._random.randrange(10_000)) for _ in range(round(tokens * self._words_a_token))]
        self._messages.append({"role": "user", "content": " ".join(words)})

    async def turns(self, url: str, until_s: float, firsts: list[tuple[float, float]], failed: list[str]) -> None:
        """Take turns until then; a turn under way is given up."""
        async with httpx2.AsyncClient(base_url=url, timeout=ANSWER_S_MAX) as client:
            while True:
                asked_s = time.monotonic()
                body = {"model": MODEL, "messages": self._messages, "max_tokens": ANSWER_TOKENS, "stream": True}
                body |= {"ignore_eos": True, "temperature": 0}
                headers = {"x-session-id": f"{self._name}-{self._session}"}
                first_s, text = None, ""
                async with asyncio.timeout(until_s - asked_s):
                    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                        async for line in answer.aiter_lines():
                            if answer.status_code != 200:
                                failed.append(line)
                            elif line.startswith("data: {"):
                                first_s = first_s or time.monotonic()
                                text += "".join(
                                    c["delta"].get("content") or "" for c in json.loads(line[6:])["choices"]
                                )
                    if first_s is not None:
                        firsts.append((first_s, first_s - asked_s))
                    self._messages.append({"role": "assistant", "content": text})
                    self._tokens += TURN_TOKENS + ANSWER_TOKENS
                    if self._tokens > LAST_TOKENS:
                        self._session, self._messages, self._tokens = self._session + 1, [], FIRST_TOKENS
                    self._grow(TURN_TOKENS if self._messages else FIRST_TOKENS)
                    await asyncio.sleep(self._random.uniform(*THINKS_S))


async def turn(
    url: str, engine: Vllm, sessions: int, seconds: float, name: str, words_a_token: float
) -> dict[str, Any]:
    """One way for so long."""
    agents = [Agent(f"{name}-{number}", words_a_token) for number in range(sessions)]
    firsts: list[tuple[float, float]] = []
    failed: list[str] = []
    began_s = time.monotonic()
    until_s = began_s + WARM_S + seconds
    work = [asyncio.create_task(agent.turns(url, until_s, firsts, failed)) for agent in agents]
    await asyncio.sleep(WARM_S)
    before = counters(engine)
    await asyncio.sleep(max(0.0, until_s - 0.5 - time.monotonic()))
    after = counters(engine)
    ended = await asyncio.gather(*work, return_exceptions=True)
    odd = [repr(end) for end in ended if not isinstance(end, TimeoutError)]
    hits, queries, tokens = (now - then for now, then in zip(after, before, strict=True))
    times = sorted(took_s for at_s, took_s in firsts if at_s > began_s + WARM_S)
    return {
        "hit_rate": hits / max(1.0, queries),
        "tokens_per_s": tokens / (seconds - 0.5),
        "ttft_p50_s": times[len(times) // 2],
        "ttft_p90_s": times[int(0.9 * len(times))],
        "ttft_longest_s": times[-1],
        "turns": len(times),
        "failed": len(failed) + len(odd),
    }


def counters(engine: Vllm) -> list[float]:
    page = fetch(engine.url + "/metrics")[1]
    return [series(page, name) for name in COUNTED]


def words_a_token(engine: Vllm) -> float:
    """How many of an agent's words make a token of the engine's."""
    words = [str(random.randrange(10_000)) for _ in range(1000)]
    body = {"model": MODEL, "messages": [{"role": "user", "content": " ".join(words)}], "max_tokens": 1}
    status, answer = fetch(engine.url + "/v1/chat/completions", body=body)
    assert status == 200, answer
    return 1000 / float(json.loads(answer)["usage"]["prompt_tokens"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[8, 16, 24])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--blocks", type=int, default=1024, help=f"of KV memory, each of {BLOCK_TOKENS} tokens")
    parser.add_argument("--wait", default="20s", help="`sessions.wait`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        flags = ["--num-gpu-blocks-override", str(options.blocks), "--max-model-len", "8192", "--max-num-seqs", "32"]
        engine = Vllm("vllm", folder, *flags)
        gateways = {
            memory: Gateway(
                folder, {"endpoints": [engine.endpoint], "sessions": {"memory": memory, "wait": options.wait}}
            )
            for memory in ("auto", "off")
        }
        try:
            engine.ensure()
            for gateway in gateways.values():
                gateway.start()
            ratio = words_a_token(engine)
            for sessions in options.sessions:
                rows: dict[str, list[dict[str, Any]]] = {"auto": [], "off": []}
                for number in range(options.rounds):
                    for way in ("auto", "off") if number % 2 else ("off", "auto"):
                        name = f"{sessions}-{number}-{way}"
                        row = asyncio.run(turn(gateways[way].url, engine, sessions, options.seconds, name, ratio))
                        told = json.loads(fetch(gateways[way].url + "/admin/sessions")[1])["sums"]
                        left = [[m["kv_tokens"], m["usable_tokens"], m["held_tokens"]] for m in told["memory"]]
                        rows[way].append(row)
                        say(f"{name}: {json.dumps(row | {'left': left, 'pauses': told['pauses_total']})}")
                for way, its in rows.items():
                    medians = {key: round(statistics.median(row[key] for row in its), 3) for key in its[0]}
                    print(json.dumps({"sessions": sessions, "memory": way, **medians}), flush=True)
        finally:
            for gateway in gateways.values():
                gateway.process.kill()
            engine.process.kill()


if __name__ == "__main__":
    main()
