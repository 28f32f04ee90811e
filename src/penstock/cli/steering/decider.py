"""`penstock decider …`: which gateway of the group decides, and how does an operator let another one?"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console

from penstock.cli import admin_client, views
from penstock.cli.admin_client import AdminClient, GatewayError

_VERBS = {
    "show": "say which gateway decides, since when, and who says so",
    "step-down": "let another gateway decide; requests go on",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb, meaning in _VERBS.items():
        sub = verbs.add_parser(verb, help=meaning, description=f"{meaning.capitalize()}.", allow_abbrev=False)
        sub.set_defaults(verb=verb)
        admin_client.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    """Returns the exit code: 1 where the gateway can't be reached, or refuses."""
    try:
        answer = _CALLS[args.verb](admin_client.client(args))
    except GatewayError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(answer))
    elif args.verb == "show":
        Console(highlight=False).print(views.group(answer))
    else:
        print("another gateway decides within seconds")
    return 0


def _show(client: AdminClient) -> Any:
    state = client.call("GET", "/admin/state")
    if state.get("share") is None:
        raise GatewayError("this gateway shares its queue with no other (docs/scale.md)")
    return state["share"]


def _step_down(client: AdminClient) -> Any:
    return client.call("POST", "/admin/decider/step-down", {})


_CALLS = {"show": _show, "step-down": _step_down}
