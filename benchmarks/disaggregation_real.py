"""Disaggregated prefill with two real engines: clients must get the answers of a single engine.

Needs two vLLM servers with a KV connector in common and a gateway before them that labels one `prefill`, one `decode`
(docs/policies/disaggregation.md, "With real engines"). Asks for completions, half of them streamed, through the gateway
and at the prefill engine alone, compares the texts, and prints where the decode engine's prompt tokens came from.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from typing import Any
from urllib.parse import urlsplit

WORDS = "the river runs past the wheel and the gate holds it until the turbine is free "


def call(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def said(raw: bytes) -> str:
    """The text of an answer, streamed or not."""
    if not raw.startswith(b"data"):
        return str(json.loads(raw)["choices"][0]["text"])
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", default="http://127.0.0.1:8080")
    parser.add_argument("--prefill", default="http://127.0.0.1:8001", help="also asked alone")
    parser.add_argument("--decode", default="http://127.0.0.1:8002")
    parser.add_argument("--model", default="tiny-llama")
    parser.add_argument("--requests", type=int, default=20)
    args = parser.parse_args()
    same = 0
    for at in range(args.requests):
        prompt = f"{at} " + WORDS * (5 + at % 16)
        body: dict[str, Any] = {"model": args.model, "prompt": prompt, "max_tokens": 12, "min_tokens": 8}
        body["temperature"] = 0
        status, answer = call(args.gateway, "POST", "/v1/completions", body | {"stream": bool(at % 2)})
        _, alone = call(args.prefill, "POST", "/v1/completions", body)
        same += status == 200 and said(answer) == said(alone)
    print(f"the same text as from one engine alone: {same} of {args.requests}")
    page = call(args.decode, "GET", "/metrics")[1].decode()
    for line in page.splitlines():
        if line.startswith("vllm:prompt_tokens_by_source_total{"):
            print(line)
    return 0 if same == args.requests else 1


if __name__ == "__main__":
    sys.exit(main())
