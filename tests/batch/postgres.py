"""A PostgreSQL server for a test: its own, on a socket in a folder of its own, gone afterwards.

Debian's package brings the binaries. `PENSTOCK_TEST_POSTGRES=required` turns a missing one into a failure: that is
`make test-postgres`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = os.environ.get("PENSTOCK_TEST_POSTGRES") == "required"


def binary(name: str) -> str | None:
    """Debian keeps the server's own programs out of the path."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(places[-1]) if places else None)


def require() -> None:
    """Skip, with the reason, where there is no server to start; fail where one is required."""
    missing = [name for name in ("initdb", "postgres") if binary(name) is None]
    try:
        import psycopg  # noqa: F401, PLC0415
    except ImportError:
        missing.append("psycopg")
    if missing:
        reason = f"PostgreSQL is not here: {', '.join(missing)} missing"
        if REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)


class Server:
    """One that can be stopped and started again, with what it holds."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.url = f"postgresql://penstock@/postgres?host={folder}"
        self._folder = folder
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={self._folder}", "-c", "fsync=off"]
        postgres = binary("postgres")
        assert postgres is not None
        self.process = subprocess.Popen([postgres, "-D", self._folder / "data", *settings], **self._options)
        _wait_for(self.url)

    def stop(self) -> None:
        """At once, whoever is connected."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@contextmanager
def own_server() -> Iterator[Server]:
    """A server that lives as long as this. It refuses to run as root, so root lends it another user."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    user = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid} if os.geteuid() == 0 else {}
    if user:
        shutil.chown(folder, "nobody")
    options = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
    initdb = binary("initdb")
    assert initdb is not None
    running = Server(folder, options)
    try:
        subprocess.run(  # type: ignore[call-overload]
            [
                *(initdb, "-D", folder / "data", "-U", "penstock", "-A", "trust", "--no-sync", "--no-instructions"),
                *("--locale=C", "--encoding=UTF8"),  # and not as whoever runs the tests has it
            ],
            check=True,
            **options,
        )
        try:
            running.start()
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server that lives as long as this."""
    with own_server() as running:
        yield running.url


def _wait_for(url: str) -> None:
    import psycopg  # noqa: PLC0415

    for attempt in range(600):
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if attempt == 599:
                raise
            subprocess.run(["sleep", "0.05"], check=True)
        else:
            return


def fresh(url: str) -> None:
    """Empty the database."""
    import psycopg  # noqa: PLC0415

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def without_encoding(url: str) -> str:
    """Returns the URL of an empty database as `initdb` makes it where no locale is set (`LANG=C`): SQL_ASCII."""
    import psycopg  # noqa: PLC0415

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS plain")
        connection.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    return f"{url}&dbname=plain"
