"""What every routing policy has to do: it chooses among the endpoints that are open, and wastes none of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.conformance.checks import CHECKS, burst
from penstock.core.routing.policies.registry import POLICIES
from penstock.core.values.settings import RoutingSettings

every_policy = pytest.mark.parametrize("policy", POLICIES)
MADE = {name: made(RoutingSettings(), lambda: 0.5) for name, made in POLICIES.items()}


@every_policy
@pytest.mark.parametrize("check", CHECKS["routing"], ids=lambda check: str(check.__name__))
def test_what_every_policy_has_to_do(policy: str, check: Callable[[str], None]) -> None:
    check(policy)


@pytest.mark.parametrize("policy", [name for name, made in MADE.items() if made.spreads_evenly])
def test_a_burst_is_spread_over_equal_endpoints(policy: str) -> None:
    assert burst(policy, 12, a=8, b=8, c=8) == {"a": 4, "b": 4, "c": 4}


@pytest.mark.parametrize("policy", [name for name, made in MADE.items() if made.minds_size])
def test_a_larger_endpoint_gets_more_of_a_light_load(policy: str) -> None:
    assert burst(policy, 10, large=16, small=4) == {"large": 8, "small": 2}
