"""What to do about the headline: one line for the first fault; empty if all is well."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from penstock.core.explain.snapshot import EndpointSnapshot, Snapshot
from penstock.core.values.catalogue import MISSING, SERVING, Cause, EndpointState, Failure, Reason
from penstock.gateway.admin.failing import slow
from penstock.gateway.admin.failing.lately import ROWS, FailureGroup, Lately, of_alarm, of_note
from penstock.gateway.admin.phrases import count, short_name
from penstock.gateway.admin.why import cause_now, serving
from penstock.gateway.telemetry.failures import Kind

_WANTS_AN_ENDPOINT = frozenset(
    {
        *(Cause.SLOTS_FULL, Cause.ENGINE_QUEUE, Cause.PREFILL_FULL, Cause.KV_FULL, Cause.PACE),
        *(Cause.CLASS_SHARE, Cause.TURN, Cause.NO_BACKEND, Cause.PAUSED, Cause.HELD),
    }
)
#: The last failure may be an old one of another kind: it is shown where it is what the state comes of.
_SHOWN = {
    EndpointState.DOWN: frozenset({Failure.CONNECT, Failure.STALE, Failure.RESET}),
    EndpointState.EJECTED: frozenset(Failure),
}
_TOO_MANY = (Cause.HELD, Cause.ENGINE_QUEUE)
_TOO_MUCH = (Reason.QUEUE_FULL, Reason.OVERLOAD, Reason.QUEUE_TIMEOUT)


def advice(
    snapshot: Snapshot, lately: Lately, *, queueing: bool = True, since: Callable[[str], Lately] | None = None
) -> str:
    """Return it. `since` returns failures since an endpoint was missing, by its name; None: those of the last minute
    are.
    """
    if not snapshot.endpoints:
        return "Add one with `penstock endpoint add URL`, or to `endpoints` in the settings with `penstock reload`."
    if missing := [endpoint for endpoint in snapshot.endpoints if endpoint.state in MISSING]:
        return _missing(missing, snapshot, lately if since is None else since(missing[0].name))
    if snapshot.draining:
        return "Nothing: it ends when the running requests have ended, or its time is over."
    if snapshot.paused:
        return "`penstock resume`, or the page's button Resume, ends the pause; until then requests wait."
    if snapshot.drained:
        return "`penstock resume`, or the page's button Resume, ends the drain; until then new requests are refused."
    failing = of_note(lately, (Kind.BROKEN, Kind.FAILED)) or of_alarm(lately)
    if groups := failing or of_note(lately, (Kind.REFUSED, Kind.EVICTED)):
        return _failing(groups[0])
    model = next((model for model in snapshot.models if model.waiting and model.cause is not None), None)
    cause = None if model is None else cause_now(model)
    if model is None or cause is None:
        return slow.advice(snapshot, lately, queueing=queueing)
    if cause is Cause.NO_BACKEND:
        coming = [e for e in snapshot.endpoints if EndpointState(e.state).advice and _serves(e, model.name)]
        if coming:
            return f"{EndpointState(coming[0].state).advice.format(short_name(coming[0].name))}."
    if cause in _WANTS_AN_ENDPOINT:
        drained = [e for e in snapshot.endpoints if e.state == EndpointState.DRAINING and _serves(e, model.name)]
        if drained:
            return f"`penstock endpoint resume {short_name(drained[0].name)}` gives its slots back."
    if cause is Cause.TENANT_PAUSED and snapshot.paused_tenants:
        return f"`penstock tenant resume {shlex.quote(short_name(snapshot.paused_tenants[0]))}` ends the pause."
    # More slots, as full ones want, are too many already where an engine is kept from more.
    too_many = (other for other in _TOO_MANY if cause is Cause.SLOTS_FULL and other in model.closed)
    return next(too_many, cause).advice


def _missing(missing: list[EndpointSnapshot], snapshot: Snapshot, since: Lately) -> str:
    first = missing[0]
    others = (
        f" {count(len(missing) - 1, 'other endpoint is', 'other endpoints are')} missing too."
        if len(missing) > 1
        else ""
    )
    failure = first.failure if first.failure in _SHOWN.get(first.state, ()) else None
    because = f": {ROWS[failure]}" if failure else ""
    todo = EndpointState(first.state).advice.format(short_name(first.name))
    return f"{todo}{because}.{others} {_meanwhile(first, snapshot, since)}"


def _meanwhile(missing: EndpointSnapshot, snapshot: Snapshot, since: Lately) -> str:
    """What becomes of the requests that a missing endpoint would have served. `since`: it was missing."""
    models = [model for model in snapshot.models if _serves(missing, model.name)]
    if models and not all(serving(model, snapshot) for model in models):
        return "Requests for its models wait for it as long as they may."
    if not any(endpoint.state in SERVING for endpoint in snapshot.endpoints):
        return "Requests wait for it as long as they may."
    if of_alarm(since):
        return "The others are not enough: many requests get no answer."
    short = any(model.waiting and cause_now(model) in _WANTS_AN_ENDPOINT for model in models)
    return "The others are not enough: requests wait." if short else "The others carry its load."


def _serves(endpoint: EndpointSnapshot, model: str) -> bool:
    return endpoint.models is None or model in endpoint.models


def _failing(group: FailureGroup) -> str:
    if group.reason in _TOO_MUCH and group.most:
        verb = f"`penstock tenant limit {shlex.quote(group.most)} --queued N`"
        gain = "those are refused at once that would wait in vain" if group.kind is Kind.EVICTED else "others find room"
        return (
            f"Most requests that were {group.kind} come from {group.most}: {verb} lets fewer of its requests wait, so"
            f" that {gain}. More engines help, too. Callers were told when to come back."
        )
    where = short_name(group.endpoint) if group.endpoint else "the engines"
    return Reason(group.reason).advice.format(where) if group.reason in set(Reason) else f"See the log of {where}."
