"""The workers' processes: started, watched, started again when they die, with a pause that grows while they do.

A worker is a fresh interpreter, not a fork: the process that starts it runs a loop and threads, which no fork survives.
It inherits the sockets that are listened on, so newcomers wait in the kernel's line while one is started again, and
none is refused. Its end of the link closes with it, whatever ends it, and with the gateway's first process closes ours.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from typing import Final

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5  # before one that died young is started again; doubles
PAUSE_S_MAX: Final = 15.0
YOUNG_S: Final = 20.0  # one that lived longer is started again at once
KILL_S: Final = 3.0  # that one which was told to end may take beyond what its clients may


class WorkerProcess:
    """One place among the workers, and whoever fills it."""

    def __init__(
        self,
        name: str,
        listening: Sequence[socket.socket],
        *,
        relay: str,
        epoch: int,
        linked: Callable[[socket.socket], None],
        died: Callable[[int, str, float], None],
    ) -> None:
        self.name = name
        self.pid = 0
        self.starts = 0
        self._listening = listening
        self._relay = relay
        self._epoch = epoch
        self._linked = linked
        self._died = died
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = False

    def start(self) -> None:
        """Start it, and again whenever it ends."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def kill(self) -> None:
        """It does not do what it should."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    def ending(self) -> None:
        """It was told to end, or is about to be: nobody follows it."""
        self._ending = True

    async def close(self, timeout_s: float) -> None:
        """Wait until it has ended; past the time-out, end it."""
        self._ending = True
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=timeout_s)
        if late:
            logger.warning("worker %s does not end: it is killed", self.name)
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
        """One life. Returns how it ended."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - the socket's own
        numbers = [one.fileno() for one in self._listening]
        listening = [word for number in numbers for word in ("--listen", str(number))]
        words = ["--name", self.name, "--link", str(theirs.fileno()), *listening]
        words += ["--relay", self._relay, "--epoch", str(self._epoch)]
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
        if code < 0:
            return f"was killed by signal {-code}"
        return f"ended with code {code}"
