"""`penstock keys new TENANT NAME`, `ls`, `revoke`: how does an operator make and withdraw keys of a running gateway?"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import quote, urlencode

from penstock.cli import admin_client, views
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.config import values

_LIST = "/admin/keys"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what all of these take."""
    admin_client.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def make(args: argparse.Namespace, rights: dict[str, object]) -> int:
    """Make a key at the gateway. Returns the exit code."""

    def work(client: AdminClient) -> None:
        made = client.call("POST", _LIST, {"tenant": args.tenant, "name": args.name, **rights})
        if args.json:
            print(json.dumps(made))
            return
        print(f"key:  {made['key']}")
        print(f"name: {views.plain(made['name'])}")
        print()
        print("The key is not shown again. It works now, and its caller sends it as `Authorization: Bearer KEY`.")
        print(f"`penstock keys revoke {views.plain(made['name'])}` withdraws it.")

    return _told(args, work)


def list_keys(args: argparse.Namespace) -> int:
    """Show the keys there are. Returns the exit code."""

    def work(client: AdminClient) -> None:
        query = f"?{urlencode({'tenant': args.tenant})}" if args.tenant else ""
        answer = client.call("GET", _LIST + query)
        if args.json:
            print(json.dumps(answer))
            return
        for key in answer["keys"]:
            print(_line(key))
        if answer["more"]:
            print(f"and {answer['more']:,} more; --tenant NAME shows one tenant's")
        if answer["trouble"]:
            print(f"The store can't be read, these are the keys known so far: {views.plain(answer['trouble'], 500)}")

    return _told(args, work)


def revoke(args: argparse.Namespace) -> int:
    """Withdraw a key. Returns the exit code."""

    def work(client: AdminClient) -> None:
        answer = client.call("DELETE", f"{_LIST}/{quote(args.name, safe='')}")
        print(json.dumps(answer) if args.json else f"{views.plain(answer['name'])}: withdrawn, it works no more")

    return _told(args, work)


def _told(args: argparse.Namespace, work: Any) -> int:
    try:
        work(admin_client.client(args))
    except GatewayError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    return 0


def _line(key: dict[str, Any]) -> str:
    said = [f"{views.plain(key['name'])}: {views.plain(key['tenant'])}", key["source"]]
    if key["state"] != "good":
        said.insert(0, key["state"].upper())
    if key["models"]:
        said.append(f"models {views.plain(' '.join(key['models']), 200)}")
    for bound, words in (("max_prompt_tokens", "prompts of"), ("max_output_tokens", "answers of")):
        if key[bound] is not None:
            said.append(f"{words} {key[bound]:,} tokens")
    if key["expires_at"] is not None:
        said.append(f"until {values.write_moment(key['expires_at'])}")
    return ", ".join(said)
