"""A divided request: its prompt computed by one engine, its answer made by another.

The scheduler leases both at once (`core/dispatch/disaggregation.py`). Only the second one's answer goes to the client,
unless the first refuses the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from penstock.core.dispatch.disaggregation import whole_usage
from penstock.core.values.request import Usage
from penstock.gateway.openai.splice import Body

if TYPE_CHECKING:
    from penstock.core.values.actions import Dispatch
    from penstock.core.values.catalogue import Failure
    from penstock.gateway.proxy.target import Target
    from penstock.http.client.pool import Call, Headers, Sink, UpstreamError
    from penstock.http.server.server import Exchange


class Divided(Protocol):
    """A journey, as its division knows it: the answer's way, which the second half takes."""

    body: Body
    endpoint: str
    exchange: Exchange

    def ask(
        self, target: Target, name: str, rank: int | None, body: Body, *, sink: Sink | None = None, counts: bool
    ) -> Call:
        """Send a part of the request to the endpoint `name`. Returns the call; its answer goes to `sink`, if given."""

    def elapsed_s(self) -> float:
        """Returns the seconds since the request came."""

    def failed(self, failure: Failure, detail: str) -> None:
        """Report a `failure` of the endpoint asked last, or of the one that its division blames."""

    def hang_up(self) -> None: ...
    def no_answer(self) -> None: ...
    def on_error(self, error: UpstreamError) -> None:
        """Report that no answer came, because of `error`."""

    def on_response(self, status: int, headers: Headers) -> None:
        """Take the head of the client's answer: `status` and `headers`."""

    def prefilled(self, usage: Usage | None) -> None:
        """Report that the prompt is computed, with its `usage` if the engine reported it."""

    def refused(self, status: int, body: bytearray) -> None:
        """Answer with the refusal of the engine asked last."""

    def refused_by(self, target: Target, head: tuple[int, Headers], body: bytearray) -> None:
        """Answer with the refusal of `target`, in place of the answer under way."""


class Division:
    """The two halves of one journey, from its dispatch on."""

    __slots__ = ("_journey", "prefill", "rank", "since_s", "usage")

    transfer: str  #: how the KV cache is transferred, in the metrics

    def __init__(self, journey: Divided, dispatch: Dispatch) -> None:
        self._journey = journey
        self.prefill = dispatch.endpoint  #: the endpoint that computes the prompt
        self.rank = dispatch.rank  #: for the engines' own queues
        self.since_s = journey.elapsed_s()
        self.usage: Usage | None = None  #: of the first half, if reported

    def begin(self, targets: Mapping[str, Target]) -> None:
        """Ask the first engine, or both."""
        raise NotImplementedError

    def has_asked(self, endpoint: str) -> bool:  # noqa: ARG002
        """True if the decoding `endpoint` has the request already."""
        return False

    def rest(self, body: Body) -> Body:
        """Returns the body for a decoding endpoint that does not have the request yet."""
        return body

    def answers(self, status: int) -> bool:  # noqa: ARG002
        """True if the first byte, with `status`, belongs to the answer of a computed prompt."""
        return True

    def let_down(self) -> str | None:
        """Returns the endpoint to blame for a failure, if it is the decoding one; None: the one asked last."""
        return None

    def hang_up(self) -> None:
        """Stop the first engine: its work is useless or done."""

    def whole(self, usage: Usage | None) -> Usage | None:
        """Returns the usage of both halves, given that of the answer; None: unknown."""
        if usage is None or self.usage is None:
            return usage
        return whole_usage(usage, self.usage.cached_tokens, cached_told=self.usage.cached_told)
