"""An explanation in sentences: the same on the page, in `penstock explain` and in the API."""

from __future__ import annotations

from penstock.config.sections.tenancy import ANONYMOUS
from penstock.core.explain.explanation import Explanation, Requeued, Sent, Served, SessionWait
from penstock.core.values.catalogue import Cause, Failure
from penstock.core.values.lifecycle import State
from penstock.core.values.settings import SHORT_WAIT_S
from penstock.gateway.admin.phrases import SIZED_BY, count, percent, printable, seconds, short_name
from penstock.gateway.identity.caller import PART_OF
from penstock.gateway.openai.errors import limit_name

WHY_FIRST = {
    "bumped": "bumped by an operator",
    "band": "a higher band goes first",
    "promised": "a lower band, by its promised share or because this one did not fit",
    "turn": "that tenant had got less for its weight",
    "order": "before it in its own flow (the same tenant and model)",
    "overtook": "behind it in its own flow (the same tenant and model), but fitted when this one did not",
}


def story(told: Explanation) -> list[str]:
    """What happened to a request, a sentence each."""
    estimated = " estimated" if told.ended_s is None else ""
    tokens = f"{told.prompt_tokens:,} prompt and {told.output_tokens:,} output tokens{estimated}"
    origin = f"from {short_name(told.tenant)}, band {told.band}, for {short_name(told.model)}"
    lines = [f"Came {seconds(told.came_s_ago)} ago {origin}: {tokens}."]
    if told.instead_of:
        lines.append(f"{short_name(told.instead_of)} was asked for and could not take it: this is its fallback.")
    if told.waits or told.sent is not None or told.waited_s:
        parts = "; ".join(f"{seconds(w.seconds)}: {w.cause.sentence} ({w.cause})" for w in told.waits)
        lines.append(f"Waited {seconds(told.waited_s)}." + (f" {parts}." if parts else ""))
    if told.before_total:
        lines.append(f"{told.before_total:,} went first: {'; '.join(_served(one, told) for one in told.before)}.")
    lines += [_requeued(step) for step in told.requeues]
    if told.state is State.WAITING:
        lines.append(f"Waits now: {'; '.join([*_causes_now(told), _left(told)])}.")
        if told.session is not None:
            lines += _session(told.session, told)
    if told.tried:
        lines.append("It was forecast to miss its deadline, and sent anyway to measure the present wait.")
    if told.sent is not None:
        lines += _sent(told, told.sent)
    if told.first_byte_s is not None:
        lines.append(f"First byte after {seconds(told.first_byte_s)}.")
    if told.ended_s is not None:
        reason = f": {told.reason.sentence} ({told.reason})" if told.reason else ""
        if told.limit is not None:
            reason += f", {limit_name(told.limit)}: {told.limit.most:,}"
        lines.append(f"Ended {told.state} after {seconds(told.ended_s)}{reason}.")
    return lines


def _session(session: SessionWait, told: Explanation) -> list[str]:
    """Which session waits for memory, and what the bound on that costs."""
    name = f"turn {session.turn} of session {short_name(session.session)}"
    if session.stopped:
        return [f"It is {name}, which an operator paused."]
    fits = f"its {session.tokens:,} tokens do not fit beside {count(session.beside, 'session')}"
    expected = "" if told.estimated_wait_s is None else f"; expected {seconds(told.estimated_wait_s)}"
    bound = f"No session waits much longer than {seconds(session.wait_s_max)} (`sessions.wait`)"
    costs = f"that costs {percent(session.price)} of all prefill now"
    if session.wait_s_max > SHORT_WAIT_S:
        costs += f", and {SHORT_WAIT_S:.0f} s would cost {percent(session.price_of_minute)}"
    return [f"It is {name}: {fits}{expected}.", f"{bound}; {costs}."]


def _causes_now(told: Explanation) -> list[str]:
    """The present cause, and those for which its endpoints are closed, if they are others."""
    cause, closed = told.waits_for, dict(told.closed)
    first = "the cause is not known" if cause is None else f"{cause.sentence} ({cause})"
    if cause in closed:
        first += f", at {count(closed.pop(cause), 'endpoint')}"
    others = [f"at {count(at, 'endpoint')} {other.sentence}" for other, at in closed.items()]
    found = told.slots_by if Cause.SLOTS_FULL in told.closed else {}
    return [first, *others, *(f"{count(at, 'size')} found by {SIZED_BY[judge]}" for judge, at in found.items())]


def _left(told: Explanation) -> str:
    """The rest of its wait. The forecast knows only present work: what higher bands send later comes first, too."""
    if told.estimated_wait_s is None:
        return "unknown how long"
    left = seconds(told.estimated_wait_s)
    if any(served.why == "band" for served in told.before):
        return f"at least {left} more, and as long as higher bands keep sending"
    return f"about {left} more"


def _requeued(step: Requeued) -> str:
    at, code = f"After {seconds(step.at_s)} at {step.endpoint or 'its endpoint'}", step.failure
    row = Failure(code) if code in set(Failure) else Cause(code)
    return f"{at}: {row.sentence} ({code}). Back in the queue."


def _sent(told: Explanation, sent: Sent) -> list[str]:
    """Its endpoint and the reason, its place in turn, and the engine that answers it."""
    line = f"Sent after {seconds(sent.at_s)} to {short_name(sent.endpoint)}, one of {sent.open_endpoints} open"
    if sent.candidates:  # not of a request that another scheduler sent
        chosen, *others = sent.candidates
        if chosen.leases is not None:
            line += f": {chosen.leases} of {chosen.slots} slots taken, {chosen.prefill_tokens:,} prompt tokens queued"
        if chosen.cached_tokens:
            line += f", {chosen.cached_tokens:,} of its prompt tokens cached there"
        if rest := ", ".join(f"{o.score:.3g} at {printable(o.endpoint, 40)}" for o in others if o.score is not None):
            line += f". Chosen by {sent.scored_by}: {chosen.score or 0:.3g} there, {rest}"
    first = told.flow[:1]
    flow = (
        "tenant"
        if first in ([told.tenant], [PART_OF.format(told.tenant)])
        else "part"
        if first == [PART_OF.format(ANONYMOUS)]
        else "flow"
    )
    stood = f"this one stood at {sent.service:,.0f}, the one served last at {sent.virtual_time:,.0f}"
    lines = [f"{line}. The next turn in a band goes to the {flow} that got least for its weight: {stood}."]
    if sent.overtaken:
        lines.append(f"It was passed over {sent.overtaken} times by others that fitted or were cached.")
    if sent.fallback is not None:
        lines.append(f"The proxy got no answer there, and sent it to its fallback {short_name(sent.fallback)}.")
    if sent.decode_endpoint is not None:
        answers = short_name(sent.decode_endpoint)
        if sent.decode_at_s is None:
            lines.append(f"Only its prompt is computed there; {answers} keeps a slot to answer it.")
        else:
            lines.append(f"Its prompt was computed after {seconds(sent.decode_at_s)}; then it went on to {answers}.")
    return lines


def _served(served: Served, told: Explanation) -> str:
    why = WHY_FIRST[served.why]
    if served.why == "turn" and served.tenant == told.tenant:
        why = "another flow of this tenant (user or model), which had got less for its weight"
    return f"{served.requests:,} of {printable(served.tenant, 40)} ({served.band}), {why}"
