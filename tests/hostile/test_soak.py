"""A few seconds of `make soak`: real processes, faults, reloads, hang-ups, batches; nothing lost or left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import WAIT_S

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_a_short_soak_leaves_nothing_behind() -> None:
    command = [sys.executable, str(SOAK), "--minutes", "0.1", "--callers", "12", "--fault-every", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * WAIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "whole stream" in done.stdout
