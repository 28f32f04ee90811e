"""`penstock check FILE`: would `serve` start with these settings here? `--live` also asks the engines."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import asdict

from penstock.cli import doctor
from penstock.cli.diagnosis import Doctor
from penstock.config.effect import open_warnings, warnings
from penstock.config.load import ConfigError, Problem, load, summary
from penstock.config.model import Settings
from penstock.config.sections.batch import NO_FOLDER, store_folder
from penstock.core.sessions.gate import price
from penstock.core.values.settings import SHORT_WAIT_S
from penstock.gateway.fitness import start_problems, start_warnings

EXIT_OK, EXIT_WRONG, EXIT_UNREADABLE = 0, 1, 2
LIVE_TIMEOUT_S = 5.0  # for each answer
_CONTEXT_TOKENS = 100_000  # of a coding agent's session, the median
_PREFILL_TOKENS_PER_S = 25_000  # measured of a 30B model on two H100; a running gateway uses what it measures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the settings file; `-` is standard input")
    parser.add_argument(
        "--live",
        action="store_true",
        help="also ask the endpoints, like `penstock doctor`, whether they serve as configured",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Check a file; returns the exit code. Problems go to stderr, one per line; with `--json` all goes to stdout."""
    problems: tuple[Problem, ...] = ()
    code, message = EXIT_OK, ""
    warned: list[str] = []
    file = "/dev/stdin" if args.file == "-" else args.file
    try:
        settings = load(file, os.environ)
        message = summary(settings)
        warned = [*warnings(settings, os.environ), *open_warnings(settings)]
        warned += start_warnings(settings, os.environ, time.time())
        problems = tuple(start_problems(settings, os.environ))
        code = EXIT_WRONG if problems else EXIT_OK
    except ConfigError as error:
        problems, code = error.problems, EXIT_UNREADABLE if error.unreadable else EXIT_WRONG
    live = live_problems(settings) if args.live and not problems else []
    if live:
        code = EXIT_WRONG
    if args.json:
        result: dict[str, object] = {
            "ok": not problems and not live,
            "problems": [asdict(problem) for problem in problems],
        }
        result |= {"endpoints": live} if args.live else {}
        print(json.dumps(result | ({"warnings": warned} if warned else {})))
    elif problems:
        for problem in problems:
            print(problem.line(), file=sys.stderr)
    else:
        print(message.removeprefix("ok: ") if live else message)
        print(f"store: {store_place(settings)}")
        if note := session_note(settings):
            print(note)
        for warning in warned:
            print(f"warning: {warning}", file=sys.stderr)
        for line in live:
            print(line, file=sys.stderr)
        if args.live and not live:
            print(f"{len(settings.endpoints)} of the file's endpoints serve as configured")
    return code


def store_place(settings: Settings) -> str:
    """Returns where the store is, in words, by its absolute path."""
    if not settings.store.enabled:
        return "off"
    if settings.store.url is not None:
        return "PostgreSQL"
    folder = store_folder(settings, os.environ)
    if folder is None:
        return f"none: {NO_FOLDER}"
    return f"{folder.absolute()}{'' if folder.is_absolute() else ' (relative to the current directory)'}"


def session_note(settings: Settings) -> str:
    """Returns what the bound on waits of agents' sessions costs, as far as settings show; "" if none is set."""
    memory = sum(endpoint.kv_tokens or 0 for endpoint in settings.endpoints)
    wait_s = settings.sessions.wait
    if settings.sessions.memory == "off" or not (memory or "wait" in settings.sessions.model_fields_set):
        return ""
    each = [price(1, _CONTEXT_TOKENS, _PREFILL_TOKENS_PER_S, bound) for bound in dict.fromkeys((wait_s, SHORT_WAIT_S))]
    other = f" ({SHORT_WAIT_S:.0f} s: {each[1]:.1%})" if each[1:] else ""
    fits = f"; {memory // _CONTEXT_TOKENS:,} fit into `kv_tokens`" if memory else ""
    return (
        f"sessions.wait: each session of {_CONTEXT_TOKENS:,} tokens that waits for memory costs {each[0]:.1%}{other} "
        f"of the prompts that one engine can compute, at {_PREFILL_TOKENS_PER_S:,} tokens/s{fits}"
    )


def live_problems(settings: Settings) -> list[str]:
    """Ask the endpoints of the settings; returns a line per problem."""
    reports = asyncio.run(doctor.examine(settings, Doctor(timeout_s=LIVE_TIMEOUT_S, tries=False)))
    wrong = [f"{report.name}: {problem}" for report in reports for problem in report.problems]
    return wrong + doctor.unserved(settings, reports)
