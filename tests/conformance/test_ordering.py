"""What every ordering has to do inside one flow, and the order that each one gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.conformance.checks import CHECKS
from penstock.conformance.invariants import CheckedScheduler
from penstock.core.queueing.flow_queue import ORDERINGS
from penstock.core.scheduler import SchedulerSettings
from tests.core.drive import request, scheduler, sent, the_lease

# Arrival, in seconds, and what the request says of itself.
SCRIPT: dict[str, tuple[float, dict[str, Any]]] = {
    "long": (0.0, {"prompt_tokens": 4000, "deadline_s": 60.0}),
    "undated": (0.1, {"prompt_tokens": 1000}),
    "urgent": (0.2, {"prompt_tokens": 2000, "deadline_s": 20.0}),
    "short": (0.3, {"prompt_tokens": 10, "deadline_s": 90.0}),
    "short too": (0.4, {"prompt_tokens": 10, "deadline_s": 90.0}),
}
EXPECTED = {
    "fcfs": ["long", "undated", "urgent", "short", "short too"],
    "deadline": ["urgent", "long", "short", "short too", "undated"],
    "shortest_first": ["short", "short too", "undated", "urgent", "long"],
}
every_ordering = pytest.mark.parametrize("ordering", EXPECTED)


def busy(ordering: str) -> tuple[CheckedScheduler, int]:
    """A scheduler with one slot, which is taken."""
    made = scheduler(SchedulerSettings(ordering=ordering, wait_s_max=1000.0), a=1)
    return made, the_lease(made.arrived(request("first"), now=0.0))


def served(made: CheckedScheduler, lease: int, *, now: float) -> list[str]:
    """Who is sent, one after the other, until nobody is left."""
    names = []
    while actions := made.finished(lease, now=now):
        names += [name for name, _ in sent(actions)]
        lease = the_lease(actions)
    return names


def test_every_ordering_is_in_the_map() -> None:
    assert set(EXPECTED) == set(ORDERINGS)


@every_ordering
def test_the_order_is_the_one_it_promises(ordering: str) -> None:
    made, lease = busy(ordering)
    for name, (at, says) in SCRIPT.items():
        made.arrived(request(name, **says), now=at)
    assert served(made, lease, now=1.0) == EXPECTED[ordering]


@every_ordering
@pytest.mark.parametrize("check", CHECKS["ordering"], ids=lambda check: str(check.__name__))
def test_what_every_ordering_has_to_do(ordering: str, check: Callable[[str], None]) -> None:
    check(ordering)


@every_ordering
def test_no_request_is_overtaken_for_ever(ordering: str) -> None:
    """A large one, while smaller ones keep coming: only those that come before it has aged go first."""
    made, lease = busy(ordering)
    aged_s = (3000 + 2 * 50) / 50.0  # tokens of work a second  # tokens of work a second
    made.arrived(request("large", prompt_tokens=3000, deadline_s=500.0), now=0.0)
    names: list[str] = []
    for at in range(1, 300):
        for name in (f"{at}", f"{at}.5"):
            made.arrived(request(name, prompt_tokens=1, deadline_s=500.0 + at), now=float(at))
        actions = made.finished(lease, now=float(at))
        names += [name for name, _ in sent(actions)]
        lease = the_lease(actions)
    assert all(float(name) <= aged_s for name in names[: names.index("large")])
