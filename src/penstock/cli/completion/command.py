"""`penstock completion SHELL`: print the script that was made for that shell."""

from __future__ import annotations

import argparse
from importlib import resources

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument of `penstock completion`."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    print(script(args.shell), end="")
    return 0


def script(shell: str) -> str:
    """The script for one of `SHELLS`."""
    return (resources.files("penstock.cli.completion") / f"penstock.{shell}").read_text()
