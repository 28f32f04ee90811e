"""What happened to a request, as values for those who count and log it: when it was sent, and how it ended.

A journey reports each of them in one call, here, and knows none of those who read them. They wait in a list, and
observers fold it every `FOLD_S`, at once when it is full, and before anybody reads what is counted: so a page, a report
or a worker's counts lack nothing that has happened. A `kill -9` loses what waits.

What decides about other requests (shares, quotas, estimates) does not wait: the scheduler settles it in its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from penstock import clock

if TYPE_CHECKING:
    from penstock.core.values.catalogue import Outcome, Reason
    from penstock.core.values.request import Usage
    from penstock.core.values.rows import LimitReached
    from penstock.gateway.identity.caller import Caller

FOLD_S: Final = 0.1
WAITING_MAX: Final = 256  # of each kind: a millisecond or two of the loop's time
FIRST_TOKENS_MAX: Final = 512  # for the quantiles: the latest

Sent = tuple[str, float]  #: to an endpoint; Penstock's own time before that, in seconds


class End:
    """A request that was in the hands of the scheduler, when it was over. Times are on the monotonic clock."""

    __slots__ = (
        "attempts",
        "band",
        "begun_s",
        "caller",
        "client",
        "completion_tokens",
        "ended_s",
        "endpoint",
        "estimated_completion",
        "estimated_prompt",
        "first_token_s",
        "instead_of",
        "limit",
        "method",
        "model",
        "outcome",
        "path",
        "reason",
        "request_id",
        "started_s",
        "status",
        "streamed",
        "usage",
        "waited_s",
    )

    def __init__(  # noqa: PLR0917
        self,
        request_id: str,
        client: str,
        method: str,
        path: str,
        status: int,
        model: str,
        instead_of: str,
        streamed: bool,  # noqa: FBT001
        caller: Caller,
        band: str,
        endpoint: str,
        attempts: int,
        outcome: Outcome,
        reason: Reason | None,
        limit: LimitReached | None,
        started_s: float,
        begun_s: float | None,
        ended_s: float,
        waited_s: float,
        usage: Usage | None,
        estimated_prompt: int,
        estimated_completion: int,
    ) -> None:
        self.request_id = request_id
        self.client = client  #: its address; "": unknown
        self.method = method
        self.path = path
        self.status = status  #: 0: it got none
        self.model = model
        self.instead_of = instead_of  #: the model that was asked for, if another one answered
        self.streamed = streamed
        self.caller = caller
        self.band = band
        self.endpoint = endpoint  #: where it was sent last; "": nowhere
        self.attempts = attempts  #: how often it was dispatched
        self.outcome = outcome
        self.reason = reason
        self.limit = limit  #: that refused it
        self.started_s = started_s
        self.begun_s = begun_s  #: when its answer began to pass, an error too; None: there was none
        #: The first token of a stream; None: it had none, or was an error.
        self.first_token_s = begun_s if streamed and status < 300 else None
        self.ended_s = ended_s
        self.waited_s = waited_s  #: in the queue, all visits together
        self.usage = usage  #: as its engine reported it
        self.estimated_prompt = estimated_prompt  #: tokens, beside those of the usage
        self.estimated_completion = estimated_completion
        self.completion_tokens = estimated_completion + (0 if usage is None else usage.completion_tokens)


class EndObserver(Protocol):
    """Counts or logs what happened."""

    def fold(self, sent: Sequence[Sent], ended: Sequence[End], wall_s: float) -> None:
        """Take what happened since the last call. `wall_s` and a time of `End` are Unix time."""


class RequestEvents:
    """What happened and is not folded yet. Use it on a running event loop."""

    __slots__ = ("_ended", "_now", "_sent", "_timer", "_wall", "came", "first_tokens", "observers")

    def __init__(
        self, *observers: EndObserver, now: Callable[[], float] = clock.now, wall: Callable[[], float] = clock.wall
    ) -> None:
        self._now = now
        self._wall = wall
        self._sent: list[Sent] = []
        self._ended: list[End] = []
        self._timer: asyncio.TimerHandle | None = None
        self.observers = list(observers)
        self.came: Callable[[str], None] | None = None  #: called with the model of each request; None: nobody asks
        self.first_tokens: deque[float] = deque(maxlen=FIRST_TOKENS_MAX)  #: seconds until streams began, lately

    def sent(self, endpoint: str, overhead_s: float) -> None:
        """A request goes to an engine."""
        self._sent.append((endpoint, overhead_s))
        if self._timer is None or len(self._sent) >= WAITING_MAX:
            self._due()

    def ended(self, end: End) -> None:
        """A request is over."""
        self._ended.append(end)
        if self._timer is None or len(self._ended) >= WAITING_MAX:
            self._due()

    def fold(self) -> None:
        """Have observers take what waits, now."""
        sent, ended = self._sent, self._ended
        if not sent and not ended:
            return
        self._sent, self._ended = [], []
        wall_s = self._wall() - self._now()
        for observer in self.observers:
            observer.fold(sent, ended, wall_s)

    def _due(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FOLD_S, self._fire)
        else:
            self.fold()

    def _fire(self) -> None:
        self._timer = None
        self.fold()
