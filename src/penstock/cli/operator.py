"""`penstock status`, `edges`, `queue`, `explain`, `try`, `pause`, `resume`, `drain`, `reload`, `top`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any
from urllib.parse import quote, urlencode

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli import admin_client
from penstock.cli.admin_client import AdminClient, GatewayError
from penstock.cli.top import views
from penstock.cli.top.keyboard import Keyboard
from penstock.cli.top.live import live
from penstock.config.reloading import Change
from penstock.core.explain.snapshot import ALL

TRY_TIMEOUT_S = 30.0  # the gateway answers after ten at the latest
RELOAD_TIMEOUT_S = 60.0  # ten thousand tenants take some seconds to read
BATCHES_MAX = 8  # shown by `status`
FAILURES_MAX = 6
EXIT_WRONG = 3  # of `status --check`: "Is something wrong? Yes."; 0: no, 1: no answer
WIDE_COLUMNS = 240
WATCH_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    admin_client.add_arguments(parser)
    command = parser.get_default("command")
    if command == "queue":
        parser.add_argument("verb", nargs="?", choices=["list", "bump", "cancel"], default="list", help="default: list")
        parser.add_argument("ids", nargs="*", metavar="ID", help="requests to bump or cancel")
    elif command == "explain":
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("id", metavar="ID", nargs="?", help="a request's id (x-request-id)")
        words = "search the last 1,000 requests: words of an id, tenant, model, endpoint, state or reason"
        which.add_argument("--find", metavar="WORDS", help=words)
    elif command == "try":
        parser.add_argument("tenant", metavar="TENANT", help="whose request it is: its limits, weight and use")
        parser.add_argument("model", metavar="MODEL", help="the model to ask")
        parser.add_argument("--prompt", metavar="TEXT", help="default: a greeting")
        parser.add_argument("--max-tokens", type=int, metavar="N", help="of the answer (default: 16)")
    elif command in ("pause", "drain", "resume"):
        parser.add_argument("model", metavar="MODEL", nargs="?", help="one model (default: all)")
    elif command == "status":
        parser.add_argument("--check", action="store_true", help=f"exit {EXIT_WRONG} if something is wrong")
    elif command == "top":
        parser.add_argument("--once", action="store_true", help="print it once and exit (implied without a terminal)")
    admin_client.add_output(parser)
    if command in ("status", "queue", "edges"):
        parser.add_argument("--watch", action="store_true", help=f"print it again every {WATCH_S:g} s, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    while True:
        code = admin_client.asked(args, _RUN[args.command])
        if not getattr(args, "watch", False):
            return code
        sys.stdout.flush()
        time.sleep(WATCH_S)
        if not args.json:
            console_of(args).clear()  # a terminal; otherwise one follows the other


def console_of(args: argparse.Namespace) -> Console:
    return Console(highlight=False, width=WIDE_COLUMNS if args.wide else None)


def _status(client: AdminClient, args: argparse.Namespace) -> int:
    state = client.call("GET", "/admin/state")
    if args.json:
        print(json.dumps(state))
    else:
        console = console_of(args)
        console.print(views.headline(state))
        if "verdict" in state:  # an older gateway has none
            console.print(Text(state["verdict"]))
        console.print(views.numbers(state))
        _show_edges(console, state)
        for line in views.lately(state, FAILURES_MAX):
            console.print(line)
        if state["batches"]:
            console.print(views.batches(state, BATCHES_MAX))
    return EXIT_WRONG if args.check and state["tone"] == "bad" and not state.get("by_operators") else 0


def _edges(client: AdminClient, args: argparse.Namespace) -> int:
    state = client.call("GET", "/admin/state")
    if args.json:
        print(json.dumps({key: state.get(key) for key in ("share", "edges")}))
    elif not state.get("edges"):
        print("one process carries all requests")
    else:
        _show_edges(console_of(args), state)
    return 0


def _show_edges(console: Console, state: dict[str, Any]) -> None:
    if state.get("share"):
        console.print(views.group(state["share"]))
    if state.get("edges"):
        console.print(views.edges(state))


def _queue(client: AdminClient, args: argparse.Namespace) -> int:
    if args.verb == "list":
        state = client.call("GET", "/admin/state")
        if args.json:
            print(json.dumps({key: state[key] for key in ("headline", "waiting", "tenants", "requests")}))
            return 0
        console = console_of(args)
        console.print(views.headline(state))
        if state["waiting"]:
            console.print(views.tenants(state, 20), views.requests(state, "waiting", 40, console.width), sep="\n")
        return 0
    if not args.ids:
        raise GatewayError(f"which request? `penstock queue {args.verb} ID`")
    failed = False
    for name in args.ids:
        try:
            answer = client.call("POST", f"/admin/requests/{quote(name, safe='')}/{args.verb}")
        except GatewayError as error:
            print(f"penstock: {error}", file=sys.stderr)
            failed = True
        else:
            print(json.dumps(answer) if args.json else f"{views.plain(name)}: {answer['state']}")
    return 1 if failed else 0


def _explain(client: AdminClient, args: argparse.Namespace) -> int:
    if args.find is not None:
        return _find(client, args)
    told = client.call("GET", f"/admin/requests/{quote(args.id, safe='')}")
    if args.json:
        print(json.dumps(told))
        return 0
    console = console_of(args)
    for line in told["story"]:
        console.print(Text(views.plain(line, 2_000)))
    candidates = (told["explanation"]["sent"] or {}).get("candidates", [])
    if len(candidates) > 1:
        score = told["explanation"]["sent"]["scored_by"] or "score"
        table = Table("open then", "leases", "slots", "prefill tokens", "cached", score, box=None, padding=(0, 1))
        for one in candidates:
            loads = [one[key] for key in ("leases", "slots", "prefill_tokens", "cached_tokens")]
            figures = ["" if load is None else str(load) for load in loads]
            figures.append("" if one["score"] is None else f"{one['score']:.3g}")
            table.add_row(Text(views.plain(one["endpoint"])), *figures)
        console.print(table)
    return 0


def _find(client: AdminClient, args: argparse.Namespace) -> int:
    told = client.call("GET", f"/admin/requests?{urlencode({'find': args.find})}")
    if args.json:
        print(json.dumps(told))
        return 0
    console = console_of(args)
    for row in told["requests"]:
        where = row["endpoint"] or row["reason"] or row["cause"] or ""
        said = f"{row['state']} {views.plain(where)}".rstrip()
        line = f"{views.plain(row['id'], 60)}: {views.plain(row['tenant'])}, {views.plain(row['model'])}, {said}"
        console.print(Text(f"{line}, waited {row['waited_s']:.1f} s"))
    console.print(f"{told['found']:,} found, of {told['searched']:,} requests")
    return 0


def _try(client: AdminClient, args: argparse.Namespace) -> int:
    given = {"prompt": args.prompt, "max_tokens": args.max_tokens}
    body = {"tenant": args.tenant, "model": args.model, **{key: its for key, its in given.items() if its is not None}}
    told = client.call("POST", "/admin/try", body, timeout_s=TRY_TIMEOUT_S)
    if args.json:
        print(json.dumps(told))
        return 0
    console = console_of(args)
    for line in told["story"]:
        console.print(Text(views.plain(line, 2_000)))
    if told["status"] is None:
        console.print(Text(f"It is not answered yet: `penstock explain {told['id']}` tells the rest."))
        return 0
    console.print(Text(f"{told['status']}: {views.plain(told['text'], 2_000)}"))
    return 0 if told["status"] < 400 else 1


def _stop(client: AdminClient, args: argparse.Namespace) -> int:
    answer = client.call("POST", f"/admin/{args.command}", {"model": args.model} if args.model else {})
    if args.json:
        print(json.dumps(answer))
    else:
        ended = answer.get("resumed", [])  # an older gateway has none
        first = f"resumed {_names(ended)}; " if ended else "nothing was stopped; " if args.command == "resume" else ""
        stopped = [f"{key}: {_names(answer[key])}" for key in ("paused", "drained") if answer[key]]
        back = "; `penstock resume` or a restart ends it" if stopped and args.command != "resume" else ""
        left = "; ".join(stopped) + "; " if stopped else ""
        print(f"{first}{left}{answer['waiting']} wait{back}")
    return 0


def _names(models: list[str]) -> str:
    return "everything" if ALL in models else ", ".join(map(views.plain, models))


def _reload(client: AdminClient, args: argparse.Namespace) -> int:
    answer = client.call("POST", "/admin/reload", {}, timeout_s=RELOAD_TIMEOUT_S)
    if args.json:
        print(json.dumps(answer))
        return 0
    for change in answer["changes"]:
        print(views.plain(Change(**change).line(), 200))
    count = len(answer["changes"])
    print(f"{count or 'no'} change{'' if count == 1 else 's'}; settings {answer['hash']}")
    return 0


def _top(client: AdminClient, args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps(client.call("GET", "/admin/state")))
        return 0
    console = console_of(args)
    if args.once or not console.is_terminal:
        console.print(views.screen(client.call("GET", "/admin/state"), console.width, None))
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # a way to leave it
        live(lambda: client.call("GET", "/admin/state"), console, Keyboard())
    return 0


_RUN = {
    "status": _status,
    "queue": _queue,
    "explain": _explain,
    "try": _try,
    "pause": _stop,
    "drain": _stop,
    "resume": _stop,
    "reload": _reload,
    "top": _top,
    "edges": _edges,
}
