"""New settings while the gateway runs: read, check, compare, swap. All or nothing.

Settings are read in a thread, because a large file would hold up requests. Everything that may be refused is refused
before any part changes; then all parts follow in one turn of the loop, so no request sees old and new settings mixed.
docs/reload.md says what takes effect when; `config/reloading.py` is the same table in code.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.config.load import ConfigError, Problem, config_hash
from penstock.config.model import Settings
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from penstock.config.reloading import Change

logger = logging.getLogger(__name__)

CHANGES_TOLD_MAX = 5  # in the event; the answer lists all
CHANGES_LOGGED_MAX = 200  # a line each, on the loop; thousands of tenants may change at once
RESTARTS = "needs a restart"


class Done(msgspec.Struct, frozen=True):
    """The result of a reload."""

    changed: Sequence[Change]
    hash: str


class NeedsRestart(ConfigError):  # noqa: N818 (a ConfigError of a kind of its own)
    """The settings are valid, but need a restart."""


class BusyError(Exception):
    """A reload is in progress."""


class Follower(Protocol):
    """A part of the gateway that depends on the settings."""

    def follow(self, settings: Settings, /) -> None:
        """Use these settings from now on: when the gateway is built, and at each reload.

        It must not fail, because other parts have followed already: whatever may be refused is checked before.
        """


class CheckedFollower(Follower, Protocol):
    """A part for which valid settings may still be unusable, because of a file or this machine."""

    def check(self, settings: Settings, /) -> None:
        """Raises ConfigError if these settings can't be used. Changes nothing."""


class Reload:
    """The settings in force, how to read them again, and every part that follows them, in order.

    Parts that read requests follow before the scheduler, whose actions are carried out at once.
    """

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        followers: Sequence[Follower],
        *,
        certificate: CheckedFollower,
        discovery: CheckedFollower,
        metrics: Metrics,
        events: EventLog,
    ) -> None:
        self._read = read
        self.followers = (certificate, *followers, discovery)
        self._certificate = certificate
        self._discovery = discovery
        self._metrics = metrics
        self.events = events
        self._task: asyncio.Task[Done] | None = None
        self._again = False
        self._signalled: asyncio.Task[None] | None = None
        discovery.check(settings)
        self._follow(settings, config_hash(settings))

    async def __call__(self) -> Done:
        """Read the settings again and follow them. Raises ConfigError if nothing changed."""
        if self._task is not None:
            raise BusyError("A reload is in progress.")
        self._task = asyncio.get_running_loop().create_task(self._reload())
        try:
            return await asyncio.shield(self._task)
        finally:
            self._task = None

    def on_signal(self) -> None:
        """Reload on SIGHUP. However many arrive during a reload, one more reload follows."""
        if self._task is not None:
            self._again = True
            return
        self._again = False
        self._signalled = asyncio.get_running_loop().create_task(self._by_signal())

    async def ended(self, timeout_s: float) -> None:
        """Wait for the reload that a signal began, if any: parts that have closed must not be told to follow."""
        if self._signalled is not None:
            await asyncio.wait({self._signalled}, timeout=timeout_s)

    async def _by_signal(self) -> None:
        try:
            await self()
        except (ConfigError, BusyError):
            logger.debug("reload refused")  # the reason was logged there
        except Exception:
            logger.exception("reload failed")
        if self._again:
            self.on_signal()

    # --- read, check, compare -------------------------------------------------------------------------------------

    async def _reload(self) -> Done:
        try:
            new, done = await asyncio.to_thread(self._prepare, self.settings)
            self._discovery.check(new)
        except ConfigError as error:
            for problem in error.problems:
                logger.warning("reload: %s", problem.line())
            # Readers see the event, and a secret may have been written into the wrong place: show the path only.
            more = f" and {len(error.problems) - 1} more" if len(error.problems) > 1 else ""
            self.events.note("settings", f"not reloaded, nothing changed: problem at {error.problems[0].path}{more}")
            self._metrics.reloaded(None)
            raise
        # From here on nothing is refused or awaited.
        self._follow(new, done.hash)
        self._note(done)
        return done

    def _prepare(self, old: Settings) -> tuple[Settings, Done]:
        """Read, check and compare, beside the loop: it takes a while with many tenants. Raises ConfigError."""
        from penstock.config.reloading import changes, needing_restart  # noqa: PLC0415 - no start needs it

        new = self._read()
        refused = needing_restart(old, new)
        if refused:
            raise NeedsRestart([Problem(key, RESTARTS, why) for key, why in refused.items()])
        self._certificate.check(new)
        return new, Done(changes(old, new), config_hash(new))

    def _follow(self, settings: Settings, its_hash: str) -> None:
        """Have all parts follow, in one turn of the loop."""
        self.settings, self.hash = settings, its_hash
        for follower in self.followers:
            follower.follow(settings)
        self._metrics.reloaded(its_hash)

    def _note(self, done: Done) -> None:
        for change in done.changed[:CHANGES_LOGGED_MAX]:
            logger.info("reload: %s", change.line())
        few = "; ".join(change.line() for change in done.changed[:CHANGES_TOLD_MAX])
        more = f"; and {len(done.changed) - CHANGES_TOLD_MAX} more" if len(done.changed) > CHANGES_TOLD_MAX else ""
        self.events.note("settings", f"reloaded {done.hash}: {few or 'nothing changed'}{more}")
