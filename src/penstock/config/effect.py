"""Warnings about settings without effect, or with a dangerous one.

A setting without effect is harmless and may be kept for later (queueing may be off for an hour), so it is only a
warning of `penstock check` and at start. Contradictions are refused instead (`checks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.config.address import is_everywhere, same_place
from penstock.config.model import BandSection, Settings
from penstock.config.sections.clients import ANY_ORIGIN, EppSection
from penstock.config.sections.roles import role_warnings
from penstock.config.sections.section import Section
from penstock.core.endpoints.roles import Role, role_of
from penstock.core.queueing.fairness import POLICIES as FAIRNESS
from penstock.core.values.settings import SHORT_WAIT_S

_OF_THE_QUEUE = ("max_requests", "max_tokens", "heartbeat_after")
_OF_BANDS_QUEUES = (
    *("max_engine_waiting", "ceiling", "min_share", "deadline", "shed_target", "ordering", "max_wait"),
    *("max_requests", "max_bytes", "max_tokens"),
)
WAIT_S_USUAL = 3600.0  # interactive clients wait less; batches are in a best-effort band
TIMEOUT_S_USUAL = 0.1  # engines of other machines take longer for a first byte, and between two under load
# Variables that Penstock reads itself.
_OWN_VARIABLES = frozenset(
    f"PENSTOCK_{name}"
    for name in ("URL", "TOKEN", "CONFIG", "COMPILE", "ADMIN_TOKEN", "READ_TOKEN", "ENGINES", "API_KEY", "SHARE_SECRET")
)
_OF_WAITING_TENANTS = ("queued", "queued_bytes", "queued_tokens")


def warnings(settings: Settings, env: Mapping[str, str]) -> list[str]:
    """Returns all warnings about settings and variables, a sentence each."""
    return [*role_warnings(settings), *effect_warnings(settings), *variable_warnings(env)]


def effect_warnings(settings: Settings) -> list[str]:
    """Returns a sentence per setting without effect, or with a dangerous one."""
    return [
        *_without_queue(settings),
        *_bands(settings),
        *_slots(settings),
        *_fairness(settings),
        *_rest(settings),
        *_waits(settings),
        *_sessions(settings),
        *_ports(settings),
        *_through_a_proxy(settings),
    ]


def variable_warnings(env: Mapping[str, str]) -> list[str]:
    """Returns a sentence per variable that lacks the second underscore of a setting."""
    found: list[str] = []
    for variable in sorted(env):
        name = variable.upper()
        if not name.startswith("PENSTOCK_") or name.startswith("PENSTOCK__") or name in _OWN_VARIABLES:
            continue
        for key in Settings.model_fields:
            if name.removeprefix("PENSTOCK_") == key.upper() or name.startswith(f"PENSTOCK_{key.upper()}_"):
                rest = name.removeprefix(f"PENSTOCK_{key.upper()}").strip("_")
                meant = f"PENSTOCK__{key.upper()}" + (f"__{rest}" if rest else "")
                found.append(f"the variable {variable} sets nothing: write {meant}, with two underscores")
                break
    return found


def _written(section: Section, *keys: str) -> list[str]:
    return [key for key in keys if key in section.model_fields_set]


def _without_queue(settings: Settings) -> Iterator[str]:
    if settings.queue.enabled:
        return
    named = [f"queue.{key}" for key in _written(settings.queue, *_OF_THE_QUEUE)]
    named += _written(settings, "ordering")
    if "bands" in settings.model_fields_set:
        for index, band in enumerate(settings.bands):
            named += [f"bands[{index}].{key}" for key in _written(band, *_OF_BANDS_QUEUES)]
    for index, tenant in enumerate(settings.tenants):
        named += [f"tenants[{index}].limits.{key}" for key in _written(tenant.limits, *_OF_WAITING_TENANTS)]
    named += [f"routing.{key}" for key in _written(settings.routing, "affinity_wait", "prefix_group")]
    if named:
        yield f"with `queue.enabled: false` nothing waits, so these do nothing: {', '.join(named)}"


def _bands(settings: Settings) -> Iterator[str]:
    if "bands" not in settings.model_fields_set:
        return
    for index, band in enumerate(settings.bands):
        where = f"bands[{index}]"
        if band.min_share and index == 0:
            yield f"{where}.min_share does nothing: no band is above it"
        if band.shed_target is not None and 2 * band.shed_target >= _max_wait(settings, band):
            yield f"{where}.shed_target sheds no queued request: twice as much is not before `max_wait`"
        for key in ("max_requests", "max_bytes", "max_tokens"):
            own, whole = getattr(band, key), getattr(settings.queue, key)
            if own is not None and own > whole:
                yield f"{where}.{key} does nothing: `queue.{key}` is lower"


def _max_wait(settings: Settings, band: BandSection) -> float:
    return settings.queue.max_wait if band.max_wait is None else band.max_wait


def _slots(settings: Settings) -> Iterator[str]:
    told = [endpoint.slots for endpoint in settings.endpoints if isinstance(endpoint.slots, int)]
    all_told = bool(told) and len(told) == len(settings.endpoints) and not settings.discovery
    if "slots_initial" in settings.admission.model_fields_set and all_told:
        yield "admission.slots_initial does nothing: every endpoint has `slots` of its own"
    share = settings.admission.reserved_slots
    if isinstance(share, float) and share > 0:
        if all_told and sum(told) * share < 1:
            yield f"admission.reserved_slots keeps nothing: {share:g} of {sum(told)} slots is less than one"
        if settings.fairness.policy == "fcfs":
            yield "admission.reserved_slots keeps nothing: with `fairness.policy: fcfs` there are no shares"
    if settings.queue.enabled:
        for index, band in enumerate(settings.bands):
            for at, endpoint in enumerate(settings.endpoints):
                if isinstance(endpoint.slots, int) and band.ceiling * endpoint.slots < 1:
                    yield (
                        f"bands[{index}].ceiling of endpoints[{at}] is less than one of its slots: "
                        "it is sent one request there while it is idle"
                    )


def _fairness(settings: Settings) -> Iterator[str]:
    whole = settings.fairness
    policies = {band.fairness.policy or whole.policy for band in settings.bands}
    counts_tokens = "weighted_tokens" in policies or not policies <= FAIRNESS.keys()
    if not counts_tokens and "prices" in whole.model_fields_set:
        yield f"fairness.prices do nothing with `fairness.policy: {settings.fairness.policy}`"
    if policies == {"fcfs"}:
        for index, tenant in enumerate(settings.tenants):
            if "weight" in tenant.model_fields_set:
                yield f"tenants[{index}].weight does nothing with `fairness.policy: fcfs`"


def open_warnings(settings: Settings) -> Iterator[str]:
    """Yields a warning per port that anybody on the network may use without a proof."""
    yield from _picker(settings.epp)
    host = settings.listen_address[0]
    if is_everywhere(host) and not settings.identity.require_key:
        yield (
            f"listen: {settings.listen} is open to the network, and clients without a key are served: set "
            f"`identity.require_key: true` and keys (`penstock keys new NAME`), or listen on 127.0.0.1"
        )


def _picker(epp: EppSection) -> Iterator[str]:
    if epp.listen is None or epp.proves:
        return
    proof = "set `epp.client_ca` (with `tls`) or `epp.secret`"
    if not epp.gives_keys:
        yield (
            f"epp.listen: {epp.listen} is open to the network, and proxies need no proof: endpoints with an `api_key` "
            f"get nothing through it; {proof}"
        )
    elif epp.listen.startswith(":"):
        yield f"epp.listen: {epp.listen} is only on 127.0.0.1, because proxies need no proof: {proof}, or name a host"


def _through_a_proxy(settings: Settings) -> Iterator[str]:
    if settings.epp.listen is None:
        return
    if not settings.client_address.proxies and not settings.identity.require_key:
        yield (
            "epp.listen: callers without a key or name are one flow, that of their proxy's address: name the proxy in "
            "`client_address.proxies`"
        )
    divided = {Role.PREFILL, Role.DECODE} & {role_of(endpoint.labels) for endpoint in settings.endpoints}
    if divided:
        yield "epp.listen: requests through a proxy are not divided: their endpoints compute prompt and answer alike"


def _waits(settings: Settings) -> Iterator[str]:
    waits = {"queue.max_wait": settings.queue.max_wait}
    for index, band in enumerate(settings.bands):
        if band.max_wait is not None and not band.best_effort:
            waits[f"bands[{index}].max_wait"] = band.max_wait
    for where, wait_s in waits.items():
        if wait_s > WAIT_S_USUAL:
            yield (
                f"{where} is {wait_s / 3600:.1f} hours: a number without a unit is in seconds; if milliseconds were"
                f" meant, write `{wait_s:.0f}ms`"
            )

    short = {f"timeouts.{key}": getattr(settings.timeouts, key) for key in ("connect", "first_byte", "between_bytes")}
    for where, timeout_s in short.items():
        if timeout_s < TIMEOUT_S_USUAL:
            yield f"{where} is {timeout_s * 1000:g} ms: slower answers fail; if seconds were meant, write `s`"


def _ports(settings: Settings) -> Iterator[str]:
    for index, endpoint in enumerate(settings.endpoints):
        for scheme, port in (("https", 80), ("http", 443)):
            if endpoint.url.startswith(f"{scheme}://") and same_place(endpoint.url)[0].endswith(f":{port}"):
                yield f"endpoints[{index}].url: {scheme}:// at port {port}, which is the other one's as a rule"


def _sessions(settings: Settings) -> Iterator[str]:
    queue, sessions = settings.queue, settings.sessions
    if "max_wait" in queue.model_fields_set and "wait" in sessions.model_fields_set and queue.max_wait < sessions.wait:
        yield "sessions.wait does nothing above `queue.max_wait`: no request waits longer"
    sized = sessions.memory == "auto" and any(endpoint.kv_tokens for endpoint in settings.endpoints)
    if sized and "max_wait" in queue.model_fields_set and 0 < queue.max_wait < SHORT_WAIT_S:
        yield (
            f"queue.max_wait bounds waits for memory, too: a session that waited {queue.max_wait:g} s turns another one"
            " out; `bands[].max_wait` bounds the waits of a band without that"
        )


def _rest(settings: Settings) -> Iterator[str]:
    if settings.queue.heartbeat_after >= max(_max_wait(settings, band) for band in settings.bands):
        yield "queue.heartbeat_after does nothing: no request waits longer than `max_wait`"
    if settings.retry.max_attempts == 1 and "budget" in settings.retry.model_fields_set:
        yield "retry.budget does nothing with `retry.max_attempts: 1`"
    if settings.retry.budget == 0 and "max_attempts" in settings.retry.model_fields_set:
        yield "retry.max_attempts does nothing with `retry.budget: 0`"
    if settings.limits.max_body > settings.queue.max_bytes:
        yield "limits.max_body does nothing above `queue.max_bytes`: no larger body can be held"
    if settings.tracing.endpoint is None and "sample" in settings.tracing.model_fields_set:
        yield "tracing.sample does nothing without `tracing.endpoint`"
    if ANY_ORIGIN in settings.cors.origins:
        yield "cors.origins: any web page may use the gateway with a key, which its visitors can read"
    if not settings.client_address.proxies and "header" in settings.client_address.model_fields_set:
        yield "client_address.header does nothing without `client_address.proxies`"
    if settings.identity.require_key and "anonymous" in settings.identity.model_fields_set:
        yield "identity.anonymous does nothing with `identity.require_key`"
    if settings.identity.require_key and "distinguish" in settings.identity.model_fields_set:
        yield "identity.distinguish does nothing with `identity.require_key`"
    if settings.usage.keep == 0 and settings.usage.prices:
        yield "usage.prices do nothing with `usage.keep: 0`"
    if not settings.batch.serve and (unused := _written(settings.batch, "keep", "claim_timeout", "limits")):
        named = ", ".join(f"batch.{key}" for key in unused)
        yield f"without `batch.serve: true` there are no batches, so these do nothing: {named}"
    elif settings.store.url is None and "claim_timeout" in settings.batch.model_fields_set:
        yield "batch.claim_timeout does nothing without `store.url`: one gateway has SQLite to itself"
