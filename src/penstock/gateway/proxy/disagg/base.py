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
        """The leases are taken: ask whom there is to ask."""
        raise NotImplementedError

    def has_asked(self, endpoint: str) -> bool:  # noqa: ARG002
        """The prompt is computed, and this endpoint leased to answer. Whether it has the request already."""
        return False

    def rest(self, body: Body) -> Body:
        """What to send to who answers and does not have the request yet."""
        return body

    def answers(self, status: int) -> bool:  # noqa: ARG002
        """The first byte of an answer came. Whether it is one to a prompt that was computed."""
        return True

    def let_down(self) -> str | None:
        """The journey failed. By whom, where that was the one who answers, while the prompt was being computed."""
        return None

    def hang_up(self) -> None:
        """What the first engine does is of no use any more, or is done."""

    def whole(self, usage: Usage | None) -> Usage | None:
        """What both halves cost together, from what the answer tells."""
        if usage is None or self.usage is None:
            return usage
        return whole_usage(usage, self.usage.cached_tokens, cached_told=self.usage.cached_told)
