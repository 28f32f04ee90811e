"""A request on its way in, the means of its journey, and its fallback models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.core.values.actions import Evict, Fail, Reject
from penstock.core.values.catalogue import Reason
from penstock.core.values.request import Contents
from penstock.gateway.identity.caller import Caller
from penstock.gateway.openai.body import AskUsage
from penstock.gateway.openai.fields import Peek
from penstock.gateway.openai.routes import Route
from penstock.gateway.openai.splice import Body
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.gateway.proxy.model_profiles import PLAIN, Profile
from penstock.gateway.proxy.target import Target
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from penstock.http.server.server import Exchange

if TYPE_CHECKING:
    from penstock.gateway.proxy.heartbeat import Heartbeats
    from penstock.gateway.telemetry.tracing import RequestTrace  # needs an extra


Ended = Reject | Evict | Fail

#: The model can't take any request now: another model may.
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
    """Which model is asked instead of one that can't take the request (docs/decisions/0061)?

    Each name is asked once, in order. If no model takes the request, the first one's refusal is the answer; if the
    first has no endpoint, the request waits for one after all.
    """

    __slots__ = ("_names", "_waits_after_all", "asked", "body", "first", "why")

    def __init__(self, asked: str, names: Iterable[str], body: Body) -> None:
        self.asked = asked  #: the model, as the caller named it
        self.body = body  #: as the caller sent it
        self.first: Ended | None = None  #: how the request ended at the first model
        self.why: Reason | None = None  #: of leaving the last model
        self._names = list(names)
        self._waits_after_all = False

    @property
    def patient(self) -> bool:
        """Whether the request may wait for an absent endpoint, because nothing else is left to try."""
        return self._waits_after_all

    def takes(self, ended: Ended) -> bool:
        """True if another model is asked after the request `ended` at this one."""
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
        """Returns the next model's name."""
        return self._names.pop(0)

    def answer(self, ended: Ended) -> Ended:
        """Returns the end to report, the first model's if no other could take the request."""
        if self._waits_after_all or self.first is None or ended.reason not in FALLS_BACK:
            return ended
        return self.first


class Arrival:
    """One request on its way in. Each step of `intake.py` adds what it finds out."""

    __slots__ = (
        "ask_instead",
        "asks_usage",
        "band",
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
        "remember",
        "request_id",
        "route",
        "trace",
    )

    # Once its body was parsed:
    peek: Peek
    contents: Contents
    # Once it is admitted to the queue:
    band: str
    asks_usage: AskUsage | None  # None: the caller asks for it, or it is not asked for
    remember: Callable[[bytes, str], bool] | None  # given the beginning of the answer and its endpoint
    trace: RequestTrace | None
    ask_instead: Callable[[Arrival, str], None] | None  # of the next model, if others may be asked

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
        self.inflated = inflated  # its body was packed, and has been unpacked
        self.caller = caller  # None: not identified yet
        self.body: Body = b""  # as an engine gets it
        self.named = ""  # the model, as the caller named it
        self.profile: Profile = PLAIN  # of that name
        self.model = ""  # as endpoints list it
        self.pinned: str | None = None  # the endpoint that it names
        self.fallback: Fallback | None = None  # if other models may be asked


class Means:
    """What all journeys use."""

    __slots__ = ("attempts_max", "driver", "heartbeats", "metrics", "reporting", "targets")

    def __init__(
        self,
        *,
        driver: Driver[Decides],
        targets: Mapping[str, Target],
        metrics: Metrics,
        heartbeats: Heartbeats,
        reporting: Reporting,
    ) -> None:
        self.attempts_max = 1  # `retry.max_attempts`
        self.reporting = reporting
        self.driver = driver
        self.targets = targets
        self.metrics = metrics
        self.heartbeats = heartbeats
