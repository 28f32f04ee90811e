"""Would a gateway with these valid settings start on this machine?

Checked without starting: certificates, addresses, the data folder and what discovery needs. Each check is that of the
part which needs it at the start, so both report the same. Left out is what may change in a moment: whether another
program has the port, or another gateway the data folder.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.config.address import UNIX
from penstock.config.load import ConfigError, Problem, require_endpoints
from penstock.config.model import Settings
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
        lambda: _data_folder(settings),
        lambda: _address("listen", settings.listen, settings.listen_address),
        lambda: _address("admin.listen", at_operators(settings), settings.admin_address),
        lambda: _share(settings),
    )
    found: list[Problem] = []
    for ask in asked:
        try:
            ask()
        except ConfigError as error:
            found += error.problems
    return found


def cannot_listen(where: str, error: OSError) -> str:
    """Returns the error text for an address that can't be listened on."""
    return f"cannot listen on {where}: {error.strerror or error}"


def at_operators(settings: Settings) -> str:
    """Returns the operators' address, as it is named in messages."""
    return f"{settings.admin.listen} (admin.listen)"


def _data_folder(settings: Settings) -> None:
    if settings.batch.data is None or settings.batch.store != "sqlite":
        return
    from penstock.batch.store.sqlite import unusable  # noqa: PLC0415 - many gateways store nothing

    if (why := unusable(Path(settings.batch.data))) is not None:
        raise ConfigError([Problem("batch.data", why)])


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
