"""`penstock check FILE`: would these settings be accepted, and if not, what is wrong?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from penstock.config import ConfigError, Problem, load, summary

EXIT_OK, EXIT_WRONG, EXIT_UNREADABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the settings file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run_check(args: argparse.Namespace) -> int:
    """Problems go to stderr, one per line; with `--json` everything is one object on stdout."""
    problems: tuple[Problem, ...] = ()
    code, message = EXIT_OK, ""
    try:
        message = summary(load(args.file, os.environ))
    except ConfigError as error:
        problems, code = error.problems, EXIT_UNREADABLE if error.unreadable else EXIT_WRONG
    if args.json:
        print(json.dumps({"ok": not problems, "problems": [asdict(problem) for problem in problems]}))
    elif problems:
        for problem in problems:
            print(problem.line(), file=sys.stderr)
    else:
        print(message)
    return code
