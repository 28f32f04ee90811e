"""What is to be done about what the sentence says? One line for the first thing that is wrong; "" where nothing is.

Whose hand it takes is said with it: an engine's log, an operator's verb, a setting, or the callers who come back.
"""

from __future__ import annotations

import shlex

from penstock.core.explain.snapshot import EndpointSnapshot, Snapshot
from penstock.core.values.catalogue import Cause, Reason
from penstock.gateway.admin.failing.lately import WORDS, FailureGroup, Lately, of_alarm, of_note
from penstock.gateway.admin.reasons import MISSING, cause_now, short_name
from penstock.gateway.telemetry.failures import Kind

_MORE = "More engines help"
WAITING: dict[Cause, str] = {
    Cause.NO_BACKEND: "Start an engine that serves the model: requests wait for it as long as they may.",
    Cause.WARMING: "Patience, or name the endpoints' `models` in the settings.",
    Cause.UNPROVEN: "If what answers there is an engine, write `engine: openai` and its `models`.",
    Cause.EJECTED: "The engines' logs say why they fail; they are tried again by themselves.",
    Cause.HELD: "The engines refuse what they are sent: give the endpoints fewer `slots`.",
    Cause.RETURNING: "Patience: it is a matter of seconds.",
    Cause.STUCK: "Restart the engines that show no movement; their logs say why.",
    Cause.SLOTS_FULL: f"{_MORE}, or more `slots` where engines have room.",
    Cause.ENGINE_QUEUE: "Give the endpoints fewer `slots`, or the band another `max_engine_waiting`.",
    Cause.PREFILL_FULL: f"{_MORE}, or a higher `admission.max_prefill_tokens`.",
    Cause.KV_FULL: f"{_MORE}, or shorter contexts.",
    Cause.PACE: f"{_MORE}; the limit is `admission.max_time_per_output_token`.",
    Cause.SHUNNED: "The engine's log says why it refused the request; another try comes.",
    Cause.CLASS_SHARE: "Nothing: that is what shares are for. `admission.reserved_slots` says how many are kept.",
    Cause.TENANT_CAP: "Nothing, unless the tenant may run more: its `limits.running`.",
    Cause.TENANT_PAUSED: "`penstock tenant resume NAME` ends the pause.",
    Cause.AFFINITY: "Nothing: it is worth the wait. `routing.affinity_wait` says how long.",
    Cause.NO_DECIDER: "See why no gateway is known to decide: `penstock decider show`, and the links between gateways.",
    Cause.PAUSED: "`penstock resume`, or `penstock endpoint resume NAME`, ends the pause.",
    Cause.TURN: "Nothing, as long as everybody gets the share that is meant: `weight`, bands and `min_share` say it.",
}
assert WAITING.keys() == set(Cause)
_STATES = {
    "down": "See whether {} runs, and what its log says",
    "hung": "Restart {}: it takes connections and answers none",
    "refused_key": "Write the engine's key in `endpoints[].api_key` of {}, then `penstock reload`",
    "unproven": (
        "Look what answers at {0}; if it is an engine, write `engine: openai` and its `models`,"
        " or `penstock endpoint resume {0}` to try it again"
    ),
    "stuck": "Restart {}: it runs requests and shows no movement; its log says why",
    "silent": "See whether {} runs: it has not answered a question for seconds",
    "ejected": "See in the log of {} why it fails; it is tried again by itself",
}
_TOLD = "Callers were told when to come back."
_SHORT = f"{_MORE}, or less work: `limits` or `weight` of who sends most. {_TOLD}"
_TOO_MUCH = (Reason.QUEUE_FULL, Reason.OVERLOAD, Reason.QUEUE_TIMEOUT)
_REASONS: dict[str, str] = {
    Reason.QUEUE_FULL: _SHORT,
    Reason.OVERLOAD: _SHORT,
    Reason.QUEUE_TIMEOUT: f"{_SHORT} They were evicted after `queue.max_wait`.",
    Reason.DEADLINE_INFEASIBLE: f"{_MORE}, or longer deadlines.",
    Reason.DEADLINE_MISSED: f"{_MORE}, or longer deadlines.",
    Reason.DISPLACED: "Nothing, if bands are as they are meant: higher ones took the places.",
    Reason.IDENTITY_UNAVAILABLE: "See in the log why the keys of `identity.jwt.issuer` can't be had.",
    Reason.NO_ENDPOINT: "Start an engine that serves the model.",
    Reason.STREAM_BROKEN: "See the log of {} for the moment when the streams broke: mostly memory, or a restart.",
    Reason.UPSTREAM_TIMEOUT: "See whether {} is overloaded; the limit is `timeouts.first_byte`.",
}


def advice(snapshot: Snapshot, lately: Lately) -> str:
    """One line, or nothing where all is well."""
    if not snapshot.endpoints:
        return "`penstock endpoint add URL`, or `endpoints:` in the settings and `penstock reload`."
    if missing := [endpoint for endpoint in snapshot.endpoints if endpoint.state in MISSING]:
        return _missing(missing, snapshot, lately)
    if snapshot.draining:
        return "Nothing: it ends when what runs is over, or its time is."
    if snapshot.paused:
        return "`penstock resume`, or the page's button Resume, ends the pause; until then requests wait."
    if snapshot.drained:
        return "`penstock resume`, or the page's button Resume, ends the drain; until then new requests are refused."
    failing = of_note(lately, (Kind.BROKEN, Kind.FAILED)) or of_alarm(lately)
    if groups := failing or of_note(lately, (Kind.REFUSED, Kind.EVICTED)):
        return _failing(groups[0])
    model = next((model for model in snapshot.models if model.waiting and model.cause is not None), None)
    cause = None if model is None else cause_now(model)
    drained = next((endpoint.name for endpoint in snapshot.endpoints if endpoint.state == "draining"), None)
    if snapshot.waiting and drained is not None:
        return f"`penstock endpoint resume {short_name(drained)}` gives its slots back."
    return WAITING[cause] if cause is not None else ""


def _missing(missing: list[EndpointSnapshot], snapshot: Snapshot, lately: Lately) -> str:
    first = missing[0]
    others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    failure = f" ({_in_words(first.failure)})" if first.failure else ""
    todo = f"{_STATES[first.state].format(short_name(first.name))}{failure}{others}."
    return f"{todo} {_meanwhile(snapshot, lately)}"


def _meanwhile(snapshot: Snapshot, lately: Lately) -> str:
    """What becomes of the requests that a missing endpoint would have served."""
    if not any(endpoint.state == "up" for endpoint in snapshot.endpoints):
        return "Requests wait for it as long as they may."
    if of_alarm(lately):
        return "What is left is not enough: many get no answer."
    return "What is left is not enough: requests wait." if snapshot.waiting else "The others carry its work."


def _in_words(failure: str) -> str:
    """What an endpoint's last failure was."""
    return WORDS.get(failure, failure).removeprefix("tried again: ")


def _failing(group: FailureGroup) -> str:
    if group.reason in _TOO_MUCH and group.most:
        verb = f"`penstock tenant limit {shlex.quote(group.most)} --queued N`"
        which = "that timed out" if group.reason == Reason.QUEUE_TIMEOUT else "that were refused"
        less = f"{verb} lets fewer of its requests wait, so that others find room"
        return f"Most requests {which} come from {group.most}: {less}. {_MORE}, too. {_TOLD}"
    where = short_name(group.endpoint) if group.endpoint else "the engines"
    return _REASONS.get(group.reason, "See the log of {}.").format(where)
