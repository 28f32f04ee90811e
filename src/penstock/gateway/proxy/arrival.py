"""What is known of a request on its way in, what does its journey need, and where else may it go?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.core.values.actions import Evict, Fail, Reject
from penstock.core.values.catalogue import Reason
from penstock.core.values.request import Contents
from penstock.gateway.identity.caller import Caller
from penstock.gateway.openai.fields import Peek
from penstock.gateway.openai.routes import Route
from penstock.gateway.openai.splice import Body
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.proxy.model_profiles import PLAIN, Profile
from penstock.gateway.proxy.target import Target
from penstock.gateway.telemetry.metrics import Metrics
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.proxy.heartbeat import Heartbeats


Ended = Reject | Evict | Fail

#: That a model can't take a request now, whatever the request is: another model may.
FALLS_BACK = frozenset(
    {
        Reason.MODEL_NOT_FOUND,
        Reason.NO_ENDPOINT,
        Reason.QUEUE_FULL,
        Reason.DEADLINE_INFEASIBLE,
        Reason.OVERLOAD,
        Reason.DISPLACED,
        Reason.UPSTREAM_ERROR,
    }
)


class Fallback:
    """Which model is asked instead, where the one that a caller asked for can't take its request (docs/decisions/0061)?

    A counter that is closed, or whose queue is full, sends its customer to the next one that the house names; if none
    takes the customer, the first one's word stands. Each name is asked once, in order. Where the model that was asked
    for has no endpoint and no other took the request, it waits there after all.
    """

    __slots__ = ("_names", "_waits_after_all", "asked", "body", "first", "why")

    def __init__(self, asked: str, names: Iterable[str], body: Body) -> None:
        self.asked = asked  #: the model, as the caller said it
        self.body = body  #: as the caller sent it
        self.first: Ended | None = None  #: what became of it at the model that was asked for
        self.why: Reason | None = None  #: for which it left the last model
        self._names = list(names)
        self._waits_after_all = False

    @property
    def patient(self) -> bool:
        """Whether the request may wait for an endpoint that is not there: nothing else is left to try."""
        return self._waits_after_all

    def takes(self, ended: Ended) -> bool:
        """True if another model is to be asked, for what became of the request at this one."""
        if self.first is None:
            self.first = ended
        if ended.reason not in FALLS_BACK or self._waits_after_all:
            return False
        if not self._names and self.first.reason is Reason.NO_ENDPOINT:
            self._waits_after_all = True
            self._names = [self.asked]
        self.why = ended.reason
        return bool(self._names)

    def next(self) -> str:
        """Returns the name of the model that is asked next."""
        return self._names.pop(0)

    def answer(self, ended: Ended) -> Ended:
        """Returns what the caller is told, where no other model is asked: what the first one said, if none can."""
        if self._waits_after_all or self.first is None or ended.reason not in FALLS_BACK:
            return ended
        return self.first


class Arrival:
    """One request on its way in. Each verb of `intake.py` adds what it finds out."""

    __slots__ = (
        "body",
        "caller",
        "contents",
        "exchange",
        "fallback",
        "inflated",
        "model",
        "named",
        "peek",
        "pinned",
        "profile",
        "request_id",
        "route",
    )

    # Once its body was parsed:
    peek: Peek
    contents: Contents

    def __init__(
        self,
        exchange: Exchange,
        route: Route,
        request_id: bytes,
        caller: Caller | None = None,
        *,
        inflated: bool = False,
    ) -> None:
        self.exchange = exchange
        self.route = route
        self.request_id = request_id
        self.inflated = inflated  # its body came packed, and is not any more
        self.caller = caller  # None: not identified yet
        self.body: Body = b""  # as an engine gets it
        self.named = ""  # the model, as the caller says it
        self.profile: Profile = PLAIN  # of that name
        self.model = ""  # as endpoints list it
        self.pinned: str | None = None  # the endpoint that it names
        self.fallback: Fallback | None = None  # where other models may be asked


class Means:
    """What all journeys use."""

    __slots__ = ("attempts_max", "driver", "heartbeats", "metrics", "targets")

    def __init__(
        self, *, driver: Driver[Decides], targets: Mapping[str, Target], metrics: Metrics, heartbeats: Heartbeats
    ) -> None:
        self.attempts_max = 1  # `retry.max_attempts`
        self.driver = driver
        self.targets = targets
        self.metrics = metrics
        self.heartbeats = heartbeats
