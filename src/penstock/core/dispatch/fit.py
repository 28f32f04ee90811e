"""Endpoints that can never take a request: its prompt is too long, or has pictures, sounds or videos that their model
does not accept.

Known are the context lengths that engines list, and which kinds an engine has refused. Prompts are only estimated, so
an endpoint is left out if the estimate exceeds its context by more than `EXCESS`, and only if another endpoint in
service fits. Between these a wrong guess costs one refusal, which engines give in milliseconds, and the request is
asked of an endpoint with a larger context. With equal endpoints all of this is skipped.
"""

from __future__ import annotations

from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.queueing.entry import Entry
from penstock.core.queueing.estimate import contents_of
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Contents

EXCESS = 1.25  # first estimates of prose are that far off, those of code farther


def unfit(pool: Pool, entry: Entry) -> list[str]:
    """Returns the names of the endpoints that can't take a request, as long as another one can."""
    contents = contents_of(entry.request)
    kinds = kinds_of(entry.model, contents)
    tokens = entry.prompt_tokens / max(1, contents.inputs)  # each input has its own context
    output_tokens = entry.request.output_tokens_max or 0
    serving = [e for e in pool if e.serves(entry.model)]
    surely = [e for e in serving if e.in_service and _fits(e, entry.model, tokens + output_tokens, kinds)]
    if not surely:
        return []
    roles = frozenset([e.role for e in surely])  # no endpoint stands in for one of another role
    return [
        e.name
        for e in serving
        if e.role in roles and e not in surely and not _fits(e, entry.model, tokens / EXCESS + output_tokens, kinds)
    ]


def may_take(other: Endpoint, entry: Entry, failure: Failure, refused_by: Endpoint) -> bool:
    """Whether another endpoint may accept a request that one has refused."""
    if other.role is not refused_by.role:
        return False
    if failure is Failure.MODALITY:
        return other.refused_kinds.isdisjoint(kinds_of(entry.model, contents_of(entry.request)))
    theirs, its = other.contexts.get(entry.model), refused_by.contexts.get(entry.model)
    return theirs is None or its is None or theirs > its


def kinds_of(model: str, contents: Contents) -> frozenset[tuple[str, str]]:
    """Returns the kinds of a request's pieces beside text, each with the model that is to take them."""
    counts = (("pictures", contents.pictures), ("sounds", contents.sounds), ("videos", contents.videos))
    return frozenset([(model, kind) for kind, count in counts if count])


def _fits(endpoint: Endpoint, model: str, tokens: float, kinds: frozenset[tuple[str, str]]) -> bool:
    context = endpoint.contexts.get(model)
    return (context is None or tokens <= context) and endpoint.refused_kinds.isdisjoint(kinds)
