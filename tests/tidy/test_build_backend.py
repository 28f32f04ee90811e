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


@pytest.mark.parametrize("choice", ["", "auto", "yes", "1", "TRUE"])
def test_a_wheel_is_compiled_where_a_compiler_is(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv("PENSTOCK_COMPILE", choice)
    assert Build(monkeypatch).made() == (["mypy"], "compiled.whl")


@pytest.mark.parametrize("choice", ["no", "0", "false"])
def test_no_installs_plain_python_and_needs_no_mypyc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], choice: str
) -> None:
    monkeypatch.setenv("PENSTOCK_COMPILE", choice)
    assert Build(monkeypatch).made() == ([], "plain.whl")
    assert f"PENSTOCK_COMPILE={choice}" in capsys.readouterr().err


def test_without_a_compiler_it_is_plain_and_the_reason_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    assert Build(monkeypatch, MISSING).made() == ([], "plain.whl")
    said = capsys.readouterr().err
    assert said == f"penstock: plain Python, which takes 2 to 3 times the CPU per request; {MISSING}\n"


def test_a_compiler_that_fails_leaves_plain_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    assert Build(monkeypatch, fails=True).made() == (["mypy"], "plain.whl")
    assert "compiling failed: SystemExit: mypyc: error" in capsys.readouterr().err


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
    with pytest.raises(SystemExit, match="PENSTOCK_COMPILE=perhaps: expected auto, yes or no"):
        Build(monkeypatch).made()


def test_another_python_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert Build(monkeypatch).made() == ([], "plain.whl")


def test_an_editable_install_needs_no_mypyc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_COMPILE", raising=False)
    assert Build(monkeypatch).backend.get_requires_for_build_editable(None) == []
