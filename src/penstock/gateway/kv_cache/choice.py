"""Who locates cached prefixes, by the settings? The code of it is imported only where somebody does."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from penstock.config.model import Settings
from penstock.core.scheduler import Scheduler
from penstock.gateway.proxy.driver import Driver

if TYPE_CHECKING:
    from penstock.engines.kv_blocks import Changes
    from penstock.gateway.kv_cache.locator import Locates, Locator


def locator(
    settings: Settings,
    driver: Driver[Locates],
    names_of: Callable[[str], Collection[str]],
    tell: Callable[[str, Changes], None] = lambda _endpoint, _changes: None,
) -> Locator | None:
    """The source of cached prefixes. None if our own history suffices for the settings' policy."""
    routing = settings.routing
    if routing.locality == "history":  # and no source is used with a policy that ignores it
        return None
    from penstock.gateway.kv_cache.lmcache import Controller, Coordinator, LmCache, Service  # noqa: PLC0415
    from penstock.gateway.kv_cache.locator import Locator  # noqa: PLC0415

    lmcache = None
    if routing.locality == "lmcache":
        named = routing.lmcache
        services: list[Service] = [Coordinator(named.coordinator)] if named.coordinator else []
        services += [Controller(named.controller)] if named.controller else []
        lmcache = LmCache(services)
    return Locator(driver, lmcache=lmcache, names_of=names_of, tell=tell)


def tells(driver: Driver[Scheduler]) -> Callable[[str, Changes], None]:
    """Returns a callback that passes an endpoint's changes to the scheduler's index."""

    def tell(name: str, changes: Changes) -> None:
        scheduler, now = driver.scheduler, driver.now()
        if changes.lost:
            driver.tell(scheduler.kv_lost(name, now=now))
        elif changes.cleared:
            driver.tell(scheduler.kv_cleared(name, now=now))
        if changes.removed:
            gone = not changes.forgotten
            driver.tell(scheduler.kv_removed(name, [*changes.removed], gone=gone, now=now))
        if changes.stored:
            driver.tell(scheduler.kv_stored(name, [*changes.stored], now=now))

    return tell
