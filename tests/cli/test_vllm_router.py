"""`penstock vllm-router`: serves by production-stack's flags, prints what they mean, follows its dynamic config."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import penstock
from penstock.cli.main import main, vllm_router
from tests.gateway.conftest import World
from tests.patience import WAIT_S

STATIC = "--service-discovery static --routing-logic session --session-key x-user-id"
SESSIONS = 30  # so many that chance does not put all at one engine
LISTENING = re.compile(r"listening on http://[^ ]*:(\d+)")


def said(capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, str, str]:
    code = main(["vllm-router", *words.split()])
    out, err = capsys.readouterr()
    return code, out, err


def test_check_accepts_the_printed_settings() -> None:
    """As a shell does it, for a migration."""
    words = f"{STATIC} --static-backends http://gpu-0:8000 --static-models llama --log-stats --port 8001"
    env = {**os.environ, "VLLM_API_KEY": "secret-of-engines"}
    program = [sys.executable, "-m", "penstock"]
    printed = subprocess.run(
        [*program, "vllm-router", *words.split(), "--print"], capture_output=True, env=env, check=True
    )
    assert b"secret-of-engines" not in printed.stdout
    assert b"# --log-stats means nothing here" in printed.stdout
    checked = subprocess.run([*program, "check", "-"], input=printed.stdout, capture_output=True, env=env, check=False)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith(b"ok: 1 endpoint, 3 bands, routing session, queue on")


def test_wrong_flags_are_reported_at_once_and_nothing_starts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, f"{STATIC} --static-backends http://a:1,http://b:1 --static-models m --bogus")
    assert (code, out) == (2, "")
    assert [line.split(": ")[1] for line in err.splitlines()][:2] == ["--bogus", "--static-models"]


def test_runtime_errors_begin_with_the_typed_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It said "penstock:", as outside a cluster."""
    code, _, err = said(capsys, f"{STATIC} --static-backends http://a:1 --static-models m --host 192.0.2.1 --port 1")
    assert code != 0
    assert err.splitlines()[-1].startswith("vllm-router: ")
    assert "penstock: " not in err


def test_help_and_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = said(capsys, "--help")
    assert code == 0
    assert "--static-backends VALUE" in out
    assert max(map(len, out.splitlines())) < 160
    monkeypatch.setattr(sys, "argv", ["vllm-router", "--version"])
    assert vllm_router() == 0
    assert penstock.__version__ in capsys.readouterr().out


@contextmanager
def running(words: str, log: Path) -> Iterator[int]:
    """The router in a process of its own, on a free port: which one."""
    with log.open("wb") as file:
        program = [
            sys.executable,
            "-m",
            "penstock",
            "vllm-router",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            *words.split(),
        ]
        process = subprocess.Popen(program, stderr=file, stdout=file)
    try:
        yield int(_awaited(log, LISTENING)[1])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def _awaited(log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
    end = time.monotonic() + WAIT_S
    while (match := pattern.search(log.read_text())) is None:
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)
    return match


def _ask(port: int, session: str) -> None:
    body = json.dumps({"model": "sim", "prompt": "hi", "max_tokens": 2}).encode()
    headers = {"content-type": "application/json", "x-user-id": session}
    with urlopen(Request(f"http://127.0.0.1:{port}/v1/completions", body, headers), timeout=WAIT_S) as answer:
        assert answer.status == 200


async def test_it_serves_two_engines_and_sessions_stay(world: World, tmp_path: Path) -> None:
    first, second = await world.engine(), await world.engine()
    log = tmp_path / "log"
    words = f"{STATIC} --static-backends {first.url},{second.url} --static-models sim,sim"

    def use() -> None:
        with running(words, log) as port:
            for session in map(str, range(SESSIONS)):
                for _ in range(2):
                    _ask(port, session)

    await asyncio.to_thread(use)
    sent = re.findall(r"Routing request [^ ]* with session id ([^ ]*) to ([^ ]*) at ", log.read_text())
    assert len(sent) == 2 * SESSIONS
    assert len(set(sent)) == SESSIONS, "each session at one engine"
    assert {url for _, url in sent} == {first.url, second.url}


async def test_a_dynamic_config_is_followed(world: World, tmp_path: Path) -> None:
    first, second = await world.engine(), await world.engine()
    file, log = tmp_path / "dynamic.yaml", tmp_path / "log"

    def say(url: str, logic: str = "roundrobin") -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(
            f"service_discovery: static\nrouting_logic: {logic}\nstatic_backends: {url}\nstatic_models: sim\n"
        )
        fresh.replace(file)

    def use() -> None:
        say(first.url)
        with running(f"--dynamic-config-yaml {file}", log) as port:
            _ask(port, "ann")
            say(second.url, "nonsense")
            _awaited(log, re.compile(r"reload: .*routing_logic: `nonsense`: expected"))
            _ask(port, "ann")
            say(second.url)
            _awaited(log, re.compile(r"reload: endpoints"))
            _ask(port, "ann")

    await asyncio.to_thread(use)
    assert (len(first.log.entries), len(second.log.entries)) == (2, 1)
