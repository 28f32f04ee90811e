"""The picture now: frozen values that metrics, the admin page, tests and the simulator share, and how they are taken.

Taking it costs per endpoint, band, model and tenant, never per waiting request: long lists are cut,
with the number left out.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Literal

import msgspec

from penstock.core.dispatch.admission import kv_tokens_free
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.health import Presence
from penstock.core.endpoints.page import Standing, why
from penstock.core.endpoints.roles import Role
from penstock.core.explain.recorder import Recorder
from penstock.core.explain.shares import ModelMeter, Shares, oldest_s
from penstock.core.explain.wait_causes import Line, Waits
from penstock.core.queueing.band import Band, Verdict
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.queues import Queues
from penstock.core.values.catalogue import SERVING, Cause, EndpointState, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.rows import FlowSnapshot, SessionsSnapshot, SourceSnapshot, TenantSnapshot
from penstock.core.values.settings import AdmissionSettings, EndpointLimits, QueueBounds

MODELS_SHOWN = 50
_SIZES = (Cause.KV_FULL, Cause.PREFILL_FULL)  # they keep a request from an endpoint that takes smaller ones
REQUESTS_SHOWN = 40  # in each state
STOPPING_S = 10.0  # an endpoint that takes no connection, but moved a stream so recently, is about to end


class EndpointSnapshot(msgspec.Struct, frozen=True):
    """One endpoint at one moment."""

    name: str
    state: EndpointState
    role: str  #: both, prefill or decode
    models: list[str] | None  #: None: not reported yet
    slots: int
    slots_auto: bool  #: found out, so they may change
    slots_by: str  #: then: the judge, `page`, `streams` or `answers`; otherwise empty
    leases: int
    reserved: int  #: leases before their first token
    pending: int  #: of these, for requests with prompts that are still computed elsewhere
    given_up: int  #: slots without a lease, still busy for clients that hung up
    load: float
    others: float  #: requests that are not ours, as its gauges show them on average
    engine_waiting: float | None  #: as last observed; None: nothing credible
    engine_running: float | None
    kv_usage: float | None
    kv_usage_believed: float | None  #: including requests sent since the reading
    kv_tokens_free: int | None  #: below the ceiling, by the same belief
    prefix_hit_ratio: float | None  #: share of prompt tokens its cache held, as the engine counts
    engine_refused: float | None  #: requests refused for the bounds of its own queue, as the engine counts
    observed_s_ago: float | None
    gauges: Standing  #: how far they are believed
    gauges_why: str  #: a sentence; empty if they are believed
    time_per_output_token_s: float
    dispatches_total: int
    price: float  #: of its work, compared with other endpoints'
    weight: float  #: its share of the requests, compared with other endpoints'
    limits: EndpointLimits | None  #: its own thresholds, if it has any
    closed: Cause | None  #: to the highest band with work; None: open, or nothing waits
    needed_tokens: int | None  #: by the first in line, if that keeps it away
    failure: str | None  #: the last one, whether or not it still matters
    failed_s_ago: float | None


class QueueSnapshot(msgspec.Struct, frozen=True):
    """The queue of one model in one band."""

    model: str
    band: str
    requests: int
    prompt_tokens: int


class BandSnapshot(msgspec.Struct, frozen=True):
    """One band at one moment."""

    name: str
    waiting: int
    oldest_wait_s: float
    running: int
    tokens: int  #: of the prompts that wait, estimated
    share: float  #: of the service over the last minute
    min_share: float  #: of it, promised while the band has work; 0: none
    preemptible: bool = False  #: its requests give way to those of higher bands


class BoundSnapshot(msgspec.Struct, frozen=True):
    """A bound on queued requests, and the present amount."""

    of: Literal["requests", "bytes", "tokens"]
    band: str | None  #: None: of all bands together
    now: int
    most: int


class HeadSnapshot(msgspec.Struct, frozen=True):
    """The request that goes next for a model."""

    band: str
    ceiling: float  #: of its band: the share of an endpoint's slots that it may use
    tenant: str
    tokens: int  #: of KV memory: its prompt and its answer, estimated
    kv_tokens_free: int | None  #: the most below the ceiling at one of the cause's endpoints; None: not reported


class ModelSnapshot(msgspec.Struct, frozen=True):
    """One model at one moment. Totals only grow."""

    name: str
    waiting: int
    running: int
    slots: int  #: of the endpoints that serve it now and answer for it
    taken: int  #: of these slots, whatever the models of the requests there
    over: int  #: requests that run there beyond the slots, because slots were taken away
    answering: int  #: these endpoints
    endpoints: int  #: that serve it, now or not
    up: int  #: of these, those that requests are sent to now
    cause: Cause | None  #: of the first waiting request
    closed: dict[Cause, int]  #: at how many endpoints each cause keeps this request away
    kept_free: int  #: slots that only tenants under their share may use; 0: none, or that is not the cause
    head: HeadSnapshot | None  #: the first of those that wait
    kv_usage_min: float | None  #: over the endpoints that report it; of a cause that holds at some, over these
    kv_usage_max: float | None
    oldest_wait_s: float
    wait_p50_s: float | None  #: in the queue, of those sent in the last ten seconds; None: nothing was
    wait_p99_s: float | None
    ended_total: int
    deadline_tries_total: int  #: sent although they were forecast to miss their deadlines
    prompt_tokens_total: int
    output_tokens_total: int


class RequestRow(msgspec.Struct, frozen=True):
    """One request, in a line."""

    id: str
    tenant: str
    band: str
    model: str
    state: State
    age_s: float  #: since it came, or from then to its end
    waited_s: float
    prompt_tokens: int  #: estimated, or as the engine reported
    output_tokens: int  #: so far, or in all
    endpoint: str | None
    cause: Cause | None  #: of waiting
    reason: Reason | None  #: why it ended without an answer
    ended_s_ago: float | None
    requeues: int


class RequestRows(msgspec.Struct, frozen=True):
    """Some of the requests: those that wait and run for longest, and those that ended last."""

    waiting: list[RequestRow]
    running: list[RequestRow]
    ended: list[RequestRow]


NO_ROWS = RequestRows([], [], [])


class Snapshot(msgspec.Struct, frozen=True):
    """The whole scheduler at one moment."""

    draining: bool  #: on the way to the end: nothing new is let in
    paused: list[str]  #: models of which nothing is sent; `*` for all
    drained: list[str]  #: models of which nothing new is let in
    waiting: int
    waiting_bytes: int
    waiting_tokens: int
    running: int
    kv_usage_ceiling: float  #: of each endpoint: no request is sent that would exceed it
    endpoints: list[EndpointSnapshot]
    bands: list[BandSnapshot]
    queues: list[QueueSnapshot]
    tenants: list[TenantSnapshot]  #: those with limits: the ones with most waiting, then running
    tenants_more: int
    models: list[ModelSnapshot]  #: those with most waiting, then running
    models_more: int
    flows: list[FlowSnapshot]  #: tenants by band: those with most waiting, then those that got most
    flows_more: int
    requests: RequestRows
    sources: list[SourceSnapshot]  #: of cached prefixes
    paused_tenants: list[str] = []
    bounds: list[BoundSnapshot] = []  #: none if queueing is off
    sessions: SessionsSnapshot | None = None  #: of agents; None: they do not wait for memory
    preempted_slot_s: float = 0.0  #: slot seconds lost to preemption so far


ALL = "*"  #: all models, among the names of paused or drained ones


def stopped_models(stopped: Iterable[str | None]) -> list[str]:
    """Returns the names of models that are paused or drained, sorted; `ALL` stands for all models."""
    return sorted(ALL if model is None else model for model in stopped)


def queues_of(bands: Iterable[Band]) -> list[QueueSnapshot]:
    """Returns how much waits for each model in each band, without those for which nothing waits."""
    return [
        QueueSnapshot(model=model, band=band.settings.name, requests=band.waiting(model), prompt_tokens=tokens)
        for band in bands
        for model, tokens in band.tokens_of.items()
    ]


def band_now(band: Band, share: float, now: float) -> BandSnapshot:
    """Returns the row of a band; `share` is its part of all service."""
    oldest = next(iter(band.entries.values()), None)  # in order of entering
    return BandSnapshot(
        name=band.settings.name,
        waiting=len(band.entries),
        oldest_wait_s=now - oldest.waits_since_s if oldest is not None else 0.0,
        running=band.tree.root.in_flight,
        tokens=band.tokens,
        share=share,
        min_share=band.settings.min_share,
        preemptible=band.settings.preemptible,
    )


def bounds_now(queues: Queues, bounds: QueueBounds) -> list[BoundSnapshot]:
    """Returns the bounds of all that waits, then those that bands have of their own."""
    rows = [
        BoundSnapshot("requests", None, queues.in_all, bounds.requests_max),
        BoundSnapshot("bytes", None, queues.bytes, bounds.bytes_max),
        BoundSnapshot("tokens", None, queues.tokens, bounds.tokens_max),
    ]
    for band in queues.bands:
        own, name = band.settings, band.settings.name
        if own.requests_max is not None:
            rows.append(BoundSnapshot("requests", name, len(band.entries), own.requests_max))
        if own.bytes_max is not None:
            rows.append(BoundSnapshot("bytes", name, band.bytes, own.bytes_max))
        if own.tokens_max is not None:
            rows.append(BoundSnapshot("tokens", name, band.tokens, own.tokens_max))
    return rows


class Misfit(msgspec.Struct, frozen=True):
    """Why the first in a line cannot go to an endpoint."""

    cause: Cause
    tokens: int | None  #: needed, if the endpoint takes smaller requests


def kept_away(busy: Band | None, waits: Waits, now: float) -> dict[Endpoint, Misfit]:
    """Returns why endpoints take nothing of `busy`, the highest band with work, or not the first in line."""
    if busy is None:
        return {}
    closed, opened = waits.verdicts(busy, now)
    found = {e: Misfit(verdict.cause, None) for e, verdict in closed.items() if verdict.cause is not None}
    for line in waits.lines():
        if line.band is busy and line.span.cause in _SIZES:
            misfit = Misfit(line.span.cause, head_of(line).estimated_tokens)
            found |= {e: misfit for e in opened if e.serves(line.model)}
    return found


def head_of(line: Line) -> Entry:
    """Returns the request of a line that goes next."""
    return (None if line.held else line.band.tree.head([line.model])) or next(iter(line.entries.values()))


def endpoint_now(
    endpoint: Endpoint, state: EndpointState, misfit: Misfit | None, settings: AdmissionSettings, now: float
) -> EndpointSnapshot:
    """`misfit`: why the highest band with work cannot send there."""
    ledger = endpoint.ledger
    standing = ledger.page.standing(now)
    base = ledger.page.base if ledger.page.credible(now) else None
    return EndpointSnapshot(
        name=endpoint.name,
        state=state,
        role=endpoint.role,
        models=sorted(endpoint.models) if endpoint.models is not None else None,
        slots=endpoint.slots,
        slots_auto=endpoint.finds_slots,
        slots_by=ledger.limit.judged_by,
        leases=len(ledger.leases),
        reserved=ledger.reserved,
        pending=ledger.pending,
        given_up=ledger.abandoned(now),
        load=ledger.load(now),
        others=ledger.page.others if base is not None else 0.0,
        engine_waiting=base.waiting if base is not None else None,
        engine_running=base.running if base is not None else None,
        kv_usage=base.kv_usage if base is not None else None,
        prefix_hit_ratio=base.prefix_hit_ratio if base is not None else None,
        engine_refused=base.refused if base is not None else None,
        kv_usage_believed=ledger.kv_usage(now),
        kv_tokens_free=_whole(kv_tokens_free(endpoint, settings, now=now)),
        observed_s_ago=now - ledger.page.asked_s if ledger.page.asked_s > -math.inf else None,
        gauges=standing,
        gauges_why=why(standing, ledger.page.base, now),
        time_per_output_token_s=ledger.speed.time_per_output_token_s(now),
        dispatches_total=endpoint.dispatches_total,
        price=endpoint.price,
        weight=endpoint.weight,
        limits=endpoint.limits,
        closed=None if misfit is None else misfit.cause,
        needed_tokens=misfit.tokens if misfit is not None and misfit.cause is Cause.KV_FULL else None,
        failure=endpoint.failure,
        failed_s_ago=now - endpoint.failed_s if endpoint.failure is not None else None,
    )


def models_now(
    bands: Sequence[Band],
    states: Mapping[Endpoint, EndpointState],
    shares: Shares,
    waits: Waits,
    *,
    settings: AdmissionSettings,
    now: float,
) -> tuple[list[ModelSnapshot], int]:
    """Returns the models with most waiting, those that endpoints name first, and how many more there are."""
    backlog: Counter[str] = Counter()
    for band in bands:
        backlog.update({model: band.waiting(model) for model in band.models()})
    meters = shares.models()
    served = {name for endpoint in states for name in endpoint.models or ()}
    # A name that only callers used has no row, unless a request waits or runs.
    names = dict.fromkeys([*backlog, *[name for name, meter in meters.items() if meter.running or meter.real]])
    names.update(dict.fromkeys(sorted(served)))
    shown = heapq.nlargest(
        MODELS_SHOWN,
        names,
        key=lambda name: (name in served, backlog[name], meters[name].running if name in meters else 0),
    )
    serving: dict[str, list[Endpoint]] = {name: [] for name in shown}
    any_model = [endpoint for endpoint in states if not endpoint.tells_models]
    for endpoint in states:
        if endpoint.tells_models and endpoint.models is not None:
            for name in endpoint.models & serving.keys():
                serving[name].append(endpoint)
    lines: dict[str, list[Line]] = {}
    for line in waits.lines():
        lines.setdefault(line.model, []).append(line)
    serves_now = {endpoint for endpoint, state in states.items() if state in SERVING}
    rows = [
        _model_now(
            shares.model(name),
            waits,
            waiting=backlog[name],
            endpoints=serving[name] + any_model,
            serves_now=serves_now,
            lines=lines.get(name, []),
            settings=settings,
            now=now,
        )
        for name in shown
    ]
    return rows, len(names) - len(shown)


def _held(line: Line) -> int:
    """How far the requests of a line are from being sent: those of paused sessions are furthest."""
    return 0 if line.held is None else 2 if line.held is Cause.SESSION_PAUSED else 1


def _model_now(
    meter: ModelMeter,
    waits: Waits,
    *,
    waiting: int,
    endpoints: list[Endpoint],
    serves_now: set[Endpoint],
    lines: list[Line],
    settings: AdmissionSettings,
    now: float,
) -> ModelSnapshot:
    first = min(lines, key=lambda line: (_held(line), line.band.rank, bool(line.accounts)), default=None)
    cause = waits.present(first, now) if first is not None else None
    nobody: dict[Endpoint, Verdict] = {}
    verdicts = waits.verdicts(first.band, now) if first is not None else (nobody, nobody)
    where = [e for e in endpoints if first is not None and _closed(verdicts, e, cause)]
    closed = dict(waits.endpoints(first.band, first.model, now)[0]) if first is not None else {}
    usages = [usage for e in where or endpoints if (usage := e.ledger.kv_usage(now)) is not None]
    up = [e for e in endpoints if e in serves_now]
    answering = [e for e in up if e.role is not Role.PREFILL]
    waits_s = meter.wait_quantiles_s(now)
    return ModelSnapshot(
        name=meter.name,
        waiting=waiting,
        running=meter.running,
        slots=sum([e.slots for e in answering]),
        taken=sum([min(len(e.ledger.leases), e.slots) for e in answering]),
        over=sum([max(0, len(e.ledger.leases) - e.slots) for e in answering]),
        answering=len(answering),
        endpoints=len(endpoints),
        up=len(up),
        cause=cause,
        kept_free=waits.kept_free(meter.name, now) if cause is Cause.CLASS_SHARE else 0,
        closed=closed if cause is None or not where else {**closed, cause: len(where)},
        head=_head_now(first, where or endpoints, settings, now) if first is not None else None,
        kv_usage_min=min(usages, default=None),
        kv_usage_max=max(usages, default=None),
        oldest_wait_s=oldest_s([next(iter(line.entries.values())) for line in lines], now),
        wait_p50_s=waits_s and waits_s[0],
        wait_p99_s=waits_s and waits_s[1],
        ended_total=meter.ended,
        deadline_tries_total=meter.tried,
        prompt_tokens_total=meter.prompt_tokens,
        output_tokens_total=meter.output_tokens,
    )


def _head_now(line: Line, endpoints: list[Endpoint], settings: AdmissionSettings, now: float) -> HeadSnapshot:
    entry = head_of(line)
    free = [left for e in endpoints if (left := kv_tokens_free(e, settings, now=now)) is not None]
    return HeadSnapshot(
        band=line.band.settings.name,
        ceiling=line.band.settings.ceiling,
        tenant=entry.tenant,
        tokens=entry.estimated_tokens,
        kv_tokens_free=_whole(max(free, default=None)),
    )


def _whole(tokens: float | None) -> int | None:
    return None if tokens is None else max(0, round(tokens))


def _closed(
    verdicts: tuple[Mapping[Endpoint, Verdict], Mapping[Endpoint, Verdict]], endpoint: Endpoint, cause: Cause | None
) -> bool:
    """Whether the endpoint does not take the first in line for that cause."""
    closed, opened = verdicts
    verdict = closed.get(endpoint)
    return (verdict is not None and verdict.cause is cause) or (cause in _SIZES and endpoint in opened)


def requests_now(bands: Sequence[Band], leases: Mapping[int, Entry], recorder: Recorder, now: float) -> RequestRows:
    """Returns some of the requests in each state, those that count first."""
    each = max(1, REQUESTS_SHOWN // len(bands))
    waiting = [entry for band in bands for entry in islice(band.entries.values(), each)]
    for band in bands:
        waiting += islice(band.entries.values(), each, each + REQUESTS_SHOWN - len(waiting))
    waiting.sort(key=lambda entry: entry.band)  # in a band the one that came first stays first
    return RequestRows(
        waiting=[_row(entry, recorder, now) for entry in waiting],
        running=[_row(entry, recorder, now) for entry in islice(leases.values(), REQUESTS_SHOWN)],
        ended=[_row(entry, recorder, now) for entry in islice(recorder.latest(), REQUESTS_SHOWN)],
    )


def rows_of(entries: Iterable[Entry], recorder: Recorder, now: float) -> Iterator[RequestRow]:
    """Yields the given requests, which are here, and then those that ended and are kept, the last one first."""
    for entry in chain(entries, recorder.latest()):
        yield _row(entry, recorder, now)


def _row(entry: Entry, recorder: Recorder, now: float) -> RequestRow:
    request, trail = entry.request, recorder.trail(entry)
    ended_s, usage = trail.ended_s, trail.usage
    return RequestRow(
        id=request.id,
        tenant=request.tenant,
        band=trail.band,
        model=request.model,
        state=entry.state,
        age_s=(now if ended_s is None else ended_s) - trail.arrived_s,
        waited_s=now - entry.waits_since_s if entry.state is State.WAITING else entry.waited_s,
        prompt_tokens=usage.prompt_tokens if usage is not None else entry.prompt_tokens,
        output_tokens=usage.completion_tokens if usage is not None else entry.output_seen,
        endpoint=(trail.sent_to if trail.decode_at_s is None else trail.decode_endpoint)
        if trail.sent_s is not None and entry.state is not State.WAITING
        else None,
        cause=recorder.cause(entry),
        reason=trail.reason,
        ended_s_ago=None if ended_s is None else now - ended_s,
        requeues=len(trail.requeues or ()),
    )


def state_now(endpoint: Endpoint, now: float) -> EndpointState:
    """Returns the one state that an endpoint is shown in, the gravest that holds."""
    health, ledger = endpoint.health, endpoint.ledger
    if not health.up:
        is_working = ledger.leases and now < ledger.life_s + STOPPING_S
        if is_working and health.presence is Presence.DOWN:
            return EndpointState.STOPPING
        return EndpointState(health.presence)
    if endpoint.drained:
        return EndpointState.DRAINING
    if endpoint.proof.key_refused:
        return EndpointState.REFUSED_KEY
    if not endpoint.proof.stands:
        return EndpointState.UNPROVEN
    if endpoint.liveness.stuck_s is not None:
        return EndpointState.STUCK
    if endpoint.silent:
        return EndpointState.SILENT
    if health.ejected(now):
        return EndpointState.EJECTED
    return EndpointState.HELD if health.held(now) else EndpointState.UP
