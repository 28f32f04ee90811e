"""How the gateway lives: start, run, drain, stop, top to bottom."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import penstock
from penstock import clock
from penstock.build import kind
from penstock.config.address import UNIX, cannot_listen
from penstock.config.effect import open_warnings
from penstock.config.model import LimitsSection, Settings
from penstock.gateway import early_signals
from penstock.gateway.bootstrap import Parts
from penstock.gateway.identity.unnamed import told_apart
from penstock.gateway.process import give_large_blocks_back, tell_ready
from penstock.http.server.server import BACKLOG, HttpServer

if TYPE_CHECKING:
    import ssl

    from penstock.gateway.cluster.cluster import GatewayCluster
    from penstock.gateway.epp.server import PickerServer

logger = logging.getLogger(__name__)

LAG_INTERVAL_S = 0.5
LEDGER_AFTER_S = 0.5  # from the start on: until then requests are counted, and nothing is opened to write them down
FIRST_LOOK_S = 1.0  # for the first probe of engines at the start: those that run answer within milliseconds
FEW_FILES = 4_096  # fewer are met by a thousand streams; a bound that is only a default asks nobody for more
OTHER_FILES = 256  # open beside connections: probes, stores, libraries, the log
GARBAGE_OBJECTS = 20_000  # allocated since the last collection: those of some hundred requests
IDLE_LEFT_S = 1.0  # for connections without a request: one that is under way to us is answered
CLOSE_TIMEOUT_S = 5.0  # for clients to read the end of their answers


class StartError(Exception):
    """The gateway can't start. The text is the reason."""


class Gateway(Parts):
    """The parts of a gateway, and their life: it leaves nothing running that it started."""

    def __init__(self, settings: Settings, read: Callable[[], Settings] | None = None) -> None:
        super().__init__(settings, read)
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    async def run(self) -> None:
        """Serve until the first SIGTERM or SIGINT, drain, stop. A second signal forces."""
        await self.start()
        self.listen_to_signals()
        tell_ready()
        look_for_garbage_rarely()
        give_large_blocks_back()
        try:
            await self._stop.wait()
            await self.drain()
        finally:
            await self.close()

    async def start(self) -> None:
        """Listen and observe. Engines that answer at once are known when this returns."""
        settings = self.reload.settings
        host, port = settings.listen_address
        context = self.certificate.context(settings)
        if self.cluster is None:
            await self.server.bind(host, port, ssl=context)
        else:
            self.server.start_at(await self.cluster.bind(host, port, BACKLOG))
        logger.info("penstock %s (%s)", penstock.__version__, kind())
        if self.operators is not None:
            await self._serve_operators(self.operators, context)
        _look_at_open_files(settings.limits)
        self.own_token.listening(self.admin_place)
        loop = asyncio.get_running_loop()
        self.endpoints.start()
        self.discovery.start()
        if self.book is not None:
            self.book.start()
        if self.batch is not None:
            self.batch.start()
        forever = (self._measure_lag(), self._keep_ledger(), self.watch.run(), self.autoscale.run())
        self._tasks = [loop.create_task(work) for work in forever]
        await asyncio.gather(self.callers.tokens.start(), self.endpoints.looked_at(FIRST_LOOK_S))
        if self.cluster is not None:
            await self._start_cluster(self.cluster)
        else:
            self.server.accept()
        if self.picker is not None:
            await self._start_picker(self.picker)
        if self.operators is not None:
            self.operators.accept()
        logger.info("listening on %s", _url(host, self.port, secure=context is not None))
        for warning in open_warnings(settings):
            logger.warning("%s", warning)
        logger.info("%s", told_apart(settings))

    @property
    def port(self) -> int:
        """The port that callers know."""
        return self.server.port if self.cluster is None else self.cluster.port

    @property
    def admin_place(self) -> int | str:
        """The port of `/admin` and `/metrics`, or their unix socket."""
        settings = self.reload.settings
        host, _ = settings.admin_address or settings.listen_address
        if host.startswith(UNIX):
            return host
        return self.port if self.operators is None else self.operators.port

    async def _serve_operators(self, server: HttpServer, context: ssl.SSLContext | None) -> None:
        address = self.reload.settings.admin_address
        assert address is not None
        try:
            await server.bind(*address, ssl=context)
        except OSError as error:
            await self.close()
            raise StartError(cannot_listen(self.reload.settings.at_operators, error)) from None
        logger.info("/admin and /metrics are at %s", _url(address[0], server.port, secure=context is not None))

    async def _start_cluster(self, cluster: GatewayCluster) -> None:
        try:
            await cluster.start()
        except OSError as error:
            await self.close()
            raise StartError(error.strerror or str(error)) from None

    async def _start_picker(self, picker: PickerServer) -> None:
        try:
            await picker.start()
        except OSError as error:
            await self.close()
            raise StartError(str(error)) from None

    def listen_to_signals(self) -> None:
        """SIGTERM and SIGINT stop, SIGHUP reloads. Signals held back so far arrive now."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload.on_signal)
        early_signals.release()

    def stop(self) -> None:
        """Drain and stop; called again: stop at once."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    def _leave(self, delay_s: float) -> None:
        """Send callers elsewhere, and serve those that come: `/ready` says no, each answer closes its connection."""
        idle_s = delay_s + IDLE_LEFT_S
        self.driver.leaving = True
        for server in filter(None, (self.server, self.operators)):
            server.drain(idle_s)
        if self.cluster is not None:
            self.cluster.leave(idle_s)

    async def drain(self) -> None:
        """Serve newcomers for a while, then admit nothing more; serve what is here within the time-outs."""
        queue = self.reload.settings.queue
        self._leave(queue.drain_delay)
        if self.batch is not None:
            self.batch.drain()
        if queue.drain_delay:
            logger.info("stopping: new requests are still served for %g s", queue.drain_delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._force.wait(), queue.drain_delay)
        logger.info("draining: no new requests; queued ones are served for %g s", queue.drain_timeout)
        run_s = max(queue.drain_timeout, queue.stop_timeout)
        if (cluster := self.cluster) is not None:
            cluster.drain(queue.drain_timeout)
        if self.picker is not None:
            self.picker.drain()
        in_group = cluster is not None and cluster.group is not None
        if cluster is not None and in_group:
            # The leader may go on with other gateways' requests: only those served here end.
            self.driver.draining = True
            idle = asyncio.ensure_future(asyncio.wait_for(self._served(cluster), run_s))
        else:
            self.driver.drain(queue_s=queue.drain_timeout, run_s=run_s)
            idle = asyncio.ensure_future(self.driver.idle())
        forced = asyncio.ensure_future(self._force.wait())
        await asyncio.wait({idle, forced}, return_when=asyncio.FIRST_COMPLETED)
        for future in (idle, forced):
            future.cancel()
        await asyncio.gather(idle, forced, return_exceptions=True)
        if self._force.is_set():
            logger.warning("forced: aborting queued and running requests")
            if not in_group:  # otherwise running requests end with the workers
                self.driver.drain(queue_s=0.0, run_s=0.0)

    async def _served(self, cluster: GatewayCluster) -> None:
        """Wait until this gateway's own requests have ended: those of its workers, and items of batches."""
        await cluster.table.idle.wait()
        if self.batch is not None:
            await self.batch.drained()

    async def close(self) -> None:
        """Stop everything that was started."""
        await self.reload.ended(CLOSE_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.watch.close()
        if self.book is not None:
            await self.book.close()
        if self.batch is not None:
            await self.batch.close()
        if self.picker is not None:
            await self.picker.close(CLOSE_TIMEOUT_S)
        if self.cluster is not None:
            await self.cluster.close(CLOSE_TIMEOUT_S)
        self.callers.tokens.close()
        await self.discovery.close()
        await self.endpoints.close()
        servers = (self.server,) if self.operators is None else (self.server, self.operators)
        await asyncio.gather(*(server.wait_closed(CLOSE_TIMEOUT_S) for server in servers))
        self.endpoints.disconnect()
        self.driver.close()
        await self.reporting.close()
        if (book := self.ledger()) is not None:
            await book.close()
        if self.store is not None:
            await self.store.close()
        self.own_token.remove()
        logger.info("stopped")

    async def _keep_ledger(self) -> None:
        await asyncio.sleep(LEDGER_AFTER_S)
        if (book := self.ledger()) is not None:
            book.start()
            from penstock.gateway.usage.day_budgets import DayBudgets  # noqa: PLC0415 - no start needs it

            await DayBudgets(book, self._lower, self.orders.limits, self._knows_use, clock.wall).run()

    def _lower(self, left: dict[str, float]) -> None:
        self.driver.tell(self.driver.scheduler.budgets_left(left, now=self.driver.now()))

    def _knows_use(self) -> bool:
        """Whether this process decides about limits, and there is a ledger."""
        return self.reload.settings.keeps_usage and (self.cluster is None or self.cluster.decides)

    async def _measure_lag(self) -> None:
        while True:
            due_s = self.driver.now() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self.metrics.loop_lag_s = max(0.0, self.driver.now() - due_s)


def _url(host: str, port: int, *, secure: bool) -> str:
    if host.startswith(UNIX):
        return host
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
    return f"{'https' if secure else 'http'}://{shown}:{port}"


def _look_at_open_files(limits: LimitsSection) -> None:
    """Raise the limit of open files as far as allowed, and log if that is too few for `limits.max_connections`.

    A running request has two: one to its client, one to its engine. It is a warning only if the setting was given.
    """
    connections, is_set = limits.max_connections, "max_connections" in limits.model_fields_set
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, wanted = connections + OTHER_FILES, 2 * connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed and (is_set or soft < FEW_FILES):
            logger.log(
                logging.WARNING if is_set else logging.INFO,
                "this process may open %d files, too few for limits.max_connections (%d%s): raise `ulimit -n` "
                "(LimitNOFILE) to %d, for as many to engines, or lower that limit",
                *(soft, connections, "" if is_set else ", by default", wanted),
            )


def look_for_garbage_rarely() -> None:
    """Collect garbage rarely: requests leave no cycles behind, and a full collection takes some 50 ms."""
    gc.collect()
    gc.freeze()  # what the start made stays
    gc.set_threshold(GARBAGE_OBJECTS)
