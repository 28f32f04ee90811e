"""`GET /autoscale` and `/autoscale/MODEL`: the input of an autoscaler of the engines, also as series.

It has only numbers, so it is as open as `/metrics`. An unknown model is answered with zeros, because a scaler asks
before the first engine exists. The rule is the core's (`endpoints_wanted.py`), fed here once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from penstock.config.model import Settings
from penstock.core.explain.endpoints_wanted import EndpointsWanted, ModelLoad, ScalingTargets
from penstock.core.values.catalogue import Reason
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.refusals import Refusals
from penstock.gateway.telemetry.exposition import Levels
from penstock.http.server.server import Exchange

PATH = "/autoscale"
INTERVAL_S = 1.0
MODELS_MAX = 500  # that are followed; the others are answered with zeros
BODY_BYTES_MAX = 4096  # of a query: ignored
_NOBODY = ModelLoad(waiting=0, running=0, slots=0, endpoints=0, arrived_total=0, ended_total=0, served_s_total=0.0)
_SERIES: tuple[tuple[str, str, str], ...] = (
    ("model_waiting", "waiting", "Requests that wait for a model."),
    ("model_running", "running", "Requests that endpoints have for a model."),
    ("model_slots", "slots", "Slots of the endpoints in service that serve a model."),
    ("model_endpoints", "endpoints", "Endpoints in service that serve a model."),
    (
        "saturation_ratio",
        "saturation",
        "The share of a model's slots in use; 1 if requests wait and there are no slots.",
    ),
    ("backlog_seconds", "backlog_seconds", "Time until a model's queued requests are dispatched at the current rate."),
    ("wait_estimate_seconds", "wait_estimate_seconds", "Estimated wait of a new request for a model."),
    ("endpoints_wanted", "endpoints_wanted", "Endpoints that it takes to serve a model in time."),
    ("endpoints_needed", "endpoints_needed", "The same, not rounded, for adding up several gateways' shares."),
)


class Autoscale:
    """Follows every model that is served or asked for."""

    def __init__(self, driver: Driver, catalog: Catalog, refusals: Refusals) -> None:
        self._driver = driver
        self._catalog = catalog
        self._refuse = refusals.refuse
        self._targets = ScalingTargets()
        self._rules: dict[str, EndpointsWanted] = {}
        self._loads: dict[str, ModelLoad] = {}

    def follow(self, settings: Settings) -> None:
        its = settings.autoscale
        self._targets = ScalingTargets(
            target_wait_s=its.target_wait, saturation=its.saturation, start_s=its.start, keep_s=its.keep
        )
        for rule in self._rules.values():
            rule.targets = self._targets

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(INTERVAL_S)

    def look(self) -> None:
        """Feed the rules. Forget models that are no longer served or wanted."""
        now = self._driver.now()
        self._loads = self._driver.scheduler.loads(now=now)
        for name, load in self._loads.items():
            rule = self._rules.get(name)
            if rule is None:
                if not (load.waiting or load.running or load.endpoints) or len(self._rules) >= MODELS_MAX:
                    continue
                rule = self._rules[name] = EndpointsWanted(self._targets)
            rule.note(load, now)
        for name in [name for name in self._rules if name not in self._loads]:
            del self._rules[name]
        for name, rule in list(self._rules.items()):
            if not self._loads[name].endpoints and not rule.wanted:
                del self._rules[name]

    # --- as a part of the paths -----------------------------------------------------------------------------------

    @staticmethod
    def owns(path: str) -> bool:
        return path == PATH or path.startswith(PATH + "/")

    def begin(self, exchange: Exchange) -> int:
        """Refuse other methods. Returns the limit on the body."""
        if exchange.method not in ("GET", "HEAD"):
            self._refuse(exchange, Reason.METHOD_NOT_ALLOWED, extra=[(b"allow", b"GET, HEAD")])
        return BODY_BYTES_MAX

    def complete(self, exchange: Exchange) -> None:
        path = exchange.target_path
        if path in (PATH, PATH + "/"):
            answer: dict[str, Any] = {"models": [self.row(name) for name in self._rules]}
        else:
            name = unquote(path.removeprefix(PATH + "/"))
            answer = self.row(self._catalog.aliases.get(name, name))
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        exchange.respond(200, headers, msgspec.json.encode(answer))

    def row(self, name: str) -> dict[str, Any]:
        """How a model stands, every value a number but the name."""
        rule, load = self._rules.get(name), self._loads.get(name, _NOBODY)
        return {
            "model": name,
            "waiting": load.waiting,
            "running": load.running,
            "slots": load.slots,
            "endpoints": load.endpoints,
            "saturation": 0.0 if rule is None else round(rule.saturation, 4),
            "backlog_seconds": 0.0 if rule is None else round(rule.backlog_s, 3),
            "wait_estimate_seconds": 0.0 if rule is None else round(rule.wait_s, 3),
            "endpoints_wanted": 0 if rule is None else rule.wanted,
            "endpoints_needed": 0.0 if rule is None else round(rule.wanted_share, 3),
        }

    # --- as series ------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        rows = [self.row(name) for name in self._rules]
        for series, key, text in _SERIES:
            yield from Levels(f"penstock_{series}", text, ["model"], _column(rows, key)).lines()


def _column(rows: list[dict[str, Any]], key: str) -> Callable[[], list[tuple[tuple[str, ...], float]]]:
    return lambda: [((row["model"],), float(row[key])) for row in rows]
