"""The build backend: hatchling's, with the hot modules compiled to C where that is possible (hatch_build.py).

A wheel is compiled if this is CPython with a C compiler and `PENSTOCK_COMPILE` is not `no`; otherwise, and if compiling
fails, it is plain Python, and a line gives the reason. With `PENSTOCK_COMPILE=yes` a reason is an error. An editable
install always runs the sources. pip shows a build's output only with `-v`, so a terminal gets one line of its own.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any

import hatchling.build
from hatchling.build import *  # noqa: F403 - the other hooks as they are, with those that hatchling defines by circumstance

from hatch_build import missing_compiler

CHOICE = "PENSTOCK_COMPILE"
CHOICES = {"": "auto", "auto": "auto", "yes": "yes", "1": "yes", "true": "yes", "no": "no", "0": "no", "false": "no"}
SWITCH = "HATCH_BUILD_HOOKS_ENABLE"  # hatchling's: with it the hook runs, and what it needs is installed for the build


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Returns what the build needs beside hatchling: nothing for plain Python, otherwise mypyc and what it looks at."""
    if reason_for_plain() is None:
        os.environ[SWITCH] = "1"
    return list(hatchling.build.get_requires_for_build_wheel(config_settings))


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Returns the wheel's name. Raises if compiling fails and `PENSTOCK_COMPILE=yes`."""
    reason = reason_for_plain()
    if reason is None:
        os.environ[SWITCH] = "1"
        _tell(f"compiling the hot modules, one to three minutes; {CHOICE}=no installs plain Python", on_terminal=True)
        try:
            return str(hatchling.build.build_wheel(wheel_directory, config_settings, metadata_directory))
        except (Exception, SystemExit) as error:
            if _choice() == "yes":
                raise
            reason = f"compiling failed: {type(error).__name__}: {error}"
    os.environ.pop(SWITCH, None)
    _tell(f"plain Python, which takes 2 to 3 times the CPU per request; {reason}", on_terminal=_choice() != "no")
    return str(hatchling.build.build_wheel(wheel_directory, config_settings, metadata_directory))


def reason_for_plain() -> str | None:
    """Returns why the wheel is not compiled, or None if it is. Exits if that contradicts `PENSTOCK_COMPILE=yes`."""
    choice = _choice()
    if choice == "no":
        return f"{CHOICE}={os.environ[CHOICE]}"
    reason = missing_compiler()
    if choice == "auto" and reason is None:
        if os.name == "nt":
            reason = f"on Windows only with {CHOICE}=yes"
        elif sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            reason = f"mypyc is for CPython with its lock; {CHOICE}=yes tries it"
    if choice == "yes" and reason is not None:
        sys.exit(f"{CHOICE}={os.environ[CHOICE]}, but {reason}")
    return reason


def _choice() -> str:
    stated = os.environ.get(CHOICE, "").strip().lower()
    if stated not in CHOICES:
        sys.exit(f"{CHOICE}={stated}: expected auto, yes or no")
    return CHOICES[stated]


def _tell(what: str, *, on_terminal: bool) -> None:
    line = f"penstock: {what}\n"
    sys.stderr.write(line)
    if not on_terminal or sys.stderr.isatty():
        return
    try:
        with open("/dev/tty", "w") as terminal:  # noqa: PTH123 - a path has no such mode to try
            terminal.write(f"\n{line}")
    except OSError:
        pass  # none: a container's build, CI
