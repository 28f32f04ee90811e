"""Policies, built in and from other packages.

A package offers a policy as an entry point in the group of its decision (`GROUPS`). A policy is imported only if the
settings name it; its faults are reported like any wrong setting. docs/policies describes how to write one; `python -m
penstock.conformance` tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from penstock.config.problems import Refused, did_you_mean, listing, show
from penstock.config.values import ValueKind, or_empty
from penstock.core.queueing.fairness import POLICIES as FAIRNESS
from penstock.core.queueing.flow_queue import ORDERINGS
from penstock.core.routing.policies.registry import POLICIES as ROUTING
from penstock.core.values.settings import Prices, RoutingSettings

if TYPE_CHECKING:
    from penstock.core.routing.other_packages import Trouble

GROUPS = {"fairness": "penstock.fairness", "ordering": "penstock.ordering", "routing": "penstock.routing"}
OWN = {"fairness": tuple(FAIRNESS), "ordering": tuple(ORDERINGS), "routing": tuple(ROUTING)}
TROUBLES: dict[tuple[str, str], Trouble] = {}  #: of the policies in use, by decision and name
CHOICES_SHOWN_MAX = 20


@cache
def offered(decision: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Returns other packages' policies by name; several for a name if packages clash."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUPS[decision]):
        same = found.get(point.name, ())
        if all((point.value, _package(point)) != (other.value, _package(other)) for other in same):
            found[point.name] = (*same, point)
    return found


def policy_name(decision: str) -> Callable[[object], str]:
    """Returns a reader for a policy's name. It raises `Refused` unless exactly one usable policy has it."""

    def read(value: object) -> str:
        own, others = OWN[decision], offered(decision)
        points = others.get(value, ()) if isinstance(value, str) else ()
        if not isinstance(value, str) or (value not in own and not points):
            known = names(decision)[:CHOICES_SHOWN_MAX]
            hint = None
            if isinstance(value, str):
                from penstock.config.other_words import POLICIES  # noqa: PLC0415 - no start needs it

                ours = POLICIES.get(value.replace("-", "_").lower()) if decision == "routing" else None
                hint = f"here it is `{ours}`" if ours is not None else did_you_mean(value, known)
            raise Refused(f"{show(value)}: expected {listing(known)}", hint)
        if value in own and points:
            raise Refused(f"`{value}` is built in, and {_package(points[0])} offers another under this name")
        if len(points) > 1:
            raise Refused(f"`{value}` is offered by {listing([_package(point) for point in points])}; remove one")
        if points:
            use(decision, value, points[0])
        return str(value)

    return read


def names(decision: str) -> tuple[str, ...]:
    """Returns the names of all policies for a `decision`, built-in ones first."""
    own = OWN[decision]
    return (*own, *sorted(set(offered(decision)) - set(own)))


def use(decision: str, name: str, point: EntryPoint) -> None:
    """Import, check and register another package's policy as `name`. Raises `Refused`."""
    from penstock.core.routing.other_packages import Trouble  # noqa: PLC0415 - most gateways use our own policies

    where = f"`{name}` ({point.value}, of {_package(point)})"
    try:
        found = point.load()
    except Exception as error:  # whatever its import raises  # noqa: BLE001
        raise Refused(f"{where} can't be imported: {type(error).__name__}: {error}") from None
    try:
        enlist(decision, name, found, TROUBLES.setdefault((decision, name), Trouble(decision, name)))
    except ShapeError as error:
        raise Refused(f"{where} is not a {decision} policy: {error}", "see docs/policies") from None


def enlist(decision: str, name: str, found: object, trouble: Trouble) -> None:
    """Register a policy with the core as `name`. Raises `ShapeError` if it is none."""
    _ENLIST[decision](name, found, trouble)


def traits(routing: str) -> tuple[bool, bool]:
    """Returns whether a routing policy uses prefixes, and whether it uses sessions."""
    if routing not in ROUTING:
        return False, False
    made = ROUTING[routing](RoutingSettings(), lambda: 0.0)
    return made.uses_prefix, made.uses_session


class ShapeError(ValueError):
    """An object is not a policy; the text names what it lacks."""


def _fairness(name: str, factory: Any, trouble: Trouble) -> None:
    from penstock.core.routing.other_packages import OutsideFairness  # noqa: PLC0415

    made = _made(factory, Prices())
    _needs(made, "cost")
    try:
        cost = made.cost(prompt_tokens=1, cached_tokens=0, completion_tokens=1)
    except Exception as error:  # noqa: BLE001
        raise ShapeError(f"`cost` raised {error!r}") from None
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not cost >= 0:
        raise ShapeError(f"`cost` returned {cost!r}, not a number of at least 0")
    FAIRNESS[name] = lambda prices: OutsideFairness(factory(prices), prices, trouble)


def _ordering(name: str, key: Any, trouble: Trouble) -> None:
    from penstock.core.routing.other_packages import outside_order  # noqa: PLC0415

    if not callable(key):
        raise ShapeError("it is not callable")
    ORDERINGS[name] = outside_order(key, trouble)


def _routing(name: str, factory: Any, trouble: Trouble) -> None:
    from penstock.core.routing.other_packages import OutsideRouting  # noqa: PLC0415

    made = _made(factory, RoutingSettings(), lambda: 0.5)
    _needs(made, "score", "choose")
    _needs(made, "preferred")
    ROUTING[name] = lambda settings, draw: OutsideRouting(factory(settings, draw), settings, draw, trouble)


_ENLIST: dict[str, Callable[[str, Any, Trouble], None]] = {
    "fairness": _fairness,
    "ordering": _ordering,
    "routing": _routing,
}


def _made(factory: Any, *told: object) -> Any:
    if not callable(factory):
        raise ShapeError("it is not callable")
    try:
        return factory(*told)
    except Exception as error:  # noqa: BLE001
        raise ShapeError(f"called with {', '.join(type(x).__name__ for x in told)} it raised {error!r}") from None


def _needs(made: object, *methods: str) -> None:
    """Raise `ShapeError` if it has none of the methods; one suffices."""
    if not any(callable(getattr(made, method, None)) for method in methods):
        raise ShapeError(f"its result has no method {' or '.join([f'`{method}`' for method in methods])}")


def _package(point: EntryPoint) -> str:
    return f"the package `{point.dist.name}`" if point.dist is not None else "a package"


def _kind(decision: str) -> ValueKind:
    return ValueKind("policy", choices=lambda: names(decision))


FairnessName = Annotated[str, BeforeValidator(policy_name("fairness")), _kind("fairness")]
OrderingName = Annotated[str, BeforeValidator(policy_name("ordering")), _kind("ordering")]
RoutingName = Annotated[str, BeforeValidator(policy_name("routing")), _kind("routing")]
FairnessNameOrEmpty = Annotated[str, BeforeValidator(or_empty(policy_name("fairness"))), _kind("fairness")]
OrderingNameOrEmpty = Annotated[str, BeforeValidator(or_empty(policy_name("ordering"))), _kind("ordering")]
