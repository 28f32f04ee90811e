"""The first command, `make` in a clean clone: it takes a Python that will do, or says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.build import COSTS
from tests.tidy.readme import README, Published, stated, written

ROOT = Path(__file__).parents[2]
SHIMS = {
    "old": 'case "$*" in *version_info*"<"*) exit 1;; *print*) echo 3.10;; esac',
    "without venv": f'case "$*" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"',
    "good": f'exec {sys.executable} "$@"',
    "broken": "exit 127",
    "quick": f"""case "$*" in "-m venv --clear"*) touch "$4/bin/pip" && chmod +x "$4/bin/pip"; exit;; esac
exec {sys.executable} "$@\"""",
}


def path_with(tmp_path: Path, **pythons: str) -> str:
    """A PATH in which only these Pythons are found, beside what a shell needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "make", "echo", "printf"):
        where = shutil.which(tool)
        if where is None:
            pytest.skip(f"no {tool}")
        (folder / tool).symlink_to(where)
    for name, kind in pythons.items():
        (folder / name).write_text(f"#!/bin/sh\n{SHIMS[kind]}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def venv(tmp_path: Path, path: str, python: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/venv"), python, str(tmp_path / "made")]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": path}, timeout=60)


@pytest.mark.parametrize(
    ("kind", "sentence", "remedy"),
    [
        ("old", "`python3` is Python 3.10, and 3.11 or later is needed", "make PYTHON=python3.12"),
        ("without venv", "without its modules venv and ensurepip", "apt-get install python3-venv"),
        ("broken", "no Python found as `python3`", "apt-get install python3 python3-venv"),
    ],
)
def test_what_is_missing_is_said_with_the_command_that_installs_it(
    tmp_path: Path, kind: str, sentence: str, remedy: str
) -> None:
    done = venv(tmp_path, path_with(tmp_path, python3=kind), "python3")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made").exists()


def test_no_python_at_all_is_said(tmp_path: Path) -> None:
    done = venv(tmp_path, path_with(tmp_path), "")
    assert done.returncode == 1
    assert "make: no Python found: 3.11 or later is needed." in done.stderr


def test_what_an_interrupted_start_left_is_made_again(tmp_path: Path) -> None:
    left = tmp_path / "made/bin"
    left.mkdir(parents=True)
    (left / "python").symlink_to(sys.executable)  # as venv leaves it where ensurepip fails
    path = f"{path_with(tmp_path, python3='quick')}:{os.environ['PATH']}"
    assert venv(tmp_path, path, "python3").returncode == 0
    assert (left / "pip").exists()
    written = (left / "pip").stat().st_mtime_ns
    assert venv(tmp_path, path, "python3").returncode == 0
    assert (left / "pip").stat().st_mtime_ns == written, "a good one stays as it is"


@pytest.mark.parametrize(
    ("pythons", "chosen"),
    [
        ({"python3": "good"}, "python3"),
        ({"python3": "old", "python3.12": "good"}, "python3.12"),
        ({"python3.11": "without venv", "python3": "good"}, "python3"),
        ({"python3.13": "good", "python3.11": "good"}, "python3.11"),
        ({"python3": "old"}, "python3"),  # of which it then says that it is too old
        ({}, "python3"),
    ],
)
def test_make_takes_the_first_python_that_will_do(tmp_path: Path, pythons: dict[str, str], chosen: str) -> None:
    path = path_with(tmp_path, **pythons)
    flags = ["--no-print-directory", "--dry-run", "--always-make"]
    command = [f"{path}/make", *flags, "-C", str(ROOT), ".venv/core.stamp"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": path}, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\./scripts/venv '(.*)' \.venv$", done.stdout, re.MULTILINE) is not None, done.stdout
    assert f"./scripts/venv '{chosen}' .venv" in done.stdout


def commands(text: str) -> list[list[str]]:
    """The command lines of each block, without their remarks."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [[line.split(" #")[0].strip() for line in block.splitlines()] for block in blocks]


def test_the_readme_is_as_pyproject_says() -> None:
    text, where = README.read_text(), stated()
    assert text == written(text, where), "run: make generated"
    tracked = subprocess.run(
        ["git", "grep", "-lF", where.address], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert tracked.stdout.split() == ["README.md", "pyproject.toml"], "a fork changes its address in one place"


def test_the_readme_begins_with_the_commands_that_do_all_set_up() -> None:
    text = written(README.read_text(), Published(published=False, address="https://forge.example/us/ours"))
    first, second = commands(text)[:2]
    assert first == ["git clone https://forge.example/us/ours && cd ours", "make demo", "make test"]
    assert second[-1] == "pip install ."


def test_once_it_is_published_the_package_comes_first_and_the_checkout_after_it() -> None:
    text = written(README.read_text(), Published(published=True, address="https://forge.example/us/ours"))
    first, second = commands(text)[:2]
    assert first[1:] == ["pip install penstock-gateway", "penstock demo"]
    assert second == ["git clone https://forge.example/us/ours && cd ours", "make demo", "make test"]
    assert "pip install ." not in [line for block in commands(text) for line in block]


def test_what_plain_python_costs_is_said_alike_everywhere() -> None:
    """The pages that people and programs read have the figure of `penstock.build`, and no other."""
    told = {
        page.name: re.findall(r"([\d.]+ times the \w+ per request)", page.read_text())
        for page in (README, ROOT / "docs/operations.md")
    }
    assert told == {"README.md": [COSTS], "operations.md": [COSTS]}
