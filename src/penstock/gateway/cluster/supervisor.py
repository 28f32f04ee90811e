"""The workers' processes: started with the sockets to listen on, watched, and restarted when they die.

A worker is a fresh interpreter, not a fork: the process that starts it runs a loop and threads, which no fork survives.
New connections wait in the kernel's backlog while a worker is restarted, so none is refused. Its end of the link closes
when it ends; and it ends when the first process closes the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from penstock.config.model import Settings
from penstock.config.sections.batch import folder_of
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.cluster.edge_table import READY_S, Table
from penstock.gateway.cluster.member import Member
from penstock.http.server.listener import bound, port_of
from penstock.http.server.unix_socket import is_dead
from penstock.share.messages import Drain, Stop

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5  # before one that died young is restarted; doubles
PAUSE_S_MAX: Final = 15.0
YOUNG_S: Final = 20.0  # one that lived longer is restarted at once
KILL_S: Final = 3.0  # for a worker to end, beyond the time for its clients
SOCKET: Final = "http"
_PREFIX: Final = "penstock-"
_NEW_S: Final = 60.0  # a gateway that is starting has made its folder, and does not listen yet


class Supervisor:
    """All workers of a gateway."""

    def __init__(self, table: Table, settings: Settings, events: EventLog) -> None:
        self._table = table
        self._settings = settings
        self._events = events
        self._listening: list[socket.socket] = []
        self._folder: Path | None = None
        self.port = 0

    @property
    def relay(self) -> str:
        """The socket at which workers reach paths that the first process answers."""
        assert self._folder is not None
        return str(self._folder / SOCKET)

    async def bind(self, host: str, port: int, backlog: int) -> None:
        """Listen, on behalf of the workers. OSError: the address is taken."""
        self._listening = await bound(host, port)
        for one in self._listening:
            one.listen(backlog)
        self.port = port_of(self._listening)
        self._folder = private_folder(self._settings)

    async def start(self) -> None:
        """Start the workers, and wait until all take connections. OSError: one can't."""
        for worker in self._table.workers:
            worker.process = WorkerProcess(
                worker.name,
                self._listening,
                relay=self.relay,
                linked=partial(self._linked, worker),
                died=partial(self._died, worker),
            )
            worker.process.start()
        try:
            await asyncio.wait_for(self._table.ready.wait(), READY_S)
        except TimeoutError:
            raise OSError(None, f"workers did not start within {READY_S:g} s") from None
        if not all(worker.ready for worker in self._table.workers):
            raise OSError(None, "a worker exited before it served anything; see the log above")

    def drain(self, queue_s: float | None = None) -> None:
        """Let nothing new in. `queue_s`: the decider goes on, and requests still queued here after it are evicted."""
        for worker in self._table.workers:
            if worker.process is not None:
                worker.process.ending()
        self._table.drain(Drain(queue_s))

    async def close(self, timeout_s: float) -> None:
        """All is served: end the workers."""
        self.drain()
        for worker in self._table.workers:
            worker.say(Stop())
        closing = [worker.process.close(timeout_s) for worker in self._table.workers if worker.process is not None]
        await asyncio.gather(*closing)
        for one in self._listening:
            one.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _linked(self, worker: Member, ours: socket.socket) -> None:
        link, loop = self._table.link(worker), asyncio.get_running_loop()
        self._linking = loop.create_task(loop.create_unix_connection(lambda: link, sock=ours))

    def _died(self, worker: Member, pid: int, how: str, wait_s: float) -> None:
        if worker.link is not None:
            worker.link.end("its process ended")
        again = f"started again in {wait_s:g} s" if wait_s else "started again"
        logger.error("worker %s (process %d) %s; it is %s", worker.name, pid, how, again)
        self._events.note("worker", f"{worker.name} {how}; {again}")
        self._table.ready.set()  # a start that failed is not waited for


class WorkerProcess:
    """One worker's process, and its successors."""

    def __init__(
        self,
        name: str,
        listening: Sequence[socket.socket],
        *,
        relay: str,
        linked: Callable[[socket.socket], None],
        died: Callable[[int, str, float], None],
    ) -> None:
        self.name = name
        self.pid = 0
        self.starts = 0
        self._listening = listening
        self._relay = relay
        self._linked = linked
        self._died = died
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False

    def start(self) -> None:
        """Start it, and again whenever it ends."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    def ending(self) -> None:
        """It is about to end, and is not restarted."""
        self._ending = True

    async def close(self, timeout_s: float) -> None:
        """Wait until it has ended; past the time-out, kill it."""
        self._ending = True
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=timeout_s)
        if late:
            logger.warning("worker %s does not exit: killing it", self.name)
            self.kill()
            await asyncio.wait({self._task}, timeout=KILL_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while True:
            began_s = loop.time()
            how = await self._live()
            if self._ended():
                return
            young = loop.time() - began_s < YOUNG_S
            wait_s = pause_s if young else 0.0
            pause_s = min(2 * pause_s, PAUSE_S_MAX) if young else PAUSE_S
            self._died(self.pid, how, wait_s)
            await asyncio.sleep(wait_s)

    def _ended(self) -> bool:
        return self._ending

    async def _live(self) -> str:
        """Run it once. Returns how it ended."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - the socket's own
        numbers = [one.fileno() for one in self._listening]
        listening = [word for number in numbers for word in ("--listen", str(number))]
        words = ["--name", self.name, "--link", str(theirs.fileno()), *listening, "--relay", self._relay]
        words += ["--log-level", logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()]
        try:
            with theirs:
                self._process = process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "penstock.gateway.workers", *words),
                    stdin=DEVNULL,
                    pass_fds=(theirs.fileno(), *numbers),
                )
        except OSError as error:
            ours.close()
            return f"can't be started: {error.strerror or error}"
        self.pid = process.pid
        self.starts += 1
        self._linked(ours)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            self.kill()
            raise
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def private_folder(settings: Settings) -> Path:
    """Returns a new folder that only this user may enter, for the relay's socket. OSError: none can be made.

    Folders of this user's gateways that were killed are removed from the same place.
    """
    kept = folder_of(settings.state_dir, os.environ)
    for place in (None, *([] if kept is None else [kept.parent, kept])):
        try:
            made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        except OSError:
            continue  # such as a read-only root
        for folder in made.parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _is_left_over(folder):
                    shutil.rmtree(folder)
        return made
    raise OSError(errno.EROFS, "workers need a folder for a socket, and no temporary one can be created (set TMPDIR)")


def _is_left_over(folder: Path) -> bool:
    """Returns True for a gateway's folder of this user with a dead socket."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or time.time() - about.st_mtime < _NEW_S:
        return False
    if [file.name for file in folder.iterdir()] != [SOCKET] or not (folder / SOCKET).is_socket():
        return False
    return is_dead(str(folder / SOCKET))
