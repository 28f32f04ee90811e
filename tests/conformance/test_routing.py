"""What every routing policy has to do: it chooses among the endpoints that are open, and wastes none of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from msgspec import structs

from penstock.core.endpoint import Endpoint
from penstock.core.routing.registry import POLICIES
from penstock.core.scheduler import SchedulerSettings
from penstock.core.settings import EndpointSpec, HealthSettings
from penstock.sim.checkers import CheckedScheduler
from tests.core.drive import context, lease, policy_named, request, scheduler, sent
from tests.core.shop import PATIENT, Customer, Shop


@dataclass(frozen=True)
class Claims:
    """What a policy says of itself."""

    sizes: bool  #: a larger endpoint gets more
    even: bool = True  #: a burst is divided evenly, not only nearly so


CLAIMS = {
    "round_robin": Claims(sizes=False),
    "least_loaded": Claims(sizes=True),
    "power_of_two": Claims(sizes=True, even=False),
    "session": Claims(sizes=True),
    "prefix": Claims(sizes=True),
    "kv": Claims(sizes=True),
    "load_balanced_kv": Claims(sizes=True),
    "predicted_ttft": Claims(sizes=False),
    "lmetric": Claims(sizes=False),
}
every_policy = pytest.mark.parametrize("policy", CLAIMS)


def settings(policy: str) -> SchedulerSettings:
    return SchedulerSettings(routing=policy)


def endpoints(**slots: int) -> list[Endpoint]:
    return [
        Endpoint(EndpointSpec(name=name, slots=count), index=at, health=HealthSettings(), stale_after_s=5.0)
        for at, (name, count) in enumerate(slots.items())
    ]


def burst(policy: str, count: int, **slots: int) -> Counter[str]:
    made = scheduler(settings(policy), **slots)
    actions = [action for at in range(count) for action in made.arrived(request(str(at)), now=0.0)]
    return Counter(endpoint for _, endpoint in sent(actions))


def test_every_policy_is_in_the_map() -> None:
    assert set(CLAIMS) == set(POLICIES)


@every_policy
def test_it_chooses_one_of_those_it_is_given(policy: str) -> None:
    some, router = endpoints(a=1, b=2, c=0), policy_named(policy)
    for at in range(30):
        given = [x for x in some if (at >> x.index) & 1] or some
        chosen = router.choose(given, context(str(at), model=f"m{at % 3}", now=float(at)))
        assert chosen in given
        chosen.ledger.add(lease(at, at=float(at)))
        chosen.dispatches_total += 1


@every_policy
def test_the_same_facts_give_the_same_choices(policy: str) -> None:
    customers = [Customer(name, output_tokens=(5, 100)) for name in "ab"]
    runs = [Shop(customers, slots=(4, 2), settings=structs.replace(PATIENT, routing=policy)).run(30.0) for _ in "12"]
    first, second = ([(job.request.id, job.lease) for job in run.dispatched] for run in runs)
    assert first == second


@pytest.mark.parametrize("policy", [name for name, claims in CLAIMS.items() if claims.even])
def test_a_burst_is_spread_over_equal_endpoints(policy: str) -> None:
    assert burst(policy, 12, a=8, b=8, c=8) == {"a": 4, "b": 4, "c": 4}


@every_policy
def test_every_slot_of_unequal_endpoints_is_used(policy: str) -> None:
    assert burst(policy, 20, large=8, small=2) == {"large": 8, "small": 2}


@pytest.mark.parametrize("policy", [name for name, claims in CLAIMS.items() if claims.sizes])
def test_a_larger_endpoint_gets_more_of_what_does_not_fill_them(policy: str) -> None:
    assert burst(policy, 10, large=16, small=4) == {"large": 8, "small": 2}


@every_policy
def test_who_is_down_gets_nothing(policy: str) -> None:
    made = scheduler(settings(policy), a=4, b=4)
    made.endpoint_down("a", now=0.0)
    assert {endpoint for at in range(4) for _, endpoint in sent(made.arrived(request(str(at)), now=0.0))} == {"b"}


@every_policy
def test_no_slot_idles_and_every_invariant_holds(policy: str) -> None:
    customers = [Customer(name, output_tokens=(5, 100)) for name in "abc"]
    Shop(customers, slots=(5, 1, 3), settings=structs.replace(PATIENT, routing=policy), kind=CheckedScheduler).run(3.0)
