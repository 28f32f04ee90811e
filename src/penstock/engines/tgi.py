"""The dialect of Text Generation Inference. It has an API beside OpenAI's, and one batch of bounded size."""

from __future__ import annotations

from penstock.engines.base import Document, Engine, Facts, Json, Series, text, whole


def _info(page: Json) -> Facts:
    model = text(page.get("model_id"))
    return Facts(
        version=text(page.get("version")),
        slots=whole(page.get("max_concurrent_requests")),
        context_tokens=whole(page.get("max_total_tokens")),
        models=(model,) if model else (),
    )


TGI = Engine(
    name="tgi",
    title="TGI",
    page_prefixes=(b"tgi_",),
    signs=(("/info", ("model_id", "max_concurrent_requests")),),
    metrics=("/metrics",),
    documents=(Document("/info", _info),),
    series=Series(
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        kv_used=("tgi_batch_current_max_tokens",),
        kv_total=("tgi_batch_max_total_tokens",),
        kv_tokens=("tgi_batch_max_total_tokens",),
        progress=("tgi_request_success", 'tgi_batch_inference_count{method="decode"}'),
        started="process_start_time_seconds",
        pace=("tgi_request_mean_time_per_token_duration",),
    ),
    failures=frozenset({424}),  # "generation": the engine's model failed
)
