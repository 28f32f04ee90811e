"""What operators see and do: the state in a sentence, who waits and why, verbs that act and are written down."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.core.explain.snapshot import Snapshot
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.failing.incidents import Episode
from penstock.gateway.admin.history import History
from penstock.gateway.admin.phrases import printable, seconds
from penstock.gateway.telemetry.failures import Failures
from tests.gateway.conftest import Client, World, chat, fault, request

EVENTS_MAX = 200
COARSE_S = 10
FINE_SAMPLES = 300
SAMPLES_MAX = 3600

EVIL = "<script>alert(1)</script>"


async def state(world: World) -> dict[str, Any]:
    answer = await world.ask("GET", "/admin/state")
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    return found


async def crowded(world: World, *, tenants: tuple[str, ...] = ("team-a", "team-b"), waiting: int = 3) -> list[Client]:
    """One engine with one slot, taken; others wait."""
    await world.engine(step_s=0.02)
    await world.gateway(slots=1)
    clients = [await world.client(request(body=chat(tokens=4000, stream=True), headers={"x-request-id": "first"}))]
    await world.until(lambda: world.picture().running == 1)
    for at in range(waiting):
        headers = {"x-request-id": f"w{at}", "x-tenant-id": tenants[at % len(tenants)]}
        clients.append(await world.client(request(body=chat(tokens=2, stream=True), headers=headers)))
    await world.until(lambda: world.picture().waiting == waiting)
    return clients


async def verb(world: World, path: str, body: dict[str, Any] | None = None, *, status: int = 200) -> dict[str, Any]:
    answer = await world.ask("POST", f"/admin/{path}", body or b"")
    assert answer.status == status, answer
    found: dict[str, Any] = answer.json()
    return found


async def let_go(clients: list[Client]) -> None:
    for client in clients:
        client.hang_up()


async def test_the_state_opens_with_a_sentence_about_the_waiting_requests(world: World) -> None:
    clients = await crowded(world)
    seen = await state(world)
    assert seen["headline"].startswith(
        "Holding 3 for sim, 2 from team-a: all slots are taken, 1 of 1 on 1 engine. Oldest "
    )
    assert (seen["tone"], seen["waiting"], seen["running"]) == ("busy", 3, 1)
    assert {(row["tenant"], row["waiting"]) for row in seen["tenants"] if row["waiting"]} == {
        ("team-a", 2),
        ("team-b", 1),
    }
    assert [row["cause"] for row in seen["requests"]["waiting"]] == ["slots_full"] * 3
    assert seen["models"][0]["cause"] == seen["endpoints"][0]["closed"] == "slots_full"
    assert b"hello" not in (await world.ask("GET", "/admin/state")).body  # nobody's prompt
    await let_go(clients)


async def test_a_waiting_request_is_explained(world: World) -> None:
    clients = await crowded(world)
    told = (await world.ask("GET", "/admin/requests/w1")).json()
    assert (told["explanation"]["waits_for"], told["explanation"]["tenant"]) == ("slots_full", "team-b")
    assert any("all slots it may use are taken (slots_full)" in line for line in told["story"])
    now = "Waits now: all slots it may use are taken (slots_full), at 1 endpoint; "
    assert any(line.startswith(now) for line in told["story"])
    missing = await world.ask("GET", "/admin/requests/nobody")
    assert (missing.status, missing.error()["code"]) == (404, "request_not_found")
    await let_go(clients)


async def test_an_answered_request_is_explained_with_what_decided_it(world: World) -> None:
    await world.engine()
    await world.gateway()
    await world.ask(body=chat(), headers={"x-request-id": "done/1"})
    told = (await world.ask("GET", "/admin/requests/done%2F1")).json()
    assert (told["explanation"]["state"], told["explanation"]["output_tokens"]) == ("completed", 3)
    assert told["story"][1] in ("Waited 0 s.", "Waited 0 ms.")
    assert " one of 1 open. " in told["story"][2]


async def test_a_pause_holds_and_a_resume_lets_go(world: World) -> None:
    await world.engine()
    await world.gateway()
    assert (await verb(world, "pause", {"model": "sim"}))["paused"] == ["sim"]
    client = await world.streaming()
    await world.until(lambda: world.picture().waiting == 1)
    seen = await state(world)
    assert seen["lead"].startswith("Paused by an operator (127.0.0.1, ")
    assert seen["lead"].endswith(" ago): sim.")
    assert seen["headline"].startswith(f"{seen['lead']} Holding 1 for sim: an operator paused the model")
    assert seen["tone"] == "bad"
    await verb(world, "resume")
    assert (await client.answer()).status == 200
    assert (await state(world))["paused"] == []


async def test_a_drain_refuses_newcomers_and_serves_queued_requests(world: World) -> None:
    await world.engine()
    await world.gateway()
    await verb(world, "drain", {"model": "sim"})
    assert (await world.ask("GET", "/ready")).status == 200, "another model may be served"
    await verb(world, "drain")
    assert (await world.chat()).error()["code"] == "draining"
    ready = await world.ask("GET", "/ready")
    assert (ready.status, ready.json()["status"]) == (503, "draining")
    picture = await state(world)
    assert picture["lead"].startswith("Drained by an operator (127.0.0.1, ")
    assert picture["lead"].endswith(" ago): nothing new is let in.")
    assert (picture["tone"], "`penstock resume`" in picture["advice"]) == ("bad", True)
    await verb(world, "resume", {})
    assert (await world.ask("GET", "/ready")).status == 200
    assert (await world.chat()).status == 200


async def test_a_misspelt_model_stops_nothing(world: World) -> None:
    await world.engine()
    await world.gateway()
    for name in ("pause", "drain"):
        await verb(world, name, {"modl": "sim"}, status=400)
        refused = await verb(world, name, {"model": "simm"}, status=404)
        assert refused["error"]["code"] == "model_not_found"
    assert (await world.chat()).status == 200


async def test_a_bumped_request_goes_next_and_a_cancelled_one_is_refused(world: World) -> None:
    clients = await crowded(world, tenants=("team-a",))
    await verb(world, "requests/w2/bump")
    await verb(world, "requests/w0/cancel")
    refused = await clients[1].answer()
    assert (refused.status, refused.error()["code"]) == (503, "operator")
    await verb(world, "requests/first/cancel")
    assert b'"code":"operator"' in (await clients[0].answer()).body
    assert (await clients[3].answer()).status == (await clients[2].answer()).status == 200
    before = (await world.ask("GET", "/admin/requests/w1")).json()["explanation"]["before"]
    assert [(served["why"], served["requests"]) for served in before] == [("bumped", 1)]
    assert (await verb(world, "requests/w0/bump", status=404))["error"]["code"] == "request_not_found"


async def test_what_operators_do_stands_in_the_events_and_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await world.engine()
    await world.gateway()
    await verb(world, "pause", {"model": "sim", "token": "secret"})
    await verb(world, "pause", {"model": 7}, status=400)
    await verb(world, "resume")
    texts = [event["text"] for event in (await state(world))["events"] if event["kind"] == "operator"]
    assert texts == [
        "resume (by 127.0.0.1)",
        "pause model=7 (by 127.0.0.1): refused, bad_request",
        "pause model=sim (by 127.0.0.1)",
    ]
    assert [record.message for record in caplog.records if "operator: pause model=sim" in record.message]
    assert "secret" not in caplog.text


async def test_an_endpoint_that_dies_becomes_an_event(world: World) -> None:
    engine = await world.engine()
    await world.gateway()
    world.gate.watch.tick()
    await engine.close()
    world.engines.remove(engine)
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    world.gate.watch.tick()
    seen = await state(world)
    assert seen["events"][0]["text"].endswith(" is down")
    assert re.search(
        r" is down \(for [\d.]+ m?s\)\. Idle: nothing waits, nothing runs\. 0 of 1 engines are up\.", seen["headline"]
    )
    assert seen["endpoints"][0]["state_s"] < 10
    assert seen["tone"] == "bad"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("fails", "warned"),
    [("dies", r"endpoint \S+ is down: .+"), ("errs", r"endpoint: \S+ is ejected after failures: .+")],
)
async def test_an_endpoint_that_fails_is_a_warning_and_its_return_is_not(
    world: World, caplog: pytest.LogCaptureFixture, fails: str, warned: str
) -> None:
    caplog.set_level(logging.INFO, "penstock.gateway")
    engine = await world.engine()
    await world.gateway(retry={"max_attempts": 1}, health={"probe_interval": 0.1, "eject_after": 3, "eject_for": "5s"})
    assert (await world.chat()).status == 200
    assert not warnings(caplog)
    if fails == "dies":
        await engine.close()
    else:
        fault(engine, "error")
        for _ in range(3):
            await world.chat()
    await asyncio.sleep(2.0)  # virtual: the watch looks once a second
    (line,) = [line for line in warnings(caplog) if " is " in line]
    assert re.fullmatch(warned, line)
    caplog.clear()
    if fails == "dies":
        await world.restart(engine)
    else:
        fault(engine, "none")
    await asyncio.sleep(10.0)
    assert (await world.chat()).status == 200
    await asyncio.sleep(2.0)
    assert not warnings(caplog)
    assert [record.getMessage() for record in caplog.records if record.getMessage().endswith(" is up")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_change_of_the_judge_of_an_engines_size_becomes_one_event(world: World) -> None:
    engine = await world.engine(max_num_seqs=4, step_s=0.02)
    await world.gateway(slots="auto")
    client = await world.client(request(body=chat(tokens=4000, stream=True)))
    await world.until(lambda: world.picture().endpoints[0].slots_by == "page")
    world.gate.watch.tick()
    fault(engine, "metrics_lie", value={"missing": True})
    await world.until(lambda: world.picture().endpoints[0].gauges in ("gone", "old"))
    assert (await world.chat(stream=True, tokens=2)).status == 200
    for _ in range(2):
        world.gate.watch.tick()
    seen = await state(world)
    texts = [event["text"] for event in seen["events"] if "size" in event["text"]]
    assert texts == [f"{seen['endpoints'][0]['name']}'s size is now found by our own streams"]
    assert seen["endpoints"][0]["slots_by"] == "streams"
    client.hang_up()
    await world.idle()


async def test_what_runs_on_where_nothing_more_goes_takes_none_of_the_slots(world: World) -> None:
    """A drained endpoint's requests were counted against the others' slots: "running 19 of 16"."""
    clients = await crowded(world, waiting=0)
    seen = await state(world)
    assert (seen["running"], seen["slots_taken"], seen["slots"]) == (1, 1, 1)
    await verb(world, f"endpoints/{seen['endpoints'][0]['name']}/drain")
    seen = await state(world)
    assert (seen["running"], seen["slots_taken"], seen["slots"]) == (1, 0, 0)
    world.gate.watch.tick()
    assert (await state(world))["now"]["slots"] == 0
    await let_go(clients)


async def test_a_queue_is_an_event_when_it_begins_and_when_it_is_over(world: World) -> None:
    clients = await crowded(world)
    episode, picture = Episode(), world.picture()
    began_s = world.gate.driver.now()
    assert episode.look(picture, began_s) is None  # nobody has waited for long
    later = msgspec.structs.replace(picture.bands[-2], waiting=3, oldest_wait_s=2.5)
    long = msgspec.structs.replace(picture, bands=[later])
    assert (
        episode.look(long, began_s + 2.5) == "queue for 2.5 s by now for sim: all slots are taken, 1 of 1 on 1 engine"
    )
    assert episode.look(long, began_s + 3.5) is None
    over = episode.look(msgspec.structs.replace(picture, bands=[]), began_s + 12.0)
    assert over == "queue over after 12.0 s: 3 waited at the most, the longest wait was 2.5 s"
    await let_go(clients)


# --- listeners --------------------------------------------------------------------------------------------------------


async def frame(client: Client) -> dict[str, Any]:
    piece = await client.piece()
    data = next(line for line in piece.split(b"\n") if line.startswith(b"data: "))
    found: dict[str, Any] = json.loads(data[6:])
    return found


async def test_listeners_get_a_frame_at_once_and_one_per_tick(world: World) -> None:
    await world.engine()
    await world.gateway()
    clients = [await world.client(request("GET", "/admin/events")) for _ in range(2)]
    for client in clients:
        assert (await client.head()).header("content-type") == "text/event-stream"
        assert (await frame(client))["lead"] == "Idle: nothing waits, nothing runs."
    world.gate.watch.tick()
    assert (await frame(clients[0]))["at"] == (await frame(clients[1]))["at"]  # encoded once
    await let_go(clients)
    await world.until(lambda: not world.gate.watch._listeners)


async def test_a_listener_that_does_not_read_is_dropped(world: World) -> None:
    await world.engine()
    await world.gateway()
    client = await world.client(request("GET", "/admin/events"))
    await client.head()
    watch = world.gate.watch
    for _ in range(20_000):
        if not watch._listeners:
            break
        watch.tick()
        await asyncio.sleep(0)
    assert not watch._listeners
    client.hang_up()


async def test_listeners_are_bounded(world: World) -> None:
    await world.engine()
    await world.gateway()
    clients = [await world.client(request("GET", "/admin/events")) for _ in range(32)]
    for client in clients:
        assert (await client.head()).status == 200
    refused = await world.ask("GET", "/admin/events")
    assert (refused.status, refused.error()["code"]) == (429, "overload")
    await let_go(clients)


async def test_a_gateway_that_stops_ends_its_listeners(world: World) -> None:
    await world.engine()
    gate = await world.gateway()
    client = await world.client(request("GET", "/admin/events"))
    await client.head()
    await frame(client)
    gate.watch.close()
    await client.whole()
    client.hang_up()


# --- the page's files, and who may have them --------------------------------------------------------------------------


async def test_the_page_comes_with_a_policy_that_lets_nothing_foreign_in(world: World) -> None:
    await world.engine()
    await world.gateway(admin={"token": "all-of-it"})
    for path, kind in (("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")):
        answer = await world.ask("GET", f"/admin/{path}")
        assert (answer.status, (answer.header("content-type") or "").split(";")[0]) == (200, kind)
        policy = answer.header("content-security-policy") or ""
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert b"http://" not in answer.body.replace(b"http://gpu-7:8000", b"")
        assert b"https://" not in answer.body
    assert (await world.ask("GET", "/admin")).header("location") == "admin/"
    for path in ("state", "events", "history", "requests/x"):
        assert (await world.ask("GET", f"/admin/{path}")).status == 401


async def test_a_link_to_the_page_may_be_followed_from_anywhere_but_nothing_may_be_asked(world: World) -> None:
    await world.engine()
    await world.gateway()
    foreign = {"sec-fetch-site": "cross-site"}
    assert (await world.ask("GET", "/admin/", headers=foreign)).status == 200
    assert (await world.ask("GET", "/admin/state", headers=foreign)).status == 403
    assert (await world.ask("POST", "/admin/pause", headers=foreign)).status == 403


# --- names that callers choose ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [EVIL, "x" * 10_000, "מִסְפָּר\u202eevil", "a b\tc"], ids=["script", "long", "rtl", "tab"])
async def test_hostile_tenant_names_break_neither_state_nor_metrics_nor_log(
    world: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clients = await crowded(world, tenants=(name.encode().decode("latin-1"),), waiting=1)
    answer = await world.ask("GET", "/admin/state")
    assert len(answer.body) < 20_000
    row = next(row for row in answer.json()["tenants"] if row["waiting"])
    assert len(row["tenant"]) <= 200
    assert row["tenant"].isprintable()
    world.gate.watch.tick()
    told = (await world.ask("GET", "/admin/requests/w0")).json()
    assert all(line.isprintable() for line in told["story"])
    assert (await world.ask("GET", "/metrics")).status == 200
    assert all(record.getMessage().isprintable() and len(record.getMessage()) < 1_000 for record in caplog.records)
    await let_go(clients)


def test_a_text_stays_on_its_line() -> None:
    assert printable("a\nb\u202ec\x1b[31m") == "a·b·c·[31m"
    assert printable("x" * 1_000, 10) == "xxxxxxxxx…"
    log = EventLog(wall=lambda: 7.0)
    for at in range(EVENTS_MAX + 5):
        log.note("queue", f"line {at}\r\n2026-01-01 INFO forged")
    assert len(log.latest()) == EVENTS_MAX
    assert log.latest(1)[0].text == f"line {EVENTS_MAX + 4}··2026-01-01 INFO forged"


def test_durations_are_in_words() -> None:
    assert [seconds(value) for value in (0.25, 4.24, 125, 7_500)] == ["250 ms", "4.2 s", "2 min 5 s", "2 h 5 min"]


def test_the_history_keeps_an_hour_and_thins_what_is_old_without_losing_a_spike() -> None:
    history = History()
    for at in range(SAMPLES_MAX + 100):
        history.add(_picture(waiting=99 if at == 200 else 1), Failures(), float(at))
    told: Any = history.curves()
    assert len(told["fine"]["waiting"]) == FINE_SAMPLES
    assert len(told["coarse"]["waiting"]) == (SAMPLES_MAX - FINE_SAMPLES) // COARSE_S
    assert max(told["coarse"]["waiting"]) == 99


@pytest.mark.parametrize("samples", [1, FINE_SAMPLES + 25, SAMPLES_MAX + 100])
def test_the_history_is_told_in_the_order_in_which_it_was(samples: int) -> None:
    history, picture = History(), _picture(waiting=0)
    assert history.latest() == {}
    for at in range(samples):
        history.add(msgspec.structs.replace(picture, waiting=at), Failures(), float(at))
    told: Any = history.curves()
    kept = range(max(0, samples - SAMPLES_MAX), samples)
    assert told["fine"]["waiting"] == list(kept[-FINE_SAMPLES:])
    old = kept[:-FINE_SAMPLES]
    assert told["coarse"]["waiting"] == list(old[len(old) % COARSE_S :])[COARSE_S - 1 :: COARSE_S]
    assert history.latest()["waiting"] == samples - 1


def _picture(waiting: int) -> Snapshot:
    empty = Scheduler(SchedulerSettings(), random=Random(1)).snapshot(now=0.0)
    return msgspec.structs.replace(empty, waiting=waiting)
