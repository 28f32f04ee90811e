"""`penstock endpoint …`: changes the endpoints of a running gateway."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any
from urllib.parse import quote

from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.gateway.admin.phrases import seconds

_LIST = "/admin/endpoints"
_VERBS = {
    "drain": "send it nothing more; running requests finish",
    "resume": "send it requests again",
    "remove": "drain it, then forget it",
    "slots": "set its number of concurrent requests",
}
_LIMITS = {
    "weight": ("N", "its relative share of the requests (default: 1)"),
    "price": ("N", "its relative cost (default: 1)"),
    "max_kv_usage": ("SHARE", "send nothing more above this share of its KV memory"),
    "max_prefill_tokens": ("N", "prompt tokens that may wait in it"),
    "max_time_per_output_token": ("DURATION", "send nothing more while its TPOT is above this"),
    "max_engine_waiting": ("N", "send only while fewer than this many wait inside it"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    admin_client.add_verb(verbs, "list", "show the endpoints", endpoint=_list)
    add = admin_client.add_verb(verbs, "add", "add one or more endpoints", endpoint=_add)
    add.add_argument("urls", metavar="URL", nargs="+", help="an engine's base URL")
    add.add_argument("--name", help="its name, when one is added (default: host:port)")
    add.add_argument("--engine", help="its kind (default: auto)")
    add.add_argument("--slots", help="concurrent requests (default: auto)")
    add.add_argument("--model", action="append", default=[], help="a model it serves (default: ask it)")
    for key, (metavar, meaning) in _LIMITS.items():
        add.add_argument(f"--{key.replace('_', '-')}", metavar=metavar, help=meaning)
    for verb, meaning in _VERBS.items():
        sub = admin_client.add_verb(verbs, verb, meaning, endpoint=_change, verb=verb)
        sub.add_argument("names", metavar="NAME", nargs="+", help="an endpoint's name")
        if verb == "slots":
            sub.add_argument("slots", metavar="N", help="a number, or `auto`")
        if verb == "remove":
            sub.add_argument("--force", action="store_true", help="abort running requests")


def run(args: argparse.Namespace) -> int:
    return admin_client.asked(args, _run)


def _run(client: AdminClient, args: argparse.Namespace) -> int:
    """Change each endpoint in turn; one that fails does not stop the others. Returns the exit code."""
    answers: list[Any] = []
    asks = args.endpoint(client, args)
    failed = not asks
    for ask in asks:
        try:
            answers.append(ask())
        except GatewayError as error:
            print(f"penstock: {error}", file=sys.stderr)
            failed = True
    if args.json:
        print(json.dumps(answers if len(answers) != 1 else answers[0]))
    else:
        for answer in answers:
            for endpoint in answer.get("endpoints", [answer]):
                print(line(endpoint))
    return 1 if failed else 0


def _list(client: AdminClient, _: argparse.Namespace) -> list[Any]:
    return [lambda: client.call("GET", _LIST)]


def _add(client: AdminClient, args: argparse.Namespace) -> list[Any]:
    given = {"name": args.name, "engine": args.engine, "slots": args.slots, "models": args.model or None}
    given |= {key: getattr(args, key) for key in _LIMITS}
    settings = {key: value for key, value in given.items() if value is not None}
    if args.name and len(args.urls) > 1:
        print("penstock: --name is for one URL", file=sys.stderr)
        return []
    return [lambda url=url: client.call("POST", _LIST, {"url": url, **settings}) for url in args.urls]


def _change(client: AdminClient, args: argparse.Namespace) -> list[Any]:
    paths = [f"{_LIST}/{quote(name, safe='')}" for name in args.names]
    if args.verb == "remove":
        force = "?force=true" if args.force else ""
        return [lambda path=path: client.call("DELETE", path + force) for path in paths]
    body = {"slots": args.slots} if args.verb == "slots" else {}
    return [lambda path=path: client.call("POST", f"{path}/{args.verb}", body) for path in paths]


def line(endpoint: dict[str, Any]) -> str:
    """Returns an endpoint of an answer on one line."""
    known = [f"{key} {endpoint[key]}" for key in ("url", "source", "slots", "leases") if key in endpoint]
    state = endpoint["state"]
    if state != "up" and endpoint.get("state_s") is not None:
        state += f" for {seconds(endpoint['state_s'])}"
    if endpoint.get("failure"):
        known.append(f"last failure {endpoint['failure']} {seconds(endpoint['failed_s_ago'])} ago")
    return f"{endpoint['name']}: {', '.join([state, *known])}"
