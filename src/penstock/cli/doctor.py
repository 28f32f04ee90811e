"""`penstock doctor`: the endpoints, their features, and advice."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.build import REMEDY, compiled, kind
from penstock.cli.diagnosis import Doctor, FeatureState, Report
from penstock.config.load import ConfigError, Flags, load, require_endpoints
from penstock.config.model import Settings
from penstock.core.endpoints.roles import Role, one_sided, role_of

WIDTH_IN_FILES = 160
EXIT_OK, EXIT_PROBLEM, EXIT_UNREADABLE = 0, 1, 2
LABELS = {
    "metrics": "load metrics",
    "slots": "number of slots",
    "cached_tokens": "cached tokens in usage",
    "priority": "priority scheduling",
    "kv_events": "KV events",
    "stream_usage": "usage of streams",
}
_COLUMNS = {"metrics": "load", "cached_tokens": "cached tokens", "priority": "priority", "kv_events": "KV events"}
_MARKS = {FeatureState.OFFERED: "yes", FeatureState.MISSING: "no", FeatureState.UNKNOWN: "?", FeatureState.NEVER: "–"}
_NAMES_SHOWN_MAX = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", default=os.environ.get("PENSTOCK_CONFIG"), help="settings (YAML)"
    )
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        action="append",
        default=[],
        help="an engine's URL, instead of those in the settings; repeatable",
    )
    parser.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="also send each a few short requests and read their usage",
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=5.0, help="for each answer (default: 5)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if every endpoint can serve as configured, 1 if not, 2 if the settings are invalid."""
    try:
        settings = load(args.config, os.environ, Flags(endpoints=tuple(args.endpoint)))
        require_endpoints(settings)
    except ConfigError as error:
        for problem in error.problems:
            print(f"penstock: {problem.line()}", file=sys.stderr)
        return EXIT_UNREADABLE
    reports = asyncio.run(examine(settings, Doctor(timeout_s=args.timeout, tries=args.tries)))
    problems = unserved(settings, reports)
    warnings = one_role(settings, reports)
    if args.json:
        result = {"build": kind(), "endpoints": reports, "problems": problems}
        result |= {"warnings": warnings} if warnings else {}
        print(msgspec.json.encode(result).decode())
    else:
        width = None if sys.stdout.isatty() else WIDTH_IN_FILES
        show(reports, problems, tried=args.tries, console=Console(width=width))
        for warning in warnings:
            print(f"warning: {warning}")
        if not compiled():
            print(f"This is {kind()} of a compiled build. {REMEDY}.")
    return EXIT_PROBLEM if problems or any(report.problems for report in reports) else EXIT_OK


def unserved(settings: Settings, reports: Sequence[Report]) -> list[str]:
    """Returns a sentence per alias, share or fallback to a model that no endpoint serves."""
    served = {model.name for report in reports for model in report.models}
    served |= {name for endpoint in settings.endpoints if endpoint.models != "auto" for name in endpoint.models}
    aliases = {name: model.to for name, model in settings.models.items() if model.to is not None}
    splits = {name: model.split for name, model in settings.models.items() if model.split}
    return [
        *(
            f"models.{alias}: stands for `{target}`, which no endpoint serves"
            for alias, target in aliases.items()
            if target not in served
        ),
        *(
            f"models.{name}: gives a share to `{target}`, which no endpoint serves"
            for name, split in splits.items()
            for target, share in split.items()
            if share and target not in served
        ),
        *(
            f"models.{name}: falls back to `{other}`, which no endpoint serves"
            for name, model in settings.models.items()
            for other in model.fallback
            if other not in splits and aliases.get(other, other) not in served
        ),
    ]


def one_role(settings: Settings, reports: Sequence[Report]) -> list[str]:
    """Returns a sentence per model whose usable endpoints have only one of the two roles."""
    roles: dict[str, list[Role]] = {}
    for endpoint, report in zip(settings.endpoints, reports, strict=True):
        for model in report.models:
            roles.setdefault(model.name, []).append(role_of(endpoint.labels))
    return [f"model `{model}` {what}" for model, what in one_sided(roles).items()]


async def examine(settings: Settings, doctor: Doctor) -> list[Report]:
    """Returns a report for each endpoint, in their order."""
    found: dict[str, Report] = {}
    endpoints = settings.endpoints
    async for report in doctor.examine_all(endpoints):
        found[report.name] = report
        if sys.stderr.isatty():
            print(f"asked {len(found)} of {len(endpoints)}: {report.name}, {report.title}", file=sys.stderr)
    return [found[endpoint.name] for endpoint in endpoints]


# --- for people ----------------------------------------------------------------------------------------------------


def show(reports: Sequence[Report], problems: Sequence[str], *, tried: bool, console: Console) -> None:
    console.print(_there(reports))
    wrong = [(report.name, problem) for report in reports for problem in report.problems]
    wrong += [("settings", problem) for problem in problems]
    for name, problem in wrong:
        console.print(f"[bold red]problem[/] {escape(name)}: {escape(problem)}")
    advice = _advice(reports)
    if advice:
        console.print("\n".join(["", "[bold]missing[/]", *_to_do(advice), ""]), soft_wrap=True)
    if not tried and any(
        offer.what == "cached_tokens" and offer.state is FeatureState.UNKNOWN for offer in _offers(reports)
    ):
        console.print("`?` under cached tokens: only an answer shows it; --try sends a few short requests.")
    if not wrong:
        console.print(f"{len(reports)} endpoint{'s' if len(reports) > 1 else ''} can be used.")


def _there(reports: Sequence[Report]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("endpoint", "engine", "model (context)", "slots", *_COLUMNS.values()):
        table.add_column(column, overflow="fold", no_wrap=column != "model (context)")
    for report in reports:
        marks = {offer.what: _MARKS[offer.state] for offer in report.offers}
        engine = report.title if report.version is None else f"{report.title} {report.version}"
        table.add_row(
            escape(report.name),
            escape(engine),
            escape(_models(report)),
            "" if report.engine is None else str(report.slots or "auto"),
            *(marks.get(what, "") for what in _COLUMNS),
        )
    return table


def _models(report: Report) -> str:
    shown = []
    for model in report.models[:_NAMES_SHOWN_MAX]:
        context = f" ({model.context_tokens})" if model.context_tokens else ""
        shown.append(model.name + context + (f" on {model.adapter_of}" if model.adapter_of else ""))
    more = len(report.models) - len(shown)
    return "\n".join(shown + ([f"and {more} more"] if more > 0 else []))


def _advice(reports: Iterable[Report]) -> dict[tuple[str, str, str, str], list[str]]:
    """Returns missing features that could be enabled, grouped by endpoints."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for report in reports:
        for offer in report.offers:
            if offer.flag and offer.state in (FeatureState.MISSING, FeatureState.UNKNOWN):
                what = LABELS[offer.what] + ("" if offer.state is FeatureState.MISSING else " (not told)")
                found.setdefault((report.title, what, offer.flag, offer.without), []).append(report.name)
    return found


def _to_do(advice: dict[tuple[str, str, str, str], list[str]]) -> Iterator[str]:
    for (title, what, flag, without), names in advice.items():
        more = len(names) - _NAMES_SHOWN_MAX
        shown = ", ".join(names[:_NAMES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        yield f"[bold]{what}[/] at {escape(shown)} ({title})"
        yield f"  switched on by: {escape(flag)}"
        yield f"  without it:     {escape(without)}"


def _offers(reports: Iterable[Report]) -> list[Any]:
    return [offer for report in reports for offer in report.offers]


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError("between 0 and 600 seconds")
    return value
