"""How are the parts of files and batches put together from the settings? All of it happens here."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable

from penstock import clock
from penstock.batch.api.batches import Batches
from penstock.batch.api.calls import Calls
from penstock.batch.api.dispatch import GatewayPort
from penstock.batch.api.files import Files
from penstock.batch.api.metrics import BatchMetrics
from penstock.batch.api.routes import BatchRoutes
from penstock.batch.manager import Manager
from penstock.batch.runner import Runner
from penstock.batch.store.thread import StoreThread
from penstock.batch.values import Quota
from penstock.config.sections.batch import BatchSection
from penstock.core.values.catalogue import Reason
from penstock.gateway.identity.callers import Callers
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.telemetry.metrics import Metrics
from penstock.http.server.server import Exchange


class BatchService:
    """Files and batches as a whole: the part that the gateway starts, drains and closes."""

    def __init__(self, routes: BatchRoutes, calls: Calls, manager: Manager) -> None:
        self.routes = routes
        self.manager = manager
        self._calls = calls

    def start(self) -> None:
        self.manager.start()

    def drain(self) -> None:
        """Refuse new uploads and start no more items. Waiting items go back to the store, running ones may end."""
        self.routes.draining = True
        self.manager.stop()

    async def drained(self) -> None:
        """Wait until the items that run have ended. Call `drain` before."""
        await self.manager.drained()

    async def close(self) -> None:
        await self._calls.close()
        await self.manager.close()


def batch_service(
    settings: BatchSection,
    store: StoreThread,
    *,
    port: GatewayPort,
    driver: Driver,
    callers: Callers,
    refused: Callable[[Reason, Exchange], None],
    metrics: Metrics,
) -> BatchService:
    """Returns files and batches of a gateway, kept in the `store`. `refused` counts refusals."""
    limits = settings.limits
    quota = Quota(files=limits.files, bytes=limits.bytes, batches=limits.batches, items=limits.items)
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    runner = Runner(store, port, name=name, now=driver.now)
    manager = Manager(store, runner, port, settings, wall=clock.wall, now=driver.now)
    files = Files(store, settings, quota, runner=name, urls=port.takes, wall=clock.wall)
    batches = Batches(store, manager, quota, urls=port.takes, keep_s=settings.keep, wall=clock.wall)
    calls = Calls(refused)
    metrics.add_sources([BatchMetrics(manager, runner, store)])
    return BatchService(BatchRoutes(calls, callers, files, batches, now=driver.now), calls, manager)
