"""The store in PostgreSQL, which several gateways may share: each claims items, and a claim expires with its gateway.

Needs the extra `postgres` (psycopg 3). The next call reconnects after a lost connection; the failed call is retried by
its caller. The clocks of the gateways must agree to within seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from penstock.batch.store.database import Database, for_postgres
from penstock.batch.store.port import StorageFullError, StoreError
from penstock.batch.store.sql_store import SqlStore

CONNECT_S = 10
_PARAMETER = re.compile(r"(?<![:\w]):(\w+)")
_MIGRATION_LOCK = 7_075_736_363  # an arbitrary number: gateways that start together take this lock in turn and migrate


class PostgresStore(SqlStore):
    """Files and batches in a PostgreSQL database."""

    def __init__(self, url: str) -> None:
        super().__init__(_Postgres(url))


class _Postgres(Database):
    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def migrate(self) -> None:
        try:
            self.execute(f"SELECT pg_advisory_lock({_MIGRATION_LOCK})")
            super().migrate()
            self.execute(f"SELECT pg_advisory_unlock({_MIGRATION_LOCK})")
        except psycopg.Error as error:
            raise self.translated(error) from None

    def dialect(self, statement: str) -> str:
        return _PARAMETER.sub(r"%(\1)s", for_postgres(statement, chosen=True))

    def execute(self, statement: str, values: Mapping[str, object] | None = None) -> Any:
        return self._connected().execute(statement, values)

    def execute_many(self, statement: str, values: Sequence[Mapping[str, object]]) -> None:
        with self._connected().cursor() as cursor:
            cursor.executemany(statement, values)

    def translated(self, error: Exception) -> Exception:
        if isinstance(error, psycopg.errors.DiskFull):
            return StorageFullError("PostgreSQL's disk is full")
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return StoreError(f"PostgreSQL: {str(error).strip() or type(error).__name__}")
        return error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            # A database without an encoding (SQL_ASCII) would answer with bytes.
            self._connection = psycopg.connect(
                self._url, autocommit=True, connect_timeout=CONNECT_S, client_encoding="utf8"
            )
        return self._connection
