"""The kind of build: plain Python, or with hot modules compiled to C (docs/decisions/0019)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import penstock

HOT = "penstock.core.dispatch.pump"  # compiled in every build that compiles anything
COSTS = "2.9 times the instructions per request"  # docs/results.md, "CPU beside others"
REMEDY = "Wheels for Linux are compiled; in a checkout `PENSTOCK_COMPILE=yes pip install .` compiles (gcc, python3-dev)"


def compiled() -> bool:
    """Whether the hot modules are compiled."""
    spec = find_spec(HOT)
    return spec is not None and not str(spec.origin).endswith(".py")


def kind() -> str:
    """Returns the kind in words, and what plain Python costs."""
    return "compiled" if compiled() else f"plain Python: {COSTS}"


def shadowed() -> str | None:
    """Returns an error with its remedy if the package `penstock` is another distribution's, or None.

    The public index has an unrelated package of that name (docs/decisions/0055). If both are installed they share the
    folder, and one's `__init__.py` is overwritten; removing the other one removes ours.
    """
    if getattr(penstock, "__distribution__", None) == "penstock-gateway":
        return None
    return (
        f"penstock: {Path(__file__).parent} is not the gateway's alone: the unrelated package `penstock` was installed "
        "over it, or removed from there.\nBoth cannot stand in one environment: pip uninstall penstock; "
        "pip install --force-reinstall penstock-gateway"
    )
