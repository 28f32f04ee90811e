"""The state of everything in a few sentences: health, queues, their causes and ages.

Made here once from the snapshot, so that the page, `top` and `status` agree. Missing endpoints come first, because
somebody has to look at them; then stops by operators, which explain the rest; then the model with the most queued
requests and what keeps its next one. Failures of the last minute come before that, refusals only if they are many. The
first sentence is the *lead*: it is read alone, from across the room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.core.explain.snapshot import ALL, BandSnapshot, EndpointSnapshot, Snapshot
from penstock.core.values.catalogue import MISSING, SERVING, Cause, EndpointState, Reason
from penstock.gateway.admin.failing.lately import Lately, of_alarm, of_note, said
from penstock.gateway.admin.failing.slow import is_slow, slow
from penstock.gateway.admin.phrases import count, printable, seconds, short_name, tokens
from penstock.gateway.admin.requests import DRAIN, PAUSE, StoppedBy
from penstock.gateway.admin.why import bounds_met, model_why
from penstock.gateway.telemetry.failures import Kind

BANDS_NAMED_MAX = 3  # a sentence, not a table
FAILURES_NAMED_MAX = 2
TROUBLE_CHARS_MAX = 120  # of a store's own words

#: Causes of waiting that more room would end, and those that somebody set.
CROWDED = frozenset(
    {
        *(Cause.SLOTS_FULL, Cause.ENGINE_QUEUE, Cause.PREFILL_FULL, Cause.KV_FULL, Cause.PACE, Cause.HELD),
        *(Cause.PREEMPTED, Cause.CLASS_SHARE, Cause.TURN, Cause.SESSION_MEMORY),
    }
)
BY_SETTINGS = frozenset({Cause.TENANT_CAP, Cause.AFFINITY})

_ASIDE = tuple(state for state in EndpointState if state not in (*MISSING, *SERVING))  # they pass, or are meant


class Around(msgspec.Struct, frozen=True):
    """State that the scheduler does not know."""

    lately: Lately | None = None  #: failures of the last minute
    queueing: str = ""  #: why queueing is off
    away: Sequence[str] = ()  #: workers that are being restarted
    batch_store: str | None = None  #: why files and batches are down
    key_store: str | None = None  #: why issued keys cannot be read
    proxies: str = ""  #: a proxy's filter that does not show the picker what it needs
    group: str = ""  #: a fault among gateways that share. It comes first, because it may explain all else
    strangers: str = ""  #: load on the engines that is not ours
    state_s: Mapping[str, float] = {}  #: for how long endpoints have been in their states, by name
    stops: Mapping[tuple[str, str], StoppedBy] = {}  #: by verb and model; only those of this process's operators


def headline(snapshot: Snapshot, around: Around | None = None) -> str:
    return " ".join(sentences(snapshot, around))


def sentences(snapshot: Snapshot, around: Around | None = None) -> list[str]:
    """Return the headline in its parts, the lead first."""
    around = around or Around()
    lately = around.lately
    missing = _those(snapshot, MISSING, around) if snapshot.endpoints else ["No endpoint is configured or discovered."]
    late = slow(snapshot, lately)
    state = _state(snapshot, " here" if late else "")
    if tenants := snapshot.paused_tenants:
        more = f" and {len(tenants) - 3} more" if len(tenants) > 3 else ""
        state.append(f"Paused by an operator: tenant {', '.join(map(short_name, tenants[:3]))}{more}.")
    if around.queueing:
        state.append(f"Queueing: {around.queueing[0].lower()}{around.queueing[1:].replace('`', '')}")
    workers = f"Away, and being started again: worker {', '.join(around.away)}." if around.away else ""
    alarm = _alarm(lately)
    refused = "" if alarm else _lately(lately, (Kind.REFUSED, Kind.EVICTED))
    parts = [around.group, around.proxies, around.strangers, *missing, workers]
    parts += [*_stores(around), *_stopped(snapshot, around)]
    state = [*state, *late] if snapshot.waiting else [*late, *state]
    parts += [_lately(lately, (Kind.BROKEN, Kind.FAILED)), alarm, *state, refused, _own_limits(lately)]
    parts += _those(snapshot, _ASIDE, around)
    return [part for part in parts if part]


def tone(snapshot: Snapshot, around: Around | None = None) -> str:
    """Return how bad it is: "ok", "busy" or "bad"."""
    around = around or Around()
    lately = around.lately
    dead = any(model.endpoints and not model.up for model in snapshot.models)
    stopped = snapshot.draining or snapshot.paused or ALL in snapshot.drained
    if _faulty(snapshot, around) or stopped or dead:
        return "bad"
    refusing = lately is not None and of_note(lately, (Kind.REFUSED, Kind.EVICTED))
    held = snapshot.drained or snapshot.paused_tenants
    is_aside = any(endpoint.state in _ASIDE for endpoint in snapshot.endpoints)
    busy = snapshot.waiting or held or around.away or around.strangers or is_aside or refusing
    return "busy" if busy or is_slow(snapshot, lately) else "ok"


def verdict(snapshot: Snapshot, around: Around | None = None) -> str:
    """Is something wrong: yes or no, in one line."""
    how = tone(snapshot, around)
    if how == "ok":
        answer = "No."
    elif how == "bad":
        answer = "No: it was stopped on purpose." if is_by_operators(snapshot, around) else "Yes."
    elif _crowded(snapshot) or (around is not None and is_slow(snapshot, around.lately)):
        answer = "No: there is more work than room."
    elif snapshot.waiting and how == "busy" and all(m.cause in BY_SETTINGS for m in snapshot.models if m.waiting):
        answer = "No: requests wait as the settings say."
    else:
        answer = "No, but not everything is as usual."
    return f"Is something wrong? {answer}"


def _crowded(snapshot: Snapshot) -> bool:
    """Whether some model's requests wait for room."""
    return any(m.cause is None or m.cause in CROWDED for m in snapshot.models if m.waiting)


def is_by_operators(snapshot: Snapshot, around: Around | None = None) -> bool:
    """Whether a tone of "bad" is only what operators paused, drained or shut down: no fault."""
    return tone(snapshot, around) == "bad" and not _faulty(snapshot, around or Around())


def _faulty(snapshot: Snapshot, around: Around) -> bool:
    """Whether something is wrong by itself: a store, an endpoint, many answers, a model without endpoints."""
    lately, endpoints = around.lately, snapshot.endpoints
    failing = lately is not None and (of_note(lately, (Kind.BROKEN, Kind.FAILED)) or of_alarm(lately))
    missing = not endpoints or any(e.state in MISSING for e in endpoints)
    if around.group or around.proxies or _stores(around) or failing or missing:
        return True
    dead = [model for model in snapshot.models if model.endpoints and not model.up]
    present = (*SERVING, EndpointState.DRAINING)
    return any(e.state not in present for m in dead for e in endpoints if e.models is None or m.name in e.models)


def _state(snapshot: Snapshot, here: str) -> list[str]:
    """Queued and running requests, or engines that are up. `here`: " here" if others may wait elsewhere."""
    if snapshot.draining:
        waits = count(snapshot.waiting, "waits", "wait")
        return [f"Shutting down: nothing new is let in, {waits}, {snapshot.running} run."]
    if snapshot.waiting:
        return _holding(snapshot)
    still = " still" if ALL in snapshot.drained else ""
    if snapshot.running:
        runs = f"Nothing waits{here}, {count(snapshot.running, f'request{still} runs', f'requests{still} run')}."
    elif still:
        runs = f"Nothing waits{here}, nothing runs: the drain is complete."
    else:
        runs = "Idle: nothing waits, nothing runs."
    up, of = sum(endpoint.state in SERVING for endpoint in snapshot.endpoints), len(snapshot.endpoints)
    return [runs, f"{up} of {of} engines {'is' if up == 1 else 'are'} up."] if of else [runs]


def _stores(around: Around) -> list[str]:
    down = []
    if around.batch_store is not None:
        down.append(f"Files and batches are down: {printable(around.batch_store, TROUBLE_CHARS_MAX)}.")
    if around.key_store is not None:
        why = printable(around.key_store, TROUBLE_CHARS_MAX)
        down.append(f"Issued keys cannot be read, those known so far work: {why}.")
    return down


def _stopped(snapshot: Snapshot, around: Around) -> list[str]:
    """Stops by operators, with address and age, and how many requests were refused for them."""
    if snapshot.draining:
        return []
    stopped = []
    if snapshot.paused:
        stopped.append(f"Paused by an operator{_who(PAUSE, snapshot.paused, around)}: {_names(snapshot.paused)}.")
    if snapshot.drained:
        whose = "" if ALL in snapshot.drained else f" for {_names(snapshot.drained)}"
        groups = () if around.lately is None else around.lately.groups
        refused = sum(group.count for group in groups if group.reason == Reason.DRAINING)
        many = f", {count(refused, 'request')} refused for it in the last minute" if refused else ""
        rows = [snapshot] if ALL in snapshot.drained else [m for m in snapshot.models if m.name in snapshot.drained]
        state = "Being drained" if any(row.waiting or row.running for row in rows) else "Drained"
        who = _who(DRAIN, snapshot.drained, around)
        stopped.append(f"{state} by an operator{who}: nothing new is let in{whose}{many}.")
    return stopped


def _names(stopped: Sequence[str]) -> str:
    return "everything" if ALL in stopped else ", ".join(map(short_name, stopped[:3]))


def _who(verb: str, stopped: Sequence[str], around: Around) -> str:
    """The operator of the latest of these stops, and its age; empty if not known."""
    known = [stop for model in stopped if (stop := around.stops.get((verb, model))) is not None]
    latest = min(known, key=lambda stop: stop.for_s, default=None)
    return "" if latest is None else f" ({short_name(latest.by)}, {seconds(latest.for_s)} ago)"


def _lately(lately: Lately | None, kinds: Iterable[Kind]) -> str:
    """Failures of the last minute, if they matter."""
    groups = [] if lately is None else of_note(lately, kinds)
    return f"Last minute: {'; '.join([said(group) for group in groups[:FAILURES_NAMED_MAX]])}." if groups else ""


def _own_limits(lately: Lately | None) -> str:
    """Refusals of the last minute by tenants' own limits: no fault, but an operator wants to know whose they are."""
    groups = [] if lately is None else [group for group in lately.groups if group.reason == Reason.TENANT_LIMIT]
    if not groups:
        return ""
    parts = [
        f"{count(group.count, 'request')} {group.whose}{f' ({group.limit})' * bool(group.limit)}" for group in groups
    ]
    return f"Refused by their own limit in the last minute: {'; '.join(parts[:FAILURES_NAMED_MAX])}."


def _alarm(lately: Lately | None) -> str:
    """Refusals and evictions of the last minute, if they are many, beside how many requests there were."""
    groups = [] if lately is None else of_alarm(lately)
    if lately is None or not groups:
        return ""
    first, *others = groups[:FAILURES_NAMED_MAX]
    whose = f" ({first.whose})" if first.whose else ""
    lead = f"{first.count:,} of {count(lately.ended, 'request')} in the last minute were {first.what}{whose}"
    return "; ".join([lead, *[said(group) for group in others]]) + "."


def _holding(snapshot: Snapshot) -> list[str]:
    bands = [band for band in snapshot.bands if band.waiting]
    longest = max(bands, key=lambda band: band.oldest_wait_s)
    oldest = f"Oldest {seconds(longest.oldest_wait_s)}{f' ({longest.name})' if len(bands) > 1 else ''}."
    models = [model for model in snapshot.models if model.waiting]
    if not models:
        return [f"Holding {snapshot.waiting:,}.", bounds_met(snapshot), oldest]
    first = models[0]
    others = len(models) - 1 + snapshot.models_more
    whose = ""
    if len(bands) == 1 and (len(snapshot.flows) > 1 or snapshot.flows_more):
        whose = _whose(snapshot, bands[0], ", {}")
    of = f", {first.waiting:,} of them" if others else ""
    more = f" ({count(others, 'other model')} too)" if others else ""
    by_band = _by_band(snapshot, bands, one_line=not others) if len(bands) > 1 else ""
    holding = f"Holding {snapshot.waiting:,}{of} for {short_name(first.name)}{whose}: {model_why(first, snapshot)}"
    return [f"{holding}{more}.", by_band, _sessions(snapshot), bounds_met(snapshot), oldest]


def _sessions(snapshot: Snapshot) -> str:
    """The agents' sessions that wait for memory, beside those that have it."""
    sessions = snapshot.sessions
    if sessions is None or not sessions.waiting:
        return ""
    told = [row for row in sessions.memory if row.kv_tokens is not None]
    held, usable = sum(row.held_tokens for row in told), sum(row.usable_tokens for row in told)
    wait = count(sessions.waiting, "session waits", "sessions wait")
    beside = f"{wait} for memory beside {count(sessions.resident, 'resident one')}"
    memory = f"{tokens(held)} of {tokens(usable)} tokens are held"
    return f"{beside}: {memory}, and a wait is bounded by {seconds(sessions.wait_s)}."


def _by_band(snapshot: Snapshot, bands: list[BandSnapshot], *, one_line: bool) -> str:
    """The next band and those behind it; of several models, each with its own queue, only the numbers."""
    listed = [f"{band.waiting:,} {band.name}{_whose(snapshot, band, ' ({})')}" for band in bands]
    if listed[BANDS_NAMED_MAX:]:
        listed[BANDS_NAMED_MAX:] = [f"{sum(band.waiting for band in bands[BANDS_NAMED_MAX:]):,} in lower bands"]
    if not one_line:
        return f"Of all: {', '.join(listed)}."
    return f"Next: {listed[0]}; behind, as lower bands wait by design: {', '.join(listed[1:])}."


def _whose(snapshot: Snapshot, band: BandSnapshot, form: str) -> str:
    """The tenant of most queued requests of a band, if there is one."""
    flows = [flow for flow in snapshot.flows if flow.band == band.name and flow.waiting]
    first = max(flows, key=lambda flow: flow.waiting, default=None)
    if first is None or first.waiting * 2 <= band.waiting:
        return ""
    whole = "all " if band.waiting > 1 else ""
    number = whole if first.waiting == band.waiting else f"{first.waiting:,} "
    return form.format(f"{number}from {short_name(first.tenant)}")


def _those(snapshot: Snapshot, states: Iterable[EndpointState], around: Around) -> list[str]:
    found = []
    for state in states:
        those = [endpoint for endpoint in snapshot.endpoints if endpoint.state == state]
        if not those:
            continue
        several = len(those) > 1
        known = [around.state_s[one.name] for one in those if one.name in around.state_s]
        since = f" ({'the first ' if several else ''}for {seconds(max(known))})" if known else ""
        listed = f"{len(those)} of {len(snapshot.endpoints)} endpoints" if several else short_name(those[0].name)
        found.append(f"{listed} {'are' if several else 'is'} {_word(state, those)}{since}.")
    return found


def _word(state: EndpointState, those: Sequence[EndpointSnapshot]) -> str:
    running = sum(endpoint.leases for endpoint in those)
    if state is EndpointState.DRAINING and running:
        return f"being {state.sentence}, {count(running, 'request still runs', 'requests still run')} there"
    return state.sentence
