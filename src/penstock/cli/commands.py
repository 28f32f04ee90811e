"""All commands: one program, one subcommand per chore.

Only the modules of the chosen subcommand are imported, because building the models of the settings takes half a second.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

import penstock
from penstock.build import kind, shadowed

RUN, SET_UP, OPERATE, TRY = "run", "set up", "operate a running gateway", "try out, without a GPU"
_LISTING = {
    "endpoint": "list",
    "tenant": "ls",
    "keys": "ls",
    "batch": "ls",
    "queue": "list",
    "sessions": "ls",
}  # each one's own word
_EXAMPLES = """\
examples:
  penstock demo                                             before and after, in half a minute
  penstock serve --endpoint http://gpu-0:8000 --endpoint http://gpu-1:8000
  penstock serve penstock.yaml                              settings from a file
  penstock doctor --endpoint http://gpu-0:8000              what does this engine offer, which flags are missing?
  penstock status                                           is it fine, who waits, and why?"""


class _Command(NamedTuple):
    help: str
    module: str  #: below `penstock`; it has `add_arguments` and `run`
    description: str = ""  #: if the help is too short
    group: str = OPERATE
    examples: str = ""  #: command lines, with `; ` between


def run(words: list[str]) -> int:
    """Run the subcommand that `words` name. Returns the exit code."""
    if wrong := shadowed():
        print(wrong, file=sys.stderr)
        return 1
    try:
        code = _command(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the last flush complains
        return 141
    return code


def _command(words: list[str]) -> int:
    if words[:1] == ["vllm-router"]:  # it parses its own flags
        from penstock.cli import vllm_router

        return vllm_router.run(words[1:])
    words = _normal(words)
    if not words:
        print(parser("").format_help(), end="", file=sys.stderr)
        return 2
    if words[0] not in (*_COMMANDS, "-h", "--help", "--version"):
        from penstock.cli import hints

        wrong = hints.no_command(words, _COMMANDS)
        print(f"penstock: {wrong}\n(`penstock --help` shows all commands)", file=sys.stderr)
        return 2
    whole = parser(words[0])
    args, unknown = whole.parse_known_args(words)
    if unknown:
        from penstock.cli import hints

        hints.refuse(unknown, words, whole)
    return int(args.run(args))


def _normal(words: list[str]) -> list[str]:
    """Returns the words with `list` or `ls` as the command has it, and `help` and `version` as flags."""
    if words[:1] == ["help"]:
        return [*words[1:2], "--help"]
    if words == ["version"]:
        return ["--version"]
    if len(words) > 1 and words[1] in ("list", "ls") and words[0] in _LISTING:
        return [words[0], _LISTING[words[0]], *words[2:]]
    return words


class Parser(argparse.ArgumentParser):
    """Reports a mistake on one line, with the line that was meant. Subparsers are of this class, too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n(`{self.prog} --help` shows what there is)\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Names the nearest choice; argparse lists all and leaves the finding to the reader."""
        if action.choices is None or value in action.choices:
            return
        from penstock.cli import hints

        hints.no_choice(self.prog, action, value)


class _Whole(Parser):
    """The parser of all commands. Its help has them in groups."""

    def format_help(self) -> str:
        lines = [self.format_usage(), f"{self.description}\n"]
        for group in (RUN, SET_UP, OPERATE, TRY):
            lines.append(f"{group}:")
            lines += [f"    {name:<12} {it.help}" for name, it in _COMMANDS.items() if it.group == group]
            lines.append("")
        lines += [
            _EXAMPLES,
            "",
            "`penstock COMMAND --help` has a command's flags; --version prints the version.",
            _docs(),
        ]
        return "\n".join(lines) + "\n"


def parser(asked: str | None) -> argparse.ArgumentParser:
    """Returns the parser of all commands, with arguments only for the one asked for (None: for all)."""
    whole = _Whole(
        prog="penstock",
        usage="penstock COMMAND …",
        description="A flow-control gateway for LLM inference: fair, bounded queues before vLLM and other engines.",
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"penstock {penstock.__version__} ({kind()})")
    commands = whole.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)
    for name, command in _COMMANDS.items():
        description = command.description or f"{command.help.capitalize()}."
        examples = "\n".join(["examples:", *[f"  penstock {line}" for line in command.examples.split("; ")]])
        sub = commands.add_parser(
            name,
            prog=f"penstock {name}",
            help=command.help,
            description=description,
            epilog=f"{examples}\n\n{_docs()}" if command.examples and asked == name else None,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        if command.module and (asked is None or name == asked):
            module = importlib.import_module(f"penstock.{command.module}")
            sub.set_defaults(run=module.run, command=name)
            module.add_arguments(sub)
    return whole


def _docs() -> str:
    """Where the docs are: in the environment of an installed package, or in the checkout."""
    from importlib import metadata

    found = Path(__file__).parents[3] / "docs"
    try:
        for file in metadata.files(penstock.__distribution__) or ():
            if file.parts[-2:] == ("penstock", "index.md"):
                found = Path(str(file.locate())).parent
    except metadata.PackageNotFoundError:
        pass  # run from the sources
    return f"docs: {found.resolve()}/index.md, all settings: configuration.md beside it"


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of examples, and fills all other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


_COMMANDS = {
    "serve": _Command(
        "run the gateway",
        "cli.running",
        "Run the gateway. Settings: defaults, -c FILE, PENSTOCK__… variables, flags; the last wins.",
        group=RUN,
        examples="serve --endpoint http://gpu-0:8000 --endpoint http://gpu-1:8000; serve penstock.yaml; "
        "serve penstock.yaml --host 0.0.0.0 --port 9000",
    ),
    "epp": _Command(
        "run the gateway as an endpoint picker of Envoy",
        "cli.running",
        "Run the gateway, and pick endpoints for Envoy and the gateways made of it on `epp.listen` (default :9002): "
        "they carry the bytes. Flags and settings are those of `serve`.",
        group=RUN,
        examples="epp -c penstock.yaml; epp --endpoint http://10.0.0.7:8000 --listen :8080",
    ),
    "vllm-router": _Command("run the gateway by the flags of production-stack's router", "", group=RUN),
    "check": _Command(
        "check a settings file",
        "cli.check",
        "Check whether `serve` would start with a settings file on this machine. It does not check whether another "
        "program has the port, or another gateway the data folder of batches.",
        group=SET_UP,
        examples="check penstock.yaml; check --live penstock.yaml",
    ),
    "doctor": _Command(
        "examine the engines",
        "cli.doctor",
        "Examine every endpoint; list missing features, the flags that enable them, and their effect on Penstock. Exit "
        "code 1 if an endpoint cannot serve as configured.",
        group=SET_UP,
        examples="doctor --endpoint http://gpu-0:8000; doctor -c penstock.yaml --try",
    ),
    "keys": _Command(
        "issue, list or revoke API keys",
        "cli.keys",
        "API keys of tenants: issue one for the settings or at a running gateway, list them, revoke one, or hash one "
        "for the settings.",
        group=SET_UP,
        examples="keys new team-a; keys new team-a notebook --models small --expires 2027-01-31; keys ls",
    ),
    "schema": _Command(
        "print the settings' JSON Schema, for editors",
        "config.schema",
        "Print the settings' JSON Schema. Editors complete and check a file whose first line is "
        "`# yaml-language-server: $schema=FILE`.",
        group=SET_UP,
    ),
    "completion": _Command(
        "print a shell's completion script",
        "cli.completion",
        "Print the script that completes commands, flags and files: `penstock completion bash > "
        "~/.local/share/bash-completion/completions/penstock`, `… zsh > _penstock` in a folder of $fpath, or `… fish > "
        "~/.config/fish/completions/penstock.fish`.",
        group=SET_UP,
    ),
    "status": _Command("one-line health summary", "cli.operator", examples="status; status --check"),
    "top": _Command("watch it live in the terminal", "cli.operator", examples="top; top --once"),
    "queue": _Command(
        "list queued requests and causes; bump or cancel a request",
        "cli.operator",
        examples="queue; queue bump ID; queue cancel ID",
    ),
    "explain": _Command(
        "explain why a request waits or waited", "cli.operator", examples="explain ID; explain --find 'team-a failed'"
    ),
    "try": _Command(
        "send a test request as a tenant; see where it goes",
        "cli.operator",
        "Send a short chat request as a tenant, by its limits, weight and default band, and tell where it went and "
        "why. Its use is the tenant's.",
        examples="try team-a qwen-32b",
    ),
    "usage": _Command(
        "show who used what",
        "cli.usage",
        "Show requests, tokens, seconds and waits per tenant, key, user, model, endpoint, hour or day, at your own "
        "prices (docs/usage.md).",
        examples="usage; usage --from 7d --by day,tenant --csv",
    ),
    "reload": _Command("read the settings again", "cli.operator"),
    "pause": _Command("stop dispatching until `resume` or a restart; new requests queue", "cli.operator"),
    "drain": _Command("refuse new requests until `resume` or a restart; serve queued ones", "cli.operator"),
    "resume": _Command("end pauses and drains", "cli.operator"),
    "endpoint": _Command(
        "add, drain, resume or remove endpoints of a running gateway",
        "cli.steering.endpoint",
        "Change the endpoints of a running gateway. The settings do not change; a restart reverts everything.",
        examples="endpoint list; endpoint add http://gpu-2:8000 --slots 64; endpoint drain gpu-0:8000",
    ),
    "sessions": _Command(
        "show agents' sessions; pause, resume or prefer one",
        "cli.steering.sessions",
        "Show the sessions of agents that hold the engines' KV memory or wait for it (docs/sessions.md), or pause, "
        "resume or prefer one.",
        examples="sessions ls; sessions ls --tenant team-a --state waiting; sessions show NAME; sessions pause NAME",
    ),
    "tenant": _Command(
        "pause, limit or clear a tenant of a running gateway",
        "cli.steering.tenant",
        "Show the tenants of a running gateway, pause or limit one, or cancel its requests. The settings do not "
        "change; a restart reverts everything.",
        examples="tenant ls; tenant limit nightly --requests-per-minute 60; tenant pause nightly",
    ),
    "batch": _Command(
        "run files of requests on idle engines",
        "cli.batch",
        "List, show, cancel or run batches at a running gateway (enabled by `batch.serve`).",
        examples="batch run requests.jsonl; batch ls",
    ),
    "store": _Command(
        "check, back up or restore the store",
        "batch.store.copies",
        "The SQLite file with the ledger of use, issued keys and batches (`store`): check it and back it up while "
        "the gateway runs, or put a backup in its place.",
        examples="store backup /backup/2026-11-26.sqlite3 -c penstock.yaml; store check /backup/2026-11-26.sqlite3",
    ),
    "decider": _Command(
        "show the leader of several gateways, or replace it",
        "cli.steering.decider",
        "Among gateways that share a queue (docs/scale.md): show the leader, or let another one lead.",
    ),
    "admin": _Command(
        "print a link to the page for a screen on a wall",
        "cli.steering.wall",
        "Print a link to the page for a screen on a wall. It looks and changes nothing; the browser keeps its token.",
        examples="admin wall-link --at http://gate.example.com:8080",
    ),
    "edges": _Command("show the workers of all gateways that share", "cli.operator"),
    "demo": _Command(
        "see it work, in half a minute",
        "cli.demo",
        "Start two simulated engines and the gateway, run a short load with queueing off and on, compare.",
        group=TRY,
        examples="demo; demo --once",
    ),
    "engine": _Command(
        "run a simulated engine",
        "sim.fake_engine.server",
        "Run a simulated engine that speaks vLLM's HTTP API, for trials and tests.",
        group=TRY,
        examples="engine --port 9001 --slots 4 --step-ms 40",
    ),
    "simulate": _Command(
        "run a recorded workload in virtual time",
        "sim.traces.trace_cli",
        "Run a recorded workload through the scheduler and simulated engines in virtual time, once per routing policy.",
        group=TRY,
        examples="simulate --trace azure.csv",
    ),
}
