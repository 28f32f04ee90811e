"""One worker: clients' connections, bodies and streams. It is an edge, and decides nothing.

The first process starts it with the sockets to listen on and a link; settings come over the link, at the start and with
each reload. It ends on order of the first process or with it, and ignores signals, which a terminal or a container
sends to all processes alike. The first process also names the decider: itself, a gateway on another machine, or for a
moment none. While it decides itself, one link carries both its actions and its orders: settings, the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

import penstock
from penstock import clock, logs
from penstock.batch.values import MadeKey
from penstock.config.load import Settings, config_hash, shared_hash
from penstock.core.explain.snapshot import Snapshot
from penstock.core.values.actions import Evict
from penstock.core.values.catalogue import Reason
from penstock.gateway import settings_map
from penstock.gateway.builtin.operators_app import is_operators
from penstock.gateway.certificate import Certificate
from penstock.gateway.cluster.counts import CountsTaker
from penstock.gateway.cluster.forwarding import WorkerPaths
from penstock.gateway.cluster.leader_link import LeaderLink
from penstock.gateway.cluster.link import Link
from penstock.gateway.cluster.listener import Dialler
from penstock.gateway.cluster.targets import WorkerTargets
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.pool_rules import PoolRules
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.origins import Origins
from penstock.gateway.process import give_large_blocks_back
from penstock.gateway.proxy import heartbeat
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.ties import Affinities
from penstock.gateway.reload import Follower
from penstock.gateway.serve import CLOSE_TIMEOUT_S, look_for_garbage_rarely
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from penstock.http.server.server import HttpServer
from penstock.share.edge import Edge
from penstock.share.frames import edge_reader
from penstock.share.messages import (
    PROTOCOL,
    AnswerMade,
    Down,
    Drain,
    EdgeStanding,
    Endpoints,
    Following,
    Frame,
    Heard,
    Hello,
    Leave,
    NewKeys,
    NewRules,
    NewSettings,
    NotTaken,
    Stop,
    Told,
    Welcome,
    WhoDecides,
)

if TYPE_CHECKING:
    from penstock.gateway.epp.server import PickerServer  # needs an extra

logger = logging.getLogger(__name__)

TICK_S = 0.1  # between reports of endpoints whose answers grow
TICKS_PER_STANDING = 10
TICKS_PER_USAGE = 2  # a worker that is killed loses so much of the ledger of use
HEARTBEATS_AHEAD_S = heartbeat.TICK_S  # positions are asked for one tick before they are sent to clients
ACCEPTS_MAX = 4  # connections in one turn; with more, the first worker to wake takes them all


class Worker:
    """The parts of a worker, from its first settings on."""

    def __init__(
        self,
        settings: Settings,
        link: Link[Down],
        *,
        name: str,
        relay: str,
        prefix_seed: int,
        sockets: list[socket.socket],
    ) -> None:
        self._settings = settings
        self._edge = edge = Edge(remembers=settings.share.enabled)
        self._home = link
        self._sockets = sockets
        self._name = name
        self.driver = Driver(edge)
        self._is_home = False  # the first process decides
        self._followed = ""  # the address of the latest decider
        self._leader_link: LeaderLink | None = None
        if settings.share.enabled:
            self._leader_link = LeaderLink(
                *(Dialler(settings.share), edge),
                hello=self._hello,
                heard=self._decided,
                now=self.driver.now,
                act=self.driver.tell,
                linked=self._is_followed,
            )
        self.metrics = Metrics(snapshot=_no_picture)
        link.unsent = self._unsent
        if self._leader_link is not None:
            self._leader_link.unsent = self._unsent
        self._counts = CountsTaker(self.metrics)
        catalog = Catalog()
        self.targets = WorkerTargets(self.driver, catalog=catalog, metrics=self.metrics, say=self._say)
        self._callers = callers = Callers()
        self._catalog = catalog
        affinities, reporting = Affinities(prefix_seed), Reporting(self.metrics.dropped_lines, self.metrics.events)
        self._responses = affinities.responses
        self._responses.tell = lambda *made: link.say(AnswerMade(*made))
        self._reporting = reporting
        self._tokens = callers.tokens
        heartbeats = Heartbeats(self.driver, asks_ahead_s=HEARTBEATS_AHEAD_S)
        origins = Origins(listens_on=settings.listen_address[0])
        app = App(
            driver=self.driver,
            endpoints=self.targets,
            metrics=self.metrics,
            catalog=catalog,
            origins=origins,
            callers=callers,
            affinities=affinities,
            heartbeats=heartbeats,
            reporting=reporting,
            elsewhere=None if settings.admin_address is None else is_operators,
        )
        app.serve_picked(WorkerPaths(relay, app.refusals.refuse, app.refusals.request_id), guarded=True)
        self.server = HttpServer(app, settings_map.server_limits(settings), wall_clock=clock.wall)
        self._certificate = Certificate()
        self._picker: PickerServer | None = None
        if settings.epp.listen:
            from penstock.gateway.epp.server import picker_server  # noqa: PLC0415 - needs an extra

            self._picker = picker_server(
                settings,
                app=app,
                driver=self.driver,
                targets=self.targets.targets,
                hold=self.server.hold,
            )
        self._followers: tuple[Follower, ...] = (
            *(callers, affinities, heartbeats, catalog, origins, self.metrics, reporting, app),
            *(settings_map.ToServer(self.server), settings_map.ToLog(), self.targets, self._certificate),
            *(() if self._picker is None else (self._picker,)),
        )
        self._others = Heard(0.0, 0, 0)
        self._link_s = 0.0
        self._lag_s = 0.0
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._evicts: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self.follow(settings)

    def start(self) -> None:
        """Accept connections."""
        context = self._certificate.context(self._settings)
        self.server.take(self._sockets, ssl=context, accepts_max=ACCEPTS_MAX)
        self._due_s = self.driver.now()
        self._tick()

    async def ready(self) -> None:
        """Wait a moment for the identity provider's keys."""
        await self._tokens.start()
        if self._picker is not None:
            await self._picker.start()

    def follow(self, settings: Settings) -> None:
        """Serve new requests by these settings."""
        self._settings = settings
        self._edge.bands = tuple(band.name for band in settings.bands)
        self._edge.waiting_max = settings.queue.max_requests
        for follower in self._followers:
            follower.follow(settings)
        self._say(Following(shared_hash(settings)))
        self._limit()

    def heard(self, frame: Frame[Down]) -> list[Down]:
        """Process a frame of the first process. Returns messages about the worker as a whole."""
        beside = [message for message in frame.messages if not isinstance(message, Told)]  # usually none
        for message in beside:
            if isinstance(message, WhoDecides):
                self._obey(message)
        if self._is_home and frame.epoch >= self._edge.epoch:
            self._decided(frame)
        rest: list[Down] = []
        for message in beside:
            match message:
                case Endpoints():
                    self.targets.keys(message.rows)
                case Heard():
                    self._others = message
                    self._limit()
                case AnswerMade(answer, endpoint, owner):
                    self._responses.note(answer, endpoint, owner)
                case NewKeys(document):
                    self._callers.made(msgspec.json.decode(document, type=list[MadeKey]))
                case NewRules(document):
                    rules = msgspec.json.decode(document, type=PoolRules)
                    self._callers.objectives.know(rules)
                    self._catalog.know(rules)
                case Leave(idle_s):
                    self.driver.leaving = True
                    self.server.drain(idle_s)
                case Drain():
                    self._drain(message)
                case NewSettings() | NotTaken() | Stop() | Welcome():
                    rest.append(message)
        return rest

    async def close(self) -> None:
        """All requests have ended: let clients take the end of their answers."""
        for timer in (self._timer, self._evicts):
            if timer is not None:
                timer.cancel()
        self._tokens.close()
        if self._picker is not None:
            await self._picker.close(CLOSE_TIMEOUT_S)
        await self.server.wait_closed(CLOSE_TIMEOUT_S)
        if self._leader_link is not None:
            await self._leader_link.close()
        self.targets.close()
        self.driver.close()
        self._count()
        await self._reporting.close()

    # --- the decider ----------------------------------------------------------------------------------------------

    def _obey(self, decides: WhoDecides) -> None:
        """Follow the decider that the first process names."""
        if self._leader_link is not None:
            self._leader_link.to(decides.address or "")
        if self._is_home:
            self._is_home = False
            self.driver.tell(self._edge.unlinked(now=self.driver.now()))
        if decides.address == "":
            self._is_home = True
            self._followed = self._settings.share.place if self._leader_link is not None else ""
            self._home.at(decides.epoch)
            self.driver.tell(self._edge.linked(self._home.say, decides.epoch, now=self.driver.now()))

    def _is_followed(self) -> None:
        assert self._leader_link is not None
        self._followed = self._leader_link.address

    def _hello(self) -> Hello:
        """For a gateway on another machine."""
        settings = shared_hash(self._settings)
        return Hello(
            PROTOCOL, penstock.__version__, self._name, self._edge.epoch, settings, os.getpid(), self._followed
        )

    def _say(self, message: object) -> None:
        """Report to the decider. Facts about requests are reported by the edge."""
        if self._is_home:
            self._home.say(message)
        elif self._leader_link is not None:
            self._leader_link.say(message)

    def _decided(self, frame: Frame[Down]) -> None:
        """Process a frame of the decider."""
        actions, others = self._edge.take(frame, now=self.driver.now())
        for message in others:
            match message:
                case Endpoints():
                    self.targets.know(message.rows)
                case Heard():
                    self._link_s = self.driver.now() - message.sent_s
        self.driver.tell(actions)

    def _unsent(self, message: object) -> None:
        """A message could not be written: end what waits for it."""
        self.metrics.unsent()
        self.driver.tell(self._edge.unsent(message))

    def _drain(self, drain: Drain) -> None:
        """Let nothing new in; if the decider goes on, evict queued requests after the time to drain."""
        self.driver.draining = True
        if self._picker is not None:
            self._picker.drain()
        if drain.queue_s is not None:
            if self._evicts is not None:
                self._evicts.cancel()
            self._evicts = asyncio.get_running_loop().call_later(drain.queue_s, self._evict_queued)

    def _evict_queued(self) -> None:
        """Evict queued requests: the time to drain is over."""
        now = self.driver.now()
        for held in [held for held in self._edge.requests.values() if held.lease is None]:
            name = held.request.id
            self.driver.tell(self._edge.cancelled(name, now=now))
            self.driver.tell([Evict(name, Reason.DRAINING)])

    def _limit(self) -> None:
        """Subtract the other workers' holdings, as last reported: limits count for all together."""
        limits = settings_map.server_limits(self._settings)
        self.server.limits = replace(
            limits,
            connections_max=max(0, limits.connections_max - self._others.others_connections),
            bodies_bytes_max=max(limits.body_bytes_max, limits.bodies_bytes_max - self._others.others_bodies_bytes),
        )

    def _tick(self) -> None:
        now = self.driver.now()
        self._lag_s = max(self._lag_s, now - self._due_s)
        self._due_s = now + TICK_S
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)  # first: it continues after any failure
        self._edge.moved(self.targets.moved(), now=now)
        if self._ticks % TICKS_PER_STANDING == 0 or self.driver.draining:
            self._report(now)
        elif self._ticks % TICKS_PER_USAGE == 0 and (use := self._counts.take_usage()) is not None:
            self._home.say(use)
        self._ticks += 1

    def _report(self, now: float) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        standing = EdgeStanding(
            now,
            self._link_s,
            self._lag_s,
            used.ru_utime + used.ru_stime,
            self.server.connections,
            len(self._edge.requests),
            self.server.bodies_bytes,
        )
        self._home.say(standing)
        if not self._is_home:
            self._say(standing)
        self._lag_s = 0.0
        self._count()

    def _count(self) -> None:
        counts = self._counts.take()
        if counts is not None:
            self._home.say(counts)


class WorkerLife:
    """A worker's life: from the first message on its link to the last."""

    def __init__(self, args: argparse.Namespace, started: Callable[[], None]) -> None:
        self._args = args
        self._started = started
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._worker: Worker | None = None
        self._following: asyncio.Task[None] | None = None
        self.link: Link[Down] = Link(edge_reader(), epoch=0, heard=self._heard, lost=self._lost)

    async def run(self) -> int:
        """Run until the first process orders a stop or is gone. Returns the exit code."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.link, sock=socket.socket(fileno=self._args.link))
        self.link.say(Hello(PROTOCOL, penstock.__version__, self._args.name, 0, "", os.getpid()))
        code = await self._ended
        if self._worker is not None and code == 0:
            await self._worker.close()
        self.link.close()
        return code

    def _heard(self, frame: Frame[Down]) -> None:
        if self._worker is None:
            self._begin(frame)
        else:
            self._do(self._worker.heard(frame))

    def _begin(self, frame: Frame[Down]) -> None:
        """Serve as soon as the settings are here."""
        for at, message in enumerate(frame.messages):
            if not isinstance(message, NewSettings):
                self._do([message])
                continue
            self._worker = worker = Worker(
                *(_read(message), self.link),
                name=self._args.name,
                relay=self._args.relay,
                prefix_seed=message.prefix_seed,
                sockets=[socket.socket(fileno=number) for number in self._args.listen],
            )
            self._do(worker.heard(Frame(frame.epoch, frame.messages[at + 1 :])))
            worker.start()
            self._started()
            self._following = asyncio.get_running_loop().create_task(self._follow(worker, message))
            return

    async def _follow(self, worker: Worker, first: NewSettings) -> None:
        await worker.ready()
        self.link.say(Following(first.settings))

    def _do(self, messages: list[Down]) -> None:
        for message in messages:
            match message:
                case NewSettings() if self._worker is not None:
                    self._worker.follow(_read(message))
                    self.link.say(Following(message.settings))
                case Stop():
                    self._end(0)
                case NotTaken(why):
                    logger.error("the leader refused this worker: %s", why)
                    self._end(1)

    def _lost(self, why: str) -> None:
        if not self._ended.done():
            logger.warning("worker %s exits because its leader is gone: %s", self._args.name, why)
        self._end(1)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


def _no_picture() -> Snapshot:
    raise AssertionError("a worker has no snapshot: the first process prints the metrics")


def _read(message: NewSettings) -> Settings:
    settings = Settings.model_validate(json.loads(message.document))
    assert config_hash(settings) == message.settings, "settings arrive as they were sent"
    return settings


def _settled() -> None:
    look_for_garbage_rarely()
    give_large_blocks_back()


def main(event_loop: Callable[[], asyncio.AbstractEventLoop]) -> int:
    """The main function of `python -m penstock.gateway.workers`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--listen", type=int, action="append", required=True)
    parser.add_argument("--relay", required=True)
    parser.add_argument("--log-level", required=True)
    args = parser.parse_args()
    logs.configure(args.log_level)

    async def run() -> int:
        return await WorkerLife(args, _settled).run()

    with asyncio.Runner(loop_factory=event_loop) as runner:
        code = runner.run(run())
    sys.stderr.flush()
    return code
