"""Why a request is not sent now: one closed list, told wherever a wait is explained."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why a request is not sent: one closed list."""

    NO_BACKEND = "no_backend"  #: no endpoint serves the model, or none of them is alive
    WARMING = "warming"  #: endpoints are there that have not told yet what they serve
    UNPROVEN = "unproven"  #: what answers there has yet to show that it is an engine
    EJECTED = "ejected"  #: the endpoint failed several times in a row
    HELD = "held"  #: the endpoint refused several times in a row
    RETURNING = "returning"  #: the endpoint just came back and is tried out with a few requests
    STUCK = "stuck"  #: the endpoint has shown no movement for long
    SLOTS_FULL = "slots_full"
    ENGINE_QUEUE = "engine_queue"  #: enough waits inside the engine already
    PREFILL_FULL = "prefill_full"  #: enough prompt tokens are being computed already
    KV_FULL = "kv_full"
    PACE = "pace"  #: the endpoint makes its tokens too slowly to be given more
    SHUNNED = "shunned"  #: this endpoint just refused or failed this very request
    CLASS_SHARE = "class_share"  #: the last slots are kept for flows under their fair share
    TENANT_CAP = "tenant_cap"  #: the tenant runs as many as it may
    TENANT_PAUSED = "tenant_paused"  #: an operator has paused the tenant
    AFFINITY = "affinity"  #: it is held for an endpoint that has its session or its prompt in its cache
    NO_DECIDER = "no_decider"  #: another gateway may decide, so this one sends nothing until it is known who does
    PAUSED = "paused"  #: an operator drains the endpoint, or has paused the model or all
    TURN = "turn"  #: others are served first: higher bands, or flows that got less
