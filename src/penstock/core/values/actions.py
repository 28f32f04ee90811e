"""The scheduler's tasks for its driver. Values: the core never calls anybody.

They travel as they are from a decider to its edges (`penstock/share`), so each is an array with its name in front.

After a `Dispatch` the driver owns the lease and reports `finished`, `failed` or `cancelled` for it exactly once.
`Reject`, `Evict` and `Fail` end a request: the scheduler has already forgotten it.
"""

from __future__ import annotations

import msgspec

from penstock.core.values.catalogue import Outcome, Reason
from penstock.core.values.rows import LimitReached


class Dispatch(msgspec.Struct, array_like=True, tag="dispatch", frozen=True, gc=False):
    """Send the request to this endpoint, now."""

    request_id: str
    endpoint: str
    lease: int  #: serial of the lease, to be named in every report
    queue_s: float  #: the time it spent in the queue, all visits together
    rank: int | None = None  #: for the engine's own queue, lower first; None: the engine's order is left alone
    decode: str | None = None  #: only its prompt is computed there; this endpoint is leased to answer it
    decode_lease: int | None = None  #: and that lease, valid from `prefilled` on unless `Decode` changes it
    prompt_tokens: int = 0  #: of its prompt, as estimated
    output_tokens: int = 0  #: of its answer, as estimated
    prefill_s: float = 0.0  #: until its prompt is computed there, as predicted


class Decode(msgspec.Struct, array_like=True, tag="decode", frozen=True, gc=False):
    """The prompt is computed: send the request on to the endpoint that answers it, under its own lease."""

    request_id: str
    endpoint: str
    lease: int  #: named in every report from now on; the prefill's is over


class Requeue(msgspec.Struct, array_like=True, tag="requeue", frozen=True, gc=False):
    """The request waits again, its age kept; the lease it had is gone."""

    request_id: str
    cause: str  #: the failure that sent it back (`retry.Failure`)


class _End(msgspec.Struct, array_like=True, frozen=True, gc=False):
    request_id: str
    reason: Reason
    retry_after_s: float | None = None
    elsewhere: bool = False  #: another of its models (`Request.others`) takes it now


class Reject(_End, tag="reject", frozen=True, gc=False):
    """Refuse a request that never entered the queue."""

    outcome = Outcome.REJECTED
    limit: LimitReached | None = None  #: of its tenant, if that is the reason


class Evict(_End, tag="evict", frozen=True, gc=False):
    """Refuse a request that waited."""

    outcome = Outcome.EVICTED


class Fail(_End, tag="fail", frozen=True, gc=False):
    """The request was sent and finally failed: pass on the engine's last answer, or report that there is none."""

    outcome = Outcome.FAILED


class Abort(msgspec.Struct, array_like=True, tag="abort", frozen=True, gc=False):
    """Stop a running request at its endpoint. The driver still reports the end of its lease."""

    request_id: str
    reason: Reason


Action = Dispatch | Decode | Requeue | Reject | Evict | Fail | Abort
