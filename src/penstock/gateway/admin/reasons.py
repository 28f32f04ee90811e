"""Why a model's requests wait, or an endpoint takes nothing: in words, with the numbers that show it.

The numbers are those of the decision: what the next request needs, what is free, and the ceiling it has to stay under.
A bare "full" beside 80 % would be taken for a mistake.
"""

from __future__ import annotations

from penstock.core.explain.snapshot import ALL, BoundSnapshot, EndpointSnapshot, ModelSnapshot, Snapshot
from penstock.core.values.catalogue import Cause
from penstock.gateway.admin.events import printable

NAME_CHARS_MAX = 60
NEARLY = 0.9  # of a bound: in bytes and tokens it is hardly ever met to the last one
MIB = 1 << 20

# What a cause means for a model: `{model}` waits because …
WHY: dict[Cause, str] = {
    Cause.NO_BACKEND: "{model} has no endpoint alive",
    Cause.WARMING: "{model} waits for endpoints that have not told yet what they serve",
    Cause.UNPROVEN: "{model}'s endpoints have yet to show that they are engines",
    Cause.EJECTED: "{model}'s endpoints were taken out after failures",
    Cause.HELD: "{model}'s engines refuse requests as too many",
    Cause.RETURNING: "{model}'s endpoints just came back and are tried out first",
    Cause.STUCK: "{model}'s engines have shown no movement for long",
    Cause.SLOTS_FULL: "{model} has all slots taken",
    Cause.ENGINE_QUEUE: "{model}'s engines queue enough already",
    Cause.PREFILL_FULL: "{model}'s engines have enough prompts to compute",
    Cause.KV_FULL: "{model} is saturated on KV memory",
    Cause.PACE: "{model}'s engines are slower per token than allowed",
    Cause.SHUNNED: "{model}'s first in line was just refused and is tried elsewhere",
    Cause.CLASS_SHARE: "{model}'s last slots and memory are kept for tenants under their share",
    Cause.TENANT_CAP: "{model}'s waiting tenants run as many as they may",
    Cause.TENANT_PAUSED: "{model}'s waiting tenants are paused",
    Cause.AFFINITY: "{model}'s first in line is held for the endpoint that has its cache",
    Cause.NO_DECIDER: "{model}'s requests are sent nowhere until it is known which gateway decides",
    Cause.PAUSED: "{model} is paused",
    Cause.TURN: "{model} is being handed out in turn",
}
assert WHY.keys() == set(Cause)
SERVING = ("up", "held")  # states of endpoints that are sent what there is; held ones again within a moment
MISSING = (
    "down",
    "hung",
    "refused_key",
    "unproven",
    "stuck",
    "silent",
    "ejected",
)  # states of endpoints that should be there and can't be used
_COUNTED = (Cause.ENGINE_QUEUE, Cause.PREFILL_FULL, Cause.PACE, Cause.HELD)


def model_why(model: ModelSnapshot, snapshot: Snapshot, *, named: bool = True) -> str:
    """Why the model's requests wait: those that are next, for that is what the others wait behind."""
    name = short_name(model.name) if named else "it"
    if model.cause is None:
        return f"{name} is being handed out"
    if cause_now(model) is Cause.SLOTS_FULL:
        why = WHY[Cause.SLOTS_FULL].format(model=name)
        return f"{why}, {_slots(model)}"
    text = _special(model, snapshot) or WHY[model.cause]
    why = (text if named else text.replace("{model}'s", "its")).format(model=name)
    engines = count(model.endpoints, "engine", "engines")
    if model.cause is Cause.KV_FULL and model.cause_endpoints:
        return _kv_why(model, why, f"{name}'s" if named else "its", snapshot)
    if model.cause in _COUNTED and model.cause_endpoints:
        return f"{why}, {model.cause_endpoints} of {engines}"
    return why


def cause_now(model: ModelSnapshot) -> Cause | None:
    """What the model's first request waits for: a slot, if none is left since the request was last looked at."""
    full = bool(model.slots) and model.taken >= model.slots
    return Cause.SLOTS_FULL if model.cause is Cause.TURN and full else model.cause


def _special(model: ModelSnapshot, snapshot: Snapshot) -> str | None:
    """Where a cause stands for several things: the one that is so."""
    if model.cause is Cause.NO_BACKEND and not model.endpoints:
        return "no endpoint serves {model}"
    if model.cause is Cause.NO_BACKEND and model.up:
        return "{model}'s endpoints that would be next are not alive"
    if model.cause is Cause.PAUSED and model.name not in snapshot.paused and ALL not in snapshot.paused:
        others = "other " if any(e.state in MISSING for e in snapshot.endpoints if _serves(e, model)) else ""
        return f"{{model}}'s {others}endpoints are drained by an operator"
    return None


def _serves(endpoint: EndpointSnapshot, model: ModelSnapshot) -> bool:
    return endpoint.models is None or model.name in endpoint.models


def _slots(model: ModelSnapshot) -> str:
    """How many slots are taken, at the endpoints that are there; and what runs there beyond them."""
    taken = f"{min(model.taken, model.slots):,} of {model.slots:,} on {count(model.answering, 'engine', 'engines')}"
    if model.up < model.endpoints:
        taken += f" ({model.endpoints - model.up} of {model.endpoints} out of service)"
    over = model.taken - model.slots
    return f"{taken}, and {count(over, 'request', 'requests')} more run there" if over > 0 else taken


def bounds_met(snapshot: Snapshot) -> str:
    """Which bounds of the queue are met, or next to it, so that newcomers are refused. Empty: none."""
    near = [bound for bound in snapshot.bounds if bound.now and bound.now >= NEARLY * bound.most]
    if not near:
        return ""
    full = "full" if any(bound.now >= bound.most for bound in near) else "nearly full"
    return f"The queue is {full}: {', '.join(map(_bound, near))}."


def _bound(bound: BoundSnapshot) -> str:
    """How much there is of what is bounded, and the setting that bounds it."""
    if bound.of == "bytes":
        amount = f"{bound.now / MIB:,.1f} of at most {bound.most / MIB:,.1f} MiB"
    else:
        amount = f"{bound.now:,} of at most {bound.most:,} {'requests' if bound.of == 'requests' else 'prompt tokens'}"
    return f"{amount} ({'queue' if bound.band is None else f'bands.{bound.band}'}.max_{bound.of})"


def endpoint_why(endpoint: EndpointSnapshot, snapshot: Snapshot) -> str | None:
    """Why an endpoint takes nothing of what is next, where there are numbers that show it."""
    if endpoint.closed is Cause.ENGINE_QUEUE and endpoint.given_up:
        return f"{count(endpoint.given_up, 'slot is', 'slots are')} still at work for clients that hung up"
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


def _kv_why(model: ModelSnapshot, why: str, whose: str, snapshot: Snapshot) -> str:
    engines = f"{model.cause_endpoints} of {count(model.endpoints, 'engine', 'engines')}"
    ceiling, head = percent(snapshot.kv_usage_ceiling), model.head
    least, most = model.kv_usage_min, model.kv_usage_max
    if head is not None and head.kv_tokens_free and head.tokens > head.kv_tokens_free:
        used = "" if least is None or most is None else f", {_range(least, most)} used"
        return (
            f"{whose} next request needs ~{tokens(head.tokens)} tokens of KV memory (prompt and answer),"
            f" at most {tokens(head.kv_tokens_free)} are free below the ceiling of {ceiling} ({engines}{used})"
        )
    if least is not None and least >= snapshot.kv_usage_ceiling:
        return f"{why}, {engines} ≥ {ceiling}, the ceiling"
    return f"{why}, {engines} at the ceiling of {ceiling}"


def tokens(number: int) -> str:
    """As exact as an estimate is."""
    return f"{round(number, -1) if number >= 100 else number:,}"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _range(least: float, most: float) -> str:
    low, high = f"{least * 100:.0f}", f"{most * 100:.0f}"
    return f"{low} %" if low == high else f"{low}–{high} %"


def short_name(name: str) -> str:
    return printable(name, NAME_CHARS_MAX)


def count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
