"""All that an engine tells of its load becomes one reading, and no number of it is mixed from two moments."""

from __future__ import annotations

import pytest

from penstock.core.values.observation import Glimpse
from penstock.engines import orca
from penstock.engines.base import Engine, Load
from penstock.engines.llamacpp import LLAMACPP
from penstock.engines.openai import OPENAI
from penstock.engines.sglang import SGLANG
from penstock.engines.trtllm import TRTLLM
from penstock.engines.vllm import VLLM
from penstock.gateway.endpoints.load_reader import LoadReader
from penstock.gateway.endpoints.probe import ProbeAnswer
from tests.gateway.engines import faces
from tests.gateway.engines.faces import GOLDEN, Route

TRIES_BEFORE_GIVING_UP = 3


class Source:
    """What an engine serves, asked on a clock of its own: each answer takes a second."""

    def __init__(self, engine: Engine, routes: dict[str, Route]) -> None:
        self.routes = routes
        self.asked: list[str] = []
        self.now_s = 100.0
        self.reader = LoadReader(self._ask, lambda: self.now_s, lambda port: lambda path: self._ask(f":{port}{path}"))
        self.reader.use(engine)

    async def _ask(self, path: str) -> ProbeAnswer:
        self.asked.append(path)
        self.now_s += 1.0
        status, body, _ = self.routes.get(path, (404, b"", ""))
        return ProbeAnswer(status, body)


SGLANG_PAGE = faces.page("sglang-0.5.23-tp2-dp2-priority.facts")
LOADS = "/v1/loads?include=core"


async def test_the_time_of_a_reading_is_when_it_was_first_asked_for() -> None:
    source = Source(SGLANG, {**faces.SGLANG, "/metrics": SGLANG_PAGE})
    reading = await source.reader.full()
    assert reading is not None
    assert reading.asked_s == 100.0
    assert source.now_s > 101.0


async def test_a_fresher_document_gives_the_gauges_and_the_page_its_counters() -> None:
    source = Source(SGLANG, {**faces.SGLANG, "/metrics": SGLANG_PAGE})
    reading = await source.reader.full()
    assert reading is not None
    assert (reading.running, reading.waiting) == (5.0, 1.0)
    assert reading.kv_usage == pytest.approx(0.3)
    assert (reading.progress, reading.kv_capacity_tokens) == (4500, 40000)
    source.asked.clear()
    source.routes[LOADS] = faces.doc([{"num_running_reqs": 7, "num_waiting_reqs": 0, "token_usage": 0.9}])
    fast = await source.reader.fast()
    assert source.asked == [LOADS], "a fast look is the cheap one alone"
    assert fast is not None
    assert (fast.running, fast.waiting, fast.kv_usage, fast.progress) == (7.0, 0.0, 0.9, 4500)
    assert fast.asked_s > reading.asked_s


async def test_a_fast_look_that_fails_is_no_reading_and_never_the_old_one_as_new() -> None:
    source = Source(SGLANG, {**faces.SGLANG, "/metrics": SGLANG_PAGE})
    await source.reader.full()
    source.routes[LOADS] = faces.doc({"loads": [{"num_running_reqs": -1, "num_waiting_reqs": "many"}]})
    assert await source.reader.fast() is None


async def test_a_document_that_is_not_there_is_given_up_until_the_next_engine() -> None:
    source = Source(SGLANG, {"/metrics": SGLANG_PAGE})
    for _ in range(TRIES_BEFORE_GIVING_UP + 3):
        reading = await source.reader.full()
        assert reading is not None
        assert reading.running == 8.0, "the page's"
    assert source.asked.count(LOADS) == TRIES_BEFORE_GIVING_UP
    source.reader.use(SGLANG)
    await source.reader.full()
    assert source.asked.count(LOADS) == TRIES_BEFORE_GIVING_UP + 1


async def test_what_only_stands_in_for_a_page_is_not_asked_beside_it() -> None:
    source = Source(LLAMACPP, {**faces.LLAMACPP, "/metrics": faces.page("llamacpp-b1-0c1e570.real")})
    for _ in range(3):
        reading = await source.reader.full()
        assert reading is not None
        assert (reading.running, reading.waiting) == (4.0, 3.0)
    assert "/slots" not in source.asked


async def test_tritons_page_is_found_at_a_port_of_its_own() -> None:
    page = (200, (GOLDEN / "triton.facts.prom").read_bytes(), "text/plain")
    source = Source(TRTLLM, {":8002/metrics": page})
    for _ in range(2):
        reading = await source.reader.full()
        assert reading is not None
        assert (reading.running, reading.waiting) == (8.0, 2.0)
    assert source.asked == ["/prometheus/metrics", "/metrics", ":8002/metrics", ":8002/metrics"]
    assert source.reader.facts.slots == 128


async def test_a_restart_shows_between_two_pages() -> None:
    status, body, kind = faces.VLLM["/metrics"]
    source = Source(VLLM, dict(faces.VLLM))
    await source.reader.full()
    assert not source.reader.restarted
    source.routes["/metrics"] = (500, b"", kind)
    await source.reader.full()
    assert not source.reader.restarted, "a page that is away says nothing"
    less = body.replace(b"generation_tokens_total{", b"x{")
    source.routes["/metrics"] = (
        status,
        less.replace(b"process_start_time_seconds 1.7", b"process_start_time_seconds 1.8"),
        kind,
    )
    await source.reader.full()
    assert source.reader.restarted


def test_there_is_nothing_to_read_of_what_only_speaks_openais_api() -> None:
    assert not Source(OPENAI, {}).reader.reads


def test_load_headers_are_read_no_more_often_than_gauges_move() -> None:
    source = Source(VLLM, {})
    text = b"TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.5"
    assert source.reader.heard(text) == Glimpse(asked_s=100.0, waiting=3.0, kv_usage=0.5)
    assert source.reader.heard(text) is None
    source.now_s += 0.05 * 1.01
    assert source.reader.heard(text) is not None


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'JSON {"named_metrics": {"num_requests_waiting": 3, "x": "y"}}', Load(waiting=3.0)),
        (b"TEXT named_metrics.kv_cache_usage_perc=0.25", Load(kv_usage=0.25)),
        (b"TEXT cpu_utilization=0.3, named_metrics.num_requests_waiting=NaN", None),
        (b"TEXT named_metrics.num_requests_waiting=-1, named_metrics.kv_cache_usage_perc=7", None),
        (b'JSON {"named_metrics": [1]}', None),
        (b"JSON {" + b'"a":{' * 2000, None),
        (b"BIN \x00\xff", None),
        (b"", None),
        (b"TEXT " + b"a=1," * 5000, None),
    ],
)
def test_a_load_header_is_load_or_nothing(header: bytes, expected: Load | None) -> None:
    assert orca.load(header) == expected
