"""How do runs of a trace look side by side? Times to first token, hit rate and imbalance over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot

from penstock.sim.traces.trace_run import Curves

LEGEND_COLUMNS = 6
SMOOTHED = 5  # buckets: half a minute's noise hides the trend


def plot(path: Path, title: str, runs: Mapping[str, Curves]) -> None:
    """Draw one line per routing in three panels."""
    mpl.use("Agg")  # draws to files, needs no screen
    figure, (ttft, hits, imbalance) = pyplot.subplots(1, 3, figsize=(15, 4.6))
    for name, run in runs.items():
        share = [n / max(1, len(run.ttft_s) - 1) for n in range(len(run.ttft_s))]
        (line,) = ttft.plot([max(x, 0.01) for x in run.ttft_s], share, label=name)
        minutes = [at_s / 60.0 for at_s in run.at_s]
        hits.plot(minutes, _smooth(run.hit_rate), color=line.get_color())
        imbalance.plot(minutes, _smooth(run.imbalance), color=line.get_color())
    ttft.set(xscale="log", xlabel="time to first token, s", ylabel="share of requests", ylim=(0, 1))
    hits.set(xlabel="minute", ylabel="token hit rate", ylim=(0, None))
    imbalance.set(xlabel="minute", ylabel="requests, fullest engine / mean", ylim=(1, None))
    for axes in (ttft, hits, imbalance):
        axes.grid(color="0.9")
    figure.suptitle(title)
    figure.legend(*ttft.get_legend_handles_labels(), loc="lower center", ncol=LEGEND_COLUMNS, frameon=False)
    figure.tight_layout(rect=(0, 0.03 + 0.05 * math.ceil(len(runs) / LEGEND_COLUMNS), 1, 1))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _smooth(values: list[float]) -> list[float]:
    smoothed = []
    for n in range(len(values)):
        near = values[max(0, n - SMOOTHED // 2) : n + SMOOTHED // 2 + 1]
        smoothed.append(sum(near) / len(near))
    return smoothed
