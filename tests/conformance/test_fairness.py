"""What every fairness policy has to do, and what each one claims: a new policy joins the map, nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec import structs

from penstock.conformance.checks import CHECKS, MIXED
from penstock.core.queueing.fairness import POLICIES
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import Prices
from tests.core.shop import PATIENT, Customer, Shop


@dataclass(frozen=True)
class Claims:
    """What a policy says of itself."""

    divides: str | None  #: what it divides between flows in proportion to their weights: tokens, requests, or nothing
    flows: bool = True


CLAIMS = {
    "weighted_tokens": Claims("tokens"),
    "round_robin": Claims("requests"),
    "fcfs": Claims(None, flows=False),
}
every_policy = pytest.mark.parametrize("policy", CLAIMS)


def settings(policy: str) -> SchedulerSettings:
    return structs.replace(PATIENT, fairness=policy)


def divided(policy: str, customers: list[Customer], *, until_s: float = 400.0) -> dict[str, float]:
    """What each got of what the policy divides, as a share of all."""
    shop = Shop(customers, slots=(8,), settings=settings(policy)).run(until_s)
    if CLAIMS[policy].divides == "tokens":
        return shop.share()
    sent = Counter(job.customer.name for job in shop.dispatched)
    return {name: count / sent.total() for name, count in sent.items()}


dividing = pytest.mark.parametrize("policy", [name for name, claims in CLAIMS.items() if claims.divides])


def test_every_policy_is_in_the_map() -> None:
    assert set(CLAIMS) == set(POLICIES)


@every_policy
@pytest.mark.parametrize("check", CHECKS["fairness"], ids=lambda check: str(check.__name__))
def test_what_every_policy_has_to_do(policy: str, check: Callable[[str], None]) -> None:
    check(policy)


@every_policy
def test_it_says_whether_flows_matter(policy: str) -> None:
    assert POLICIES[policy](Prices()).uses_flows is CLAIMS[policy].flows


@dividing
def test_equal_flows_get_equal_parts_whatever_their_number_of_waiting_requests(policy: str) -> None:
    shares = divided(policy, [Customer("a", waiting=20), Customer("b", waiting=100), Customer("c", waiting=40)])
    assert all(share == pytest.approx(1 / 3, rel=0.01) for share in shares.values())


@dividing
def test_weights_are_honoured(policy: str) -> None:
    shares = divided(policy, [Customer("one", 1.0), Customer("two", 2.0), Customer("four", 4.0)])
    for name, expected in (("one", 1 / 7), ("two", 2 / 7), ("four", 4 / 7)):
        assert shares[name] == pytest.approx(expected, rel=0.03)


@dividing
def test_a_quiet_flow_does_not_wait_for_the_backlog_of_a_loud_one(policy: str) -> None:
    """It is sent after at most one request of each flow, once a slot is free."""
    loud = [Customer(f"loud{at}", waiting=100) for at in range(3)]
    quiet = Customer("quiet", waiting=1, times_s=((30.0, 30.01),))
    shop = Shop([*loud, quiet], slots=(4,), settings=settings(policy)).run(60.0)
    assert "quiet" in [job.customer.name for job in shop.dispatched]
    after = [job for job in shop.dispatched if job.sent_s >= 30.0]
    assert [job.customer.name for job in after].index("quiet") <= len(loud)


@dividing
def test_two_users_of_one_tenant_share_its_part(policy: str) -> None:
    customers = [Customer("t", user="u", output_tokens=(10, 90)), Customer("t", user="v"), Customer("s", user="w")]
    shop = Shop(customers, slots=(8,), settings=settings(policy)).run(400.0)
    if CLAIMS[policy].divides == "tokens":
        got = {flow: cost / sum(shop.served.values()) for flow, cost in shop.served.items()}
    else:
        sent = Counter(job.customer.flow for job in shop.dispatched)
        got = {flow: count / sent.total() for flow, count in sent.items()}
    assert got["s", "w"] == pytest.approx(1 / 2, rel=0.03)
    assert got["t", "u"] == pytest.approx(1 / 4, rel=0.03)


# --- what only one of them claims ---------------------------------------------------------------------------------


def test_weighted_tokens_is_fair_between_flows_whose_requests_differ_eightfold() -> None:
    customers = [
        Customer(f"x{times}", output_tokens=(25 * times, 35 * times), prompt_tokens=(50 * times, 70 * times))
        for times in (1, 2, 4, 8)
    ]
    shares = divided("weighted_tokens", customers)
    jain = sum(shares.values()) ** 2 / (len(shares) * sum(share**2 for share in shares.values()))
    assert jain >= 0.995
    assert all(share == pytest.approx(1 / 4, rel=0.03) for share in shares.values())


def test_weighted_tokens_charges_cached_prompts_by_their_own_price() -> None:
    customers = [
        Customer("cold", prompt_tokens=(1000, 1000), output_tokens=(10, 10)),
        Customer("warm", prompt_tokens=(1000, 1000), output_tokens=(10, 10), cached=0.9),
    ]
    shop = Shop(customers, slots=(8,), settings=settings("weighted_tokens")).run(100.0)
    sent = Counter(job.customer.name for job in shop.dispatched)
    assert sent["warm"] / sent["cold"] == pytest.approx(1020 / 120, rel=0.03)


def test_round_robin_gives_each_flow_as_many_requests_whatever_their_sizes() -> None:
    customers = [Customer("small", output_tokens=(5, 10)), Customer("large", output_tokens=(100, 400))]
    shop = Shop(customers, slots=(8,), settings=settings("round_robin")).run(200.0)
    sent = Counter(job.customer.name for job in shop.dispatched)
    assert abs(sent["small"] - sent["large"]) <= 1


def test_fcfs_sends_in_order_of_arrival() -> None:
    shop = Shop(MIXED, slots=(4, 2), settings=settings("fcfs")).run(60.0)
    order = [int(job.request.id[1:]) for job in shop.dispatched]
    assert order == sorted(order)
