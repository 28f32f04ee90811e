"""Every engine's page gives the right reading, and a page that makes no sense gives none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.core.values.observation import Observation
from penstock.engines.base import Engine, PageReader
from penstock.engines.page import Sample, Selector, number, plain, total
from penstock.engines.recognise import ENGINES, by_page
from penstock.sim.engine.model import EngineModel as SimEngine
from penstock.sim.engine.profiles import EngineConfig
from penstock.sim.fake_engine import metrics

LINE_BYTES_MAX = 16 * 1024

GOLDEN = Path(__file__).parent / "golden"
READERS = {name: PageReader(engine) for name, engine in ENGINES.items() if engine.series is not None}

# running, waiting, KV usage, KV capacity, progress, seconds between tokens, tokens, prefix hits
EXPECTED = {
    "vllm-0.32.real": (8, 11, 0.07827788649706457, 65536, 5759, 10.768300421004824, 4810, 0.0),
    "vllm-v0.facts": (5, 3, 0.25, 16000, 1000, 2.0, 100, 0.5),
    "vllm-dp2-lora.facts": (8, 2, 0.3, 32000, 150, None, None, None),
    "sglang-0.5.23-tp2-dp2-priority.facts": (8, 3, 0.3, 40000, 4500, 5.0, 490, 0.5),
    "tgi-3.3.7.facts": (4, 6, 0.25, 16384, 930, 0.6, 30, None),
    "trtllm-serve.facts": (9, 2, 0.6, 16000, 1200, 3.0, 150, 0.3),
    "triton.facts": (8, 2, 0.4, 16000, 24, None, None, None),
    "lmdeploy-0.18.facts": (3, 5, 0.7, None, 30, None, None, 0.2),
    "llamacpp-b1-0c1e570.real": (4, 3, None, None, 8786, None, None, None),
    "llamacpp-kv.facts": (4, 2, 0.125, None, 128, None, None, None),
}


def golden(name: str) -> tuple[Engine, bytes]:
    page = (GOLDEN / f"{name}.prom").read_bytes()
    found = by_page(page)
    assert found is not None
    return found, page


def read(name: str, page: bytes | None = None) -> Observation | None:
    engine, whole = golden(name)
    return READERS[engine.name].observation(whole if page is None else page, asked_s=1.0)


def test_every_golden_page_has_its_reading() -> None:
    assert {path.stem for path in GOLDEN.glob("*.prom")} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_golden_page_gives_the_right_reading(name: str) -> None:
    reading = read(name)
    assert reading is not None
    assert reading.asked_s == 1.0
    assert reading.sane()
    assert EXPECTED[name] == pytest.approx(
        (
            reading.running,
            reading.waiting,
            reading.kv_usage,
            reading.kv_capacity_tokens,
            reading.progress,
            reading.pace_s_total,
            reading.pace_tokens_total,
            reading.prefix_hit_ratio,
        )
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_a_page_identifies_its_engine(name: str) -> None:
    engine, _ = golden(name)
    assert engine.name == {"triton.facts": "trtllm"}.get(name, re.split(r"[-.]", name)[0])


# --- what makes no sense ---------------------------------------------------------------------------------------


def renamed(line: bytes) -> bytes:
    return re.sub(rb"^([a-zA-Z_:]+)", rb"\1_v2", line)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "missing": lambda line: b"",
    "renamed": renamed,
    "not a number": lambda line: re.sub(rb"\S+$", b"NaN", line),
    "infinite": lambda line: re.sub(rb"\S+$", b"+Inf", line),
    "negative": lambda line: re.sub(rb"\S+$", b"-1.0", line),
    "words": lambda line: re.sub(rb"\S+$", b"many", line),
    "cut off": lambda line: re.sub(rb"\S+$", b"", line),
    "twice": lambda line: line + b"\n" + line,
    "twice with another number": lambda line: line + b"\n" + re.sub(rb"\S+$", b"0", line),
}


def damaged(name: str, names: tuple[str, ...], damage: str) -> bytes | None:
    """The page with the first line of a signal damaged; None when the page does not have it."""
    for series in names:
        base, _, label = series.partition("{")
        wanted = re.compile(
            rb"^" + re.escape(base).encode() + rb"(?=[ {])[^\n]*" + re.escape(label.rstrip("}")).encode()
        )
        lines = golden(name)[1].split(b"\n")
        hits = [n for n, line in enumerate(lines) if wanted.match(line) and not line.startswith(b"#")]
        if hits:
            for n in hits if damage in ("missing", "renamed") else hits[:1]:
                lines[n] = DAMAGES[damage](lines[n])
            return b"\n".join(lines)
    return None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", EXPECTED)
def test_a_damaged_series_is_unknown_and_never_zero_or_full(name: str, damage: str) -> None:
    series = golden(name)[0].series
    whole = read(name)
    assert series is not None
    assert whole is not None
    for names in (series.running, series.waiting):
        page = damaged(name, names, damage)
        assert page is not None
        assert read(name, page) is None, "the ledger decides alone"
    for names in (series.kv_usage, series.kv_used, series.kv_total):
        page = damaged(name, names, damage)
        if page is not None:
            reading = read(name, page)
            assert reading is not None
            assert (reading.kv_usage, reading.running) == (None, whole.running)
    for names in (series.prefix_ratio, series.prefix_queries):
        page = damaged(name, names, damage)
        if page is not None:
            reading = read(name, page)
            assert reading is not None
            assert reading.prefix_hit_ratio is None


@pytest.mark.parametrize("damage", sorted(DAMAGES.keys() - {"missing", "renamed"}))
@pytest.mark.parametrize("name", EXPECTED)
def test_a_broken_counter_is_no_restart(name: str, damage: str) -> None:
    """A sum without one of its parts would have fallen."""
    series = golden(name)[0].series
    assert series is not None
    page = damaged(name, series.progress, damage)
    assert page is not None
    reading = read(name, page)
    assert reading is not None
    assert reading.progress is None


@pytest.mark.parametrize("usage", ["1.5", "NaN", "-0.1", "full", "1_0", "0x1"])
def test_a_usage_without_sense_is_none_and_the_rest_still_counts(usage: str) -> None:
    page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc " + usage.encode()
    reading = READERS["vllm"].observation(page, asked_s=0.0)
    assert reading is not None
    assert (reading.running, reading.kv_usage) == (1, None)


@pytest.mark.parametrize("name", READERS)
@given(raw=st.binary(max_size=200))
def test_no_page_breaks_a_reader(name: str, raw: bytes) -> None:
    series = ENGINES[name].series
    assert series is not None
    READERS[name].observation(raw, asked_s=0.0)
    READERS[name].observation(series.running[0].encode() + b" 1\n" + series.waiting[0].encode() + raw, asked_s=0.0)


# --- more than numbers -----------------------------------------------------------------------------------------


def test_a_page_reports_refusals_of_the_engines_own_queue() -> None:
    _, page = golden("vllm-0.32.real")
    two = page.replace(b'reason="max_num_queued_reqs"} 0.0', b'reason="max_num_queued_reqs"} 3.0').replace(
        b'reason="max_num_queued_tokens"} 0.0', b'reason="max_num_queued_tokens"} 4.0'
    )
    for shown, refused in ((page, 0.0), (two, 7.0), (golden("sglang-0.5.23-tp2-dp2-priority.facts")[1], None)):
        name = "vllm-0.32.real" if refused is not None else "sglang-0.5.23-tp2-dp2-priority.facts"
        reading = read(name, shown)
        assert reading is not None
        assert reading.refused == refused


def test_a_page_reports_sleep_and_slots() -> None:
    facts = {name: READERS[golden(name)[0].name].facts(golden(name)[1]) for name in EXPECTED}
    assert facts["vllm-0.32.real"].sleeping is False
    assert facts["vllm-dp2-lora.facts"].sleeping is True
    assert facts["vllm-v0.facts"].sleeping is None
    assert facts["trtllm-serve.facts"].slots == 64
    assert facts["triton.facts"].slots == 128


def test_a_page_reports_whether_the_engine_keeps_prefixes() -> None:
    _, page = golden("vllm-0.32.real")
    facts = READERS["vllm"].facts
    off = page.replace(b'enable_prefix_caching="True"', b'enable_prefix_caching="False"')
    untold = page.replace(b'enable_prefix_caching="True"', b'enable_prefix_caching="None"')
    assert [facts(each).keeps_prefixes for each in (page, off, untold)] == [True, False, None]
    assert READERS["tgi"].facts(golden("tgi-3.3.7.facts")[1]).keeps_prefixes is None


def test_a_reading_of_the_simulated_engines_page() -> None:
    config = EngineConfig(kv_blocks=100, block_size=16)
    page = metrics.render(
        SimEngine(config, seed=0).gauges(), model="m", config=config, successes={"stop": 3}, started_unix_s=5.0
    )
    reading = READERS["vllm"].observation(page, asked_s=1.0)
    assert reading is not None
    assert (reading.running, reading.waiting, reading.kv_usage) == (0, 0, 0)
    assert (reading.kv_capacity_tokens, reading.progress, reading.started_s) == (1600, 3, 5.0)
    assert (reading.first_token_s_total, reading.first_tokens_total) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        # vLLM 0.32 with `--data-parallel-size 2 --num-gpu-blocks-override 1000 --block-size 32`, as its page has it
        (['engine="0",kv_cache_size_tokens="32000",num_gpu_blocks="2000"',
          'engine="1",kv_cache_size_tokens="32000",num_gpu_blocks="2000"'], 64_000),
        (['engine="0",num_gpu_blocks="2000"', 'engine="1",num_gpu_blocks="2000"'], 64_000),
        (['engine="0",kv_cache_size_tokens="None",num_gpu_blocks="2000"'], 64_000),
        (['engine="0",kv_cache_size_tokens="9000000",num_gpu_blocks="77"'], 9_000_000),  # layers of several kinds
        (['engine="0",kv_cache_size_tokens="None",num_gpu_blocks="None"'], None),  # not measured yet
        (['engine="0",kv_cache_size_tokens="much",num_gpu_blocks="2000"'], None),
        (['engine="0",kv_cache_size_tokens="0",num_gpu_blocks="2000"'], None),
    ],
)  # fmt: skip
def test_the_memory_of_all_parts_counts_once(labels: list[str], tokens: int | None) -> None:
    lines = [f'vllm:cache_config_info{{block_size="32",{more}}} 1.0' for more in labels]
    load = ['vllm:num_requests_running{engine="0"} 1.0', 'vllm:num_requests_waiting{engine="0"} 0.0']
    page = "\n".join([*load, *lines, ""]).encode()
    reading = READERS["vllm"].observation(page, asked_s=1.0)
    assert reading is not None
    assert reading.kv_capacity_tokens == tokens


def test_a_page_reports_first_tokens() -> None:
    first = {
        name: (reading.first_token_s_total, reading.first_tokens_total) for name in EXPECTED if (reading := read(name))
    }
    assert first.pop("vllm-0.32.real") == pytest.approx((0.4656713008880615, 11))
    assert set(first.values()) == {(None, None)}, "the others were kept without"
    names = {name: ENGINES[name].series.first_token for name in READERS}  # type: ignore[union-attr]
    for name, (series,) in ((name, series) for name, series in names.items() if series):
        page = f"{ENGINES[name].series.running[0]} 1\n{ENGINES[name].series.waiting[0]} 0\n"  # type: ignore[union-attr]
        reading = READERS[name].observation(f"{page}{series}_sum 2.5\n{series}_count 5\n".encode(), asked_s=1.0)
        assert reading is not None
        assert (reading.first_token_s_total, reading.first_tokens_total) == (2.5, 5)


# --- an idle engine's page ---------------------------------------------------------------------------------------


def idle_page(name: str) -> tuple[Engine, bytes]:
    """A golden page as it is while nothing runs or waits."""
    engine, page = golden(name)
    assert engine.series is not None
    for series in (*engine.series.running, *engine.series.waiting, *engine.series.waiting_more):
        pattern = rb"(?m)^(" + re.escape(series.partition("{")[0].encode()) + rb"(?:\{[^\n]*\})?) [0-9.]+"
        page = re.sub(pattern, rb"\1 0.0", page)
    return engine, page


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in ("triton.facts", "trtllm-serve.facts")])
def test_an_idle_engines_page_is_read_once_while_only_its_process_works(name: str) -> None:
    engine, page = idle_page(name)
    reader = PageReader(engine)

    def at(second: int) -> bytes:
        return b"process_open_fds %d\n" % second + page.rstrip(b"\n") + b"\nhttp_requests_total %d" % second

    assert reader.again(at(1), asked_s=1.0) is None
    first = reader.observation(at(1), asked_s=1.0)
    assert first is not None
    assert first.running == first.waiting == 0
    for second in range(2, 6):
        assert reader.again(at(second), asked_s=float(second)) == structs.replace(first, asked_s=float(second))


@given(st.sampled_from([*EXPECTED]), st.lists(st.tuples(st.integers(0, 4), st.integers(0), st.integers(0)), max_size=6))
def test_a_reader_with_a_past_reads_every_page_as_a_fresh_one(name: str, edits: list[tuple[int, int, int]]) -> None:
    engine, page = idle_page(name)
    reader, fresh = PageReader(engine), PageReader(engine)
    reader.again(page, asked_s=1.0)
    reader.observation(page, asked_s=1.0)
    facts = reader.facts(page)
    lines = page.split(b"\n")
    for kind, at, to in edits:
        at %= len(lines)
        if kind == 0:
            lines[at] = re.sub(rb"[0-9]", b"%d" % (to % 10), lines[at][::-1], count=1)[::-1]
        elif kind == 1 and len(lines) > 1:
            del lines[at]
        elif kind == 2:
            lines.insert(to % len(lines), lines[at])
        elif kind == 3:
            lines[at] = b" \t\xef"[to % 3 : to % 3 + 1] + lines[at]
        else:
            lines[at] += b"0"
        page = b"\n".join(lines)
        reading = reader.again(page, asked_s=1.0)
        if reading is None:
            reading, facts = reader.observation(plain(page), asked_s=1.0), reader.facts(plain(page))
        assert reading == fresh.observation(plain(page), asked_s=1.0)
        assert reading is None or facts == fresh.facts(plain(page))


# --- one series ------------------------------------------------------------------------------------------------


def test_a_series_is_found_by_its_whole_name() -> None:
    page = b'a 1e3 1700000000\n# a 1\na_b{x="}\\" 1",y="2"} 3 # {trace="}"} 0.5\nb_a 4\na_bc 5\n'
    assert Selector.of("a").samples(page) == [Sample({}, 1000.0)]
    found = Selector.of("a_b").samples(page)
    assert found is not None
    assert [(sample.labels["y"], sample.value) for sample in found] == [("2", 3.0)]
    assert Selector.of('a_b{y="3"}').samples(page) == []
    assert Selector.of("c").samples(page) == []


@pytest.mark.parametrize(
    "rest",
    [
        b"{" * LINE_BYTES_MAX,
        b'{a="' + b'\\"' * LINE_BYTES_MAX,
        b"{" + b'a="b",' * LINE_BYTES_MAX + b"} 1",
        b" " * LINE_BYTES_MAX,
    ],
    ids=["braces", "quotes", "labels", "spaces"],
)
def test_a_line_of_absurd_length_is_unknown(rest: bytes) -> None:
    page = b"vllm:num_requests_waiting" + rest + b"\nvllm:num_requests_running 1\n"
    assert Selector.of("vllm:num_requests_waiting").samples(page) is None
    assert Selector.of("vllm:num_requests_running").samples(page) == [Sample({}, 1.0)]


def test_a_number_at_the_end_of_what_is_read_of_a_line_is_not_cut_short() -> None:
    for length in range(LINE_BYTES_MAX - 12, LINE_BYTES_MAX + 1):
        page = b'a{b="' + b"c" * (length - 10) + b'"} 123456\n'
        samples = Selector.of("a").samples(page)
        assert samples is None or [sample.value for sample in samples] == [123456.0]


def test_a_page_with_absurdly_many_samples_is_not_read() -> None:
    page = b"".join(b'a{n="%d"} 1\n' % n for n in range(513))
    assert Selector.of("a").samples(page) is None


def test_a_total_is_a_number_to_act_on_or_none() -> None:
    assert total([Sample({}, 1.0), Sample({}, 2.0)]) == 3.0
    for bad in (None, [], [Sample({}, number(b"NaN"))], [Sample({}, 1.0), Sample({}, number(b"-1"))]):
        assert total(bad) is None


@pytest.mark.parametrize(
    ("lines", "held", "running"),
    [
        ('vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.7e9', 2, "ab"),
        (
            (
                'vllm:lora_requests_info{max_lora="2",running_lora_adapters="b",waiting_lora_adapters=""} 1.8e9\n'
                'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a",waiting_lora_adapters=""} 1.7e9'
            ),
            2,
            "b",
        ),
        ('vllm:lora_requests_info{max_lora="many",running_lora_adapters="",waiting_lora_adapters=""} 1.7e9', None, ""),
        ("", None, ""),
    ],
)
def test_the_latest_line_tells_the_adapters(lines: str, held: int | None, running: str) -> None:
    page = f"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n{lines}\n".encode()
    reading = PageReader(ENGINES["vllm"]).observation(page, asked_s=0.0)
    assert reading is not None
    assert (reading.adapters_held, reading.adapters_running) == (held, tuple(running))


def test_sglang_tells_how_many_adapters_it_holds() -> None:
    page = b"sglang:num_running_reqs 1\nsglang:num_queue_reqs 0\nsglang:lora_pool_slots_total 8\n"
    reading = PageReader(ENGINES["sglang"]).observation(page, asked_s=0.0)
    assert reading is not None
    assert reading.adapters_held == 8
