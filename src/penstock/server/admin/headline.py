"""The state of everything in one sentence: is it healthy, who waits, why, for how long.

Made here once from the snapshot, so that the page, `top` and `status` say the same. What an operator stopped comes
first, for it explains the rest; then the model with the most waiting; then endpoints that are missing.
"""

from __future__ import annotations

from penstock.core.admission import Cause
from penstock.core.snapshot import AWAY, ModelSnapshot, Snapshot
from penstock.server.admin.events import printable

NAME_CHARS_MAX = 60
KV_FULL_SHOWN = 0.85  # below that nobody would call an engine's memory full

# What a cause means for a model: `{model}` waits because …
WHY: dict[Cause, str] = {
    Cause.NO_BACKEND: "{model} has no endpoint alive",
    Cause.WARMING: "{model} waits for endpoints that have not told yet what they serve",
    Cause.EJECTED: "{model}'s endpoints were taken out after failures",
    Cause.HELD: "{model}'s engines refuse requests as too many",
    Cause.RETURNING: "{model}'s endpoints just came back and are tried out first",
    Cause.STUCK: "{model}'s engines have shown no movement for long",
    Cause.SLOTS_FULL: "{model} has all slots taken",
    Cause.ENGINE_QUEUE: "{model}'s engines queue enough already",
    Cause.PREFILL_FULL: "{model}'s engines have enough prompts to compute",
    Cause.KV_FULL: "{model} is saturated on KV",
    Cause.PACE: "{model}'s engines are slower per token than allowed",
    Cause.SHUNNED: "{model}'s first in line was just refused and is tried elsewhere",
    Cause.CLASS_SHARE: "{model}'s last slots are kept for tenants under their share",
    Cause.TENANT_CAP: "{model}'s waiting tenants run as many as they may",
    Cause.AFFINITY: "{model}'s first in line is held for the endpoint that has its cache",
    Cause.PAUSED: "{model} is paused",
    Cause.TURN: "{model} is being handed out in turn",
}
assert WHY.keys() == set(Cause)
_OUT = {
    **{state: state for state in AWAY},
    "stuck": "stuck",
    "ejected": "taken out after failures",
    "draining": "drained",
}


def headline(snapshot: Snapshot) -> str:
    """One or two sentences."""
    trouble = _trouble(snapshot)
    if snapshot.draining:
        state = f"Draining: nothing new is let in, {_count(snapshot.waiting, 'waits', 'wait')}, {snapshot.running} run."
    elif snapshot.paused:
        names = "everything" if "*" in snapshot.paused else ", ".join(map(_name, snapshot.paused[:3]))
        state = f"Paused: {names}. {_holding(snapshot) if snapshot.waiting else 'Nothing waits.'}"
    elif snapshot.waiting:
        state = _holding(snapshot)
    elif snapshot.running:
        state = f"Nothing waits, {_count(snapshot.running, 'request runs', 'requests run')}."
    else:
        state = "Idle: nothing waits, nothing runs."
    if snapshot.drained and not snapshot.draining:
        names = "anything" if "*" in snapshot.drained else ", ".join(map(_name, snapshot.drained[:3]))
        state += f" Nothing new is let in for {names}."
    return f"{state} {trouble}".strip()


def tone(snapshot: Snapshot) -> str:
    """How bad it is: "ok", "busy" or "bad"."""
    out = [endpoint for endpoint in snapshot.endpoints if endpoint.state in (*AWAY, "stuck", "ejected")]
    dead = any(model.endpoints and not model.up for model in snapshot.models)
    if snapshot.draining or snapshot.paused or dead or not snapshot.endpoints:
        return "bad"
    return "busy" if snapshot.waiting or out or snapshot.drained else "ok"


def _holding(snapshot: Snapshot) -> str:
    bands = [band for band in snapshot.bands if band.waiting]
    longest = max(bands, key=lambda band: band.oldest_wait_s)
    oldest = f"Oldest {seconds(longest.oldest_wait_s)}{f' ({longest.name})' if len(bands) > 1 else ''}."
    models = [model for model in snapshot.models if model.waiting]
    if not models:
        return f"Holding {snapshot.waiting:,}. {oldest}"
    first = models[0]
    reason = _reason(first)
    others = sum(1 for _ in models) - 1 + snapshot.models_more
    more = f" ({first.waiting:,} of them; {_count(others, 'other model', 'other models')} too)" if others else ""
    return f"Holding {snapshot.waiting:,}{_whose(snapshot)}: {reason}{more}. {oldest}"


def _whose(snapshot: Snapshot) -> str:
    """Who waits, where that is mostly one tenant."""
    waiting: dict[str, int] = {}
    for flow in snapshot.flows:
        waiting[flow.tenant] = waiting.get(flow.tenant, 0) + flow.waiting
    if len(waiting) < 2 and not snapshot.flows_more:
        return ""
    tenant = max(waiting, key=waiting.__getitem__, default="")
    most = waiting.get(tenant, 0)
    if most * 2 < snapshot.waiting:
        return ""
    return f", {'all' if most == snapshot.waiting else f'{most:,}'} from {_name(tenant)}"


def _reason(model: ModelSnapshot) -> str:
    """Why the model's requests wait, with the numbers that show it."""
    name = _name(model.name)
    if model.cause is None:
        return f"{name} is being handed out"
    why = WHY[model.cause].format(model=name)
    serving = f"{model.cause_endpoints} of {_count(model.endpoints, 'engine', 'engines')}"
    if model.cause is Cause.KV_FULL and model.cause_endpoints:
        usage = model.kv_usage_min if model.cause_endpoints == model.endpoints else model.kv_usage_max
        if usage is None:
            return f"{why}, {serving}"
        if usage < KV_FULL_SHOWN:  # much is left, but what comes next is larger
            return f"{why}: its next request does not fit on {serving}, {usage:.0%} used".replace("%", " %")
        return f"{why}, {serving} ≥ {int(usage * 100)} %"
    if model.cause is Cause.SLOTS_FULL:
        return f"{why}, {model.running:,} of {model.slots:,} on {_count(model.endpoints, 'engine', 'engines')}"
    if model.cause in (Cause.ENGINE_QUEUE, Cause.PREFILL_FULL, Cause.PACE, Cause.HELD) and model.cause_endpoints:
        return f"{why}, {serving}"
    return why


def _trouble(snapshot: Snapshot) -> str:
    """What is wrong apart from waiting."""
    if not snapshot.endpoints:
        return "No endpoint is configured or discovered."
    said = []
    for state, word in _OUT.items():
        names = [endpoint.name for endpoint in snapshot.endpoints if endpoint.state == state]
        if names:
            listed = _name(names[0]) if len(names) == 1 else f"{len(names)} of {len(snapshot.endpoints)} endpoints"
            said.append(f"{listed} {'is' if len(names) == 1 else 'are'} {word}.")
    return " ".join(said)


def _name(name: str) -> str:
    return printable(name, NAME_CHARS_MAX)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def seconds(value: float) -> str:
    """A duration as people say it."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"
