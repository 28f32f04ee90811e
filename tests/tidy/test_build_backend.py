"""When a wheel is compiled, and what is reported if it is not (build_backend.py)."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MISSING = "no C compiler: `cc` is not there"


class Build:
    """The backend on a hatchling that notes whether its hook was switched on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lacks: str | None = None, *, fails: bool = False) -> None:
        self.fails = fails
        hatchling, inner, hook = ModuleType("hatchling"), ModuleType("hatchling.build"), ModuleType("hatch_build")
        vars(hatchling)["build"] = inner
        vars(inner).update(
            get_requires_for_build_wheel=lambda _: ["mypy"] if self.switched_on() else [],
            get_requires_for_build_editable=lambda _: [],
            build_wheel=self._wheel,
        )
        vars(hook)["missing_compiler"] = lambda: lacks
        for module in (hatchling, inner, hook):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setenv("HATCH_BUILD_HOOKS_ENABLE", "")  # and restored in the end
        spec = importlib.util.spec_from_file_location("build_backend", ROOT / "build_backend.py")
        assert spec is not None
        assert spec.loader is not None
        self.backend: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.backend)

    @staticmethod
    def switched_on() -> bool:
        return os.environ.get("HATCH_BUILD_HOOKS_ENABLE") == "1"

    def _wheel(self, *_: object) -> str:
        if not self.switched_on():
            return "plain.whl"
        if self.fails:
            sys.exit("mypyc: error")
        return "compiled.whl"

    def made(self) -> tuple[list[str], str]:
        """What the build needs, and the wheel."""
        return self.backend.get_requires_for_build_wheel(), self.backend.build_wheel("dist")


@pytest.mark.parametrize("choice", ["yes", "1", "TRUE"])
def test_a_wheel_is_compiled_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv("PENSTOCK_COMPILE", choice)
    assert Build(monkeypatch).made() == (["mypy"], "compiled.whl")


@pytest.mark.parametrize("choice", [None, "", "no", "0", "false"])
def test_otherwise_it_is_plain_python_and_needs_neither_mypyc_nor_a_compiler(
    monkeypatch: pytest.MonkeyPatch, choice: str | None
) -> None:
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    if choice is not None:
        monkeypatch.setenv("PENSTOCK_COMPILE", choice)
    for lacks in (None, MISSING):
        assert Build(monkeypatch, lacks).made() == ([], "plain.whl")


def test_the_hook_of_another_build_is_not_left_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    build = Build(monkeypatch)
    monkeypatch.setenv("HATCH_BUILD_HOOKS_ENABLE", "1")
    assert build.made() == ([], "plain.whl")


def test_yes_makes_each_reason_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_COMPILE", "yes")
    with pytest.raises(SystemExit, match="PENSTOCK_COMPILE=yes, but no C compiler"):
        Build(monkeypatch, MISSING).made()
    with pytest.raises(SystemExit, match="mypyc: error"):
        Build(monkeypatch, fails=True).made()


BUILDERS = [
    "Makefile",
    "README.md",
    "deploy/Dockerfile",
    "docs/operations.md",
    "pyproject.toml",
    "scripts/deploy/wheels",
]


@pytest.mark.parametrize("file", BUILDERS)
def test_what_builds_wheels_and_images_states_a_known_word(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    stated = re.findall(r'PENSTOCK_COMPILE ?= ?"?([^"\s;:`]+)', (ROOT / file).read_text())
    assert stated
    for word in stated:
        monkeypatch.setenv("PENSTOCK_COMPILE", word)
        assert Build(monkeypatch).made()[1] == ("plain.whl" if word == "no" else "compiled.whl")


def test_an_unknown_word_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_COMPILE", "perhaps")
    with pytest.raises(SystemExit, match="PENSTOCK_COMPILE=perhaps: expected yes or no"):
        Build(monkeypatch).made()


def test_an_editable_install_needs_no_mypyc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    assert Build(monkeypatch).backend.get_requires_for_build_editable(None) == []
