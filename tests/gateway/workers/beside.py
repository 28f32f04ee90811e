"""Workers beside their decider on one loop: all that a worker's process does, but for being a process."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket

from penstock.gateway.cluster.supervisor import WorkerProcess
from penstock.gateway.cluster.worker import WorkerLife


class WorkerBeside(WorkerProcess):
    """Stands where a `WorkerProcess` does."""

    life: WorkerLife | None = None

    def kill(self) -> None:
        if self.life is not None:
            self.life.link.end("killed")

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
