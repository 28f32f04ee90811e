"""Builds a wheel with the hot modules compiled to C by mypyc: `make compiled`, or HATCH_BUILD_HOOKS_ENABLE=1.

What is compiled stands in pyproject.toml, with this hook's settings. The same sources run as plain Python, so nothing
may depend on what mypyc does otherwise: its warnings (a generator that it would make a list) end the build.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src"
NEVER = "__init__.py"  # a package's own module has to stay a file: its path is where the package is looked for


class CompilingHook(BuildHookInterface[Any]):
    """Compiles, and puts what came of it into the wheel beside the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return  # an editable install runs the sources
        root = Path(self.root)
        target = Path(tempfile.mkdtemp(prefix="penstock-mypyc-"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for built in compiled(root, self.config["compile"], self.config["leave"], target):
            build_data["force_include"][str(built)] = built.relative_to(target / "lib").as_posix()


def compiled(root: Path, patterns: list[str], leave: list[str], target: Path) -> list[Path]:
    """The extension modules of all sources that match, but for those to `leave`, below `target`/lib."""
    from mypyc.build import mypycify  # noqa: PLC0415  # installed only where this is asked for
    from setuptools import Distribution  # noqa: PLC0415

    found = {pattern: sorted((root / SOURCE).glob(pattern)) for pattern in (*patterns, *leave)}
    if unused := [pattern for pattern, paths in found.items() if not paths]:
        raise ValueError(f"pyproject.toml: no source matches {unused}")
    left = {path for pattern in leave for path in found[pattern]}
    files = [path for pattern in patterns for path in found[pattern] if path.name != NEVER and path not in left]
    said = io.StringIO()
    with contextlib.chdir(root):
        try:
            with contextlib.redirect_stdout(said):
                extensions = mypycify(
                    [str(path.relative_to(root)) for path in files],
                    opt_level="2",
                    debug_level="0",
                    target_dir=str(target / "c"),
                )
        finally:
            print(said.getvalue(), end="")
        if "warning:" in said.getvalue():
            raise ValueError("mypyc warned: compiled, this would not behave as it does interpreted")
        command = Distribution({"name": "penstock", "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(target / "lib"), str(target / "o")
        command.ensure_finalized()
        command.run()
    return sorted((target / "lib").rglob("*.so")) + sorted((target / "lib").rglob("*.pyd"))
