"""Keys that are made, listed and withdrawn while a gateway runs: who may, what is kept, and when they work no more."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.batch.store.sqlite import FILE
from penstock.cli.main import main
from penstock.config.load import from_mapping
from penstock.gateway.identity.callers import key_hash
from tests.batch import postgres
from tests.batch.test_batch import Batches, line
from tests.gateway.conftest import Answer, World
from tests.patience import WAIT_S, looks

LISTED = "pk-listed"
TENANTS = [
    {"name": "team", "keys": [{"hash": key_hash(LISTED), "name": "listed", "models": ["sim"]}, key_hash("pk-plain")]},
    {"name": "open"},
]


async def gateway(world: World, folder: Path, **settings: Any) -> None:
    made = {"batch": {"data": str(folder), "serve": False}, "tenants": TENANTS, **settings}
    identity = {"made_keys": True, **settings.get("identity", {})}
    await world.gateway(**{**made, "identity": identity})


async def make(world: World, name: str = "ci", *, tenant: str = "team", status: int = 201, **more: Any) -> Any:
    answer = await world.ask("POST", "/admin/keys", {"tenant": tenant, "name": name, **more})
    assert answer.status == status, answer
    return answer.json() if status == 201 else answer.error()


async def revoke(world: World, name: str, status: int = 200) -> Any:
    answer = await world.ask("DELETE", f"/admin/keys/{name}")
    assert answer.status == status, answer
    return answer.json()


async def listed(world: World, query: str = "") -> dict[str, Any]:
    rows = (await world.ask("GET", f"/admin/keys{query}")).json()["keys"]
    return {row["name"]: row for row in rows}


async def asked(world: World, key: str, **more: Any) -> Answer:
    return await world.chat_with({"authorization": f"Bearer {key}"}, **more)


async def works(world: World, key: str, *, within_s: float = 1.0, but: tuple[int, ...] = (401,)) -> None:
    """The key works at the latest after a second."""
    await _answers(world, key, 200, but, within_s)


async def works_no_more(world: World, key: str, *, within_s: float = 1.0) -> None:
    await _answers(world, key, 401, (200,), within_s)


async def _answers(world: World, key: str, status: int, until_then: tuple[int, ...], within_s: float) -> None:
    async for _ in looks(within_s):
        if (answer := await asked(world, key)).status == status:
            return
        assert answer.status in until_then, answer


# --- made, listed, withdrawn -------------------------------------------------------------------------------------


async def test_keys_are_issued_listed_and_revoked_at_run_time(world: World, tmp_path: Path) -> None:
    engine = await world.engine()
    await gateway(world, tmp_path)
    made = await make(world, models=["sim"], max_output_tokens=7, expires="2100-01-01")
    key = made["key"]
    assert (key[:3], len(key)) == ("pk-", 46)
    await works(world, key)
    assert engine.log.entries[0].headers.get("authorization") is None
    rows = await listed(world)
    assert key not in json.dumps(rows)
    row = rows["ci"]
    assert {**row, "created_at": None, "hash": ""} == {
        "name": "ci",
        "tenant": "team",
        "source": "made",
        "hash": "",
        "state": "good",
        "models": ["sim"],
        "max_prompt_tokens": None,
        "max_output_tokens": 7,
        "limits": {},
        "created_at": None,
        "expires_at": 4_102_531_200.0,
    }
    assert key_hash(key).startswith(f"sha256:{row['hash']}")
    assert {name: (row["source"], row["tenant"]) for name, row in rows.items()} == {
        "listed": ("file", "team"),
        key_hash("pk-plain")[:19]: ("file", "team"),
        "ci": ("made", "team"),
    }
    assert (await listed(world, "?tenant=open")) == {}
    assert (await world.ask("GET", f"/admin/keys?{'a=1&' * 200}")).status == 400
    assert (await asked(world, key, tokens=8)).error()["message"].startswith("`max_tokens` is 8")
    assert (await asked(world, key, model="other")).status == 403
    queue = (await world.ask("GET", "/queue", headers={"authorization": f"Bearer {key}"})).json()
    assert queue["tenant"] == "team"
    assert await revoke(world, "ci") == {"name": "ci", "state": "withdrawn"}
    await works_no_more(world, key)
    assert "ci" not in await listed(world)
    assert (await asked(world, LISTED)).status == 200
    events = [event["text"] for event in (await world.ask("GET", "/admin/state")).json()["events"]]
    assert any("keys" in text and "ci" in text for text in events)
    assert key not in json.dumps(events)


async def test_a_restart_keeps_issued_keys_and_no_revoked_ones(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    stays, goes = (await make(world, "stays"))["key"], (await make(world, "goes"))["key"]
    await revoke(world, "goes")
    assert key_hash(stays).removeprefix("sha256:") in (tmp_path / FILE).read_bytes().decode("latin-1") + (
        tmp_path / f"{FILE}-wal"
    ).read_bytes().decode("latin-1")
    for path in tmp_path.iterdir():
        assert stays.encode() not in path.read_bytes(), "only hashes are kept"
    await world.end_gateway()
    await gateway(world, tmp_path)
    await works(world, stays, within_s=5.0, but=(429,))  # 429: it has not read the keys yet
    assert (await asked(world, goes)).status == 401
    assert list(await listed(world))[-1] == "stays"
    assert (await world.ask("GET", "/v1/files", headers={"authorization": f"Bearer {stays}"})).status == 404


async def test_an_issued_key_expires_on_time(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    key = (await make(world, expires=_in(0.4)))["key"]
    await works(world, key)
    await works_no_more(world, key)
    assert "has expired" in (await asked(world, key)).error()["message"]
    assert (await listed(world))["ci"]["state"] == "expired"
    await make(world, status=409)
    await revoke(world, "ci")
    await make(world)


def _in(seconds: float) -> float:
    from penstock import clock  # noqa: PLC0415

    return clock.wall() + seconds


async def test_a_key_of_a_tenant_that_is_gone_waits_for_it(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    key = (await make(world, tenant="open"))["key"]
    await works(world, key)
    world.document["tenants"] = TENANTS[:1]
    assert (await world.ask("POST", "/admin/reload")).status == 200
    await works_no_more(world, key)
    assert (await listed(world))["ci"]["state"] == "without tenant"
    world.document["tenants"] = TENANTS
    assert (await world.ask("POST", "/admin/reload")).status == 200
    await works(world, key)


async def test_with_issued_keys_every_listed_tenant_requires_one(world: World, tmp_path: Path) -> None:
    """Else a tenant whose only key is withdrawn would be open to everybody who knows its name."""
    await world.engine()
    await gateway(world, tmp_path)
    await make(world, tenant="open")
    await revoke(world, "ci")
    queue = await world.ask("GET", "/queue", headers={"x-tenant-id": "open"})
    assert queue.json()["tenant"] == "client:127.0.0.1"
    await world.end_gateway()
    await world.gateway(tenants=TENANTS)
    queue = await world.ask("GET", "/queue", headers={"x-tenant-id": "open"})
    assert queue.json()["tenant"] == "open"


async def test_the_first_key_may_be_a_made_one(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path, tenants=[{"name": "team"}], identity={"require_key": True})
    assert (await world.chat()).status == 401
    key = (await make(world))["key"]
    await works(world, key)
    assert (await world.chat()).status == 401


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"name": "ci"}, 400, "`tenant` is missing"),
        ({"tenant": "nobody", "name": "ci"}, 404, "There is no tenant `nobody` in the settings."),
        ({"tenant": "anonymous", "name": "ci"}, 400, "stands for clients without a key"),
        ({"tenant": "team"}, 400, "a key's name is empty"),
        ({"tenant": "team", "name": "a b"}, 400, "`a b` is not a name"),
        ({"tenant": "team", "name": "listed"}, 409, "There is a key `listed` already."),
        ({"tenant": "team", "name": "ci", "expires": "2020-01-01"}, 400, "2020-01-02 00:00 UTC is in the past"),
        ({"tenant": "team", "name": "ci", "expires": "soon"}, 400, "`soon` is not a date or time"),
        ({"tenant": "team", "name": "ci", "expires": "90"}, 400, "`90` is not a date or time"),
        ({"tenant": "team", "name": "ci", "expires": "-1h"}, 400, "is in the past"),
        ({"tenant": "team", "name": "ci", "expires": "9e9d"}, 400, "is not a date or time"),
        ({"tenant": "team", "name": "ci", "expires": f"{10**15}d"}, 400, "is not a date or time"),
        ({"tenant": "team", "name": "ci", "max_output_tokens": 0}, 400, "max_output_tokens: `0`: expected at least 1"),
        ({"tenant": "team", "name": "ci", "models": "sim"}, 400, "models: expected a list"),
        ({"tenant": "team", "name": "ci", "max_tokens": 9}, 400, "`max_tokens` is none of `tenant`, `name`, `models`"),
        ({"tenant": "team", "name": "ci", "hash": "sha256:" + "0" * 64}, 400, "`hash` is none of"),
    ],
)
async def test_a_key_that_can_not_be_is_refused_in_words(
    world: World, tmp_path: Path, body: dict[str, Any], status: int, words: str
) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    answer = await world.ask("POST", "/admin/keys", body)
    assert (answer.status, words in answer.error()["message"]) == (status, True), answer
    assert set(await listed(world)) == {"listed", key_hash("pk-plain")[:19]}


async def test_a_name_is_unique_and_an_unknown_key_is_not_revoked(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    await make(world)
    assert (await make(world, status=409))["message"] == "There is a key `ci` already."
    assert (await revoke(world, "nobody", 404))["error"]["code"] == "key_not_found"
    refused = await revoke(world, "listed", 409)
    assert "stands in the settings of `team`: take it out there" in refused["error"]["message"]
    noted = [event.text for event in world.gate.events.latest() if event.kind == "operator"]
    assert noted == [
        "remove keys listed (by 127.0.0.1): refused, conflict",
        "remove keys nobody (by 127.0.0.1): refused, key_not_found",
        "keys name=ci tenant=team (by 127.0.0.1): refused, conflict",
        "keys name=ci tenant=team (by 127.0.0.1)",
    ]


async def test_only_the_admin_token_makes_and_withdraws(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path, admin={"token": "all-of-it", "read_token": "only-look"})
    body = {"tenant": "team", "name": "ci"}
    look, all_of_it = ({"authorization": f"Bearer {token}"} for token in ("only-look", "all-of-it"))
    for headers, status in (({}, 401), ({"authorization": f"Bearer {LISTED}"}, 401), (look, 403)):
        assert (await world.ask("POST", "/admin/keys", body, headers)).status == status
        assert (await world.ask("DELETE", "/admin/keys/ci", headers=headers)).status == status
        assert (await world.ask("POST", "/admin/keys/ci/limit", {"running": 2}, headers)).status == status
    assert (await world.ask("GET", "/admin/keys", headers=look)).status == 200
    assert (await world.ask("GET", "/admin/keys", headers={"x-nothing": "1"})).status == 401
    assert (await world.ask("POST", "/admin/keys", body, all_of_it)).status == 201


async def test_without_issued_keys_those_of_the_settings_are_listed(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS)
    assert set(await listed(world)) == {"listed", key_hash("pk-plain")[:19]}
    assert "set `identity.made_keys: true`" in (await make(world, status=409))["message"]
    await revoke(world, "ci", 409)


# --- a store that is not there -----------------------------------------------------------------------------------


async def test_while_the_store_is_down_the_keys_known_so_far_work(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    key = (await make(world))["key"]
    with caplog.at_level(logging.CRITICAL):  # its warnings are not of interest here
        for path in tmp_path.glob(f"{FILE}*"):
            path.write_bytes(b"this is no database " * 1000)

        async def trouble() -> Any:
            return (await world.ask("GET", "/admin/state")).json()["key_store"]

        async with asyncio.timeout(WAIT_S):
            while "damaged" not in str(await trouble()):
                await asyncio.sleep(0.02)
        await works(world, key)
        seen = (await world.ask("GET", "/admin/state")).json()
        assert seen["lead"].startswith("Issued keys cannot be read, those known so far work: ")
        assert seen["tone"] == "bad"
        assert (await asked(world, "pk-unknown")).status == 401
        answer = (await world.ask("GET", "/admin/keys")).json()
        assert "damaged" in answer["trouble"]
        assert answer["keys"][-1]["name"] == "ci"
        refused = await make(world, "another", status=503)
        assert (refused["code"], refused["message"][:21]) == ("store_down", "Nothing was changed: ")
        assert (await revoke(world, "ci", 503))["error"]["code"] == "store_down"
        await works(world, key)
        for path in tmp_path.glob(f"{FILE}*"):
            path.unlink()  # an empty store, as after a disk was replaced
        async with asyncio.timeout(WAIT_S):
            while await trouble() is not None:
                await asyncio.sleep(0.02)
    await works_no_more(world, key)
    await works(world, (await make(world))["key"])


async def test_before_the_keys_were_read_a_key_is_asked_to_come_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("psycopg")
    await world.engine()
    nowhere = {"store": "postgres", "url": "postgresql://127.0.0.1:1/none", "serve": False}
    with caplog.at_level(logging.CRITICAL):
        await world.gateway(tenants=TENANTS, batch=nowhere, identity={"made_keys": True})
        answer = await asked(world, "pk-made-before")
        assert (answer.status, answer.error()["code"]) == (429, "overload")
        assert "has not read yet which keys there are" in answer.error()["message"]
        assert answer.header("retry-after") == "1"
        assert (await asked(world, LISTED)).status == 200
        assert (await world.chat()).status == 200, "who shows no key needs none"
        async with asyncio.timeout(WAIT_S):
            while (await world.ask("GET", "/admin/state")).json()["key_store"] is None:
                await asyncio.sleep(0.02)


@pytest.fixture
def postgres_url() -> Iterator[str]:
    postgres.require()
    with postgres.server() as url:
        yield url


async def test_a_key_that_one_gateway_withdraws_works_at_no_other_a_second_later(
    world: World, postgres_url: str
) -> None:
    settings: dict[str, Any] = {
        "tenants": TENANTS,
        "batch": {"store": "postgres", "url": postgres_url, "serve": False},
        "identity": {"made_keys": True},
    }
    other = World()
    try:
        for one in (world, other):
            await one.engine()
            await one.gateway(**settings)
        key = (await make(world))["key"]
        await works(world, key)
        await works(other, key, but=(401, 429))
        assert (await make(other, status=409))["message"] == "There is a key `ci` already."
        await revoke(other, "ci")
        await works_no_more(other, key)
        await works_no_more(world, key)
    finally:
        await other.close()


# --- batches and the command line --------------------------------------------------------------------------------


async def test_a_batch_has_the_rights_of_its_key(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path, batch={"data": str(tmp_path)})
    narrow = (await make(world, models=["sim"], max_prompt_tokens=500, max_output_tokens=3))["key"]
    api = Batches(world)
    api.headers = {"authorization": f"Bearer {narrow}"}
    await works(world, narrow)
    batch = await api.start(
        line("fits", tokens=3), line("long", tokens=4), line("prompt", "x" * 9000), line("model", model="sim-2")
    )
    shown = await api.ended(batch)
    if shown["status"] == "failed":  # a model that no engine serves is told before any line runs
        assert [error["code"] for error in shown["errors"]["data"]] == ["model_not_found"]
        batch = await api.start(line("fits", tokens=3), line("long", tokens=4), line("prompt", "x" * 9000))
        shown = await api.ended(batch)
    assert shown["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    codes = {
        row["custom_id"]: row["response"]["body"]["error"]["code"] for row in await api.lines(shown["error_file_id"])
    }
    assert codes == {"long": "bad_request", "prompt": "context_length_exceeded"}


async def test_keys_on_the_command_line(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await world.engine()
    await gateway(world, tmp_path)

    async def penstock(*words: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(
            main, ["keys", *words, "--url", world.url, "--token", world.gate.own_token.token or ""]
        )
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    code, out, _ = await penstock(
        "new", "team", "ci", "--models", "sim,qwen-*", "--max-prompt-tokens", "9000", "--expires", "2100-01-01"
    )
    assert code == 0
    key = out.split()[1]
    assert out.count(key) == 1
    await works(world, key)
    _, out, _ = await penstock("ls")
    assert out.splitlines() == [
        "listed: team, from the settings, models sim",
        f"{key_hash('pk-plain')[:19]}: team, from the settings",
        "ci: team, issued, models sim qwen-*, prompts of 9,000 tokens, until 2100-01-02 00:00 UTC",
    ]
    assert (await penstock("new", "team", "ci")) == (1, "", "penstock: There is a key `ci` already.\n")
    assert (await penstock("ls", "--tenant", "open"))[:2] == (0, "no keys\n")
    code, out, _ = await penstock("limit", "ci", "--limits", "running=2,requests_per_minute=60")
    assert (code, ", limits running=2 requests_per_minute=60, until 2100" in out) == (0, True)
    assert ", limits running=2, until" in (await penstock("limit", "ci", "--limits", "requests_per_minute=none"))[1]
    assert "limits" not in (await penstock("limit", "ci", "--reset"))[1]
    assert (await penstock("revoke", "ci")) == (0, "ci: revoked\n", "")
    await works_no_more(world, key)
    code, _, err = await penstock("revoke", "ci")
    assert (code, err) == (1, "penstock: There is no key `ci`. `penstock keys ls` lists all.\n")
    code, out, _ = await penstock("new", "team", "two", "--json")
    assert (code, json.loads(out)["name"]) == (0, "two")


@pytest.mark.parametrize(("after", "seconds"), [("90d", 7_776_000), ("36h", 129_600), ("2 m", 120)])
async def test_a_key_may_expire_so_long_from_now(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], after: str, seconds: int
) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    before = time.time()
    expires = (await make(world, expires=after))["expires_at"]
    assert before + seconds <= expires <= time.time() + seconds
    assert main(["keys", "new", "team", "--expires", after]) == 0
    printed = capsys.readouterr().out
    written = from_mapping(yaml.safe_load(printed[printed.index("tenants:") :])).tenants[0].keys[0].expires
    assert written is not None
    assert before + seconds - 1 <= written <= time.time() + seconds


async def test_a_key_for_the_settings_may_have_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.config.load import load  # noqa: PLC0415

    assert (
        main(["keys", "new", "team", "--models", "a$b,c", "--max-output-tokens", "9", "--expires", "2100-01-01"]) == 0
    )
    printed = capsys.readouterr().out
    file = tmp_path / "penstock.yaml"
    file.write_text(printed[printed.index("tenants:") :])
    (key,) = load(str(file), {}).tenants[0].keys
    assert key.hash == key_hash(printed.split()[1])
    assert (key.models, key.max_output_tokens, key.expires) == (("a$b", "c"), 9, 4_102_531_200.0)
    assert main(["keys", "new", "team", "--max-output-tokens", "none"]) == 2
    assert "max_output_tokens: `none` is not a whole number" in capsys.readouterr().err


async def test_an_issued_key_may_have_limits_of_its_own(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    made = await make(world, "ci", limits={"requests_per_minute": 1})
    plain = await make(world, "dev")
    assert (await asked(world, made["key"])).status == 200
    refused = await asked(world, made["key"])
    assert (refused.status, refused.header("x-penstock-limit")) == (429, "keys.requests_per_minute")
    assert (await asked(world, plain["key"])).status == 200
    assert (await listed(world))["ci"]["limits"] == {"requests_per_minute": 1}
    await world.end_gateway()
    await gateway(world, tmp_path)
    await works(world, made["key"], but=(401, 429))
    assert (await asked(world, made["key"])).status == 429, "the limit is kept with the key"
    wrong = await make(world, "bad", limits={"requests": 1}, status=400)
    assert "limits.requests" in wrong["message"]


async def limit(world: World, name: str, limits: dict[str, Any] | None, status: int = 200) -> Any:
    """Set limits of a key; None: end all of its own."""
    answer = await world.ask("DELETE" if limits is None else "POST", f"/admin/keys/{name}/limit", limits or b"")
    assert answer.status == status, answer
    return answer.json()


async def test_an_issued_key_is_limited_while_it_is_used(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    made = await make(world, "ci", models=["sim"], max_output_tokens=7)
    plain = await make(world, "dev")
    assert (await asked(world, made["key"])).status == 200
    row = await limit(world, "ci", {"requests_per_minute": 1, "running": 4})
    assert row["limits"] == {"requests_per_minute": 1, "running": 4}
    assert "key" not in row
    assert (await asked(world, made["key"])).status == 200
    refused = await asked(world, made["key"])
    assert (refused.status, refused.header("x-penstock-limit")) == (429, "keys.requests_per_minute")
    assert (await asked(world, plain["key"])).status == 200, "another key of the same tenant"
    assert (await limit(world, "ci", {"requests_per_minute": None}))["limits"] == {"running": 4}
    assert (await asked(world, made["key"])).status == 200
    assert (await asked(world, made["key"], tokens=8)).status == 400, "its other bounds stay"
    await world.end_gateway()
    await gateway(world, tmp_path)
    await works(world, made["key"], but=(401, 429))
    assert (await listed(world))["ci"]["limits"] == {"running": 4}, "kept with the key"
    assert (await limit(world, "ci", None))["limits"] == {}
    events = [event["text"] for event in (await world.ask("GET", "/admin/state")).json()["events"]]
    assert "remove keys ci limit (by 127.0.0.1)" in events


async def test_a_key_that_can_not_be_limited_is_refused_in_words(world: World, tmp_path: Path) -> None:
    await world.engine()
    await gateway(world, tmp_path)
    await make(world, "ci")
    assert (
        "stands in the settings of `team`: change it there"
        in (await limit(world, "listed", None, 409))["error"]["message"]
    )
    assert (await limit(world, "nobody", {"running": 2}, 404))["error"]["code"] == "key_not_found"
    wrongs: list[dict[str, Any]] = [{"running": 0}, {"runing": 2}, {"models": {"sim": {"running": 2}}}, {"": 1}]
    for wrong in wrongs:
        assert (await limit(world, "ci", wrong, 400))["error"]["code"] == "bad_request"
    assert (await listed(world))["ci"]["limits"] == {}


# --- keys that are good no more -------------------------------------------------------------------------------------


async def wrong(world: World) -> dict[tuple[str, str], int]:
    """The refusals of the last minute that are a key's fault: by tenant and words."""
    rows = (await world.ask("GET", "/admin/state")).json()["lately"]["rows"]
    return {(row["tenant"], row["what"]): row["count"] for row in rows if row["reason"] == "unauthorized"}


async def until_wrong(world: World, total: int) -> dict[tuple[str, str], int]:
    async for _ in looks(WAIT_S):
        if sum((found := await wrong(world)).values()) == total:
            return found
    raise AssertionError


async def test_a_refused_key_that_was_good_once_is_told_by_whose_it_was_and_never_itself(
    world: World, tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await world.engine()
    soon = time.time() + 3.0
    await gateway(world, tmp_path, workers=workers, batch={"data": str(tmp_path), "serve": True})
    revoked, expiring = (await make(world, "ci"))["key"], (await make(world, "night", expires=soon))["key"]
    await works(world, revoked)
    await revoke(world, "ci")
    await works_no_more(world, revoked)
    await works_no_more(world, expiring, within_s=WAIT_S)
    for key in (revoked, revoked, expiring, "pk-nobodys", "pk-another"):
        assert (await asked(world, key)).status == 401
    for path in ("/v1/models", "/v1/files", "/queue"):
        assert (await world.ask("GET", path, headers={"authorization": f"Bearer {revoked}"})).status == 401
    words = "refused: the key is missing or wrong"
    unknown, ended = ("", words), ("team", f"{words} (key ci, revoked")
    whose: dict[tuple[str, str], int] = {}
    async for _ in looks(WAIT_S):
        whose = {(tenant, what.split(" 2")[0]): count for (tenant, what), count in (await wrong(world)).items()}
        if whose.get(unknown) == 2 and whose.get(ended, 0) >= 6:  # unknown keys are a number
            break
    assert set(whose) == {
        ("", words),
        ("team", f"{words} (key ci, revoked"),
        ("team", f"{words} (key night, expired"),
    }
    events = [row["text"] for row in (await world.ask("GET", "/admin/state")).json()["events"]]
    assert any(f" requests of team {ended[1]}" in text for text in events)
    rows = (await until_reason(world))["rows"]
    assert {row["key"] for row in rows if row["tenant"] == "team" and "unauthorized" in row["reasons"]} == {
        "ci",
        "night",
    }
    shown = (await world.ask("GET", "/admin/state")).body.decode() + caplog.text
    for key in (revoked, expiring):
        assert key not in shown
        assert key_hash(key).removeprefix("sha256:")[:12] not in shown


async def until_reason(world: World) -> Any:
    """The ledger, once both keys' refusals are in it."""
    async for _ in looks(WAIT_S):
        told = (await world.ask("GET", "/admin/usage?by=tenant,key")).json()
        if sum("unauthorized" in row["reasons"] for row in told["rows"]) == 2:
            return told
    raise AssertionError


async def test_a_key_that_a_reload_takes_away_is_told_and_one_that_comes_back_works(world: World) -> None:
    await world.engine()
    gate = await world.gateway(tenants=TENANTS)
    await works(world, LISTED)
    world.document["tenants"] = [{"name": "team", "keys": [key_hash("pk-plain")]}]
    await gate.reload()
    assert (await asked(world, LISTED)).status == 401
    ((tenant, what),) = (await until_wrong(world, 1)).keys()
    assert (tenant, what.split(" 2")[0]) == ("team", "refused: the key is missing or wrong (key listed, revoked")
    world.document["tenants"] = TENANTS
    await gate.reload()
    await works(world, LISTED)
