"""Recorded workloads: what a trace says, what it does here, and how others would have routed it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.__main__ import main as bench
from bench.traces.baselines import RIVALS
from penstock.cli.main import main
from penstock.core.values.settings import RoutingSettings
from penstock.sim.engine.model import EngineModel
from penstock.sim.traces.trace import Trace, TraceError, spread
from penstock.sim.traces.trace_cli import engine
from penstock.sim.traces.trace_run import Figures, Options, run
from penstock.sim.traces.trace_source import TraceSource
from penstock.sim.world.passthrough import Rival
from penstock.sim.world.workload import Job
from penstock.sim.world.world_values import EngineNode, EngineSpec

VTC = "arrival_s,tenant,prompt_tokens,output_tokens\n0.0,a,10,20\n0.5,b,30,40\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.9305900,396,109\n"
)


def mooncake(at_ms: float, prompt: int, output: int, ids: list[int]) -> str:
    return json.dumps({"timestamp": at_ms, "input_length": prompt, "output_length": output, "hash_ids": ids}) + "\n"


def written(folder: Path, text: str) -> Trace:
    path = folder / "trace"
    path.write_text(text)
    return Trace(path)


def conversations(path: Path, *, count: int, turns: int, seed: int = 5) -> Path:
    """A small trace in Mooncake's form: a system prompt that all share, and conversations that grow with every turn."""
    random = Random(seed)
    rows: list[tuple[float, int, list[int]]] = []
    block = 0
    for _ in range(count):
        ids, at_s = [0], random.uniform(0.0, 60.0)
        for _ in range(turns):
            ids = ids + [block := block + 1 for _ in range(random.randint(4, 20))]
            rows.append((at_s, 512 * len(ids) + random.randint(1, 511), [*ids, block := block + 1]))
            at_s += random.uniform(6.0, 25.0)
    rows.sort()
    lines = [mooncake(3000 * (at_s // 3), prompt, 100, ids) for at_s, prompt, ids in rows]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    return path


# --- reading ----------------------------------------------------------------------------------------------------


def test_each_format_is_known_by_its_first_line(tmp_path: Path) -> None:
    vtc = list(written(tmp_path, VTC).rows())
    assert [(x.at_s, x.tenant, x.prompt_tokens, x.output_tokens) for x in vtc] == [
        (0.0, "a", 10, 20),
        (0.5, "b", 30, 40),
    ]
    azure = list(written(tmp_path, AZURE).rows())
    assert [x.at_s for x in azure] == [0.0, pytest.approx(1.25, abs=1e-5)]
    assert azure[1].prompt_tokens == 396
    trace = written(tmp_path, mooncake(3000, 1100, 7, [0, 5, 6]))
    (row,) = trace.rows()
    assert (row.at_s, row.blocks, trace.format) == (0.0, (0, 5), "mooncake"), "only full blocks are shared"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("hello\n", "line 1: neither of the formats mooncake, azure, vtc"),
        (mooncake(0, 5, 5, [0]) + '{"timestamp": 1}\n', "line 2: Object missing required field `input_length`"),
        (mooncake(0, 5, 5, [0]) + "\n" + mooncake(0, -5, 5, [0]), "line 3: Expected `int` >= 0 - at `$.input_length`"),
        (mooncake(9, 5, 5, [0]) + mooncake(3, 5, 5, [0]), "line 2: is older than the line before it"),
        (VTC + "1.0,a,x,5\n", "line 4: invalid literal"),
        (VTC + "nan,a,4,5\n", "line 4: 'nan' is not a time"),
        (VTC + "1.0,a\n", "line 4: has nothing for 'prompt_tokens'"),
        ("arrival_s,prompt_tokens\n", "line 1: names no column 'output_tokens'"),
    ],
)
def test_errors_name_their_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(TraceError, match=r"trace(,| is)") as error:
        list(written(tmp_path, text).rows())
    assert told in str(error.value)


def test_a_truncated_or_missing_file_is_not_a_trace(tmp_path: Path) -> None:
    path = conversations(tmp_path / "cut.gz", count=20, turns=3)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TraceError, match="can't be unpacked"):
        list(Trace(path).rows())
    with pytest.raises(TraceError, match="can't be read: No such file"):
        Trace(tmp_path / "none")


def test_requests_of_one_stamp_come_apart_inside_their_tick_and_stay_in_order(tmp_path: Path) -> None:
    text = "".join(mooncake(at, 100, 5, [at]) for at in (0, 0, 0, 3000, 3000, 60_000))
    times = [row.at_s for row in spread(written(tmp_path, text).rows(), Random(1))]
    assert times == sorted(times)
    assert len(set(times)) == 6
    assert [int(at_s // 3.0) for at_s in times] == [0, 0, 0, 1, 1, 20]


# --- what others would do ---------------------------------------------------------------------------------------


def rival(name: str, engines: int) -> Rival:
    specs = [EngineSpec(f"e{n}", engine("default"), 64) for n in range(engines)]
    return RIVALS[name]([EngineNode(spec, EngineModel(spec.config)) for spec in specs])


def send(made: Rival, number: int, *blocks: int) -> int:
    """Send a prompt of these blocks and half a block more; where it goes."""
    stream = TraceSource.__new__(TraceSource)  # only named by the job
    job = Job(f"j{number}", stream, 0.0, 512 * len(blocks) + 256, 10, 100, blocks=blocks)  # type: ignore[arg-type]
    chosen = made.choose(job)
    assert chosen is not None
    made.sent(job, chosen)
    return chosen


def test_least_requests_evens_out() -> None:
    made = rival("least_requests", 3)
    assert sorted(send(made, n) for n in range(6)) == [0, 0, 1, 1, 2, 2]


def test_cache_aware_follows_the_match_until_loads_are_out_of_balance() -> None:
    made = rival("sglang_cache_aware", 2)
    home = send(made, 0, 1, 2, 3)
    assert {send(made, n, 1, 2, 3) for n in range(1, 33)} == {home}
    assert send(made, 33, 1, 2, 3) != home, "33 against 0"
    assert send(made, 34, 1, 7, 8, 9) != home, "a match of less than half does not count: by load"


def test_the_routers_flags_let_it_pile_up_longer() -> None:
    """What was seen of the real one: 40 requests of one system prompt on 2 engines go 40 to 0."""
    made = rival("sglang_router_flags", 2)
    assert len({send(made, n, 1, 2, 3) for n in range(40)}) == 1


def test_affinity_is_sticky_while_it_costs_less_than_its_penalty() -> None:
    made = rival("llmd_affinity", 2)
    home = send(made, 0, *range(1, 21))
    assert send(made, 1, *range(1, 21)) == home
    sent = [send(made, n, *range(1, 21), *range(n * 100, n * 100 + 4)) for n in range(2, 120)]
    assert sent[0] == home
    assert set(sent) == {0, 1}, "18 s of prompts later the other one takes some"


def test_cost_weighs_cached_tokens_against_load() -> None:
    made = rival("dynamo_cost", 2)
    assert {send(made, n, *range(n * 10, n * 10 + 5)) for n in range(2)} == {0, 1}


# --- whole runs -------------------------------------------------------------------------------------------------


def simulated(trace: Path, routing: str, **options: Any) -> Figures:
    chosen = Options(endpoints=4, engine=engine("default", 600_000), rivals=RIVALS, **options)
    return run(Trace(trace), routing, 1, chosen)[0]


def test_conversations_reach_their_first_token_soonest_where_their_cache_and_the_load_are_weighed(
    tmp_path: Path,
) -> None:
    """The small sister of the Mooncake comparison in docs/results.md."""
    trace = conversations(tmp_path / "small.gz", count=110, turns=4)
    ours = simulated(trace, "predicted_ttft", router=RoutingSettings(affinity_wait_s=1.0))
    fewest, aware = simulated(trace, "least_requests"), simulated(trace, "sglang_cache_aware")
    assert ours.completed == ours.requests == fewest.requests == 440
    assert ours.token_hit_rate_endless is not None
    assert ours.token_hit_rate >= 0.6 * ours.token_hit_rate_endless
    assert ours.token_hit_rate > fewest.token_hit_rate
    assert ours.ttft_mean_s <= 0.7 * fewest.ttft_mean_s
    assert ours.ttft_mean_s <= 0.95 * aware.ttft_mean_s
    assert ours.tpot_p99_s <= 1.05 * fewest.tpot_p99_s


def test_tenants_that_wait_together_get_alike_by_weighted_tokens(tmp_path: Path) -> None:
    """A heavy and two lighter tenants; all that is theirs arrives within a minute."""
    random = Random(3)
    rows = sorted((random.uniform(0, 60), random.choice("aaaaaabc"), random.randint(50, 800)) for _ in range(700))
    lines = [f"{at:.3f},{tenant},{prompt},{300}" for at, tenant, prompt in rows]
    path = tmp_path / "tenants.csv"
    path.write_text("\n".join(["arrival_s,tenant,prompt_tokens,output_tokens", *lines]))
    options = {"endpoints": 1, "engine": engine("default", 200_000)}
    fair, unfair = (
        run(Trace(path), "least_loaded", 1, Options(fairness=policy, **options))[0].tenants  # type: ignore[arg-type]
        for policy in ("weighted_tokens", "fcfs")
    )
    assert fair is not None
    assert unfair is not None
    assert fair.count == 3
    assert fair.light_ttft_p99_s < 0.5 * unfair.light_ttft_p99_s
    assert fair.service_gap_tokens < 0.5 * unfair.service_gap_tokens


# --- the command ------------------------------------------------------------------------------------------------

FIELDS = {
    "routing", "seed", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s", "tpot_p99_s", "token_hit_rate",
    "imbalance",
}  # fmt: skip


def test_json_is_one_list_with_a_row_per_routing_and_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(conversations(tmp_path / "few.gz", count=10, turns=2))
    flags = ["--routing", "prefix,least_requests", "--endpoints", "2", "--speed", "2", "--seeds", "1,2", "--json"]
    assert main(["simulate", "--trace", trace, *flags]) == 0
    rows = json.loads(capsys.readouterr().out)
    named = [(row["routing"], row["seed"]) for row in rows]
    assert named == [("prefix", 1), ("prefix", 2), ("least_requests", 1), ("least_requests", 2)]
    assert all(row.keys() >= FIELDS and row["completed"] == 20 for row in rows)
    assert rows[0]["ttft_mean_s"] != rows[1]["ttft_mean_s"], "a seed draws other arrivals inside the ticks"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--trace", "none.gz"], "none.gz can't be read"),
        ([], "--trace FILE is missing"),
        (["--trace", "x", "--seeds", "1,x"], "--seeds takes"),
        (["--trace", "x", "--duration", "nan"], "--duration takes"),
        (["--trace", "x", "--routing", "sglang_cache_aware"], "there are: "),
        (["--trace", "x", "--routing", "predicted_tft"], "did you mean predicted_ttft"),
        (["--trace", "x", "--speed", "0"], "--speed"),
        (["--trace", "x", "--endpoints", "0"], "--endpoints"),
        (["--trace", "x", "--plot", "/no/such/folder/x.png"], "there is no folder"),
    ],
)
def test_wrong_flags_are_explained(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *flags]) != 0
    assert told in capsys.readouterr().err


def test_the_bench_runs_a_trace_by_other_projects_rules_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(conversations(tmp_path / "few.gz", count=5, turns=2))
    assert bench(["trace", "--trace", trace, "--routing", "sglang_cache_aware", "--endpoints", "2", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["routing"], row["completed"]) == ("sglang_cache_aware", 10)
