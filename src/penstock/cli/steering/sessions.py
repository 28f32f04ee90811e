"""`penstock sessions …`: shows, pauses, resumes or prefers agents' sessions of a running gateway."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote, urlencode

from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.cli.operator import WIDE_COLUMNS, console_of
from penstock.cli.top import views
from penstock.core.values.settings import SHORT_WAIT_S
from penstock.gateway.admin.phrases import seconds

_LIST = "/admin/sessions"
_STATES = ("waiting", "resident", "idle", "paused", "passing")
_CHANGES = {
    "pause": "let its turns wait until `resume` or a restart, and give its memory to others",
    "resume": "end a pause",
    "prefer": "let a waiting session in next, as if it had waited `sessions.wait`",
}
_SAME_NAME_MAX = 10  # tenants that are named if several have a session of that name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = admin_client.add_verb(
        verbs,
        "ls",
        "show the sessions",
        "Show the sessions: those that wait for memory first, then those that hold some, then those seen last.",
        work=_list,
    )
    listing.add_argument("--tenant", metavar="NAME", help="only this tenant's")
    listing.add_argument("--endpoint", metavar="NAME", help="only those that hold memory there")
    listing.add_argument(
        "--state",
        choices=_STATES,
        help="only those in this state: `resident` (a turn is under way) and `idle` hold memory; `paused`: its memory "
        "was given to others; `passing`: it needs none, because it is small or has ended",
    )
    listing.add_argument("--limit", metavar="N", default="100", help="how many at most (default: 100; up to 1,000)")
    show = admin_client.add_verb(verbs, "show", "show one session and its requests", names="its name", work=_one)
    show.set_defaults(verb="")
    for verb, meaning in _CHANGES.items():
        admin_client.add_verb(verbs, verb, meaning, names="its name", work=_one, verb=verb)
    for verb in ("show", *_CHANGES):
        verbs.choices[verb].add_argument("--tenant", metavar="NAME", help="whose session it is, if several have one so")


def run(args: argparse.Namespace) -> int:
    return admin_client.asked(args, args.work)


def _list(client: AdminClient, args: argparse.Namespace) -> int:
    wishes = {key: getattr(args, key) for key in ("tenant", "endpoint", "state", "limit")}
    asked = urlencode({key: value for key, value in wishes.items() if value is not None})
    answer = client.call("GET", f"{_LIST}?{asked}")
    if args.json:
        return admin_client.show(args, answer)
    if answer["sessions"]:
        console = console_of(args)
        if not console.is_terminal:
            console.width = WIDE_COLUMNS
        console.print(views.sessions(answer["sessions"], console.width))
    more = ["there are more: --limit N, --tenant or --state"] if answer["more"] else []
    return admin_client.show(args, answer, *_sums(answer["sums"]), *more)


def _sums(sums: dict[str, Any]) -> list[str]:
    """Returns the lines below the list: how many there are, and the memory of each endpoint."""
    if not sums["on"]:
        return ["`sessions.memory` is off: no session waits for memory"]
    lines = [f"{sums['resident']:,} hold memory, {sums['waiting']:,} wait for at most {seconds(sums['wait_s'])}"]
    if sums["price"]:
        lines[0] += f", which costs {sums['price']:.0%} of the engines' time for prompts"
        if sums["wait_s"] > SHORT_WAIT_S:
            lines[0] += f" ({SHORT_WAIT_S:.0f} s would cost {sums['price_of_minute']:.0%})"
    for row in sums["memory"]:
        name = views.plain(row["endpoint"], 60)
        if row["kv_tokens"] is None:
            reason = "reports no KV memory, so nothing waits for it (`endpoints[].kv_tokens`)"
            lines.append(f"{name}: {reason if row['keeps_prefixes'] else 'keeps no prefixes, so nothing waits for it'}")
            continue
        part = row["held_tokens"] / row["usable_tokens"] if row["usable_tokens"] else 0.0
        held = f"{row['held_tokens']:,} of {row['usable_tokens']:,} tokens held ({part:.0%})"
        lines.append(f"{name}: {held} by {row['sessions']:,} sessions, {row['idle']:,} of them idle")
    return lines


def _one(client: AdminClient, args: argparse.Namespace) -> int:
    tenant = args.tenant if args.tenant is not None else _tenant_of(client, args.name)
    path = f"{_LIST}/{quote(tenant, safe='')}/{quote(args.name, safe='')}"
    answer = client.call("POST", f"{path}/{args.verb}", {}) if args.verb else client.call("GET", path)
    row = answer["session"]
    lines = [f"{views.plain(row['session'])} of {views.plain(row['tenant'])}: {_said(row)}"]
    for key in ("waiting", "running"):
        lines += [f"  {key}: {views.plain(request_id)}" for request_id in answer[key]]
    return admin_client.show(args, answer, *lines)


def _tenant_of(client: AdminClient, name: str) -> str:
    """Returns the tenant who has a session of this name. Raises `GatewayError` if none or several have one."""
    asked = urlencode({"name": name, "limit": _SAME_NAME_MAX})
    tenants = [row["tenant"] for row in client.call("GET", f"{_LIST}?{asked}")["sessions"]]
    if len(tenants) == 1:
        return str(tenants[0])
    if not tenants:
        raise GatewayError(f"no session `{views.plain(name)}` is known (any more); `penstock sessions ls` lists them")
    several = ", ".join(views.plain(tenant, 60) for tenant in sorted(tenants))
    raise GatewayError(f"several tenants have a session `{views.plain(name)}`: name one by --tenant ({several})")


def _said(row: dict[str, Any]) -> str:
    """Returns what is known of a session, in words."""
    said = [f"{row['state']}{' (an operator paused it)' if row['stopped'] else ''}"]
    if row["waits_s"] is not None:
        said[0] += f" for {seconds(row['waits_s'])}"
        if row["expected_s"] is not None:
            said[0] += f", about {seconds(row['expected_s'])} more"
    if row["endpoint"]:
        said[0] += f" at {views.plain(row['endpoint'], 60)}"
    elif row["origin"]:
        said[0] += f", last at {views.plain(row['origin'], 60)}"
    cached = f"{row['cached_tokens']:,} cached"
    said += [
        f"{row['turns']:,} turn{'' if row['turns'] == 1 else 's'} answered",
        f"used {row['prompt_tokens']:,} prompt tokens ({cached}), {row['completion_tokens']:,} completion tokens",
        f"{row['tokens']:,} tokens of context",
        f"model {views.plain(row['model'], 60)}",
    ]
    return "; ".join(said)
