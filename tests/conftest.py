"""Common to all tests: state in a temporary folder, rare garbage collections, and what to run alone after a failure."""

from __future__ import annotations

import gc
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings

from penstock.build import compiled

gc.disable()  # until all tests are collected, because nearly everything made until then stays

settings.register_profile("shared_machine", deadline=None)  # on a busy machine the time of an example means nothing
settings.load_profile("shared_machine")


@pytest.fixture(scope="session", autouse=True)
def _state_folder() -> Iterator[None]:
    """Keep gateways' tokens, and temporary files of killed processes, in one folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="penstock-state-") as folder:
        without = {name: value for name, value in os.environ.items() if name != "STATE_DIRECTORY"}
        with mock.patch.dict(os.environ, {**without, "XDG_STATE_HOME": folder, "TMPDIR": folder}, clear=True):
            yield


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """Remove the log handlers of commands that ran in this process, because the test's captured output is closed."""
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [handler for handler in root.handlers if handler.get_name() == "penstock"]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that measure CPU time belong to `make test-all`, because they need a quiet machine."""
    for item in items:
        if item.get_closest_marker("timing") is not None:
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print for each failed test the command that runs it alone."""
    python = os.path.relpath(sys.executable)
    failed = [report.nodeid for kind in ("failed", "error") for report in terminalreporter.getreports(kind)]
    for nodeid in dict.fromkeys(failed):
        terminalreporter.write_line(f"run alone: {python} -m pytest {shlex.quote(nodeid)}")


def pytest_collection_finish() -> None:
    """Collect garbage as rarely as a gateway does, and leave the imported modules out."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that replace parts of the core if it is compiled."""
    if item.get_closest_marker("interpreted") is not None and compiled():
        pytest.skip("the core is compiled")
