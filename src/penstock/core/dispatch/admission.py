"""May this endpoint take a request of this band now, and this very request (docs/design.md#admission).

An endpoint is *open* when all conditions hold. Each has a name; the first that does not hold is the endpoint's cause,
and of all endpoints' causes `explain/wait_causes.py` makes that of a request. `holds_until_s` says when time alone may
change the answer.
"""

from __future__ import annotations

import math

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.page import TRY_S
from penstock.core.endpoints.roles import Role
from penstock.core.queueing.band import Room
from penstock.core.queueing.entry import Entry
from penstock.core.values.catalogue import Cause
from penstock.core.values.settings import AdmissionSettings, BandSettings

OVER_SHARE_PREFILL_TOKENS = 2048  # one step's budget of most engines: computed at once, nothing waits behind it
OVER_SHARE_KV_SHARE = (
    0.05  # of the KV memory, for requests of flows under their share: some thousands of tokens on any card
)


_BY_PAGE = (Cause.SLOTS_FULL, Cause.ENGINE_QUEUE, Cause.KV_FULL)  # what a page may close an endpoint for
_OF_HEALTH = (
    Cause.NO_BACKEND, Cause.PAUSED, Cause.UNPROVEN, Cause.HELD, Cause.EJECTED, Cause.RETURNING, Cause.STUCK
)  # fmt: skip


def closed(endpoint: Endpoint, band: BandSettings, settings: AdmissionSettings, *, now: float) -> Cause | None:
    """Why no request of the band may go to the endpoint now; None when it is open to the band.

    If only the page keeps an endpoint closed, single requests test whether the page is right (`endpoints/page.py`).
    """
    cause = _closed(endpoint, band, settings, now)
    if cause is None or endpoint.ledger.page.closed_s is None or not by_page(endpoint, band, settings, cause, now=now):
        return cause
    return None if endpoint.ledger.page.may_try(now, _stands_since_s(cause, endpoint, band, now)) else cause


def by_page(
    endpoint: Endpoint, band: BandSettings, settings: AdmissionSettings, cause: Cause | None, *, now: float
) -> bool:
    """True if only its page keeps an endpoint closed. `cause`: the known cause; None: compute it."""
    cause = cause or _closed(endpoint, band, settings, now)
    return cause in _BY_PAGE and _closed(endpoint, band, settings, now, told=False) is None


def _stands_since_s(cause: Cause | None, endpoint: Endpoint, band: BandSettings, now: float) -> float:
    """The time since which the page shows no change. One more request may begin at once although the page is right in
    two cases: memory is full, or the band is sent to idle engines only.
    """
    ledger = endpoint.ledger
    if cause is Cause.KV_FULL:
        return ledger.page.kv_moved_s
    waits = cause is Cause.ENGINE_QUEUE or ledger.load(now) >= ledger.limit.slots
    return -math.inf if waits and band.engine_waiting_max else ledger.page.moved_s


def _closed(
    endpoint: Endpoint, band: BandSettings, settings: AdmissionSettings, now: float, *, told: bool = True
) -> Cause | None:
    """The cause that closes the endpoint, or None; `told`: the page counts, too."""
    ledger = endpoint.ledger
    if now >= ledger.prefill.due_s:
        ledger.prefill.advance(now)
    own, slots = len(ledger.leases), ledger.limit.slots
    load = ledger.load(now) if told else float(own)
    if load >= slots * band.ceiling or own >= slots:
        return Cause.SLOTS_FULL
    if _queues(endpoint, band, now, told=told):
        return Cause.ENGINE_QUEUE
    if load <= 0:
        return None  # an idle endpoint always takes one request, however large
    settings = endpoint.admission(settings)
    if ledger.prefill.outstanding_tokens >= settings.prefill_tokens_max:
        return Cause.PREFILL_FULL
    kv_usage = ledger.kv_usage(now) if told else None
    if kv_usage is not None and kv_usage >= settings.kv_usage_max:
        return Cause.KV_FULL
    return Cause.PACE if _slow(endpoint, band, settings, now) else None


def _queues(endpoint: Endpoint, band: BandSettings, now: float, *, told: bool = True) -> bool:
    """Whether enough requests wait inside the engine, or may with those on their way there."""
    ledger, own, waiting_max = endpoint.ledger, endpoint.limits, band.engine_waiting_max
    if own is not None and own.engine_waiting_max is not None and own.engine_waiting_max < waiting_max:
        waiting_max = own.engine_waiting_max
    waiting = ledger.engine_queue(now, told=told, strict=waiting_max == 0)
    if waiting > 0 and waiting >= waiting_max:
        return True
    return now < ledger.limit.fills_until_s(ledger)


def _slow(endpoint: Endpoint, band: BandSettings, settings: AdmissionSettings, now: float) -> bool:
    ledger, pace_s_max = endpoint.ledger, _pace_s_max(endpoint, band, settings)
    return pace_s_max is not None and ledger.speed.exceeds(pace_s_max, now, own=bool(ledger.leases))


def _pace_s_max(endpoint: Endpoint, band: BandSettings, settings: AdmissionSettings) -> float | None:
    own, pace_s_max = endpoint.limits, band.time_per_output_token_s_max or settings.time_per_output_token_s_max
    if own is not None and own.time_per_output_token_s_max is not None:
        return min(pace_s_max or math.inf, own.time_per_output_token_s_max)
    return pace_s_max


def room(endpoint: Endpoint, settings: AdmissionSettings, *, tried: bool = False, now: float) -> Room:
    """How large a request may be that goes to an open endpoint now: prompt tokens, and tokens in all.

    An endpoint that is idle, or computes no prompt, takes one of any size. `tried`: its gauges are ignored.
    """
    ledger = endpoint.ledger
    outstanding, base = ledger.prefill.outstanding_tokens, ledger.page.base
    prefill_tokens = endpoint.admission(settings).prefill_tokens_max - outstanding if outstanding else math.inf
    if tried or base is None or not base.kv_capacity_tokens:
        return prefill_tokens, math.inf
    free = kv_tokens_free(endpoint, settings, now=now)
    return prefill_tokens, free if free is not None and ledger.load(now) > 0 else math.inf


def kv_tokens_free(endpoint: Endpoint, settings: AdmissionSettings, *, now: float) -> float | None:
    """Returns the tokens of KV memory left below the ceiling, negative above it; None if unknown."""
    ledger = endpoint.ledger
    capacity = ledger.page.base.kv_capacity_tokens if ledger.page.base is not None else None
    kv_usage = ledger.kv_usage(now) if capacity else None
    if not capacity or kv_usage is None:
        return None
    return (endpoint.admission(settings).kv_usage_max - kv_usage) * capacity


def over_share_room(room: Room, endpoint: Endpoint) -> Room:
    """Returns the part of an endpoint's room that is for flows over their share while under-share requests keep
    arriving.

    An engine computes prompts first come, first served, so an under-share request waits for the prompts of over-share
    flows before it. Requests waiting elsewhere on their way there block nothing.
    """
    ledger, (prefill_tokens, tokens) = endpoint.ledger, room
    if outstanding := ledger.prefill.outstanding_tokens:
        on_the_way = ledger.speed.on_the_way_tokens()
        prefill_tokens = min(prefill_tokens, OVER_SHARE_PREFILL_TOKENS + on_the_way - outstanding)
    capacity = ledger.page.base.kv_capacity_tokens if ledger.page.base is not None else None
    return prefill_tokens, tokens - OVER_SHARE_KV_SHARE * capacity if capacity else tokens


def kv_tokens(entry: Entry, endpoint: Endpoint) -> int:
    """Returns a request's need of an endpoint's KV memory: only its prompt if it is answered elsewhere."""
    if endpoint.role is Role.PREFILL and not entry.whole:
        return entry.prompt_tokens
    return entry.estimated_tokens


def misfit(entry: Entry, endpoint: Endpoint, room: Room, *, now: float) -> Cause | None:
    """Why this request may not go to an endpoint with so much `room`; None when it may."""
    if entry.excludes(endpoint.name, now):
        return Cause.AFFINITY if entry.only and endpoint.name not in entry.only else Cause.SHUNNED
    prefill_tokens, tokens = room
    if entry.uncached_at(endpoint.index) > prefill_tokens:
        return Cause.PREFILL_FULL
    return Cause.KV_FULL if kv_tokens(entry, endpoint) > tokens else None


def holds_until_s(
    cause: Cause | None, endpoint: Endpoint, band: BandSettings, settings: AdmissionSettings, *, now: float
) -> float:
    """Returns until when time alone changes nothing of an endpoint's `cause`, or of its room if it is open."""
    ledger = endpoint.ledger
    if cause is not None:
        if cause in _OF_HEALTH:
            return _health_changes_s(cause, endpoint, now)
        if cause is Cause.SLOTS_FULL and len(ledger.leases) >= ledger.limit.slots:
            return math.inf  # a lease has to end
    until_s = ledger.review_s(now)
    if _pace_s_max(endpoint, band, settings) is not None:
        forgotten_s = ledger.speed.forgotten_s(now)
        if now < forgotten_s < until_s:
            until_s = forgotten_s
    return min(until_s, *_tries_s(cause, endpoint, now)) if cause is not None and cause in _BY_PAGE else until_s


def _health_changes_s(cause: Cause, endpoint: Endpoint, now: float) -> float:
    """Returns when a cause that has nothing to do with the load may end; infinity: time does not end it."""
    if cause is Cause.STUCK:
        liveness = endpoint.liveness
        return math.inf if liveness.stuck_s is None else liveness.tried_s(endpoint.ledger)
    if cause is Cause.UNPROVEN:
        if (first_s := endpoint.first_until_s) > now:
            return first_s
        return endpoint.proof.try_s if endpoint.proof.try_s > now else math.inf  # a lease has to end
    if cause is Cause.RETURNING:
        return endpoint.health.trial_until_s
    if cause in (Cause.HELD, Cause.EJECTED):
        ends_s = (endpoint.health.held_until_s, endpoint.health.ejected_until_s)
        return min(end_s for end_s in ends_s if end_s > now)
    return math.inf  # it is down, or an operator drained it


def _tries_s(cause: Cause, endpoint: Endpoint, now: float) -> list[float]:
    """The times at which a request may be sent against the page, or at which another cause of ours may end."""
    ledger, page = endpoint.ledger, endpoint.ledger.page
    times = [ledger.limit.fills_until_s(ledger)]
    if page.closed_s is not None:
        stands_s = (page.kv_moved_s if cause is Cause.KV_FULL else page.moved_s) + TRY_S
        times += [page.try_s, max(page.try_s, stands_s), ledger.speed.forgotten_s(now)]
    return [math.inf, *[each for each in times if each > now]]
