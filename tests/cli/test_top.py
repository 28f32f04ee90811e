"""`penstock top`: what keys do, and that the terminal is as it was, however it ends. In a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from penstock.cli.top import live, views
from penstock.cli.top.keyboard import read
from penstock.cli.top.wishes import KEYS, ORDERS, Wishes
from tests.gateway.admin.test_admin_state import crowded, let_go
from tests.gateway.conftest import World
from tests.patience import WAIT_S

ENTERS, LEAVES, SHOWS_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Terminal:
    """A terminal with `penstock top` in it."""

    def __init__(self, url: str, *words: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "top", "--url", url, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "xterm-256color", "NO_COLOR": "1"},
            start_new_session=True,
            preexec_fn=_owns_the_terminal,
        )
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    async def until(self, *texts: str) -> None:
        """Until the terminal has shown all of these since the last time."""
        await asyncio.to_thread(self._until, texts)

    def _until(self, texts: tuple[str, ...]) -> None:
        seen, end_s = "", time.monotonic() + WAIT_S
        while not all(text in seen for text in texts):
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"{texts} did not come, but {seen[-3000:]!r}"
            if select.select([self.ours], [], [], left_s)[0]:
                seen += os.read(self.ours, 1 << 16).decode(errors="replace")
        self.shown += seen

    async def ended(self) -> int:
        """Its exit code. The terminal is as it was."""
        code = await asyncio.to_thread(self.process.wait, WAIT_S)
        while select.select([self.ours], [], [], 0)[0]:
            self.shown += os.read(self.ours, 1 << 16).decode(errors="replace")
        assert termios.tcgetattr(self.theirs) == self.before, "echo and line mode are as they were"
        assert self.shown.count(ENTERS) == self.shown.count(LEAVES) == 1
        assert self.shown.rindex(SHOWS_CURSOR) > self.shown.index(ENTERS)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


def _owns_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored


@contextlib.contextmanager
def terminal(world: World, *words: str) -> Iterator[Terminal]:
    made = Terminal(world.url, *words)
    try:
        yield made
    finally:
        made.close()


async def test_keys_change_what_is_seen_and_q_leaves(world: World) -> None:
    clients = await crowded(world, tenants=("nightly", "team-a"), waiting=3)
    with terminal(world) as top:
        await top.until("q leave · ? keys · p stop · s sort: wait · t tenant: all · e endpoint: all")
        top.press("s")
        await top.until("s sort: waiting")
        top.press("t")
        await top.until("t tenant: nightly")
        top.press("t")
        await top.until("t tenant: team-a")
        top.press("e")
        await top.until(f"e endpoint: {world.picture().endpoints[0].name}")
        top.press("\x1b")
        await top.until("t tenant: all · e endpoint: all")
        top.press("?")
        await top.until(*(meaning for _, meaning in KEYS))
        top.press("p")
        await top.until("STILL since", "p go on")
        top.press("xyz\x1b[A")  # which mean nothing
        top.press("q")
        assert await top.ended() == 0
    await let_go(clients)


@pytest.mark.parametrize(
    ("how", "code"),
    [("Ctrl-C", 0), (signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["Ctrl-C", "SIGINT", "SIGTERM", "SIGHUP"],
)
async def test_the_terminal_is_left_as_it_was(world: World, how: str | signal.Signals, code: int) -> None:
    await world.engine()
    await world.gateway()
    with terminal(world) as top:
        await top.until("q leave")
        if isinstance(how, str):
            top.press("\x03")
        else:
            top.process.send_signal(how)
        assert await top.ended() == code


async def test_a_gateway_that_leaves_is_reported_and_keys_work(world: World) -> None:
    await world.engine()
    await world.gateway()
    with terminal(world) as top:
        await top.until("q leave")
        await world.end_gateway()
        await top.until("trying again: cannot reach")
        top.press("s")
        await top.until("s sort: waiting")
        top.press("q")
        assert await top.ended() == 0


async def test_a_gateway_that_is_not_there_ends_it_with_a_line(world: World) -> None:
    world.port = 9
    with terminal(world) as top:
        assert await top.ended() == 1
        assert "penstock: cannot reach http://127.0.0.1:9" in top.shown


async def test_in_a_pipe_it_prints_once(world: World) -> None:
    await world.engine()
    await world.gateway()
    command = [sys.executable, "-m", "penstock", "top", "--url", world.url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Idle: nothing waits" in done.stdout
    assert "\x1b" not in done.stdout
    assert "q leave" not in done.stdout


# --- wishes -------------------------------------------------------------------------------------------------------


def rows(*names: str) -> list[dict[str, Any]]:
    return [
        {"tenant": name, "band": "standard", "waiting": at, "running": 9 - at, "share_of_all": at / 10}
        for at, name in enumerate(names)
    ]


def state(**more: Any) -> dict[str, Any]:
    requests = [{"tenant": "b", "endpoint": "e1"}, {"tenant": "c", "endpoint": "e2"}, {"tenant": "b", "endpoint": "e2"}]
    return {
        "tenants": rows("b", "c", "a"),
        "tenants_more": 4,
        "endpoints": [{"name": "e1"}, {"name": "e2"}],
        "endpoints_more": 0,
        "requests": {"waiting": [], "running": requests, "ended": []},
        **more,
    }


def test_tenants_are_sorted_as_requested() -> None:
    wishes, seen = Wishes(), {}
    for order in ORDERS:
        assert wishes.order == order
        seen[order] = [row["tenant"] for row in wishes.seen(state())["tenants"]]
        wishes.pressed("s", state())
    assert wishes.order == "wait", "and around"
    assert seen == {
        "wait": ["b", "c", "a"],
        "waiting": ["a", "c", "b"],
        "running": ["b", "c", "a"],
        "got": ["a", "c", "b"],
        "name": ["a", "b", "c"],
    }


def test_one_tenant_or_endpoint_is_looked_at_and_all_again() -> None:
    wishes = Wishes()
    for key, tenant in (("t", "b"), ("t", "c"), ("T", "b"), ("T", None), ("T", "a"), ("t", None)):
        wishes.pressed(key, state())
        assert wishes.tenant == tenant
    wishes.pressed("t", state())
    wishes.pressed("E", state())
    seen = wishes.seen(state())
    assert [row["tenant"] for row in seen["tenants"]] == ["b"]
    assert [row["name"] for row in seen["endpoints"]] == ["e2"]
    assert seen["requests"]["running"] == [{"tenant": "b", "endpoint": "e2"}]
    assert wishes.seen(state(tenants=[], endpoints=[]))["tenants"] == [], "it stays while it has nothing to show"
    wishes.pressed("t", state(tenants=[]))
    assert wishes.tenant is None
    wishes.pressed("a", state())
    assert wishes.seen(state())["requests"] == state()["requests"]


def test_escape_takes_the_keys_away_first() -> None:
    wishes = Wishes()
    for key in ("t", "?", "escape"):
        wishes.pressed(key, state())
    assert (wishes.shows_keys, wishes.tenant) == (False, "b")
    wishes.pressed("escape", state())
    assert wishes.tenant is None


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"st", ["s", "t"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[A", []),
        (b"\x1bq", []),
        (b"\x00\x7f\r", []),
        ("é".encode(), ["é"]),
        (b"\xff\xfeq", ["q"]),
    ],
)
def test_bytes_are_keys(data: bytes, keys: list[str]) -> None:
    assert read(data) == keys


@pytest.mark.parametrize("height", [24, 50])
async def test_the_picture_fits_the_terminal_with_its_foot(world: World, height: int) -> None:
    clients = await crowded(world, tenants=("nightly", "team-a"), waiting=3)
    told = (await world.ask("GET", "/admin/state")).json()
    wishes = Wishes()
    for keys in ("", "t", "?"):
        for key in keys:
            wishes.pressed(key, told)
        out = io.StringIO()
        console = Console(file=out, width=80, height=height, force_terminal=True, color_system=None)
        console.print(live.picture(told, wishes, console, "trying again: cannot reach it"))
        lines = out.getvalue().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= 80
        assert lines[-1].startswith("q leave")
        assert lines[0].startswith("trying again: cannot reach it")
    assert views.headline(told).plain
    await let_go(clients)


def test_operators_stops_have_their_own_mark() -> None:
    state = {"tone": "bad", "headline": "Drained.", "lead": "Drained.", "advice": ""}
    assert views.headline(state).plain == "■ attention Drained."
    assert views.headline({**state, "by_operators": True}).plain == "◆ stopped Drained."
    assert [views._state(name, "both").plain for name in ("up", "down", "drained")] == ["● up", "■ down", "◆ drained"]


def test_names_that_differ_at_their_end_alone_stay_different() -> None:
    """All callers of one address looked the same in 80 columns."""
    callers = ["client:127.0.0.1+key:456f1612bd25", "client:127.0.0.1+key:5e3127854550"]
    assert [views.short(name, 20) for name in callers] == ["client:12…6f1612bd25", "client:12…3127854550"]
    assert [views.short(name, 14) for name in callers] == ["client…612bd25", "client…7854550"]
    assert views.short("a name of 20 letters", 20) == "a name of 20 letters"
    assert views.short("two\nlines", 20) == "two·lines"


async def test_figures_of_ten_seconds_and_of_a_minute_are_distinguished(world: World) -> None:
    """First tokens of ten seconds stood behind "last minute"."""
    await world.engine()
    await world.gateway(queue={"max_requests": 40})
    await (await world.streaming()).answer()
    state = (await world.ask("GET", "/admin/state")).json()
    assert views.numbers(state).plain.startswith("waiting 0 of at most 40 · running 0 · ")
    assert " · last 10 s: " in views.numbers(state).plain
    assert "first token p50 " in views.numbers(state).plain
    (line,) = views.lately(state)
    assert line.plain.startswith("last minute: ended ")
    assert line.plain.endswith(" · evicted 0 · broken 0 · failed 0 · retried 0")
