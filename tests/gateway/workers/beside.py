"""Workers beside their decider on one loop: all that a worker's process does, but for being a process."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from collections.abc import Callable, Sequence

from penstock.gateway.workers.worker import WorkerLife


class WorkerBeside:
    """Stands where a `WorkerProcess` does."""

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
        self.life: WorkerLife | None = None
        self._listening = listening
        self._relay = relay
        self._epoch = epoch
        self._linked = linked
        self._died = died
        self._task: asyncio.Task[None] | None = None
        self._ending = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def kill(self) -> None:
        if self.life is not None:
            self.life.link.end("killed")

    def ending(self) -> None:
        self._ending = True

    async def close(self, timeout_s: float) -> None:
        self._ending = True
        if self._task is not None:
            await asyncio.wait_for(self._task, timeout_s)

    async def _run(self) -> None:
        while not self._ending:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            args = argparse.Namespace(
                name=self.name,
                link=theirs.detach(),
                listen=[os.dup(one.fileno()) for one in self._listening],
                relay=self._relay,
                epoch=self._epoch,
            )
            self.life = WorkerLife(args, lambda: None)
            self.starts += 1
            self._linked(ours)
            code = await self.life.run()
            if code and (worker := self.life._worker) is not None:  # what the system does for a process that ends
                if worker._timer is not None:
                    worker._timer.cancel()
                worker.server.stop_accepting()
                for connection in tuple(worker.server._connections):
                    connection.abort()
                worker.targets.close()
                worker.driver.close()
            if not self._ending:
                self._died(0, f"ended with code {code}", 0.0)
