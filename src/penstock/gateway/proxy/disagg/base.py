"""A request that is divided: its prompt computed at one engine, its answer made by another.

The scheduler leases both at once (`core/dispatch/disaggregation.py`) and is told when the prompt is computed; how
engines work together is their own, in two forms: one after the other (`sequential.py`), or both at once
(`concurrent.py`). Whichever it is, only the second one's answer goes to the client, unless the first refuses the
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.dispatch.disaggregation import whole_usage
from penstock.core.values.request import Usage
from penstock.gateway.openai.splice import Body

if TYPE_CHECKING:
    from penstock.core.values.actions import Dispatch
    from penstock.gateway.proxy.journey import QueuedJourney
    from penstock.gateway.proxy.target import Target


class Division:
    """The two halves of one journey, from its dispatch on."""

    __slots__ = ("_journey", "prefill", "rank", "since_s", "usage")

    transfer: str  #: how the KV comes to who answers, as the metrics have it

    def __init__(self, journey: QueuedJourney, dispatch: Dispatch) -> None:
        self._journey = journey
        self.prefill = dispatch.endpoint  #: the endpoint that computes the prompt
        self.rank = dispatch.rank  #: among those that wait at the engines
        self.since_s = journey.elapsed_s()
        self.usage: Usage | None = None  #: of the first half, where its engine told it

    def begin(self, targets: Mapping[str, Target]) -> None:
        """Ask whom there is to ask, now that the leases are taken."""
        raise NotImplementedError

    def has_asked(self, endpoint: str) -> bool:  # noqa: ARG002
        """True if `endpoint`, which is leased to answer now that the prompt is computed, has the request already."""
        return False

    def rest(self, body: Body) -> Body:
        """Returns what to send to an endpoint that answers and does not have the request yet."""
        return body

    def answers(self, status: int) -> bool:  # noqa: ARG002
        """True if the first byte that came, with `status`, is of an answer to a prompt that was computed."""
        return True

    def let_down(self) -> str | None:
        """Returns who is to blame for a failed journey: the endpoint that was to answer; None: the one that was asked
        last.
        """
        return None

    def hang_up(self) -> None:
        """Stop what the first engine does: it is of no use any more, or is done."""

    def whole(self, usage: Usage | None) -> Usage | None:
        """Returns what both halves cost together, by what the answer tells as `usage`; None if it tells nothing."""
        if usage is None or self.usage is None:
            return usage
        return whole_usage(usage, self.usage.cached_tokens, cached_told=self.usage.cached_told)
