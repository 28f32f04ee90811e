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
        if words[:1] in (["serve"], ["epp"]) and (code := _started(words)) is not None:
            return code
        from penstock.cli import commands

        return commands.run(words)
    except KeyboardInterrupt:
        return 130


def _started(words: list[str]) -> int | None:
    """Serve if the words are right; returns the exit code. None: they ask for help, or something is wrong with them.

    A gateway does not keep the table of all commands in memory, which knows how to answer those.
    """
    import argparse
    from typing import NoReturn

    from penstock.build import shadowed
    from penstock.cli import running

    class Strict(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ValueError(message)

    parser = Strict(add_help=False, allow_abbrev=False)
    running.add_arguments(parser)
    parser.set_defaults(command=words[0])
    try:
        args, unknown = parser.parse_known_args(words[1:])
    except ValueError:
        return None
    return None if unknown or shadowed() else running.run(args)
