"""What the chart makes of values, and a site of processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.programs import CHART, program, said
from tests.deploy.site import Site

Object = dict[str, Any]


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


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Processes that end with the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    built = Site(folder)
    try:
        yield built
    finally:
        built.close()
