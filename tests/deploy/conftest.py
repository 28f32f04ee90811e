"""The programs, and what the chart makes of values. A program that is not here is a skip that says so, and a failure
where PENSTOCK_TEST_DEPLOY is `required`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path("deploy")
CHART = DEPLOY / "helm/penstock"
TOOLS = Path(os.environ.get("PENSTOCK_DEPLOY_TOOLS") or Path.home() / ".cache/penstock-deploy") / "bin"
TIMEOUT_S = 60.0

Object = dict[str, Any]


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


class Helm:
    """The chart with values, by real Helm."""

    def __init__(self, folder: Path) -> None:
        self.command = program("helm")
        self._folder = folder

    def said(self, verb: str, values: Mapping[str, Any], *words: str, chart: Path = CHART) -> tuple[bool, str]:
        """Whether Helm took the values, and what it said."""
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values)))
        name = () if verb == "lint" else ("gate",)
        done = said(self.command, verb, *name, chart, "-f", file, *words)
        return done.returncode == 0, done.stdout if done.returncode == 0 else done.stderr

    def text(self, values: Mapping[str, Any], *words: str, chart: Path = CHART) -> str:
        good, text = self.said("template", values, "--namespace", "llm", *words, chart=chart)
        assert good, text
        return text

    def objects(self, values: Mapping[str, Any], *words: str) -> list[Object]:
        return [made for made in yaml.safe_load_all(self.text(values, *words)) if made]

    def refused(self, values: Mapping[str, Any], chart: Path = CHART) -> str:
        good, text = self.said("template", values, chart=chart)
        assert not good, "Helm took the values"
        return text


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)
