"""The engine's `/metrics`, like vLLM's.

Names, labels and units are those of vLLM 0.32: usage from 0 to 1, prefix cache counted in tokens, labels in
alphabetical order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.engine.values import EngineGauges

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(
    gauges: EngineGauges,
    *,
    model: str,
    config: EngineConfig,
    successes: Mapping[str, int],
    started_unix_s: float,
    counters: bool = True,
    refused: int = 0,
    adapters_held: int = 0,
    adapters_running: Sequence[str] = (),
) -> bytes:
    """Returns the page; without `counters` only running and waiting requests."""
    label = f'engine="0",model_name="{model}"'
    lines: list[str] = []

    def tell(name: str, kind: str, about: str, value: float, labels: str = label) -> None:
        lines.append(f"# HELP {name} {about}\n# TYPE {name} {kind}\n{name}{{{labels}}} {float(value)}")

    tell("vllm:num_requests_running", "gauge", "Requests in model execution batches.", gauges.running)
    tell("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", gauges.waiting)
    name, about = "vllm:num_requests_waiting_by_reason", "Waiting requests by reason: capacity or deferred."
    tell(name, "gauge", about, gauges.waiting, f'{label},reason="capacity"')
    lines.append(f'{name}{{{label},reason="deferred"}} 0.0')
    if not counters:
        return ("\n".join(lines) + "\n").encode()
    tell("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means full.", gauges.kv_usage)
    queries, hits = gauges.prefix_cache_queries_total, gauges.prefix_cache_hits_total
    tell("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", queries)
    tell("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", hits)
    name = "vllm:admission_rejections_total"
    tell(name, "counter", "Refused by a queue limit.", refused, f'model_name="{model}",reason="max_num_queued_reqs"')
    tell("vllm:num_preemptions_total", "counter", "Preemptions so far.", gauges.preemptions_total)
    tell("vllm:prompt_tokens_total", "counter", "Prefill tokens processed.", gauges.prompt_tokens_total)
    tell("vllm:generation_tokens_total", "counter", "Tokens generated.", gauges.generation_tokens_total)
    between_s, between = gauges.between_tokens_s_total, gauges.between_tokens_total
    for name, about, sum_s, count in (
        (
            "vllm:time_to_first_token_seconds",
            "Time to first token",
            gauges.first_token_s_total,
            gauges.first_tokens_total,
        ),
        ("vllm:inter_token_latency_seconds", "Time between two tokens", between_s, between),
    ):
        lines.append(f"# HELP {name} {about} in seconds.\n# TYPE {name} histogram")
        lines.append(f'{name}_bucket{{engine="0",le="+Inf",model_name="{model}"}} {float(count)}')
        lines.append(f"{name}_count{{{label}}} {float(count)}")
        lines.append(f"{name}_sum{{{label}}} {sum_s}")
    name = "vllm:request_success_total"
    lines.append(f"# HELP {name} Requests finished.\n# TYPE {name} counter")
    lines.extend(
        f'{name}{{engine="0",finished_reason="{reason}",model_name="{model}"}} {float(count)}'
        for reason, count in successes.items()
    )
    tell(
        "vllm:cache_config_info",
        "gauge",
        "Information of the cache configuration.",
        1.0,
        f'block_size="{config.block_size}",cache_dtype="auto",enable_prefix_caching="{config.prefix_caching}",engine="0",'
        f'kv_cache_size_tokens="{config.kv_blocks * config.block_size}",num_gpu_blocks="{config.kv_blocks}"',
    )
    if adapters_held:
        tell(
            "vllm:lora_requests_info",
            "gauge",
            "Running stats on lora requests.",
            started_unix_s,
            f'max_lora="{adapters_held}",running_lora_adapters="{",".join(adapters_running)}",waiting_lora_adapters=""',
        )
    name = "process_start_time_seconds"
    about = "Start time of the process since unix epoch in seconds."
    lines.append(f"# HELP {name} {about}\n# TYPE {name} gauge\n{name} {started_unix_s}")
    return ("\n".join(lines) + "\n").encode()
