"""New settings while the gateway runs: read, check, compare, swap. All of it, or nothing.

Reading happens in a thread, so a large file holds up nobody. Whatever may be refused is refused before the first part
is told anything; then all parts are told in one turn of the loop, so no request sees old and new ones mixed.
docs/reload.md says what takes effect when; `config/reloading.py` has the same as a table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock import logs
from penstock.config.load import ConfigError, Problem, config_hash
from penstock.config.model import Settings
from penstock.config.reloading import Change, changes, needing_restart
from penstock.gateway import settings_map
from penstock.gateway.admin.auth import AdminAuth
from penstock.gateway.admin.events import EventLog
from penstock.gateway.admin.own_token import OwnToken
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.endpoints.discovery.base import Discovery, EndpointSource
from penstock.gateway.endpoints.discovery.sources import sources
from penstock.gateway.endpoints.registry import SETTINGS, EndpointRegistry
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.origins import Origins
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.driver import Driver
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.ties import Affinities
from penstock.gateway.telemetry.metrics import Metrics
from penstock.http.server.server import HttpServer

if TYPE_CHECKING:
    from penstock.gateway.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)

CHANGES_TOLD_MAX = 5  # in the event; the answer has all
CHANGES_LOGGED_MAX = 200  # a line each, on the loop; thousands of tenants may change at once
RESTARTS = "needs a restart"


class Done(msgspec.Struct, frozen=True):
    """What a reload did."""

    changed: list[Change]
    hash: str


class NeedsRestart(ConfigError):  # noqa: N818 (a ConfigError of a kind of its own)
    """The settings are good, but not for a gateway that runs."""


class BusyError(Exception):
    """A reload is under way."""


class Subscribers(msgspec.Struct, frozen=True):
    """Everybody who is told."""

    driver: Driver
    app: App
    callers: Callers
    affinities: Affinities
    heartbeats: Heartbeats
    server: HttpServer
    metrics: Metrics
    catalog: Catalog
    endpoints: EndpointRegistry
    discovery: Discovery
    auth: AdminAuth
    origins: Origins
    own_token: OwnToken
    events: EventLog


class Reload:
    """Knows the settings in force, where they came from, and who has to hear of others."""

    def __init__(self, settings: Settings, read: Callable[[], Settings], told: Subscribers) -> None:
        self.settings = settings
        self.hash = config_hash(settings)
        self.tls: ssl.SSLContext | None = None  #: what callers' connections are encrypted with, once it listens
        self._read = read
        self.told = told
        self._task: asyncio.Task[Done] | None = None
        self._again = False

    async def __call__(self) -> Done:
        """Read what the gateway was started with again, and follow it. A `ConfigError` says why nothing changed."""
        if self._task is not None:
            raise BusyError("A reload is under way.")
        self._task = asyncio.get_running_loop().create_task(self._reload())
        try:
            return await asyncio.shield(self._task)
        finally:
            self._task = None

    def on_signal(self) -> None:
        """SIGHUP: as often as it comes while one is under way, one more follows."""
        if self._task is not None:
            self._again = True
            return
        self._again = False
        self._signalled = asyncio.get_running_loop().create_task(self._by_signal())

    async def _by_signal(self) -> None:
        try:
            await self()
        except (ConfigError, BusyError):
            logger.debug("reload refused")  # why was told where it was found out
        except Exception:
            logger.exception("reload failed")
        if self._again:
            self.on_signal()

    # --- read, check, compare -------------------------------------------------------------------------------------

    async def _reload(self) -> Done:
        told = self.told
        try:
            new, done, context = await asyncio.to_thread(self._prepare, self.settings)
            found = sources(new.discovery, os.environ)
        except ConfigError as error:
            for problem in error.problems:
                logger.warning("reload: %s", problem.line())
            # Who may only look sees the event, and a secret may have been written into the wrong place.
            more = f" and {len(error.problems) - 1} more" if len(error.problems) > 1 else ""
            told.events.note("settings", f"not reloaded, nothing changed: problem at {error.problems[0].path}{more}")
            told.metrics.reloaded(None)
            raise
        # From here on nothing is refused, and nothing is waited for.
        old, self.settings, self.hash = self.settings, new, done.hash
        self._swap(old, new, found)
        if self.tls is not None and context is not None:
            _renew(self.tls, new)
        self._note(done)
        return done

    def _prepare(self, old: Settings) -> tuple[Settings, Done, ssl.SSLContext | None]:
        """What takes a while with many tenants, beside the loop. A `ConfigError` says what is wrong."""
        new = self._read()
        refused = needing_restart(old, new)
        if refused:
            raise NeedsRestart([Problem(key, RESTARTS, why) for key, why in refused.items()])
        return new, Done(changes(old, new), config_hash(new)), tls_context(new)

    # --- swap -----------------------------------------------------------------------------------------------------

    def _swap(self, old: Settings, new: Settings, found: Sequence[EndpointSource]) -> None:
        """Tell everybody. Who reads requests is told before the scheduler, whose actions are carried out at once."""
        told, driver = self.told, self.told.driver
        told.callers.reconfigured(new)
        told.affinities.reconfigured(new.routing)
        told.heartbeats.reconfigured(after_s=new.queue.heartbeat_after, wait_s_max=settings_map.wait_s_max(new))
        told.catalog.aliases = settings_map.aliases(new)
        told.server.limits = settings_map.server_limits(new)
        told.auth.reconfigured(*settings_map.admin_tokens(new))
        if told.auth.is_set:
            told.own_token.remove()
        else:
            told.own_token.write(told.server.port)
        told.origins.reconfigured(new.identity)
        told.metrics.reconfigured(new)
        told.metrics.reloaded(self.hash)
        told.app.reconfigured(new)
        told.app.on_end = settings_map.on_end(new)
        logs.use(new.log.format)
        if old.tracing != new.tracing:
            self._retrace(settings_map.tracer(new))
        driver.tell(driver.scheduler.reconfigured(settings_map.scheduler_settings(new), now=driver.now()))
        told.endpoints.reconfigured(settings_map.endpoint_parts(new, driver))
        if _locating(old) != _locating(new):
            locator = settings_map.locator(new, driver, told.catalog)
            told.endpoints.relocate(locator)
            told.app.relocate(locator)
        told.endpoints.want(SETTINGS, new.endpoints)
        told.discovery.reconfigured(found, kept=_kept(old, new, found))

    def _retrace(self, tracer: Tracer | None) -> None:
        before, self.told.app.tracer = self.told.app.tracer, tracer
        if before is not None:
            self._closing = asyncio.get_running_loop().create_task(before.close())

    def _note(self, done: Done) -> None:
        for change in done.changed[:CHANGES_LOGGED_MAX]:
            logger.info("reload: %s", change.line())
        few = "; ".join(change.line() for change in done.changed[:CHANGES_TOLD_MAX])
        more = f"; and {len(done.changed) - CHANGES_TOLD_MAX} more" if len(done.changed) > CHANGES_TOLD_MAX else ""
        self.told.events.note("settings", f"reloaded {done.hash}: {few or 'nothing changed'}{more}")


def _kept(old: Settings, new: Settings, found: Sequence[EndpointSource]) -> set[str]:
    """The sources whose settings are what they were. Sources stand in the order of their settings."""
    return {source.name for entry, source in zip(new.discovery, found, strict=True) if entry in old.discovery}


def _locating(settings: Settings) -> object:
    return settings.routing.locality, settings.routing.lmcache


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """What callers' connections are encrypted with. A `ConfigError` where the files are no good."""
    if not settings.tls.cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        _renew(context, settings)
    except (OSError, ssl.SSLError) as error:
        text = error.strerror or str(error)
        raise ConfigError([Problem("tls", f"the certificate or its key can't be used: {text}")]) from None
    return context


def _renew(context: ssl.SSLContext, settings: Settings) -> None:
    """Connections that come from now on are shown this certificate."""
    assert settings.tls.cert is not None
    context.load_cert_chain(settings.tls.cert, settings.tls.key)
