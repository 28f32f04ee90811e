"""What is handed to a worker beside its link: its settings as they were written, and a folder with the socket where it
asks what only the first process can answer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from penstock.config.model import Settings
from penstock.gateway.admin.own_token import folder_of

SOCKET: Final = "http"
_PREFIX: Final = "penstock-"
_YOUNG_S: Final = 60.0  # a gateway that is starting has made its folder, and does not listen yet


def private_folder(settings: Settings) -> Path:
    """A folder that only this user may enter, for the socket that workers ask at. OSError: there is no place for it.

    What gateways of this user that were killed have left in the same place is removed.
    """
    kept = folder_of(settings.state_dir, os.environ)
    for place in (None, *([] if kept is None else [kept.parent, kept])):
        try:
            made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        except OSError:
            continue  # as where the root is read-only
        for folder in made.parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _is_left_over(folder):
                    shutil.rmtree(folder)
        return made
    raise OSError(errno.EROFS, "workers need a folder for a socket, and no temporary one can be made (set TMPDIR)")


def _is_left_over(folder: Path) -> bool:
    """Returns True for a folder as gateways make it, of this user, at whose socket nobody listens any more."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or time.time() - about.st_mtime < _YOUNG_S:
        return False
    if [file.name for file in folder.iterdir()] != [SOCKET] or not (folder / SOCKET).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)  # noqa: FBT003 - the socket's own
        return asking.connect_ex(str(folder / SOCKET)) == errno.ECONNREFUSED


def bands_of(settings: Settings) -> Sequence[str]:
    return tuple(band.name for band in settings.bands)


def document(settings: Settings) -> bytes:
    """The settings as they were written, secrets and all: for a process of our own."""
    return json.dumps(settings.model_dump(exclude_unset=True), default=_secret).encode()


def _secret(value: object) -> str:
    assert isinstance(value, SecretStr), "everything else in the settings is JSON"
    return value.get_secret_value()
