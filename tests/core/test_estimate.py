"""What a request is guessed to cost: learned from what engines report, bounded, and deaf to what callers claim."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.estimate import KEYS_MAX, OUTPUT_TOKENS, PROMPT_TOKENS_MAX, Estimator
from penstock.core.request import Estimate


def guess(estimator: Estimator, tenant: str = "t", *, body_bytes: int = 4000, cap: int | None = None) -> Estimate:
    return estimator.estimate(tenant, "m", body_bytes, cap)


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
        estimator.learn_prompt("t", "m", body_bytes, round(body_bytes / 2.5 * random.uniform(0.9, 1.1)))
    assert guess(estimator).prompt_tokens == pytest.approx(1600, rel=0.05)
    assert guess(estimator, "stranger").prompt_tokens == pytest.approx(1600, rel=0.05)
    assert estimator.estimate("t", "another", 4000, None).prompt_tokens == 1000


def test_answers_are_learned_per_tenant_and_strangers_get_the_models_average() -> None:
    estimator = Estimator()
    for _ in range(60):
        estimator.learn_output("short", "m", 10)
        estimator.learn_output("long", "m", 1000)
    assert guess(estimator, "short").output_tokens == 10
    assert guess(estimator, "long").output_tokens == 1000
    assert 400 < guess(estimator, "stranger").output_tokens < 600


def test_a_change_is_followed_within_some_tens_of_answers() -> None:
    estimator = Estimator()
    for tokens in [10] * 100 + [500] * 40:
        estimator.learn_output("t", "m", tokens)
    assert guess(estimator).output_tokens == pytest.approx(500, rel=0.05)


def test_a_model_without_answers_is_not_taken_for_an_unknown_one() -> None:
    estimator = Estimator()
    estimator.learn_output("t", "m", 0)
    assert guess(estimator).output_tokens == 1
    assert guess(estimator, "stranger").output_tokens == 1


def test_nonsense_teaches_nothing_or_little() -> None:
    estimator = Estimator()
    estimator.learn_prompt("t", "m", 0, 100)
    estimator.learn_prompt("t", "m", 100, 0)
    assert guess(estimator).prompt_tokens == 1000
    estimator.learn_prompt("t", "m", 1, 10**9)
    assert guess(estimator).prompt_tokens == 4000


def test_a_million_tenants_cost_a_bounded_amount_of_memory_and_the_model_is_not_forgotten() -> None:
    estimator = Estimator()
    for at in range(3 * KEYS_MAX):
        estimator.learn_output(f"t{at}", "m", 77)
    assert len(estimator._output_tokens._values) <= KEYS_MAX
    assert guess(estimator, "stranger").output_tokens == 77
