"""What is handed to a worker beside its link: its settings as they were written, and a folder with the socket where it
asks what only the first process can answer.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import SecretStr

from penstock.config.model import Settings
from penstock.gateway.admin.own_token import folder_of


def private_folder(settings: Settings) -> Path:
    """A folder that only this user may enter, for the socket that workers ask at. OSError: there is no place for it."""
    kept = folder_of(settings.state_dir, os.environ)
    for place in (None, *([] if kept is None else [kept.parent, kept])):
        try:
            return Path(tempfile.mkdtemp(prefix="penstock-", dir=place))
        except OSError:
            continue  # as where the root is read-only
    raise OSError(errno.EROFS, "workers need a folder for a socket, and no temporary one can be made (set TMPDIR)")


def bands_of(settings: Settings) -> Sequence[str]:
    return tuple(band.name for band in settings.bands)


def document(settings: Settings) -> bytes:
    """The settings as they were written, secrets and all: for a process of our own."""
    return json.dumps(settings.model_dump(exclude_unset=True), default=_secret).encode()


def _secret(value: object) -> str:
    assert isinstance(value, SecretStr), "everything else in the settings is JSON"
    return value.get_secret_value()
