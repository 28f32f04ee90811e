"""An explanation in sentences: the same on the page, in `penstock explain` and in the API."""

from __future__ import annotations

from penstock.core.admission import Cause
from penstock.core.explain import Explanation, Served
from penstock.core.lifecycle import State
from penstock.server.admin.events import printable
from penstock.server.admin.headline import seconds

CAUSES: dict[Cause, str] = {
    Cause.NO_BACKEND: "no endpoint for its model was alive",
    Cause.WARMING: "the endpoints had not told yet what they serve",
    Cause.EJECTED: "the endpoints were out after failures",
    Cause.HELD: "the engines refused requests as too many",
    Cause.RETURNING: "the endpoints had just come back and were tried out first",
    Cause.STUCK: "the engines had shown no movement for long",
    Cause.SLOTS_FULL: "all slots were taken",
    Cause.ENGINE_QUEUE: "enough waited inside the engines",
    Cause.PREFILL_FULL: "the engines had enough prompts to compute",
    Cause.KV_FULL: "the engines' KV memory was full",
    Cause.PACE: "the engines were too slow per token to be given more",
    Cause.SHUNNED: "the endpoint had just refused or failed it",
    Cause.CLASS_SHARE: "the last slots were kept for tenants under their share",
    Cause.TENANT_CAP: "its tenant ran as many requests as it may",
    Cause.AFFINITY: "it was held for the endpoint that has its cache or session",
    Cause.PAUSED: "an operator had paused sending",
    Cause.TURN: "others were served first: higher bands, or flows that had got less",
}
assert CAUSES.keys() == set(Cause)

WHY_FIRST = {
    "bumped": "bumped by an operator",
    "band": "a higher band goes first",
    "promised": "a lower band, by its promised share or where this one did not fit",
    "turn": "their flow had got less for its weight",
    "order": "before it in its own flow",
    "followed": "followed a request with the same prefix",
    "overtook": "behind it in its own flow, but fitted where it did not",
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
    if told.waits:
        parts = [f"{seconds(waited.seconds)}: {CAUSES[waited.cause]} ({waited.cause})" for waited in told.waits]
        lines.append(f"Waited {seconds(told.waited_s)}. " + "; ".join(parts) + ".")
    elif told.sent is not None or told.waited_s:
        lines.append(f"Waited {seconds(told.waited_s)}.")
    if told.before_total:
        lines.append(f"{told.before_total:,} went first: " + "; ".join(map(_served, told.before)) + ".")
    lines += [
        f"After {seconds(step.at_s)} {step.endpoint or 'its endpoint'} failed it ({step.failure}): back to the queue."
        for step in told.requeues
    ]
    if told.state is State.WAITING:
        lines.append(_present(told))
    if told.sent is not None:
        lines += _sent(told)
    if told.ended_s is not None:
        reason = f": {told.reason}" if told.reason else ""
        lines.append(f"Ended {told.state} after {seconds(told.ended_s)}{reason}.")
    return lines


def _present(told: Explanation) -> str:
    closed = ", ".join(f"{count} × {cause}" for cause, count in told.closed.items())
    wait_s = told.estimated_wait_s
    return (
        f"Waits now for {told.waits_for or 'its turn'}"
        + (f" (endpoints: {closed})" if closed else "")
        + (f"; about {seconds(wait_s)} more." if wait_s is not None else "; how long cannot be told.")
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
            f" Its flow had got {sent.service:,.0f} for its weight, the turn stood at {sent.virtual_time:,.0f}."
        )
    ]
    if sent.overtaken:
        lines.append(f"It was passed over {sent.overtaken} times by others that fitted.")
    if told.first_byte_s is not None:
        lines.append(f"First byte after {seconds(told.first_byte_s)}.")
    return lines


def _served(served: Served) -> str:
    return f"{served.requests:,} of {printable(served.tenant, 40)} ({served.band}), {WHY_FIRST[served.why]}"
