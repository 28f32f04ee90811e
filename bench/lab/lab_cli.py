"""`python -m bench lab`: does the gateway do right by a strange engine when nothing about it is configured?"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from itertools import chain, repeat
from multiprocessing import get_context

import msgspec

from bench.lab.cells import CELLS, Cell
from bench.lab.matrix import CellRow, run_cell
from penstock.sim import command

EXIT_OK, EXIT_MISSED, EXIT_USAGE = 0, 1, 2
JOBS_MAX = 64
HEAD = (
    f"{'cell':44} {'seed':>4} {'of told':>8} {'of through':>10} {'told/thr.':>9} {'queue':>6} {'light s':>8} "
    f"{'of told':>8} {'late':>6} {'wrong':>6} {'slots':>6}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `python -m bench lab`."""
    parser.add_argument("--list", action="store_true", help="list the cells")
    parser.add_argument("--cells", metavar="PATTERN,…", help="only cells whose names match, like grid/* or *frozen*")
    parser.add_argument("--small", action="store_true", help="only the few cells that the tests run")
    parser.add_argument("--missed", action="store_true", help="print only cells that miss a goal")
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=1, help="processes that share the cells (1)")
    command.add_arguments(parser)


def _problem(args: argparse.Namespace) -> str | None:
    if not 1 <= args.jobs <= JOBS_MAX:
        return f"--jobs takes 1 to {JOBS_MAX}"
    return None if cells(args) else f"no cell matches {args.cells!r}; --list shows them"


def cells(args: argparse.Namespace) -> list[Cell]:
    """Returns the cells that were asked for."""
    patterns = args.cells.split(",") if args.cells else ["*"]
    asked = [cell for cell in CELLS.values() if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    return [cell for cell in asked if cell.small] if args.small else asked


def run(args: argparse.Namespace) -> int:
    """Run the cells. Returns 0 if all met their goals, 1 if one missed, 2 for wrong flags."""
    if (problem := command.problem(args) or _problem(args)) is not None:
        print(f"bench lab: {problem}", file=sys.stderr)
        return EXIT_USAGE
    if args.list:
        print(*(cell.name for cell in cells(args)), sep="\n")
        return EXIT_OK
    asked = [(cell, seed) for cell in cells(args) for seed in command.seeds(args)]
    if not args.json:
        print(HEAD, flush=True)
    missed: list[CellRow] = []
    for row in _rows(asked, args):
        if row.missed:
            missed.append(row)
        elif args.missed:
            continue
        print(msgspec.json.encode(row).decode() if args.json else line(row), flush=True)
    if not args.json:
        print(f"{len(asked)} runs, {len(missed)} missed a goal", flush=True)
    return EXIT_MISSED if missed else EXIT_OK


def _rows(asked: list[tuple[Cell, int]], args: argparse.Namespace) -> Iterator[CellRow]:
    """Yields rows in the order of `asked`, each as soon as it is done."""
    if args.jobs == 1:
        for cell, seed in asked:
            yield run_cell(cell, seed, checked=args.check)
        return
    names, seeds = [cell.name for cell, _ in asked], [seed for _, seed in asked]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(_run_named, names, seeds, repeat(args.check))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _run_named(name: str, seed: int, checked: bool) -> CellRow:  # noqa: FBT001  (called by position, across processes)
    return run_cell(CELLS[name], seed, checked=checked)


def line(row: CellRow) -> str:
    """Returns one row of the table as a line."""
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(row.reasons.items()))
    said = chain([f"missed: {', '.join(row.missed)}"] if row.missed else [], [refused] if refused else [])
    return (
        f"{row.cell:44} {row.seed:4} {_figure(row.of_told):>8} {_figure(row.of_through):>10} "
        f"{_figure(row.told_of_through):>9} {row.queue_p99:6.0f} {_figure(row.light_p99_s):>8} "
        f"{_figure(row.light_of_told):>8} {_figure(row.late_share):>6} {row.wrong:6} {row.slots:6}  {'; '.join(said)}"
    ).rstrip()


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"
