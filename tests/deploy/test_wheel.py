"""What goes to a package index: its name, what it says of itself, and what is said where another took our place."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import penstock
from tests.deploy.programs import program, ran

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
    assert top - {"PKG-INFO", ".gitignore"} == tracked - {".ci", ".dockerignore", ".gitignore"}
    assert said["Name"] == "penstock-gateway"
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Description-Content-Type"] == "text/markdown"
    assert "# Penstock" in str(said.get_payload())
    assert f"{info}/licenses/LICENSE" in names
    assert "penstock = penstock.cli.main:main" in scripts
    assert "penstock/py.typed" in names
    assert not [name for name in names if not name.startswith(("penstock/", info))]


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


def test_another_package_in_our_place_is_told_at_the_start(tmp_path: Path) -> None:
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
