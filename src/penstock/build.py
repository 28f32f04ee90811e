"""Which build is this: plain Python, or with its hot modules compiled to C (docs/decisions/0019)?"""

from __future__ import annotations

from importlib.util import find_spec

HOT = "penstock.core.dispatch.pump"  # compiled in every build that compiles anything


def compiled() -> bool:
    """Whether the hot modules are compiled."""
    spec = find_spec(HOT)
    return spec is not None and not str(spec.origin).endswith(".py")


def kind() -> str:
    """That in words."""
    return "compiled" if compiled() else "pure Python"
