"""The commands that look at and steer a running gateway: what they print, and how they leave."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO

import pytest
from rich.console import Console

from penstock.cli import main as cli
from penstock.cli.steering.endpoint import line as endpoint_line
from penstock.cli.top import views
from penstock.core.values.catalogue import EndpointState
from tests.gateway.admin.test_admin_state import crowded, let_go
from tests.gateway.conftest import World


async def run(world: World, *words: str) -> int:
    return await asyncio.to_thread(cli.main, [*words, "--url", world.url])


async def test_status_is_a_sentence_and_an_exit_code(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    await world.gateway()
    assert await run(world, "status", "--check") == 0
    assert capsys.readouterr().out.startswith("● ok Idle: nothing waits, nothing runs. 1 of 1 engines is up.\n")
    assert await run(world, "pause", "sim") == 0
    assert capsys.readouterr().out == "paused: sim; 0 wait; `penstock resume` or a restart ends it\n"
    assert await run(world, "status", "--check") == 0, "an operator did it, and nothing is wrong"
    assert "Paused by an operator (127.0.0.1, " in capsys.readouterr().out
    assert await run(world, "status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["paused"] == ["sim"]
    assert await run(world, "drain") == 0
    assert (
        capsys.readouterr().out == "paused: sim; drained: everything; 0 wait; `penstock resume` or a restart ends it\n"
    )
    assert await run(world, "resume") == 0
    assert capsys.readouterr().out == "resumed everything; 0 wait\n"
    assert await run(world, "resume") == 0
    assert capsys.readouterr().out == "nothing was stopped; 0 wait\n"


async def test_a_gateway_of_no_group_has_no_leader_to_show_or_replace(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.gateway(endpoints=[])
    for verb in ("show", "step-down"):
        assert await run(world, "decider", verb) == 1
        assert capsys.readouterr().err == "penstock: this gateway shares its queue with no other (docs/scale.md)\n"


async def test_the_queue_is_shown_and_changed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    clients = await crowded(world)
    assert await run(world, "queue") == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("Holding 3", "team-a", "team-b", "w0", "w1", "w2", "slots_full"))
    assert await run(world, "queue", "bump", "w2") == 0
    assert await run(world, "queue", "cancel", "w0", "nobody") == 1
    printed = capsys.readouterr()
    assert printed.out == "w2: waiting\nw0: cancelled\n"
    assert printed.err == "penstock: The request `nobody` has ended, or never came.\n"
    assert await run(world, "queue", "cancel") == 1
    assert await run(world, "explain", "w0") == 0
    assert "Ended evicted" in capsys.readouterr().out
    assert await run(world, "explain", "w1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["explanation"]["id"] == "w1"
    await let_go(clients)


async def test_a_gateway_that_is_not_there_is_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(cli.main, ["top", "--once", "--url", "http://127.0.0.1:9"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("penstock: cannot reach http://127.0.0.1:9: ")


async def test_a_wrong_url_is_answered_with_what_is_wrong_with_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = await world.engine()
    await world.gateway()
    bare = world.url.removeprefix("http://")
    for url, said in (
        (f"https://{bare}", f"no TLS is spoken there, WRONG_VERSION_NUMBER (did you mean `{world.url}`?)"),
        (engine.url, f"{engine.url} answered 404 Not Found: is it a Penstock gateway?"),
        (f"{world.url}/v1", f"without a `root_path` the URL ends at {world.url}\n"),
        (f"{world.url}/admin", f"without a `root_path` the URL ends at {world.url}\n"),
    ):
        assert await asyncio.to_thread(cli.main, ["status", "--url", url]) == 1
        assert said in capsys.readouterr().err


async def test_a_token_that_is_only_found_is_not_called_the_operators(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.gateway(endpoints=[])
    assert world.gate.own_token.file is not None
    left = world.gate.own_token.file
    kept = left.read_text()
    left.write_text("that-of-an-earlier-gateway\n")
    assert await run(world, "pause") == 1
    said = "the one found in the state folder is that of another, or of an earlier one on this port. Give it by --token"
    assert said in capsys.readouterr().err
    assert await run(world, "pause", "--token", "mistyped") == 1
    assert "This is not an admin token. Give it by --token" in capsys.readouterr().err
    left.write_text(kept)
    assert await run(world, "pause") == 0


LACKS = "the gateway's answer has no '"


class Older(BaseHTTPRequestHandler):
    """A gateway of another version: its answers lack members, and it has no path for what is sent."""

    def do_GET(self) -> None:
        self._answer(200, {"headline": "Idle", "tone": "ok"})

    def do_POST(self) -> None:
        self._answer(404, {"error": {"message": "There is no such path.", "code": "path_not_found"}})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        document = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(document)))
        self.end_headers()
        self.wfile.write(document)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((words, LACKS) for words in ("status", "top --once", "queue", "tenant ls", "sessions ls", "usage")),
        *((words, LACKS) for words in ("explain x", "endpoint list", "keys ls", "batch ls")),
        ("try a b", "one of another version may lack /admin/try"),
        ("reload", "one of another version may lack /admin/reload"),
    ],
)
def test_a_gateway_of_another_version_is_an_error_in_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Older)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        assert cli.main([*words.split(), "--url", f"http://127.0.0.1:{server.server_port}"]) == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    printed = capsys.readouterr()
    assert said in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


async def test_commands_name_a_separate_admin_address(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.gateway(admin={"listen": "127.0.0.1:0"}, endpoints=[])
    assert await run(world, "status") == 1
    assert f"{world.url} has no /admin: if `admin.listen` gives it a separate address" in capsys.readouterr().err
    assert world.gate.operators is not None
    callers, world.port = world.port, world.gate.operators.port
    assert await run(world, "pause") == 0, "the token is found by the port of /admin"
    assert await run(world, "resume") == 0
    world.port = callers


async def test_an_endpoint_that_is_away_is_listed_with_since_when(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = await world.engine()
    await world.gateway()
    assert await run(world, "endpoint", "list") == 0
    assert re.search(r": up, url ", capsys.readouterr().out)
    world.gate.watch.tick()
    await engine.close()
    world.engines.remove(engine)
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    world.gate.watch.tick()
    assert await run(world, "endpoint", "list") == 0
    assert re.search(r": down for [\d.]+ m?s, url ", capsys.readouterr().out)


def test_the_last_failure_of_an_endpoint_is_listed() -> None:
    row = {"name": "gpu-0", "state": "ejected", "state_s": 90.0, "slots": 4, "failure": "reset", "failed_s_ago": 2.0}
    assert endpoint_line(row) == "gpu-0: ejected for 1 min 30 s, slots 4, last failure reset 2.0 s ago"


async def test_an_endpoints_role_is_shown(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    engines = [await world.engine(), await world.engine()]
    roles = [{"labels": {"role": role}} for role in ("prefill", "decode")]
    await world.gateway(endpoints=[{"url": one.url, **role} for one, role in zip(engines, roles, strict=True)])
    assert await run(world, "top", "--json") == 0
    assert json.loads(capsys.readouterr().out)["headline"]
    assert await run(world, "top", "--once") == 0
    out = capsys.readouterr().out
    assert "up, prefill" in out
    assert "up, decode" in out


@pytest.mark.parametrize("height", [24, 50])
async def test_top_fits_the_terminal_with_any_names(world: World, height: int) -> None:
    names = ("[b]markup[/b]", "x" * 5_000, b"\x1b[31mescape".decode("latin-1").replace("\x1b", "?"))
    clients = await crowded(world, tenants=names, waiting=6)
    state = (await world.ask("GET", "/admin/state")).json()
    state["tenants"][0]["tenant"] = "evil\x1b[2J\nname\u202e"  # were the gateway to let it through
    out = StringIO()
    console = Console(file=out, width=80, height=height, force_terminal=True, color_system=None)
    console.print(views.screen(state, 80, height))
    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= 80 for line in lines)
    assert "\x1b[2J" not in out.getvalue()
    assert "[b]markup[/b]" in out.getvalue()
    await let_go(clients)


async def test_a_tenant_is_shown_paused_limited_and_cleared(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "nightly", "limits": {"running": 8}}])
    assert await run(world, "tenant", "pause", "nightly", "--until-reload") == 0
    assert capsys.readouterr().out.startswith(
        "nightly: PAUSED (by an operator, until `resume` or the next reload), 0 w"
    )
    assert await run(world, "tenant", "limit", "nightly", "--running", "2", "--queued-bytes", "1MiB") == 0
    out = capsys.readouterr().out
    assert "\n  running 2 (by an operator, until `limit --reset` or a restart; in the settings: 8)\n" in out
    assert "\n  queued_bytes 1,048,576 (by an operator" in out
    assert await run(world, "tenant", "resume", "nightly") == 0
    assert await run(world, "tenant", "limit", "nightly", "--reset") == 0
    capsys.readouterr()
    assert await run(world, "tenant", "weigh", "nightly", "2.5") == 0
    weighs = "weight 2.5 (by an operator, until `weigh --reset` or a restart; in the settings: 1)"
    assert weighs in capsys.readouterr().out
    assert await run(world, "tenant", "weigh", "nightly", "--reset") == 0
    capsys.readouterr()
    assert await run(world, "tenant", "ls") == 0
    assert "nightly: 0 waiting, 0 running, weight 1, running 8\n" in capsys.readouterr().out
    assert await run(world, "tenant", "show", "nightly", "--json") == 0
    assert json.loads(capsys.readouterr().out)["limits"] == {"running": {"value": 8, "by": "settings"}}
    assert await run(world, "tenant", "cancel", "nightly") == 0
    assert capsys.readouterr().out == "nightly: 0 requests cancelled\n"


async def test_a_higher_limit_is_there_less_what_was_spent(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    tenants = [{"name": "nightly", "limits": {"requests_per_minute": 1, "tokens_per_day": 1000}}]
    await world.gateway(tenants=tenants, store=False)  # earlier tests spent, too
    mine = {"x-tenant-id": "nightly"}
    assert [(await world.chat_with(mine)).status for _ in range(2)] == [200, 429]
    assert await run(world, "tenant", "limit", "nightly", "--rpm", "3") == 0
    assert [(await world.chat_with(mine)).status for _ in range(3)] == [200, 200, 429]
    assert await run(world, "tenant", "limit", "nightly", "--rpm", "9", "--tokens-per-day", "1") == 0
    assert (await world.chat_with(mine)).status == 429
    assert await run(world, "tenant", "limit", "nightly", "--reset") == 0
    capsys.readouterr()
    assert await run(world, "tenant", "show", "nightly") == 0
    assert "tokens_per_day 1,000: " in capsys.readouterr().out


async def test_what_is_left_of_a_tenants_rates(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    limits = {"requests_per_minute": 2, "tokens_per_minute": 600, "tokens_per_day": 86_400, "running": 4}
    await world.gateway(tenants=[{"name": "nightly", "limits": limits}])
    assert await run(world, "tenant", "show", "nightly") == 0
    out = capsys.readouterr().out
    assert "\n  running 4\n" in out
    assert "\n  requests_per_minute 2: 0 used, 2 left\n" in out
    assert [(await world.chat_with({"x-tenant-id": "nightly"})).status for _ in range(2)] == [200, 200]
    await world.until(lambda: not world.picture().running)
    assert await run(world, "tenant", "show", "nightly") == 0
    rates = re.search(
        r"requests_per_minute 2: 2 used, 0 left, more in (\d+)\.\d s, all back in ", capsys.readouterr().out
    )
    assert rates is not None
    assert int(rates[1]) <= 30
    assert await run(world, "tenant", "ls") == 0
    assert ", requests_per_minute 2 (0 left), tokens_per_minute 600 (" in capsys.readouterr().out
    assert await run(world, "tenant", "show", "nightly", "--json") == 0
    budgets = json.loads(capsys.readouterr().out)["budgets"]
    assert list(budgets) == ["requests_per_minute", "tokens_per_minute", "tokens_per_day"]
    day = budgets["tokens_per_day"]
    assert (day["limit"], day["used"] + day["remaining"] - 86_400 in (0, -1), day["next_s"]) == (86_400, True, 0)


async def test_a_test_request_is_sent_and_found_again(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    engine = await world.engine()
    await world.gateway(tenants=[{"name": "nightly"}])
    assert await run(world, "try", "nightly", "sim", "--prompt", "Hello", "--max-tokens", "2") == 0
    out = capsys.readouterr().out
    assert f" to {engine.url.removeprefix('http://')}, one of 1 open" in out.replace("\n", " ")
    assert out.splitlines()[-1].startswith("200: ")
    assert await run(world, "explain", "--find", "nightly completed") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("try-")
    assert ": nightly, sim, completed " in lines[0]
    assert lines[-1] == "1 found, of 1 requests"
    assert await run(world, "explain", lines[0].partition(":")[0]) == 0
    assert "Ended completed" in capsys.readouterr().out
    assert await run(world, "try", "nightly", "nothing") == 1
    assert "\n404: " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("show",), ("pause",), ("resume",), ("limit", "--running", "2"), ("weigh", "2"), ("cancel",)]
)
async def test_a_verb_for_a_tenant_that_is_not_there_fails(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    await world.engine()
    await world.gateway()
    assert await run(world, "tenant", words[0], "nobody", *words[1:]) == 1
    assert capsys.readouterr().err.startswith("penstock: There is no tenant `nobody`: ")


async def test_the_exit_code_of_a_check_is_the_answer_of_the_sentence(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was 3 beside "Is something wrong? No"."""
    clients = await crowded(world)
    assert await run(world, "status", "--check") == 0
    assert "Is something wrong? No: there is more work than room." in capsys.readouterr().out
    await let_go(clients)
    for engine in world.engines:
        await engine.close()
    await world.until(lambda: world.picture().endpoints[0].state is EndpointState.DOWN)
    assert await run(world, "status", "--check") == 3
    assert "Is something wrong? Yes." in capsys.readouterr().out


async def test_output_is_chosen_as_in_other_tools(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    clients = await crowded(world)
    for flags in (["--json"], ["-o", "json"], ["--output", "json"]):
        assert await run(world, "queue", *flags) == 0
        assert json.loads(capsys.readouterr().out)["waiting"] == 3
    assert await run(world, "queue", "-o", "wide") == 0
    assert "w0" in capsys.readouterr().out
    await let_go(clients)


async def test_watching_prints_it_again_until_somebody_leaves(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.engine()
    await world.gateway()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.operator.time.sleep", wait)
    assert await run(world, "status", "--watch") == 130
    assert capsys.readouterr().out.count("Idle: nothing waits") == 3
    assert waits == [2.0] * 3


def test_requests_that_are_alike_are_one_row_with_an_id_for_explain() -> None:
    """`top` printed 35 equal rows, with ids cut so that none could be given to `explain`."""
    name = "0f8fad5b-d9cb-469f-a165-70867728950e"
    row = {"id": name, "tenant": "flood", "band": "standard", "state": "waiting", "waited_s": 2.0, "endpoint": None}
    row |= {"cause": "slots_full", "reason": None, "prompt_tokens": 3, "output_tokens": 0}
    rows = [row, *[{**row, "id": f"other-{at}"} for at in range(34)], {**row, "id": "ann-1", "tenant": "ann"}]
    out = StringIO()
    state = {"requests": {"waiting": rows}, "waiting": 40}
    Console(file=out, width=80).print(views.requests(state, "waiting", 20, 80, grouped=True))
    Console(file=out, width=120).print(views.requests(state, "waiting", 20, 120, grouped=True))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines[:3] == [
        ["waiting", "(+4)", "tenant", "waited", "why"],
        [name, "+34", "flood", "2.0", "s", "slots_full"],
        ["ann-1", "ann", "2.0", "s", "slots_full"],
    ]
    assert lines[4] == [name, "+34", "flood", "standard", "waiting", "2.0", "s", "slots_full"]
