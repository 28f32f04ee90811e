"""`penstock check FILE`: would these settings be accepted, and if not, what is wrong?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from penstock.config.effect import effect_warnings
from penstock.config.load import ConfigError, Problem, load, summary
from penstock.config.sections.roles import role_warnings

EXIT_OK, EXIT_WRONG, EXIT_UNREADABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the settings file; `-` is standard input")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema of the settings, for editors. Returns the exit code."""
    from penstock.config import schema  # noqa: PLC0415  (only here is it needed)

    sys.stdout.write(schema.text())
    return EXIT_OK


def run_check(args: argparse.Namespace) -> int:
    """Check a file; returns the exit code. Problems go to stderr, one per line; with `--json` all goes to stdout."""
    problems: tuple[Problem, ...] = ()
    code, message = EXIT_OK, ""
    warnings: list[str] = []
    file = "/dev/stdin" if args.file == "-" else args.file
    try:
        settings = load(file, os.environ)
        message, warnings = summary(settings), [*role_warnings(settings), *effect_warnings(settings)]
    except ConfigError as error:
        problems, code = error.problems, EXIT_UNREADABLE if error.unreadable else EXIT_WRONG
    if args.json:
        result = {"ok": not problems, "problems": [asdict(problem) for problem in problems]}
        print(json.dumps(result | ({"warnings": warnings} if warnings else {})))
    elif problems:
        for problem in problems:
            print(problem.line(), file=sys.stderr)
    else:
        print(message)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
    return code
