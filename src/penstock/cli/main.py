"""`penstock …`: the process's first lines, before anything of weight is imported.

Signals are held back first (`early_signals.py`), because a signal that comes earlier ends the process: so nothing else
is imported here until they are.
"""

from __future__ import annotations

import sys

from penstock.gateway import early_signals


def main(argv: list[str] | None = None) -> int:
    """Run the subcommand that `argv` names (None: the process's own). Returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] in (["serve"], ["epp"], ["vllm-router"]):
        with early_signals.held():
            return _run(words)
    return _run(words)


def vllm_router() -> int:
    return main(["vllm-router", *sys.argv[1:]])


def _run(words: list[str]) -> int:
    try:
        from penstock.cli import commands

        return commands.run(words)
    except KeyboardInterrupt:
        return 130
