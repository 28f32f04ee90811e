"""Who may look at a gateway and change it: proxies on the same machine, web pages, wrong tokens, early signals.

A real `penstock serve`, with nothing set: what people try first, and forget.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.conftest import World, chat, request

START_S = 60.0
ENDPOINT = json.dumps({"url": "http://127.0.0.1:9", "name": "mine"})
PROXIES = {
    "forwarded": {"forwarded": "for=203.0.113.7"},
    "x-forwarded-for": {"x-forwarded-for": "203.0.113.7"},
    "via": {"via": "1.1 proxy"},
    "x-real-ip": {"x-real-ip": "203.0.113.7"},
}
PATHS = ["/health", "/ready", "/metrics", "/version", "/queue", "/v1/models", "/admin/state", "/admin/", "/nothing"]


class Served:
    """A `penstock serve` that runs, and where it is."""

    def __init__(self, process: subprocess.Popen[str], port: int, state: Path) -> None:
        self.process = process
        self.port = port
        self.state = state

    @property
    def token(self) -> str:
        return (self.state / "penstock" / str(self.port) / "admin-token").read_text().strip()

    def ask(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str]]:
        """The status and the headers of one answer. `host` may be anything."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"host": f"127.0.0.1:{self.port}", **(headers or {})}.items():
                connection.putheader(name, value)
            if body:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body.encode() or None)
            answer = connection.getresponse()
            answer.read()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}


def begun(state: Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    command = [sys.executable, "-m", "penstock", "serve", "--endpoint", "http://127.0.0.1:9"]
    return subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", *words],
        env={**environment, "XDG_STATE_HOME": str(state)},
        stderr=subprocess.PIPE,
        text=True,
    )


def listens(process: subprocess.Popen[str]) -> int:
    """The port, once its log says so; fails where it ends instead."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise AssertionError(f"it ended with {process.wait()}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    state = tmp_path_factory.mktemp("state")
    with begun(state) as process:
        one = Served(process, listens(process), state)
        yield one
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        process.stderr.read()
        assert process.wait(START_S) == 0
    left = [path.name for path in (state / "penstock").iterdir()]
    assert left == ["store"], "at a clean end its token is gone, and the ledger stays"


# --- /admin, row 4 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proxy", PROXIES)
def test_clients_of_a_local_proxy_see_and_change_nothing(served: Served, proxy: str) -> None:
    headers = PROXIES[proxy]
    assert served.ask("GET", "/admin/state", headers=headers)[0] == 403
    assert served.ask("POST", "/admin/endpoints", ENDPOINT, headers)[0] == 403


def test_a_proxy_that_adds_no_address_changes_nothing(served: Served) -> None:
    """nginx as it comes: `Host` of the upstream and no header of its own. It answered 201, and prompts went there."""
    status, headers = served.ask("POST", "/admin/endpoints", ENDPOINT, {"connection": "close"})
    assert (status, headers["x-penstock-reason"]) == (401, "unauthorized")
    for path in ("pause", "drain", "reload", "requests/x/cancel"):
        assert served.ask("POST", f"/admin/{path}")[0] == 401
    assert served.ask("DELETE", "/admin/endpoints/127.0.0.1:9")[0] == 401


def test_this_machine_looks_without_a_token_and_its_commands_find_it(served: Served) -> None:
    assert served.ask("GET", "/admin/state")[0] == 200
    file = served.state / "penstock" / str(served.port) / "admin-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    environment = {**os.environ, "XDG_STATE_HOME": str(served.state), "PENSTOCK_URL": f"http://localhost:{served.port}"}
    command = [sys.executable, "-m", "penstock", "endpoint"]
    for words in (["add", "http://127.0.0.1:19", "--name", "added"], ["remove", "added"]):
        done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    without = subprocess.run(
        [*command, "add", "http://127.0.0.1:19"],
        env={**environment, "XDG_STATE_HOME": "/nonexistent", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert without.returncode == 1
    assert "needs the admin token" in without.stderr


# --- wrong tokens, row 10 -----------------------------------------------------------------------------------------


def test_wrong_tokens_of_others_never_keep_the_right_one_out(served: Served) -> None:
    """One wrong token every six seconds from the same address kept operators out."""
    right, wrong = ({"authorization": f"Bearer {token}"} for token in (served.token, "a-guess-at-random"))
    answers = [served.ask("POST", "/admin/resume", headers=wrong)[0] for _ in range(10)]
    assert set(answers) == {401}
    began_s = time.monotonic()
    status, headers = served.ask("POST", "/admin/resume", headers=wrong)
    assert (status, time.monotonic() - began_s >= 1.0) == (429, True)
    assert int(headers["retry-after"]) >= 1
    assert served.ask("POST", "/admin/resume", headers=right)[0] == 200


# --- web pages, row 13 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:3000", "https://localhost"])
def test_a_page_of_another_site_may_not_use_a_gateway_on_loopback(served: Served, origin: str) -> None:
    """A form or a `fetch` with text/plain asks nobody before it is sent. It was served, and cost its tokens."""
    headers = {"origin": origin, "content-type": "text/plain"}
    status, said = served.ask("POST", "/v1/chat/completions", json.dumps(chat()), headers)
    assert (status, said["x-penstock-reason"]) == (403, "forbidden")
    for path in PATHS:
        assert served.ask("GET", path, headers=headers)[0] == 403 or path == "/admin/", path


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "x@127.0.0.1"])
def test_a_name_that_resolves_to_loopback_reaches_nothing(served: Served, host: str) -> None:
    """DNS rebinding: to the browser it is the page's own site, so it would let the page read the answers."""
    for path in PATHS:
        assert served.ask("GET", path, headers={"host": host})[0] == 403, path
    assert served.ask("POST", "/v1/chat/completions", json.dumps(chat()), {"host": host})[0] == 403


def test_its_own_page_and_its_own_names_are_served(served: Served) -> None:
    for host in ("localhost", f"127.0.0.1:{served.port}", "[::1]", "gateway"):
        assert served.ask("GET", "/v1/models", headers={"host": host, "origin": f"http://{host}"})[0] == 200


async def test_names_and_origins_that_are_listed_are_served_and_a_key_needs_none(world: World) -> None:
    from penstock.gateway.identity.callers import key_hash  # noqa: PLC0415

    await world.engine()
    identity = {"allowed_hosts": ["gw.example"], "allowed_origins": ["https://chat.example"]}
    await world.gateway(tenants=[{"name": "team", "keys": [key_hash("pk-team")]}], identity=identity)
    own = {"host": "gw.example", "origin": "https://chat.example"}
    foreign = {"host": "other.example", "origin": "https://chat.example"}
    for headers, status in ((own, 200), (foreign, 403), ({**foreign, "authorization": "Bearer pk-team"}, 200)):
        lines = request(body=chat(), headers=headers).replace(b"host: gateway\r\n", b"", 1)
        assert (await (await world.client(lines)).answer()).status == status, headers


async def test_a_gateway_that_others_reach_and_one_that_needs_keys_look_at_no_names(world: World) -> None:
    foreign = request("GET", "/health", headers={"origin": "http://evil.example"})
    await world.gateway(listen="0.0.0.0:0")
    assert (await (await world.client(foreign)).answer()).status == 200


async def test_a_header_that_names_a_tenant_twice_is_refused(world: World) -> None:
    await world.engine()
    await world.gateway()
    twice = request(body=chat(), headers={"x-tenant-id": "a"}).replace(b"\r\n\r\n", b"\r\nX-Tenant-Id: b\r\n\r\n", 1)
    answer = await (await world.client(twice)).answer()
    assert (answer.status, answer.error()["code"]) == (400, "bad_request")


# --- early signals, row 11 ----------------------------------------------------------------------------------------


def holds_signals(process: subprocess.Popen[str]) -> bool:
    blocked = re.search(r"^SigBlk:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return blocked is not None and bool(int(blocked[1], 16) & 1 << (signal.SIGHUP - 1))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="who holds which signals is read there")
async def test_a_signal_in_the_first_second_is_heard_when_it_listens(tmp_path: Path) -> None:
    """SIGHUP ended it, with 129, which systemd takes for a clean end. A SIGTERM right behind it does not undo it."""
    with begun(tmp_path) as process:
        async with asyncio.timeout(START_S):
            while not holds_signals(process):
                await asyncio.sleep(0.001)  # from its first lines on
        process.send_signal(signal.SIGHUP)
        assert listens(process) > 0
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(START_S) == 0
    assert "reloaded" in said
    with begun(tmp_path) as process:
        async with asyncio.timeout(START_S):
            while not holds_signals(process):
                await asyncio.sleep(0.001)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "stopped" in process.stderr.read()
        assert process.wait(START_S) == 0


# --- open files, row 15 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "level", "told"), [("", "INFO", "20000, by default"), ("20000", "WARNING", "20000")]
)
def test_too_few_open_files_are_a_warning_at_start(tmp_path: Path, setting: str, level: str, told: str) -> None:
    limit = f"ulimit -Sn 256; ulimit -Hn 512; exec {sys.executable} -m penstock serve"
    command = ["bash", "-c", f"{limit} --endpoint http://127.0.0.1:9 --listen 127.0.0.1:0"]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    if setting:
        environment["PENSTOCK__LIMITS__MAX_CONNECTIONS"] = setting
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "listening on" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(START_S) == 0
    [line] = [line for line in said if f"may open 512 files, too few for limits.max_connections ({told})" in line]
    assert f" {level} " in line
