"""`penstock completion SHELL`: the completion script that shtab makes from the parser.

Names of tenants, endpoints and requests are asked of the running gateway at each TAB, and not offered if it does not
answer at once: the scripts call `penstock completion --names KIND`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from typing import Any

from penstock.cli import admin_client
from penstock.cli.commands import parser

SHELLS = ("bash", "zsh", "fish")
ANSWER_S = 0.3  # a TAB that takes longer is felt
NAMES_MAX = 200  # more are no help in a menu
#: What a shell takes as it stands. A request's id is its client's word, and must not become a command.
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/+=~][A-Za-z0-9_.:@/+=~-]*", re.ASCII)
#: The kind of name, by the first word of a command and metavar.
_NAMED = {
    ("tenant", "NAME"): "tenants",
    ("try", "TENANT"): "tenants",
    ("keys", "TENANT"): "tenants",
    ("endpoint", "NAME"): "endpoints",
    ("explain", "ID"): "requests",
    ("queue", "ID"): "requests",
}
KINDS = ("tenants", "endpoints", "requests")
_ASKED = "penstock completion --names {} 2>/dev/null"
# Not by `compgen -W`, which expands what it is given. Without the colon a word, such as host:port, is one.
_BASH = """\
COMP_WORDBREAKS=${{COMP_WORDBREAKS//:}}
_penstock_{0}() {{
  local name
  while IFS= read -r name; do [[ $name == "$1"* ]] && printf '%s\\n' "$name"; done < <({1})
}}"""
_ZSH = """\
_penstock_{0}() {{
  local -a names
  names=("${{(@f)$({1})}}")
  compadd -a names
}}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help="the shell")
    parser.add_argument("--names", choices=KINDS, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.names is not None:
        print("".join(f"{name}\n" for name in names(args.names)), end="")
    elif args.shell is None:
        print(f"penstock: completion: for which shell? ({', '.join(SHELLS)})", file=sys.stderr)
        return 2
    else:
        print(script(args.shell), end="")
    return 0


def names(kind: str) -> list[str]:
    """Returns the names of `KINDS` that the gateway of PENSTOCK_URL knows; none if it does not answer in time."""
    args = argparse.ArgumentParser()
    admin_client.add_arguments(args)
    try:
        state = admin_client.client(args.parse_args([])).call("GET", "/admin/state", timeout_s=ANSWER_S)
        found = _names(kind, state)
    except (admin_client.GatewayError, LookupError, TypeError, AttributeError):
        return []
    return sorted({name for name in found if _PLAIN.fullmatch(name)})[:NAMES_MAX]


def _names(kind: str, state: dict[str, Any]) -> list[str]:
    if kind == "requests":
        return [row["id"] for which in ("waiting", "running", "ended") for row in state["requests"][which]]
    if kind == "tenants":  # the quiet ones of the settings, too
        return [row["tenant"] for which in ("tenants", "configured") for row in state[which]]
    return [row["name"] for row in state[kind]]


def script(shell: str) -> str:
    """Returns the script for one of `SHELLS`."""
    import shtab  # noqa: PLC0415 - a TAB that asks for names needs none of it

    paths = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY, "DIR": shtab.DIRECTORY, "PATH": shtab.FILE}  # by metavar
    whole = parser(None)
    _shorten(whole)
    for command, action in _actions(whole):
        kind = _NAMED.get((command, str(action.metavar)))
        if isinstance(action.metavar, str) and action.metavar in paths:
            action.complete = paths[action.metavar]  # type: ignore[attr-defined]
        elif kind is not None:
            action.complete = _asking(kind)  # type: ignore[attr-defined]
    return "".join(f"{line.rstrip()}\n" for line in shtab.complete(whole, shell=shell).splitlines())


def _asking(kind: str) -> dict[str, Any]:
    """Returns how each shell asks for names, as shtab takes it."""
    asked, function = _ASKED.format(kind), f"_penstock_{kind}"
    preamble = {"bash": _BASH.format(kind, asked), "zsh": _ZSH.format(kind, asked)}
    return {"bash": function, "zsh": function, "fish": f"({asked})", "preamble": preamble}


def _actions(of: argparse.ArgumentParser, command: str = "") -> Iterator[tuple[str, argparse.Action]]:
    """Yields all actions, each with the first word of its command."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _actions(sub, command or name)
        else:
            yield command, action


def _shorten(of: argparse.ArgumentParser) -> None:
    """Describe each command by its short help, which fits a menu."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for pseudo in action._choices_actions:
                action.choices[pseudo.dest].description = pseudo.help
            for sub in action.choices.values():
                _shorten(sub)
