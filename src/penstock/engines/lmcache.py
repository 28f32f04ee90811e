"""LMCache's services: how much of a prompt each instance holds.

Answers may be anything: nonsense is left out, and implausible numbers are capped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CHUNK_TOKENS = 256  # LMCache's default


def layout_prefixes(answer: object, prompt_tokens: int) -> dict[str, int]:
    """Returns the tokens that each instance holds, by a controller's answer; empty if it makes no sense.

    The answer is `{"layout_info": {instance: [location, tokens]}}`. Every instance counts, not only the first.
    """
    layout = field(answer, "layout_info")
    found: dict[str, int] = {}
    for instance, place in layout.items() if isinstance(layout, dict) else ():
        tokens = place[1] if isinstance(place, list) and len(place) >= 2 else None
        if isinstance(tokens, int) and tokens > 0:
            found[str(instance)] = min(tokens, prompt_tokens)
    return found


def directory_prefixes(answer: object, prompt_tokens: int) -> dict[str, int]:
    """Returns the tokens that each instance can load, by a coordinator's list of chunks and their holders.

    Only leading chunks count. A chunk has a part for each rank, and can be loaded when every part is in the instance's
    own memory or in shared memory. Empty if the answer makes no sense.
    """
    parts: dict[str, list[tuple[set[str], bool]]] = {}  # by chunk: the instances that hold each part, True: shared
    size = 0
    for result in items(field(answer, "results")):
        chunk = field(field(result, "key"), "chunk_hash_hex")
        if not isinstance(chunk, str):
            break
        placements = items(field(result, "placements"))
        own = {str(field(at, "instance_id")) for at in placements if field(at, "tier") == "l1"}
        shared = any(field(at, "shared") is True for at in placements)
        parts.setdefault(chunk, []).append((own, shared))
        size = max(size, len(items(field(result, "token_ids"))))
    if not parts:
        return {}
    size = size or min(CHUNK_TOKENS, prompt_tokens // len(parts))
    everyone = {instance for held in parts.values() for own, _ in held for instance in own}
    found: dict[str, int] = {}
    for instance in everyone:
        chunks = 0
        for held in parts.values():
            if not all(shared or instance in own for own, shared in held):
                break
            chunks += 1
        if chunks:
            found[instance] = min(chunks * size, prompt_tokens)
    return found


def space(key: object) -> tuple[str, int] | None:
    """Returns the model's name and the world size of a stored chunk (the top byte of its rank); None if unreadable."""
    model, rank = field(key, "model_name"), field(key, "kv_rank")
    if not isinstance(model, str) or not isinstance(rank, int):
        return None
    return model, max(1, rank >> 24 & 0xFF)


def alone(named: Iterable[tuple[object, object]]) -> dict[str, str]:
    """Returns ip → instance, of IPs that belong to one instance only."""
    by_ip: dict[str, set[str]] = {}
    for instance, ip in named:
        if isinstance(instance, str) and isinstance(ip, str):
            by_ip.setdefault(ip, set()).add(instance)
    return {ip: next(iter(instances)) for ip, instances in by_ip.items() if len(instances) == 1}


def field(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
