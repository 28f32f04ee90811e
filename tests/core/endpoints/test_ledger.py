"""The ledger: our own leases decide, readings correct them, and nonsense moves nothing."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from penstock.core.endpoints.concurrency import ConcurrencyLimit, FoundLimit
from penstock.core.endpoints.ledger import Ledger
from penstock.core.endpoints.prefill_backlog import PrefillBacklog
from penstock.core.endpoints.speed import Speed
from penstock.core.values.observation import Observation
from tests.core.drive import lease


def ledger(**own: float) -> Ledger:
    """A ledger with leases by their dispatch times."""
    made = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    for serial, at in enumerate(own.values(), 1):
        made.add(lease(serial, at=at))
    return made


def test_load_is_what_was_read_plus_ours_in_minus_ours_out_since() -> None:
    own = ledger(a=0.0, b=0.0)
    own.observe(Observation(1.0, running=5, waiting=1))
    own.add(lease(3, at=2.0))
    own.remove(own.leases[1], 2.5)
    own.add(lease(4, at=3.0))
    assert own.load(3.0) == 5 + 1 + 1


def test_load_is_never_less_than_our_own_leases() -> None:
    own = ledger(a=0.0, b=0.0)
    own.observe(Observation(1.0, running=0, waiting=0))
    assert own.load(1.0) == 2


def test_a_reading_that_does_not_move_keeps_the_time_of_the_one_that_did() -> None:
    own = ledger()
    own.observe(Observation(1.0, running=3, waiting=0))
    own.add(lease(1, at=1.5))
    own.observe(Observation(2.0, running=3, waiting=0))
    assert own.load(2.0) == 4


def test_readings_answered_out_of_order_are_ignored() -> None:
    own = ledger()
    own.observe(Observation(2.0, running=3, waiting=0))
    own.observe(Observation(1.0, running=9, waiting=9))
    assert own.load(2.0) == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("where", ["running", "waiting", "kv_usage", "kv_capacity_tokens", "progress", "started_s"])
def test_nonsense_says_as_little_as_no_answer(where: str, bad: float) -> None:
    own = ledger()
    own.observe(Observation(1.0, running=3, waiting=0))
    own.observe(replace(Observation(2.0, running=1.0, waiting=1.0), **{where: bad}))
    assert (own.load(2.0), own.page.asked_s) == (3, 1.0)


def test_a_percentage_is_no_share() -> None:
    assert not Observation(0.0, 0, 0, kv_usage=37.0).sane()
    assert Observation(0.0, 0, 0, kv_usage=1.001).sane()


def test_while_readings_are_too_old_only_our_own_requests_count() -> None:
    own = ledger(a=0.0)
    for at in range(1, 30):
        own.observe(Observation(float(at), running=5 + at % 2, waiting=0))
    assert own.load(29.0) == 6
    assert own.load(33.9) == 6
    assert own.load(34.0) == 1


def test_gauges_that_stand_still_with_work_in_them_stop_counting_after_half_a_minute() -> None:
    own = ledger()
    for at in range(31):
        own.observe(Observation(float(at), running=8, waiting=0))
    assert own.load(29.9) == 8
    assert not own.page.credible(30.0)
    assert own.load(30.0) == 0


def test_an_idle_engine_may_stand_still() -> None:
    own = ledger()
    for at in range(100):
        own.observe(Observation(float(at), running=0, waiting=0))
    assert own.page.credible(99.0)


def test_never_asked_means_nobody_else_is_there() -> None:
    own = ledger(a=0.0)
    assert own.load(10.0) == 1
    assert own.review_s(10.0) == math.inf


def test_it_says_when_time_alone_may_change_something() -> None:
    own = ledger()
    own.observe(Observation(1.0, running=8, waiting=0))
    assert own.review_s(1.0) == 6.0  # too old by then
    assert own.review_s(6.0) == math.inf
    for at in range(2, 60):
        own.observe(Observation(float(at), running=8, waiting=0))
    assert own.review_s(29.0) == 1.0 + 30.0
    idle = ledger()
    for at in range(60):
        idle.observe(Observation(float(at), running=0, waiting=0))
    assert idle.review_s(59.0) == 64.0


def test_a_prompt_counts_until_its_first_token() -> None:
    own = ledger(a=0.0)
    own.observe(Observation(1.0, running=4, waiting=2))
    assert own.prefill.outstanding_tokens == 100
    own.first_token(own.leases[1], 1.5)
    assert own.prefill.outstanding_tokens == 0


def test_the_prompt_of_a_whole_answer_counts_until_it_should_be_computed() -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    for serial in (1, 2):
        own.add(lease(serial, at=0.0, prompt=4000, streamed=False))
    assert own.review_s(0.0) == own.leases[1].prefill_end_s == pytest.approx(1.05)
    own.prefill.advance(1.0)
    assert list(own.prefill.leases) == [1, 2]
    own.prefill.advance(1.06)
    assert list(own.prefill.leases) == [2]
    own.first_token(own.leases[1], 1.1)  # a first byte may still come
    own.prefill.advance(2.06)
    assert not own.prefill.leases


def test_a_waiter_that_leaves_relieves_the_engine_queue_once() -> None:
    own = ledger(a=0.0, b=0.0, c=0.5)
    own.observe(Observation(1.0, running=2, waiting=3))
    for serial in (1, 2, 3):
        own.first_token(own.leases[serial], 1.0)
    own = ledger(a=0.0)
    own.observe(Observation(1.0, running=2, waiting=3))
    own.remove(own.leases[1], 1.1)
    assert own.engine_queue(1.1) == 2


def test_kv_usage_is_what_was_read_plus_our_own_estimate_since() -> None:
    own = ledger()
    assert own.kv_usage(0.0) is None
    own.observe(Observation(1.0, running=1, waiting=0, kv_usage=0.5))
    own.add(lease(1, at=1.5, prompt=50, output=50))
    assert own.kv_usage(2.0) == 0.5
    own.observe(Observation(2.0, running=2, waiting=0, kv_usage=0.5, kv_capacity_tokens=1000))
    own.add(lease(2, at=2.5, prompt=50, output=50))
    assert own.kv_usage(3.0) == pytest.approx(0.6)
    assert own.kv_usage(100.0) is None


@pytest.mark.parametrize("after", [Observation(2.0, 1, 0, progress=1.0), Observation(2.0, 1, 0, started_s=99.0)])
def test_a_restart_frees_the_slots_of_what_was_sent_before(after: Observation) -> None:
    own = ledger(old=0.0)
    old = own.leases[1]
    assert not own.observe(Observation(1.0, 5, 0, progress=10.0, started_s=50.0 if after.started_s else None))
    own.add(lease(2, at=1.5))
    assert own.observe(after)
    assert list(own.leases) == [2]
    assert own.leases[2].epoch == own.epoch == 1
    own.first_token(old, 2.1)
    own.remove(old, 2.2)  # its holder still reports its end
    own.remove(own.leases[2], 2.3)
    assert own.load(2.3) == 0
    assert own.prefill.outstanding_tokens == 0


def test_a_restart_is_seen_although_the_gauges_were_away_meanwhile() -> None:
    own = ledger(old=0.0)
    own.observe(Observation(1.0, 5, 0, progress=10.0))
    for _ in range(2):
        own.missed()
    assert own.page.base is None
    assert own.observe(Observation(9.0, 0, 0, progress=1.0))
    assert own.epoch == 1
    assert not own.leases


def test_the_prefill_rate_is_learned_and_never_zero() -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    for serial in range(10_000):
        own.add(lease(serial, at=float(serial), prompt=0))
        own.first_token(own.leases[serial], serial + (0.5 if serial % 2 else 0.0))
        own.remove(own.leases[serial], serial + 0.6)
    assert own.speed.rate == 4000.0, "prompts of nothing say nothing"
    for serial in range(10_000, 10_100):
        own.add(lease(serial, at=float(serial), prompt=1000))
        own.first_token(own.leases[serial], serial + 0.5)
        own.remove(own.leases[serial], serial + 0.6)
    assert own.speed.rate == pytest.approx(1000 / (0.5 - 0.05), rel=0.01)
    for serial in range(10_100, 10_200):  # all but a few tokens of these are cached: they wait for a step
        own.add(lease(serial, at=float(serial), prompt=10))
        own.first_token(own.leases[serial], serial + 0.1)
        own.remove(own.leases[serial], serial + 0.6)
    assert own.speed.rate == pytest.approx(1000 / (0.5 - 0.05), rel=0.3)


def told(at: float, first_tokens: float, seconds: float) -> Observation:
    return Observation(at, 1, 0, progress=at, first_token_s_total=seconds, first_tokens_total=first_tokens)


def served_unseen(own: Ledger, until_s: int, *, seconds: float = 0.25, prompt: int = 2000) -> None:
    """Each second one prompt, not streamed, computed in so long; the engine tells of it a moment before the next."""
    for at in range(until_s):
        own.add(lease(at, at=float(at), prompt=prompt, streamed=False))
        own.observe(told(at + 0.9, at + 1.0, (at + 1.0) * seconds))
        own.remove(own.leases[at], at + 0.95)


def test_where_no_first_token_is_seen_the_engine_is_asked_for_them() -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    served_unseen(own, 60)
    assert own.speed.rate_known
    assert own.speed.rate == pytest.approx(2000 / (0.25 - 0.05), rel=0.1)
    own.add(lease(100, at=60.0, prompt=2000, streamed=False))
    assert own.leases[100].prefill_end_s == pytest.approx(60.25, abs=0.03)


def test_a_speed_that_the_engine_tells_at_most_doubles_at_a_time() -> None:
    """The queue that it computed was believed at the old speed, and may not have been there."""
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    own.observe(told(0.1, 0.0, 0.0))
    own.add(lease(1, at=1.0, prompt=50_000, streamed=False))
    own.observe(told(2.0, 1.0, 0.1))
    assert own.speed.rate == pytest.approx(2 * 4000.0, rel=0.05)


def test_first_tokens_of_our_own_are_believed_over_what_the_engine_tells_of_others() -> None:
    own = of_known_speed()
    rate = own.speed.rate
    own.observe(told(5.0, 0.0, 0.0))
    own.add(lease(8, at=6.0, prompt=4_000, streamed=False))
    own.observe(told(7.0, 10.0, 300.0))
    assert own.speed.rate == rate
    own.add(lease(9, at=60.0 + 5.5, prompt=4_000, streamed=False))
    own.observe(told(60.0 + 6.0, 20.0, 600.0))
    assert own.speed.rate < rate, "it was long ago that one was seen"


@pytest.mark.parametrize(
    ("first_tokens", "seconds"),
    [(10.0, 5.0), (9.0, 6.0), (11.0, 4.0), (11.0, math.inf), (11.0, math.nan), (math.nan, 6.0)],
    ids=["none", "fewer", "less than before", "infinite", "no number", "no number of them"],
)
def test_what_makes_no_sense_of_first_tokens_is_not_learned(first_tokens: float, seconds: float) -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    own.observe(told(0.1, 10.0, 5.0))
    own.add(lease(1, at=1.0, prompt=2000, streamed=False))
    own.observe(told(2.0, first_tokens, seconds))
    assert own.speed.rate == 4000.0
    own.observe(Observation(3.0, 1, 0, progress=3.0))
    own.observe(told(4.0, 12.0, 7.0))
    assert own.speed.rate == 4000.0, "from nothing to something nothing can be counted"


def test_a_prompt_is_before_the_engine_until_its_first_token_even_if_the_engine_has_taken_it_in() -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    own.add(lease(1, at=0.0, prompt=40_000))
    own.add(lease(2, at=0.0, prompt=4_000))
    own.observe(Observation(1.0, running=2, waiting=0, progress=1.0))
    own.observe(Observation(2.0, running=2, waiting=0, progress=2.0))
    assert own.prefill.outstanding_tokens == 44_000
    assert own.prefill.left(2.0) == 44_000 - 2.0 * 4000.0
    assert own.prefill.left(60.0) == 4_000, "the second one's prompt comes after the first one's token"
    own.first_token(own.leases[1], 10.0)
    assert own.prefill.left(10.0) == own.prefill.outstanding_tokens == 4_000
    own.first_token(own.leases[2], 11.0)
    assert own.prefill.left(11.0) == 0


def of_known_speed(seconds: float = 1.0) -> Ledger:
    """A ledger of an engine that was seen to compute prompts of 4,000 tokens in so long, five of them, until then."""
    made = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    for serial in range(5):
        made.add(lease(serial, at=serial * seconds, prompt=4_000))
        made.first_token(made.leases[serial], (serial + 1) * seconds + 0.05)
        made.remove(made.leases[serial], (serial + 1) * seconds)
    return made


def test_what_is_computed_of_a_long_prompt_is_outstanding_no_more_but_for_its_last_token() -> None:
    own = of_known_speed()
    begun_s, rate = 10.0, own.speed.rate
    own.add(lease(8, at=begun_s, prompt=10_000))
    own.add(lease(9, at=begun_s, prompt=300))
    for step in range(1, 5):
        due_s = begun_s + step * 2048 / rate
        assert own.prefill.due_s == own.review_s(begun_s) == pytest.approx(due_s)
        own.prefill.advance(due_s - 0.01)
        assert own.prefill.outstanding_tokens == 10_300 - (step - 1) * 2048
        own.prefill.advance(own.prefill.due_s)
        assert own.prefill.outstanding_tokens == 10_300 - step * 2048
        assert own.prefill.left(due_s) == pytest.approx(own.prefill.outstanding_tokens)
    assert own.prefill.due_s == math.inf, "what is left of it is its token's to tell"
    own.prefill.due_s = begun_s
    own.prefill.advance(begun_s + 60.0)
    assert own.prefill.outstanding_tokens == 1 + 300
    own.first_token(own.leases[8], begun_s + 61.0)
    assert own.prefill.outstanding_tokens == 300


def test_progress_is_counted_from_when_the_prompt_before_was_done_with_seen_or_not() -> None:
    own = of_known_speed()
    rate = own.speed.rate
    own.add(lease(8, at=10.0, prompt=4_000, streamed=False))
    own.add(lease(9, at=10.0, prompt=40_000))
    ends_s = own.leases[8].prefill_end_s
    own.prefill.advance(ends_s)
    assert own.prefill.outstanding_tokens == 40_000
    done_s = ends_s - 0.05  # its engine was, sooner than that could have been seen
    assert own.prefill.due_s == pytest.approx(done_s + 2048 / rate)
    own.prefill.advance(ends_s + 2 * 2048 / rate)
    own.observe(Observation(20.0, running=1, waiting=0, progress=9.0))
    assert own.prefill.outstanding_tokens == 40_000 - 2 * 2048


def test_a_prompt_counts_whole_while_the_speed_is_not_known() -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    own.add(lease(1, at=0.0, prompt=40_000))
    assert own.prefill.due_s == math.inf
    own.prefill.due_s = 0.0
    own.prefill.advance(5.0)
    assert own.prefill.outstanding_tokens == 40_000


def answers_whole(own: Ledger, serial: int, tokens: int, at: float) -> None:
    """What was asked for as a stream comes in one piece."""
    each = own.leases[serial]
    own.first_token(each, at)
    own.answered(each, tokens, at)
    own.remove(each, at)


@pytest.mark.parametrize("tokens", [1000, 10_000])
def test_whole_prompts_that_follow_one_another_do_not_add_up(tokens: int) -> None:
    """Two are always there, and as one is computed the next is sent: what is computed of the first counts no more."""
    prefill, each_s = PrefillBacklog(Speed()), tokens / 4000.0
    assert not prefill.speed.rate_known
    for serial in range(60):
        now = each_s * max(0.0, serial - 1.01)
        prefill.advance(now)
        prefill.add(lease(serial, at=now, prompt=tokens, streamed=False))
        assert len(prefill.leases) <= 3, "two, and one that may take a step to be seen"
    ends = [each.prefill_end_s for each in prefill.leases.values()]
    assert max(ends) == pytest.approx(60 * each_s, abs=1.5 * each_s)


def test_whole_answers_to_who_asked_for_streams_say_nothing_of_how_fast_prompts_are() -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    for serial in range(1, 9):
        own.add(lease(serial, at=0.0, prompt=1_000))
    answers_whole(own, 1, 500, 25.0)
    assert own.speed.rate < 100, "as if a thousand tokens took 25 s"
    for serial in range(2, 4):
        answers_whole(own, serial, 500, 25.0)
    assert own.speed.rate == 4000.0
    own.prefill.advance(25.0)
    assert own.prefill.outstanding_tokens == 0, "none of those under way will show when its prompt is computed"
    assert own.streams == 0
    answers_whole(own, 5, 500, 26.0)
    assert own.speed.rate >= 4000.0


def test_first_tokens_that_the_engine_counts_and_nobody_sees_are_of_the_oldest_prompts() -> None:
    own = Ledger(ConcurrencyLimit(64), stale_after_s=5.0)
    for serial in range(1, 4):
        own.add(lease(serial, at=0.0, prompt=1_000))
    for at, made in ((0.5, 0.0), (1.0, 2.0)):
        own.observe(Observation(at, 3, 0, progress=at, first_token_s_total=made * 0.3, first_tokens_total=made))
    assert list(own.prefill.leases) == [3]


def test_while_the_engine_queues_every_dispatch_joins_its_queue_and_what_it_began_leaves_it() -> None:
    own = ledger(a=0.0)
    own.observe(Observation(1.0, running=4, waiting=2, progress=1.0))
    own.add(lease(2, at=1.1))
    own.add(lease(3, at=1.2))
    assert own.engine_queue(1.3) == 4
    own.remove(own.leases[1], 1.4)
    assert own.engine_queue(1.5) == 3


def test_more_begun_than_ended_shows_that_the_engine_runs_more_than_it_did() -> None:
    own = ledger()
    own.observe(Observation(1.0, running=4, waiting=2, progress=1.0))
    for serial in (2, 3):
        own.add(lease(serial, at=1.1))
        own.first_token(own.leases[serial], 1.2)
    assert own.engine_queue(1.3) == 2
    own.remove(own.leases[2], 1.4)
    assert own.engine_queue(1.5) == 1


def test_pace_is_what_streams_show_and_is_forgotten_when_none_show_it() -> None:
    own = ledger(a=0.0)
    own.first_token(own.leases[1], 1.0)
    own.progressed(own.leases[1], 5, 1.5)  # too few to tell
    assert own.speed.time_per_output_token_s(1.5) == 0.0
    own.progressed(own.leases[1], 21, 2.0)
    assert own.speed.time_per_output_token_s(2.0) == pytest.approx(0.05)
    own.progressed(own.leases[1], 41, 4.0)
    assert own.speed.time_per_output_token_s(4.0) == pytest.approx(0.06)
    assert own.speed.time_per_output_token_s(4.0 + 60.0) == 0.0
    own.progressed(own.leases[1], 61, 100.0)
    assert own.speed.time_per_output_token_s(100.0) == pytest.approx(96 / 20)


def test_what_ran_on_a_dead_engine_says_nothing_of_its_successor() -> None:
    own = ledger(a=0.0)
    own.observe(Observation(1.0, 1, 0, started_s=1.0))
    old = own.leases[1]
    assert own.observe(Observation(2.0, 0, 0, started_s=9.0))
    own.first_token(old, 3.0)
    own.progressed(old, 100, 4.0)
    assert own.speed.time_per_output_token_s(4.0) == 0.0


def test_the_pace_without_prompts_is_what_is_left_when_their_time_is_taken_off() -> None:
    own = of_known_speed()
    assert own.speed.decode_s(5.0) is None
    own.add(lease(7, at=10.0, prompt=10))
    own.first_token(own.leases[7], 10.1)
    own.add(lease(8, at=10.1, prompt=4_000))
    own.first_token(own.leases[8], 11.1)
    own.progressed(own.leases[7], 101, 12.1)
    assert own.speed.time_per_output_token_s(12.1) == pytest.approx(2.0 / 100)
    assert own.speed.decode_s(12.1) == pytest.approx((2.0 - 4_010 / own.speed.rate) / 100)
    own.progressed(own.leases[7], 201, 12.6)
    assert own.speed.decode_s(12.6) < own.speed.time_per_output_token_s(12.6)  # type: ignore[operator]
    assert own.speed.decode_s(12.6 + 60.0) is None


def test_others_are_those_of_a_page_that_were_not_ours_while_it_was_asked_for() -> None:
    own = ledger(a=0.0, b=0.0, c=1.5)
    own.remove(own.leases[1], 1.2)
    own.observe(Observation(1.0, running=5, waiting=0))  # answered late: one of ours ended since, and one was sent
    assert own.page.others == 2
    assert own.load(1.5) == 2 + 2


def test_a_request_that_came_and_went_while_a_page_was_asked_for_is_nobody_elses() -> None:
    own = ledger(a=1.5)
    own.remove(own.leases[1], 1.8)
    own.observe(Observation(1.0, running=1, waiting=0))
    assert own.load(2.0) == 0


def test_where_nobody_told_the_slots_a_late_page_shows_ours_that_have_ended_and_nobody_else() -> None:
    own = Ledger(FoundLimit(64), stale_after_s=5.0)
    for serial in range(60):
        own.add(lease(serial, at=0.0))
    own.observe(Observation(1.0, running=60, waiting=0))
    for serial in range(50):
        own.remove(own.leases[serial], 1.5)
    own.observe(Observation(2.0, running=60, waiting=1))
    assert own.load(2.0) == 10 + 1


def test_ours_beyond_the_slots_wait_inside_the_engine_until_they_begin() -> None:
    own = Ledger(ConcurrencyLimit(2), stale_after_s=5.0)
    for serial in (1, 2, 3):
        own.add(lease(serial, at=0.0))
    assert own.engine_queue(0.0) == 1
    own.first_token(own.leases[1], 0.1)
    assert own.engine_queue(0.1) == 1
    own.remove(own.leases[1], 0.2)
    assert own.engine_queue(0.2) == 0
