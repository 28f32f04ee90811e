"""Whose requests come late: times by tenant, and the worst of those within their share."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock.core.explain.snapshot import BandSnapshot, Snapshot
from penstock.core.values.catalogue import Outcome
from penstock.core.values.rows import FlowSnapshot
from penstock.gateway.admin.failing.lately import FailureWindow
from penstock.gateway.admin.failing.slow import is_slow, slow
from penstock.gateway.admin.picture.times import TimesWindow, Worst
from penstock.gateway.identity.caller import Caller
from penstock.gateway.telemetry.failures import Failures
from penstock.gateway.telemetry.request_events import End
from penstock.gateway.telemetry.tenant_series import OTHERS, TenantTimes
from tests.core.drive import scheduler
from tests.gateway.admin.test_admin_state import state
from tests.gateway.conftest import World, chat


def end(tenant: str, *, waited_s: float, first_s: float | None, band: str = "standard", **more: object) -> End:
    fields: dict[str, object] = dict.fromkeys(End.__slots__)
    caller = Caller.__new__(Caller)
    object.__setattr__(caller, "tenant", tenant)
    fields |= {"caller": caller, "band": band, "outcome": Outcome.COMPLETED, "streamed": first_s is not None}
    fields |= {"started_s": 100.0, "waited_s": waited_s, "first_token_s": None if first_s is None else 100.0 + first_s}
    made = End.__new__(End)
    for name, value in (fields | more).items():
        if name != "completion_tokens" or value is not None:
            setattr(made, name, value)
    return made


def near(value: float | None) -> object:
    return pytest.approx(value, rel=0.05)


def flow(tenant: str, *, more: bool = False, band: str = "standard") -> FlowSnapshot:
    return FlowSnapshot(
        *(tenant, band, 1.0, 3, 1, 1.0, 0.5, 0.5), is_alone=False, fair_share=0.5, models={"m": 3}, asks_for_more=more
    )


def picture(*flows: FlowSnapshot) -> Snapshot:
    bands = [BandSnapshot(name, 0, 0.0, 0, 0, 0.0, 0.0, name == "batch") for name in ("standard", "batch")]
    return msgspec.structs.replace(scheduler(a=1).snapshot(now=0.0), flows=list(flows), bands=bands)


NOBODY = picture()


def test_quantiles_of_the_last_minute_are_within_five_per_cent() -> None:
    times = TenantTimes()
    window = TimesWindow(times)
    times.ended([end("ann", waited_s=at / 100, first_s=at / 50) for at in range(1, 101)])
    window.look(NOBODY, 0.0)
    its = window.by_tenant()["ann", "standard"]
    assert its.streams == 100
    assert (its.wait_p50_s, its.wait_p99_s) == (near(0.51), near(1.0))
    assert (its.first_token_p50_s, its.first_token_p99_s) == (near(1.02), near(2.0))
    times.ended([end("ann", waited_s=9.0, first_s=None)] * 3)
    window.look(NOBODY, 59.0)
    assert window.by_tenant()["ann", "standard"].wait_p99_s == near(9.0)
    assert window.by_tenant()["ann", "standard"].first_token_p99_s == near(2.0)
    window.look(NOBODY, 60.0)
    assert window.by_tenant()["ann", "standard"].streams == 0, "that was a minute ago"
    window.look(NOBODY, 119.0)
    assert window.by_tenant() == {}


def test_what_was_refused_at_the_door_waited_for_nothing() -> None:
    times = TenantTimes()
    times.ended([end("ann", waited_s=0.0, first_s=None, outcome=Outcome.REJECTED)])
    assert not times.take()


def test_rows_of_processes_add_up_and_names_are_bounded() -> None:
    times, whole = TenantTimes(), TenantTimes()
    times.ended([end("ann", waited_s=0.2, first_s=0.4)])
    whole.ended([end("ann", waited_s=0.2, first_s=0.4)])
    for labels, values in times.told():
        whole.add(labels, values)
    assert sorted(whole.take().values()) == [2, 2]
    for many in range(3):
        times.ended([end(f"t{many}-{at}", waited_s=0.2, first_s=0.4) for at in range(3_000)])
    rows = times.take()
    assert sum(rows.values()) == 2 * 4_096, "the latest stand for all"
    assert len(rows) <= 4_096 + 2
    assert any(row.tenant == OTHERS for row in rows)


def found(shown: Snapshot, *, band: str = "standard", **p99_s: float) -> Worst | None:
    """The worst, as of a look at which this is shown, with fifty streams of each tenant that took so long."""
    times = TenantTimes()
    window = TimesWindow(times)
    for tenant, first_s in p99_s.items():
        times.ended([end(tenant, waited_s=0.0, first_s=first_s, band=band)] * 50)
    window.look(shown, 0.0)
    return window.worst(shown)


def test_a_floods_own_wait_is_not_the_worst() -> None:
    shown = picture(flow("flood", more=True), flow("ann"))
    worst = found(shown, flood=27.8, ann=0.4)
    assert worst is not None
    assert (worst.tenant, worst.first_token_p99_s, worst.within_share) == ("ann", near(0.4), True)


def test_a_tenant_that_gets_less_than_its_share_and_waits_long_is_the_worst() -> None:
    shown = picture(flow("flood", more=True), flow("ann"))
    worst = found(shown, flood=1.0, ann=12.0)
    assert worst is not None
    assert (worst.tenant, worst.within_share) == ("ann", True)


def test_a_flood_that_ended_is_no_innocent_for_a_minute() -> None:
    times = TenantTimes()
    window = TimesWindow(times)
    times.ended([end("flood", waited_s=9.0, first_s=9.0)] * 50 + [end("ann", waited_s=0.1, first_s=0.1)] * 50)
    window.look(picture(flow("flood", more=True)), 0.0)
    quiet = picture(flow("flood"))
    window.look(quiet, 50.0)
    worst = window.worst(quiet)
    assert worst is not None
    assert worst.tenant == "ann"
    times.ended([end("flood", waited_s=0.0, first_s=0.2)] * 50)
    window.look(quiet, 61.0)
    worst = window.worst(quiet)
    assert worst is not None
    assert (worst.tenant, worst.within_share) == ("flood", True)


def test_batch_work_and_single_streams_colour_nothing() -> None:
    shown = picture(flow("nightly", band="batch"))
    assert found(shown, band="batch", nightly=600.0) is None
    times = TenantTimes()
    window = TimesWindow(times)
    times.ended([end("bob", waited_s=0.0, first_s=50.0)] * 2)
    window.look(shown, 0.0)
    assert window.worst(shown) is None


def test_if_all_ask_for_more_the_worst_of_all_is_shown() -> None:
    shown = picture(flow("ann", more=True), flow("bob", more=True))
    worst = found(shown, ann=11.0, bob=12.0)
    assert worst is not None
    assert (worst.tenant, worst.within_share) == ("bob", False)


def test_late_first_tokens_of_a_flood_are_no_news_and_those_of_others_are() -> None:
    failures = Failures()
    for _ in range(100):
        failures.first_token(27.8)
    window, shown = FailureWindow(failures), picture(flow("flood", more=True))
    assert not is_slow(shown, window.now(1.0, found(shown, flood=27.8, ann=0.4)))
    late = window.now(1.0, Worst("ann", "standard", 7.0, 14.0, within_share=True))
    assert is_slow(shown, late)
    (said,) = slow(shown, late)
    assert said.startswith("First tokens of ann, which is within its share, come late: ")
    assert said.endswith("half of the streams waited 7.0 s, the slowest 14.0 s.")
    assert is_slow(shown, window.now(1.0, None)), "of nobody it is known whose they are"


@pytest.mark.parametrize(
    ("seen_s", "shown_s", "streams"), [([9.8], 9.8, 1), ([0.1, 9.8], 9.8, 2), ([0.1, 0.2, 0.3, 9.8], 0.3, 4)]
)
def test_a_few_streams_of_the_innocent_are_shown_rather_than_the_flood(
    seen_s: list[float], shown_s: float, streams: int
) -> None:
    times, shown = TenantTimes(), picture(flow("flood", more=True), flow("ann"))
    window = TimesWindow(times)
    times.ended([end("flood", waited_s=0.0, first_s=0.135)] * 50)
    times.ended([end("ann", waited_s=0.0, first_s=first_s) for first_s in seen_s])
    window.look(shown, 0.0)
    worst = window.worst(shown)
    assert worst is not None
    assert (worst.tenant, worst.within_share, worst.streams) == ("ann", True, streams)
    assert (worst.first_token_p50_s, worst.first_token_p99_s, worst.slowest_s) == (near(shown_s), None, near(shown_s))
    times.ended([end("bob", waited_s=0.0, first_s=0.4)] * 5)
    window.look(shown, 1.0)
    worst = window.worst(shown)
    assert worst is not None
    assert (worst.tenant, worst.streams) == ("bob", 5), "one late answer is no state of things beside many"
    times.ended([end("ann", waited_s=0.0, first_s=5.6)] * (4 - streams))
    window.look(shown, 2.0)
    worst = window.worst(shown)
    assert worst is not None
    few_s = near(sorted([*seen_s, *[5.6] * (4 - streams)])[2])
    assert (worst.tenant, worst.first_token_p50_s) == (("ann", few_s) if streams < 4 else ("bob", near(0.4)))


async def test_each_tenants_times_stand_in_the_state(world: World) -> None:
    await world.engine()
    await world.gateway()

    async def ask(tenant: str) -> None:
        await world.ask("POST", "/v1/chat/completions", chat(tokens=3, stream=True), {"x-tenant-id": tenant})

    await asyncio.gather(*[ask("ann") for _ in range(6)], ask("bob"))
    world.gate.watch.tick()
    told = await state(world)
    rows = {row["tenant"]: row for row in told["tenants"]}
    assert rows["ann"]["streams"] == 6
    assert 0.0 < rows["ann"]["first_token_p50_s"] <= rows["ann"]["first_token_p99_s"]
    assert rows["ann"]["wait_p50_s"] is not None
    assert told["lately"]["worst"]["tenant"] == "ann", "one stream of bob's is no state of things"
