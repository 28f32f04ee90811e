"""A simulation says on a terminal how far it is, and nowhere else; what it prints is the same."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys

import pytest

from penstock.sim.command import ProgressLine

COMMAND = [sys.executable, "-m", "bench", "scenarios", "scarce_memory", "--duration", "60"]


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_the_line_shows_the_run_its_progress_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    line = ProgressLine("weights (2 of 9)", shown=True, seed=7, now=clock)

    def said(variant: str, now_s: float) -> str:
        line.tell(variant, now_s, 600.0)
        return capsys.readouterr().err.replace("\r\x1b[K", "")

    assert said("fair", 1.0) == "weights (2 of 9), seed 7, fair: 1 of 600 simulated seconds, 0%"
    clock.now += 0.1
    assert said("fair", 30.0) == "", "not more often than eyes can follow"
    clock.now += 1.0
    assert said("fair", 150.0).endswith("fair: 150 of 600 simulated seconds, 25%, 3 s left")
    clock.now += 1
    assert said("fcfs", 60.0).endswith("fcfs: 60 of 600 simulated seconds, 10%"), "of another run nothing is known yet"
    line.clear()
    assert capsys.readouterr() == ("", "\r\x1b[K")


def test_without_a_terminal_there_is_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine("weights", shown=False)
    line.tell("fair", 10.0, 600.0)
    line.clear()
    assert capsys.readouterr() == ("", "")


def run(*words: str) -> tuple[bytes, bytes]:
    """What a run prints, and what it says on a terminal beside."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdout is not None
        out = process.stdout.fileno()
        printed, said = b"", b""
        while ready := select.select([out, ours], [], [], 60)[0]:
            if out in ready:
                printed += os.read(out, 1 << 16)
            if ours in ready:
                try:
                    said += os.read(ours, 4096)
                except OSError:  # the terminal's other end is closed
                    break
        printed += process.stdout.read()
    os.close(ours)
    return printed, said


@pytest.mark.slow
def test_the_output_is_reproducible() -> None:
    printed, said = run()
    assert b"scarce_memory, seed 1, " in said
    assert b" of 60 simulated seconds, " in said
    assert said.endswith(b"\r\x1b[K"), "the line is gone at the end"
    without = subprocess.run(COMMAND, capture_output=True, check=False)
    assert (without.stdout, without.stderr) == (printed, b"")
    quiet, silence = run("--quiet")
    assert (quiet, silence) == (printed, b"")
