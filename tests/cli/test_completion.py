"""Shell completion: the scripts know every command and flag, the shells take them, and a TAB does what it should."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock.cli.commands import parser
from penstock.cli.completion import KINDS, SHELLS, names, script
from penstock.cli.main import main
from tests.patience import WAIT_S
from tests.ports import free_port


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
    at_a_terminal(tmp_path, typed, completed)


def at_a_terminal(tmp_path: Path, typed: str, completed: str) -> None:
    """Type into a bash that has the script, until the terminal shows what is completed."""
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
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
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


STATE = {
    "tenants": [{"tenant": "team-a"}, {"tenant": "team-b"}, {"tenant": "a b"}],
    "configured": [{"tenant": "team-b"}, {"tenant": "team-quiet"}],
    "endpoints": [{"name": "10.0.0.7:8000"}, {"name": "gpu-1:8000"}],
    "requests": {"waiting": [{"id": "req-9"}], "running": [{"id": "$(touch /tmp/x)"}, {"id": "-rf"}], "ended": []},
}


class Answers(BaseHTTPRequestHandler):
    """A gateway that knows `STATE`, or what its server was told instead."""

    def do_GET(self) -> None:
        told: Any = vars(self.server).get("told", json.dumps(STATE))
        assert self.path == "/admin/state"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(told.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("PENSTOCK_URL", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("tenants", ["team-a", "team-b", "team-quiet"]),
        ("endpoints", ["10.0.0.7:8000", "gpu-1:8000"]),
        ("requests", ["req-9"]),
    ],
)
def test_names_are_those_of_the_running_gateway_that_a_shell_takes_as_they_stand(
    kind: str, known: list[str], gateway: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "--names", kind]) == 0
    assert capsys.readouterr() == ("".join(f"{name}\n" for name in known), "")


@pytest.mark.parametrize("told", ["{}", "[]", "nonsense", '{"tenants": [{}], "endpoints": null, "requests": []}'])
def test_of_an_answer_without_names_there_are_none(told: str, gateway: ThreadingHTTPServer) -> None:
    vars(gateway)["told"] = told
    assert [names(kind) for kind in KINDS] == [[], [], []]


def test_a_gateway_that_is_not_there_or_says_nothing_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", f"http://127.0.0.1:{free_port()}")
    assert names("tenants") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PENSTOCK_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert names("tenants") == []


def test_without_a_shell_it_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion"]) == 2
    assert "for which shell? (bash, zsh, fish)" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("penstock tenant pause team-\t\t", "team-a      team-b      team-quiet"),
        ("penstock endpoint drain 10.0.0.7:8\t", "penstock endpoint drain 10.0.0.7:8000 "),
        ("penstock explain req\t", "penstock explain req-9 "),
        ("penstock queue bump req\t", "penstock queue bump req-9 "),
    ],
)
def test_a_tab_asks_the_gateway(typed: str, completed: str, tmp_path: Path, gateway: ThreadingHTTPServer) -> None:
    at_a_terminal(tmp_path, typed, completed)


def _until(terminal: int, text: str) -> None:
    """Read until the terminal shows it; a bound for what takes milliseconds."""
    seen, end_s = "", time.monotonic() + WAIT_S
    while text not in seen:
        left_s = end_s - time.monotonic()
        assert left_s > 0, f"{text!r} did not come, but {seen!r}"
        if select.select([terminal], [], [], left_s)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace").replace("\r", "")
