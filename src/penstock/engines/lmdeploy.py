"""The dialect of LMDeploy. It uses vLLM's names under its own prefix."""

from __future__ import annotations

from penstock.engines.base import Engine, Series, sleeping_at

LMDEPLOY = Engine(
    name="lmdeploy",
    title="LMDeploy",
    owned_by=("lmdeploy",),
    page_prefixes=(b"lmdeploy:",),
    metrics=("/metrics",),
    documents=(sleeping_at("/is_sleeping"),),
    series=Series(
        running=("lmdeploy:num_requests_running",),
        waiting=("lmdeploy:num_requests_waiting",),
        waiting_more=("lmdeploy:num_api_requests_waiting",),
        kv_usage=("lmdeploy:gpu_cache_usage_perc",),
        progress=("lmdeploy:prompt_tokens_total", "lmdeploy:generation_tokens_total"),
        started="process_start_time_seconds",
        pace=("lmdeploy:time_per_output_token_seconds",),
        first_token=("lmdeploy:time_to_first_token_seconds",),
        prefix_ratio=("lmdeploy:prefix_cache_hit_rate",),
    ),
    no_model=("The model '{}' does not exist",),
    flags={"metrics": "--enable-metrics"},
)
