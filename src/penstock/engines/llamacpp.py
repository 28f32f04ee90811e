"""The dialect of llama.cpp's `llama-server`. It lists its slots, and has a page only if started with it."""

from __future__ import annotations

from penstock.engines.base import Document, Engine, Facts, Json, Load, Series, flag, text, whole


def _props(page: Json) -> Facts:
    settings = page.get("default_generation_settings")
    return Facts(
        version=text(page.get("build_info")),
        slots=whole(page.get("total_slots")),
        context_tokens=whole(settings.get("n_ctx")) if isinstance(settings, dict) else None,  # of one slot
        tells_load=None if page.get("role") != "router" else False,  # of several models, of each alone
        sleeping=flag(page.get("is_sleeping")),
    )


def _load(answer: object) -> Load | None:
    """Reads `/slots`. While all slots are busy, they do not show how many requests wait: `waiting` is None then."""
    if not isinstance(answer, list) or not answer:
        return None
    busy = [slot.get("is_processing") if isinstance(slot, dict) else None for slot in answer]
    if not all(isinstance(one, bool) for one in busy):
        return None
    running = float(sum(map(bool, busy)))
    return Load(running=running, waiting=0.0 if running < len(busy) else None)


LLAMACPP = Engine(
    name="llamacpp",
    title="llama.cpp",
    owned_by=("llamacpp",),
    page_prefixes=(b"llamacpp:",),
    signs=(("/props", ("total_slots", "default_generation_settings")),),
    metrics=("/metrics",),
    load_path="/slots",
    load=_load,
    documents=(Document("/props", _props, changes=True),),
    series=Series(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        queued=("llamacpp:requests_deferred",),
        kv_usage=("llamacpp:kv_cache_usage_ratio",),  # until 2025
        progress=("llamacpp:n_decode_total", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
    ),
    lingers=True,
    bare_paths=True,
    refusals=(b"Loading model", b"no slot available"),
    flags={"metrics": "--metrics"},
)
