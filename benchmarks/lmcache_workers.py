"""Workers of LMCache without memory, which only report chunks. Run by LMCache's own Python.

LMCACHE/bin/python benchmarks/lmcache_workers.py COORDINATOR PULL REPLY < work.json

`COORDINATOR` is a URL, `PULL` and `REPLY` the controller's monitor ports. The work is `{"model": NAME, "held":
[{"instance": NAME, "ip": IP, "tokens": [..]}, ..]}`; said in that order, to both services. The chunks' hashes are
LMCache's own for the coordinator; for the controller, which runs without vLLM, its chain from 0.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections import Counter
from typing import Any

import msgspec
import zmq
from lmcache.v1.multiprocess.cache_control.key_resolver import resolve_object_keys
from lmcache.v1.multiprocess.token_hasher import TokenHasher

CHUNK_TOKENS = 256


def main() -> None:
    coordinator, pull_port, reply_port = sys.argv[1:4]
    work = json.load(sys.stdin)
    context = zmq.Context()
    push, dealer = context.socket(zmq.PUSH), context.socket(zmq.DEALER)
    push.connect(f"tcp://127.0.0.1:{pull_port}")
    dealer.connect(f"tcp://127.0.0.1:{reply_port}")
    instances = {held["instance"]: held["ip"] for held in work["held"]}
    for number, (instance, ip) in enumerate(instances.items()):
        worker = {"instance_id": instance, "worker_id": 0, "ip": ip, "port": 7000 + number}
        dealer.send_multipart([b"", msgspec.msgpack.encode({"type": "RegisterMsg", **worker, "peer_init_url": None})])
        if not dealer.poll(10_000):
            raise SystemExit("the controller does not answer a registration")
        dealer.recv_multipart()
        call(coordinator, "/instances", {"instance_id": instance, "ip": ip, "http_port": 7000 + number})
    hasher = TokenHasher()
    said: Counter[str] = Counter()
    for number, held in enumerate(work["held"], start=1):
        said[held["instance"]] += 1
        admit(push, held, number)
        keys, _ = resolve_object_keys(
            token_hasher=hasher, model_name=work["model"], world_size=1, token_ids=held["tokens"], cache_salt=""
        )
        entries = [
            {
                "key": {
                    "chunk_hash_hex": key.chunk_hash.hex(),
                    "model_name": key.model_name,
                    "kv_rank": key.kv_rank,
                    "object_group_id": key.object_group_id,
                    "cache_salt": key.cache_salt,
                },
                "size_bytes": 1,
                "token_ids": held["tokens"][CHUNK_TOKENS * index : CHUNK_TOKENS * (index + 1)],
                "token_offset": CHUNK_TOKENS * index,
            }
            for index, key in enumerate(keys)
        ]
        batch = {
            "instance_id": held["instance"], "incarnation": 1, "seq": said[held["instance"]], "event_type": "store",
            "tier": "l1", "backend": "cpu", "entries": entries, "shared": False, "ts": time.time(),
        }  # fmt: skip
        call(coordinator, "/events", {"batches": [batch]})
    time.sleep(0.5)  # the controller takes in what was pushed
    context.destroy(linger=1000)


def admit(push: Any, held: dict[str, Any], first: int) -> None:
    chain, operations = 0, []
    for start in range(0, len(held["tokens"]) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
        chain = hash((chain, tuple(held["tokens"][start : start + CHUNK_TOKENS]), ()))
        operations.append({"op_type": "admit", "key": chain, "seq_num": first * 1000 + start})
    message = {"type": "BatchedKVOperationMsg", "instance_id": held["instance"], "worker_id": 0}
    push.send_multipart([msgspec.msgpack.encode({**message, "location": "LocalCPUBackend", "operations": operations})])


def call(url: str, path: str, value: object) -> None:
    request = urllib.request.Request(url + path, json.dumps(value).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        print(path, answer.status, answer.read().decode()[:200])


if __name__ == "__main__":
    main()
