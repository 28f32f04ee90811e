"""Measures with goals, and the tables that show them.

A *measure* is a figure of a scenario with its goal. A *line* describes a group of requests in one variant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.sim.world.report import priced
from penstock.sim.world.world_values import Sample, SimulatedJourney, Who


class Goal(msgspec.Struct, frozen=True):
    """A limit that a figure should keep."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def at_most(limit: float) -> Goal:
    return Goal(limit)


def at_least(limit: float) -> Goal:
    return Goal(limit, at_least=True)


class Measure(msgspec.Struct, frozen=True):
    """One figure. A figure without a goal is for comparison."""

    name: str
    value: float
    goal: Goal | None = None

    @property
    def met(self) -> bool:
        return self.goal is None or self.goal.met(self.value)


class ReportLine(msgspec.Struct, frozen=True):
    """One group of requests in one variant."""

    variant: str
    group: str
    requests: int
    ttft_p50_s: float
    ttft_p99_s: float
    completed: int
    refused: int  #: rejected or evicted
    failed: int
    priced_tokens_per_s: float


class RunResult(msgspec.Struct, frozen=True):
    """A scenario with one seed."""

    scenario: str
    seed: int
    duration_s: float
    measures: tuple[Measure, ...]
    lines: tuple[ReportLine, ...] = ()

    @property
    def met(self) -> bool:
        return all(measure.met for measure in self.measures)

    def value(self, name: str) -> float:
        """Returns the figure called `name`."""
        return next(measure.value for measure in self.measures if measure.name == name)


Keep = Callable[[SimulatedJourney], bool]


def journeys_between(
    done: Iterable[SimulatedJourney], from_s: float, to_s: float, keep: Keep
) -> list[SimulatedJourney]:
    """Returns the requests that arrived within the window and were to be served."""
    return [j for j in done if from_s <= j.job.at_s < to_s and keep(j)]


def ttfts(journeys: Iterable[SimulatedJourney], end_s: float) -> list[float]:
    """Returns times to first token. A request that still waits at the end counts with its wait: a lower bound."""
    found: list[float] = []
    for journey in journeys:
        if journey.first_s is not None:
            found.append(journey.first_s - journey.job.at_s)
        elif not journey.outcome:
            found.append(end_s - journey.job.at_s)
    return found


Worth = Callable[[float, float], float]  # of prompt and output tokens


def service_between(samples: Sequence[Sample], from_s: float, to_s: float, worth: Worth = priced) -> dict[Who, float]:
    """Returns the service per user in the window, with its ends moved to the nearest samples within."""
    inside = [sample for sample in samples if from_s <= sample[0] <= to_s]
    if len(inside) < 2:
        return {}
    first, last = inside[0][1], inside[-1][1]
    service: dict[Who, float] = {}
    for who, (prompt, output) in last.items():
        prompt_before, output_before = first.get(who, (0, 0))
        service[who] = worth(prompt - prompt_before, output - output_before)
    return service


def done_per_s(
    samples: Sequence[Sample], from_s: float, to_s: float, *, keep: Callable[[str], bool], worth: Worth = priced
) -> float:
    """Returns the throughput of the tenants that `keep` selects, per second."""
    inside = [at_s for at_s, _ in samples if from_s <= at_s <= to_s]
    if len(inside) < 2:
        return math.nan
    service = service_between(samples, from_s, to_s, worth)
    return sum(done for (tenant, _), done in service.items() if keep(tenant)) / (inside[-1] - inside[0])


# --- tables -----------------------------------------------------------------------------------------------------


def show(results: Sequence[RunResult], console: Console, *, about: str = "", lines: bool = True) -> None:
    """Print one scenario's results: the figures for all seeds, and the groups of the first."""
    first = results[0]
    table = Table(title=f"{first.scenario}: {about}" if about else first.scenario, title_justify="left")
    table.add_column("figure")
    table.add_column("goal", justify="right")
    for result in results:
        table.add_column(f"seed {result.seed}", justify="right")
    table.add_column("")
    for number, measure in enumerate(first.measures):
        row = [result.measures[number] for result in results]
        verdict = "" if measure.goal is None else "met" if all(m.met for m in row) else "[bold red]missed[/]"
        goal = "" if measure.goal is None else str(measure.goal)
        table.add_row(measure.name, goal, *(_number(m.value) for m in row), verdict)
    console.print(table)
    if lines and first.lines:
        console.print(_lines_table(first))


def _lines_table(result: RunResult) -> Table:
    table = Table(title=f"seed {result.seed}, {result.duration_s:g} simulated seconds", title_justify="left")
    for name in ("variant", "who"):
        table.add_column(name)
    for name in ("requests", "TTFT p50 s", "p99 s", "completed", "refused", "failed", "priced tok/s"):
        table.add_column(name, justify="right")
    for line in result.lines:
        counts = (line.completed, line.refused, line.failed)
        table.add_row(
            line.variant,
            line.group,
            str(line.requests),
            _number(line.ttft_p50_s),
            _number(line.ttft_p99_s),
            *(str(count) for count in counts),
            f"{line.priced_tokens_per_s:,.0f}",
        )
    return table


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
