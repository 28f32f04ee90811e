"""What happened to requests is counted a moment later, and nobody who reads a count can tell."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import from_mapping
from penstock.core.values.catalogue import Outcome, Reason
from penstock.core.values.request import Usage
from penstock.gateway.cluster.counts import CountsTaker, add
from penstock.gateway.identity.caller import Caller
from penstock.gateway.telemetry import request_events as module
from penstock.gateway.telemetry.failures import Kind
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.request_events import End, RequestEvents, Sent
from tests.gateway.conftest import World, chat

CALLER = Caller(
    tenant="team",
    user="",
    has_key=False,
    weight=1.0,
    band=0,
    band_lowered=False,
    tenant_label="team",
    deadline_s=None,
    priority=0,
)


def an_end(**but: Any) -> End:
    usual: dict[str, Any] = {
        "request_id": "r",
        "client": "",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "model": "m",
        "instead_of": "",
        "streamed": True,
        "caller": CALLER,
        "band": "standard",
        "endpoint": "gpu",
        "attempts": 1,
        "outcome": Outcome.COMPLETED,
        "reason": None,
        "limit": None,
        "started_s": 10.0,
        "begun_s": 10.5,
        "ended_s": 12.5,
        "waited_s": 0.25,
        "usage": Usage(100, 21, 64),
        "estimated_prompt": 0,
        "estimated_completion": 0,
    }
    return End(**{**usual, **but})


class Taker:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.wall_s = 0.0

    def fold(self, sent: Sequence[Sent], ended: Sequence[End], wall_s: float) -> None:
        self.taken.append((len(sent), len(ended)))
        self.wall_s = wall_s


def metrics(**settings: Any) -> Metrics:
    made = Metrics(snapshot=lambda: pytest.fail("no picture is needed"))
    made.follow(from_mapping({"endpoints": [{"url": "http://127.0.0.1:9"}], "tenants": [{"name": "team"}], **settings}))
    made.endpoint_added("gpu", "http://gpu")
    made.models_known(["m"])
    return made


def counted(made: Metrics) -> dict[str, float]:
    """The samples that are not zero, by name and labels."""
    made.events.fold()
    series = [one for one in made.counted.values() if hasattr(one, "_text")]
    lines = [line.rsplit(" ", 1) for one in series for line in "".join(one.lines()).splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in lines if float(value) and "_bucket" not in name}


@pytest.mark.virtual_time
async def test_observers_take_all_of_a_tenth_of_a_second_together() -> None:
    one, other = Taker(), Taker()
    events = RequestEvents(one, other, now=lambda: 50.0, wall=lambda: 1_000_050.0)
    events.sent("gpu", 0.001)
    await asyncio.sleep(0.06)
    events.ended(an_end())
    events.ended(an_end())
    assert one.taken == []
    await asyncio.sleep(0.05)
    assert one.taken == other.taken == [(1, 2)]
    assert one.wall_s == 1_000_000.0
    await asyncio.sleep(1.0)
    assert len(one.taken) == 1, "nothing happened"
    events.ended(an_end())
    await asyncio.sleep(0.11)
    assert one.taken[1:] == [(0, 1)]


@pytest.mark.virtual_time
async def test_what_waits_is_bounded_and_who_reads_waits_for_nothing() -> None:
    taker = Taker()
    events = RequestEvents(taker)
    for _ in range(600):
        events.ended(an_end())
    assert taker.taken == [(0, 256), (0, 256)]
    for _ in range(256):
        events.sent("gpu", 0.0)
    assert taker.taken[2:] == [(256, 88)]
    events.sent("gpu", 0.0)
    events.fold()
    events.fold()
    assert taker.taken[3:] == [(1, 0)]
    await asyncio.sleep(0.2)
    assert len(taker.taken) == 4


def test_only_a_stream_that_is_no_error_has_a_first_token() -> None:
    assert an_end(begun_s=10.5).first_token_s == 10.5
    assert [an_end(**but).first_token_s for but in ({"begun_s": None}, {"streamed": False}, {"status": 400})] == [
        None
    ] * 3


async def test_a_group_counts_as_each_of_its_requests_alone() -> None:
    whole = an_end(streamed=False, usage=None, estimated_completion=7)
    broken = an_end(outcome=Outcome.FAILED, reason=Reason.CLIENT_GONE, usage=None, estimated_prompt=40)
    evicted = an_end(outcome=Outcome.EVICTED, reason=Reason.CANCELLED, begun_s=None, usage=None, endpoint="")
    refused = an_end(outcome=Outcome.REJECTED, reason=Reason.QUEUE_FULL, begun_s=None, usage=None, endpoint="")
    strange = an_end(model="made-up", outcome=Outcome.REJECTED, reason=Reason.MODEL_NOT_FOUND, begun_s=None, usage=None)
    all_of_them = [an_end(), whole, broken, evicted, refused, strange, an_end(), whole, an_end(band="batch")]
    together, apart = metrics(), metrics()
    for end in all_of_them:
        together.events.ended(end)
        together.events.sent("gpu", 0.5)
        apart.events.ended(end)
        apart.events.fold()
        apart.events.sent("gpu", 0.5)
        apart.events.fold()
    found = counted(together)
    assert found == counted(apart)
    assert together.failures.take() == apart.failures.take()
    assert (together.failures.ended, together.failures.totals[Kind.REFUSED]) == (9, 2)
    of_m = 'band="standard",model="m"'
    assert found['penstock_requests_total{band="standard",model="m",outcome="completed",reason=""}'] == 4
    assert (
        found['penstock_requests_total{band="standard",model="other",outcome="rejected",reason="model_not_found"}'] == 1
    )
    assert found['penstock_dispatches_total{endpoint="gpu"}'] == found["penstock_overhead_seconds_count"] == 9
    assert found["penstock_overhead_seconds_sum"] == 4.5
    assert found['penstock_queue_wait_seconds_count{band="standard",outcome="completed"}'] == 4
    assert found['penstock_queue_wait_seconds_sum{band="standard",outcome="evicted"}'] == 0.25
    assert found['penstock_tenant_queue_wait_seconds_count{tenant="team"}'] == 7, "those that were in the queue"
    assert found[f"penstock_ttft_seconds_sum{{{of_m}}}"] == 1.5, "of streams, whole or not"
    assert found[f"penstock_request_seconds_sum{{{of_m}}}"] == 10.0
    assert found[f"penstock_time_per_output_token_seconds_sum{{{of_m}}}"] == pytest.approx(0.2)
    assert found['penstock_tokens_total{kind="prompt",model="m"}'] == 340
    assert found['penstock_tokens_total{kind="cached_prompt",model="m"}'] == 192
    assert found['penstock_tokens_total{kind="completion",model="m"}'] == 77
    assert found['penstock_tenant_tokens_total{kind="prompt",model="m",tenant="team"}'] == 300
    assert found['penstock_tenant_tokens_total{kind="estimated",model="m",tenant="team"}'] == 54
    assert found['penstock_tenant_service_tokens_total{tenant="team"}'] == 417


async def test_what_happened_counts_under_the_settings_and_names_of_its_time() -> None:
    made = metrics()
    made.events.ended(an_end(model="new"))
    made.models_known(["new"])
    made.events.ended(an_end(model="new"))
    made.events.sent("gpu", 0.0)
    made.endpoint_removed("gpu")
    found = counted(made)
    for model in ("other", "new"):
        assert found[f'penstock_requests_total{{band="standard",model="{model}",outcome="completed",reason=""}}'] == 1
    assert not [name for name in found if "penstock_dispatches" in name], "its series ended"
    made.events.ended(an_end())
    made.follow(from_mapping({"endpoints": [{"url": "http://127.0.0.1:9"}]}))
    assert not [name for name in counted(made) if 'tenant="team"' in name], "its tenant is gone, with its counts"


async def test_a_report_to_another_process_lacks_nothing() -> None:
    worker, here = metrics(), metrics()
    taker = CountsTaker(worker)
    for times in (3, 1):
        for _ in range(times):
            worker.events.sent("gpu", 0.5)
            worker.events.ended(an_end())
        report = taker.take()
        assert report is not None
        add(here, report.series)
    assert counted(here) == counted(worker)
    assert taker.take() is None
    assert here.failures.ended == 4


async def test_every_reader_finds_what_just_happened_and_a_stop_loses_nothing(
    world: World, log: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLD_S", 3600.0)
    engine = await world.engine()
    gate = await world.gateway(log={"access": True}, batch={"data": str(tmp_path)})
    for number in range(3):
        await world.chat_with({"x-request-id": f"r{number}", "x-tenant-id": "team"}, stream=True)
    assert "penstock.access" not in log.getvalue()
    assert await world.metric("penstock_requests_total", outcome="completed") == 3
    assert await world.metric("penstock_ttft_seconds_count") == 3
    await world.chat_with({"x-request-id": "r3"})
    assert await world.metric("penstock_dispatches_total", endpoint=engine.url.removeprefix("http://")) == 4
    await world.ask(body=chat(model="nobody's"), headers={"x-request-id": "r4"})
    assert gate.metrics.failures.totals[Kind.REFUSED] == 1
    await world.chat_with({"x-request-id": "r5"})
    used = await world.ask("GET", "/admin/usage?by=reason")
    assert {row["reason"]: row["requests"] for row in used.json()["rows"]} == {"": 5, "model_not_found": 1}
    await world.chat_with({"x-request-id": "r6"})
    await world.close()
    ids = [line.split("request_id=")[1].split()[0] for line in log.getvalue().splitlines() if "request_id=" in line]
    assert ids == [f"r{number}" for number in range(7)]
