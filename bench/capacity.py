"""How much can an engine do? Requests per second of a mix, and the part of its time that tokens take."""

from __future__ import annotations

import math

from penstock.sim.engine.profiles import EngineConfig


def work_s(config: EngineConfig, prompt_tokens: float, output_tokens: float) -> float:
    """Returns the part of a full engine's time that tokens take, in seconds: it makes mixes of lengths comparable.

    A prompt token takes its own time, an answer's token its share of a step with all slots in use. So with 64 slots an
    answer's token costs about twice a prompt's, with 8 slots thirteen times.
    """
    step_share_s = config.step_base_s / config.max_num_seqs + config.decode_s_per_running
    return config.prefill_s_per_token * prompt_tokens + step_share_s * output_tokens


def requests_per_s(config: EngineConfig, prompt_tokens: float, output_tokens: float) -> float:
    """Returns how many requests of a mix one engine does per second: how fast its slots turn over when all are used.

    Each answer takes a step per output token, and its slot one more; a step costs its base, its slots, the KV memory
    they attend to, and the prompts that come in meanwhile. Short KV memory bounds the number of slots in use.
    """
    context = prompt_tokens + output_tokens / 2
    running = min(config.max_num_seqs, config.kv_blocks * config.block_size / context)
    steps = output_tokens + 1
    step_s = (
        config.step_base_s
        + config.decode_s_per_running * running
        + config.kv_s_per_token * running * context
        + config.prefill_s_per_token * running * prompt_tokens / steps
    )
    # A step's prompt tokens are bounded by its budget: beyond it prompts, not answers, limit the rate.
    budget = config.max_num_batched_tokens - running
    prefill_bound = math.inf
    if prompt_tokens:
        full_s = config.step_base_s + config.prefill_s_per_token * budget + config.decode_s_per_running * running
        prefill_bound = budget / prompt_tokens / full_s
    return min(running / (steps * step_s), prefill_bound)
