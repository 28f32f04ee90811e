"""What goes to a package index: its name, what it says of itself, and what is said where another took our place."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import penstock
from tests.deploy.programs import program, ran, said

OTHERS = '"""Lightweight flow tracing."""\n\n__all__ = ["flow"]\n'


def test_the_plain_wheel_and_the_sources_are_good(tmp_path: Path) -> None:
    ran(program("hatchling"), "build", "--directory", tmp_path, env={"PATH": os.environ["PATH"]})
    made = sorted(tmp_path.iterdir())
    assert [file.name for file in made] == [
        f"penstock_gateway-{penstock.__version__}-py3-none-any.whl",
        f"penstock_gateway-{penstock.__version__}.tar.gz",
    ]
    told = ran(program("twine"), "check", "--strict", *made)
    assert told.count("PASSED") == 2, told
    with zipfile.ZipFile(made[0]) as wheel:
        info = f"penstock_gateway-{penstock.__version__}.dist-info"
        said = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        scripts = wheel.read(f"{info}/entry_points.txt").decode()
        names = wheel.namelist()
    with tarfile.open(made[1]) as sources:
        top = {name.split("/")[1] for name in sources.getnames()}
    tracked = {name.split("/")[0] for name in ran("git", "ls-files").splitlines()}
    assert top - {"PKG-INFO", ".gitignore"} == tracked - {
        ".ci",
        ".dockerignore",
        ".github",
        ".gitignore",
        ".pre-commit-config.yaml",
    }
    assert said["Name"] == "penstock-gateway"
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Description-Content-Type"] == "text/markdown"
    assert "# Penstock" in str(said.get_payload())
    assert f"{info}/licenses/LICENSE" in names
    assert "penstock = penstock.cli.main:main" in scripts
    assert "penstock/py.typed" in names
    docs = f"penstock_gateway-{penstock.__version__}.data/data/share/doc/penstock/"
    assert {f"{docs}index.md", f"{docs}configuration.md"} <= set(names)
    assert not [name for name in names if not name.startswith(("penstock/", info, docs))]


STATED = {
    "pyproject.toml": 'version = "1.2.3"\n',
    "src/penstock/__init__.py": '__version__ = "1.2.3"\n',
    "deploy/helm/penstock/Chart.yaml": "version: 9.0.0\nappVersion: 1.2.3\n",
    "CHANGELOG.md": "# Changes\n\n## Unreleased\n\n## v1.2.3 (2030-01-01)\n",
}


@pytest.mark.parametrize(
    ("tag", "file", "text", "problem"),
    [
        ("", "CHANGELOG.md", "", None),
        ("v1.2.3", "", "", None),
        ("v1.2.4", "", "", "the commit has the tag v1.2.4, pyproject.toml says 1.2.3"),
        ("v1.2.3", "CHANGELOG.md", "## Unreleased\n", "CHANGELOG.md has no section ## v1.2.3"),
        ("v1.2.3", "CHANGELOG.md", "## v1.2.30\n", "CHANGELOG.md has no section ## v1.2.3"),
        ("", "src/penstock/__init__.py", '__version__ = "1.2.2"\n', "src/penstock/__init__.py says 1.2.2"),
        ("", "deploy/helm/penstock/Chart.yaml", "appVersion: 1.2.2\n", "appVersion 1.2.2"),
    ],
)
def test_a_tag_builds_the_version_that_it_names(
    tag: str, file: str, text: str, problem: str | None, tmp_path: Path
) -> None:
    for name, stated in STATED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text if name == file else stated)
    script = tmp_path / "scripts/deploy/version"
    script.parent.mkdir(parents=True)
    shutil.copy("scripts/deploy/version", script)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@localhost"]
    ran(*git, "init", "-q")
    ran(*git, "add", ".")
    ran(*git, "commit", "-qm", "release")
    if tag:
        ran(*git, "tag", tag)
    done = said(script)
    assert (done.returncode, done.stdout) == ((0, "1.2.3\n") if problem is None else (1, ""))
    assert (problem or "") in done.stderr
    if tag and problem is None:
        (tmp_path / "CHANGELOG.md").write_text("changed")
        done = said(script)
        assert done.returncode == 1
        assert "CHANGELOG.md has no section" in done.stderr
        (tmp_path / "CHANGELOG.md").write_text(STATED["CHANGELOG.md"])
        (tmp_path / "left-over.txt").write_text("")
        assert "the checkout has changes" in said(script).stderr


def test_no_hint_names_the_other_package() -> None:
    """`penstock` in the public index is somebody else's: who follows a hint must not get it."""
    wrong = re.compile(r"pip install\b[^\n]*?['\" ]penstock(\[|['\"\s]|$)")
    found = [
        f"{file}: {line.strip()}"
        for folder, ending in (("src", "*.py"), ("docs", "*.md"), ("deploy", "*"), (".", "README.md"))
        for file in Path(folder).rglob(ending)
        if file.is_file() and not file.name.startswith("0055") and ".venv" not in file.parts
        for line in file.read_text().splitlines()
        if wrong.search(line)
    ]
    assert not found


def test_another_package_of_our_name_is_reported_at_the_start(tmp_path: Path) -> None:
    """As pip leaves it where both were installed: all files of both, and one `__init__.py`."""
    ours = Path(penstock.__file__).parent
    mixed = tmp_path / "penstock"
    mixed.mkdir()
    for file in ours.iterdir():
        if file.name not in ("__init__.py", "__pycache__"):
            (mixed / file.name).symlink_to(file)
    path = [str(tmp_path), *(entry for entry in sys.path if not (Path(entry) / "penstock").exists())]
    for left in (OTHERS, None):
        (mixed / "__init__.py").unlink(missing_ok=True)
        if left is not None:
            (mixed / "__init__.py").write_text(left)
        command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {path!r}\n"]
        command[-1] += "from penstock.cli.main import main; sys.exit(main(['--version']))"
        done = subprocess.run(command, capture_output=True, text=True, env={}, timeout=60)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "pip install --force-reinstall penstock-gateway" in done.stderr
        assert str(mixed) in done.stderr
