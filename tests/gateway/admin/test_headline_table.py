"""The table of headline states in the docs: what stands there is what the page says in that state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.endpoints.health import Presence
from penstock.core.explain.snapshot import ALL
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.catalogue import Outcome, Reason
from penstock.core.values.observation import Observation
from penstock.core.values.rows import LimitReached
from penstock.core.values.settings import AdmissionSettings, BandSettings, Limits, QueueBounds
from penstock.gateway.admin.failing.lately import FailureWindow
from penstock.gateway.admin.headline import Around, headline, is_by_operators, tone, verdict
from penstock.gateway.admin.picture.times import Worst
from penstock.gateway.admin.requests import DRAIN, PAUSE, StoppedBy
from penstock.gateway.telemetry.failures import Failures
from tests.core.drive import request, scheduler, the_lease

PAGE = Path(__file__).parents[3] / "docs" / "headline-states.md"
KV = SchedulerSettings(admission=AdmissionSettings(kv_usage_max=0.9))
TONES = {"ok": "● ok", "busy": "▲ busy", "bad": "■ attention", "hand": "◆ stopped"}
State = tuple[CheckedScheduler, float, Around]


def runs(made: CheckedScheduler, tenants: Iterable[str], *, waiting: Iterable[str] = (), band: int = 0) -> None:
    """A request of each of these runs, and one of each of those waits."""
    for at, tenant in enumerate(tenants):
        the_lease(made.arrived(request(f"r{at}", tenant=tenant, band=band), now=0.0))
    for at, tenant in enumerate(waiting):
        made.arrived(request(f"w{at}", tenant=tenant, band=band), now=0.0)


def minute(*, ended: int = 0, worst: Worst | None = None, first_s: float | None = None, **counts: int) -> Around:
    """Failures of the last minute, by tenant: refused because the queue is full, or broken at gpu-1."""
    failures = Failures()
    for name, count in counts.items():
        what, tenant = name.split("_")
        for _ in range(count):
            match what:
                case "full":
                    failures.note(tenant, "", Outcome.REJECTED, Reason.QUEUE_FULL, None)
                case "limit":
                    failures.note(
                        tenant, "", Outcome.REJECTED, Reason.TENANT_LIMIT, LimitReached("requests_per_minute", 60)
                    )
                case "broke":
                    failures.note(tenant, "gpu-1", Outcome.FAILED, Reason.STREAM_BROKEN, None)
    for _ in range(ended):
        failures.note("", "", Outcome.COMPLETED, None, None)
    if first_s is not None:
        failures.first_token(first_s)
    window = FailureWindow(failures)
    window.look(0.5)
    return Around(lately=window.now(1.0, worst))


def two(slots: int = 2, settings: SchedulerSettings | None = None) -> CheckedScheduler:
    return scheduler(settings, **{"gpu-0": slots, "gpu-1": slots})


def idle() -> State:
    return two(), 1.0, Around()


def work_that_fits() -> State:
    made = two(8)
    runs(made, ["chat", "docs", "chat"])
    return made, 1.0, Around()


def more_work_than_slots() -> State:
    made = two()
    runs(made, ["chat"] * 4, waiting=["docs"] * 3 + ["chat"])
    return made, 2.0, Around()


def bands_wait_by_design() -> State:
    bands = (BandSettings("interactive"), BandSettings("standard"), BandSettings("batch"))
    made = two(1, SchedulerSettings(bands=bands))
    runs(made, ["chat", "chat"])
    for at, (band, tenant) in enumerate([(0, "chat"), (1, "docs"), *[(2, "nightly")] * 4]):
        made.arrived(request(f"b{at}", band=band, tenant=tenant), now=0.0)
    return made, 9.0, Around()


def a_flood_that_is_refused() -> State:
    made = two(1, SchedulerSettings(bounds=QueueBounds(requests_max=40)))
    runs(made, ["chat", "crawler"], waiting=["crawler"] * 40)
    return made, 24.0, minute(full_crawler=529, full_docs=3, ended=31)


def a_tenant_over_its_own_limit() -> State:
    made = two(8)
    runs(made, ["chat"])
    return made, 1.0, minute(limit_reports=40, ended=20)


def an_engine_is_down_and_nothing_waits() -> State:
    made = two()
    made.endpoint_down("gpu-1", now=0.0)
    runs(made, ["chat"])
    return made, 14.0, Around(state_s={"gpu-1": 14.2})


def an_engine_died_and_the_other_is_full() -> State:
    made = two(8)
    made.endpoint_down("gpu-1", now=0.0)
    runs(made, ["docs"] * 8, waiting=["docs"] * 5)
    lately = minute(broke_docs=5, broke_chat=3, ended=30).lately
    return made, 17.2, Around(lately=lately, state_s={"gpu-1": 17.2})


def all_engines_are_down() -> State:
    made = two()
    for name in ("gpu-0", "gpu-1"):
        made.endpoint_down(name, now=0.0)
    runs(made, [], waiting=["chat", "docs"])
    return made, 30.0, Around(state_s={"gpu-0": 30.0, "gpu-1": 12.0})


def an_engine_refuses_the_gateways_key() -> State:
    made = two(8)
    made.endpoint_changed("gpu-1", key_refused=True, now=0.0)
    runs(made, ["docs"] * 8, waiting=["docs"] * 2)
    return made, 21.3, Around(state_s={"gpu-1": 21.3})


def an_engine_loads_its_model() -> State:
    made = two(8)
    made.endpoint_down("gpu-1", presence=Presence.LOADING, now=0.0)
    runs(made, ["docs"])
    return made, 41.0, Around(state_s={"gpu-1": 41.0})


def no_endpoint_at_all() -> State:
    return scheduler(), 1.0, Around()


def memory_is_full() -> State:
    made = two(8, KV)
    runs(made, ["docs", "docs"])
    for name, usage in (("gpu-0", 0.93), ("gpu-1", 0.97)):
        made.observed(name, Observation(1.0, 1, 0, kv_usage=usage, kv_capacity_tokens=100_000, progress=1), now=1.0)
    made.arrived(request("w", tenant="docs", prompt_tokens=10, output_tokens=10), now=1.0)
    return made, 5.2, Around()


def a_long_prompt_does_not_fit() -> State:
    made = two(8, KV)
    runs(made, ["docs", "docs"])
    for name, usage in (("gpu-0", 0.6), ("gpu-1", 0.7)):
        made.observed(name, Observation(1.0, 1, 0, kv_usage=usage, kv_capacity_tokens=100_000, progress=1), now=1.0)
    made.arrived(request("w", tenant="docs", prompt_tokens=60_000, output_tokens=10), now=1.0)
    return made, 5.2, Around()


def everything_is_paused() -> State:
    made = two()
    made.paused(None, now=0.0)
    runs(made, [], waiting=["chat", "docs"])
    return made, 90.0, Around(stops={(PAUSE, ALL): StoppedBy("anna, 10.0.0.7", 90.0)})


def a_drain_is_under_way() -> State:
    made = two()
    runs(made, ["chat", "docs"])
    made.drained(None, now=1.0)
    return made, 5.0, Around(stops={(DRAIN, ALL): StoppedBy("anna, 10.0.0.7", 4.0)})


def an_endpoint_is_drained_for_maintenance() -> State:
    made = two()
    made.endpoint_drained("gpu-1", now=0.0)
    runs(made, ["chat"])
    return made, 1.0, Around()


def a_tenant_is_paused() -> State:
    made = two()
    made.tenants_limited({"nightly": Limits(running=0)}, now=0.0)
    runs(made, ["chat"])
    return made, 1.0, Around()


def first_tokens_come_late() -> State:
    made = two(8)
    runs(made, ["chat"] * 3)
    worst = Worst("chat", "standard", 7.0, 14.0, within_share=True)
    return made, 1.0, minute(worst=worst, first_s=14.0)


def requests_queue_inside_the_engines() -> State:
    made = two(30)
    runs(made, ["chat"] * 3 + ["docs"])
    for name, waiting in (("gpu-0", 20), ("gpu-1", 9)):
        made.observed(name, Observation(1.0, 8, waiting, progress=1), now=1.0)
    return made, 1.5, Around()


def issued_keys_cannot_be_read() -> State:
    return two(), 1.0, Around(key_store="the disk is full")


def nobody_knows_who_leads() -> State:
    made = two()
    made.halted(now=0.0)
    runs(made, [], waiting=["chat"])
    return made, 3.0, Around()


STATES: tuple[Callable[[], State], ...] = (
    *(idle, work_that_fits, more_work_than_slots, bands_wait_by_design, a_flood_that_is_refused),
    *(a_tenant_over_its_own_limit, an_engine_is_down_and_nothing_waits, an_engine_died_and_the_other_is_full),
    *(all_engines_are_down, an_engine_refuses_the_gateways_key, an_engine_loads_its_model, no_endpoint_at_all),
    *(memory_is_full, a_long_prompt_does_not_fit, everything_is_paused, a_drain_is_under_way),
    *(an_endpoint_is_drained_for_maintenance, a_tenant_is_paused, first_tokens_come_late),
    *(requests_queue_inside_the_engines, issued_keys_cannot_be_read, nobody_knows_who_leads),
)


def row(build: Callable[[], State]) -> tuple[str, str, str]:
    """What was brought about, the verdict with the tone, and the sentence."""
    made, now, around = build()
    picture = made.snapshot(now=now)
    mark = TONES["hand" if is_by_operators(picture, around) else tone(picture, around)]
    name = build.__name__.replace("_", " ").replace("gateways", "gateway's")
    return name, f"{verdict(picture, around)} {mark}", headline(picture, around)


@pytest.mark.parametrize("build", STATES, ids=[build.__name__ for build in STATES])
def test_the_page_of_states_says_what_the_headline_says(build: Callable[[], State]) -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+ \| [^|]+) \| [^|]+ \|$", PAGE.read_text(), flags=re.MULTILINE))
    name, mark, sentence = row(build)
    assert rows[name] == f"{mark} | {sentence}"


def test_there_are_at_least_twenty() -> None:
    assert len({row(build)[2] for build in STATES}) >= 20
