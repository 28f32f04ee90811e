"""The store in one SQLite file under a data folder: nothing to install, nothing to run.

The database uses WAL and syncs every commit, so committed data survives a power cut. Only one gateway can use it: a
lock beside the file excludes a second one. So all claims that the file holds at the start are void. Without a folder
the database is in memory, for tests.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from penstock.batch.store.database import Database, for_postgres
from penstock.batch.store.port import StorageFullError, StoreBrokenError, StoreError
from penstock.batch.store.sql_store import SqlStore

FILE = "batch.sqlite3"
LOCK = "batch.lock"
CACHE_KIB = 4096
FREE_BYTES_MIN = 64 << 20  # uploads leave this much of the disk, so that results of running items can still be written
_BUSY_S = 5.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
)
_OURS = (sqlite3.IntegrityError, sqlite3.ProgrammingError)  # mistakes of this program
_VACUUM_PAGES = 256  # 1 MiB, given back to the file system after each step that erases


class SqliteStore(SqlStore):
    """Files and batches in a SQLite file under `folder`; None: in memory. Raises StoreError if it can't be used."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = None if folder is None else lock(folder)
        try:
            self.sqlite = _Sqlite(":memory:" if folder is None else str(folder / FILE))
            super().__init__(self.sqlite)
            with self.database.transaction():
                self.database.run("forget_all_runners")
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        super().close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def make_room(self, size: int) -> None:
        if self._folder is None:
            return
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            raise StoreBrokenError(f"the data folder {self._folder} can't be read: {error.strerror}") from error
        if free - size < FREE_BYTES_MIN:
            raise StorageFullError("the data folder's disk has no room for it")

    def purge(self, now: float) -> bool:
        more = super().purge(now)
        if more:
            self.sqlite.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
        return more


class _Sqlite(Database):
    def __init__(self, path: str) -> None:
        super().__init__()
        try:
            if path != ":memory:":
                Path(path).touch(mode=0o600)  # it holds people's prompts; the log beside it gets the same mode
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        except OSError as error:
            full = error.errno in _FULL
            raise (StorageFullError if full else StoreError)(f"{path}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise self.translated(error) from error
        try:
            for pragma in (
                "auto_vacuum = INCREMENTAL",  # first, because it works only in a file without tables
                "journal_mode = WAL",
                "synchronous = FULL",
                "journal_size_limit = 16777216",
                f"cache_size = -{CACHE_KIB}",
            ):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
        except sqlite3.Error as error:
            self._connection.close()
            raise self.translated(error) from error

    def dialect(self, statement: str) -> str:
        return for_postgres(statement, chosen=False)

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def execute(self, statement: str, values: Mapping[str, object] | None = None) -> Any:
        return self._connection.execute(statement, values or {})

    def execute_many(self, statement: str, values: Sequence[Mapping[str, object]]) -> None:
        self._connection.executemany(statement, values)

    def translated(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, _OURS):
            return error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code, without the extended part
        if code == sqlite3.SQLITE_FULL:
            return StorageFullError("the data folder's disk is full")
        if code in _BROKEN:
            return StoreBrokenError(
                f"SQLite: {error}. {FILE} in the data folder is damaged or gone: put a good copy in its place, "
                "or move it away to begin with an empty store. The rest of the gateway goes on"
            )
        return StoreError(f"SQLite: {error}")

    def close(self) -> None:
        self._connection.close()


def unusable(folder: Path) -> str | None:
    """Returns why no store can be kept in that folder, in the words of one that is tried; None: nothing is in the way.

    Makes nothing and locks nothing. A full disk and a damaged file show only later.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))  # noqa: PTH110
    try:
        if there == folder and not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        tempfile.TemporaryFile(dir=there).close()
        if (lock := folder / LOCK).exists():
            lock.open("ab").close()
    except OSError as error:
        return None if error.errno in _FULL else f"{folder.absolute()} can't be used: {error.strerror}"
    file = folder / FILE
    return f"{file}: {os.strerror(errno.EACCES)}" if file.exists() and not os.access(file, os.W_OK) else None


def lock(folder: Path, held_by: str = "another gateway; use a PostgreSQL store to share it") -> IO[bytes]:
    """Lock the folder until the returned file is closed. Raises StoreError if it is locked: in use by `held_by`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = (folder / LOCK).open("ab")
    except OSError as error:
        full = error.errno in _FULL
        raise (StorageFullError if full else StoreError)(
            f"{folder.absolute()} can't be used: {error.strerror}"
        ) from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise StoreError(f"{folder.absolute()} is in use by {held_by}") from None
    return held
