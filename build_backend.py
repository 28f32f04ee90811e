"""The build backend: hatchling's, with the hot modules compiled to C if that is asked for (hatch_build.py).

A wheel is plain Python, which pip builds in seconds. With `PENSTOCK_COMPILE=yes` it is compiled, in minutes, and
anything that prevents that is an error. An editable install always runs the sources. pip shows a build's output only
with `-v`, so a build that takes minutes tells the terminal.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import hatchling.build
from hatchling.build import *  # noqa: F403 - the other hooks as they are, with those that hatchling defines by circumstance

from hatch_build import missing_compiler

CHOICE = "PENSTOCK_COMPILE"
CHOICES = {"": False, "no": False, "0": False, "false": False, "yes": True, "1": True, "true": True}
SWITCH = "HATCH_BUILD_HOOKS_ENABLE"  # hatchling's: with it the hook runs, and what it needs is installed for the build


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Returns what the build needs beside hatchling: nothing for plain Python, otherwise mypyc and what it looks at."""
    _switch()
    return list(hatchling.build.get_requires_for_build_wheel(config_settings))


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Returns the wheel's name. Raises if compiling was asked for and fails."""
    if _switch():
        _tell("compiling the hot modules, one to three minutes on two free cores")
    return str(hatchling.build.build_wheel(wheel_directory, config_settings, metadata_directory))


def _switch() -> bool:
    """Switches compiling on or off. Exits if it is asked for and impossible."""
    stated = os.environ.get(CHOICE, "").strip().lower()
    if stated not in CHOICES:
        sys.exit(f"{CHOICE}={stated}: expected yes or no")
    os.environ.pop(SWITCH, None)
    if CHOICES[stated]:
        if (reason := missing_compiler()) is not None:
            sys.exit(f"{CHOICE}={os.environ[CHOICE]}, but {reason}")
        os.environ[SWITCH] = "1"
    return CHOICES[stated]


def _tell(what: str) -> None:
    line = f"penstock: {what}\n"
    sys.stderr.write(line)
    if sys.stderr.isatty():
        return
    try:
        with open("/dev/tty", "w") as terminal:  # noqa: PTH123 - a path has no such mode to try
            terminal.write(f"\n{line}")
    except OSError:
        pass  # none: a container's build, CI
