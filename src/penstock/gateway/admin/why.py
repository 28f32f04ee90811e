"""Why a model's next request waits, or an endpoint takes nothing: the catalogue's sentence and the numbers behind it.

`story.py` explains one request's wait. The numbers are those of the decision: what the next request needs, what is
free, and the ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.explain.snapshot import EndpointSnapshot, ModelSnapshot, Snapshot
from penstock.core.values.catalogue import MISSING, SERVING, Cause
from penstock.core.values.rows import FlowSnapshot
from penstock.gateway.admin.phrases import count, percent, tokens
from penstock.gateway.telemetry.failures import Kind

#: Causes that leave room for others: with all slots taken they are not what the next request waits for.
ROOM_LEFT = frozenset({Cause.TURN, Cause.CLASS_SHARE, Cause.AFFINITY})
#: Causes of an endpoint that has slots and takes nothing.
OTHERWISE = frozenset(
    {Cause.ENGINE_QUEUE, Cause.PREFILL_FULL, Cause.KV_FULL, Cause.PACE, Cause.HELD, Cause.RETURNING, Cause.STUCK}
)
NEARLY = 0.9  # of a bound: in bytes and tokens it is hardly ever met to the last one
MIB = 1 << 20


def is_full(model: ModelSnapshot) -> bool:
    """Whether no slot is left at the endpoints that serve the model now."""
    return 0 < model.slots <= model.taken


def cause_now(model: ModelSnapshot) -> Cause | None:
    """The cause of the model's next request that its numbers bear out.

    Slots, if none is left for those that are said to go first; no endpoint, if those that take or refuse single
    requests as a trial serve nobody now.
    """
    if model.endpoints and not model.up and model.cause in OTHERWISE | ROOM_LEFT | {Cause.SLOTS_FULL}:
        return Cause.NO_BACKEND
    return Cause.SLOTS_FULL if model.cause in ROOM_LEFT and is_full(model) else model.cause


def model_why(model: ModelSnapshot, snapshot: Snapshot) -> str:
    cause = cause_now(model)
    if cause is None:
        return "requests are being sent"
    at = model.closed.get(cause, 0)
    engines = f"{at} of {count(model.endpoints, 'engine')}"
    if cause is Cause.SLOTS_FULL or (cause is Cause.CLASS_SHARE and 0 < model.slots - model.taken <= model.kept_free):
        return _slots(cause, model, snapshot)
    if cause is Cause.KV_FULL:
        return f"{cause.sentence} of {percent(snapshot.kv_usage_ceiling)}: {engines}{_kv(model, snapshot)}"
    if cause is Cause.NO_BACKEND or not at:
        return cause.sentence
    return f"{cause.sentence}, {engines}"


def _slots(cause: Cause, model: ModelSnapshot, snapshot: Snapshot) -> str:
    """How many slots are taken where the model is served now, and why those that are left are not the next one's."""
    engines = count(model.answering, "engine")
    out = f" ({model.endpoints - model.up} of {model.endpoints} out of service)" if model.up < model.endpoints else ""
    if is_full(model):
        over = f", and {count(model.over, 'more request runs', 'more requests run')} there" if model.over else ""
        return f"all slots are taken, {model.taken:,} of {model.slots:,} on {engines}{out}{over}"
    left = model.slots - model.taken
    at = model.answering if cause is Cause.CLASS_SHARE else model.closed.get(Cause.SLOTS_FULL, 0)
    where = f" at {at} of {engines}" if at < model.answering else ""
    parts = [f"{Cause.SLOTS_FULL.sentence}{where}, {model.taken:,} of {model.slots:,} on {engines}{out}"]
    if cause is Cause.CLASS_SHARE:
        kept = "the last one is" if left == 1 else f"the last {left} are"
        parts.append(f"{kept} reserved for tenants under their share")
    elif model.head is not None and model.head.ceiling < 1.0:
        parts.append(f"band {model.head.band} may use {percent(model.head.ceiling)} of each")
    if more := _not_ours(model, snapshot):
        parts.append(f"{count(more, 'slot is', 'slots are')} busy with work that is not ours")
    parts += [f"at {number} {other.sentence}" for other, number in model.closed.items() if where and other in OTHERWISE]
    return "; ".join(parts)


def _not_ours(model: ModelSnapshot, snapshot: Snapshot) -> int:
    """Requests of others, and those of clients that hung up, at the endpoints that serve the model now."""
    return round(sum(max(e.load - e.leases, e.given_up, 0.0) for e in serving(model, snapshot)))


def serving(model: ModelSnapshot, snapshot: Snapshot) -> list[EndpointSnapshot]:
    """The endpoints that serve the model now."""
    return [e for e in snapshot.endpoints if e.state in SERVING and (e.models is None or model.name in e.models)]


def _kv(model: ModelSnapshot, snapshot: Snapshot) -> str:
    """How full the engines are whose memory is too full, and what the next request needs."""
    head, text = model.head, ""
    there = [e for e in serving(model, snapshot) if e.closed is Cause.KV_FULL]
    used = [e.kv_usage_believed for e in there if e.kv_usage_believed is not None]
    if used:
        low, high = f"{min(used) * 100:.0f}", f"{max(used) * 100:.0f}"
        text = f", {low} % used" if low == high else f", {low}–{high} % used"
    if head is not None and head.kv_tokens_free and head.tokens > head.kv_tokens_free:
        free = f"at most {tokens(head.kv_tokens_free)} are free"
        text += f"; the next request needs ~{tokens(head.tokens)} tokens (prompt and answer), {free}"
    return text


def endpoint_why(endpoint: EndpointSnapshot, snapshot: Snapshot) -> str | None:
    """Why an endpoint takes nothing of the next requests, if there are numbers that show it."""
    if endpoint.closed is Cause.ENGINE_QUEUE and endpoint.given_up:
        return f"{count(endpoint.given_up, 'slot is', 'slots are')} still busy for clients that hung up"
    if endpoint.closed is Cause.NO_BACKEND or (
        endpoint.closed is None and endpoint.state in MISSING and snapshot.waiting
    ):
        return f"it is {endpoint.state.sentence}"
    if endpoint.closed is not Cause.KV_FULL:
        return None
    ceiling = percent(snapshot.kv_usage_ceiling)
    if endpoint.needed_tokens is not None and endpoint.kv_tokens_free is not None:
        free = f"{tokens(endpoint.kv_tokens_free)} free below the ceiling of {ceiling}"
        return f"next request needs ~{tokens(endpoint.needed_tokens)} KV tokens, {free}"
    if endpoint.kv_usage_believed is None:
        return None
    return f"{percent(endpoint.kv_usage_believed)} of its KV memory is used, the ceiling is {ceiling}"


def within(flow: FlowSnapshot, wrong: Mapping[Kind, int]) -> str:
    """A tenant's share of its band over the last minute, and the fair one; `wrong`: its failures meanwhile."""
    got = percent(flow.share)
    if flow.is_alone:
        return "alone"
    # With less than is fair and hardly a wait, it does not ask for more.
    if flow.fair_share is None or (flow.share < flow.fair_share and flow.oldest_wait_s < 1.0):
        return got if wrong.get(Kind.REFUSED) or wrong.get(Kind.EVICTED) else f"{got}, all it asks for"
    return f"{got}, fair {percent(flow.fair_share)}"


def bounds_met(snapshot: Snapshot) -> str:
    """Which bounds of the queue are met or nearly so, with their settings; empty if none."""
    near = [bound for bound in snapshot.bounds if bound.now and bound.now >= NEARLY * bound.most]
    if not near:
        return ""
    parts = []
    for bound in near:
        setting = f"{'queue' if bound.band is None else f'bands.{bound.band}'}.max_{bound.of}"
        if bound.of == "bytes":
            amount = f"{bound.now / MIB:,.1f} of at most {bound.most / MIB:,.1f} MiB"
        else:
            unit = "requests" if bound.of == "requests" else "prompt tokens"
            amount = f"{bound.now:,} of at most {bound.most:,} {unit}"
        parts.append(f"{amount} ({setting})")
    full = "full" if any(bound.now >= bound.most for bound in near) else "nearly full"
    return f"The queue is {full}: {', '.join(parts)}."
