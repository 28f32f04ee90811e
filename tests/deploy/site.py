"""A small site of real processes: simulated engines, gateways, a Prometheus that scrapes them, and callers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from tests.deploy.programs import program
from tests.ports import free_port

START_S = 60.0  # a bound for what takes a second, on a machine that is busy with other things
MODEL = "default"
LISTENS = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


def until(what: Callable[[], object], told: str, within_s: float = START_S) -> None:
    """Wait until it holds."""
    end_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {told}"
        time.sleep(0.1)


class Process:
    """One process that may be killed and begun again on the same port; its log is a file."""

    def __init__(self, words: Sequence[str], port: int, log: Path) -> None:
        self.port = port  #: 0: its log says where
        self.log = log
        self._words = words
        self._file: IO[bytes] | None = None
        self.begin()

    def begin(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK__")}
        environment["XDG_STATE_HOME"] = str(self.log.parent / "state")
        self._file = self.log.open("ab")
        self.process = subprocess.Popen(self._words, stdout=self._file, stderr=self._file, env=environment)
        until(self.listens, f"{self.log.stem} listens: {self.log.read_text()[-2000:]}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listens(self) -> bool:
        said = self.log.read_text()
        assert self.process.poll() is None, said[-2000:]
        if not self.port and (found := LISTENS.search(said)):
            self.port = int(found[1])
        if not self.port:
            return False
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        self.process.wait(START_S)
        if self._file is not None:
            self._file.close()

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=START_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def fault(self, kind: str, **more: Any) -> None:
        """An engine's: misbehave like this from now on; `none`: no more."""
        status, said = self.ask("/sim/fault", {"kind": kind, **more})
        assert status == 200, said


class Caller:
    """Asks a gateway so many at a time, whatever comes back, until it is let go. It hangs up after `patience_s`."""

    def __init__(self, url: str, at_a_time: int, pause_s: float, patience_s: float, **body: Any) -> None:
        self.answers: dict[int, int] = {}
        self._address = url.removeprefix("http://")
        self._pause_s = pause_s
        self._patience_s = patience_s
        self._over = threading.Event()
        self._body = {
            "model": MODEL,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "hello " * 400}],
            **body,
        }
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(at_a_time)]
        for thread in self._threads:
            thread.start()

    def _call(self, number: int) -> None:
        headers = {"content-type": "application/json", "x-tenant-id": f"team-{number % 3}"}
        while not self._over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(self._address, timeout=self._patience_s)
                with contextlib.closing(connection):
                    connection.request("POST", "/v1/chat/completions", json.dumps(self._body), headers)
                    answer = connection.getresponse()
                    answer.read()
                    self.answers[answer.status] = self.answers.get(answer.status, 0) + 1
            self._over.wait(self._pause_s)

    def let_go(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(START_S)


class Prometheus(Process):
    """A real one."""

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self._answer("query", query=expression)

    def over(self, expression: str, begin_s: float, end_s: float) -> list[dict[str, Any]]:
        """Each series' values, second by second."""
        return self._answer("query_range", query=expression, start=begin_s, end=end_s, step=1)

    def _answer(self, path: str, **asked: Any) -> list[dict[str, Any]]:
        status, said = self.ask(f"/api/v1/{path}?{urllib.parse.urlencode(asked)}")
        answer = json.loads(said)
        assert status == 200, answer
        assert not answer.get("warnings"), answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


class Site:
    """All of them; at the end none is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gateways: dict[str, Process] = {}
        self._all: list[Process] = []
        self._callers: list[Caller] = []

    def engine(self, *flags: str) -> Process:
        port = free_port()
        return self._begun(Process, "engine", port, ["engine", "--port", str(port), "--model", MODEL, *flags])

    def gateway(self, settings: Mapping[str, Any], name: str = "gateway", listen: str = "") -> Process:
        port = 0 if listen else free_port()
        self.write(name, settings)
        words = ["serve", "-c", str(self.folder / f"{name}.yaml"), "--listen", listen or f"127.0.0.1:{port}"]
        self.gateways[name] = self._begun(Process, name, port, words)
        return self.gateways[name]

    def write(self, name: str, settings: Mapping[str, Any]) -> None:
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(settings)))

    def caller(
        self, gateway: Process, at_a_time: int = 4, pause_s: float = 0.05, patience_s: float = START_S, **body: Any
    ) -> Caller:
        caller = Caller(gateway.url, at_a_time, pause_s, patience_s, **body)
        self._callers.append(caller)
        return caller

    def prometheus(self, gateways: Mapping[str, Process], rules: str = "") -> Prometheus:
        """Scrapes each gateway, under its name, every second."""
        command = program("prometheus")
        port = free_port()
        folder = self.folder / f"prometheus-{port}"
        folder.mkdir()
        (folder / "rules.yml").write_text(rules or "groups: []\n")
        targets = [
            {"targets": [gateway.url.removeprefix("http://")], "labels": {"instance": name}}
            for name, gateway in gateways.items()
        ]
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "900ms", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "penstock", "static_configs": targets}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        words = [
            command,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        found = self._begun(Prometheus, "prometheus", port, words)
        assert isinstance(found, Prometheus)
        return found

    def _begun(self, kind: type[Process], name: str, port: int, words: list[str]) -> Process:
        if kind is Process:
            words = [sys.executable, "-m", "penstock", *words]
        process = kind(words, port, self.folder / f"{name}-{port}.log")
        self._all.append(process)
        return process

    def close(self) -> None:
        for caller in self._callers:
            caller.let_go()
        for process in reversed(self._all):
            process.end()
