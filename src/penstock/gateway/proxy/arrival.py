"""A request on its way in, its id, the means of its journey, and its fallback models."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.core.values.actions import Evict, Fail, Reject
from penstock.core.values.catalogue import Reason
from penstock.core.values.request import Contents
from penstock.gateway.identity.caller import Caller
from penstock.gateway.openai.body import AskUsage, Peek
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
    from penstock.gateway.sessions.kept_answers import Keeping
    from penstock.gateway.telemetry.tracing import RequestTrace  # needs an extra


Ended = Reject | Evict | Fail
REQUEST_ID_BYTES_MAX: Final = 128
LOOKS_MAX: Final = 16  # each holds a connection to an engine, and an answer of at most 16 MiB

#: One model of a split can't take the request: another one may.
MOVES_ON: Final = frozenset({Reason.MODEL_NOT_FOUND, Reason.DRAINING, Reason.UPSTREAM_ERROR})
MOVES_MAX: Final = 8  # from models whose endpoints went: engines may come and go while a request waits
#: The model can't take any request now: another model may.
FALLS_BACK: Final = frozenset(
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
    """Which model is asked instead of one that can't take the request (docs/decisions/0061, 0113)?

    The models of a split stand in for each other: the name is asked again and leads to another one. A model that failed
    the request is not asked again; one whose endpoints went may be. Then come the fallback models, in order, each name
    once. If no model takes the request, the first one's refusal is the answer; if the first has no endpoint, the
    request waits for one after all.
    """

    __slots__ = (
        "_is_split_only", "_model", "_moves", "_names", "_now", "_others", "_waits_after_all", "asked", "first",
        "left", "why",
    )  # fmt: skip

    def __init__(self, asked: str, names: Iterable[str] = ()) -> None:
        self.asked = asked  #: the model, as the caller named it
        self.first: Ended | None = None  #: how the request ended at the first model
        self.why: Reason | None = None  #: of leaving the last model
        self.left: set[str] = set()  #: models of the split that could not take it
        self._names = list(names)
        self._is_split_only = not self._names
        self._waits_after_all = False
        self._now, self._model = asked, ""  # the name and the model that are asked
        self._others: tuple[str, ...] = ()  # the other models of its split
        self._moves = 0

    @property
    def patient(self) -> bool:
        """Whether the request may wait for an absent endpoint, because nothing else is left to try."""
        return self._waits_after_all or self._is_split_only

    @property
    def others(self) -> tuple[str, ...]:
        """The models that may serve it instead of the one that is asked now, by a split."""
        return self._others if self._moves < MOVES_MAX else ()

    def asks(self, model: str, others: tuple[str, ...]) -> None:
        """Note the model that is asked now, and the others of its split."""
        self._model, self._others = model, others

    def takes(self, ended: Ended) -> bool:
        """True if another model is asked after the request `ended` at this one."""
        self.why = ended.reason
        if self._moves_on(ended):
            self._names.insert(0, self._now)
            return True
        if self.first is None:
            self.first = ended
        if ended.reason not in FALLS_BACK or self._waits_after_all:
            return False
        if not self._names and self.first.reason is Reason.NO_ENDPOINT and not self._is_split_only:
            self._waits_after_all = True
            self._names = [self.asked]
        return bool(self._names)

    def _moves_on(self, ended: Ended) -> bool:
        """Whether another model of the split is asked."""
        if not self._others or not (ended.elsewhere or ended.reason in MOVES_ON):
            return False
        self.left.add(self._model)
        if ended.elsewhere:
            self._moves += 1
            if self.left.issuperset(self._others):
                self.left = {self._model}
        return not self.left.issuperset(self._others)

    def next(self) -> str:
        """Returns the next model's name."""
        name = self._names.pop(0)
        if name != self._now:
            self._now, self._others, self._moves, self.left = name, (), 0, set()
        return name

    def answer(self, ended: Ended) -> Ended:
        """Returns the end to report, the first model's if no other could take the request."""
        if self._waits_after_all or self.first is None or ended.reason not in FALLS_BACK:
            return ended
        return self.first


class RequestIds:
    """Gives requests their ids."""

    def __init__(self, driver: Driver[Decides]) -> None:
        self._driver = driver
        self._serial = itertools.count(1)
        # 48 random bits, so that ids of two processes differ: engines take equal ids for one request.
        self._ours = secrets.token_hex(6).encode()

    def of(self, exchange: Exchange) -> bytes:
        """Returns the caller's `x-request-id`, or a new id if that is missing, too long or not printable."""
        given = exchange.lookup.get(b"x-request-id")
        if given and len(given) <= REQUEST_ID_BYTES_MAX and given.isascii() and given.decode().isprintable():
            return given
        return b"req-%b-%x" % (self._ours, next(self._serial))

    def unique(self, request_id: bytes) -> str:
        """Returns the scheduler's id of a request: the caller's own, unless that one is in use."""
        name = request_id.decode()
        return f"{name}~{next(self._serial)}" if name in self._driver.under_way else name


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
        "keeping",
        "model",
        "named",
        "peek",
        "pinned",
        "profile",
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
    keeping: Keeping | None  # if its engine keeps the answer
    trace: RequestTrace | None
    ask_instead: Callable[[Arrival, str], None] | None  # of the next model, if others may be asked

    def __init__(
        self,
        exchange: Exchange,
        route: Route,
        request_id: bytes,
        caller: Caller | None = None,
    ) -> None:
        self.exchange = exchange
        self.route = route
        self.request_id = request_id
        self.inflated = False  # its body was packed, and has been unpacked
        self.caller = caller  # None: not identified yet
        self.body: Body = b""  # as an engine gets it
        self.named = ""  # the model, as the caller named it
        self.profile: Profile = PLAIN  # of that name
        self.model = ""  # as endpoints list it
        self.pinned: str | None = None  # the endpoint that it names
        self.fallback: Fallback | None = None  # if other models may be asked


class Means:
    """What all journeys use."""

    __slots__ = (
        "attempts_max", "background_s", "driver", "events", "heartbeats", "looks", "metrics", "reporting", "targets",
    )  # fmt: skip

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
        self.background_s = 0.0  # `timeouts.background`
        self.looks = asyncio.Semaphore(LOOKS_MAX)  # questions after background responses at one time
        self.reporting = reporting
        self.driver = driver
        self.targets = targets
        self.metrics = metrics
        self.events = metrics.events
        self.heartbeats = heartbeats
