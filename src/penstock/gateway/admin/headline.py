"""The state of everything in one sentence: is it healthy, who waits, why, for how long.

Made here once from the snapshot, so that the page, `top` and `status` say the same. Endpoints that are missing come
first, for somebody has to look at them; then what an operator stopped, which explains the rest; then the model with the
most waiting: what keeps the request that is next, and who waits behind it by priority. What failed in the last minute
and whose it was stands where it belongs: answers that broke before, refusals after what waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.explain.snapshot import ALL, AWAY, BandSnapshot, Snapshot
from penstock.core.values.outcome import Reason
from penstock.gateway.admin.failing.lately import Lately, of_note, said
from penstock.gateway.admin.reasons import MISSING, count, model_why, short_name
from penstock.gateway.telemetry.failures import Kind

BANDS_NAMED_MAX = 3  # a sentence, not a table
FAILURES_NAMED_MAX = 2

_ASIDE = tuple(state for state in (*AWAY, "draining") if state not in MISSING)  # which pass, or are meant
_WORDS = {
    "ejected": "taken out after failures",
    "draining": "drained",
    "unproven": "no engine, as far as its answers show",
}


def headline(
    snapshot: Snapshot, queueing: str = "", lately: Lately | None = None, *, away: Sequence[str] = (), group: str = ""
) -> str:
    """Some sentences: with what failed in the last minute, why queueing is off, and which workers are `away`.

    `group`: what is wrong among gateways that share, in a sentence. It comes first, for it may explain all else.
    """
    missing = _those(snapshot, MISSING) if snapshot.endpoints else "No endpoint is configured or discovered."
    if snapshot.draining:
        state = f"Draining: nothing new is let in, {count(snapshot.waiting, 'waits', 'wait')}, {snapshot.running} run."
    elif snapshot.paused:
        names = "everything" if ALL in snapshot.paused else ", ".join(map(short_name, snapshot.paused[:3]))
        state = f"Paused: {names}. {_holding(snapshot) if snapshot.waiting else 'Nothing waits.'}"
    elif snapshot.waiting:
        state = _holding(snapshot)
    elif snapshot.running:
        state = f"Nothing waits, {count(snapshot.running, 'request runs', 'requests run')}."
    else:
        state = "Idle: nothing waits, nothing runs."
    if snapshot.paused_tenants:
        names = ", ".join(map(short_name, snapshot.paused_tenants[:3]))
        more = len(snapshot.paused_tenants) - 3
        state += f" Paused by an operator: tenant {names}{f' and {more} more' if more > 0 else ''}."
    if queueing:
        state += f" Queueing: {queueing[0].lower()}{queueing[1:]}"
    workers = f"Away, and being started again: worker {', '.join(away)}." if away else ""
    broken = _lately(lately, (Kind.BROKEN, Kind.FAILED))
    refused = _lately(lately, (Kind.REFUSED, Kind.EVICTED))
    parts = (group, missing, workers, _drained(snapshot, lately), broken, state, refused, _those(snapshot, _ASIDE))
    return " ".join(part for part in parts if part)


def tone(snapshot: Snapshot, lately: Lately | None = None, *, away: Sequence[str] = (), group: str = "") -> str:
    """How bad it is: "ok", "busy" or "bad"."""
    if group:
        return "bad"
    states = {endpoint.state for endpoint in snapshot.endpoints}
    dead = any(model.endpoints and not model.up for model in snapshot.models)
    failing = lately is not None and of_note(lately, (Kind.BROKEN, Kind.FAILED))
    stopped = snapshot.draining or snapshot.paused or ALL in snapshot.drained
    if stopped or dead or not states or not states.isdisjoint(MISSING) or failing:
        return "bad"
    refusing = lately is not None and of_note(lately, (Kind.REFUSED, Kind.EVICTED))
    held = snapshot.drained or snapshot.paused_tenants
    is_aside = not states.isdisjoint(_ASIDE)
    return "busy" if snapshot.waiting or held or away or is_aside or refusing else "ok"


def _drained(snapshot: Snapshot, lately: Lately | None) -> str:
    """What an operator lets nothing new in for, and how many were turned away for that."""
    if not snapshot.drained or snapshot.draining:
        return ""
    names = "" if ALL in snapshot.drained else f" for {', '.join(map(short_name, snapshot.drained[:3]))}"
    said = f"Drained by an operator: nothing new is let in{names}"
    refused = 0 if lately is None else sum(group.count for group in lately.groups if group.reason == Reason.DRAINING)
    return f"{said}, {count(refused, 'request', 'requests')} refused in the last minute." if refused else f"{said}."


def _lately(lately: Lately | None, kinds: Iterable[Kind]) -> str:
    """What failed in the last minute, where that is worth a word."""
    groups = [] if lately is None else of_note(lately, kinds)
    return f"Last minute: {'; '.join([said(group) for group in groups[:FAILURES_NAMED_MAX]])}." if groups else ""


def _holding(snapshot: Snapshot) -> str:
    bands = [band for band in snapshot.bands if band.waiting]
    longest = max(bands, key=lambda band: band.oldest_wait_s)
    oldest = f"Oldest {seconds(longest.oldest_wait_s)}{f' ({longest.name})' if len(bands) > 1 else ''}."
    models = [model for model in snapshot.models if model.waiting]
    if not models:
        return f"Holding {snapshot.waiting:,}. {oldest}"
    first = models[0]
    others = len(models) - 1 + snapshot.models_more
    more = f" ({first.waiting:,} of them; {count(others, 'other model', 'other models')} too)" if others else ""
    holding = f"Holding {snapshot.waiting:,}"
    if len(bands) == 1 and (len(snapshot.flows) > 1 or snapshot.flows_more):
        holding += _whose(snapshot, bands[0], ", {}")
    said = f"{holding}: {model_why(first, snapshot)}{more}."
    if len(bands) > 1:
        said += f" {_by_band(snapshot, bands, one_line=not others)}"
    return f"{said} {oldest}"


def _by_band(snapshot: Snapshot, bands: list[BandSnapshot], *, one_line: bool) -> str:
    """Who goes next, and who waits behind that by priority; of several models, each has a line of its own."""
    listed = [f"{band.waiting:,} {band.name}{_whose(snapshot, band, ' ({})')}" for band in bands]
    if listed[BANDS_NAMED_MAX:]:
        listed[BANDS_NAMED_MAX:] = [f"{sum(band.waiting for band in bands[BANDS_NAMED_MAX:]):,} in lower bands"]
    if not one_line:
        return f"Of all: {', '.join(listed)}."
    return f"Next: {listed[0]}; behind it by priority: {', '.join(listed[1:])}."


def _whose(snapshot: Snapshot, band: BandSnapshot, form: str) -> str:
    """Who waits in a band, where that is mostly one tenant."""
    flows = [flow for flow in snapshot.flows if flow.band == band.name and flow.waiting]
    first = max(flows, key=lambda flow: flow.waiting, default=None)
    if first is None or first.waiting * 2 <= band.waiting:
        return ""
    whole = "all " if band.waiting > 1 else ""
    number = whole if first.waiting == band.waiting else f"{first.waiting:,} "
    return form.format(f"{number}from {short_name(first.tenant)}")


def _those(snapshot: Snapshot, states: Iterable[str]) -> str:
    """Which endpoints are in one of these states."""
    said = []
    for state in states:
        names = [endpoint.name for endpoint in snapshot.endpoints if endpoint.state == state]
        if names:
            listed = short_name(names[0]) if len(names) == 1 else f"{len(names)} of {len(snapshot.endpoints)} endpoints"
            said.append(f"{listed} {'is' if len(names) == 1 else 'are'} {_WORDS.get(state, state)}.")
    return " ".join(said)


def seconds(value: float) -> str:
    """A duration as people say it."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"
