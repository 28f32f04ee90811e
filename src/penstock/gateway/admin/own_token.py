"""Which admin token does a gateway have that nobody gave one, and how do the commands on its machine find it?

It makes one at each start and writes it into its state folder, by its port or socket: users that may read the file (its
own, and root) may use `/admin`, and nobody has to copy anything. The file goes at a clean end, so a process that
listens on the port after that learns from a command nothing that opens the next gateway.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.config.address import UNIX
from penstock.config.sections.batch import SYSTEM_FOLDER, state_folders

if TYPE_CHECKING:
    from penstock.config.model import Settings

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32
READ_BYTES_MAX = 512
FILE = "admin-token"
_SET = "PENSTOCK__STATE_DIR"  # the setting, as the commands can see it
_DEFAULT_PORTS = {"http": 80, "https": 443}


class OwnToken:
    """A gateway's own token, and the file that holds it while it runs."""

    def __init__(self, folder: Path | None, token: str | None = None) -> None:
        self.token = token or secrets.token_hex(TOKEN_BYTES)  #: given if gateways have it in common
        self.file: Path | None = None  #: once it is written
        self._folder = None if folder is None else folder.absolute()
        self._place: int | str | None = None  # once the gateway listens
        self._needed = False

    def follow(self, settings: Settings) -> None:
        """Be there for the commands on this machine as long as no token is set."""
        self._needed = not settings.admin.has_token
        self._settle()

    def listening(self, place: int | str) -> None:
        """The gateway listens on this port or at this `unix:/path`: the file's place is known."""
        self._place = place
        self._settle()

    def _settle(self) -> None:
        if self._place is None:
            return
        if self._needed:
            self.write(self._place)
        else:
            self.remove()

    def write(self, place: int | str) -> None:
        """Write the file for the commands on this machine; a failure is logged."""
        if self.file is not None:
            return
        if self._folder is None:
            _unkept("there is no home folder for it")
            return
        file = self._folder / _named(place) / FILE
        try:
            _private_folder(file.parent)
            _write(file, self.token)
        except OSError as error:
            _unkept(f"{file}: {(error.strerror or str(error)).lower()}")
        else:
            self.file = file
            logger.info(
                "commands on this machine read the admin token from %s; those that don't find it: export %s=%s",
                *(file, _SET, self._folder),
            )

    def remove(self) -> None:
        """The gateway ends. A file that another one has written since stays."""
        file, self.file = self.file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            if _read(file) == self.token:
                file.unlink()
                file.parent.rmdir()


def find(url: str, env: Mapping[str, str]) -> str | None:
    """The token of the gateway at a URL, if it is on this machine and its file can be read."""
    place: int | str | None
    if url.startswith(UNIX):
        place = ":".join(url.split(":")[:2])  # without a prefix
    else:
        try:
            parts = urlsplit(url)
            place = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            return None
        if place is None or not is_here(parts.hostname):
            return None
    for folder in (*state_folders(env.get(_SET), env), Path(SYSTEM_FOLDER)):
        with contextlib.suppress(OSError):
            return _read(folder / _named(place) / FILE)
    return None


def for_wall(token: str) -> str:
    """The token of a link for a wall screen, made of an admin token: it only reads, and ends when that one is changed.

    One-way, so that whoever has the link has nothing else; no gateway has to keep it, and all of a group know it.
    """
    return hmac.new(token.encode("utf-8", "surrogatepass"), b"penstock wall link", hashlib.sha256).hexdigest()


def is_here(host: str | None) -> bool:
    if host is None or host.lower().rstrip(".") == "localhost":
        return host is not None
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _named(place: int | str) -> str:
    """Returns the name of a place's folder: its port, or `unix:run:x.sock` for the socket that a path leads to."""
    if isinstance(place, int):
        return str(place)
    return UNIX + os.path.realpath(place.removeprefix(UNIX))[1:].replace("/", ":")


def _private_folder(folder: Path) -> None:
    """Make it, for its owner only. One that others could write into is no place for a secret."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(None, "others may write into its folder")


def _write(file: Path, token: str) -> None:
    """All at once, readable by its owner only from the first moment."""
    part = file.with_name(f".{FILE}.{secrets.token_hex(8)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w") as out:
            out.write(token + "\n")
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _read(file: Path) -> str:
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(handle) as text:
        return text.read(READ_BYTES_MAX).strip()


def _unkept(why: str) -> None:
    logger.warning(
        "admin.token is not set and no generated token could be stored (%s); /admin is read-only; set admin.token or "
        "state_dir",
        why,
    )
