"""The way of a request is as long as it is recorded in `benchmarks/cost/calls.json`: calls, files, changes of file."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.tidy.test_docs import ROOT

COST = ROOT / "benchmarks/cost"
GROWS_MAX = 0.02  # whatever of that is meant is recorded: `python benchmarks/cost/calls.py --record`


def grown(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns a line for each figure that grew by more than allowed, with the functions that are called more often."""
    found = []
    for figure in ("calls", "files", "changes"):
        if now[figure] > before[figure] * (1 + GROWS_MAX):
            found.append(f"{figure}: {before[figure]} -> {now[figure]}")
    if found:
        was = before["functions"]
        more = [(count - was.get(name, 0), name) for name, count in now["functions"].items()]
        found += [f"+{count} {name}" for count, name in sorted(more, reverse=True) if count > 0]
    return found


@pytest.mark.interpreted
@pytest.mark.parametrize("answer", ["stream", "whole"])
def test_the_way_of_a_request_is_no_longer_than_recorded(answer: str, walked: dict[str, Any]) -> None:
    recorded = json.loads((COST / "calls.json").read_text())
    assert grown(recorded[answer], walked[answer]) == []


def test_a_longer_way_is_reported_with_the_functions_that_grew() -> None:
    before = {"calls": 100, "files": 10, "changes": 50, "functions": {"a.py:f": 99, "b.py:g": 1}}
    now = {"calls": 103, "files": 10, "changes": 51, "functions": {"a.py:f": 99, "b.py:g": 2, "c.py:h": 2}}
    assert grown(before, now) == ["calls: 100 -> 103", "+2 c.py:h", "+1 b.py:g"]
    assert grown(before, {**now, "calls": 102}) == []


@pytest.fixture(scope="module")
def walked() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(COST / "calls.py"), "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
