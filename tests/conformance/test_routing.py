"""What every routing policy has to do: it chooses among the endpoints that are open, and wastes none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from penstock.conformance.checks import CHECKS, burst
from penstock.core.routing.policies.registry import POLICIES


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


def test_every_policy_is_in_the_map() -> None:
    assert set(CLAIMS) == set(POLICIES)


@every_policy
@pytest.mark.parametrize("check", CHECKS["routing"], ids=lambda check: str(check.__name__))
def test_what_every_policy_has_to_do(policy: str, check: Callable[[str], None]) -> None:
    check(policy)


@pytest.mark.parametrize("policy", [name for name, claims in CLAIMS.items() if claims.even])
def test_a_burst_is_spread_over_equal_endpoints(policy: str) -> None:
    assert burst(policy, 12, a=8, b=8, c=8) == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize("policy", [name for name, claims in CLAIMS.items() if claims.sizes])
def test_a_larger_endpoint_gets_more_of_what_does_not_fill_them(policy: str) -> None:
    assert burst(policy, 10, large=16, small=4) == {"large": 8, "small": 2}
