"""The record as a row in PostgreSQL, for gateways that store batches there.

Compare and set is one UPDATE that names the version it replaces. Not an advisory lock, which ends with its connection,
not with its holder's term. A cut connection would give it to another while the holder still decides, and a holder that
stands still would keep it, because its kernel goes on to answer. Each statement stands for itself, so a pooler between
may be of any kind. Needs the extra `postgres` (psycopg 3).
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import psycopg

from penstock.share.election import Claim, ElectionError, Record

CONNECT_S: Final = 2
ENDING_MAX: Final = 16  # statements that were cancelled and have not ended
TABLE: Final = "penstock_election"
_MAKE: Final = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (name TEXT PRIMARY KEY, version TEXT NOT NULL, id TEXT NOT NULL, "
    "address TEXT NOT NULL, epoch BIGINT NOT NULL)"
)
_READ: Final = f"SELECT version, id, address, epoch FROM {TABLE} WHERE name = %(name)s"  # noqa: S608 (a constant)
_INSERT: Final = (
    f"INSERT INTO {TABLE} (name, version, id, address, epoch) "  # noqa: S608
    "VALUES (%(name)s, %(version)s, %(id)s, %(address)s, %(epoch)s) ON CONFLICT DO NOTHING RETURNING epoch"
)
_UPDATE: Final = (
    f"UPDATE {TABLE} SET version = %(version)s, id = %(id)s, address = %(address)s, epoch = %(epoch)s "  # noqa: S608
    "WHERE name = %(name)s AND version = %(over)s RETURNING epoch"
)
_LOCK: Final = 7_075_736_364  # an arbitrary number: those that make the table at once take turns


class PostgresRow:
    """One row of one database."""

    def __init__(self, url: str, name: str) -> None:
        self.where = f"the row {name} of {TABLE} in PostgreSQL"
        self._url = url
        self._name = name
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._ending: set[asyncio.Task[Any]] = set()

    async def read(self) -> Record:
        """Returns the row; raises ElectionError."""
        try:
            found = await self._run(_READ)
        except psycopg.errors.UndefinedTable:
            await self._make()
            return Record()
        return Record(*found[0]) if found else Record()

    async def write(self, over: Record, claim: Claim) -> Record | None:
        """Write `claim` if the version still is that of `over`; None: it is not. Raises ElectionError."""
        version = secrets.token_hex(8)
        written = await self._run(
            _UPDATE if over.version else _INSERT,
            version=version,
            id=claim.id,
            address=claim.address,
            epoch=claim.epoch,
            over=over.version,
        )
        return Record(version, claim.id, claim.address, claim.epoch) if written else None

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _make(self) -> None:
        for statement in (f"SELECT pg_advisory_lock({_LOCK})", _MAKE, f"SELECT pg_advisory_unlock({_LOCK})"):
            await self._run(statement)

    async def _run(self, statement: str, **values: object) -> list[Any]:
        """Returns the rows. A statement that is cancelled ends by itself: psycopg first asks the server to end it."""
        if len(self._ending) >= ENDING_MAX:
            raise ElectionError("it has not answered for too long")
        task = asyncio.get_running_loop().create_task(self._execute(statement, {"name": self._name, **values}))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self._connection = None  # discarding pending results
            self._ending.add(task)
            task.add_done_callback(self._ended)
            task.cancel()
            raise
        try:
            return task.result()
        except psycopg.errors.UndefinedTable:
            raise
        except (psycopg.Error, UnicodeDecodeError) as error:  # of a database whose encoding is SQL_ASCII
            raise ElectionError(explained(error)) from None

    async def _execute(self, statement: str, values: dict[str, object]) -> list[Any]:
        connection = self._connection
        if connection is None or connection.closed:
            # Prepared statements would stay with a server that a pooler may exchange. A database without an encoding
            # (SQL_ASCII) would answer with bytes.
            connection = await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT_S, client_encoding="utf8"
            )
            self._connection = connection
        try:
            cursor = await connection.execute(statement, values)
            return await cursor.fetchall() if cursor.description else []
        except asyncio.CancelledError:
            await connection.close()
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # the query was abandoned


def explained(error: Exception) -> str:
    """Returns the error of PostgreSQL or its connection, with a remedy."""
    said = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"the role needs the right to make the table, or to read and write it ({said})"
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return f"it is a standby, or takes no writes: name the primary ({said})"
    return said
