"""`penstock usage`: who used what, as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.cli.top import views
from penstock.gateway.usage.sheet import csv_text

WIDE = 240  # columns of a table that goes to a file or a pipe
MONTH = timedelta(days=31)  # rows of more than that are divided by month
_TIMES = {"hour", "day", "month"}
_ALWAYS = ("requests", "answered", "prompt_tokens", "completion_tokens")
_AMOUNTS = {  # columns of the table, and their heads
    "requests": "requests",
    "answered": "answered",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "completion_tokens": "completion",
    "estimated_tokens": "estimated",
    "lease_s": "lease s",
    "waits": "waits",
    "wait_s": "wait s",
    "interrupted": "cut off",
    "cost": "cost",
    "interrupted_cost": "of cut off",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    admin_client.add_arguments(parser)
    when = "2026-11-25, 2026-11-25T14:00:00Z, 2026-11, or 24h or 7d for so long ago; UTC, by the hour"
    parser.add_argument(
        "--from",
        dest="since",
        metavar="WHEN",
        help=f"{when} (default: a day before --to; twelve months with --by month)",
    )
    parser.add_argument("--to", dest="until", metavar="WHEN", help="the same; a date includes that day (default: now)")
    parser.add_argument("--month", metavar="MONTH", help="2026-11, `this` or `last`, instead of --from and --to")
    parser.add_argument(
        "--by",
        metavar="PART,…",
        help="hour, day, month, tenant, key, user, model, endpoint, reason (default: tenant,model); more than 31 days "
        "are by month, too",
    )
    for part in ("tenant", "key", "user"):
        parser.add_argument(f"--{part}", metavar="NAME", help=f"only this {part}")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    form.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(args: argparse.Namespace) -> int:
    return admin_client.asked(args, _show)


def _show(client: AdminClient, args: argparse.Namespace) -> int:
    asked = {
        "from": args.since,
        "to": args.until,
        "month": args.month,
        "by": args.by,
        "tenant": args.tenant,
        "key": args.key,
        "user": args.user,
    }
    told = _ask(client, asked)
    if not args.json and told["by"] and _is_long(told) and _TIMES.isdisjoint(told["by"]):
        with contextlib.suppress(GatewayError):  # too many rows
            told = _ask(client, {**asked, "by": ",".join(["month", *told["by"]])})
    if args.json:
        print(json.dumps(told))
    elif args.csv:
        print(csv_text(told), end="")
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = WIDE
        console.print(Text(f"{told['from']} to {told['to']}"), _table(told), sep="\n")
        if reasons := told["total"]["reasons"]:
            said = ", ".join(f"{views.plain(reason)} {count:,}" for reason, count in reasons.items())
            console.print(Text(f"not answered: {said}"))
    return 0


def _ask(client: AdminClient, asked: dict[str, Any]) -> Any:
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    return client.call("GET", f"/admin/usage?{query}")


def _is_long(told: dict[str, Any]) -> bool:
    since, until = (datetime.fromisoformat(told[name]) for name in ("from", "to"))
    return until - since > MONTH


def _table(told: dict[str, Any]) -> Table:
    total, by = told["total"], told["by"]
    amounts = {name: head for name, head in _AMOUNTS.items() if name in _ALWAYS or total[name]}
    table = Table(box=None, padding=(0, 1))
    for name in by:
        table.add_column(name)
    for head in amounts.values():
        table.add_column(head, justify="right")
    rows = [([views.plain(row[name], 40) or "–" for name in by], row) for row in told["rows"]]
    if by:
        rows.append((["total", *[""] * (len(by) - 1)], total))
    else:
        rows = [([], total)]
    for names, row in rows:
        table.add_row(*map(Text, names), *[_figure(row[name]) for name in amounts])
    return table


def _figure(value: float) -> str:
    """Returns a number with its cents, or three digits of less than one, and without an exponent."""
    if isinstance(value, int):
        return f"{value:,}"
    if not 0 < value < 1:
        return f"{value:,.2f}"
    return f"{value:.{2 - math.floor(math.log10(value))}f}".rstrip("0")
