"""What a request is guessed to cost: learned from what engines report, bounded, and deaf to what callers claim."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.queueing.estimate import Estimator
from penstock.core.values.request import Contents, Estimate

KEYS_MAX = 10_000
OUTPUT_TOKENS = 16.0
PICTURE_TOKENS = 765.0
PROMPT_TOKENS_MAX = 1024 * 1024


def guess(estimator: Estimator, tenant: str = "t", *, body_bytes: int = 4000, cap: int | None = None) -> Estimate:
    return estimator.estimate(tenant, "m", Contents(body_bytes), cap)


def test_before_anything_is_known_it_is_prose_and_a_chat_answer() -> None:
    assert guess(Estimator()) == Estimate(1000, int(OUTPUT_TOKENS))


def test_what_the_caller_sets_as_a_maximum_is_only_a_cap() -> None:
    assert guess(Estimator(), cap=7).output_tokens == 7
    assert guess(Estimator(), cap=100_000).output_tokens == OUTPUT_TOKENS


def test_it_is_one_token_at_least_and_never_endless() -> None:
    assert guess(Estimator(), body_bytes=0, cap=0) == Estimate(1, 1)
    assert guess(Estimator(), body_bytes=1 << 40).prompt_tokens == PROMPT_TOKENS_MAX


def test_bytes_per_token_are_learned() -> None:
    estimator, random = Estimator(), Random(1)
    for _ in range(100):
        body_bytes = random.randrange(1000, 9000)
        estimator.learn("t", "m", Contents(body_bytes), round(body_bytes / 2.5 * random.uniform(0.9, 1.1)), 16)
    assert guess(estimator).prompt_tokens == pytest.approx(1600, rel=0.05)
    assert guess(estimator, "stranger").prompt_tokens == pytest.approx(1600, rel=0.05)
    assert estimator.estimate("t", "another", Contents(4000), None).prompt_tokens == 1000


def test_answers_are_learned_per_tenant_and_strangers_get_the_models_average() -> None:
    estimator = Estimator()
    for _ in range(60):
        estimator.learn("short", "m", Contents(0), 0, 10)
        estimator.learn("long", "m", Contents(0), 0, 1000)
    assert guess(estimator, "short").output_tokens == 10
    assert guess(estimator, "long").output_tokens == 1000
    assert 400 < guess(estimator, "stranger").output_tokens < 600


def test_a_change_is_followed_within_some_tens_of_answers() -> None:
    estimator = Estimator()
    for tokens in [10] * 100 + [500] * 40:
        estimator.learn("t", "m", Contents(0), 0, tokens)
    assert guess(estimator).output_tokens == pytest.approx(500, rel=0.05)


def test_a_model_without_answers_is_not_taken_for_an_unknown_one() -> None:
    estimator = Estimator()
    estimator.learn("t", "m", Contents(0), 0, 0)
    assert guess(estimator).output_tokens == 1
    assert guess(estimator, "stranger").output_tokens == 1


def test_nonsense_teaches_nothing_or_little() -> None:
    estimator = Estimator()
    estimator.learn("t", "m", Contents(0), 100, 16)
    estimator.learn("t", "m", Contents(100), 0, 16)
    assert guess(estimator).prompt_tokens == 1000
    estimator.learn("t", "m", Contents(1), 10**9, 16)
    assert guess(estimator).prompt_tokens == 4000


def test_a_million_tenants_cost_a_bounded_amount_of_memory_and_the_model_is_not_forgotten() -> None:
    estimator = Estimator()
    for at in range(3 * KEYS_MAX):
        estimator.learn(f"t{at}", "m", Contents(0), 0, 77)
    assert len(estimator._learned) <= KEYS_MAX
    assert guess(estimator, "stranger").output_tokens == 77


PICTURE = Contents(200, pictures=1)


def told(estimator: Estimator, contents: Contents) -> int:
    return estimator.estimate("t", "m", contents, None).prompt_tokens


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (PICTURE, 50 + PICTURE_TOKENS),
        (Contents(400, pictures=2, sounds=1), 100 + 2 * 765.0 + 500.0),
        (Contents(400, videos=1), 1100.0),
        (Contents(400, documents=3), 2350.0),
        (Contents(40, token_ids=5000), 10 + 5000),
    ],
)
def test_before_anything_is_known_each_kind_has_its_rule_of_thumb(contents: Contents, expected: float) -> None:
    assert told(Estimator(), contents) == expected


@pytest.mark.parametrize("true_tokens", [10, 256, 4000, 100_000])
def test_what_a_picture_costs_is_learned_per_model_within_thirty_requests(true_tokens: int) -> None:
    estimator, random = Estimator(), Random(3)
    for _ in range(30):
        pictures = random.randrange(1, 4)
        contents = Contents(400, pictures=pictures)
        estimator.learn("t", "m", contents, 100 + pictures * true_tokens, 16)
    assert told(estimator, PICTURE) == pytest.approx(50 + true_tokens, rel=0.1, abs=50)
    assert estimator.estimate("t", "another", PICTURE, None).prompt_tokens == 50 + PICTURE_TOKENS
    assert told(estimator, Contents(4000)) == 1000  # text costs what it did


def test_kinds_that_come_together_are_told_apart_where_some_come_alone() -> None:
    estimator = Estimator()
    for at in range(60):
        sounds = at % 2
        estimator.learn("t", "m", Contents(400, pictures=1, sounds=sounds), 100 + 300 + sounds * 3000, 16)
    assert told(estimator, Contents(400, pictures=1)) == pytest.approx(400, rel=0.6)
    assert told(estimator, Contents(400, pictures=1, sounds=1)) == pytest.approx(3400, rel=0.25)


def test_a_long_text_beside_a_picture_says_little_of_the_picture() -> None:
    estimator = Estimator()
    estimator.learn("t", "m", Contents(400_000, pictures=1), 60_000, 16)  # estimated at 100,000
    assert told(estimator, PICTURE) == pytest.approx(50 + PICTURE_TOKENS, rel=0.01)


def test_several_answers_are_several_times_one() -> None:
    estimator = Estimator()
    assert estimator.estimate("t", "m", Contents(400, answers=4), None).output_tokens == 4 * OUTPUT_TOKENS
    assert estimator.estimate("t", "m", Contents(400, answers=4), 10).output_tokens == 40
    for _ in range(60):
        estimator.learn("t", "m", Contents(0, answers=4), 0, 80)
    assert guess(estimator).output_tokens == 20


def test_what_has_no_answer_costs_none_and_teaches_none() -> None:
    estimator = Estimator()
    assert estimator.estimate("t", "m", Contents(400, answers=0), None).output_tokens == 1
    estimator.learn("t", "m", Contents(0, answers=0), 0, 0)
    assert guess(estimator).output_tokens == OUTPUT_TOKENS


def test_several_inputs_may_be_longer_together_than_any_alone() -> None:
    assert told(Estimator(), Contents(1 << 28, inputs=100)) == 1 << 26
