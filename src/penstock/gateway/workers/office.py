"""The first process among workers: it hears what they say, says what they have to know, and starts them again.

Beside the scheduler, driver and registry of any gateway stands one `Decider`, whose edges are the workers. What a
worker can't ask each time it is told here: endpoints as soon as they change, loads four times a second, settings when
they are reloaded, and what the other workers hold, once a second.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pydantic import SecretStr

import penstock
from penstock.config.load import config_hash
from penstock.config.model import Settings
from penstock.core.values.actions import Action
from penstock.gateway.admin.events import EventLog
from penstock.gateway.admin.own_token import folder_of
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.registry import EndpointRegistry
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.ties import Responses
from penstock.gateway.telemetry.edges import edge_levels
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.workers import counts
from penstock.gateway.workers.link import Link
from penstock.gateway.workers.processes import WorkerProcess
from penstock.http.server.listener import bound
from penstock.share.decider import Decider
from penstock.share.frames import Frame, decider_reader, why_not
from penstock.share.messages import (
    AnswerMade,
    Counted,
    Disowned,
    Down,
    Drain,
    EdgeStanding,
    EndpointRow,
    Endpoints,
    Following,
    Heard,
    Hello,
    LoadHeader,
    Loads,
    NewKeys,
    NewSettings,
    NotTaken,
    Stop,
    Unreachable,
    Up,
    Welcome,
)
from penstock.share.seats import Seat

logger = logging.getLogger(__name__)

EPOCH: Final = 1  # workers end with their decider, so there is one only
REFRESH_S: Final = 0.25  # between two words on loads
HUNG_S: Final = 30.0  # without a word, where there is one each second
READY_S: Final = 60.0  # a worker may take to start: seconds where all start at once on a small machine
BANDS_KEPT: Final = 16  # reloads that workers may be behind


class EdgeNow(msgspec.Struct, frozen=True):
    """One edge, as the page and `status` show it."""

    name: str
    where: str
    epoch: int
    up_s: float | None  #: None: it is not there at the moment
    requests: int
    connections: int
    link_s: float  #: how long a word to it and its answer take
    lag_s: float  #: how late its loop ran a timer in the last second
    cpu: float  #: share of a core over the last second
    cpu_s: float
    starts: int


class _Worker:
    """One place among the workers, and the link of whoever fills it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: WorkerProcess | None = None
        self.link: Link[Up] | None = None
        self.seat: Seat | None = None
        self.ready = False
        self.since_s = self.heard_s = 0.0
        self.standing: EdgeStanding | None = None
        self.cpu = 0.0
        self.told: set[str] = set()  # endpoints it knows


class Office:
    """All workers of a gateway."""

    def __init__(
        self,
        settings: Settings,
        *,
        count: int,
        driver: Driver,
        endpoints: EndpointRegistry,
        catalog: Catalog,
        metrics: Metrics,
        responses: Responses,
        events: EventLog,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._endpoints = endpoints
        self._catalog = catalog
        self._metrics = metrics
        self._responses = responses
        self._events = events
        self._hash = config_hash(settings)
        self.decider = Decider(
            driver.scheduler,
            driver,
            now=driver.now,
            bands=_bands(settings),
            levels=len(settings.fairness.levels),
            before_dispatch=self._before_dispatch,
        )
        self._bands_of = {self._hash: self.decider.bands}
        self._workers = [_Worker(f"w{number}") for number in range(1, count + 1)]
        self._keys: NewKeys | None = None  # None: none are made here, or they were not read yet
        self._told = Endpoints([])
        self._levels = Loads([])
        self._listening: list[socket.socket] = []
        self._folder: Path | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        self._ending = self._refreshes = False
        self.port = 0
        endpoints.changed, endpoints.told = self._refresh, self._refresh_soon
        responses.tell = lambda *made: self._say_made(None, AnswerMade(*made))
        metrics.add_sources(edge_levels(self.edges))
        endpoints.in_use = self.decider.in_use

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def relay(self) -> str:
        """Where workers reach the paths that are answered here."""
        assert self._folder is not None
        return str(self._folder / "http")

    async def bind(self, host: str, port: int, backlog: int) -> None:
        """Listen, for those who will take the connections. OSError: the address is taken."""
        self._listening = await bound(host, port)
        for one in self._listening:
            one.listen(backlog)
        self.port = int(self._listening[0].getsockname()[1])
        self._folder = _private_folder(self._settings)

    async def start(self) -> None:
        """Start the workers, and wait until all take connections. OSError: one can't."""
        for worker in self._workers:
            worker.process = WorkerProcess(
                worker.name,
                self._listening,
                relay=self.relay,
                epoch=EPOCH,
                linked=partial(self._linked, worker),
                died=partial(self._died, worker),
            )
            worker.process.start()
        self._tick()
        try:
            await asyncio.wait_for(self._ready.wait(), READY_S)
        except TimeoutError:
            raise OSError(None, f"workers did not start within {READY_S:g} s") from None
        if not all(worker.ready for worker in self._workers):
            raise OSError(None, "a worker ended before it served anything; the log says why")

    def drain(self) -> None:
        """Let nothing new in."""
        self._ending = True
        for worker in self._workers:
            if worker.process is not None:
                worker.process.ending()
        self._say(Drain())

    async def close(self, timeout_s: float) -> None:
        """All is served: end the workers."""
        self.drain()
        if self._timer is not None:
            self._timer.cancel()
        self._say(Stop())
        closing = [worker.process.close(timeout_s) for worker in self._workers if worker.process is not None]
        await asyncio.gather(*closing)
        for worker in self._workers:
            if worker.link is not None:
                worker.link.close()
        for one in self._listening:
            one.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def follow(self, settings: Settings) -> None:
        """Other settings; each worker follows them in its own turn, and says so."""
        self._settings, self._hash = settings, config_hash(settings)
        bands = _bands(settings)
        if bands != self.decider.bands:
            self.decider.bands = bands
        self._bands_of[self._hash] = self.decider.bands
        while len(self._bands_of) > BANDS_KEPT:
            del self._bands_of[next(iter(self._bands_of))]
        self._say(self._new_settings())

    def know_keys(self, document: bytes) -> None:
        """Other keys were made, or withdrawn; `document` holds all there are."""
        self._keys = NewKeys(document)
        self._say(self._keys)

    def edges(self) -> list[EdgeNow]:
        """How each stands."""
        now = self._driver.now()
        return [self._now(worker, now) for worker in self._workers]

    # --- workers come and go --------------------------------------------------------------------------------------

    def _linked(self, worker: _Worker, ours: socket.socket) -> None:
        """A worker's process was started: this is its link."""
        link: Link[Up] = Link(
            decider_reader(),
            epoch=EPOCH,
            heard=lambda frame: self._heard(worker, frame),
            lost=lambda why: self._lost(worker, why),
        )
        worker.link, worker.seat, worker.standing = link, None, None
        worker.since_s = worker.heard_s = self._driver.now()
        loop = asyncio.get_running_loop()
        self._linking = loop.create_task(loop.create_unix_connection(lambda: link, sock=ours))

    def _lost(self, worker: _Worker, why: str) -> None:
        """Its connections are gone with it. Its leases come back, and what waited there is dropped."""
        seat, worker.link, worker.seat = worker.seat, None, None
        worker.ready = False
        worker.told = set()
        if seat is not None:
            lost = len(seat.requests)
            self._driver.tell(self.decider.lost(seat))
            if not self._ending:
                logger.warning("worker %s is lost with its connections and %d requests: %s", worker.name, lost, why)
            if worker.process is not None and not self._ending:
                worker.process.kill()  # without its decider it is of no use

    def _died(self, worker: _Worker, pid: int, how: str, wait_s: float) -> None:
        if worker.link is not None:
            worker.link.end("its process ended")
        again = f"started again in {wait_s:g} s" if wait_s else "started again"
        logger.error("worker %s (process %d) %s; it is %s", worker.name, pid, how, again)
        self._events.note("worker", f"{worker.name} {how}; {again}")
        if not self._ready.is_set():
            self._ready.set()  # at the start nobody waits for what can't be

    # --- what they say --------------------------------------------------------------------------------------------

    def _heard(self, worker: _Worker, frame: Frame[Up]) -> None:
        worker.heard_s = self._driver.now()
        for message in frame.messages:
            seat = worker.seat
            if seat is None or isinstance(message, Hello):
                self._greet(worker, message)
            else:
                self._do(worker, seat, message)

    def _greet(self, worker: _Worker, message: Up) -> None:
        assert worker.link is not None
        why = "a link begins with a hello, once"
        if isinstance(message, Hello) and worker.seat is None:
            why = why_not(message, version=penstock.__version__) or ""
        if why:
            logger.error("worker %s is not taken: %s", worker.name, why)
            worker.link.say(NotTaken(why))
            worker.link.close()  # it has the word, and ends by itself
            self._lost(worker, why)
            return
        worker.seat = seat = Seat(worker.name, worker.link.say, self.decider.bands)
        self.decider.opened(seat)
        for word in (Welcome(penstock.__version__, self._hash), self._new_settings(), self._keys):
            if word is not None:
                seat.send(word)
        self._refresh()
        seat.send(self._told)
        seat.send(self._levels)
        worker.told = {row.name for row in self._told.rows}
        if self._driver.draining:
            seat.send(Drain())

    def _do(self, worker: _Worker, seat: Seat, message: Up) -> None:
        match message:
            case EdgeStanding():
                self._stands(worker, seat, message)
            case Counted():
                counts.add(self._metrics, message.series)
            case AnswerMade():
                self._responses.note(message.answer, message.endpoint, message.owner)
                self._say_made(worker, message)
            case Following():
                seat.bands = self._bands_of.get(message.settings, seat.bands)
                worker.ready = True
                if all(each.ready for each in self._workers):
                    self._ready.set()
            case Unreachable() | Disowned() | LoadHeader():
                self._about_endpoint(message)
            case Hello():
                pass
            case _:
                self._driver.tell(self.decider.take(seat, message))

    def _about_endpoint(self, message: Unreachable | Disowned | LoadHeader) -> None:
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

    def _stands(self, worker: _Worker, seat: Seat, standing: EdgeStanding) -> None:
        before, worker.standing = worker.standing, standing
        if before is not None and standing.sent_s > before.sent_s:
            worker.cpu = max(0.0, (standing.cpu_s - before.cpu_s) / (standing.sent_s - before.sent_s))
        others = [each.standing for each in self._workers if each is not worker and each.standing is not None]
        seat.send(
            Heard(
                standing.sent_s,
                sum(other.connections for other in others),
                sum(other.bodies_bytes for other in others),
            )
        )

    # --- what they are told ---------------------------------------------------------------------------------------

    def _say(self, message: Down, but: _Worker | None = None) -> None:
        for worker in self._workers:
            if worker.seat is not None and worker is not but:
                worker.seat.send(message)

    def _say_made(self, by: _Worker | None, made: AnswerMade) -> None:
        self._say(made, but=by)

    def _new_settings(self) -> NewSettings:
        return NewSettings(self._hash, _document(self._settings))

    def _before_dispatch(self, seat: Seat, endpoint: str) -> None:
        worker = next(worker for worker in self._workers if worker.seat is seat)
        if endpoint not in worker.told:
            self._refresh()

    def _tick(self) -> None:
        self._refresh()
        now = self._driver.now()
        for worker in self._workers:
            patience_s = HUNG_S if worker.ready else READY_S
            if worker.link is not None and now - worker.heard_s > patience_s:
                worker.link.end(f"it has said nothing for {patience_s:g} s")
        self._timer = asyncio.get_running_loop().call_later(REFRESH_S, self._tick)

    def _refresh_soon(self) -> None:
        if not self._refreshes:
            self._refreshes = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        """Say what is another than it was said last."""
        self._refreshes = False
        served = {row.name: row for row in self._driver.scheduler.served(now=self._driver.now())}
        rows: list[EndpointRow] = []
        loads: list[float | None] = []
        for spec, target in self._endpoints.known():
            row = served.get(spec.name)
            models = None if row is None or row.models is None else sorted(row.models)
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
                )
            )
            loads.append(None if row is None or row.load is None else round(row.load, 2))
        told = Endpoints(rows, self._driver.scheduler.divides)
        if told != self._told:
            self._told = told
            self._levels = Loads([])
            self._say(told)
            for worker in self._workers:
                worker.told = {row.name for row in rows}
        levels = Loads(loads, self._driver.scheduler.paced)
        if levels != self._levels:
            self._levels = levels
            self._say(levels)

    # --- for people -----------------------------------------------------------------------------------------------

    def _now(self, worker: _Worker, now: float) -> EdgeNow:
        standing, process = worker.standing, worker.process
        return EdgeNow(
            name=worker.name,
            where=f"process {process.pid}" if process is not None and process.pid else "not started",
            epoch=EPOCH,
            up_s=now - worker.since_s if worker.ready else None,
            requests=0 if worker.seat is None else len(worker.seat.requests),
            connections=0 if standing is None else standing.connections,
            link_s=0.0 if standing is None else standing.link_s,
            lag_s=0.0 if standing is None else standing.lag_s,
            cpu=worker.cpu if worker.ready else 0.0,
            cpu_s=0.0 if standing is None else standing.cpu_s,
            starts=0 if process is None else process.starts,
        )


def _private_folder(settings: Settings) -> Path:
    """A folder that only this user may enter, for the socket that workers ask at. OSError: there is no place for it."""
    kept = folder_of(settings.state_dir, os.environ)
    for place in (None, *([] if kept is None else [kept.parent, kept])):
        try:
            return Path(tempfile.mkdtemp(prefix="penstock-", dir=place))
        except OSError:
            continue  # as where the root is read-only
    raise OSError(errno.EROFS, "workers need a folder for a socket, and no temporary one can be made (set TMPDIR)")


def _bands(settings: Settings) -> Sequence[str]:
    return tuple(band.name for band in settings.bands)


def _document(settings: Settings) -> bytes:
    """The settings as they were written, secrets and all: for a process of our own."""
    return json.dumps(settings.model_dump(exclude_unset=True), default=_secret).encode()


def _secret(value: object) -> str:
    assert isinstance(value, SecretStr), "everything else in the settings is JSON"
    return value.get_secret_value()
