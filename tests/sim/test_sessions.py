"""Recorded sessions of coding agents: what a record says, and what a closed loop makes of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.__main__ import main as bench
from bench.agents.rivals import RIVALS
from penstock.cli.main import main
from penstock.core.values.settings import SessionSettings
from penstock.sim.engine.profiles import PROFILES, EngineConfig
from penstock.sim.traces.session_run import SessionFigures, SessionOptions, run
from penstock.sim.traces.session_source import SessionLoad, SessionSource
from penstock.sim.traces.sessions import RecordedSession, RecordedTurn, read
from penstock.sim.traces.trace import TraceError
from penstock.sim.world.workload import Job

FAST = EngineConfig(
    step_base_s=0.01, prefill_s_per_token=1e-5, max_num_batched_tokens=8192, kv_blocks=200, block_size=512,
    max_model_len=100_000,
)  # fmt: skip


def request(t: float, prompt: int, ids: Any, *, out: int = 10, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "in": prompt, "out": out, "hash_ids": ids, **more}


def weka(name: str = "one") -> dict[str, Any]:
    """Three turns of 1,024, 2,048 and 2,560 tokens; the third replaces the second's end; a sub-agent of two turns."""
    first, second = list(range(16)), list(range(32))
    third = [*range(24), *range(100, 116)]
    helper = {
        "t": 12.0, "type": "subagent", "duration_ms": 5000.0,
        "requests": [request(0.0, 512, list(range(50, 58))), request(2.0, 1024, list(range(50, 66)), think_time=1.0)],
    }  # fmt: skip
    return {
        "id": name,
        "block_size": 64,
        "requests": [
            request(0.0, 1024, first, api_time=2.0),
            request(10.0, 2048, second, api_time=1.0, think_time=8.0),
            helper,
            request(100.0, 2560, third, api_time=1.0, think_time=89.0),
        ],
    }


def packed(name: str = "one") -> dict[str, Any]:
    """The same session in the packed form."""
    session = weka(name)
    one, two, helper, three = session["requests"]
    one["hash_ids"] = {"keep": 0, "runs": [[0, 16]]}
    two["hash_ids"] = {"keep": 16, "runs": [[16, 16]]}
    three["hash_ids"] = {"keep": 24, "runs": [[100, 16]]}
    helper["requests"][0]["hash_ids"] = {"keep": 0, "runs": [[50, 8]]}
    helper["requests"][1]["hash_ids"] = {"keep": 8, "runs": [[58, 8]]}
    return session


def talk(name: str, turns: int, *, grow: int = 1024, think_s: float = 1.0) -> dict[str, Any]:
    """A session whose prompt grows by `grow` tokens a turn."""
    small = grow // 64
    rows = [
        request(10.0 * n, grow * (n + 1), {"keep": small * n, "runs": [[small * n, small]]}, think_time=think_s)
        for n in range(turns)
    ]
    return {"id": name, "requests": rows}


def recorded(*sessions: dict[str, Any]) -> list[RecordedSession]:
    return [msgspec.convert(session, RecordedSession) for session in sessions]


def figures(
    sessions: list[RecordedSession], routing: str, tenants: tuple[int, ...], *, config: EngineConfig = FAST, **more: Any
) -> SessionFigures:
    load = SessionLoad(tenants, gap_cap_s=more.pop("gap_cap_s", None))
    gate = SessionSettings(memory=routing == "gate", wait_s=120.0)
    options = SessionOptions(load, more.pop("endpoints", 1), config, rivals=RIVALS, gate=gate, **more)
    return run(sessions, "predicted_ttft" if routing == "gate" else routing, 1, options)


# --- reading ----------------------------------------------------------------------------------------------------


def test_both_forms_of_a_record_say_the_same(tmp_path: Path) -> None:
    lines, folder, zipped = tmp_path / "sessions.jsonl", tmp_path / "weka", tmp_path / "packed.jsonl.gz"
    lines.write_text(json.dumps(weka()) + "\n\n" + json.dumps(weka("two")) + "\n")
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps(weka(name), indent=1))
    zipped.write_bytes(gzip.compress("\n".join(json.dumps(packed(name)) for name in ("one", "two")).encode()))
    several = [[(session.id, session.turns()) for session in read(path)] for path in (lines, folder, zipped)]
    assert several[0] == several[1] == several[2]
    assert [name for name, _ in several[0]] == ["one", "two"]


def test_blocks_are_chained_and_end_where_prompts_part() -> None:
    first, second, third = recorded(weka())[0].turns()
    assert first.blocks == (1, 2), "two blocks of 512 tokens"
    assert second.blocks == (1, 2, 3, 4)
    assert third.blocks[:3] == (1, 2, 3)
    assert not set(third.blocks[3:]) & set(second.blocks), "the same place in another prompt is another block"
    assert len(third.blocks) == 5


def test_a_prompt_that_returns_to_an_older_branch_has_its_blocks_again() -> None:
    ids = [list(range(16)), [*range(8), *range(50, 58)], list(range(16))]
    session = {"id": "x", "requests": [request(float(n), 1024, some) for n, some in enumerate(ids)]}
    one, two, three = recorded(session)[0].turns()
    assert one.blocks == three.blocks != two.blocks


def test_think_times_and_sub_agents_are_as_recorded() -> None:
    turns = recorded(weka())[0].turns()
    assert [turn.think_s for turn in turns] == [0.0, 8.0, 89.0]
    assert [len(turn.agents) for turn in turns] == [0, 1, 0]
    (helper,) = turns[1].agents
    assert (helper.delay_s, helper.joined, len(helper.turns)) == (1.0, True, 2)
    assert not set(helper.turns[0].blocks) & set(turns[1].blocks)


def test_a_think_time_that_was_not_recorded_is_the_time_between() -> None:
    session = {"id": "x", "requests": [request(0.0, 600, [], api_time=2.0), request(10.0, 700, [])]}
    assert recorded(session)[0].turns()[1].think_s == 8.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no session"),
        ('{"id": "x", "requests": []}', "has no session"),
        ("{", "line 1"),
        ('{"id": "x", "requests": [{"in": -1}]}', "line 1"),
        ('{"id": "x", "requests": [{"in": 1}], "block_size": 48}', "blocks of 48"),
    ],
)
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=told):
        read(path)


def test_sessions_that_no_engine_could_hold_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text("\n".join(json.dumps(talk(f"t{n}", n)) for n in (2, 5, 9)))
    assert [session.id for session in read(path, 5 * 1024 + 10)] == ["t2", "t5"]


# --- the closed loop --------------------------------------------------------------------------------------------


def play(source: SessionSource, answer_s: float, turns: int) -> list[Job]:
    """Answers each job after `answer_s`, in order of arrival."""
    due = list(source.open_jobs())
    sent: list[Job] = []
    while due and len(sent) < turns:
        due.sort(key=lambda job: job.at_s)
        job = due.pop(0)
        sent.append(job)
        due += source.following(job, job.at_s + answer_s)
    return sent


def test_a_turn_follows_the_end_of_the_one_before_by_its_think_time() -> None:
    source = SessionSource(recorded(talk("a", 3, think_s=20.0)), SessionLoad((1,)), seed=1, bypass=True)
    first, second, third = play(source, 5.0, 3)
    assert [second.at_s - first.at_s, third.at_s - second.at_s] == pytest.approx([25.0, 25.0])
    capped = SessionSource(recorded(talk("a", 3, think_s=20.0)), SessionLoad((1,), gap_cap_s=10.0), seed=1, bypass=True)
    first, second, _ = play(capped, 5.0, 3)
    assert second.at_s - first.at_s == pytest.approx(15.0)


def test_a_parent_waits_for_the_sub_agents_it_waited_for() -> None:
    jobs = play(SessionSource(recorded(weka()), SessionLoad((1,), gap_cap_s=0.0), seed=1, bypass=True), 5.0, 5)
    assert [job.session for job in jobs] == ["s1", "s1", "s1/2.0", "s1/2.0", "s1"]
    assert {job.root for job in jobs} == {"s1"}
    assert jobs[4].at_s == pytest.approx(jobs[3].at_s + 5.0), "the last sub-agent's end, not its own turn's"


def test_a_sub_agent_that_runs_on_holds_nobody() -> None:
    session = weka()
    session["requests"][2]["duration_ms"] = 500_000.0
    jobs = play(SessionSource(recorded(session), SessionLoad((1,), gap_cap_s=0.0), seed=1, bypass=True), 5.0, 4)
    assert sorted(job.session or "" for job in jobs) == ["s1", "s1", "s1", "s1/2.0"]


def test_a_session_that_ends_is_replaced_with_blocks_of_its_own() -> None:
    source = SessionSource(recorded(talk("a", 1)), SessionLoad((1, 1)), seed=1, bypass=True)
    jobs = list(source.open_jobs())
    assert sorted(job.stream.tenant for job in jobs) == ["tenant-1", "tenant-2"]
    (following,) = source.following(jobs[0], 9.0)
    assert following.stream is jobs[0].stream, "a tenant's sessions are replaced by its own"
    assert len({job.blocks for job in (*jobs, following)}) == 3
    assert (source.begun, source.finished) == (3, 1)


# --- runs -------------------------------------------------------------------------------------------------------


def test_hits_are_the_prompt_before_while_the_contexts_fit() -> None:
    row = figures(recorded(talk("a", 8)), "no_gate", (1,), duration_s=30.0, warm_up_s=0.0)
    assert row.turns > 8
    # Turn n of 8 finds (n - 1) of n blocks of 1,024; a whole session 28 of 36.
    assert row.hit_rate == pytest.approx(28 / 36, abs=0.08)


def test_two_sessions_that_do_not_fit_evict_each_other() -> None:
    sessions = recorded(talk("a", 60), talk("b", 60))
    room = figures(sessions, "no_gate", (2,), duration_s=200.0, warm_up_s=0.0)
    small = EngineConfig(
        step_base_s=0.01, prefill_s_per_token=1e-5, max_num_batched_tokens=8192, kv_blocks=130, block_size=512,
        max_model_len=100_000,
    )  # fmt: skip
    tight = figures(sessions, "no_gate", (2,), config=small, duration_s=200.0, warm_up_s=0.0)
    assert room.hit_rate > 0.9
    assert tight.hit_rate < room.hit_rate - 0.2


def test_each_tenant_has_a_row_and_they_add_up() -> None:
    row = figures(recorded(talk("a", 5)), "no_gate", (3, 1), duration_s=60.0, warm_up_s=10.0)
    assert [tenant.tenant for tenant in row.tenants] == ["tenant-1", "tenant-2"]
    assert sum(tenant.turns for tenant in row.tenants) == row.turns
    assert row.tenants[0].turns > row.tenants[1].turns


def test_a_turn_without_a_first_token_counts_with_its_wait() -> None:
    slow = EngineConfig(step_s=100.0, kv_blocks=200, block_size=512, max_model_len=100_000)
    row = figures(recorded(talk("a", 5)), "no_gate", (2,), config=slow, duration_s=60.0, warm_up_s=0.0)
    assert (row.turns, row.unanswered) == (0, 2)
    assert 55.0 <= row.ttft_longest_s <= 60.0


def test_penstocks_own_scheduler_plays_sessions_too() -> None:
    row = figures(recorded(talk("a", 5)), "predicted_ttft", (2,), duration_s=60.0, warm_up_s=0.0, checked=True)
    assert row.turns > 20
    assert row.hit_rate > 0.5


@pytest.mark.parametrize(("count", "blocks"), [(16, 400), (24, 160)])
def test_a_request_is_passed_no_more_often_than_stated_at_the_endpoint_that_it_waits_for(
    count: int, blocks: int
) -> None:
    """Turns of sessions wait for the engine that has their contexts, and others are cached there, too."""
    sessions = recorded(*(talk(f"t{n}", 40, grow=512) for n in range(count)))
    slow = EngineConfig(
        step_base_s=0.05, prefill_s_per_token=4e-4, max_num_batched_tokens=8192, kv_blocks=blocks, block_size=512,
        max_model_len=50_000,
    )  # fmt: skip
    row = figures(
        sessions, "predicted_ttft", (count,), config=slow, endpoints=2, duration_s=200.0, warm_up_s=10.0, checked=True
    )
    assert row.turns > 100


def test_attention_over_a_cached_prompt_is_paid_for_too() -> None:
    def prefill_s(prompt: int, cached: int) -> float:
        config = PROFILES["h100x2-30b"]
        return (prompt - cached) * config.prefill_s_per_token + (prompt**2 - cached**2) / 2 * config.prefill_s_per_pair

    # Measured on two H100, one prompt after the other: github.com/zetxqx/thunderagent-original-verification, step 24.
    for prompt, seconds in ((49_097, 1.285), (65_768, 2.148), (58_366, 1.651), (170_786, 10.62), (175_825, 11.21)):
        assert prefill_s(prompt, 0) == pytest.approx(seconds, rel=0.07)


# --- gates of others --------------------------------------------------------------------------------------------


def test_the_lease_gate_holds_what_does_not_fit_and_no_gate_does_not() -> None:
    sessions = recorded(*(talk(f"t{n}", 40) for n in range(6)))
    some = EngineConfig(
        step_base_s=0.05, prefill_s_per_token=1e-4, max_num_batched_tokens=8192, kv_blocks=160, block_size=512,
        max_model_len=50_000,
    )  # fmt: skip
    without = figures(sessions, "no_gate", (6,), config=some, duration_s=600.0, warm_up_s=0.0)
    gated = figures(sessions, "lease_gate", (6,), config=some, duration_s=600.0, warm_up_s=0.0)
    assert gated.hit_rate > without.hit_rate + 0.1
    assert gated.output_tokens_per_s > without.output_tokens_per_s
    assert gated.ttft_longest_s > without.ttft_longest_s, "its price"


# --- commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "sessions.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(talk(f"t{n}", 12)) for n in range(4)).encode()))
    return str(path)


def test_the_command_prints_a_row_with_its_tenants(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--format", "agents", "--sessions", "3", "--tenants", "2,1", "--gap-cap", "5", "--duration", "120"]
    assert main(["simulate", "--trace", trace, *flags, "--endpoints", "2", "--gate", "off", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["routing"], row["seed"], len(row["tenants"])) == ("predicted_ttft", 1, 2)
    assert row["turns"] == sum(tenant["turns"] for tenant in row["tenants"]) > 0
    assert main(["simulate", "--trace", trace, "--sessions", "2", "--duration", "120", "--quiet"]) == 0
    assert "output tok/s" in capsys.readouterr().out, "the file's beginning shows its format"


def test_the_bench_offers_the_gates_of_others(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--routing", "no_gate,pinned_by_prefix,lease_gate", "--sessions", "3", "--duration", "120", "--json"]
    assert bench(["trace", "--trace", trace, *flags]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["routing"] for row in rows] == ["no_gate", "pinned_by_prefix", "lease_gate"]
    assert len({row["turns"] > 0 for row in rows}) == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--sessions", "3", "--tenants", "1,1"], "are 2 sessions"),
        (["--tenants", "1,x"], "--tenants takes numbers"),
        (["--sessions", "0"], "1 to 10,000"),
        (["--gap-cap", "-1"], "--gap-cap takes seconds"),
        (["--warm-up", "500", "--duration", "400"], "--warm-up"),
        (["--speed", "2"], "--speed"),
        (["--tenants", "1,1", "--weights", "1"], "--weights"),
        (["--tenants", "1,1", "--weights", "1,0"], "--weights"),
        (["--gate", "memory", "--gate-wait", "0"], "--gate-wait"),
    ],
)
def test_wrong_flags_are_refused(trace: str, capsys: pytest.CaptureFixture[str], flags: list[str], told: str) -> None:
    assert main(["simulate", "--trace", trace, *flags]) == 2
    assert told in capsys.readouterr().err


def test_penstocks_gate_has_a_row_of_its_own(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--gate", "memory", "--tenants", "2,2", "--weights", "1,2", "--duration", "120", "--kv-tokens", "20000"]
    assert main(["simulate", "--trace", trace, "--endpoints", "1", "--gate-wait", "20", "--json", *flags]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["routing"], row["turns"] > 0) == ("predicted_ttft", True)
    assert [tenant["kv_held_tokens"] > 0 for tenant in row["tenants"]] == [True, True]


def test_a_gate_that_is_not_there_is_not_offered(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--trace", trace, "--gate", "lease"])
    assert "--gate" in capsys.readouterr().err


def test_penstocks_gate_keeps_prefixes_that_no_gate_loses_and_waits_no_longer_than_told() -> None:
    sessions = recorded(*(talk(f"t{n}", 40, grow=512) for n in range(16)))
    some = EngineConfig(
        step_base_s=0.05, prefill_s_per_token=1e-4, max_num_batched_tokens=8192, kv_blocks=160, block_size=512,
        max_model_len=50_000,
    )  # fmt: skip
    without = figures(sessions, "no_gate", (12, 4), config=some, duration_s=900.0, warm_up_s=100.0)
    gated = figures(sessions, "gate", (12, 4), config=some, duration_s=900.0, warm_up_s=100.0)
    assert gated.hit_rate > without.hit_rate + 0.1
    assert gated.output_tokens_per_s > without.output_tokens_per_s
    assert gated.ttft_longest_s <= 1.05 * 120.0
    assert gated.tenants[1].ttft_longest_s < gated.tenants[0].ttft_longest_s, "four of sixteen sessions want less"


def test_turns_have_at_least_one_token_of_answer() -> None:
    session = {"id": "x", "requests": [request(0.0, 600, [], out=0)]}
    assert recorded(session)[0].turns() == (RecordedTurn(600, 1, 0.0, ()),)
