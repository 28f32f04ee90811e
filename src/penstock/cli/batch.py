"""`penstock batch ls|show|cancel|run`: a file of requests in, a file of answers out."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from penstock.cli.admin_client import URL_DEFAULT, GatewayError, lacks
from penstock.cli.batch_client import BatchClient
from penstock.cli.top.views import plain

POLL_S = 1.0
ENDED = ("completed", "failed", "expired", "cancelled")
ERRORS_SHOWN = 20
EXIT_ERRORS = 3  # of `run`: the batch ended, but not every request succeeded
ENDPOINT = "/v1/chat/completions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    listing = _verb(verbs, "ls", "list the latest batches", _ls)
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="how many (default 20)")
    _verb(verbs, "show", "show one batch", _show).add_argument("id", metavar="ID")
    _verb(verbs, "cancel", "stop a batch; results so far are kept", _cancel).add_argument("id", metavar="ID")
    run = _verb(verbs, "run", "upload a file of requests, wait, write the answers", _run)
    run.add_argument("file", metavar="FILE", type=Path, help="requests, one JSON object per line")
    run.add_argument("-o", "--output", metavar="FILE", type=Path, help="answers (default: FILE.output.jsonl)")
    run.add_argument("--errors", metavar="FILE", type=Path, help="failed requests (default: FILE.errors.jsonl)")
    run.add_argument("--window", metavar="TIME", default="24h", help="deadline: 90s, 15m, 24h, 7d (default 24h)")
    run.add_argument("--endpoint", metavar="PATH", help="default: the url of the first line")


def _verb(verbs: Any, name: str, meaning: str, run: Any) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=meaning, description=meaning.capitalize() + ".", allow_abbrev=False
    )
    verb.add_argument(
        "--url",
        default=os.environ.get("PENSTOCK_URL", URL_DEFAULT),
        help=f"the gateway, http://HOST:PORT or unix:/PATH (PENSTOCK_URL; default {URL_DEFAULT})",
    )
    verb.add_argument(
        "--key",
        "--token",
        metavar="KEY",
        default=os.environ.get("PENSTOCK_API_KEY"),
        help="the tenant's API key (PENSTOCK_API_KEY)",
    )
    verb.add_argument("--tenant", help="the tenant, if there are no keys (sent as x-tenant-id)")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(verb=run)
    return verb


def run(args: argparse.Namespace) -> int:
    try:
        return int(args.verb(BatchClient(args.url, key=args.key, tenant=args.tenant), args))
    except KeyError as error:
        print(f"penstock: {lacks(error)}", file=sys.stderr)
    except (GatewayError, OSError) as error:
        print(f"penstock: {error}", file=sys.stderr)
    return 1


def _ls(client: BatchClient, args: argparse.Namespace) -> int:
    found = client.batches(max(1, args.limit))
    if args.json:
        print(json.dumps(found))
        return 0
    name = Column("batch", no_wrap=True, min_width=len(found[0]["id"]) if found else None)  # to be copied
    table = Table(name, "status", "done", "failed", "of", "made", "", box=None, padding=(0, 1))
    for batch in found:
        counts = batch["request_counts"]
        figures = (str(counts[key]) for key in ("completed", "failed", "total"))
        table.add_row(plain(batch["id"]), batch["status"], *figures, _time(batch["created_at"]), _outlook(batch))
    Console(highlight=False).print(table if found else "no batches")
    return 0


def _show(client: BatchClient, args: argparse.Namespace) -> int:
    _tell(client.batch(args.id), as_json=args.json)
    return 0


def _cancel(client: BatchClient, args: argparse.Namespace) -> int:
    batch = client.cancel(args.id)
    print(json.dumps(batch) if args.json else f"{plain(batch['id'])}: {batch['status']}")
    return 0


def _run(client: BatchClient, args: argparse.Namespace) -> int:
    endpoint = args.endpoint or _endpoint(args.file)
    file = client.upload(args.file)
    batch = client.create(file["id"], endpoint, args.window)
    console = Console(stderr=True, highlight=False)
    console.print(f"{plain(batch['id'])}: {args.file.name}, {file['bytes']} bytes")
    try:
        batch = _watch(client, batch, console)
    except KeyboardInterrupt:
        name = plain(batch["id"])
        console.print(f"The batch continues. `penstock batch show {name}`, `penstock batch cancel {name}`")
        raise
    for key, path, kind in (
        ("output_file_id", args.output or Path(f"{args.file}.output.jsonl"), "answers"),
        ("error_file_id", args.errors or Path(f"{args.file}.errors.jsonl"), "failed requests"),
    ):
        if batch[key] is not None:
            console.print(f"{client.download(batch[key], path)} {kind} in {path}")
    if args.json or batch["status"] != "completed":
        _tell(batch, as_json=args.json)
    return 0 if batch["status"] == "completed" and not batch["request_counts"]["failed"] else EXIT_ERRORS


def _watch(client: BatchClient, batch: dict[str, Any], console: Console) -> dict[str, Any]:
    """Draw a bar until the batch has ended; returns the batch then."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[outlook]}"), console=console) as progress:
        bar = progress.add_task(batch["status"], total=None, outlook="")
        while batch["status"] not in ENDED:
            time.sleep(POLL_S)
            batch = client.batch(batch["id"])
            counts = batch["request_counts"]
            progress.update(
                bar,
                description=batch["status"],
                completed=counts["completed"] + counts["failed"],
                total=counts["total"] or None,
                outlook=_outlook(batch),
            )
    return batch


def _tell(batch: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(batch))
        return
    counts = batch["request_counts"]
    console = Console(highlight=False)
    console.print(
        Text(f"{plain(batch['id'])}: {batch['status']}, {counts['completed']} done and {counts['failed']} failed "),
        Text(f"of {counts['total']} {_outlook(batch)}"),
        sep="",
    )
    table = Table(box=None, padding=(0, 1), show_header=False)
    for key in ("endpoint", "model", "input_file_id", "output_file_id", "error_file_id", "completion_window"):
        if batch[key]:
            table.add_row(key.replace("_", " "), Text(plain(str(batch[key]))))
    for key in ("created_at", "expires_at", "completed_at", "failed_at", "expired_at", "cancelled_at"):
        if batch[key]:
            table.add_row(key.replace("_", " "), _time(batch[key]))
    usage = batch["usage"]
    table.add_row("tokens", f"{usage['input_tokens']} in, {usage['output_tokens']} out")
    console.print(table)
    problems = (batch["errors"] or {}).get("data", [])
    for problem in problems[:ERRORS_SHOWN]:
        place = f"line {problem['line']}: " if problem["line"] is not None else ""
        console.print(Text(f"{place}{plain(problem['message'], 1000)} ({problem['code']})"))
    if len(problems) > ERRORS_SHOWN:
        console.print(f"and {len(problems) - ERRORS_SHOWN} more")


def _outlook(batch: dict[str, Any]) -> str:
    told = batch.get("penstock")
    if not told:
        return ""
    end = told["estimated_end_at"]
    text = f"{told['requests_per_second']:g}/s" + (f", done about {_time(end)}" if end else "")
    return f"{text}, will miss its window" if told["misses_window"] else text


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _endpoint(path: Path) -> str:
    """Returns the path of the file's first request; a default if it is unreadable, which the gateway reports."""
    with path.open("rb") as file:
        try:
            url = json.loads(file.readline(64 << 20))["url"]
        except (ValueError, LookupError, TypeError):
            return ENDPOINT
    return url if isinstance(url, str) else ENDPOINT
