"""The dialect of vLLM. As V1 since 0.8, and with the names that V0 and older releases had."""

from __future__ import annotations

from penstock.engines.base import (
    Document,
    Engine,
    Facts,
    Json,
    Priority,
    Series,
    count,
    paused_at,
    sleeping_at,
    text,
    version_at,
    whole,
)


def _server_info(page: Json) -> Facts:
    """Reads `/server_info`, which vLLM serves in development mode only."""
    config = page.get("vllm_config")
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    if not isinstance(scheduler, dict):
        return Facts()
    policy = scheduler.get("policy")
    return Facts(
        slots=whole(scheduler.get("max_num_seqs")),
        schedules_priority=policy == "priority" if isinstance(policy, str) else None,
    )


def _kv_event_sources(page: Json) -> Facts:
    """Reads the sources of KV events, listed by data-parallel rank; an empty list means that events are off."""
    sources = [source for source in page.values() if isinstance(source, dict) and source.get("enable_kv_cache_events")]
    return Facts(kv_events=bool(sources), kv_events_endpoint=text(sources[0].get("endpoint")) if sources else None)


def _server_load(answer: object) -> float | None:
    return count(answer.get("server_load")) if isinstance(answer, dict) else None


VLLM = Engine(
    name="vllm",
    title="vLLM",
    owned_by=("vllm",),
    page_prefixes=(b"vllm:",),
    metrics=("/metrics",),
    door_path="/load",  # a constant 0 without --enable-server-load-tracking; of several API servers, one's share
    door=_server_load,
    documents=(
        version_at("/version"),
        Document("/server_info?config_format=json", _server_info),
        Document("/kv_event_sources", _kv_event_sources),
        sleeping_at("/is_sleeping"),
        paused_at("/is_paused"),
    ),
    series=Series(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        queued=('vllm:num_requests_waiting_by_reason{reason="capacity"}', "vllm:num_requests_waiting"),
        waiting_more=("vllm:num_requests_swapped",),  # V0: taken in, then put aside for lack of memory
        kv_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        kv_info="vllm:cache_config_info",
        progress=("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
        started="process_start_time_seconds",
        pace=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        first_token=("vllm:time_to_first_token_seconds",),
        prefix_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        prefix_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        prefix_ratio=("vllm:gpu_prefix_cache_hit_rate",),
        adapters="vllm:lora_requests_info",
        refused=("vllm:admission_rejections_total",),  # `--max-num-queued-reqs`, `--max-num-queued-tokens`
        awake='vllm:engine_sleep_state{sleep_state="awake"}',
    ),
    priority=Priority.LOWER_FIRST,
    orca=True,
    refusals=(b"cannot schedule new futures after shutdown",),  # of its 500 while it drains
    no_model=("The model `{}` does not exist",),
    flags={
        "metrics": "remove --disable-log-stats",
        "cached_tokens": "--enable-prompt-tokens-details",
        "priority": "--scheduling-policy priority",
        "kv_events": '--kv-events-config \'{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557"}\'',
    },
)
