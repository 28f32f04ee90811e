"""Which build is this: plain Python, or with its hot modules compiled to C (docs/decisions/0019)? Is it ours at all?"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import penstock

HOT = "penstock.core.dispatch.pump"  # compiled in every build that compiles anything


def compiled() -> bool:
    """Whether the hot modules are compiled."""
    spec = find_spec(HOT)
    return spec is not None and not str(spec.origin).endswith(".py")


def kind() -> str:
    """That in words."""
    return "compiled" if compiled() else "pure Python"


def shadowed() -> str | None:
    """What is wrong where the package `penstock` is another distribution's, with what helps; None where it is ours.

    The public index has an unrelated package of that name (docs/decisions/0055). Where both were installed they share
    the folder, and one's `__init__.py` is gone; where the other one was removed again, ours went with it.
    """
    if getattr(penstock, "__distribution__", None) == "penstock-gateway":
        return None
    return (
        f"penstock: {Path(__file__).parent} is not the gateway's alone: the unrelated package `penstock` was installed "
        "over it, or removed from there.\nBoth cannot stand in one environment: pip uninstall penstock; "
        "pip install --force-reinstall penstock-gateway"
    )
