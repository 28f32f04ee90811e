"""What is known of a request on its way in, and what does its journey need to go?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

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


class Arrival:
    """One request on its way in. Each verb of `intake.py` adds what it finds out."""

    __slots__ = (
        "body",
        "caller",
        "contents",
        "exchange",
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


class Means:
    """What all journeys use."""

    __slots__ = ("driver", "heartbeats", "metrics", "targets")

    def __init__(
        self, *, driver: Driver[Decides], targets: Mapping[str, Target], metrics: Metrics, heartbeats: Heartbeats
    ) -> None:
        self.driver = driver
        self.targets = targets
        self.metrics = metrics
        self.heartbeats = heartbeats
