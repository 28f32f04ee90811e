"""Parts of a reading, and the pace an engine tells: they correct the ledger, and never stand for more than they say."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.endpoints.concurrency import ConcurrencyLimit
from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.ledger import Ledger
from penstock.core.values.observation import Glimpse, Observation


def ledger(**reading: float) -> Ledger:
    made = Ledger(ConcurrencyLimit(16), stale_after_s=5.0)
    made.observe(replace(Observation(0.0, running=10.0, waiting=4.0, kv_usage=0.5), **reading))
    return made


def lease(serial: int, at: float) -> Lease:
    return Lease(
        serial,
        endpoint="e",
        epoch=0,
        request_id=f"r{serial}",
        now=at,
        prompt_tokens=10,
        output_tokens=10,
        streamed=True,
    )


def test_a_part_moves_the_split_and_not_the_whole() -> None:
    made = ledger()
    for serial in range(3):
        made.add(lease(serial, 1.0))
    assert made.load(1.0) == 17.0
    made.glimpse(Glimpse(asked_s=2.0, waiting=1.0, kv_usage=0.75), now=2.0)
    assert made.load(2.0) == 17.0
    assert made.page.base is not None
    assert (made.page.base.running, made.page.base.waiting) == (16.0, 1.0)
    assert made.kv_usage(2.0) == 0.75


def test_what_happened_after_a_part_was_written_still_counts() -> None:
    made = ledger()
    made.add(lease(1, 1.0))
    made.add(lease(2, 3.0))
    made.glimpse(Glimpse(asked_s=2.0, waiting=0.0), now=3.0)
    assert made.load(3.0) == 16.0
    assert made.page.base is not None
    assert made.page.base.running == 15.0


def test_a_part_that_says_nothing_new_says_nothing() -> None:
    made = ledger()
    made.glimpse(Glimpse(asked_s=2.0, waiting=4.0, kv_usage=0.5), now=2.0)
    assert made.page.asked_s == 0.0, "how many run it did not tell, so the reading grows no younger"


def test_a_part_alone_or_late_is_no_reading() -> None:
    made = Ledger(ConcurrencyLimit(16), stale_after_s=5.0)
    made.glimpse(Glimpse(asked_s=1.0, waiting=9.0), now=1.0)
    assert made.page.base is None
    made = ledger(asked_s=2.0)
    made.glimpse(Glimpse(asked_s=1.0, waiting=9.0), now=2.0)
    assert made.page.base is not None
    assert made.page.base.waiting == 4.0
    made.glimpse(Glimpse(asked_s=60.0, waiting=9.0), now=60.0)
    assert made.page.base.waiting == 4.0, "what it would correct is too old"


def test_the_engines_own_pace_counts_where_no_stream_of_ours_tells_it() -> None:
    made = ledger(pace_s_total=10.0, pace_tokens_total=100.0)
    assert made.speed.time_per_output_token_s(0.0) == 0.0
    made.observe(Observation(asked_s=1.0, running=9.0, waiting=4.0, pace_s_total=12.0, pace_tokens_total=200.0))
    assert made.speed.time_per_output_token_s(1.0) == 0.02
    assert made.speed.time_per_output_token_s(61.0) == 0.0
    own = lease(1, 1.0)
    made.add(own)
    made.first_token(own, 2.0)
    made.progressed(own, 101, 3.0)
    assert made.speed.time_per_output_token_s(3.0) == 0.01
    made.observe(Observation(asked_s=4.0, running=8.0, waiting=4.0, pace_s_total=22.0, pace_tokens_total=300.0))
    assert made.speed.time_per_output_token_s(4.0) == 0.01


def test_a_restart_is_no_pace() -> None:
    made = ledger(pace_s_total=10.0, pace_tokens_total=100.0, progress=100.0)
    made.observe(
        Observation(asked_s=1.0, running=1.0, waiting=0.0, progress=9.0, pace_s_total=99.0, pace_tokens_total=900.0)
    )
    assert made.speed.time_per_output_token_s(1.0) == 0.0


def test_requests_at_the_door_count_before_the_gauges_show_them() -> None:
    made = ledger(asked_s=0.0, running=0.0, waiting=0.0)
    frozen = Observation(asked_s=1.0, running=0.0, waiting=0.0, kv_usage=0.5, in_all=12.0)
    made.observe(frozen)
    assert made.load(1.0) == 12.0
    made.add(lease(1, 1.5))
    assert made.load(1.5) == 13.0
    made.observe(Observation(asked_s=2.0, running=13.0, waiting=0.0, kv_usage=0.5, in_all=13.0))
    assert made.load(2.0) == 13.0, "now the gauges show them"


def test_a_door_that_tells_only_a_part_lowers_nothing() -> None:
    made = ledger(in_all=3.0)
    assert made.load(0.0) == 14.0
    own = lease(1, 1.0)
    made.add(own)
    made.observe(Observation(asked_s=2.0, running=0.0, waiting=0.0, in_all=1.0))
    assert made.load(2.0) == 1.0, "the one at its door is ours"


def test_deferred_requests_stay_no_queue_when_a_part_moves() -> None:
    made = ledger(queued=0.0)
    assert made.engine_queue(0.0) == 0.0, "all four are deferred"
    made.glimpse(Glimpse(asked_s=1.0, waiting=4.0, kv_usage=0.6), now=1.0)
    assert made.engine_queue(1.0) == 0.0
    made.glimpse(Glimpse(asked_s=2.0, waiting=6.0), now=2.0)
    assert made.engine_queue(2.0) == 2.0
