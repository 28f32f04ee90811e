"""Running statements on any database. A statement is run by name, in one transaction at once, on an up-to-date schema.

The statements stand in `sql/queries.sql`, the migrations beside it; migrations are numbered, and only ever added. The
differences between databases fit a short subclass: `sqlite.py`, `postgres.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from penstock.batch.store.port import StoreError

Row = tuple[Any, ...]
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_POSTGRES = re.compile(r"/\*postgres: (.*?)\*/", re.DOTALL)
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


class Database(ABC):
    """One connection to a database, with the named statements."""

    def __init__(self) -> None:
        self._statements = {name: self.dialect(text) for name, text in named_queries().items()}

    # --- per database -----------------------------------------------------------------------------------------

    @abstractmethod
    def dialect(self, statement: str) -> str:
        """Returns a statement as this database takes it."""

    @abstractmethod
    def execute(self, statement: str, values: Mapping[str, object] | None = None) -> Any:
        """Run a statement; returns its cursor. Errors are the database's own."""

    @abstractmethod
    def execute_many(self, statement: str, values: Sequence[Mapping[str, object]]) -> None:
        """Run a statement once for each row of `values`. Errors are the database's own."""

    @abstractmethod
    def translated(self, error: Exception) -> Exception:
        """Returns the `StoreError` for a database's own error; the same `error` if it is a mistake of this program."""

    def begin(self) -> None:
        self.execute("BEGIN")

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    # --- common -----------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: all or nothing. Raises StoreError if the database fails."""
        try:
            self.begin()
            yield
            self.execute("COMMIT")
        except Exception as error:
            self._roll_back()
            known = self.translated(error)
            if known is error:
                raise
            raise known from error

    def _roll_back(self) -> None:
        try:
            self.execute("ROLLBACK")
        except Exception as error:  # already rolled back, or the connection is gone
            if self.translated(error) is error:
                raise

    def run(self, name: str, /, **values: object) -> int:
        """Run the change called `name`. Returns how many rows it changed."""
        return int(self.execute(self._statements[name], values).rowcount)

    def run_many(self, name: str, values: Sequence[Mapping[str, object]]) -> None:
        if values:
            self.execute_many(self._statements[name], values)

    def rows(self, name: str, /, **values: object) -> list[Row]:
        try:
            found: list[Row] = self.execute(self._statements[name], values).fetchall()
        except Exception as error:
            known = self.translated(error)
            if known is error:
                raise
            raise known from error
        return found

    def row(self, name: str, /, **values: object) -> Row | None:
        rows = self.rows(name, **values)
        return rows[0] if rows else None

    def migrate(self) -> None:
        """Bring the schema up to date. Raises StoreError if the schema is newer than this program."""
        with self.transaction():
            self.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
            found = self.execute("SELECT MAX(version) FROM schema_version").fetchall()[0][0] or 0
            steps = migrations()
            if found > len(steps):
                raise StoreError(f"the store's schema is version {found}, and this Penstock knows {len(steps)}")
            for version, text in enumerate(steps[found:], start=found + 1):
                for statement in _statements(text):
                    self.execute(self.dialect(statement))
                self.execute(f"INSERT INTO schema_version (version) VALUES ({version})")  # noqa: S608 (a number)


@cache
def named_queries() -> dict[str, str]:
    """Returns the statements of `queries.sql` by name, without their comments."""
    pieces = _NAME.split(_read("queries.sql"))[1:]
    return {name: _without_comments(text).strip() for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


@cache
def migrations() -> tuple[str, ...]:
    """Returns the schema's migrations (SQL), the oldest first."""
    names = sorted(entry.name for entry in _folder().iterdir() if _MIGRATION.fullmatch(entry.name))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1)), "numbered without a gap"
    return tuple(_read(name) for name in names)


def for_postgres(statement: str, *, chosen: bool) -> str:
    """Returns a statement with (`chosen`) or without the parts that are for PostgreSQL only."""
    return _POSTGRES.sub(r"\1" if chosen else "", statement)


def _statements(text: str) -> list[str]:
    return [statement.strip() for statement in _without_comments(text).split(";") if statement.strip()]


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _folder() -> Any:
    return files("penstock.batch.store") / "sql"


def _read(name: str) -> str:
    return str((_folder() / name).read_text("utf-8"))
