"""What our own answers show of an engine's size: never too much, and all of it where all slots are full."""

from __future__ import annotations

import math

import pytest

from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.prefill_backlog import PrefillBacklog
from penstock.core.endpoints.running_evidence import BEST_KEPT_S, OVERDUE, WHOLE_AFTER, RunningEvidence
from tests.core.drive import lease

STEP_S = 0.1


class Steps:
    """An engine of so many slots that is always full: each step, all of its requests get a token, some the last one."""

    def __init__(self, slots: int, tokens: int) -> None:
        self.at_work = RunningEvidence()
        self.slots = slots
        self.tokens = tokens
        self.running: list[tuple[Lease, int]] = []
        self.serial = 0
        self.now = 0.0

    def step(self) -> int:
        """One step; the most that was seen at work in it."""
        while len(self.running) < self.slots:
            self.serial += 1
            self.running.append((lease(self.serial, at=self.now), self.serial % self.tokens if not self.now else 0))
        self.now += STEP_S
        following = []
        for each, made in self.running:
            if each.first_token_s is None:
                each.first_token_s = self.now
                self.at_work.begun(each, self.now)
            if made + 1 < self.tokens:
                following.append((each, made + 1))
            else:
                self.at_work.answered(each, made + 1, self.now)
                self.at_work.ended(each, self.now)
        self.running = following
        return self.at_work.look(self.now)


@pytest.mark.parametrize("tokens", [1, 2, 20, 200])
def test_a_full_engine_shows_all_its_slots_and_no_more_however_short_its_answers(tokens: int) -> None:
    engine = Steps(200, tokens)
    seen = [engine.step() for _ in range(3 * tokens + 10)]
    assert max(seen) == 200
    assert seen[-1] == 200


def test_a_first_token_is_overdue_when_others_took_a_third_of_the_time() -> None:
    at_work, prefill = RunningEvidence(), PrefillBacklog()
    assert at_work.late_after_s() == math.inf, "nothing is known yet"
    first, second = lease(1, at=0.0, prompt=1), lease(2, at=0.0, prompt=1)
    for each in (first, second):
        prefill.add(each)
    first.first_token_s = 0.2
    at_work.begun(first, 0.2)
    prefill.remove(first)
    assert at_work.overdue(prefill, 0.2 * OVERDUE) == 0
    assert at_work.overdue(prefill, 0.2 * OVERDUE + 0.01) == 1
    assert at_work.overdue(prefill, 0.2 * OVERDUE + 0.01, sure=True) == 0, "somebody says that none waits"
    assert at_work.overdue(prefill, 10.0, sure=True) == 1


def test_what_a_later_one_has_overtaken_waits_for_no_slot() -> None:
    """Engines begin with what came first, so what is late beside newer ones that began stands somewhere else."""
    at_work, prefill = RunningEvidence(), PrefillBacklog()
    sent = [lease(number, at=0.1 * number, prompt=1) for number in range(4)]
    for each in sent:
        prefill.add(each)

    def begins(each: Lease, now: float) -> None:
        prefill.remove(each)
        at_work.begun(each, now)

    begins(sent[0], 0.1)
    assert at_work.overdue(prefill, 1.0) == 3
    begins(sent[2], 1.0)
    assert at_work.overdue(prefill, 1.1) == 1, "the last one: it may still be its turn"
    begins(sent[3], 1.1)
    assert at_work.overdue(prefill, 9.0) == 0
    prefill.add(lease(9, at=9.0, prompt=1))
    assert at_work.overdue(prefill, 20.0) == 1


def test_a_long_prompt_that_is_computed_explains_a_wait() -> None:
    at_work, prefill = RunningEvidence(), PrefillBacklog()
    first = lease(1, at=0.0, prompt=1)
    at_work.begun(first, 0.05)
    prefill.add(lease(2, at=0.0, prompt=40_000))
    prefill.add(lease(3, at=0.0, prompt=10))
    assert at_work.overdue(prefill, 10.0) == 0, "at 4,000 tokens a second, until more is known"
    assert at_work.overdue(prefill, 100.0) == 2


def test_what_waits_does_not_become_usual() -> None:
    """Only those sent while no more were there than ever ran at once tell how long a first token takes."""
    at_work = RunningEvidence()
    for number in range(4):
        one = lease(number, at=0.0)
        at_work.sent(one, 1)
        at_work.begun(one, 0.1)
    at_work.look(0.1)
    for number in range(10, 110):
        waits = lease(number, at=1.0)
        at_work.sent(waits, 40)
        at_work.begun(waits, 9.0)
        at_work.running -= 1
    assert at_work.usual_s == pytest.approx(0.1)
    for number in range(200, 300):
        slow = lease(number, at=10.0)
        at_work.sent(slow, 3)
        at_work.begun(slow, 11.0)
    assert at_work.usual_s == pytest.approx(1.0, rel=0.01), "the engine became slower"


def test_an_engine_that_answers_whole_what_was_asked_for_as_a_stream_is_found_out() -> None:
    at_work = RunningEvidence()
    for number in range(WHOLE_AFTER):
        assert at_work.streams
        one = lease(number, at=float(number))
        one.first_token_s = number + 0.9
        at_work.begun(one, number + 0.9)
        at_work.answered(one, 100, number + 0.9)
        at_work.ended(one, number + 0.9)
    assert not at_work.streams
    streams = lease(50, at=60.0)
    streams.first_token_s = 60.1
    at_work.begun(streams, 60.1)
    at_work.answered(streams, 100, 61.0)
    assert at_work.streams


def test_one_that_came_whole_though_a_stream_was_asked_for_counts_as_whole() -> None:
    at_work = RunningEvidence()
    for number in range(12):
        one = lease(number, at=0.0, streamed=False)  # what the ledger makes of it where nothing streams
        at_work.sent(one, 12)
        one.first_token_s = 2.0
        at_work.begun(one, 2.0)
        at_work.answered(one, 0, 2.0)
        at_work.ended(one, 2.0)
    assert at_work.look_whole(2.0) == (12, 12)


def test_a_stream_that_has_begun_shows_that_what_was_sent_before_it_runs() -> None:
    at_work = RunningEvidence()
    whole, first, later, last = (lease(n, at=float(n), streamed=n in (2, 4)) for n in range(1, 5))
    for each in (whole, first, later, last):
        at_work.sent(each, each.serial)
    first.first_token_s = 4.5
    at_work.begun(first, 4.5)
    assert at_work.running == 2, "what was sent after it may wait"
    last.first_token_s = 4.6
    at_work.begun(last, 4.6)
    assert at_work.running == 4
    whole.first_token_s = 5.0  # its client was passed a part of it: that is no second request
    at_work.begun(whole, 5.0)
    assert at_work.running == 4
    for each in (whole, first, later, last):
        at_work.ended(each, 6.0)
    assert at_work.running == 0


def test_a_whole_answer_that_no_stream_spoke_for_leaves_nothing_behind() -> None:
    at_work = RunningEvidence()
    whole, stream = lease(1, at=1.0, streamed=False), lease(2, at=2.0)
    at_work.sent(whole, 1)
    at_work.ended(whole, 1.5)
    at_work.sent(stream, 1)
    stream.first_token_s = 2.1
    at_work.begun(stream, 2.1)
    assert at_work.running == 1


def test_how_long_whole_answers_waited_is_a_share_of_their_time_however_short_some_are() -> None:
    """By Little's law 80 of 100 run where answers are at work for 4 s of 5. Of short ones most is the wait."""
    at_work = RunningEvidence()

    def look(waited_s: float, *, ends: int = 40) -> tuple[float, float] | None:
        for number in range(ends):
            one, tokens = lease(number, at=0.0, streamed=False), 1 if number % 2 else 77  # and one each: 40 on average
            at_work.sent(one, 100)
            at_work.answered(one, tokens, waited_s + 0.1 * (tokens + 1))
        return at_work.look_whole(10.0)

    assert look(0.0) == (100, 100)
    assert look(1.0, ends=12) is None, "fewer than an eighth of those there: it is chance which ones ended"
    ran, beside = look(1.0, ends=28) or (0.0, 0.0)
    assert beside == 100
    assert ran == pytest.approx(80.0)


def test_lengths_that_are_not_told_vary_and_are_no_queue() -> None:
    at_work = RunningEvidence()

    def look(took_s: float, *, ends: int) -> tuple[float, float] | None:
        for number in range(ends):
            one = lease(number, at=0.0, streamed=False)
            at_work.sent(one, 40)
            at_work.answered(one, 0, took_s)
        return at_work.look_whole(took_s)

    assert look(1.5, ends=20) == (40, 40)
    assert look(2.0, ends=19) is None, "fewer than half of those there: the short ones"
    assert look(2.0, ends=1) == (40, 40)
    ran, _ = look(5.25, ends=20) or (0.0, 0.0)
    assert ran == pytest.approx(40 / 3), "three times as long as the 1.75 s that was learned"


def test_those_at_work_stand_still_at_the_most_that_ran_lately() -> None:
    at_work = RunningEvidence()
    at_work.running = 100
    assert at_work.look(0.0) == 100
    assert not at_work.stands(80)
    assert at_work.stands(97)
    at_work.running = 80
    at_work.look(0.1)
    at_work.look(BEST_KEPT_S + 1.0)
    at_work.look(2 * BEST_KEPT_S + 2.0)
    assert at_work.stands(80), "that is long ago"
