"""The locked requirements are complete for each supported Python, not only for the one that locked them."""

from __future__ import annotations

import re
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.test_docs import ROOT

PYTHONS = ("3.11.0", "3.11.2", "3.12.0", "3.13.0", "3.14.0")  # Debian 12 has 3.11.2
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


def locked(*names: str) -> set[str]:
    texts = [(ROOT / name).read_text() for name in names]
    return {str(canonicalize_name(found)) for text in texts for found in LOCKED.findall(text)}


def missing(python: str, names: set[str]) -> dict[str, list[str]]:
    """By package, what it requires there and no lock has."""
    found: dict[str, list[str]] = {}
    there = {"python_full_version": python, "python_version": python.rpartition(".")[0], "extra": ""}
    for name in sorted(names):
        try:
            requires = [Requirement(line) for line in metadata.requires(name) or ()]
        except metadata.PackageNotFoundError:  # for another Python
            continue
        asked = [r for r in requires if r.marker is None or r.marker.evaluate({**there})]
        if lacking := [str(r) for r in asked if canonicalize_name(r.name) not in names]:
            found[name] = lacking
    return found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    "files", [("requirements.lock",), ("requirements.lock", "requirements-dev.lock")], ids=["run", "dev"]
)
def test_each_python_finds_all_that_it_is_asked_for(python: str, files: tuple[str, ...]) -> None:
    assert missing(python, locked(*files)) == {}
