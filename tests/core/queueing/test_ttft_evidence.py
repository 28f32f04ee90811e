"""First tokens as evidence: of the present, per size of prompt, and only where there is some."""

from __future__ import annotations

from penstock.core.queueing.ttft_evidence import TtftEvidence

FRESH_S = 10.0
KEPT = 64
LAST = 8
LAST_MIN = 3
TRY_EVERY_S = 0.5


def told(*took_s: float, tokens: int = 1000, now: float = 0.0) -> TtftEvidence:
    made = TtftEvidence()
    for seconds in took_s:
        made.came(tokens, seconds, now)
    return made


def test_without_evidence_a_first_token_takes_no_time() -> None:
    for made in (TtftEvidence(), told(*[9.0] * (LAST_MIN - 1))):
        assert (made.at_best_s(1000, 0.0), made.mostly_s(1000, 0.0)) == (0.0, 0.0)


def test_the_fastest_of_the_last_few_says_what_can_be_met() -> None:
    assert told(5.0, 4.0, 6.0).at_best_s(1000, 0.0) == 4.0
    assert told(0.1, *[5.0] * LAST).at_best_s(1000, 0.0) == 5.0, "that is too long ago"
    assert told(*[5.0] * LAST, 0.1).at_best_s(1000, 0.0) == 0.1, "one answer in time is enough"


def test_what_nearly_all_need_leaves_out_the_slowest() -> None:
    assert told(*[0.1] * 39, 7.0).mostly_s(1000, 0.0) == 0.1
    assert told(*[0.1] * 9, 7.0).mostly_s(1000, 0.0) == 7.0


def test_evidence_gets_old() -> None:
    made = told(5.0, 5.0, 5.0, now=10.0)
    assert made.at_best_s(1000, 10.0 + FRESH_S) == 5.0
    assert made.at_best_s(1000, 10.1 + FRESH_S) == 0.0


def test_long_prompts_do_not_speak_for_short_ones_but_short_ones_do_for_long() -> None:
    made = told(5.0, 5.0, 5.0, tokens=8000)
    assert made.at_best_s(500, 0.0) == 0.0
    made = told(5.0, 5.0, 5.0, tokens=500)
    assert made.at_best_s(8000, 0.0) == 5.0
    for _ in range(LAST_MIN):
        made.came(8000, 2.0, 0.0)
    assert made.at_best_s(8000, 0.0) == 2.0, "their own evidence counts first"


def test_one_may_try_where_none_of_its_size_was_sent_for_a_while() -> None:
    made = TtftEvidence()
    assert made.may_try(1000, 0.0)
    made.sent(1000, 0.0)
    assert not made.may_try(1000, TRY_EVERY_S / 2)
    assert made.may_try(8000, TRY_EVERY_S / 2)
    assert made.may_try(1000, TRY_EVERY_S)


def test_what_is_kept_is_bounded() -> None:
    made = told(*[1.0] * 3 * KEPT)
    assert sum(len(size.answers) for size in made._sizes.values()) == KEPT
