"""The dialect of TensorRT-LLM. As `trtllm-serve`, or as a backend of Triton, which has its page at another port."""

from __future__ import annotations

from penstock.engines.base import Engine, Series, version_at

TRTLLM = Engine(
    name="trtllm",
    title="TensorRT-LLM",
    owned_by=("tensorrt_llm", "Triton Inference Server"),
    page_prefixes=(b"trtllm_", b"nv_trt_llm_", b"nv_inference_"),
    signs=(("/v2", ("name", "extensions")),),
    metrics=("/prometheus/metrics", "/metrics", ":8002/metrics"),
    documents=(version_at("/version"), version_at("/v2")),
    series=Series(
        running=("trtllm_num_requests_running", 'nv_trt_llm_request_metrics{request_type="scheduled"}'),
        waiting=("trtllm_num_requests_waiting", 'nv_trt_llm_request_metrics{request_type="waiting"}'),
        waiting_more=("trtllm_num_paused_requests",),
        kv_usage=("trtllm_kv_cache_utilization", 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}'),
        kv_blocks=("trtllm_kv_cache_max_blocks", 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}'),
        kv_block_tokens=(
            "trtllm_kv_cache_tokens_per_block",
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}',
        ),
        progress=("trtllm_prompt_tokens_total", "trtllm_generation_tokens_total", "nv_inference_request_success"),
        started="process_start_time_seconds",
        pace=("trtllm_time_per_output_token_seconds",),
        first_token=("trtllm_time_to_first_token_seconds",),
        prefix_ratio=("trtllm_kv_cache_hit_rate",),
        slots=("trtllm_max_num_active_requests", 'nv_trt_llm_request_metrics{request_type="max"}'),
    ),
    flags={"metrics": "return_perf_metrics: true, in --extra_llm_api_options"},
)
