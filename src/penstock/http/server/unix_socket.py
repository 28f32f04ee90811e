"""A unix socket to listen on: how is its file made, replaced and removed?

A process that is killed leaves the file behind, and the kernel binds no socket at a path where a file is. So the file
of a socket that nobody listens on is replaced. One that answers, or is no socket, stays, and is an error. Processes
that start at the same time look one after another, by a lock on the folder, and the lock is held until the socket
listens: otherwise each would take the other's for a dead one. The file has the mode that the process's umask leaves.
Closing the socket removes the file, unless another one has come in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

LOCK_TRIES_MAX = 100  # others hold it for less than a millisecond
LOCK_PAUSE_S = 0.02


class UnixSocket(socket.socket):
    """A listening socket that owns its file. Copies in other processes do not."""

    def __init__(self, path: str) -> None:
        """Raises OSError if the path can't be bound."""
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._file: tuple[int, int] | None = None
        self.setblocking(False)  # noqa: FBT003 - the socket's own
        try:
            self.bind(path)
            self._file = _identity(path)
            self.listen()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file, and listen no more."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                if _identity(self._path) == file:
                    Path(self._path).unlink()
        super().close()


async def listening_at(path: str) -> UnixSocket:
    """Returns a socket that listens at `path`. Raises OSError with the reason if there can be none."""
    examine(path)
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        await _lock(folder)
        return _made(path)
    finally:
        os.close(folder)


def examine(path: str) -> bool:
    """Returns True if the file of a dead socket is at `path`. Raises OSError if no socket can be made there."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise OSError(errno.ENOENT, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, f"no right to write into {folder}")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "a file is there that is no socket")
    if not is_dead(path):
        raise OSError(errno.EADDRINUSE, "another process listens there")
    return True


def is_dead(path: str) -> bool:
    """Returns True for the file of a socket that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)  # noqa: FBT003 - the socket's own
        return asking.connect_ex(path) == errno.ECONNREFUSED


def _made(path: str) -> UnixSocket:
    if examine(path):
        Path(path).unlink()
    return UnixSocket(path)


async def _lock(folder: int) -> None:
    """Lock a folder until it is closed. Raises OSError if somebody else keeps it locked."""
    for _ in range(LOCK_TRIES_MAX):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        await asyncio.sleep(LOCK_PAUSE_S)
    raise OSError(errno.EADDRINUSE, "another process keeps its folder locked")


def _identity(path: str) -> tuple[int, int]:
    about = os.lstat(path)
    return about.st_dev, about.st_ino
