"""A worker's endpoints: a transport for each one that the decider's registry has.

A transport that was replaced is closed when its requests have ended. A removed one has no requests any more, because
the registry keeps an endpoint as long as any worker has a request there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import msgspec

from penstock.config.model import Settings
from penstock.config.sections.endpoint_tls import EndpointTls
from penstock.engines.base import Model, Priority
from penstock.engines.openai import OPENAI
from penstock.engines.recognise import ENGINES
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.factory import target_at, trust, upstream_timeouts
from penstock.gateway.kv_cache.choice import locator
from penstock.gateway.kv_cache.locator import BlockCut, Locator
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.target import Target
from penstock.gateway.telemetry.metrics import Metrics
from penstock.http.client.pool import UpstreamTimeouts
from penstock.share.edge import Edge
from penstock.share.messages import Aside, Disowned, EndpointRow, LoadHeader, Unreachable

GONE_S = 1.0  # for requests without a lease at an endpoint that was removed
QUIET_LOOK_S = 0.1  # between checks whether a replaced transport is idle


class WorkerTargets:
    """`targets` is shared with the parts that send to them."""

    def __init__(
        self, driver: Driver[Edge], *, catalog: Catalog, metrics: Metrics, say: Callable[[Aside], None]
    ) -> None:
        self._driver = driver
        self._timeouts = UpstreamTimeouts()
        self._catalog = catalog
        self._metrics = metrics
        self._say = say
        self.targets: dict[str, Target] = {}
        self._locating: object = None  # the settings that the locator was made by
        self.locator: Locator | None = None  #: finds cached prompts, if configured
        self._closing: asyncio.Task[None] | None = None  # closes a locator that was replaced
        self._rows: dict[str, EndpointRow] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._leaving: list[tuple[float, Target]] = []
        self._look: asyncio.TimerHandle | None = None

    def keys(self, rows: list[EndpointRow]) -> None:
        """Note the engines' API keys of this gateway, because keys do not travel between machines."""
        self._keys = {(row.name, row.url): row.api_key for row in rows if row.api_key is not None}

    def know(self, rows: list[EndpointRow]) -> None:
        """Replace the endpoints."""
        rows = [self._with_key(row) for row in rows]
        for name in self._rows.keys() - {row.name for row in rows}:
            self._drop(name, for_s=GONE_S)
            self._catalog.forgotten(name)
            self._metrics.endpoint_removed(name)
            del self._rows[name]
        for row in rows:
            before = self._rows.get(row.name)
            if before is None or _place(before) != _place(row):
                if before is not None:
                    self._drop(row.name)
                else:
                    self._metrics.endpoint_added(row.name, row.url)
                self.targets[row.name] = target = self._made(row)
                self._locate(row, target)
            target = self.targets[row.name]
            target.engine, target.names = ENGINES.get(row.engine, OPENAI), row.names
            target.priority = None if row.priority is None else Priority[row.priority]
            if before is None or before.entries != row.entries:
                self._list(row)
            if self.locator is not None:
                self.locator.cuts(row.name, _cut(row))
            self._rows[row.name] = row

    def follow(self, settings: Settings) -> None:
        """Follow the settings of time-outs, certificates and locality."""
        self._timeouts = upstream_timeouts(settings)
        for name, target in self.targets.items():
            target.upstream.retime(self._timeouts)
            if (context := trust(name, _tls(self._rows[name]))) is not None:
                target.upstream.retrust(context)
        locating = settings.routing.locality, settings.routing.lmcache
        if locating != self._locating:
            self._locating = locating
            self._relocate(locator(settings, self._driver, self._catalog.names_of))

    def moved(self) -> list[str]:
        """Returns endpoints whose answers have grown since the last call."""
        return [name for name, target in self.targets.items() if target.took_movement()]

    def close(self) -> None:
        """Close all connections."""
        if self._look is not None:
            self._look.cancel()
        for target in (*self.targets.values(), *(target for _, target in self._leaving)):
            target.upstream.close()
        self._relocate(None)

    def _with_key(self, row: EndpointRow) -> EndpointRow:
        key = self._keys.get((row.name, row.url))
        return row if key is None or row.api_key is not None else msgspec.structs.replace(row, api_key=key)

    def _made(self, row: EndpointRow) -> Target:
        name = row.name
        target = target_at(name, row.url, row.labels, row.api_key, _tls(row), timeouts=self._timeouts)

        def unreachable() -> None:
            target.forget()
            self._say(Unreachable(name))

        target.unreachable = unreachable
        target.disowned = lambda: self._say(Disowned(name))
        target.heard_load = lambda header: self._say(LoadHeader(name, header))
        return target

    def _list(self, row: EndpointRow) -> None:
        models = [Model(str(entry.get("id", "")), entry) for entry in row.entries]
        self._catalog.listed(row.name, models)
        self._metrics.models_known(model.id for model in models)

    def _relocate(self, locator: Locator | None) -> None:
        before, self.locator = self.locator, locator
        for name, row in self._rows.items():
            self._locate(row, self.targets[name])
        if before is not None:
            self._closing = asyncio.get_running_loop().create_task(before.close())

    def _locate(self, row: EndpointRow, target: Target) -> None:
        if self.locator is not None:
            self.locator.endpoint_known(row.name, row.url, target, lmcache_instance=row.lmcache_instance)
            self.locator.cuts(row.name, _cut(row))

    def _drop(self, name: str, *, for_s: float = math.inf) -> None:
        """Stop using a target; its running requests may end."""
        if self.locator is not None:
            self.locator.endpoint_removed(name)
        self._leaving.append((asyncio.get_running_loop().time() + for_s, self.targets.pop(name)))
        if self._look is None:
            self._sweep()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        left: list[tuple[float, Target]] = []
        for until, target in self._leaving:
            if target.upstream.busy and now < until:
                left.append((until, target))
            else:
                target.upstream.close()
        self._leaving = left
        self._look = loop.call_later(QUIET_LOOK_S, self._sweep) if left else None


def _place(row: EndpointRow) -> tuple[object, ...]:
    """Returns the properties that make it another endpoint if they change."""
    return row.url, row.api_key, row.labels, row.lmcache_instance, row.tls


def _tls(row: EndpointRow) -> EndpointTls | None:
    return None if row.tls is None else EndpointTls.model_validate(row.tls)


def _cut(row: EndpointRow) -> BlockCut | None:
    return None if row.block_cut is None else BlockCut(*row.block_cut)
