"""How vLLM speaks: its gauges' names, today's and those of older releases."""

from __future__ import annotations

from penstock.core.ledger import Observation
from penstock.engines.page import Series, labels_of, total

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PROGRESS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
)
CAPACITY = "vllm:cache_config_info"
STARTED = "process_start_time_seconds"

_series = Series((*RUNNING, *WAITING, *KV_USAGE, *PROGRESS, CAPACITY, STARTED))


def observation(page: bytes, *, asked_s: float) -> Observation | None:
    """The reading on a metrics page, None when the page does not hold one that makes sense."""
    found = _series.read(page)

    def first(names: tuple[str, ...]) -> float | None:
        return next((total(found[name]) for name in names if name in found), None)

    running, waiting = first(RUNNING), first(WAITING)
    if running is None or waiting is None:
        return None
    kv_usage = None
    for name in KV_USAGE:
        if name in found:
            usage = total(found[name])
            kv_usage = usage / len(found[name]) if usage is not None else None
            break
    if kv_usage is not None and kv_usage > 1.0:
        kv_usage = None  # a share can't be more than one: not a number to act on
    counters = [value for name in PROGRESS if (value := total(found.get(name))) is not None]
    return Observation(
        asked_s=asked_s,
        running=running,
        waiting=waiting,
        kv_usage=kv_usage,
        kv_capacity_tokens=_capacity(found.get(CAPACITY, [])),
        progress=sum(counters) if counters else None,
        started_s=total(found.get(STARTED)),
    )


def _capacity(samples: list[tuple[bytes, float]]) -> int | None:
    """Tokens that fit into the KV memory of all ranks."""
    tokens = 0
    for raw, _ in samples:
        labels = labels_of(raw)
        try:
            tokens += int(labels["block_size"]) * int(labels["num_gpu_blocks"])
        except (KeyError, ValueError):
            return None
    return tokens or None
