"""The demo: what it says of itself holds, and the lines it offers to try work while they stand there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.ports import free_port

TO_MS = {"ms": 1, "s": 1000}


@contextmanager
def demo(*flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "penstock", "demo", "--port", str(free_port()), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def words(text: str) -> str:
    return " ".join(text.split())


def test_it_shows_isolation_and_its_cost() -> None:
    with demo("--once", "--seconds", "8") as process:
        out = words(process.communicate(timeout=100)[0])
    assert process.returncode == 0
    found = re.search(r"p99 went from ([\d.]+) (m?s) to ([\d.]+) (m?s)", out)
    assert found is not None, out
    before_ms, after_ms = float(found[1]) * TO_MS[found[2]], float(found[3]) * TO_MS[found[4]]
    assert after_ms < before_ms / 5, out
    assert "Off: a balancer without a queue: each request goes at once to the engine with the least load" in out
    off = re.search(r"1 of 2, off: engine A holds (\d+), engine B holds (\d+) waiting requests that nobody can", out)
    assert off is not None, out
    assert min(int(off[1]), int(off[2])) > 8, "a strong baseline: both engines have as much"
    assert re.search(r"2 of 2, on: the gateway holds \d+ waiting requests in fair order; inside engines wait \d\.", out)
    price = re.search(r"(\d+) tokens/s became (\d+) \(([+-]\d+)%\)", out)
    assert price is not None, out
    assert int(price[2]) > int(price[1]) * 0.7, out
    assert "curl" not in out  # nothing is offered that is gone by now


def test_the_printed_commands_work_at_once() -> None:
    with demo("--seconds", "1") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if "the live page" in line:
                break
        tries = [line for line in lines if line.startswith("curl") or " top " in line]
        assert len(tries) == 3, lines
        for command in tries:
            command += " --once" if " top " in command else " -sf"
            command = re.sub(r"^penstock", f"{sys.executable} -m penstock", command)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
            assert done.returncode == 0, (command, done.stderr)
            assert done.stdout
    assert process.returncode == 0


def test_a_length_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli.main import main  # noqa: PLC0415

    assert main(["demo", "--seconds", "0"]) == 2
    assert "--seconds takes 1 to 600" in capsys.readouterr().err
