"""Short words for the core's tests: a scheduler with endpoints, requests, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.endpoints.lease import Lease
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import Estimator, contents_of
from penstock.core.routing.policies.base import Context, RoutingPolicy
from penstock.core.routing.policies.registry import POLICIES
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.lifecycle import Event
from penstock.core.values.request import Contents, Request
from penstock.core.values.settings import EndpointSpec, RoutingSettings

ANSWER_TOKENS = 128  # of the answers that were seen: with a lower `max_tokens` an answer is expected to be that long


def scheduler(settings: SchedulerSettings | None = None, *, seed: int = 1, **slots: int) -> CheckedScheduler:
    """A scheduler with an endpoint per keyword, each serving the model `m`, added at time 0."""
    made = CheckedScheduler(settings or SchedulerSettings(), random=Random(seed))
    made.inspect().estimator.learn("", "m", Contents(0), 0, ANSWER_TOKENS)
    for name, count in slots.items():
        made.endpoint_added(EndpointSpec(name=name, slots=count, models=frozenset({"m"})), now=0.0)
    return made


def request(
    name: str, *, model: str = "m", band: int = 0, prompt_tokens: int = 0, output_tokens: int = 50, **more: Any
) -> Request:
    """A request that an estimator which knows of longer answers only takes to be that long."""
    sizes: dict[str, Any] = {"body_bytes": round(prompt_tokens * 4.0), "output_tokens_max": output_tokens}
    if "tenant" in more:
        sizes["flow"] = (more["tenant"],)
    return Request(id=name, model=model, band=band, **sizes | more)


def waiting_entry(name: str, seq: int = 1, **more: Any) -> Entry:
    """An entry as the scheduler makes it, estimated, waiting in no queue yet."""
    entry = Entry(request(name, **more), seq)
    entry.move(Event.ADMITTED)
    of = entry.request
    estimator = Estimator()
    estimator.learn("", of.model, Contents(0), 0, ANSWER_TOKENS)
    entry.expect(estimator.estimate(of.tenant, of.model, contents_of(of), of.output_tokens_max))
    entry.work = entry.prompt_tokens + 2.0 * entry.output_tokens
    return entry


def context(name: str = "r", *, now: float = 0.0, matched: dict[int, int] | None = None, **more: Any) -> Context:
    """What a routing policy is told of a request."""
    asked = request(name, **more)
    return Context(asked, prompt_tokens=more.get("prompt_tokens", 1), output_tokens=50, now=now, matched=matched or {})


def policy_named(name: str) -> RoutingPolicy:
    return POLICIES[name](RoutingSettings(), Random(1).random)


def lease(serial: int, *, at: float = 0.0, prompt: int = 100, output: int = 50, streamed: bool = True) -> Lease:
    return Lease(
        serial,
        endpoint="a",
        epoch=0,
        request_id=f"r{serial}",
        now=at,
        prompt_tokens=prompt,
        output_tokens=output,
        streamed=streamed,
    )


def sent(actions: Sequence[Action]) -> list[tuple[str, str]]:
    """Who was dispatched where, in order."""
    return [(a.request_id, a.endpoint) for a in actions if isinstance(a, Dispatch)]


def the_lease(actions: Sequence[Action]) -> int:
    """The one lease that was granted."""
    (serial,) = [a.lease for a in actions if isinstance(a, Dispatch)]
    return serial


def ends(actions: Sequence[Action]) -> list[tuple[str, str, str]]:
    """Who ended how, and why."""
    return [(a.request_id, a.outcome, a.reason) for a in actions if isinstance(a, Reject | Evict | Fail)]


def requeued(actions: Sequence[Action]) -> list[str]:
    return [a.request_id for a in actions if isinstance(a, Requeue)]


def until(made: CheckedScheduler, end_s: float) -> list[Action]:
    """Let time pass."""
    actions: list[Action] = []
    while (due_s := made.next_deadline()) is not None and due_s <= end_s:
        actions += made.expire(now=due_s)
    return actions
