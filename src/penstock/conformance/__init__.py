"""The conformance suite for policies, in virtual time; our own policies pass it.

    python -m penstock.conformance routing my_package.routing:Nearest
    python -m penstock.conformance fairness by_price          # by the name of its entry point

or in a test: `assert penstock.conformance.failures("routing", Nearest) == []`. docs/policies/README.md describes how to
write and offer a policy. Each claim is a function of `checks.py`; its docstring is printed. `CheckedScheduler`
(`invariants.py`) is a scheduler that checks its invariants after every fact.
"""

from __future__ import annotations

import itertools

from penstock.config.sections.policies import enlist
from penstock.conformance.checks import CHECKS
from penstock.core.queueing.fairness import POLICIES as FAIRNESS
from penstock.core.queueing.flow_queue import ORDERINGS
from penstock.core.routing.other_packages import Trouble
from penstock.core.routing.policies.registry import POLICIES as ROUTING

__all__ = ["claims", "failures", "results"]

_serial = itertools.count(1)
_REGISTRIES: dict[str, dict[str, object]] = {
    "fairness": FAIRNESS,  # type: ignore[dict-item]
    "ordering": ORDERINGS,  # type: ignore[dict-item]
    "routing": ROUTING,  # type: ignore[dict-item]
}


def claims(decision: str) -> list[str]:
    """The claims for a policy of a decision (`fairness`, `ordering`, `routing`)."""
    return [(check.__doc__ or "").strip() for check in CHECKS[decision]]


def failures(decision: str, policy: object) -> list[str]:
    """Returns the claims that a policy, as loaded from its entry point, does not meet."""
    return [f"{claim} {problem}" for claim, problem in results(decision, policy) if problem is not None]


def results(decision: str, policy: object) -> list[tuple[str, str | None]]:
    """Yields each claim with its failure, or None. Raises `ValueError` if it is not such a policy."""
    name, trouble = f"under test {next(_serial)}", Trouble(decision, "")
    enlist(decision, name, policy, trouble)
    try:
        return [(claim, _tried(decision, at, name, trouble)) for at, claim in enumerate(claims(decision))]
    finally:
        del _REGISTRIES[decision][name]


def _tried(decision: str, at: int, name: str, trouble: Trouble) -> str | None:
    before = trouble.count
    try:
        CHECKS[decision][at](name)
    except AssertionError as error:
        return str(error) or "It does not."
    if trouble.count > before:  # which a gateway would have made good
        return f"It failed {trouble.count - before} times, the last time: {trouble.last}"
    return None
