"""The folder with the socket that workers ask at: what a killed gateway left of its own goes with the next start."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.config.load import from_mapping
from penstock.gateway.cluster.supervisor import SOCKET, private_folder

SETTINGS = from_mapping({"endpoints": [{"url": "http://127.0.0.1:9"}]})
HOUR_S = 3_600


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary ones; a socket's path may not be long."""
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


@pytest.fixture
def listeners() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def folder(place: Path, name: str, listeners: ExitStack, *, lives: bool = False, old: bool = True) -> Path:
    """As a gateway makes it, which was killed unless it lives."""
    made = place / name
    made.mkdir()
    one = listeners.enter_context(socket.socket(socket.AF_UNIX))
    one.bind(str(made / SOCKET))
    one.listen(1)
    if not lives:
        one.close()
    if old:
        os.utime(made, (made.stat().st_atime - HOUR_S, made.stat().st_mtime - HOUR_S))
    return made


def test_what_a_killed_gateway_left_is_removed(place: Path, listeners: ExitStack) -> None:
    left = [folder(place, f"penstock-{number}", listeners) for number in range(3)]
    ours = private_folder(SETTINGS)
    assert ours.parent == place
    assert not any(one.exists() for one in left)
    assert [*place.iterdir()] == [ours]


def test_nothing_else_is_removed(place: Path, listeners: ExitStack) -> None:
    kept = [
        folder(place, "penstock-lives", listeners, lives=True),
        folder(place, "penstock-starts", listeners, old=False),
        folder(place, "another", listeners),
        place / "penstock-file",
        place / "penstock-empty",
        (other := folder(place, "penstock-of-others", listeners)),
        place / "penstock-no-socket",
    ]
    (place / "penstock-file").touch()
    (other / "more").touch()
    (place / "penstock-no-socket").mkdir()
    (place / "penstock-no-socket" / SOCKET).touch()
    (place / "penstock-empty").mkdir()
    for path in kept[3:]:
        os.utime(path, (0, 0))
    (place / "penstock-link").symlink_to(place / "another")
    private_folder(SETTINGS)
    assert all(path.exists() for path in (*kept, place / "penstock-link"))
    full = place / "penstock-lives" / SOCKET  # its line is full: it listens all the same
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(str(full))
        private_folder(SETTINGS)
    assert full.exists()
