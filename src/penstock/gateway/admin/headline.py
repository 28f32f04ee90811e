"""The state of everything in one sentence: is it healthy, who waits, why, for how long.

Made here once from the snapshot, so that the page, `top` and `status` say the same. Endpoints that are missing come
first, for somebody has to look at them; then what an operator stopped, which explains the rest; then the model with the
most waiting: what keeps the request that is next, and who waits behind it by priority. What failed in the last minute
and whose it was stands where it belongs: answers that broke before, refusals after what waits, or before it where they
are so many that they are the matter.

The first of the sentences is the *lead*: it is read alone, from across the room, so it names the matter and its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from penstock.core.explain.snapshot import ALL, AWAY, BandSnapshot, EndpointSnapshot, ModelSnapshot, Snapshot
from penstock.core.values.catalogue import Reason
from penstock.gateway.admin.events import printable
from penstock.gateway.admin.failing.lately import Lately, of_alarm, of_note, said
from penstock.gateway.admin.reasons import MISSING, SERVING, bounds_met, count, model_why, short_name
from penstock.gateway.telemetry.failures import Kind

BANDS_NAMED_MAX = 3  # a sentence, not a table
FAILURES_NAMED_MAX = 2
TROUBLE_CHARS_MAX = 120  # of what a store says

_ASIDE = tuple(state for state in (*AWAY, "draining") if state not in MISSING)  # which pass, or are meant
_WORDS = {
    "ejected": "taken out after failures",
    "draining": "drained by an operator",
    "refused_key": "refusing the gateway's key",
    "unproven": "no engine, as far as its answers show",
}
PAUSE, DRAIN = "pause", "drain"


class StoppedBy(msgspec.Struct, frozen=True):
    """A pause or a drain: whose word it is, and for how long it has held."""

    by: str  #: an address
    for_s: float


class Around(msgspec.Struct, frozen=True):
    """What there is to tell that the scheduler does not know."""

    lately: Lately | None = None  #: what failed in the last minute
    queueing: str = ""  #: why queueing is off
    away: Sequence[str] = ()  #: workers that are being started again
    batch_store: str | None = None  #: why files and batches are down
    key_store: str | None = None  #: why made keys can't be read
    group: str = ""  #: what is wrong among gateways that share. It comes first, for it may explain all else
    strangers: str = ""  #: what requests of others there are on the engines
    state_s: Mapping[str, float] = {}  #: for how long endpoints have been in their states, by name
    stops: Mapping[tuple[str, str], StoppedBy] = {}  #: by verb and model; of what an operator of this process stopped


def headline(snapshot: Snapshot, around: Around | None = None) -> str:
    """Returns some sentences: the state of everything, its cause, and what is around it."""
    return " ".join(sentences(snapshot, around))


def sentences(snapshot: Snapshot, around: Around | None = None) -> list[str]:
    """Returns the headline in its parts, the lead first."""
    around = around or Around()
    lately = around.lately
    missing = _those(snapshot, MISSING, around) if snapshot.endpoints else ["No endpoint is configured or discovered."]
    state = _state(snapshot)
    if snapshot.paused_tenants:
        names = ", ".join(map(short_name, snapshot.paused_tenants[:3]))
        more = len(snapshot.paused_tenants) - 3
        state.append(f"Paused by an operator: tenant {names}{f' and {more} more' if more > 0 else ''}.")
    if around.queueing:
        state.append(f"Queueing: {around.queueing[0].lower()}{around.queueing[1:]}")
    workers = f"Away, and being started again: worker {', '.join(around.away)}." if around.away else ""
    alarm = _alarm(lately)
    refused = "" if alarm else _lately(lately, (Kind.REFUSED, Kind.EVICTED))
    parts = [around.group, around.strangers, *missing, workers, *_stores(around), *_stopped(snapshot, around)]
    parts += [_lately(lately, (Kind.BROKEN, Kind.FAILED)), alarm, *state, refused, *_those(snapshot, _ASIDE, around)]
    return [part for part in parts if part]


def tone(snapshot: Snapshot, around: Around | None = None) -> str:
    """How bad it is: "ok", "busy" or "bad"."""
    around = around or Around()
    lately = around.lately
    if around.group or _stores(around):
        return "bad"
    states = {endpoint.state for endpoint in snapshot.endpoints}
    dead = any(model.endpoints and not model.up for model in snapshot.models)
    failing = lately is not None and (of_note(lately, (Kind.BROKEN, Kind.FAILED)) or of_alarm(lately))
    stopped = snapshot.draining or snapshot.paused or ALL in snapshot.drained
    if stopped or dead or not states or not states.isdisjoint(MISSING) or failing:
        return "bad"
    refusing = lately is not None and of_note(lately, (Kind.REFUSED, Kind.EVICTED))
    held = snapshot.drained or snapshot.paused_tenants
    is_aside = not states.isdisjoint(_ASIDE)
    return "busy" if snapshot.waiting or held or around.away or around.strangers or is_aside or refusing else "ok"


def is_by_operators(snapshot: Snapshot, around: Around | None = None) -> bool:
    """Whether a tone of "bad" is but what operators did: everything is paused, drained or shutting down, by their word.

    Somebody has to look at it all the same, but it is no fault.
    """
    if not snapshot.endpoints or tone(snapshot, around) != "bad":
        return False
    there = [msgspec.structs.replace(e, state="up") if e.state == "draining" else e for e in snapshot.endpoints]
    models = [msgspec.structs.replace(m, up=m.up or _is_drained(m, snapshot)) for m in snapshot.models]
    running = msgspec.structs.replace(
        snapshot, draining=False, paused=[], drained=[], endpoints=there, models=models, waiting=0
    )
    return tone(running, around) != "bad"


def _is_drained(model: ModelSnapshot, snapshot: Snapshot) -> int:
    """How many of a model's endpoints are drained and would else be there; 0 where one of them is away by itself."""
    serving = [e for e in snapshot.endpoints if e.models is None or model.name in e.models]
    return len(serving) if all(e.state in (*SERVING, "draining") for e in serving) else 0


def _state(snapshot: Snapshot) -> list[str]:
    """What waits and what runs, and where."""
    if snapshot.draining:
        waits = count(snapshot.waiting, "waits", "wait")
        return [f"Shutting down: nothing new is let in, {waits}, {snapshot.running} run."]
    if snapshot.waiting:
        return _holding(snapshot)
    still = " still" if ALL in snapshot.drained else ""
    if snapshot.running:
        runs = f"Nothing waits, {count(snapshot.running, f'request{still} runs', f'requests{still} run')}."
    else:
        runs = "Nothing waits, nothing runs: the drain is complete." if still else "Idle: nothing waits, nothing runs."
    up, of = sum(endpoint.state in SERVING for endpoint in snapshot.endpoints), len(snapshot.endpoints)
    return [runs, f"{up} of {of} engines {'is' if up == 1 else 'are'} up."] if of else [runs]


def _stores(around: Around) -> list[str]:
    """Which stores don't answer, and what that means."""
    said = []
    if around.batch_store is not None:
        said.append(f"Files and batches are down: {printable(around.batch_store, TROUBLE_CHARS_MAX)}.")
    if around.key_store is not None:
        why = printable(around.key_store, TROUBLE_CHARS_MAX)
        said.append(f"Made keys can't be read, those known so far work: {why}.")
    return said


def _stopped(snapshot: Snapshot, around: Around) -> list[str]:
    """What an operator stopped, whose word it was and since when, and how many were turned away for it."""
    if snapshot.draining:
        return []
    said = []
    if names := _names(snapshot.paused):
        said.append(f"Paused by an operator{_whose_word(PAUSE, snapshot.paused, around)}: {names}.")
    if names := _names(snapshot.drained):
        word = _whose_word(DRAIN, snapshot.drained, around)
        whose = "" if ALL in snapshot.drained else f" for {names}"
        reasons = () if around.lately is None else around.lately.groups
        refused = sum(group.count for group in reasons if group.reason == Reason.DRAINING)
        many = f", {count(refused, 'request', 'requests')} refused for it in the last minute" if refused else ""
        state = "Being drained" if _drains(snapshot) else "Drained"
        said.append(f"{state} by an operator{word}: nothing new is let in{whose}{many}.")
    return said


def _drains(snapshot: Snapshot) -> bool:
    """Whether some of what is drained still waits or runs."""
    if ALL in snapshot.drained:
        return bool(snapshot.waiting or snapshot.running)
    return any(model.waiting or model.running for model in snapshot.models if model.name in snapshot.drained)


def _names(stopped: Sequence[str]) -> str:
    return "everything" if ALL in stopped else ", ".join(map(short_name, stopped[:3]))


def _whose_word(verb: str, stopped: Sequence[str], around: Around) -> str:
    """Whose word the latest of these stops was, and how long ago; nothing where that is not known."""
    known = [stop for model in stopped if (stop := around.stops.get((verb, model))) is not None]
    latest = min(known, key=lambda stop: stop.for_s, default=None)
    return "" if latest is None else f" ({short_name(latest.by)}, {seconds(latest.for_s)} ago)"


def _lately(lately: Lately | None, kinds: Iterable[Kind]) -> str:
    """What failed in the last minute, where that is worth a word."""
    groups = [] if lately is None else of_note(lately, kinds)
    return f"Last minute: {'; '.join([said(group) for group in groups[:FAILURES_NAMED_MAX]])}." if groups else ""


def _alarm(lately: Lately | None) -> str:
    """What so many requests of the last minute came to nothing for, beside how many there were."""
    groups = [] if lately is None else of_alarm(lately)
    if lately is None or not groups:
        return ""
    first, *others = groups[:FAILURES_NAMED_MAX]
    whose = f" ({first.whose})" if first.whose else ""
    were = "were " if first.what.startswith(("refused", "evicted")) else ""
    lead = (
        f"{first.count:,} of {count(lately.ended, 'request', 'requests')} in the last minute {were}{first.what}{whose}"
    )
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
    more = f" ({first.waiting:,} of them; {count(others, 'other model', 'other models')} too)" if others else ""
    holding = f"Holding {snapshot.waiting:,}"
    if len(bands) == 1 and (len(snapshot.flows) > 1 or snapshot.flows_more):
        holding += _whose(snapshot, bands[0], ", {}")
    by_band = _by_band(snapshot, bands, one_line=not others) if len(bands) > 1 else ""
    return [f"{holding}: {model_why(first, snapshot)}{more}.", by_band, bounds_met(snapshot), oldest]


def _by_band(snapshot: Snapshot, bands: list[BandSnapshot], *, one_line: bool) -> str:
    """Who goes next, and who waits behind that by priority; of several models, each has a line of its own."""
    listed = [f"{band.waiting:,} {band.name}{_whose(snapshot, band, ' ({})')}" for band in bands]
    if listed[BANDS_NAMED_MAX:]:
        listed[BANDS_NAMED_MAX:] = [f"{sum(band.waiting for band in bands[BANDS_NAMED_MAX:]):,} in lower bands"]
    if not one_line:
        return f"Of all: {', '.join(listed)}."
    return f"Next: {listed[0]}; behind, as lower bands wait by design: {', '.join(listed[1:])}."


def _whose(snapshot: Snapshot, band: BandSnapshot, form: str) -> str:
    """Who waits in a band, where that is mostly one tenant."""
    flows = [flow for flow in snapshot.flows if flow.band == band.name and flow.waiting]
    first = max(flows, key=lambda flow: flow.waiting, default=None)
    if first is None or first.waiting * 2 <= band.waiting:
        return ""
    whole = "all " if band.waiting > 1 else ""
    number = whole if first.waiting == band.waiting else f"{first.waiting:,} "
    return form.format(f"{number}from {short_name(first.tenant)}")


def _those(snapshot: Snapshot, states: Iterable[str], around: Around) -> list[str]:
    """Which endpoints are in one of these states, and for how long."""
    said = []
    for state in states:
        those = [endpoint for endpoint in snapshot.endpoints if endpoint.state == state]
        if not those:
            continue
        known = [around.state_s[one.name] for one in those if one.name in around.state_s]
        first = "the first " if len(those) > 1 else ""
        since = f" ({first}for {seconds(max(known))})" if known else ""
        listed = (
            short_name(those[0].name) if len(those) == 1 else f"{len(those)} of {len(snapshot.endpoints)} endpoints"
        )
        said.append(f"{listed} {'is' if len(those) == 1 else 'are'} {_word(state, those)}{since}.")
    return said


def _word(state: str, those: Sequence[EndpointSnapshot]) -> str:
    """What a state is called; a drain that is not over yet is told from one that is."""
    running = sum(endpoint.leases for endpoint in those)
    if state == "draining" and running:
        return f"being drained by an operator, {count(running, 'request still runs', 'requests still run')} there"
    return _WORDS.get(state, state)


def seconds(value: float) -> str:
    """A duration as people say it."""
    if value < 1:
        return f"{value * 1000:.0f} ms" if value else "0 s"
    if value < 60:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"
