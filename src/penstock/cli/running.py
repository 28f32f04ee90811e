"""A gateway from the command line: its loop, its log, and the file that is followed where there is one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from penstock import logs
from penstock.cli.following import changes
from penstock.config.effect import effect_warnings, variable_warnings
from penstock.config.load import ConfigError, Settings
from penstock.config.sections.roles import role_warnings
from penstock.gateway.event_loop import event_loop
from penstock.gateway.fitness import cannot_listen
from penstock.gateway.serve import Gateway, StartError


def serve(
    settings: Settings,
    read: Callable[[], Settings],
    log_level: str,
    *,
    follows: Path | None = None,
    command: str = "penstock",
) -> int:
    """Run until it is stopped; returns the exit code.

    `follows`: a file whose every change is a reload. `command`: what was typed, which stands before what is told.
    """
    for warning in (*role_warnings(settings), *effect_warnings(settings), *variable_warnings(os.environ)):
        print(f"{command}: warning: {warning}", file=sys.stderr)
    logs.configure(log_level)
    logs.use(settings.log.format)

    async def run() -> None:
        gateway = Gateway(settings, read)
        async with _following(gateway, follows):
            await gateway.run()

    try:
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(run())
    except ConfigError as error:  # what only shows where it runs
        for problem in error.problems:
            print(f"{command}: {problem.line()}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{command}: {cannot_listen(settings.listen, error)}", file=sys.stderr)
        return 1
    except StartError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.asynccontextmanager
async def _following(gateway: Gateway, file: Path | None) -> AsyncIterator[None]:
    """Reload at every change of a file, as at a SIGHUP."""
    if file is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(changes(file, gateway.reload.on_signal))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
