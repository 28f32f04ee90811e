"""`penstock admin wall-link`: a link for a screen on a wall, which looks and changes nothing.

Its token is made of the admin token (`own_token.for_wall`) and stands behind the `#`, which no browser sends: it is in
no log and told to no other site.
"""

from __future__ import annotations

import argparse
import os
import sys

from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.gateway.admin import own_token

_NOT_KNOWN = "no admin token is known here: run this on the gateway's machine, or with --token"
_UNTIL_RESTART = (
    "the gateway generates its token at each start, and the link ends with it; set admin.token for one that stays"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    link = admin_client.add_verb(verbs, "wall-link", "print a link to the page for a screen on a wall")
    link.add_argument("--at", metavar="URL", help="the gateway's address as the screen reaches it (default: --url)")


def run(args: argparse.Namespace) -> int:
    return admin_client.asked(args, _wall_link)


def _wall_link(_: AdminClient, args: argparse.Namespace) -> int:
    token = args.token or own_token.find(args.url, os.environ)
    if not token:
        raise GatewayError(_NOT_KNOWN)
    reads = token
    if AdminClient(args.url, token).call("GET", "/admin/access")["writes"]:
        reads = own_token.for_wall(token)
        AdminClient(args.url, reads).call("GET", "/admin/access")
    link = f"{(args.at or args.url).rstrip('/')}/admin/#wall={reads}"
    if not args.token:
        print(f"penstock: {_UNTIL_RESTART}", file=sys.stderr)
    return admin_client.show(args, {"link": link}, link)
