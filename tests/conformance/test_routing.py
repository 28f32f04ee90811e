"""What every routing policy has to do: it chooses among the endpoints that are open, and wastes none of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.conformance.checks import CHECKS, burst
from penstock.core.routing.policies.registry import POLICIES

every_policy = pytest.mark.parametrize("policy", POLICIES)


@every_policy
@pytest.mark.parametrize("check", CHECKS["routing"], ids=lambda check: str(check.__name__))
def test_what_every_policy_has_to_do(policy: str, check: Callable[[str], None]) -> None:
    check(policy)


@every_policy
def test_a_burst_is_spread_over_equal_endpoints(policy: str) -> None:
    assert burst(policy, 12, a=8, b=8, c=8) == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize("policy", ["least_loaded", "session", "prefix", "kv", "load_balanced_kv"])
def test_a_larger_endpoint_gets_more_of_a_light_load(policy: str) -> None:
    assert burst(policy, 10, large=16, small=4) == {"large": 8, "small": 2}
