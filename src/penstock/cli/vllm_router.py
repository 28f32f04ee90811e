"""`penstock vllm-router FLAGS…`, or the script `vllm-router`: accepts the flags of production-stack's router.

`--print` writes the equivalent settings as YAML, with notes above them, and starts nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import penstock
from penstock.config.load import ConfigError, Settings, require_endpoints
from penstock.config.production_stack.document import RouterFlags, load_router, router
from penstock.config.production_stack.flags import FLAGS, SWITCH, Fate
from penstock.config.production_stack.text import write


def run(words: Sequence[str]) -> int:
    """Serve, or print; returns the exit code."""
    found = router(words, os.environ)
    if found.own & {"--help", "-h"}:
        print(_help(), end="")
        return 0
    if "--version" in words:
        print(f"vllm-router: penstock {penstock.__version__}")
        return 0
    try:
        settings = _settings(found)
    except ConfigError as error:
        for problem in error.problems:
            print(f"vllm-router: {problem.line()}", file=sys.stderr)
        return 2
    if "--print" in found.own:
        print(write(found.document, _notes(found)), end="")
        return 0
    for warning in found.warnings:
        print(f"vllm-router: warning: {warning}", file=sys.stderr)
    for name, value in found.environment.items():
        os.environ.setdefault(name, value)
    return _serve(words, found, settings)


def _settings(found: RouterFlags) -> Settings:
    settings = load_router(found, os.environ)
    require_endpoints(settings)
    return settings


def _serve(words: Sequence[str], found: RouterFlags, settings: Settings) -> int:
    from penstock.cli.running import serve  # noqa: PLC0415 - as above

    def read() -> Settings:
        return _settings(router(words, os.environ))

    file = None if found.follows is None else Path(found.follows)
    return serve(settings, read, found.log_level, follows=file, command="vllm-router")


def _notes(found: RouterFlags) -> list[str]:
    notes = ["Written by `penstock vllm-router --print`: the router's flags as settings for `penstock serve -c FILE`."]
    notes += [f"Set {name}={value} in the environment." for name, value in found.environment.items()]
    if found.follows is not None:
        notes.append(f"{found.follows} is not read any more: its settings stand here; SIGHUP reads this file again.")
    if found.log_level != "info":
        notes.append(f"Start with --log-level {found.log_level}.")
    return notes + found.warnings


def _help() -> str:
    lines = [
        "usage: vllm-router FLAGS… [--print]",
        "",
        "Run the gateway by the flags of production-stack's router. Everything else can be set in the environment,",
        "as PENSTOCK__QUEUE__MAX_WAIT=20s. docs/coming-from-production-stack.md says what changes.",
        "",
        f"  {'--print':<48} write the settings as YAML, and start nothing",
    ]
    for flag in FLAGS:
        value = "" if flag.value == SWITCH else " VALUE" if isinstance(flag.value, str) else f" {'|'.join(flag.value)}"
        end = {Fate.NOTHING: "means nothing here", Fate.REFUSED: "refused"}.get(flag.fate, flag.becomes or flag.why)
        usage = f"{flag.name}{value}"
        lines += [f"  {usage:<48} {end}"] if len(usage) <= 48 else [f"  {usage}", f"  {'':<48} {end}"]
    return "\n".join(lines) + "\n"
