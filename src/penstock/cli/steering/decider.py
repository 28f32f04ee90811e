"""`penstock decider …`: shows the leader of a group of gateways, or replaces it."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.cli.top import views

_VERBS = {
    "show": "show the leader, since when, and by which election",
    "step-down": "let another gateway lead; requests continue",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for verb, meaning in _VERBS.items():
        admin_client.add_verb(verbs, verb, meaning, verb=verb)


def run(args: argparse.Namespace) -> int:
    return admin_client.asked(args, _show if args.verb == "show" else _step_down)


def _show(client: AdminClient, args: argparse.Namespace) -> int:
    share = _share(client)
    if args.json:
        return admin_client.show(args, share)
    Console(highlight=False).print(views.group(share))
    return 0


def _step_down(client: AdminClient, args: argparse.Namespace) -> int:
    _share(client)
    answer = client.call("POST", "/admin/decider/step-down", {})
    return admin_client.show(args, answer, "another gateway takes over within seconds")


def _share(client: AdminClient) -> dict[str, Any]:
    """Returns the group as the gateway sees it. Raises GatewayError if it belongs to none."""
    share: dict[str, Any] | None = client.call("GET", "/admin/state").get("share")
    if share is None:
        raise GatewayError("this gateway shares its queue with no other (docs/scale.md)")
    return share
