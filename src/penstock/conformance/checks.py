"""The claims: each is a function of a policy's name that raises `AssertionError` if the claim fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

from msgspec import structs

from penstock.conformance.invariants import CheckedScheduler
from penstock.conformance.shop import PATIENT, Customer, Shop
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.lease import Lease
from penstock.core.queueing.estimate import BYTES_PER_TOKEN
from penstock.core.queueing.fairness import POLICIES as FAIRNESS
from penstock.core.routing.policies.base import Context
from penstock.core.routing.policies.registry import POLICIES as ROUTING
from penstock.core.scheduler import AVOID_S, Scheduler, SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Request
from penstock.core.values.settings import EndpointSpec, HealthSettings, Prices, RoutingSettings

MIXED = [
    Customer("short", output_tokens=(5, 20)),
    Customer("long", 2.0, output_tokens=(200, 400)),
    Customer("prompts", prompt_tokens=(1000, 3000), output_tokens=(1, 5), streamed=False),
    Customer("rare", waiting=1, times_s=tuple((at, at + 0.01) for at in range(0, 60, 7))),
]


# --- fairness -----------------------------------------------------------------------------------------------------


def costs_are_never_negative(policy: str) -> None:
    made = FAIRNESS[policy](Prices())
    for prompt, cached, completion in ((0, 0, 0), (10, 10, 0), (10, 99, 5), (1, 0, 10**9)):
        assert made.cost(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion) >= 0.0


def everybody_is_served(policy: str) -> None:
    ending = [replace(x, times_s=((0.0, 20.0),)) for x in MIXED]
    shop = Shop(ending, slots=(4, 2), settings=structs.replace(PATIENT, fairness=policy)).run(1e6)
    assert not shop.jobs, f"{len(shop.jobs)} requests never ended"
    assert shop.refused == [], f"{len(shop.refused)} requests were refused"
    assert {job.customer.name for job in shop.dispatched} == {x.name for x in MIXED}


def fairness_wastes_no_slot(policy: str) -> None:
    """No slot idles while a request that may use it waits, and every invariant of the scheduler holds."""
    Shop(MIXED, slots=(4, 2), settings=structs.replace(PATIENT, fairness=policy), kind=CheckedScheduler).run(3.0)


def fairness_repeats_itself(policy: str) -> None:
    """The same facts give the same order."""
    settings = structs.replace(PATIENT, fairness=policy)
    orders = [[j.request.id for j in Shop(MIXED, slots=(4, 2), settings=settings).run(30.0).dispatched] for _ in "12"]
    assert orders[0] == orders[1]


# --- ordering -----------------------------------------------------------------------------------------------------


def equals_go_in_order_of_arrival(ordering: str) -> None:
    """Requests that are alike go in order of arrival."""
    made, lease = _busy(ordering)
    for at in range(20):
        made.arrived(_request(str(at)), now=0.0)
    assert _served(made, lease, now=1.0) == [str(at) for at in range(20)]


def a_callers_own_priority_comes_first(ordering: str) -> None:
    """A client's highest-priority request goes first, however large the number."""
    made, lease = _busy(ordering)
    for name, priority in (("last", 2**63), ("plain", 0), ("foremost", -(2**63)), ("early", -1)):
        made.arrived(_request(name, priority=priority), now=0.0)
    assert _served(made, lease, now=1.0) == ["foremost", "early", "plain", "last"]


def who_comes_back_stands_where_it_stood(ordering: str) -> None:
    """A request that returns from a failed engine keeps its place."""
    made, lease = _busy(ordering)
    for at in range(3):
        made.arrived(_request(str(at)), now=0.0)
    lease = _lease_of(made.finished(lease, now=1.0))
    lease = _lease_of(made.failed(lease, Failure.RESET, now=1.0))  # `1` goes meanwhile
    made.expire(now=1.0 + AVOID_S)
    assert _served(made, lease, now=3.0) == ["0", "2"]


def everything_is_served(ordering: str) -> None:
    """Requests of all sizes, with deadlines and without, are all served, and every invariant holds."""
    made, lease = _busy(ordering)
    for at in range(30):
        deadline_s = 500.0 + 7 * at % 40 if at % 3 else None
        made.arrived(_request(str(at), tokens=1 + 97 * at % 1000, deadline_s=deadline_s), now=0.1 * at)
    assert sorted(_served(made, lease, now=4.0)) == sorted(str(at) for at in range(30))


# --- routing ------------------------------------------------------------------------------------------------------


def it_chooses_one_of_those_it_is_given(policy: str) -> None:
    """It chooses one of the endpoints that it is given, for any load and any prompt."""
    some = _endpoints(a=1, b=2, c=0)
    router = ROUTING[policy](RoutingSettings(), Random(1).random)
    for at in range(30):
        given = [x for x in some if (at >> x.index) & 1] or some
        asked = _request(str(at), model=f"m{at % 3}", session=f"s{at % 4}")
        matched = {x.index: 40 for x in some if at % 2} if router.uses_prefix else {}
        context = Context(asked, prompt_tokens=50, output_tokens=50, now=float(at), matched=matched, alive=lambda: some)
        chosen = router.choose(given, context).endpoint
        assert chosen in given, f"chose {chosen!r} of {given!r}"
        assert all(endpoint in some for endpoint in router.preferred(context))
        chosen.ledger.add(
            Lease(
                at,
                endpoint=chosen.name,
                epoch=0,
                request_id=f"r{at}",
                now=float(at),
                prompt_tokens=100,
                output_tokens=50,
                streamed=True,
            )
        )
        chosen.dispatches_total += 1


def routing_repeats_itself(policy: str) -> None:
    """The same facts give the same choices."""
    customers = [Customer(name, output_tokens=(5, 100)) for name in "ab"]
    runs = [Shop(customers, slots=(4, 2), settings=structs.replace(PATIENT, routing=policy)).run(30.0) for _ in "12"]
    first, second = ([(job.request.id, job.lease) for job in run.dispatched] for run in runs)
    assert first == second


def every_slot_is_used(policy: str) -> None:
    """Every slot of unequal endpoints is used when there is work for all."""
    assert burst(policy, 20, large=8, small=2) == {"large": 8, "small": 2}


def who_is_down_gets_nothing(policy: str) -> None:
    """An endpoint that is down gets nothing, and the others all there is."""
    made = _scheduler(SchedulerSettings(routing=policy), a=4, b=4)
    made.endpoint_down("a", now=0.0)
    assert {endpoint for at in range(4) for endpoint in _sent_to(made.arrived(_request(str(at)), now=0.0))} == {"b"}


def routing_wastes_no_slot(policy: str) -> None:
    """No slot idles while a request that may use it waits, and every invariant of the scheduler holds."""
    customers = [Customer(name, output_tokens=(5, 100)) for name in "abc"]
    settings = structs.replace(PATIENT, routing=policy)
    Shop(customers, slots=(5, 1, 3), settings=settings, kind=CheckedScheduler).run(3.0)


CHECKS: dict[str, tuple[Callable[[str], None], ...]] = {
    "fairness": (costs_are_never_negative, everybody_is_served, fairness_wastes_no_slot, fairness_repeats_itself),
    "ordering": (
        equals_go_in_order_of_arrival,
        a_callers_own_priority_comes_first,
        who_comes_back_stands_where_it_stood,
        everything_is_served,
    ),
    "routing": (
        it_chooses_one_of_those_it_is_given,
        routing_repeats_itself,
        every_slot_is_used,
        who_is_down_gets_nothing,
        routing_wastes_no_slot,
    ),
}


# --- short words --------------------------------------------------------------------------------------------------


def burst(policy: str, count: int, **slots: int) -> Counter[str]:
    """Returns the endpoints of so many requests that arrive at once."""
    made = _scheduler(SchedulerSettings(routing=policy), **slots)
    return Counter(place for at in range(count) for place in _sent_to(made.arrived(_request(str(at)), now=0.0)))


def _scheduler(settings: SchedulerSettings, **slots: int) -> CheckedScheduler:
    made = CheckedScheduler(settings, random=Random(1))
    for name, count in slots.items():
        made.endpoint_added(EndpointSpec(name=name, slots=count, models=frozenset({"m"})), now=0.0)
    return made


def _endpoints(**slots: int) -> list[Endpoint]:
    return [
        Endpoint(EndpointSpec(name=name, slots=count), index=at, health=HealthSettings(), stale_after_s=5.0)
        for at, (name, count) in enumerate(slots.items())
    ]


def _request(
    name: str,
    *,
    model: str = "m",
    tokens: int = 0,
    priority: int = 0,
    deadline_s: float | None = None,
    session: str | None = None,
) -> Request:
    return Request(
        id=name,
        model=model,
        band=0,
        body_bytes=round(tokens * BYTES_PER_TOKEN),
        output_tokens_max=50,
        priority=priority,
        deadline_s=deadline_s,
        session=session,
    )


def _busy(ordering: str) -> tuple[CheckedScheduler, int]:
    """A scheduler with one slot, which is taken."""
    made = _scheduler(SchedulerSettings(ordering=ordering, wait_s_max=1000.0), a=1)
    return made, _lease_of(made.arrived(_request("first"), now=0.0))


def _lease_of(actions: list[Action]) -> int:
    (lease,) = [action.lease for action in actions if isinstance(action, Dispatch)]
    return lease


def _sent_to(actions: list[Action]) -> list[str]:
    return [action.endpoint for action in actions if isinstance(action, Dispatch)]


def _served(made: Scheduler, lease: int, *, now: float) -> list[str]:
    """Returns the requests in order of dispatch, until none is left."""
    names: list[str] = []
    while actions := made.finished(lease, now=now):
        names += [action.request_id for action in actions if isinstance(action, Dispatch)]
        lease = _lease_of(actions)
    return names
