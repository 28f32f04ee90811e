"""The ledger is there without a word in the settings: in the state folder, or not at all if there is none."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.config.load import ConfigError, from_mapping, load
from tests.gateway.conftest import World
from tests.gateway.usage.test_usage import until_used


async def test_a_gateway_without_a_word_about_it_keeps_a_ledger_over_restarts(world: World, tmp_path: Path) -> None:
    await world.engine()
    for requests in (1, 2):
        await world.gateway(state_dir=str(tmp_path))
        await world.chat_with({"x-tenant-id": "chat"}, tokens=4)
        total = (await until_used(world, requests))["total"]
        assert total["completion_tokens"] == 4 * requests
        assert (await world.ask("GET", "/v1/batches")).status == 404, "a store alone serves no files and batches"
        await world.end_gateway()
    assert (tmp_path / "store" / "batch.sqlite3").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("workers", [1, 2])
async def test_where_no_folder_can_be_had_the_gateway_serves_and_says_so_once(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    (tmp_path / "state").write_text("a file")
    await world.engine()
    caplog.set_level(logging.WARNING, "penstock.gateway.usage")
    await world.gateway(state_dir=str(tmp_path / "state"), workers=workers)
    assert (await world.chat_with({})).status == 200
    await world.until(lambda: "ledger of use" in caplog.text)
    assert "penstock_usage_store_up 0.0" in (await world.ask("GET", "/metrics")).body.decode()
    answer = await world.ask("GET", "/admin/usage")
    assert (answer.status, answer.error()["code"]) == (503, "store_down")
    assert "state/store can't be used: Not a directory" in answer.error()["message"]
    said = [record.getMessage() for record in caplog.records if "ledger" in record.getMessage()]
    assert len(said) == 1
    assert "the ledger of use is counted in memory: `store` can't be written: " in said[0]
    (tmp_path / "state").unlink()
    assert (await until_used(world, 1))["total"]["requests"] == 1, "nothing was lost once it comes right"


async def test_two_gateways_of_one_state_folder_take_turns_and_lose_nothing(world: World, tmp_path: Path) -> None:
    await world.engine()
    first = await world.gateway(state_dir=str(tmp_path))
    await world.chat_with({})
    await until_used(world, 1)
    port = world.port
    await world.gateway(state_dir=str(tmp_path))
    await world.chat_with({})
    refused = await world.ask("GET", "/admin/usage")
    assert "is in use by another gateway" in refused.error()["message"]
    world.port, second = port, world.port
    assert (await until_used(world, 1))["total"]["requests"] == 1
    world.port = second
    await first.close()
    assert (await until_used(world, 2))["total"]["requests"] == 2


async def test_with_the_store_off_there_is_no_ledger_and_the_answer_names_what_is_missing(
    world: World, tmp_path: Path
) -> None:
    await world.engine()
    await world.gateway(store=False, state_dir=str(tmp_path))
    await world.chat_with({})
    answer = await world.ask("GET", "/admin/usage")
    assert answer.status == 409
    assert "`store`" in answer.error()["message"]
    await world.end_gateway()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("written", "serves"),
    [
        ({"store": "{}"}, False),
        ({"store": {"data": "{}"}}, False),
        ({"store": "{}", "batch": {"serve": True}}, True),
        ({"batch": {"data": "{}"}}, True),
        ({"batch": {"data": "{}", "serve": False}}, False),
        ({"batch": {"data": "{}", "store": "sqlite", "url": None}}, True),
    ],
)
async def test_each_spelling_of_a_folder_is_one_store(
    world: World, tmp_path: Path, written: dict[str, Any], serves: bool
) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(its) for key, its in value.items()}
        return str(tmp_path / "kept") if value == "{}" else value

    await world.engine()
    await world.gateway(state_dir=str(tmp_path / "state"), **filled(written))
    await world.chat_with({})
    assert (await until_used(world, 1))["total"]["requests"] == 1
    assert (tmp_path / "kept" / "batch.sqlite3").exists()
    assert not (tmp_path / "state" / "store").exists()
    assert ((await world.ask("GET", "/v1/batches")).status == 200) is serves


@pytest.mark.parametrize(
    ("variables", "url", "serves"),
    [
        ({"PENSTOCK__STORE": "postgresql://a@b/c"}, "postgresql://a@b/c", False),
        ({"PENSTOCK__STORE__URL": "postgres://a@b/c"}, "postgres://a@b/c", False),
        (
            {"PENSTOCK__BATCH__STORE": "postgres", "PENSTOCK__BATCH__URL": "postgresql://a@b/c"},
            "postgresql://a@b/c",
            True,
        ),
    ],
)
def test_a_database_has_three_spellings(variables: dict[str, str], url: str, serves: bool) -> None:
    settings = load(None, variables)
    assert settings.store.url is not None
    assert (settings.store.url.get_secret_value(), settings.batch.serve) == (url, serves)


def test_a_wrong_former_name_is_reported_with_its_origin() -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, {"PENSTOCK__BATCH__URL": "mysql://a:secret@b/c"})
    (problem,) = refused.value.problems
    assert problem.line() == (
        "store.url: is not a PostgreSQL URL (from PENSTOCK__BATCH__URL) (write `postgresql://user:password@host/database`)"
    )


@pytest.mark.parametrize("off", [False, "off", "false", {"enabled": False}])
@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({"usage": {"keep": "30d"}}, "usage"),
        ({"usage": {"prices": {"*": {"prompt": 1}}}}, "usage"),
        ({"identity": {"made_keys": True}}, "identity.made_keys"),
        ({"batch": {"serve": True}}, "batch.serve"),
    ],
)
def test_what_needs_a_store_is_refused_without_one(off: object, asked: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_mapping({"store": off, **asked})
    (problem,) = refused.value.problems
    assert problem.line() == f"{path}: has no store, because `store` is off (remove one of the two)"


@pytest.mark.parametrize("usage", [{"keep": 0}, {"keep": "0s", "prices": {}}, {}])
def test_a_ledger_that_is_off_needs_no_store(usage: dict[str, Any]) -> None:
    assert not from_mapping({"store": False, "usage": usage}).keeps_usage


NEEDED = "store: {}/store can't be used: Not a directory (`{}` needs one: name a folder, `store: FOLDER`)"


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ("", 0, "warning: the ledger of use would be lost at the end: {}/store can't be used: Not a directory"),
        ("usage: {keep: 0}\n", 0, ""),
        ("store: off\n", 0, ""),
        (
            "usage: {keep: 30d}\n",
            1,
            NEEDED.format("{}", "usage"),
        ),
        (
            "identity: {made_keys: true}\ntenants: [{name: a}]\n",
            1,
            NEEDED.format("{}", "identity.made_keys"),
        ),
    ],
)
def test_check_reports_a_state_folder_that_can_not_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str, code: int, says: str
) -> None:
    state, file = tmp_path / "state", tmp_path / "penstock.yaml"
    state.write_text("a file")
    file.write_text(f"listen: 127.0.0.1:0\nendpoints: [{{url: http://gpu-0:8000}}]\nstate_dir: {state}\n{asked}")
    assert main(["check", str(file)]) == code
    assert capsys.readouterr().err.rstrip("\n") == says.format(state)
