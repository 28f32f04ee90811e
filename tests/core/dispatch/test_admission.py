"""When an endpoint is open: each condition by name, and when time alone lifts it."""

from __future__ import annotations

import math

import pytest

from penstock.core.dispatch.admission import closed, holds_until_s, misfit, over_share_room, room
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.queueing.entry import Entry
from penstock.core.values.catalogue import Cause
from penstock.core.values.observation import Observation
from penstock.core.values.settings import AdmissionSettings, BandSettings, EndpointSpec, HealthSettings
from tests.core.drive import lease, request, waiting_entry

OVER_SHARE_PREFILL_TOKENS = 2048

SETTINGS = AdmissionSettings(kv_usage_max=0.9)


def endpoint(slots: int = 4, *, leases: int = 0) -> Endpoint:
    made = Endpoint(
        EndpointSpec(name="a", slots=slots, models=frozenset("m")),
        index=0,
        health=HealthSettings(),
        stale_after_s=5.0,
    )
    for serial in range(leases):
        made.ledger.add(lease(serial))
    return made


def verdict(at: Endpoint, *, now: float = 1.0, waiting: int = 2, ceiling: float = 1.0) -> Cause | None:
    band = BandSettings("b", engine_waiting_max=waiting, ceiling=ceiling)
    return closed(at, band, SETTINGS, now=now)


def misfits(entry: Entry, at: Endpoint, *, now: float) -> Cause | None:
    return misfit(entry, at, room(at, SETTINGS, now=now), now=now)


def holds(cause: Cause, at: Endpoint, *, now: float) -> float:
    return holds_until_s(cause, at, BandSettings("b"), SETTINGS, now=now)


def test_slots() -> None:
    assert verdict(endpoint(leases=3)) is None
    assert verdict(endpoint(leases=4)) is Cause.SLOTS_FULL
    assert verdict(endpoint(leases=2), ceiling=0.5) is Cause.SLOTS_FULL
    assert verdict(endpoint(slots=0)) is Cause.SLOTS_FULL


def test_requests_of_others_take_slots_too() -> None:
    at = endpoint()
    at.ledger.observe(Observation(0.5, running=4, waiting=0))
    assert verdict(at) is Cause.SLOTS_FULL


def test_a_small_ceiling_still_lets_an_idle_endpoint_take_one() -> None:
    assert verdict(endpoint(slots=1), ceiling=0.1) is None


def test_our_own_leases_bound_even_where_a_ceiling_is_above_one() -> None:
    assert verdict(endpoint(leases=4), ceiling=2.0) is Cause.SLOTS_FULL


@pytest.mark.parametrize(
    ("seen_waiting", "allowed", "cause"), [(1, 2, None), (2, 2, "engine_queue"), (1, 0, "engine_queue")]
)
def test_the_engine_queue(seen_waiting: int, allowed: int, cause: str | None) -> None:
    at = endpoint(slots=9)
    at.ledger.observe(Observation(0.5, running=4, waiting=seen_waiting))
    assert verdict(at, waiting=allowed) == cause


def test_an_empty_engine_queue_is_open_to_the_most_careful_band() -> None:
    assert verdict(endpoint(leases=3), waiting=0) is None


def test_full_kv_memory_closes_unless_the_endpoint_is_idle() -> None:
    at = endpoint()
    at.ledger.observe(Observation(0.5, running=0, waiting=0, kv_usage=0.95))
    assert verdict(at) is None
    at.ledger.add(lease(1, at=0.6))
    assert verdict(at) is Cause.KV_FULL


def test_what_is_too_large_for_the_kv_memory_left_does_not_fit() -> None:
    at = endpoint()
    small, large = (waiting_entry("r", prompt_tokens=tokens) for tokens in (10, 600))
    at.ledger.observe(Observation(0.5, running=0, waiting=0, kv_usage=0.5, kv_capacity_tokens=1000))
    assert misfits(large, at, now=1.0) is None  # an idle endpoint takes one, however large
    at.ledger.add(lease(1, at=0.6))
    assert misfits(large, at, now=1.0) is Cause.KV_FULL
    assert misfits(small, at, now=1.0) is None
    assert misfits(large, at, now=9.0) is None  # what was read is too old


def test_what_stands_on_its_way_to_the_engine_is_not_before_it() -> None:
    """A flow over its share may have a step's prompts before the engine, and what that computes on the way."""
    at = endpoint()
    at.ledger.add(lease(1, prompt=500))
    speed = at.ledger.speed
    plenty = (math.inf, math.inf)
    assert over_share_room(plenty, at)[0] == OVER_SHARE_PREFILL_TOKENS - 500
    speed.path_s, speed.rate, speed.rate_known = 1.05, 10_000.0, True
    assert over_share_room(plenty, at)[0] == pytest.approx(OVER_SHARE_PREFILL_TOKENS - 500 + 10_000)


def test_shunned() -> None:
    entry = Entry(request("r"), 1)
    entry.own_retry().excluded = {"a": 2.0}
    assert misfits(entry, endpoint(), now=1.0) is Cause.SHUNNED


def test_each_cause_has_the_time_at_which_it_may_end_by_itself() -> None:
    at = endpoint(leases=4)
    assert holds(Cause.NO_BACKEND, at, now=1.0) == math.inf
    assert holds(Cause.SLOTS_FULL, at, now=1.0) == math.inf
    at.health.held_until_s, at.health.ejected_until_s = 3.0, 9.0
    assert holds(Cause.HELD, at, now=1.0) == 3.0
    assert holds(Cause.EJECTED, at, now=4.0) == 9.0
    at.ledger.observe(Observation(2.0, 4, 0))
    assert holds(Cause.KV_FULL, at, now=3.0) == 7.0


def test_which_models_it_serves() -> None:
    at, other = endpoint(), endpoint()
    assert at.serves("m")
    assert not at.serves("n")
    assert at.shares_models(other)
    other.models = frozenset("n")
    assert not at.shares_models(other)
    other.models = None
    assert not at.shares_models(other)
    assert not other.serves("m")
    assert other.shares_models(other)
    other.tells_models = False
    assert other.serves("m")
    assert at.shares_models(other)
    assert repr(at) == "Endpoint('a', leases=0/4)"
