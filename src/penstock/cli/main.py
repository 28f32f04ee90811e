"""`penstock …`: one program, one subcommand per chore.

Only the modules of the chosen subcommand are imported, because building the models of the settings takes half a second.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import NamedTuple

import penstock
from penstock.build import kind, shadowed


class _Command(NamedTuple):
    help: str
    module: str  #: below `penstock`; it has `add_arguments` and `run`
    description: str = ""  #: if the help is too short


def main(argv: list[str] | None = None) -> int:
    """Run the subcommand that `argv` names (None: the process's own). Returns the exit code."""
    if wrong := shadowed():
        print(wrong, file=sys.stderr)
        return 1
    words = sys.argv[1:] if argv is None else argv
    if words[:1] in (["serve"], ["vllm-router"]):
        from penstock.gateway import early_signals

        with early_signals.held():
            return _run(words)
    return _run(words)


def vllm_router() -> int:
    """The console script of that name."""
    return main(["vllm-router", *sys.argv[1:]])


def _run(words: list[str]) -> int:
    try:
        code = _command(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the last flush complains
        return 141
    return code


def _command(words: list[str]) -> int:
    if words[:1] == ["vllm-router"]:  # it parses its own flags
        from penstock.cli import vllm_router

        return vllm_router.run(words[1:])
    args = parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    return int(args.run(args))


def parser(asked: str | None) -> argparse.ArgumentParser:
    """Returns the parser of all commands, with arguments only for the one asked for (None: for all)."""
    whole = argparse.ArgumentParser(
        prog="penstock", description="A flow-control gateway for LLM inference.", allow_abbrev=False
    )
    whole.add_argument("--version", action="version", version=f"penstock {penstock.__version__} ({kind()})")
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        description = command.description or f"{command.help.capitalize()}."
        sub = commands.add_parser(name, help=command.help, description=description, allow_abbrev=False)
        if command.module and (asked is None or name == asked):
            module = importlib.import_module(f"penstock.{command.module}")
            sub.set_defaults(run=module.run, command=name)
            module.add_arguments(sub)
    return whole


_COMMANDS = {
    "serve": _Command(
        "run the gateway",
        "cli.running",
        "Run the gateway. Settings: defaults, -c FILE, PENSTOCK__… variables, flags; the last wins.",
    ),
    "vllm-router": _Command("run the gateway by the flags of production-stack's router", ""),
    "check": _Command(
        "check a settings file",
        "cli.check",
        "Check whether `serve` would start with a settings file on this machine. It does not check whether another "
        "program has the port, or another gateway the data folder of batches.",
    ),
    "schema": _Command(
        "print the settings' JSON Schema, for editors",
        "config.schema",
        "Print the settings' JSON Schema. Editors complete and check a file whose first line is "
        "`# yaml-language-server: $schema=FILE`.",
    ),
    "keys": _Command(
        "issue, list or revoke API keys",
        "cli.keys",
        "API keys of tenants: issue one for the settings or at a running gateway, list them, revoke one, or hash one "
        "for the settings.",
    ),
    "endpoint": _Command(
        "add, drain, resume or remove endpoints of a running gateway",
        "cli.steering.endpoint",
        "Change the endpoints of a running gateway. The settings do not change.",
    ),
    "tenant": _Command(
        "pause, limit or clear a tenant of a running gateway",
        "cli.steering.tenant",
        "Show the tenants of a running gateway, pause or limit one, or cancel its requests. The settings do not "
        "change; a restart reverts everything.",
    ),
    "decider": _Command(
        "show the leader of several gateways, or replace it",
        "cli.steering.decider",
        "Among gateways that share a queue (docs/scale.md): show the leader, or let another one lead.",
    ),
    "edges": _Command("show the workers of all gateways that share", "cli.operator"),
    "status": _Command("one-line health summary", "cli.operator"),
    "queue": _Command("list queued requests and causes; bump or cancel a request", "cli.operator"),
    "explain": _Command("explain why a request waits or waited", "cli.operator"),
    "pause": _Command("stop dispatching; new requests queue", "cli.operator"),
    "drain": _Command("refuse new requests; serve queued ones", "cli.operator"),
    "resume": _Command("end pauses and drains", "cli.operator"),
    "reload": _Command("read the settings again", "cli.operator"),
    "top": _Command("watch it live in the terminal", "cli.operator"),
    "batch": _Command(
        "run files of requests on idle engines",
        "cli.batch",
        "List, show, cancel or run batches at a running gateway (enabled by `batch.data`).",
    ),
    "engine": _Command(
        "run a simulated engine",
        "sim.fake_engine.server",
        "Run a simulated engine that speaks vLLM's HTTP API, for trials and tests.",
    ),
    "demo": _Command(
        "see it work, in a minute",
        "cli.demo",
        "Start two simulated engines and the gateway, run a short load with queueing off and on, compare.",
    ),
    "doctor": _Command(
        "examine the engines",
        "cli.doctor",
        "Examine every endpoint; list missing features, the flags that enable them, and their effect on Penstock. Exit "
        "code 1 if an endpoint cannot serve as configured.",
    ),
    "simulate": _Command(
        "run a recorded workload in virtual time",
        "sim.traces.trace_cli",
        "Run a recorded workload through the scheduler and simulated engines in virtual time, once per routing policy.",
    ),
    "completion": _Command(
        "print a shell's completion script",
        "cli.completion",
        "Print the script that completes commands, flags and files: `penstock completion bash > "
        "~/.local/share/bash-completion/completions/penstock`, `… zsh > _penstock` in a folder of $fpath, or `… fish > "
        "~/.config/fish/completions/penstock.fish`.",
    ),
}


if __name__ == "__main__":
    sys.exit(main())
