"""Why a model's next request waits, or an endpoint takes nothing: the catalogue's sentence and the numbers behind it.

`story.py` explains one request's wait. The numbers are those of the decision: what the next request needs, what is
free, and the ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.explain.snapshot import EndpointSnapshot, ModelSnapshot, Snapshot
from penstock.core.values.catalogue import Cause
from penstock.core.values.rows import FlowSnapshot
from penstock.gateway.admin.phrases import count, percent, tokens
from penstock.gateway.telemetry.failures import Kind

NEARLY = 0.9  # of a bound: in bytes and tokens it is hardly ever met to the last one
MIB = 1 << 20


def cause_now(model: ModelSnapshot) -> Cause | None:
    """The cause of the model's next request: slots, if none is left since the request was last looked at."""
    full = bool(model.slots) and model.taken >= model.slots
    return Cause.SLOTS_FULL if model.cause is Cause.TURN and full else model.cause


def model_why(model: ModelSnapshot, snapshot: Snapshot) -> str:
    cause = cause_now(model)
    if cause is None:
        return "requests are being sent"
    engines = f"{model.cause_endpoints} of {count(model.endpoints, 'engine')}"
    if cause is Cause.SLOTS_FULL:
        return f"{cause.sentence}, {_slots(model)}"
    if cause is Cause.KV_FULL:
        return f"{cause.sentence} of {percent(snapshot.kv_usage_ceiling)}: {engines}{_kv(model)}"
    if cause is Cause.NO_BACKEND or not model.cause_endpoints:
        return cause.sentence
    return f"{cause.sentence}, {engines}"


def _slots(model: ModelSnapshot) -> str:
    """How many slots are taken at the endpoints in service, and how many requests run there beyond them."""
    taken = f"{min(model.taken, model.slots):,} of {model.slots:,} on {count(model.answering, 'engine')}"
    if model.up < model.endpoints:
        taken += f" ({model.endpoints - model.up} of {model.endpoints} out of service)"
    over = model.taken - model.slots
    return f"{taken}, and {count(over, 'more request runs', 'more requests run')} there" if over > 0 else taken


def _kv(model: ModelSnapshot) -> str:
    least, most, head = model.kv_usage_min, model.kv_usage_max, model.head
    text = ""
    if least is not None and most is not None:
        low, high = f"{least * 100:.0f}", f"{most * 100:.0f}"
        text = f", {low} % used" if low == high else f", {low}–{high} % used"
    if head is not None and head.kv_tokens_free and head.tokens > head.kv_tokens_free:
        free = f"at most {tokens(head.kv_tokens_free)} are free"
        text += f"; the next request needs ~{tokens(head.tokens)} tokens (prompt and answer), {free}"
    return text


def endpoint_why(endpoint: EndpointSnapshot, snapshot: Snapshot) -> str | None:
    """Why an endpoint takes nothing of the next requests, if there are numbers that show it."""
    if endpoint.closed is Cause.ENGINE_QUEUE and endpoint.given_up:
        return f"{count(endpoint.given_up, 'slot is', 'slots are')} still busy for clients that hung up"
    if endpoint.closed is Cause.NO_BACKEND:
        return f"it is {endpoint.state}"
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
