"""`GET /queue` in a browser: a key's holder sees its own requests, places, limits and use, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.gateway.identity.callers import key_hash
from tests.gateway.conftest import World, chat, fault
from tests.page.conftest import Window

CI, DEV = {"authorization": "Bearer pk-ci"}, {"authorization": "Bearer pk-dev"}
OTHER = {"authorization": "Bearer pk-other"}


async def test_a_keys_holder_sees_its_requests_limits_and_use(world: World, window: Window, tmp_path: Path) -> None:
    await world.engine(step_s=0.01)
    limits = {"requests_per_minute": 9, "queued": 20, "models": {"sim": {"tokens_per_day": 90_000}}}
    keys = [
        {"hash": key_hash("pk-ci"), "name": "ci", "limits": {"requests_per_minute": 7, "running": 5}},
        {"hash": key_hash("pk-dev"), "name": "dev"},
    ]
    tenants = [{"name": "team", "keys": keys, "limits": limits}, {"name": "others", "keys": [key_hash("pk-other")]}]
    identity = {"require_key": True}
    await world.gateway(slots=1, tenants=tenants, identity=identity, batch={"data": str(tmp_path)})
    assert (await world.chat_with(CI, tokens=5)).status == 200
    assert (await world.chat_with(DEV, tokens=5)).status == 200
    running = await world.client_for(chat(tokens=3000, stream=True), CI)
    await running.begun()
    for headers, name in ((CI, "mine-1"), (OTHER, "theirs"), (CI, "mine-2")):
        await world.client_for(chat(stream=True), {**headers, "x-request-id": name})
    await world.until(lambda: world.picture().waiting == 3)

    page = window.page
    await page.goto(f"{world.url}/queue")
    await window.says("You didn't provide an API key")
    assert await page.locator("#waiting").is_hidden()
    await page.fill("#key", "pk-ci")
    await page.click("button")
    await window.says("1 running, 2 waiting; the first is number ")
    assert await page.text_content("#who") == "Requests of team"
    rows = await page.locator("#waiting tbody tr").all_text_contents()
    assert [row.startswith(name) for row, name in zip(rows, ("mine-1", "mine-2"), strict=True)] == [True, True]
    limited = await page.locator("#limits tbody tr").all_text_contents()
    assert limited == [
        "20 requests waitingthe tenant18",
        "9 requests a minutethe tenant4",
        "5 requests runningthis key4",
        "7 requests a minutethis key3",
        *[line for line in limited if line.startswith("90,000 tokens a daythe tenant, for sim")],
    ]
    assert len(limited) == 5
    cells = await page.locator("#usage td").all_text_contents()
    assert (cells[0], cells[1], cells[4]) == ("1", "1", "5"), "the key's own, not its tenant's"
    assert "theirs" not in (await page.content())

    await page.fill("#key", "pk-wrong")
    await page.click("button")
    await window.says("Incorrect API key")
    assert await page.locator("#usage").is_hidden()
    running.hang_up()


@pytest.mark.parametrize(("price", "cost"), [(1, "3.00"), (0.1, "0.30"), (3.27e-5, "0.000098")])
async def test_the_operators_page_shows_who_used_what(
    world: World, window: Window, tmp_path: Path, price: float, cost: str
) -> None:
    await world.engine()
    prices = {"sim": {"completion": 250_000 * price}}
    tenants = [{"name": "team", "keys": [key_hash("pk-ci")]}]
    await world.gateway(tenants=tenants, batch={"data": str(tmp_path)}, usage={"prices": prices})
    for _ in range(2):
        await world.chat_with(CI, tokens=6)
    await window.open(world)
    await window.page.wait_for_selector("#usage td")
    cells = await window.page.locator("#usage td").all_text_contents()
    assert (cells[:4], cells[5:8], cells[10]) == (["team", "sim", "2", "0"], ["0", "12", "0"], cost)


async def test_tokens_of_an_answer_that_broke_off_stand_beside_those_that_engines_reported(
    world: World, window: Window, tmp_path: Path
) -> None:
    engine = await world.engine()
    tenants = [{"name": "team", "keys": [key_hash("pk-ci")]}]
    await world.gateway(tenants=tenants, batch={"data": str(tmp_path)})
    await world.chat_with(CI, tokens=6)
    fault(engine, "die", count=1, after_bytes=600)
    assert b"stream_broken" in (await world.ask(body=chat(tokens=50, stream=True), headers=CI)).body
    await window.open(world)
    await window.page.wait_for_selector("#usage td")
    headed = "(table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    told = [await table.evaluate(headed) for table in await window.page.locator("#usage table").all()]
    used, months = (dict(zip(head, row, strict=True)) for head, row, *_ in told)
    assert used["completion"] == months["completion"] == "6"
    assert used["estimated"] == months["estimated"] != "0"


async def test_without_a_ledger_the_page_has_no_such_table(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(store="off")
    await window.open(world)
    await window.says("Idle")
    assert await window.page.locator("#usage").is_hidden()
