"""The endpoints, sent to every edge: their list when it changes, their loads a few times a second.

An engine's key goes to processes of this gateway only; other machines have it from their own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.core.values.actions import Action
from penstock.gateway.cluster.member import Member
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.proxy.driver import Driver
from penstock.share.messages import Disowned, EndpointRow, Endpoints, LoadHeader, Loads, Unreachable


class EndpointFeed:
    """The latest reports, and their receivers."""

    def __init__(
        self,
        driver: Driver,
        endpoints: EndpointRegistry,
        catalog: Catalog,
        members: Callable[[], Iterable[Member]],
    ) -> None:
        self._driver = driver
        self._endpoints = endpoints
        self._catalog = catalog
        self._members = members
        self._rows = Endpoints([])
        self._without_keys = Endpoints([])
        self._levels = Loads([])

    def show(self, member: Member) -> None:
        """Send one edge everything."""
        self.refresh()
        member.say(self._for(member))
        member.say(self._levels)
        member.told = {row.name for row in self._rows.rows}

    def refresh(self) -> None:
        """Send all edges what has changed."""
        rows, loads, out = self._now()
        told = Endpoints(rows, self._driver.scheduler.divides)
        if told != self._rows:
            self._rows = told
            bare = [row if row.api_key is None else msgspec.structs.replace(row, api_key=None) for row in rows]
            self._without_keys = Endpoints(bare, told.divides)
            self._levels = Loads([])
            for member in self._members():
                member.say(self._for(member))
                member.told = {row.name for row in rows}
        paused, drained = self._driver.scheduler.stopped()
        levels = Loads(loads, self._driver.scheduler.paced, out, paused + drained)
        if levels != self._levels:
            self._levels = levels
            for member in self._members():
                if member.peer is not None:
                    member.say(levels)

    def heard(self, message: Unreachable | Disowned | LoadHeader) -> None:
        """Note what an edge observed at an endpoint."""
        target = self._endpoints.targets.get(message.endpoint)
        if target is None:
            return
        match message:
            case Unreachable():
                if message.down:
                    down: list[Action] = self._driver.scheduler.endpoint_down(message.endpoint, now=self._driver.now())
                    self._driver.tell(down)
                if target.unreachable is not None:
                    target.unreachable()
            case Disowned():
                if target.disowned is not None:
                    target.disowned()
            case LoadHeader():
                if target.heard_load is not None:
                    target.heard_load(message.header)

    def _for(self, member: Member) -> Endpoints:
        return self._rows if member.is_ours else self._without_keys

    def _now(self) -> tuple[list[EndpointRow], list[float | None], list[str]]:
        served = {row.name: row for row in self._driver.scheduler.served(now=self._driver.now())}
        rows: list[EndpointRow] = []
        loads: list[float | None] = []
        locator = self._endpoints.locator
        for spec, target in self._endpoints.known():
            row = served.get(spec.name)
            models = None if row is None or row.models is None else sorted(row.models)
            cut = None if locator is None else locator.cut_of(spec.name)
            rows.append(
                EndpointRow(
                    spec.name,
                    spec.url,
                    target.engine.name,
                    spec.labels,
                    None if spec.api_key is None else spec.api_key.get_secret_value(),
                    None if target.priority is None else target.priority.name,
                    models,
                    row is not None and row.serves_any,
                    self._driver.scheduler.proven(spec.name),
                    self._catalog.entries_of(spec.name),
                    spec.lmcache_instance,
                    None if cut is None else (cut.tokens, sorted(cut.adapters)),
                    self._driver.scheduler.refuses_key(spec.name),
                    None if spec.tls is None else spec.tls.model_dump(),
                    dict(target.names),
                )
            )
            loads.append(None if row is None or row.load is None else round(row.load, 2))
        return rows, loads, [row.name for row in served.values() if not row.works]
