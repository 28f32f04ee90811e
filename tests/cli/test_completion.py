"""Shell completion: the scripts know every command and flag, the shells take them, and a TAB does what it should."""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.commands import parser
from penstock.cli.completion import SHELLS, script
from penstock.cli.main import main
from tests.patience import WAIT_S


def commands(of: argparse.ArgumentParser, *path: str) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every command and subcommand with its parser."""
    yield path, of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from commands(sub, *path, name)


ALL = dict(commands(parser(None)))


def flags(of: argparse.ArgumentParser) -> set[str]:
    shown = (action for action in of._actions if action.help != argparse.SUPPRESS)
    return {flag for action in shown for flag in action.option_strings}


def test_the_bash_script_knows_every_command_with_its_flags_and_no_other() -> None:
    arrays = re.findall(r"^_shtab_penstock_(\w*?)_?option_strings=\((.*)\)$", script("bash"), re.MULTILINE)
    known = {name: set(words.split()) for name, words in arrays}
    assert known == {"_".join(path).replace("-", "_"): flags(of) for path, of in ALL.items()}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_script_has_every_command_and_flag(shell: str) -> None:
    text = script(shell)
    words = {word for path in ALL for word in path} | {flag.lstrip("-") for of in ALL.values() for flag in flags(of)}
    assert [word for word in sorted(words) if word not in text] == []
    assert "AUTOMATICALLY GENERATED" in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_is_there_takes_its_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run([shell, "-n"], input=script(shell), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == script(shell)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("penstock ten\t", "penstock tenant "),
        ("penstock tenant lim\t", "penstock tenant limit "),
        ("penstock tenant limit team-a --requests-p\t", "penstock tenant limit team-a --requests-per-minute "),
        ("penstock serve --log-level deb\t", "penstock serve --log-level debug "),
        ("penstock check some-se\t", "penstock check some-settings.yaml "),
        ("penstock completion f\t", "penstock completion fish "),
    ],
)
def test_a_tab_in_a_real_bash(typed: str, completed: str, tmp_path: Path) -> None:
    (tmp_path / "penstock.bash").write_text(script("bash"))
    (tmp_path / "some-settings.yaml").write_text("")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ |= {
            "PS1": "ready> ",
            "TERM": "dumb",
            "INPUTRC": "/dev/null",
            "BASH_SILENCE_DEPRECATION_WARNING": "1",
        }
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        _until(terminal, "ready> ")
        os.write(terminal, b"bind 'set enable-bracketed-paste off'; source ./penstock.bash; PS1='done> '\n")
        _until(terminal, "\ndone> ")
        os.write(terminal, typed.encode())
        _until(terminal, completed)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def _until(terminal: int, text: str) -> None:
    """Read until the terminal shows it; a bound for what takes milliseconds."""
    seen, end_s = "", time.monotonic() + WAIT_S
    while text not in seen:
        left_s = end_s - time.monotonic()
        assert left_s > 0, f"{text!r} did not come, but {seen!r}"
        if select.select([terminal], [], [], left_s)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace").replace("\r", "")
