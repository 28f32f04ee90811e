"""An explanation in sentences: the same on the page, in `penstock explain` and in the API."""

from __future__ import annotations

from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.explain.explanation import Explanation, Requeued, Sent, Served
from penstock.core.values.catalogue import Cause
from penstock.core.values.lifecycle import State
from penstock.gateway.admin.events import printable
from penstock.gateway.admin.headline import seconds
from penstock.gateway.identity.caller import PART_OF

CAUSES: dict[Cause, str] = {
    Cause.NO_BACKEND: "no endpoint for its model was alive",
    Cause.WARMING: "the endpoints had not told yet what they serve",
    Cause.UNPROVEN: "what answered at the endpoints had yet to show that it is an engine",
    Cause.EJECTED: "the endpoints were out after failures",
    Cause.HELD: "the engines refused requests as too many",
    Cause.RETURNING: "the endpoints had just come back and were tried out first",
    Cause.STUCK: "the engines had shown no movement for long",
    Cause.SLOTS_FULL: "all slots were taken",
    Cause.ENGINE_QUEUE: "enough waited inside the engines",
    Cause.PREFILL_FULL: "the engines had enough prompts to compute",
    Cause.KV_FULL: "the engines had too little KV memory free below their ceiling",
    Cause.PACE: "the engines were too slow per token to be given more",
    Cause.SHUNNED: "the endpoint had just refused or failed it",
    Cause.CLASS_SHARE: "the last slots and memory were kept for tenants under their share",
    Cause.TENANT_CAP: "its tenant ran as many requests as it may",
    Cause.TENANT_PAUSED: "an operator had paused its tenant",
    Cause.AFFINITY: "it was held for the endpoint that has its cache or session",
    Cause.NO_DECIDER: "it was not known which gateway decides, so nothing was sent",
    Cause.PAUSED: "an operator had paused sending, or drained the endpoints",
    Cause.TURN: "others were served first: higher bands, or tenants that had got less for their weight",
}
assert CAUSES.keys() == set(Cause)

WHY_FIRST = {
    "bumped": "bumped by an operator",
    "band": "a higher band goes first",
    "promised": "a lower band, by its promised share or where this one did not fit",
    "turn": "that tenant had got less for its weight",
    "order": "before it in its own flow (the same tenant and model)",
    "followed": "followed a request with the same prefix",
    "overtook": "behind it in its own flow (the same tenant and model), but fitted where it did not",
}


def story(told: Explanation) -> list[str]:
    """What happened to a request, a sentence at a time."""
    name = printable(told.tenant, 60)
    lines = [
        (
            f"Came {seconds(told.came_s_ago)} ago from {name}, band {told.band}, for {printable(told.model, 60)}:"
            f" {told.prompt_tokens:,} prompt and {told.output_tokens:,} output tokens"
            f"{' estimated' if told.ended_s is None else ''}."
        )
    ]
    if told.instead_of:
        lines.append(f"{printable(told.instead_of, 60)} was asked for, and could not take it: this is its fallback.")
    if told.waits:
        parts = [f"{seconds(waited.seconds)}: {CAUSES[waited.cause]} ({waited.cause})" for waited in told.waits]
        lines.append(f"Waited {seconds(told.waited_s)}. " + "; ".join(parts) + ".")
    elif told.sent is not None or told.waited_s:
        lines.append(f"Waited {seconds(told.waited_s)}.")
    if told.before_total:
        served = "; ".join(_served(one, told) for one in told.before)
        lines.append(f"{told.before_total:,} went first: {served}.")
    lines += [_requeued(step) for step in told.requeues]
    if told.state is State.WAITING:
        lines.append(_present(told))
    if told.tried:
        lines.append("It was forecast to miss its deadline, and sent all the same: nothing else would have told.")
    if told.sent is not None:
        lines += _sent(told)
    if told.ended_s is not None:
        reason = f": {told.reason}" if told.reason else ""
        if told.limit is not None:
            reason += f" ({told.limit.limit}: {told.limit.most:,})"
        lines.append(f"Ended {told.state} after {seconds(told.ended_s)}{reason}.")
    return lines


def _requeued(step: Requeued) -> str:
    endpoint = step.endpoint or "its endpoint"
    if step.failure == Cause.STUCK:
        return f"After {seconds(step.at_s)} {endpoint} showed no movement: taken back, to be asked for elsewhere."
    if step.failure == Cause.ENGINE_QUEUE:
        return f"After {seconds(step.at_s)} it waited in the queue of {endpoint}: taken back, to wait here."
    return f"After {seconds(step.at_s)} {endpoint} failed it ({step.failure}): back to the queue."


def _present(told: Explanation) -> str:
    closed = ", ".join(f"{count} × {cause}" for cause, count in told.closed.items())
    wait_s = told.estimated_wait_s
    return (
        f"Waits now for {told.waits_for or 'its turn'}"
        + (f" (endpoints: {closed})" if closed else "")
        + (f"; about {seconds(wait_s)} more." if wait_s is not None else "; how long cannot be told.")
    )


def _scored(sent: Sent) -> str:
    """What the routing policy compared, where it had a choice and numbers."""
    scored = [one for one in sent.candidates if one.score is not None]
    if len(scored) < 2:
        return ""
    others = ", ".join(f"{one.score:.3g} at {printable(one.endpoint, 40)}" for one in scored[1:])
    return f" Chosen by {sent.scored_by}: {scored[0].score:.3g} there, {others}."


def _turn(told: Explanation, sent: Sent) -> str:
    """Where it stood in the turns of its band."""
    first = told.flow[:1]
    who = "tenant" if first == [told.tenant] else "part" if first == [PART_OF.format(ANONYMOUS)] else "flow"
    return (
        f"In the turns of its band, which go to who got least, its {who} stood at {sent.service:,.0f}"
        f" (service by weight), the one served last at {sent.virtual_time:,.0f}."
    )


def _sent(told: Explanation) -> list[str]:
    sent = told.sent
    assert sent is not None
    chosen = sent.candidates[0]
    cached = f", {chosen.cached_tokens:,} of its prompt tokens cached there" if chosen.cached_tokens else ""
    lines = [
        (
            f"Sent after {seconds(sent.at_s)} to {printable(sent.endpoint, 60)}, one of {sent.open_endpoints} open:"
            f" {chosen.leases} of {chosen.slots} slots taken, {chosen.prefill_tokens:,} prompt tokens queued{cached}."
            f"{_scored(sent)} {_turn(told, sent)}"
        )
    ]
    if sent.overtaken:
        lines.append(f"It was passed over {sent.overtaken} times by others that fitted.")
    if sent.decode_endpoint is not None:
        answers = printable(sent.decode_endpoint, 60)
        if sent.decode_at_s is None:
            lines.append(f"Only its prompt is computed there; {answers} keeps a slot to answer it.")
        else:
            lines.append(f"Its prompt was computed after {seconds(sent.decode_at_s)}; then it went on to {answers}.")
    if told.first_byte_s is not None:
        lines.append(f"First byte after {seconds(told.first_byte_s)}.")
    return lines


def _served(served: Served, told: Explanation) -> str:
    why = WHY_FIRST[served.why]
    if served.why == "turn" and served.tenant == told.tenant:
        why = "another flow of this tenant (user or model), which had got less for its weight"
    return f"{served.requests:,} of {printable(served.tenant, 40)} ({served.band}), {why}"
