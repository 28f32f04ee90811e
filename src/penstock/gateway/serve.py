"""How the gateway lives: start, run, drain, stop, top to bottom."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from typing import TYPE_CHECKING

from penstock.batch.api.wiring import BatchService
from penstock.batch.store.thread import StoreThread
from penstock.config.effect import open_warnings
from penstock.config.model import LimitsSection
from penstock.gateway import early_signals
from penstock.gateway.admin.own_token import OwnToken
from penstock.gateway.admin.watch import Watch
from penstock.gateway.builtin.autoscale import Autoscale
from penstock.gateway.certificate import Certificate
from penstock.gateway.endpoints.discovery.base import Discovery
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.fitness import at_operators, cannot_listen
from penstock.gateway.identity.tokens.accepted import AcceptedTokens
from penstock.gateway.keys.book import KeyBook
from penstock.gateway.large_blocks import give_large_blocks_back
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.reload import Reload
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from penstock.http.server.server import BACKLOG, HttpServer

if TYPE_CHECKING:
    import ssl

    from penstock.gateway.share.sharing import Sharing
    from penstock.gateway.workers.office import Office

logger = logging.getLogger(__name__)

LAG_INTERVAL_S = 0.5
FIRST_LOOK_S = 1.0  # for engines to tell at the start what they are and serve: those that are there take milliseconds
OTHER_FILES = 256  # that are open beside connections of requests: probes, stores, libraries, the log
GARBAGE_OBJECTS = 20_000  # made and not freed since the last look: some hundred requests' worth that wait or run
WORKERS_TIMEOUT_S = 2.0  # for workers to end, beyond what their clients are given
CLOSE_TIMEOUT_S = 5.0  # for clients to take the end of what was already answered


class StartError(Exception):
    """The gateway can't start. The text says why."""


class Gateway:
    """Owns everything that was started, and leaves nothing of it running."""

    def __init__(
        self,
        *,
        reload: Reload,
        driver: Driver,
        server: HttpServer,
        operators: HttpServer | None,
        metrics: Metrics,
        endpoints: EndpointRegistry,
        tokens: AcceptedTokens,
        discovery: Discovery,
        watch: Watch,
        own_token: OwnToken,
        certificate: Certificate,
        reporting: Reporting,
        autoscale: Autoscale,
        batch: BatchService | None = None,
        book: KeyBook | None = None,
        store: StoreThread | None = None,
        office: Office | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.office = office
        self.sharing = sharing
        self._batch = batch
        self._book = book
        self._store = store  # of batches and made keys
        self.reload = reload
        self.driver = driver
        self.server = server
        self.operators = operators  # the server at `admin.listen`
        self._metrics = metrics
        self.endpoints = endpoints
        self._tokens = tokens
        self._discovery = discovery
        self._watch = watch
        self.own_token = own_token
        self._certificate = certificate
        self._reporting = reporting
        self._autoscale = autoscale
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    async def run(self) -> None:
        """Serve until the first SIGTERM or SIGINT, drain, stop. A second signal forces."""
        await self.start()
        self.listen_to_signals()
        look_for_garbage_rarely()
        give_large_blocks_back()
        try:
            await self._stop.wait()
            await self.drain()
        finally:
            await self.close()

    async def start(self) -> None:
        """Listen and observe. When this returns, what the engines are and serve is known, if they answer at once."""
        settings = self.reload.settings
        host, port = settings.listen_address
        context = self._certificate.context(settings)
        if self.office is None:
            await self.server.bind(host, port, ssl=context)
        else:
            await self.office.bind(host, port, BACKLOG)
            self.server.start_at(self.office.relay)
        if self.operators is not None:
            await self._serve_operators(self.operators, context)
        _look_at_open_files(settings.limits)
        self.own_token.listening(self.admin_port)
        loop = asyncio.get_running_loop()
        self.endpoints.start()
        self._discovery.start()
        if self._book is not None:
            self._book.start()
        if self._batch is not None:
            self._batch.start()
        forever = (self._measure_lag(), self._watch.run(), self._autoscale.run())
        self._tasks = [loop.create_task(work) for work in forever]
        await asyncio.gather(self._tokens.start(), self.endpoints.looked_at(FIRST_LOOK_S))
        if self.sharing is not None:
            await self._start_sharing(self.sharing)
        if self.office is not None:
            await self._start_workers(self.office)
        else:
            self.server.accept()
        if self.operators is not None:
            self.operators.accept()
        logger.info("listening on %s", _url(host, self.port, secure=context is not None))
        for warning in open_warnings(settings):
            logger.warning("%s", warning)
        if settings.fairness.levels == ("tenant",):
            logger.info("callers of one tenant are one flow; `fairness.levels: [tenant, user]` makes each user one")

    @property
    def port(self) -> int:
        """The port that callers know."""
        return self.server.port if self.office is None else self.office.port

    @property
    def admin_port(self) -> int:
        """The port of `/admin` and `/metrics`."""
        return self.port if self.operators is None else self.operators.port

    async def _serve_operators(self, server: HttpServer, context: ssl.SSLContext | None) -> None:
        address = self.reload.settings.admin_address
        assert address is not None
        try:
            await server.bind(*address, ssl=context)
        except OSError as error:
            await self.close()
            raise StartError(cannot_listen(at_operators(self.reload.settings), error)) from None
        logger.info("/admin and /metrics are at %s", _url(address[0], server.port, secure=context is not None))

    async def _start_sharing(self, sharing: Sharing) -> None:
        try:
            await sharing.start()
        except OSError as error:
            await self.close()
            raise StartError(f"share.listen: {error.strerror or error}") from None

    async def _start_workers(self, office: Office) -> None:
        try:
            await office.start()
        except OSError as error:
            await self.close()
            raise StartError(error.strerror or str(error)) from None

    def listen_to_signals(self) -> None:
        """SIGTERM and SIGINT stop, SIGHUP reloads. Those that came before are heard now."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload.on_signal)
        early_signals.release()

    def stop(self) -> None:
        """Ask to stop; asked again, at once."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    async def drain(self) -> None:
        """Admit nothing more; serve what waits and what runs, within their time-outs."""
        queue = self.reload.settings.queue
        if self._batch is not None:
            self._batch.drain()
        logger.info("draining: no new requests; waiting ones are served for %g s", queue.drain_timeout)
        run_s = max(queue.drain_timeout, queue.stop_timeout)
        if self.sharing is not None and self.office is not None:
            # Whoever decides goes on: here only what is served here ends.
            self.driver.draining = True
            self.sharing.roles.drain()
            self.office.drain(queue.drain_timeout)
            idle = asyncio.ensure_future(asyncio.wait_for(self._served(self.office), run_s))
        else:
            if self.office is not None:
                self.office.drain()
            self.driver.drain(queue_s=queue.drain_timeout, run_s=run_s)
            idle = asyncio.ensure_future(self.driver.idle())
        forced = asyncio.ensure_future(self._force.wait())
        await asyncio.wait({idle, forced}, return_when=asyncio.FIRST_COMPLETED)
        for future in (idle, forced):
            future.cancel()
        await asyncio.gather(idle, forced, return_exceptions=True)
        if self._force.is_set():
            logger.warning("forced: what waits and what runs is ended now")
            if self.sharing is None:  # else what runs ends with the workers
                self.driver.drain(queue_s=0.0, run_s=0.0)

    async def _served(self, office: Office) -> None:
        """Wait until what this gateway carries has ended: its workers' requests, and items of batches."""
        await office.drained()
        if self._batch is not None:
            await self._batch.drained()

    async def close(self) -> None:
        """Stop everything that was started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watch.close()
        if self._book is not None:
            await self._book.close()
        if self._batch is not None:
            await self._batch.close()
        if self._store is not None:
            await self._store.close()
        if self.office is not None:
            await self.office.close(CLOSE_TIMEOUT_S + WORKERS_TIMEOUT_S)
        if self.sharing is not None:
            await self.sharing.close()
        self._tokens.close()
        await self._discovery.close()
        await self.endpoints.close()
        servers = (self.server,) if self.operators is None else (self.server, self.operators)
        await asyncio.gather(*(server.wait_closed(CLOSE_TIMEOUT_S) for server in servers))
        self.endpoints.disconnect()
        self.driver.close()
        await self._reporting.close()
        self.own_token.remove()
        logger.info("stopped")

    async def _measure_lag(self) -> None:
        while True:
            due_s = self.driver.now() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._metrics.loop_lag_s = max(0.0, self.driver.now() - due_s)


def _url(host: str, port: int, *, secure: bool) -> str:
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
    return f"{'https' if secure else 'http'}://{shown}:{port}"


def _look_at_open_files(limits: LimitsSection) -> None:
    """Take as many as the system allows, and say so where that is too few for all connections that are let in.

    A request that runs has two: one to its client, one to its engine. Who set nothing needs no warning: the system's
    limit holds, and says so when it is met.
    """
    connections, is_set = limits.max_connections, "max_connections" in limits.model_fields_set
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, wanted = connections + OTHER_FILES, 2 * connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            logger.log(
                logging.WARNING if is_set else logging.INFO,
                "this process may open %d files, too few for limits.max_connections (%d%s): raise `ulimit -n` "
                "(LimitNOFILE) to %d, for as many to engines, or lower that limit",
                *(soft, connections, "" if is_set else ", by default", wanted),
            )


def look_for_garbage_rarely() -> None:
    """Requests leave no cycles behind, so there is little to find; a look at all that stands costs some 50 ms."""
    gc.collect()
    gc.freeze()  # what was made at the start stays
    gc.set_threshold(GARBAGE_OBJECTS)
