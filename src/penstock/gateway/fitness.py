"""Would a gateway with these valid settings start on this machine?

Checked without starting: certificates, addresses, the data folder and what discovery needs. Each check is that of the
part which needs it at the start, so both report the same. Left out is what may change in a moment: whether another
program has the port, or another gateway the data folder.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping

from penstock.config.address import UNIX, cannot_listen
from penstock.config.load import ConfigError, Problem, require_endpoints
from penstock.config.model import Settings
from penstock.config.sections.batch import NO_FOLDER, store_folder
from penstock.config.values import write_moment
from penstock.gateway.certificate import Certificate
from penstock.gateway.endpoints.discovery.sources import sources
from penstock.gateway.endpoints.pool_rules import RuleBook
from penstock.http.server.listener import bound


def start_problems(settings: Settings, env: Mapping[str, str]) -> list[Problem]:
    """Returns the reasons why `serve` would not start here. Leaves nothing behind."""
    asked: tuple[Callable[[], object], ...] = (
        lambda: require_endpoints(settings),
        lambda: Certificate().check(settings),
        lambda: sources(settings.discovery, env, RuleBook()),
        lambda: _store(settings, env),
        lambda: _address("listen", settings.listen, settings.listen_address),
        lambda: _address("admin.listen", settings.at_operators, settings.admin_address),
        lambda: _share(settings),
    )
    found: list[Problem] = []
    for ask in asked:
        try:
            ask()
        except ConfigError as error:
            found += error.problems
    return found


def start_warnings(settings: Settings, env: Mapping[str, str], now: float) -> list[str]:
    """Returns what `serve` would go without here, a sentence each. `now`: Unix time."""
    why = None if settings.needs_store or not settings.keeps_usage else _no_store(settings, env)
    without = [] if why is None else [f"the ledger of use would be lost at the end: {why}"]
    return without + [
        f"tenants[{at}].keys[{number}] expired at {write_moment(key.expires)}: its requests get 401"
        for at, tenant in enumerate(settings.tenants)
        for number, key in enumerate(tenant.keys)
        if key.expires is not None and key.expires <= now
    ]


def _store(settings: Settings, env: Mapping[str, str]) -> None:
    if settings.needs_store and (why := _no_store(settings, env)) is not None:
        from penstock.batch.store.opening import missing  # noqa: PLC0415 - some gateways store nothing

        raise missing(settings, why)


def _no_store(settings: Settings, env: Mapping[str, str]) -> str | None:
    """Returns why there can be no store here; None: nothing is in the way, as far as can be seen."""
    if not settings.store.enabled or settings.store.url is not None:
        return None
    from penstock.batch.store.sqlite import unusable  # noqa: PLC0415 - a start tries, instead of asking

    folder = store_folder(settings, env)
    return NO_FOLDER if folder is None else unusable(folder)


def _share(settings: Settings) -> None:
    if settings.share.tls.given:
        from penstock.gateway.cluster.listener import context  # noqa: PLC0415 - one gateway alone needs none of it

        context(settings.share.tls, server=True)


def _address(key: str, where: str, address: tuple[str, int] | None) -> None:
    if address is None:
        return
    host, port = address
    try:
        if host.startswith(UNIX):
            from penstock.http.server.unix_socket import examine  # noqa: PLC0415 - most gateways listen on ports

            examine(host.removeprefix(UNIX))  # binding would leave a file behind
            return
        for one in asyncio.run(bound(host, port)):
            one.close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError([Problem(key, cannot_listen(where, error))]) from None
