"""New settings while it runs: what rules from when on, what survives, what is refused, and that none is forgotten."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main as cli
from penstock.config.explain import nested, sections
from penstock.config.load import from_mapping
from penstock.config.model import Settings
from penstock.config.reloading import RULES, changes, rule
from penstock.gateway.admin.auth import AdminAuth
from penstock.gateway.endpoints.catalog import Catalog
from penstock.gateway.identity.callers import Callers
from penstock.gateway.identity.origins import Origins
from penstock.gateway.proxy.app import App
from penstock.gateway.proxy.heartbeat import Heartbeats
from penstock.gateway.proxy.ties import Affinities
from penstock.gateway.serve import Gateway
from penstock.gateway.telemetry.metrics import Metrics
from penstock.gateway.telemetry.reporting import Reporting
from tests.gateway.conftest import Answer, Client, World, chat, follower, request

BANDS = [{"name": "high"}, {"name": "low"}]


async def reload(world: World, **settings: Any) -> Answer:
    """These settings are in the file now, and it is read again."""
    world.document |= settings
    return await world.ask("POST", "/admin/reload")


async def reloaded(world: World, **settings: Any) -> list[str]:
    answer = await reload(world, **settings)
    assert answer.status == 200, answer
    changed: list[str] = answer.json()["changed"]
    return changed


# --- what it must show --------------------------------------------------------------------------------------------


async def test_five_hundred_streams_run_on_and_new_weights_rule_within_a_second(world: World) -> None:
    calm, busy = await world.engine(step_s=0.2, max_num_seqs=512), await world.engine(model="other", step_s=0.02)
    endpoints = [{"url": calm.url, "slots": 512}, {"url": busy.url, "slots": 2}]
    tenants = [{"name": "a", "weight": 1}, {"name": "b", "weight": 1}]
    await world.gateway(endpoints=endpoints, tenants=tenants, bands=[{"name": "standard"}])
    streams = await asyncio.gather(*(world.streaming(f"s{n}", tokens=16) for n in range(500)))
    heads = await asyncio.gather(*(stream.head() for stream in streams))
    assert {head.status for head in heads} == {200}
    other = chat(model="other", tokens=2)
    waiting = [await world.client_for(other, {"x-tenant-id": tenant}) for tenant in "ab" * 150]
    await world.until(lambda: len(busy.log.entries) >= 20)

    answer = await reload(world, tenants=[{"name": "a", "weight": 1}, {"name": "b", "weight": 9}])
    assert answer.json()["changes"] == [{"key": "tenants[b].weight", "before": "1", "after": "9"}]
    at = len(busy.log.entries)
    begun_s = world.gate.driver.now()
    await world.until(lambda: len(busy.log.entries) >= at + 2 + 30)
    assert world.gate.driver.now() - begun_s < 1.0 + 30 * 0.1, "the bound for so many, and a second to begin with"
    served = Counter(entry.headers["x-tenant-id"] for entry in list(busy.log.entries)[at + 2 : at + 32])
    assert served["b"] >= 26, "nine of ten"

    for client in waiting:
        client.hang_up()
    bodies = await asyncio.gather(*(rest_of(stream) for stream in streams))
    assert all(body.endswith(b"data: [DONE]\n\n") and body.count(b'"content"') >= 16 for body in bodies)
    assert {entry.outcome for entry in calm.log.entries} == {"finished"}


async def test_new_weights_are_shown_at_once_as_the_tree_divides_by_them(world: World) -> None:
    def weighing(runs: float, waits: float, anonymous: float) -> dict[str, Any]:
        tenants = [{"name": "runs", "weight": runs}, {"name": "waits", "weight": waits}]
        return {"tenants": tenants, "identity": {"anonymous": {"weight": anonymous}}}

    await world.engine(step_s=0.2)
    await world.gateway(slots=1, **weighing(1, 1, 1))
    clients: list[Client] = []
    for tenant in ("runs", "waits", "somebody"):
        clients.append(await world.client_for(chat(tokens=50), {"x-tenant-id": tenant}))
        await world.until(lambda: sum(flow.running + flow.waiting for flow in world.picture().flows) == len(clients))
    await reloaded(world, **weighing(3, 4, 5))
    state = (await world.ask("GET", "/admin/state")).json()
    assert {flow["tenant"]: flow["weight"] for flow in state["tenants"]} == {"runs": 3, "waits": 4, "somebody": 5}
    for client in clients:
        client.hang_up()


async def rest_of(stream: Client) -> bytes:
    await stream.whole()
    return stream.seen


async def test_bad_settings_change_nothing_and_say_why(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "a"}])
    before = await world.metric("penstock_config_info")
    shown = world.gate.reload.hash
    answer = await reload(world, tenants=[{"name": "a", "wieght": 2}], bands=[{"name": "x", "ceiling": 3}])
    assert answer.status == 422
    assert answer.json()["error"]["code"] == answer.header("x-penstock-reason") == "bad_settings"
    assert answer.json()["error"]["message"].startswith("Nothing was changed. ")
    paths = {problem["path"] for problem in answer.json()["problems"]}
    assert {"tenants[0].wieght", "bands[0].ceiling"} <= paths
    assert "did you mean `weight`?" in answer.body.decode()
    assert before == 1.0 == await world.metric("penstock_config_info", hash=shown)
    assert await world.metric("penstock_config_reload_failed") == 1
    state = (await world.ask("GET", "/admin/state")).json()
    assert state["settings"] == shown
    assert any(event["text"].startswith("not reloaded, nothing changed: ") for event in state["events"])
    assert any("wieght" in record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert (await world.chat()).status == 200

    assert await reloaded(world, tenants=[{"name": "a", "weight": 2}], bands=BANDS, default_band="low")
    assert await world.metric("penstock_config_reload_failed") == 0
    assert await world.metric("penstock_config_info", hash=shown) == 0.0


async def test_a_reload_that_needs_a_restart_is_refused_as_a_whole(world: World) -> None:
    await world.engine()
    await world.gateway()
    answer = await reload(
        world,
        listen="127.0.0.1:1",
        queue={"max_requests": 7},
        fairness={"levels": ["tenant", "user"]},
        retry={"max_attempts": 5},
    )
    assert answer.status == 409
    assert answer.json()["error"]["code"] == "needs_restart"
    assert [problem["path"] for problem in answer.json()["problems"]] == ["listen", "fairness.levels"]
    assert world.gate.reload.settings.retry.max_attempts == 3
    assert await reloaded(world, listen="127.0.0.1:0", queue={"max_requests": 7}, fairness={}) == [
        "queue.max_requests",
        "retry.max_attempts",
    ]


async def test_a_hangup_signal_reloads_and_the_gateway_serves_on(world: World) -> None:
    await world.engine()
    gate = await world.gateway()
    gate.listen_to_signals()
    world.document |= {"queue": {"max_requests": 5}}
    os.kill(os.getpid(), signal.SIGHUP)
    await world.until(lambda: gate.reload.settings.queue.max_requests == 5)
    world.document |= {"queue": {"max_requests": -5}}
    os.kill(os.getpid(), signal.SIGHUP)
    await world.until(lambda: "queue.max_requests" in gate.reload.events.latest()[0].text)
    assert gate.reload.settings.queue.max_requests == 5
    assert (await world.chat()).status == 200
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


# --- what survives ------------------------------------------------------------------------------------------------


async def test_queued_requests_keep_their_place_while_bands_change(world: World) -> None:
    await world.engine()
    await world.gateway(slots=1, bands=BANDS, default_band="low", identity={"max_band": "high"})
    first = await world.streaming(tokens=200)
    await first.begun()
    waiting = [await world.client_for(chat(tokens=1), {"x-penstock-band": band}) for band in ("high", "low", "high")]
    await world.until(lambda: world.picture().waiting == 3)
    changed = await reloaded(world, bands=[{"name": "top"}, {"name": "low"}, {"name": "high"}], default_band="high")
    assert changed == ["bands[top]", "bands", "default_band"]
    assert [(band.name, band.waiting) for band in world.picture().bands] == [("top", 0), ("low", 1), ("high", 2)]
    newcomer = await world.client_for(chat(tokens=1), {"x-penstock-band": "top"})
    await world.until(lambda: world.picture().waiting == 4)
    page = (await world.ask("GET", "/metrics")).body.decode()
    assert 'penstock_queued_requests{band="high",model="sim"} 3.0' in page
    first.hang_up()
    answers = [await client.answer() for client in (*waiting, newcomer)]
    assert [answer.status for answer in answers] == [200] * 4
    assert answers[3].header("x-penstock-band") == "high", "`identity.max_band` is still that"
    order = [entry.id for entry in world.engines[0].log.entries][1:]
    ids = [answer.header("x-request-id") for answer in answers]
    assert order[0] == ids[1], "the band of the second is above the others' now"


async def test_a_removed_setting_is_listed_as_removed(world: World) -> None:
    await world.engine()
    await world.gateway(bands=[{"name": "high"}, {"name": "low"}], default_band="high", retry={"budget": 0.2})
    world.document |= {"bands": [{"name": "high"}, {"name": "new"}], "retry": {"budget": 0.5}}
    told = (await world.ask("POST", "/admin/reload")).json()
    assert told["changes"] == [
        {"key": "bands[low]", "before": None, "after": "removed"},
        {"key": "bands[new]", "before": None, "after": "added"},
        {"key": "retry.budget", "before": "0.2", "after": "0.5"},
    ]


async def test_prefixes_shares_and_drains_survive(world: World) -> None:
    await world.engine()
    await world.engine()
    await world.gateway(routing={"policy": "prefix"})
    first = await world.chat("a long beginning " * 100)
    home = first.header("x-penstock-endpoint")
    name = next(e.name for e in world.picture().endpoints if e.name != home)
    await world.ask("POST", f"/admin/endpoints/{name}/drain")
    shares = world.picture().flows
    assert await reloaded(world, retry={"budget": 0.5}, tenants=[{"name": "x"}]) == ["retry.budget", "tenants[x]"]
    assert {flow.tenant for flow in shares} <= {flow.tenant for flow in world.picture().flows}
    assert next(e.state for e in world.picture().endpoints if e.name == name) == "draining"
    await world.ask("POST", f"/admin/endpoints/{name}/resume")
    for _ in range(4):
        assert (await world.chat("a long beginning " * 100)).header("x-penstock-endpoint") == home


# --- what changes -------------------------------------------------------------------------------------------------


async def test_endpoints_and_aliases_come_and_go(world: World) -> None:
    old, new = await world.engine(), await world.engine()
    entries = [{"url": old.url, "slots": 4}]
    await world.gateway(endpoints=entries)
    stream = await world.streaming(tokens=150)
    await stream.begun()
    changed = await reloaded(world, endpoints=[{"url": new.url, "name": "new"}], models={"gpt": {"to": "sim"}})
    assert changed == [f"endpoints[{old.url[7:]}]", "endpoints[new]", "models.gpt"]
    await world.until(lambda: any(e.name == "new" and e.models for e in world.picture().endpoints))
    assert (await world.chat(model="gpt")).header("x-penstock-endpoint") == "new"
    assert (await rest_of(stream)).endswith(b"data: [DONE]\n\n"), "what runs at the old one ends there"
    await world.until(lambda: [e.name for e in world.picture().endpoints] == ["new"])


@pytest.mark.parametrize("how", ["its endpoint", "its name", "its alias"])
async def test_a_model_that_is_dropped_is_unknown_at_once_also_to_what_waits_for_it(world: World, how: str) -> None:
    kept, dropped = await world.engine(), await world.engine(model="two", step_s=0.01)
    models: dict[str, Any] = {
        "its endpoint": "auto",
        "its name": ["two", "three"],
        "its alias": {"two": "two", "three": "two"},
    }
    left: dict[str, Any] = {"its name": ["three"], "its alias": {"three": "two"}}
    first = {"url": kept.url, "name": "kept"}
    second = {"url": dropped.url, "name": "dropped", "slots": 1, "engine": "vllm"}
    before = [first, second | {"models": models[how]}]
    after = [first, second | {"models": left[how]}] if how in left else [first]
    await world.gateway(endpoints=before)
    stream = await world.streaming(model="two", tokens=200)
    await stream.begun()
    waiting = await world.client_for(chat(model="two"))
    await world.until(lambda: world.picture().waiting == 1)
    await reloaded(world, endpoints=after)
    told = [(await waiting.answer()).error()["code"], (await world.chat(model="two")).error()["code"]]
    assert told == ["model_not_found", "model_not_found"]
    assert (await rest_of(stream)).endswith(b"data: [DONE]\n\n"), "what runs there ends there"
    assert (await world.chat(model="two")).error()["code"] == "model_not_found"
    await reloaded(world, endpoints=before)
    assert (await world.chat(model="two", tokens=1)).status == 200


async def test_a_model_that_is_dropped_is_waited_for_if_discovery_may_bring_it_back(
    world: World, tmp_path: Path
) -> None:
    kept, moved = await world.engine(), await world.engine(model="two")
    endpoints = [{"url": kept.url, "name": "kept"}, {"url": moved.url, "name": "moved"}]
    await world.gateway(endpoints=endpoints)
    listed = tmp_path / "endpoints.yaml"
    listed.write_text("endpoints: []\n")
    await reloaded(world, endpoints=endpoints[:1], discovery=[{"file": str(listed)}])
    waiting = await world.client_for(chat(model="two"))
    await world.until(lambda: world.picture().waiting == 1)
    listed.write_text(f"endpoints: [{{url: '{moved.url}', name: again}}]\n")
    assert (await waiting.answer()).status == 200


async def test_keys_limits_and_admin_tokens_change(world: World) -> None:
    await world.engine()
    key = "pk-" + "k" * 43
    hashed = "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    await world.gateway(identity={"require_key": True}, tenants=[{"name": "a", "keys": ["sha256:" + "0" * 64]}])
    with_key = {"authorization": f"Bearer {key}"}
    assert (await world.chat_with(with_key)).status == 401
    assert await reloaded(
        world,
        tenants=[{"name": "a", "keys": [hashed], "limits": {"requests_per_minute": 2}}],
        admin={"token": "s3cret-t0k"},
    ) == ["tenants[a].keys", "tenants[a].limits.requests_per_minute", "admin.token"]
    assert [(await world.chat_with(with_key)).status for _ in range(3)] == [200, 200, 429]
    assert (await world.ask("POST", "/admin/reload")).status == 401
    secret = {"authorization": "Bearer s3cret-t0k"}
    answer = await world.ask("POST", "/admin/reload", headers=secret)
    assert answer.json() == {"hash": world.gate.reload.hash, "changed": [], "changes": []}
    state = (await world.ask("GET", "/admin/state", headers=secret)).body
    assert b"s3cret-t0k" not in state
    assert hashed.encode() not in state


async def test_a_reload_starts_and_stops_watching_a_file_of_endpoints(world: World, tmp_path: Path) -> None:
    fixed, found = await world.engine(), await world.engine()
    listed = tmp_path / "engines.yaml"
    listed.write_text(f"[{{url: '{found.url}', name: found}}]")
    await world.gateway(endpoints=[{"url": fixed.url, "name": "fixed"}])

    def names() -> list[str]:
        return [endpoint.name for endpoint in world.picture().endpoints]

    def sources() -> list[str]:
        return [view.source for view in world.gate.endpoints.views()]

    assert await reloaded(world, discovery=[{"file": str(listed)}]) == ["discovery[0]"]
    await world.until(lambda: names() == ["fixed", "found"])
    assert await reloaded(world, discovery=[{"file": {"path": str(listed), "env": ["A_KEY"]}}]) == [
        "discovery[0].file.env"
    ]
    assert names() == ["fixed", "found"], "what was found stands until the source tells something else"
    second = tmp_path / "more.yaml"
    second.write_text(listed.read_text())
    both = [{"file": str(second)}, {"file": {"path": str(listed), "env": ["A_KEY"]}}]
    await reloaded(world, discovery=both)
    await world.until(lambda: sources() == ["settings", f"file {second}"])
    await reloaded(world, discovery=both[::-1])
    assert sources() == ["settings", f"file {listed}"], "the order of the settings is that of precedence"
    await reloaded(world, discovery=both[1:])
    assert await reloaded(world, discovery=[]) == ["discovery[0]"]
    await world.until(lambda: names() == ["fixed"])
    answer = await reload(world, discovery=[{"dns": "a.test:1"}, {"dns": {"name": "a.test", "port": 1}}])
    assert answer.status == 422
    assert names() == ["fixed"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the certificate is made by openssl")
async def test_a_renewed_certificate_is_used_for_new_connections(world: World, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(cert, key)
    await world.engine()
    await world.gateway(tls={"cert": str(cert), "key": str(key)})
    first = await shown_certificate(world)
    make_certificate(cert, key)
    await reload_by_tls(world)
    second = await shown_certificate(world)
    assert second != first
    key.write_text("nothing of use")
    answer = await reload_by_tls(world)
    assert answer.status == 422
    assert "tls: the certificate or its key can't be used" in answer.json()["error"]["message"]
    assert await shown_certificate(world) == second
    world.document["tls"] = {}
    assert (await reload_by_tls(world)).json()["problems"][0]["path"] == "tls"


def make_certificate(cert: Path, key: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=gateway"
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)


async def reload_by_tls(world: World) -> Answer:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = Client(*await asyncio.open_connection("127.0.0.1", world.port, ssl=context))
    client.send(request(path="/admin/reload", headers={"authorization": f"Bearer {world.gate.own_token.token}"}))
    answer = await client.answer()
    client.writer.close()
    return answer


async def shown_certificate(world: World) -> str:
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", world.port))


async def test_the_command_prints_changes_and_errors(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    await world.gateway()
    world.document |= {"queue": {"max_wait": "30s"}}
    assert await asyncio.to_thread(cli.main, ["reload", "--url", world.url]) == 0
    assert capsys.readouterr().out == f"queue.max_wait 60 → 30\n1 change; settings {world.gate.reload.hash}\n"
    world.document |= {"queue": {"max_wait": "-1s"}}
    assert await asyncio.to_thread(cli.main, ["reload", "--url", world.url]) == 1
    assert capsys.readouterr().err.startswith("penstock: Nothing was changed. queue.max_wait: ")


# --- none is forgotten --------------------------------------------------------------------------------------------


# Every setting that a reload follows, changed at least once; together they are gone through one after another.
def every_limit(least: int) -> dict[str, int]:
    names = ("running", "queued", "queued_bytes", "queued_tokens")
    rates = ("requests_per_minute", "tokens_per_minute", "tokens_per_day")
    return {name: least + at for at, name in enumerate((*names, *rates))}


EVERYTHING: list[dict[str, Any]] = [
    {
        "models": {
            "gpt": {"to": "qwen", "band": "end"},
            "own": {"prices": {"prompt": 2, "cached_prompt": 1, "completion": 3}, "fallback": ["qwen"]},
            "both": {"split": {"qwen": 3, "own": 1}},
        },
        "queue": {
            "max_requests": 9,
            "max_bytes": 99,
            "max_tokens": 999,
            "max_wait": 8,
            "empty_pool_wait": 7,
            "heartbeat_after": 2,
            "drain_delay": 1,
            "drain_timeout": 3,
            "stop_timeout": 4,
            "enabled": False,
        },
        "bands": [
            {"name": "top", "max_engine_waiting": 9, "deadline": 5, "max_time_per_output_token": 0.5, "max_wait": 9},
            {
                "name": "mid",
                "priority": 3,
                "ceiling": 0.7,
                "min_share": 0.1,
                "max_requests": 1,
                "max_bytes": 2,
                "max_tokens": 3,
            },
            {
                "name": "end",
                "best_effort": True,
                "preemptible": True,
                "shed_target": 3,
                "fairness": {"policy": "weighted_tokens"},
                "ordering": "shortest_first",
            },
        ],
        "default_band": "mid",
        "fairness": {"policy": "round_robin"},
        "ordering": "deadline",
        "admission": {
            "slots_initial": 3,
            "max_kv_usage": 0.5,
            "max_prefill_tokens": 50,
            "max_time_per_output_token": 1,
            "reserved_slots": 0.2,
            "engine_priority": True,
            "max_preempted_share": 0.1,
        },
        "routing": {
            "policy": "predicted_ttft",
            "affinity_escape": 1,
            "affinity_wait": 0.5,
            "price_weight": 2,
            "prefix_chunk": 99,
            "prefix_group": 4,
            "adapter_affinity": False,
        },
        "sessions": {"memory": "off", "wait": 100},
        "retry": {"max_attempts": 9, "budget": 0.9},
        "usage": {"keep": 3600, "prices": {"gpt": {"prompt": 1, "cached_prompt": 0.1, "completion": 2}}},
        "health": {
            "probe_interval": 9,
            "eject_after": 9,
            "eject_for": 2,
            "eject_for_max": 90,
            "panic_threshold": 0.9,
        },
        "timeouts": {
            "connect": 1,
            "first_byte": 2,
            "between_bytes": 3,
            "client_header": 4,
            "client_idle": 300,
            "client_body": 5,
            "client_body_total": 7,
            "background": 8,
            "client_write": 6,
        },
        "limits": {"max_body": 1000, "max_header": 1001, "max_connections": 1002, "max_connections_per_address": 900},
        "accounting": {"usage": "off"},
        "tenants": [
            {
                "name": "a",
                "weight": 5,
                "max_band": "top",
                "keys": [
                    {
                        "hash": "sha256:" + "1" * 64,
                        "name": "ci",
                        "models": ["qwen*"],
                        "max_prompt_tokens": 1,
                        "max_output_tokens": 2,
                        "expires": "2030-01-01",
                        "limits": every_limit(20),
                    }
                ],
                "limits": {
                    "running": 1,
                    "queued": 2,
                    "queued_bytes": 3,
                    "queued_tokens": 4,
                    "requests_per_minute": 5,
                    "tokens_per_minute": 6,
                    "tokens_per_day": 7,
                    "models": {"qwen": every_limit(30)},
                },
            }
        ],
        "identity": {
            "require_key": True,
            "tenant_header": "x-t",
            "user_header": "x-u",
            "band_header": "x-b",
            "max_band": "end",
            "max_dynamic": 3,
            "trusted_proxies": ["10.0.0.0/8"],
            "distinguish": ["address"],
            "anonymous": {
                "weight": 3,
                "limits": {
                    "running": 7,
                    "queued": 8,
                    "queued_bytes": 9,
                    "queued_tokens": 10,
                    "requests_per_minute": 11,
                    "tokens_per_minute": 12,
                    "tokens_per_day": 13,
                },
            },
            "allowed_hosts": ["penstock.example"],
            "allowed_origins": ["https://chat.example"],
            "jwt": {
                "issuer": "http://127.0.0.1:9",
                "audience": ["penstock"],
                "jwks_url": "http://127.0.0.1:9/keys",
                "algorithms": ["ES256"],
                "tenant_claim": "team",
                "user_claim": "name",
                "band_claim": "band",
            },
        },
        "client_address": {"proxy_protocol": ["10.1.0.0/16"], "proxies": ["10.2.0.0/16"], "header": "forwarded"},
        "cors": {"origins": ["https://page.example"]},
        "paths": [{"path": "/v1/own", "method": "PUT", "kind": "free", "model": "name"}],
        "observe": {"interval": 7, "fast_interval": 3},
        "autoscale": {"target_wait": 30, "saturation": 0.7, "start": 120, "keep": 600},
        "metrics": {"aliases": ["vllm_router"]},
        "admin": {
            "token": "number-one",
            "read_token": "number-two",
            "operators": [{"name": "anna", "token": "number-three-of-anna"}],
        },
        "log": {"format": "json", "access": True, "routing": True},
        "root_path": "/llm",
        "tracing": {"endpoint": "http://127.0.0.1:9", "sample": 0.5},
    },
    {
        "fairness": {"prices": {"prompt": 3, "cached_prompt": 1, "completion": 5}},
        "routing": {"policy": "session", "session": {"header": "x-s", "cookie": "c", "body": "b", "strict": True}},
    },
    {"routing": {"session": {"names": [{"header": "x-job", "parent": "x-root"}, {"body": "job"}]}}},
    {"routing": {"policy": "load_balanced_kv", "imbalance_threshold": 7}},
    {"routing": {"divide_from": 77}},
    {"epp": {"fallbacks": 2, "sample_every": 7, "max_streams_per_address": 9}},
    {"routing": {"policy": "kv", "locality": "lmcache", "lmcache": {"coordinator": "http://127.0.0.1:9"}}},
    {"routing": {"policy": "kv", "locality": "lmcache", "lmcache": {"controller": "http://127.0.0.1:9"}}},
]
IN_LISTS_OF_PLACES = ("endpoints[].", "discovery[].", "tls.")  # in tests of their own, above
#: The last ones in test_models_over_http.py and in epp: test_fallbacks.py, test_sample.py, test_strangers.py.
IN_OTHER_TESTS = (
    *("bands[].name", "tenants[].name", "models.<name>.weight", "epp.fallbacks", "epp.sample_every"),
    "epp.max_streams_per_address",
)


def all_settings() -> list[str]:
    return [
        prefix + key
        for prefix, section in sections()
        for key, field in section.model_fields.items()
        if nested(field.annotation) is None
    ]


def test_every_setting_has_a_rule_and_every_rule_a_setting() -> None:
    keys = [key.replace("[]", "[x]") for key in all_settings()]
    for key in keys:
        rule(key)
    plain = {key.split("[")[0] for key in keys}
    for path in RULES:
        assert any(key == path or key.startswith(path + ".") for key in plain), f"{path} is no setting"


def test_the_table_in_the_docs_is_the_rules() -> None:
    text = Path("docs/reload.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", text, re.MULTILINE)
    told = [(path.strip("`"), effect) for paths, effect in rows for path in paths.split(", ")]
    wanted = {
        path: f"**needs a restart**: {found.effect}" if found.restarts else found.effect
        for path, found in RULES.items()
    }
    assert dict(told) == wanted
    assert len(told) == len(wanted)


def test_every_setting_that_follows_a_reload_is_changed_in_the_test_below() -> None:
    named = {key for document in EVERYTHING for key in written(document)}
    for key in all_settings():
        if not rule(key).restarts and not key.startswith(IN_LISTS_OF_PLACES):
            assert key in named or key in IN_OTHER_TESTS, key


def written(document: Any, prefix: str = "") -> Iterator[str]:
    """The settings in a document, as paths."""
    if isinstance(document, dict) and not prefix.endswith(".split"):
        for key, value in document.items():
            name = "<name>" if prefix.endswith(("models", "usage.prices")) else key
            yield from written(value, f"{prefix}.{name}" if prefix else name)
    elif isinstance(document, list) and document and isinstance(document[0], dict):
        for item in document:
            yield from written(item, f"{prefix}[]")
    else:
        yield prefix


@pytest.mark.interpreted  # it looks at what compiled objects don't show
async def test_a_reloaded_gateway_equals_one_started_with_the_same_settings(world: World) -> None:
    """For everything that any part keeps of its settings. A part that was not told differs here."""
    entry = {"url": "http://127.0.0.1:9", "name": "e"}
    gate = await world.gateway(endpoints=[entry])
    for document in EVERYTHING:
        other = World()
        fresh = await other.gateway(endpoints=[entry], **document)
        world.document = other.document
        await gate.reload()
        ours, theirs = kept(gate), kept(fresh)
        await other.close()
        assert [place for place in theirs if ours.get(place) != theirs[place]] == []
        assert ours.keys() == theirs.keys()


def kept(gate: Gateway) -> dict[str, object]:
    """What the parts keep of the settings, each thing by its place."""
    intake, auth, callers = follower(gate, App)._intake, follower(gate, AdminAuth), follower(gate, Callers)
    metrics, heartbeats, reporting = follower(gate, Metrics), follower(gate, Heartbeats), follower(gate, Reporting)
    endpoints, scheduler = gate.endpoints, gate.driver.scheduler
    member = next(iter(endpoints._members.values()))
    found: dict[str, object] = {
        "tokens": (auth._token, auth._read_token, auth.is_set, gate.own_token.file is None),
        "locator": None if endpoints.locator is None else type(endpoints.locator),
        "timeouts": member.target.upstream.timeouts,
        "hash": gate.reload.hash,
        "access": reporting.access is not None,
        "traced": reporting.tracer is not None,
        "aliased": metrics._with_aliases,
    }
    found |= plain("origins", follower(gate, Origins))
    found |= plain(
        "callers",
        callers,
        "_tenants",
        "_listed",
        "_keys",
        "_former",
        "_dynamic",
        "_dynamic_users",
        "_trusted_peers",
        "era",
        "tokens",
        "_unnamed",
        "objectives",
        "own_accounts",
    )
    found |= plain("unnamed", callers._unnamed, "seen", "_names", "_places", "_changed") | {
        "unnamed": callers._unnamed.seen.limit
    }
    found |= {"own accounts": (callers.own_accounts._known, callers.own_accounts.divided)}
    found |= {"objectives": (callers.objectives._bands, callers.objectives._numbers)}
    verifier = callers.tokens._verifier
    found |= {"issuer": None if verifier is None else verifier.keys.settings}
    for name, known in callers._tenants.items():
        found |= {f"tenant {name}": (known.weight, known.band_max, known.users.limit)}
    found |= {"keys": {key: known.owner.name for key, known in callers._keys.items()}}
    found |= {"dynamic": (callers._dynamic.limit, callers._dynamic_users.limit)}
    found |= plain("affinities", follower(gate, Affinities), "_responses", "_turns", "prefix_seed")
    found |= {"after_s": heartbeats._after_s, "wait_s_max": heartbeats._wait_s_max}
    found |= {"aliases": follower(gate, Catalog).aliases, "limits": gate.server.limits}
    found |= {"bands": (intake._bands, metrics._bands), "usage": intake._asks_usage}
    found |= {"body": intake._body_bytes_max, "observe": member.observer._settings}
    parts = endpoints._parts
    found |= {"parts": (parts.observe, parts.timeouts, parts.slots_initial, parts.leave_s)}
    found |= {"scheduler": scheduler.inspect().settings, "tenants": sorted(metrics._tenants._lines)}
    if (locator := endpoints.locator) is not None and locator._lmcache is not None:
        found["services"] = [type(service) for service in locator._lmcache._services]
    return found


def plain(name: str, part: object, *but: str) -> dict[str, object]:
    return {f"{name}.{key}": value for key, value in vars(part).items() if key not in but}


def test_changes_are_reported_by_name_and_without_secrets() -> None:
    def settings(**more: Any) -> Settings:
        return from_mapping(more)

    old = settings(
        tenants=[{"name": "a"}, {"name": "b"}], endpoints=[{"url": "http://h:1", "api_key": "s3cret"}], models={}
    )
    new = settings(
        tenants=[{"name": "b", "weight": 2}, {"name": "a", "keys": ["sha256:" + "a" * 64]}],
        endpoints=[{"url": "http://h:1", "api_key": "0ther"}],
        admin={"token": "another-t0ken"},
    )
    lines = [change.line() for change in changes(old, new)]
    assert lines == [
        "endpoints[h:1].api_key changed",
        "tenants[a].keys changed",
        "tenants[b].weight 1 → 2",
        "admin.token changed",
    ]
    assert changes(old, old) == []
