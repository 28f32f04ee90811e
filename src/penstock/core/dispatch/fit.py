"""Endpoints that can never take a request: its prompt is too long, it has pictures, sounds or videos that their model
does not accept, or it needs a path or a feature that their engine was started without.

Known are the context lengths that engines list, and what an engine has refused a while ago. Prompts are only estimated,
so an endpoint is left out if the estimate exceeds its context by more than `EXCESS`, and only if another endpoint in
service fits. Between these a wrong guess costs one refusal, which engines give in milliseconds, and the request is
asked of another endpoint. With equal endpoints all of this is skipped.
"""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import contents_of
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import TOOLS, Request

EXCESS = 1.25  # first estimates of prose are that far off, those of code farther
Kind = tuple[str, str]  #: of requests that an engine may not take: a model, and what is asked of it


def unfit(pool: Pool, entry: Entry, now: float) -> list[str]:
    """Returns the names of the endpoints that can't take a request, as long as another one can."""
    contents = contents_of(entry.request)
    kinds = kinds_of(entry.request)
    tokens = entry.prompt_tokens / max(1, contents.inputs)  # each input has its own context
    output_tokens = entry.request.output_tokens_max or 0
    serving = [e for e in pool if e.serves(entry.model)]
    surely = [e for e in serving if e.in_service and _fits(e, entry.model, tokens + output_tokens, kinds, now)]
    if not surely:
        return []
    roles = frozenset([e.role for e in surely])  # no endpoint stands in for one of another role
    return [
        e.name
        for e in serving
        if e.role in roles
        and e not in surely
        and not _fits(e, entry.model, tokens / EXCESS + output_tokens, kinds, now)
    ]


def may_take(other: Endpoint, entry: Entry, failure: Failure, refused_by: Endpoint, now: float) -> bool:
    """True if another endpoint may accept a request that one has refused."""
    if other.role is not refused_by.role:
        return False
    if failure is not Failure.TOO_LONG:
        return not other.lacks(kinds_of(entry.request), now)
    theirs, its = other.contexts.get(entry.model), refused_by.contexts.get(entry.model)
    return theirs is None or its is None or theirs > its


def lacking(request: Request, failure: Failure) -> list[Kind]:
    """Returns the kinds of requests that an endpoint does not take, as this refusal shows; empty: it may be others."""
    if failure is Failure.MODALITY:
        media = _media(request)
        return media if len(media) == 1 else []
    if failure is Failure.NO_PATH:
        return [(request.model, need) for need in request.needs if need != TOOLS]
    return [(request.model, TOOLS)] if failure is Failure.NO_TOOLS and TOOLS in request.needs else []


def kinds_of(request: Request) -> list[Kind]:
    """Returns what an endpoint may lack that the request needs."""
    return _media(request) + [(request.model, need) for need in request.needs]


def _media(request: Request) -> list[Kind]:
    contents = contents_of(request)
    counts = (("pictures", contents.pictures), ("sounds", contents.sounds), ("videos", contents.videos))
    return [(request.model, kind) for kind, count in counts if count]


def _fits(endpoint: Endpoint, model: str, tokens: float, kinds: list[Kind], now: float) -> bool:
    context = endpoint.contexts.get(model)
    return (context is None or tokens <= context) and not endpoint.lacks(kinds, now)
