"""`listen: unix:/path`, `admin.listen: unix:/path`: the gateway at unix sockets, and commands that ask it there."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main as cli
from penstock.config.address import is_everywhere, socket_address, split_listen
from penstock.config.load import ConfigError, Flags, from_mapping, load
from penstock.config.problems import Refused
from penstock.gateway.admin import own_token
from penstock.gateway.fitness import start_problems
from penstock.gateway.serve import Gateway, StartError
from penstock.http.server import unix_socket
from penstock.http.server.unix_socket import listening_at
from tests.gateway.conftest import World, chat, hurry, request
from tests.gateway.test_reload import make_certificate
from tests.gateway.test_shutdown import Process, penstock
from tests.patience import WAIT_S


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A short one: the path of a socket has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pen") as made:
        monkeypatch.setenv("XDG_STATE_HOME", f"{made}/state")
        yield f"{made}/p.sock"


def is_socket(path: str) -> bool:
    return Path(path).exists() and stat.S_ISSOCK(os.lstat(path).st_mode)


def left_behind(path: str) -> None:
    """The file of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()


async def run(*words: str) -> int:
    return await asyncio.to_thread(cli.main, list(words))


# --- serving ------------------------------------------------------------------------------------------------------


async def test_it_serves_at_a_unix_socket_and_removes_it_at_the_end(world: World, path: str, workers: int) -> None:
    await world.engine()
    await world.gateway(listen=f"unix:{path}", workers=workers, log={"access": True})
    for _ in range(4):
        assert (await world.chat()).status == 200
    stream = await world.streaming()
    assert (await stream.answer()).body.endswith(b"data: [DONE]\n\n")
    for own in ("/ready", "/metrics", "/v1/models", "/queue", "/admin/state"):
        assert (await world.ask("GET", own)).status == 200, own
    stream.hang_up()
    assert is_socket(path)
    await world.end_gateway()
    assert not Path(path).exists()


async def tenants(world: World, headers: dict[str, str]) -> tuple[str, str]:
    """A caller's tenant, as its request has it, and as the first process answers it."""
    name = f"r{len(world.clients)}"
    assert (await world.chat_with({"x-request-id": name, **headers})).status == 200
    told = (await world.ask("GET", f"/admin/requests/{name}")).json()["explanation"]
    return told["tenant"], (await world.ask("GET", "/queue", headers=headers)).json()["tenant"]


async def test_callers_at_a_socket_are_one_address_of_this_machine(world: World, path: str, workers: int) -> None:
    await world.engine()
    await world.gateway(listen=f"unix:{path}", workers=workers)
    assert await tenants(world, {}) == ("client:127.0.0.1", "client:127.0.0.1")
    assert await tenants(world, {"x-forwarded-for": "203.0.113.7"}) == ("client:127.0.0.1", "client:127.0.0.1")
    assert await tenants(world, {"x-tenant-id": "team"}) == ("team", "team")


async def test_a_proxy_before_the_socket_names_its_callers(world: World, path: str, workers: int) -> None:
    """It counts as 127.0.0.1, so it is believed if that is listed."""
    await world.engine()
    await world.gateway(listen=f"unix:{path}", workers=workers, client_address={"proxies": ["127.0.0.1"]})
    for address in ("203.0.113.7", "203.0.113.8"):
        name = f"client:{address}"
        assert await tenants(world, {"x-forwarded-for": address}) == (name, name)


async def test_no_page_reaches_a_socket_so_names_are_free_and_admin_is_for_this_machine(
    world: World, path: str, workers: int
) -> None:
    """A proxy passes `Host` on. Its callers may be anywhere, so /admin is not shown to them."""
    await world.engine()
    await world.gateway(listen=f"unix:{path}", workers=workers)
    named = request(body=chat()).replace(b"host: gateway", b"host: llm.example.org")
    assert (await (await world.client(named)).answer()).status == 200
    assert (await world.ask("GET", "/admin/state")).status == 200
    assert (await world.ask("GET", "/admin/state", headers={"x-forwarded-for": "203.0.113.7"})).status == 403
    assert (await world.ask("POST", "/admin/pause", headers={"authorization": "Bearer wrong"})).status == 401


async def test_tls_is_for_ports_only(world: World, path: str, tmp_path: Path, workers: int) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key)
    await world.engine()
    await world.gateway(listen=f"unix:{path}", workers=workers, tls={"cert": str(cert), "key": str(key)})
    assert (await world.chat()).status == 200


async def test_operators_have_a_socket_of_their_own(
    world: World, path: str, workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a port with TLS, too: the commands speak to it in plain HTTP."""
    await world.engine()
    await world.gateway(workers=workers, admin={"listen": f"unix:{path}"})
    assert (await world.ask("GET", "/metrics")).status == 404
    assert await run("status", "--url", f"unix:{path}") == 0
    assert await run("pause", "--url", f"unix:{path}") == 0, "the token is found by the path of /admin"
    assert await run("resume", "--url", f"unix:{path}") == 0
    assert await run("status", "--url", world.url) == 1
    assert "has no /admin: if `admin.listen` gives it" in capsys.readouterr().err
    await world.end_gateway()
    assert not Path(path).exists()


# --- the commands -------------------------------------------------------------------------------------------------


async def test_commands_ask_at_the_socket(
    world: World, path: str, workers: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.engine()
    await world.gateway(listen=f"unix:{path}", workers=workers, batch={"data": f"{path}.batch"})
    assert (await world.ask(body=chat(), headers={"x-request-id": "r1"})).status == 200
    link = Path(f"{path}.folder")
    link.symlink_to(Path(path).parent)
    for url in (f"unix:{path}", f"unix://{path}", f"unix:{path}/", f"unix:{path}:/", f"unix:{link}/p.sock"):
        monkeypatch.setenv("PENSTOCK_URL", url)
        for words in (["status", "--check"], ["top", "--once"], ["endpoint", "list"], ["queue"], ["explain", "r1"]):
            assert await run(*words) == 0, (url, words)
        assert await run("pause", "sim") == 0, "the token is found, whichever way leads to the socket"
        assert await run("resume") == 0
        assert await run("batch", "list") == 0
    assert "cannot reach" not in capsys.readouterr().err


async def test_a_path_behind_the_socket_is_the_root_path(world: World, path: str) -> None:
    await world.engine()
    await world.gateway(listen=f"unix:{path}", root_path="/llm")
    assert await run("status", "--url", f"unix:{path}:/llm") == 0
    assert await run("pause", "--url", f"unix:{path}:/llm/") == 0
    assert await run("resume", "--url", f"unix:{path}") == 0


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("unix:{path}", "cannot reach unix:{path}: there is no such socket (is a gateway running there?"),
        ("unix:p.sock", "unix:p.sock/admin/state?requests=0 is not a URL with http://, https:// or unix:/path"),
        ("unix:{dead}", "cannot reach unix:{dead}: connection refused (is a gateway running there?"),
        ("unix:/" + "x" * 200, "cannot reach unix:/xxx"),
    ],
)
async def test_a_socket_where_nobody_is_is_an_error_in_one_line(
    path: str, url: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left_behind(f"{path}.dead")
    assert await run("status", "--url", url.format(path=path, dead=f"{path}.dead")) == 1
    printed = capsys.readouterr().err
    assert error.format(path=path, dead=f"{path}.dead").partition("/admin")[0] in printed
    assert printed.count("\n") == 1


# --- the file -----------------------------------------------------------------------------------------------------


async def test_a_dead_file_is_replaced_and_a_live_one_is_not(world: World, path: str, workers: int) -> None:
    left_behind(path)
    await world.engine()
    first = await world.gateway(listen=f"unix:{path}", workers=workers)
    assert (await world.chat()).status == 200
    second = Gateway(world.settings())
    with pytest.raises(OSError, match="another process listens there"):
        await second.start()
    await second.close()
    assert world.gate is first
    assert (await world.chat()).status == 200, "the end of the second leaves the file of the first"


async def test_both_addresses_at_one_path_are_refused(world: World, path: str) -> None:
    with pytest.raises(ConfigError, match="the same address as `listen`"):
        from_mapping({"listen": f"unix:{path}", "admin": {"listen": f"unix://{path}"}})
    alias = f"{Path(path).parent}/./p.sock"
    gate = Gateway(from_mapping({"listen": f"unix:{path}", "admin": {"listen": f"unix:{alias}"}}))
    with pytest.raises(StartError, match="another process listens there"):
        await gate.start()
    assert not Path(path).exists()


async def test_of_two_that_start_together_one_serves(path: str) -> None:
    """Both find a dead file. Neither removes what the other has made of it."""
    for _ in range(20):
        left_behind(path)
        made = await asyncio.gather(*(listening_at(path) for _ in range(4)), return_exceptions=True)
        (one,) = [it for it in made if isinstance(it, socket.socket)]
        assert all("another process listens there" in str(it) for it in made if it is not one)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(path)
        one.close()
        assert not Path(path).exists()


async def test_a_folder_that_stays_locked_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "LOCK_TRIES_MAX", 2)
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="keeps its folder locked"):
            await listening_at(path)
    finally:
        os.close(folder)
    (await listening_at(path)).close()


async def test_a_file_that_came_in_its_place_stays(path: str) -> None:
    one = await listening_at(path)
    Path(path).unlink()
    Path(path).write_text("another's")
    one.close()
    assert Path(path).read_text() == "another's"


async def test_its_mode_is_the_umasks(path: str) -> None:
    before = os.umask(0o007)
    try:
        one = await listening_at(path)
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o770
        one.close()
    finally:
        os.umask(before)


def _not_there(path: str) -> str:
    return f"{path}.none/p.sock"


def _a_file(path: str) -> str:
    Path(path).write_text("a file")
    return path


def _a_link(path: str) -> str:
    Path(path).symlink_to("/dev/null")
    return path


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_not_there, "there is no folder"),
        (_a_file, "a file is there that is no socket"),
        (_a_link, "a file is there that is no socket"),
        (lambda path: str(Path(path).parent), "a file is there that is no socket"),
    ],
)
async def test_a_path_that_cannot_be_is_said_at_the_check_and_at_the_start(path: str, make: Any, why: str) -> None:
    at = make(path)
    settings = from_mapping({"listen": f"unix:{at}", "endpoints": [{"url": "http://127.0.0.1:9"}]})
    (problem,) = await asyncio.to_thread(start_problems, settings, {})
    assert problem.path == "listen"
    assert f"cannot listen on unix:{at}: {why}" in problem.message
    with pytest.raises(OSError, match=why):
        await listening_at(at)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_without_the_right_to_write_is_said(path: str) -> None:
    Path(path).parent.chmod(0o500)
    try:
        with pytest.raises(OSError, match="no right to write into"):
            await listening_at(path)
    finally:
        Path(path).parent.chmod(0o700)


async def test_a_check_leaves_everything_as_it_is(path: str) -> None:
    endpoints = [{"url": "http://127.0.0.1:9"}]
    settings = from_mapping({"admin": {"listen": f"unix:{path}"}, "endpoints": endpoints})
    assert await asyncio.to_thread(start_problems, settings, {}) == []
    assert not Path(path).exists()
    left_behind(path)
    assert await asyncio.to_thread(start_problems, settings, {}) == []
    assert is_socket(path)
    Path(path).unlink()
    one = await listening_at(path)
    assert await asyncio.to_thread(start_problems, settings, {}) == [], "another gateway may run there just now"
    one.close()


# --- processes ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def process(path: str, *words: str) -> AsyncIterator[Process]:
    made = await penstock("serve", "--listen", f"unix:{path}", *words)
    try:
        yield made
    finally:
        if made.process.returncode is None:
            os.killpg(made.process.pid, 9)
        await made.process.communicate()


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_killed_gateway_is_followed_by_the_next_at_the_same_path(world: World, path: str, workers: str) -> None:
    engine = await world.engine()
    words = ("--endpoint", engine.url, "--workers", workers)
    world.socket = path
    async with process(path, *words) as killed:
        assert f"listening on unix:{path}\n".encode() in await killed.line(b"listening on")
        assert (await world.chat()).status == 200
        async with process(path, *words) as second:
            assert b"another process listens there" in await second.left_after_trouble(code=1)
        assert (await world.chat()).status == 200
        os.killpg(killed.process.pid, 9)
        await killed.process.communicate()
    assert is_socket(path)
    async with process(path, *words) as after:
        await after.line(b"listening on")
        stream = await world.streaming(tokens=500)
        await stream.begun()
        after.signal()
        await after.line(b"draining")
        hurry(engine)
        assert (await stream.whole()).endswith(b"data: [DONE]\n\n")
        assert await after.left() == 0
    assert not Path(path).exists()


@pytest.mark.parametrize("abstract", [False, True])
async def test_systemd_is_told_when_it_listens_and_handles_signals(path: str, abstract: bool) -> None:
    """With `Type=notify` a reload waits for that. A SIGHUP behind it is heard."""
    place = f"@{path}" if abstract else f"{path}.notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{path}" if abstract else place)
        systemd.settimeout(WAIT_S)
        words = ("serve", "--listen", f"unix:{path}", "--endpoint", "http://127.0.0.1:9")
        made = await penstock(*words, NOTIFY_SOCKET=place)
        try:
            assert await asyncio.to_thread(systemd.recv, 100) == b"READY=1"
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(path)
            made.signal(signal.SIGHUP)
            await made.line(b"reloaded")
            made.signal()
            assert await made.left() == 0
        finally:
            if made.process.returncode is None:
                os.killpg(made.process.pid, 9)


async def test_a_systemd_that_does_not_listen_is_only_logged(path: str) -> None:
    words = ("serve", "--listen", f"unix:{path}", "--endpoint", "http://127.0.0.1:9")
    made = await penstock(*words, NOTIFY_SOCKET=f"{path}.none")
    await made.line(b"systemd can't be told")
    made.signal()
    assert await made.left() == 0


async def test_a_changed_path_needs_a_restart(world: World, path: str) -> None:
    await world.engine()
    gate = await world.gateway(listen=f"unix:{path}")
    world.document["listen"] = f"unix:{path}.other"
    answer = await world.ask("POST", "/admin/reload")
    assert (answer.status, answer.error()["param"]) == (409, "listen")
    assert (await world.chat()).status == 200
    assert not Path(f"{path}.other").exists()
    gate.own_token.follow(gate.reload.settings)
    assert own_token.find(f"unix:{path}", os.environ) == gate.own_token.token


# --- what may be written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("unix:/run/p.sock", "unix:/run/p.sock"),
        ("unix:///run/p.sock", "unix:/run/p.sock"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("[::1]:080", "[::1]:80"),
    ],
)
def test_an_address_has_one_form(written: str, normal: str) -> None:
    assert socket_address(written) == normal


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("/run/p.sock", "write `unix:/run/p.sock`"),
        ("unix:run/p.sock", "for example unix:/run/vllm.sock"),
        ("unix:@penstock", "for example unix:/run/vllm.sock"),
        ("unix:", "for example unix:/run/vllm.sock"),
        ("unix:/run/p.sock:/base", "write `unix:/run/p.sock`"),
        ("unix:/run/p.sock:8080", "write `unix:/run/p.sock`"),
        ("unix:/" + "x" * 107, None),
        ("http://127.0.0.1:80", "write `127.0.0.1:80`"),
    ],
)
def test_mistakes_are_refused_with_what_was_meant(written: str, hint: str | None) -> None:
    for document in ({"listen": written}, {"admin": {"listen": written}}):
        with pytest.raises(ConfigError):
            from_mapping(document)
    with pytest.raises(Refused) as refused:
        socket_address(written)
    assert refused.value.suggestion == hint


@pytest.mark.parametrize("section", ["epp", "share"])
def test_other_addresses_are_ports(section: str) -> None:
    with pytest.raises(ConfigError, match=f"{section}.listen"):
        from_mapping({section: {"listen": "unix:/run/p.sock"}})


def test_a_host_or_port_by_flag_replaces_a_socket(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("listen: unix:/run/p.sock\n")
    assert load(str(file), {}, Flags(port="90")).listen == "127.0.0.1:90"
    assert load(str(file), {}, Flags(host="0.0.0.0")).listen == "0.0.0.0:8080"
    assert load(str(file), {}, Flags(listen="unix:/x.sock")).listen == "unix:/x.sock"


def test_a_socket_is_for_this_machine() -> None:
    assert split_listen("unix:/run/p.sock") == ("unix:/run/p.sock", 0)
    assert not is_everywhere("unix:/run/p.sock")
