"""Which store does a gateway have, and when is it opened?

A store that a setting asks for is tried at the start, because a folder that can't be used is a mistake in the settings.
One that is only there by default is opened by its first use: if that fails, the gateway serves without, and tries
again. So does a gateway whose database is down, whose file is damaged or whose disk is full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.batch.store.port import StorageFullError, Store, StoreBrokenError, StoreError
from penstock.batch.store.thread import StoreThread
from penstock.config.problems import ConfigError, Problem
from penstock.config.sections.batch import NO_FOLDER, store_folder

if TYPE_CHECKING:
    from penstock.config.model import Settings

logger = logging.getLogger(__name__)


def store_thread(settings: Settings, env: Mapping[str, str]) -> StoreThread:
    """Returns the store of a gateway. Raises ConfigError if the folder that a setting needs can't be used."""
    if settings.store.url is not None:
        return StoreThread(_postgres(settings.store.url.get_secret_value()))
    folder = store_folder(settings, env)

    def sqlite() -> Store:
        from penstock.batch.store.sqlite import SqliteStore  # noqa: PLC0415 - no start needs it

        if folder is None:
            raise StoreError(NO_FOLDER)
        store = SqliteStore(folder)
        logger.info("the store is in %s", folder.absolute())
        return store

    opened: list[Store] = []
    if settings.needs_store is not None:
        try:
            opened.append(sqlite())
        except (StoreBrokenError, StorageFullError) as error:
            logger.warning("the store is down: %s", error)
        except StoreError as error:
            raise missing(settings, str(error)) from None
    return StoreThread(lambda: opened.pop() if opened else sqlite())


def missing(settings: Settings, why: str) -> ConfigError:
    """Returns the error of settings that need a store where none can be had."""
    needs = settings.needs_store
    return ConfigError(
        [Problem("store", why, None if needs == "store" else f"`{needs}` needs one: name a folder, `store: FOLDER`")]
    )


def _postgres(url: str) -> Callable[[], Store]:
    from penstock.batch.store.postgres import PostgresStore  # noqa: PLC0415 - an extra, which may be missing

    return lambda: PostgresStore(url)
