"""The engine model keeps vLLM's promises: what a step does, what blocks are held, what the gauges tell."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from penstock.sim.engine.model import EngineModel
from penstock.sim.engine.profiles import PROFILES, EngineConfig
from penstock.sim.engine.values import EngineFullError, EngineGauges, EngineRequest, Progress, PromptTooLongError

STEP = EngineConfig(step_s=1.0)


def ask(name: str, prompt: int = 16, output: int = 4, *, priority: int = 0, prefix: str = "") -> EngineRequest:
    """A request; those of one `prefix` share all full blocks they have in common."""
    hashes = tuple(1000 * (sum(prefix.encode()) + 1) + index for index in range(prompt // 16)) if prefix else ()
    return EngineRequest(name, prompt, output, priority, hashes)


def one_step(engine: EngineModel) -> list[Progress]:
    due = engine.next_step_end()
    assert due is not None
    return engine.step(due)


def run_dry(engine: EngineModel, steps_max: int = 100_000) -> list[Progress]:
    events: list[Progress] = []
    for _ in range(steps_max):
        if engine.next_step_end() is None:
            return events
        events += one_step(engine)
        engine.pool.check()
    raise AssertionError("the engine never became idle")


def first_tokens(events: list[Progress]) -> list[str]:
    return [event.id for event in events if event.first]


def test_an_idle_engine_starts_a_step_with_the_first_request_alone() -> None:
    engine = EngineModel(STEP)
    assert engine.next_step_end() is None
    for number in range(24):
        engine.submit(ask(str(number)), 5.0)
    assert engine.next_step_end() == 6.0
    assert first_tokens(one_step(engine)) == ["0"]
    assert (engine.gauges().running, engine.gauges().waiting) == (1, 0)  # 24 inside: as measured on vLLM


def test_each_running_request_gets_one_token_a_step() -> None:
    engine = EngineModel(STEP)
    engine.submit(ask("a", output=3), 0.0)
    engine.submit(ask("b", output=3), 0.0)
    steps = [[(event.id, event.tokens) for event in one_step(engine)] for _ in range(4)]
    assert steps == [[("a", 1)], [("a", 1), ("b", 1)], [("a", 1), ("b", 1)], [("b", 1)]]
    assert engine.next_step_end() is None


def test_a_long_prompt_is_computed_in_chunks_of_the_budget_that_decoding_leaves() -> None:
    engine = EngineModel(replace(STEP, max_num_batched_tokens=100))
    engine.submit(ask("short", 10, 50), 0.0)
    one_step(engine)
    engine.submit(ask("long", 400, 2), 1.0)
    one_step(engine)  # the step that was under way knew nothing of it
    firsts = [first_tokens(one_step(engine)) for _ in range(5)]
    assert firsts == [[], [], [], [], ["long"]]  # 99 + 99 + 99 + 99 + 4
    assert engine.gauges().generation_tokens_total == 8  # the short one was never held up


def test_steps_take_longer_with_prefill_running_requests_and_context() -> None:
    config = EngineConfig(step_base_s=1.0, prefill_s_per_token=0.01, decode_s_per_running=0.1, kv_s_per_token=0.001)
    engine = EngineModel(config)
    engine.submit(ask("a", 100, 3), 0.0)
    assert engine.next_step_end() == pytest.approx(1.0 + 100 * 0.01 + 0.1)
    engine.step(2.1)
    assert engine.next_step_end() == pytest.approx(2.1 + 1.0 + 0.1 + 100 * 0.001)
    engine.slow_factor = 10.0
    engine.step(3.3)
    assert engine.next_step_end() == pytest.approx(3.3 + 10 * (1.0 + 0.1 + 101 * 0.001))


def test_jitter_is_seeded_and_bounded() -> None:
    def ends(seed: int) -> list[float]:
        engine = EngineModel(EngineConfig(step_base_s=1.0, decode_s_per_running=0, step_jitter=0.5), seed=seed)
        engine.submit(ask("a", 1, 50), 0.0)
        times = [0.0]
        while (due := engine.next_step_end()) is not None:
            engine.step(due)
            times.append(due)
        return times

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)
    assert all(0.5 <= later - earlier <= 1.51 for earlier, later in zip(ends(1), ends(1)[1:], strict=False))


@pytest.mark.parametrize(("by_priority", "order"), [(False, ["a", "b", "c", "d"]), (True, ["a", "d", "b", "c"])])
def test_waiting_requests_are_served_in_order_of_arrival_or_of_priority(by_priority: bool, order: list[str]) -> None:
    engine = EngineModel(replace(STEP, max_num_seqs=1, priority=by_priority))
    for name, priority in (("a", 0), ("b", 0), ("c", 5), ("d", -5)):
        engine.submit(ask(name, priority=priority), 0.0)
    assert first_tokens(run_dry(engine)) == order


def test_a_running_request_is_not_preempted_for_a_slot() -> None:
    engine = EngineModel(replace(STEP, max_num_seqs=1, priority=True))
    engine.submit(ask("low", priority=9, output=5), 0.0)
    engine.submit(ask("high", priority=-9), 0.0)
    assert [event.id for event in run_dry(engine)] == ["low"] * 5 + ["high"] * 4
    assert engine.gauges().preemptions_total == 0


def test_slots_bound_running_requests() -> None:
    engine = EngineModel(replace(STEP, max_num_seqs=3))
    for number in range(10):
        engine.submit(ask(str(number)), 0.0)
    while engine.next_step_end() is not None:
        assert engine.running_now <= 3
        assert engine.running_now + engine.waiting_now == engine.in_engine
        one_step(engine)


def test_preemption_repeats_no_token_and_loses_none() -> None:
    engine = EngineModel(replace(STEP, kv_blocks=6))  # 96 tokens; three times 16 + 40 do not fit
    for name in "abc":
        engine.submit(ask(name, 16, 40), 0.0)
    events = run_dry(engine)
    assert Counter(event.id for event in events) == {"a": 40, "b": 40, "c": 40}
    assert engine.gauges().preemptions_total > 0
    assert [event.id for event in events if event.finished] == ["a", "b", "c"]
    assert engine.pool.free == 6


def test_the_latest_of_the_lowest_priority_is_preempted_and_counts_as_waiting() -> None:
    engine = EngineModel(replace(STEP, kv_blocks=6, priority=True))
    engine.submit(ask("low", 16, 60, priority=5), 0.0)
    engine.submit(ask("high", 16, 60, priority=0), 0.0)
    waiting = 0
    events: list[Progress] = []
    while engine.next_step_end() is not None:
        events += one_step(engine)
        waiting = max(waiting, engine.gauges().waiting)
    assert [event.id for event in events if event.finished] == ["high", "low"]
    assert waiting == 1
    assert Counter(event.id for event in events) == {"low": 60, "high": 60}


def test_a_shared_prefix_is_found_by_whole_blocks() -> None:
    engine = EngineModel(STEP)
    engine.submit(ask("a", 100, 1, prefix="p"), 0.0)
    engine.submit(ask("b", 70, 1, prefix="p"), 0.0)
    engine.submit(ask("c", 100, 1, prefix="q"), 0.0)
    cached = {event.id: event.usage.cached_tokens for event in run_dry(engine) if event.usage}
    assert cached == {"a": 0, "b": 64, "c": 0}
    gauges = engine.gauges()
    assert (gauges.prefix_cache_queries_total, gauges.prefix_cache_hits_total) == (270, 64)


def test_a_full_hit_still_computes_the_last_block() -> None:
    engine = EngineModel(STEP)
    for name in "ab":
        engine.submit(ask(name, 64, 1, prefix="p"), 0.0)
    usage = [event.usage for event in run_dry(engine)]
    assert [entry.cached_tokens for entry in usage if entry] == [0, 48]


def test_requests_of_one_step_share_blocks_and_the_first_to_leave_takes_none_away() -> None:
    engine = EngineModel(STEP)
    engine.submit(ask("x", 16, 1), 0.0)
    engine.submit(ask("a", 160, 1, prefix="p"), 0.0)
    engine.submit(ask("b", 160, 50, prefix="p"), 0.0)
    one_step(engine)
    one_step(engine)
    assert engine.pool.used == 11  # ten shared or private for the prompt, one more of b's own
    run_dry(engine)
    assert engine.pool.used == 0
    assert engine.pool.cached == 10


def test_the_oldest_cached_blocks_are_evicted_first_and_reported() -> None:
    engine = EngineModel(replace(STEP, kv_blocks=8, kv_events=True))
    for name in "pqr":
        engine.submit(ask(name, 48, 1, prefix=name), 0.0)
        run_dry(engine)
    stored, removed = engine.take_kv_changes()
    assert [(blocks.request_id, len(blocks.block_hashes), blocks.parent_hash) for blocks in stored] == [
        ("p", 3, None),
        ("q", 3, None),
        ("r", 3, None),
    ]
    assert removed == [stored[0].block_hashes[2]]  # the end of the oldest chain
    assert engine.take_kv_changes() == ([], [])


def test_chunks_tell_their_blocks_with_the_parent() -> None:
    engine = EngineModel(replace(STEP, max_num_batched_tokens=64, kv_events=True))
    engine.submit(ask("a", 128, 1, prefix="p"), 0.0)
    run_dry(engine)
    stored, _ = engine.take_kv_changes()
    hashes = ask("a", 128, 1, prefix="p").block_hashes
    assert [(blocks.first_block, blocks.block_hashes, blocks.parent_hash) for blocks in stored] == [
        (0, hashes[:4], None),
        (4, hashes[4:], hashes[3]),
    ]


def test_gauges_move_only_when_a_step_ends() -> None:
    engine = EngineModel(STEP)
    engine.submit(ask("a", 160, 9), 0.0)
    one_step(engine)
    before = engine.gauges()
    assert (before.running, before.waiting, before.prompt_tokens_total) == (1, 0, 160)
    assert before.kv_usage == pytest.approx(10 / 8192)
    engine.submit(ask("b"), 1.5)
    engine.abort("a", 1.6)
    assert engine.gauges() is before
    assert engine.pool.used == 0  # but its blocks are free at once
    one_step(engine)
    assert (engine.gauges().running, engine.gauges().waiting) == (0, 0)  # b came during that step
    one_step(engine)
    assert engine.gauges().running == 1


def test_an_engine_that_is_left_alone_reports_nothing_one_step_later() -> None:
    engine = EngineModel(STEP)
    for name in "abc":
        engine.submit(ask(name), 0.0)
    one_step(engine)
    for name in "abc":
        assert engine.abort(name, 1.2)
    assert not engine.abort("a", 1.2)
    assert one_step(engine) == []
    assert engine.next_step_end() is None
    gauges = engine.gauges()
    assert (gauges.running, gauges.waiting, gauges.kv_usage) == (0, 0, 0.0)


def test_a_request_can_be_aborted_in_every_phase() -> None:
    engine = EngineModel(replace(STEP, max_num_seqs=2, max_num_batched_tokens=32))
    engine.submit(ask("decoding", 16, 99), 0.0)
    one_step(engine)
    engine.submit(ask("prefilling", 999, 9), 1.0)
    engine.submit(ask("queued"), 1.0)
    one_step(engine)
    one_step(engine)
    engine.submit(ask("arrived"), 3.5)
    assert (engine.started_at("queued"), engine.started_at("prefilling")) == (None, 2.0)
    for name in ("arrived", "queued", "prefilling", "decoding"):
        assert engine.abort(name, 3.6)
    assert engine.pool.used == 0
    assert run_dry(engine) == []
    assert engine.in_engine == 0


def test_an_impossible_request_is_refused_at_once() -> None:
    engine = EngineModel(replace(STEP, kv_blocks=10))
    with pytest.raises(PromptTooLongError, match="maximum context length is 160 tokens"):
        engine.submit(ask("a", 160), 0.0)
    engine.submit(ask("b", 159, 100), 0.0)
    (end,) = run_dry(engine)
    assert (end.finish_reason, end.usage and end.usage.completion_tokens) == ("length", 1)
    engine.submit(ask("embedding", 160, 0), 9.0)
    (end,) = run_dry(engine)
    assert (end.tokens, end.finished) == (0, True)


def test_the_engine_takes_no_more_than_its_bound() -> None:
    engine = EngineModel(replace(STEP, max_num_queued_reqs=2))
    engine.submit(ask("a"), 0.0)
    engine.submit(ask("b"), 0.0)
    with pytest.raises(EngineFullError):
        engine.submit(ask("c"), 0.0)


def test_a_finished_request_has_its_usage_and_start() -> None:
    engine = EngineModel(replace(STEP, max_num_seqs=1))
    engine.submit(ask("a", 20, 2), 0.0)
    engine.submit(EngineRequest("b", 30, 1, finish_reason="stop"), 0.0)
    end = run_dry(engine)[-1]
    assert (end.id, end.first, end.finish_reason, end.started_at) == ("b", True, "stop", 2.0)
    assert end.usage is not None
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (30, 1)


@pytest.mark.parametrize("field", ["max_num_seqs", "kv_blocks", "block_size", "max_model_len"])
def test_an_engine_without_room_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        replace(STEP, **{field: 0})  # type: ignore[arg-type]


def test_other_impossible_settings_are_refused() -> None:
    for wrong in (
        {"step_s": 0.0}, {"step_jitter": 1.0}, {"step_base_s": -1.0}, {"max_num_batched_tokens": 8}
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EngineConfig(**wrong)


def test_the_measured_profile_has_the_measured_pace() -> None:
    engine = EngineModel(PROFILES["tiny-slow"])
    for number in range(8):
        engine.submit(ask(str(number), 1, 100), 0.0)
    while engine.gauges().running < 8:
        one_step(engine)
    start = engine.next_step_end()
    assert start is not None
    engine.step(start)
    end = engine.next_step_end()
    assert end is not None
    assert end - start == pytest.approx(0.013, rel=0.05)  # measured: about 13 ms at batch 8


def wild_run(seed: int) -> tuple[list[object], EngineGauges]:
    """A random life under pressure: few blocks, shared prefixes, aborts. Checks the books all along."""
    rng = random.Random(seed)
    config = EngineConfig(
        kv_blocks=rng.randint(8, 40),
        max_num_seqs=rng.randint(1, 12),
        max_num_batched_tokens=rng.choice((12, 48, 512)),
        priority=rng.random() < 0.5,
        step_jitter=0.1,
        kv_events=True,
    )
    engine = EngineModel(config, seed=seed)
    trace: list[object] = []
    wanted: dict[str, int] = {}
    got: Counter[str] = Counter()
    known: set[int] = set()
    now = 0.0
    for number in range(150):
        now += rng.expovariate(40)
        request = ask(
            str(number), rng.randint(1, 110), rng.randint(0, 60), priority=rng.randint(-2, 2),
            prefix=rng.choice(("", "p", "q", "rr")),
        )  # fmt: skip
        wanted[request.id] = min(request.output_tokens, engine.context_tokens_max - request.prompt_tokens)
        if request.prompt_tokens + min(1, request.output_tokens) > engine.context_tokens_max:
            continue
        engine.submit(request, now)
        while (due := engine.next_step_end()) is not None and (due < now or number == 149):
            changes = engine.take_kv_changes()
            known |= {block for stored in changes[0] for block in stored.block_hashes}
            events = engine.step(due)
            trace += events
            for event in events:
                got[event.id] += event.tokens
                assert event.finished == (got[event.id] == wanted[event.id])
            engine.pool.check()
            gauges = engine.gauges()
            assert 0 <= gauges.kv_usage <= 1
            assert engine.running_now <= config.max_num_seqs
            if rng.random() < 0.05:
                victim = str(rng.randint(0, number))
                trace.append((victim, engine.abort(victim, due)))
                engine.pool.check()
    assert engine.in_engine == 0
    assert engine.pool.used == 0
    assert engine.pool.cached <= len(known)
    return trace, engine.gauges()


@pytest.mark.parametrize("seed", range(40))
def test_under_pressure_no_block_leaks_and_every_token_comes_once(seed: int) -> None:
    wild_run(seed)


def test_the_same_seed_gives_the_same_trace() -> None:
    runs = [wild_run(7), wild_run(7)]
    assert runs[0] == runs[1]
    assert any(wild_run(seed)[1].preemptions_total for seed in range(5))
