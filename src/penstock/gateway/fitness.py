"""Settings that are good: would a gateway start with them on this machine?

What `serve` finds out only when it starts is found out here without starting: whether certificates can be used, whether
this machine has the address, whether the data folder can be written to, whether discovery has what it needs around it.
Each is asked of the part that asks it at the start, so both say the same. Left out is what may be otherwise a moment
later: whether another program has the port, or another gateway the data folder.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.batch.store.sqlite import unusable
from penstock.config.load import ConfigError, Problem, require_endpoints
from penstock.config.model import Settings
from penstock.gateway.certificate import Certificate
from penstock.gateway.endpoints.discovery.sources import sources
from penstock.http.server.listener import bound


def start_problems(settings: Settings, env: Mapping[str, str]) -> list[Problem]:
    """Returns what would keep `serve` from starting here with these settings. Keeps nothing, leaves nothing behind."""
    asked: tuple[Callable[[], object], ...] = (
        lambda: require_endpoints(settings),
        lambda: Certificate().check(settings),
        lambda: sources(settings.discovery, env),
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
    """Returns what to say where an address can't be listened on."""
    return f"cannot listen on {where}: {error.strerror or error}"


def at_operators(settings: Settings) -> str:
    """Returns the operators' address, as it is named in messages."""
    return f"{settings.admin.listen} (admin.listen)"


def _data_folder(settings: Settings) -> None:
    if settings.batch.data is None or settings.batch.store != "sqlite":
        return
    if (why := unusable(Path(settings.batch.data))) is not None:
        raise ConfigError([Problem("batch.data", why)])


def _share(settings: Settings) -> None:
    if settings.share.tls.given:
        from penstock.gateway.share.dial import context  # noqa: PLC0415 - one gateway alone needs none of it

        context(settings.share.tls, server=True)


def _address(key: str, where: str, address: tuple[str, int] | None) -> None:
    if address is None:
        return
    try:
        for one in asyncio.run(bound(*address)):
            one.close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError([Problem(key, cannot_listen(where, error))]) from None
