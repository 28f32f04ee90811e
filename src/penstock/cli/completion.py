"""`penstock completion SHELL`: the completion script that shtab makes from the parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from penstock.cli.commands import parser

SHELLS = ("bash", "zsh", "fish")
PATHS = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY, "DIR": shtab.DIRECTORY, "PATH": shtab.FILE}  # by metavar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="the shell")


def run(args: argparse.Namespace) -> int:
    print(script(args.shell), end="")
    return 0


def script(shell: str) -> str:
    """Returns the script for one of `SHELLS`."""
    whole = parser(None)
    _shorten(whole)
    for action in _actions(whole):
        if isinstance(action.metavar, str) and action.metavar in PATHS:
            action.complete = PATHS[action.metavar]  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in shtab.complete(whole, shell=shell).splitlines())


def _actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
        else:
            yield action


def _shorten(of: argparse.ArgumentParser) -> None:
    """Describe each command by its short help, which fits a menu."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for pseudo in action._choices_actions:
                action.choices[pseudo.dest].description = pseudo.help
            for sub in action.choices.values():
                _shorten(sub)
