"""The programs that deploy/ is run with. One that is not here is a skip that says so, and a failure where
PENSTOCK_TEST_DEPLOY is `required`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

DEPLOY = Path("deploy")
CHART = DEPLOY / "helm/penstock"
TOOLS = Path(os.environ.get("PENSTOCK_DEPLOY_TOOLS") or Path.home() / ".cache/penstock-deploy") / "bin"
TIMEOUT_S = 60.0


def missing(what: str) -> None:
    """End the test: a skip, or a failure where nothing may be missing."""
    if os.environ.get("PENSTOCK_TEST_DEPLOY") == "required":
        pytest.fail(what)
    pytest.skip(what)


def program(name: str, how: str = "scripts/deploy/install") -> str:
    """Where a program is."""
    found = shutil.which(name) or shutil.which(name, path=TOOLS)
    if found is None:
        missing(f"{name} is not here; {how} brings it")
    return found or ""


def said(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """What a command prints; its code is for the caller to judge."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=TIMEOUT_S, **options)


def ran(*words: str | Path, **options: Any) -> str:
    """What a command prints that has to succeed."""
    done = said(*words, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
