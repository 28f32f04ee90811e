"""The dialect of SGLang. Its tensor-parallel ranks all report the same requests, each data-parallel rank its own."""

from __future__ import annotations

from penstock.engines.base import Document, Engine, Facts, Json, Load, Priority, Series, count, flag, text, whole
from penstock.engines.page import Sample

_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")


def _parts(samples: list[Sample]) -> list[Sample]:
    """Picks one sample per data-parallel rank: of its first tensor, pipeline and expert rank, all priorities together.

    With priority scheduling each priority has its own samples, in addition to the total under `priority=""`: a sum over
    all would count every request twice.
    """
    found: dict[str, tuple[tuple[int, ...], Sample]] = {}
    for sample in samples:
        labels = sample.labels
        if labels.get("priority"):
            continue
        rank = tuple(int(value) if (value := labels.get(name, "0")).isdigit() else 0 for name in _RANKS)
        part = labels.get("dp_rank", "")
        if part not in found or rank < found[part][0]:
            found[part] = (rank, sample)
    return [sample for _, sample in found.values()]


def _server_info(page: Json) -> Facts:
    states = page.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    ranks = whole(page.get("dp_size")) or 1
    per_rank = whole(state.get("effective_max_running_requests_per_dp"))
    slots = per_rank * ranks if per_rank else whole(page.get("max_running_requests"))
    low_first = flag(page.get("schedule_low_priority_values_first"))
    events = page.get("kv_events_config")
    forgets = flag(page.get("disable_radix_cache"))
    return Facts(
        version=text(page.get("version")),
        slots=slots,
        context_tokens=whole(page.get("context_length")),
        schedules_priority=flag(page.get("enable_priority_scheduling")),
        priority=Priority.LOWER_FIRST if low_first else None,
        cached_tokens=flag(page.get("enable_cache_report")),
        keeps_prefixes=None if forgets is None else not forgets,
        kv_events=bool(events) if "kv_events_config" in page else None,
    )


def _model_info(page: Json) -> Facts:
    name = text(page.get("served_model_name")) or text(page.get("model_path"))
    return Facts(models=(name,) if name else ())


def _load(answer: object) -> Load | None:
    """Reads `/v1/loads`: a list of data-parallel ranks, or an object that holds such a list."""
    ranks = answer.get("loads") if isinstance(answer, dict) else answer
    if not isinstance(ranks, list) or not ranks or not all(isinstance(rank, dict) for rank in ranks):
        return None
    running = [count(rank.get("num_running_reqs")) for rank in ranks]
    waiting = [count(rank.get("num_waiting_reqs")) for rank in ranks]
    usage = [count(rank.get("token_usage")) for rank in ranks]
    if None in running or None in waiting:
        return None
    shares = [share for share in usage if share is not None and share <= 1.0]
    return Load(
        running=sum(filter(None, running)),
        waiting=sum(filter(None, waiting)),
        kv_usage=sum(shares) / len(shares) if len(shares) == len(ranks) else None,
    )


SGLANG = Engine(
    name="sglang",
    title="SGLang",
    owned_by=("sglang",),
    page_prefixes=(b"sglang:",),
    signs=(("/server_info", ("tp_size", "model_path")), ("/get_server_info", ("tp_size", "model_path"))),
    probe_path="/ready",  # its `/health` makes a token
    metrics=("/metrics",),
    load_path="/v1/loads?include=core",
    load=_load,
    load_leads=True,  # the page is written every so many steps
    documents=(
        Document("/server_info", _server_info),
        Document("/get_server_info", _server_info),  # until 0.5
        Document("/model_info", _model_info),
    ),
    series=Series(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        waiting_more=(  # prefill and decode apart
            "sglang:num_prefill_prealloc_queue_reqs",
            "sglang:num_prefill_inflight_queue_reqs",
            "sglang:num_decode_prealloc_queue_reqs",
            "sglang:num_decode_transfer_queue_reqs",
        ),
        kv_usage=("sglang:token_usage",),
        kv_tokens=("sglang:max_total_num_tokens",),
        progress=("sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:num_requests_total"),
        started="process_start_time_seconds",
        pace=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        first_token=("sglang:time_to_first_token_seconds",),  # older ones count the fiftieth if nothing streams
        prefix_ratio=("sglang:cache_hit_rate",),
        adapters_held=("sglang:lora_pool_slots_total",),
    ),
    parts=_parts,
    priority=Priority.HIGHER_FIRST,
    refusals=(
        b"The request queue is full",
        b"aborted by a higher priority request",
        b"Request waiting timeout reached",
    ),
    flags={
        "metrics": "--enable-metrics",
        "cached_tokens": "--enable-cache-report",
        "priority": "--enable-priority-scheduling",
        "kv_events": '--kv-events-config \'{"publisher":"zmq","endpoint":"tcp://*:5557"}\'',
    },
)
