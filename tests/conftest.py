"""What holds for all tests: a machine that is busy with other things fails none, and the longest begin first."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings

from penstock.build import compiled
from penstock.gateway.serve import GARBAGE_OBJECTS

# Files that take long. By turns one that computes and one that waits for processes, so that both go on all the time.
LONGEST = (
    *("test_scenarios_shares.py", "test_elected.py", "test_scenarios.py", "test_store_cut_off.py", "test_group.py"),
    *("test_scenarios_isolation.py", "test_partitions.py", "test_lab.py", "test_kills.py", "test_processes.py"),
    *("test_virtual.py", "test_bad.py", "test_fleets.py", "test_words.py"),
)
LONG = ("share", "sim", "workers", "elect")  # folders

gc.disable()  # until all tests are collected: nearly all that is made until then stays

settings.register_profile("shared_machine", deadline=None)  # an example's time says nothing there
settings.load_profile("shared_machine")


@pytest.fixture(scope="session", autouse=True)
def _state_folder() -> Iterator[None]:
    """Gateways keep their own tokens here, and the commands find them here; nothing is left in anybody's home.

    Nor is anything where temporary files are: what processes make there that are killed is made here.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-state-") as folder:
        without = {name: value for name, value in os.environ.items() if name != "STATE_DIRECTORY"}
        with mock.patch.dict(os.environ, {**without, "XDG_STATE_HOME": folder, "TMPDIR": folder}, clear=True):
            yield


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """A command that is run in this process logs to where it is captured, which is closed when its test is over."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [handler for handler in root.handlers if handler.get_name() == "penstock"]:
        root.removeHandler(handler)
    root.setLevel(level)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, then other worlds and what waits for processes: no core waits for one at the end."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(item.path.name, len(ranks)), item.path.parent.name not in LONG))


def pytest_collection_finish() -> None:
    """The collector looks as rarely as in a gateway that serves; what was made until now stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several processes are given whole files, and one may die."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.by_file import ByFile  # noqa: PLC0415 - not where one process runs all

    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What puts something of its own in the place of a part of the core can do so only where that is plain Python."""
    if item.get_closest_marker("interpreted") is not None and compiled():
        pytest.skip("the core is compiled")
