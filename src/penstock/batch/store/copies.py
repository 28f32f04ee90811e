"""`penstock store check|backup|restore`: copies of the SQLite store, which holds batches, issued keys and the ledger.

A backup is one moment of the store, taken while a gateway writes to it: a reader of a WAL database keeps its snapshot,
and SQLite's backup API copies that. It appears under its name only when it is whole. Restoring needs the folder's lock,
so no gateway may run; the replaced store is kept beside the new one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.batch.store.database import migrations
from penstock.batch.store.port import StoreError
from penstock.batch.store.sqlite import FILE, lock
from penstock.config.load import ConfigError, load
from penstock.config.sections.batch import NO_FOLDER, STORE, SYSTEM_FOLDER, store_folder

EXIT_OK, EXIT_WRONG, EXIT_UNREADABLE = 0, 1, 2
SAME_SECOND_MAX = 100  # stores that are replaced in one second, each of which is kept
_STEP_PAGES = 2_560  # 10 MiB
_LOGS = ("-wal", "-shm")  # what SQLite keeps beside a file


class Content(NamedTuple):
    """What a store holds. `rows`: by table."""

    schema: int
    rows: dict[str, int]

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {table}" for table, count in self.rows.items() if count)
        return f"schema {self.schema}; rows: {counts or 'none'}"


def check(file: Path) -> Content:
    """Returns what a store's file holds, also while a gateway writes to it.

    Raises StoreError if it is not one, is damaged, or was made by a newer Penstock.
    """
    with _reading(file) as database:
        return _checked(database, file)


def backup(file: Path, to: Path, progress: Callable[[int, int], None] | None = None) -> Content:
    """Copy one moment of the store in `file`. Returns what the copy holds. Raises StoreError; `to` must not exist.

    `progress` is called with the pages that are left, and with their total.
    """
    if to.exists():
        raise StoreError(f"{to} is a folder; name a new file in it" if to.is_dir() else f"{to} exists; name a new file")
    part = to.with_name(f"{to.name}.part")
    try:
        with _reading(file) as database:
            part.unlink(missing_ok=True)
            part.touch(mode=0o600)  # it holds people's prompts and hashes of keys
            database.execute("BEGIN")
            database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # from here on it is one moment
            with closing(sqlite3.connect(part, isolation_level=None)) as copy:
                database.backup(
                    copy, pages=_STEP_PAGES, progress=progress and (lambda _, left, pages: progress(left, pages))
                )
                copy.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, without a log beside it
                content = _checked(copy, part)
        _keep(part, to)
    except OSError as error:
        raise StoreError(f"{to}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StoreError(f"{file}: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return content


def restore(source: Path, folder: Path, *, now: float) -> tuple[Content, Path | None]:
    """Put a backup in the place of a folder's store. Returns what it holds, and where the replaced store is now.

    Raises StoreError if the backup is no good or a gateway uses the folder; then nothing has changed.
    """
    content = check(source)
    with lock(folder, "a running gateway; stop that first"):
        file, part = folder / FILE, folder / f"{FILE}.part"
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        names = (f"{FILE}.before-{stamp}{number}" for number in ("", *range(-1, -SAME_SECOND_MAX, -1)))
        before = next((path for name in names if not (path := folder / name).exists()), None)
        if before is None:
            raise StoreError(f"{folder} has too many replaced stores of this second")
        try:
            part.unlink(missing_ok=True)
            part.touch(mode=0o600)
            shutil.copyfile(source, part)
            replaced = file.exists()
            if replaced:
                for ending in ("", *_LOGS):
                    if (old := Path(f"{file}{ending}")).exists():
                        old.rename(f"{before}{ending}")
            _keep(part, file)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)
    return content, before if replaced else None


def _keep(part: Path, file: Path) -> None:
    """Give a finished file its name, so that it outlasts a power cut."""
    _sync(part)
    part.rename(file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _reading(file: Path) -> Iterator[sqlite3.Connection]:
    if not file.is_file():
        raise StoreError(f"{file}: no such file")
    if file.suffix in (".yaml", ".yml"):
        raise StoreError(f"{file} is no store; settings go behind `-c`")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as opened:
            yield opened
    except sqlite3.Error as error:
        raise StoreError(f"{file}: {error}") from error


def _checked(database: sqlite3.Connection, file: Path) -> Content:
    try:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if "schema_version" not in tables:
            raise StoreError(f"{file} is not a store of Penstock")
        schema = database.execute("SELECT MAX(version) FROM schema_version").fetchone()[0] or 0
        if schema > (known := len(migrations())):
            raise StoreError(f"{file} has schema {schema}, and this Penstock knows {known}: it was made by a newer one")
        wrong = [text for (text,) in database.execute("PRAGMA integrity_check(3)") if text != "ok"]
        if wrong:
            raise StoreError(f"{file} is damaged: {'; '.join(wrong)}")
        named = sorted(name for name in tables if name != "schema_version" and not name.startswith("sqlite_"))
        count = "SELECT COUNT(*) FROM "
        return Content(schema, {name: database.execute(f'{count}"{name}"').fetchone()[0] for name in named})
    except sqlite3.Error as error:
        raise StoreError(f"{file}: {error}") from error


# --- the command ----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, work, text in (
        ("check", _check, "Check the store's file, also while a gateway runs, and count its rows."),
        ("backup", _backup, "Copy the store to a new file, also while a gateway runs."),
        ("restore", _restore, "Put a backup in the store's place. The gateway must be stopped; the old store is kept."),
    ):
        verb = verbs.add_parser(name, help=text.split(".")[0].lower(), description=text)
        verb.set_defaults(work=work)
        where = verb.add_mutually_exclusive_group() if name == "check" else verb
        if name == "check":
            where.add_argument(
                "file", metavar="FILE", type=Path, nargs="?", help="a backup or another store (default: the gateway's)"
            )
        else:
            verb.add_argument("file", metavar="FILE", type=Path, help="the backup")
        verb.add_argument(
            "-c", "--config", metavar="SETTINGS", default=os.environ.get("PENSTOCK_CONFIG"), help="settings (YAML)"
        )
        where.add_argument("--data", metavar="FOLDER", type=Path, help="the store's folder, instead of `store.data`")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if it worked, 1 if the store is no good, 2 if the settings are."""
    try:
        args.work(args)
    except ConfigError as error:
        for problem in error.problems:
            print(f"penstock: {problem.line()}", file=sys.stderr)
        return EXIT_UNREADABLE
    except StoreError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return EXIT_WRONG
    return EXIT_OK


def _folder(args: argparse.Namespace) -> Path:
    """Returns the folder of the store that flag or settings name; that of the service, if only it has one."""
    if args.data is not None:
        return Path(args.data)
    settings = load(args.config, os.environ)
    if settings.store.url is not None:
        raise StoreError("the store is PostgreSQL; its own tools copy it (pg_dump, pg_restore)")
    if not settings.store.enabled:
        raise StoreError("there is no store: `store` is off")
    folder, system = store_folder(settings, os.environ), Path(SYSTEM_FOLDER) / STORE
    if settings.store.data is None and (folder is None or not folder.exists()) and (system / FILE).exists():
        return system
    if folder is None:
        raise StoreError(NO_FOLDER)
    if not (folder.is_absolute() or folder.exists() or args.work is _restore):
        raise StoreError(f"{folder.absolute()}: no such folder; the setting is relative to where the gateway starts")
    return folder.absolute()


def _check(args: argparse.Namespace) -> None:
    given: Path | None = args.file
    file = given if given is not None and not given.is_dir() else (given or _folder(args)) / FILE
    print(f"{file}: ok; {check(file)}")


def _backup(args: argparse.Namespace) -> None:
    def progress(left: int, pages: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{100 * (pages - left) // max(1, pages)} %", end="" if left else "\n", file=sys.stderr)

    store = _folder(args) / FILE
    print(f"{args.file}: {backup(store, args.file, progress)}\na copy of {store}")


def _restore(args: argparse.Namespace) -> None:
    folder = _folder(args)
    content, before = restore(args.file, folder, now=time.time())
    print(f"{folder / FILE}: {content}" + (f"\nthe store before: {before}" if before else ""))
