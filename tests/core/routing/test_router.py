"""Where: taking turns, and the least loaded."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.routing.policies.registry import POLICIES
from penstock.core.routing.policies.round_robin import RoundRobin
from penstock.core.values.observation import Observation
from penstock.core.values.settings import EndpointSpec, HealthSettings, RoutingSettings
from tests.core.drive import context, lease, policy_named

MODELS_MAX = 1024


def endpoints(**slots: int) -> list[Endpoint]:
    return [
        Endpoint(EndpointSpec(name=name, slots=count), index=at, health=HealthSettings(), stale_after_s=5.0)
        for at, (name, count) in enumerate(slots.items())
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_chooses_one_of_those_it_was_given(policy: str) -> None:
    some = endpoints(a=1, b=2, c=0)
    router = policy_named(policy)
    for at in range(9):
        given = some[at % 3 :]
        assert router.choose(given, context()).endpoint in given


@pytest.mark.parametrize("policy", POLICIES)
def test_a_choice_at_rest_is_that_of_the_scores(policy: str) -> None:
    random, router, taken = Random(5), policy_named(policy), 0
    for _ in range(400):
        some = endpoints(a=4, b=2, c=0)[: random.randrange(2, 4)]
        for at, endpoint in enumerate(some):
            speed = endpoint.ledger.speed
            speed.rate_known = random.random() < 0.7
            speed.rate = random.choice([800.0, 5_000.0, 6_000.0]) if speed.rate_known else speed.rate
            endpoint.turn = float(random.randrange(3))
            if random.random() < 0.1:
                endpoint.ledger.add(lease(at))
        prompt_tokens = random.choice([1, 60, 4_000, 100_000])
        chosen = router.at_rest(some, prompt_tokens, 1.0)
        if chosen is not None:
            taken += 1
            assert chosen is router.choose(some, context(now=1.0, prompt_tokens=prompt_tokens)).endpoint
    assert (taken > 100) == (policy == "predicted_ttft")


def test_at_rest_nothing_is_chosen_where_speeds_weights_or_others_requests_count() -> None:
    router = policy_named("predicted_ttft")
    some = endpoints(a=4, b=4)
    for endpoint, rate in zip(some, (800.0, 8_000.0), strict=True):
        endpoint.ledger.speed.rate_known, endpoint.ledger.speed.rate = True, rate
    assert router.at_rest(some, 10, 1.0) is some[0]
    assert router.at_rest(some, 1_000, 1.0) is None, "the one takes a second longer than the other"
    some[0].weighted = some[1].weighted = True
    assert router.at_rest(some, 10, 1.0) is None
    some[0].weighted = some[1].weighted = False
    some[0].ledger.observe(Observation(0.5, running=1, waiting=0))
    assert router.at_rest(some, 10, 1.0) is None


def test_round_robin_takes_turns_per_model_and_skips_closed_endpoints() -> None:
    a, b, c = some = endpoints(a=1, b=1, c=1)
    router = RoundRobin(RoutingSettings(), Random(1).random)
    assert [router.choose(some, context()).endpoint.name for _ in range(4)] == ["a", "b", "c", "a"]
    assert router.choose([a, c], context()).endpoint is c
    assert router.choose([b, c], context(model="n")).endpoint is b


def test_round_robin_remembers_a_bounded_number_of_models() -> None:
    some, router = endpoints(a=1, b=1), RoundRobin(RoutingSettings(), Random(1).random)
    for at in range(3 * MODELS_MAX):
        router.choose(some, context(model=str(at)))
    assert len(router._last) <= MODELS_MAX


def test_least_loaded_counts_load_for_its_size_and_takes_turns_when_equal() -> None:
    large, small = some = endpoints(large=10, small=2)
    router = policy_named("least_loaded")
    large.ledger.add(lease(1))
    large.ledger.add(lease(2))
    small.ledger.add(lease(3))
    assert router.choose(some, context()).endpoint is large
    large.ledger.add(lease(4))
    large.ledger.add(lease(5))
    large.ledger.add(lease(6))
    assert router.choose(some, context()).endpoint is large
    large.turn = 1.0
    assert router.choose(some, context()).endpoint is small
