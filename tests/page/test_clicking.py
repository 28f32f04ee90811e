"""By clicking, with a question first: keys, a tenant's weight and limits, a search, a test request. And who may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.gateway.admin.own_token import for_wall
from tests.gateway.admin.test_admin_state import crowded, let_go
from tests.gateway.conftest import World, chat
from tests.page.conftest import Window

TENANTS = [{"name": "team"}, {"name": "other"}]
ANNA: dict[str, Any] = {"admin": {"token": "for-everything", "operators": [{"name": "anna", "token": "token-of-anna"}]}}


async def as_anna(world: World, window: Window) -> None:
    await window.page.add_init_script("sessionStorage.setItem('penstock-token', 'token-of-anna')")
    await window.open(world)
    await window.says("as anna", "#who")


def noted(world: World) -> list[str]:
    return [event.text for event in world.gate.events.latest() if event.kind == "operator"]


async def test_a_key_is_issued_shown_once_limited_and_revoked(world: World, window: Window, tmp_path: Path) -> None:
    await world.engine()
    store = {"data": str(tmp_path)}
    await world.gateway(tenants=TENANTS, store=store, identity={"made_keys": True}, **ANNA)
    await as_anna(world, window)
    page = window.page
    await window.says("There are no keys.", "#keys")
    await page.click("#key-new")
    await window.fill(tenant="team", name="ci", models="sim, big-*", max_output_tokens="7", running="4")
    said = "Issue the key ci for tenant team? It may: models sim big-*, answers of 7 tokens, running 4."
    await window.says(said, "#ask-text")
    assert noted(world) == []
    await page.click("#ask-yes")
    await window.says("pk-", "#once-key")
    await window.says("The key ci of tenant team works now. It is not shown again.", "#once-about")
    key = await page.text_content("#once-key") or ""
    assert (await world.chat_with({"authorization": f"Bearer {key}"})).status == 200
    await page.click("#once-copy")
    await page.click('#once button[value="done"]')
    await window.says("running 4", '#keys tr[data-key="ci"]')
    assert key not in await page.content()

    await window.change('#keys tr[data-key="ci"]', "key-limit")
    await window.fill(running="", requests_per_minute="1")
    await window.says("Limit the key ci of tenant team: running 4 → none, requests_per_minute none → 1?", "#ask-text")
    await page.click("#ask-yes")
    await window.says("requests_per_minute 1", '#keys tr[data-key="ci"]')
    answers = [(await world.chat_with({"authorization": f"Bearer {key}"})).status for _ in range(2)]
    assert answers == [200, 429]

    await window.change('#keys tr[data-key="ci"]', "key-revoke")
    await window.says("Revoke the key ci of tenant team?", "#ask-text")
    await page.click("#ask-yes")
    await page.wait_for_selector('#keys tr[data-key="ci"]', state="detached")
    assert (await world.chat_with({"authorization": f"Bearer {key}"})).status == 401
    assert [line.partition(", 127")[0] for line in noted(world)] == [
        "remove keys ci (by anna",
        "keys ci limit requests_per_minute=1 (by anna",
        "keys name=ci tenant=team (by anna",
    ]


async def test_a_no_changes_nothing_and_a_refusal_is_shown(world: World, window: Window, tmp_path: Path) -> None:
    await world.engine()
    store = {"data": str(tmp_path)}
    await world.gateway(tenants=TENANTS, store=store, identity={"made_keys": True}, **ANNA)
    await as_anna(world, window)
    page = window.page
    await page.click("#key-new")
    await window.fill(tenant="team", name="ci")
    await page.click('#ask button[value="no"]')
    await page.click("#key-new")
    await page.click("#form-cancel")
    assert noted(world) == []
    await page.click("#key-new")
    await window.fill(tenant="nobody", name="ci")
    await page.click("#ask-yes")
    await window.says("There is no tenant nobody in the settings.", "#notice")
    await window.control("key-new")
    await window.fill(tenant="team", name="ci", running="many")
    await page.click("#ask-yes")
    await window.says("limits.running", "#notice")


async def test_a_tenants_weight_and_limits_are_set_and_taken_back(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "team", "weight": 2, "limits": {"running": 8}}], **ANNA)
    await as_anna(world, window)
    page, row = window.page, '#tenants tr[data-key$="team"]'
    await window.change(row, "tenant-steer")
    assert await page.input_value('#form [name="weight"]') == "2"
    assert await page.input_value('#form [name="running"]') == "8"
    await window.fill(weight="5", running="", queued="20")
    await window.says("Set for tenant team: weight 2 → 5, running 8 → none, queued none → 20?", "#ask-text")
    await page.click("#ask-yes")
    await window.says("20 of 20 queued", row)
    cells = await page.locator(f"{row} td").all_text_contents()
    assert "5" in cells, "the weight in force"
    told = (await world.ask("GET", "/admin/tenants/team", headers={"authorization": "Bearer for-everything"})).json()
    assert (told["weight"], told["limits"]["running"]["value"], told["limits"]["queued"]["value"]) == (5, None, 20)
    await window.change(row, "tenant-steer")
    await page.click("#form-reset")
    await window.says("Take back all that operators set for tenant team?", "#ask-text")
    await page.click("#ask-yes")
    await window.says("8 of 8 running", row)
    assert [line.partition(", 127")[0] for line in noted(world)] == [
        "remove tenants team weight (by anna",
        "remove tenants team limit (by anna",
        "tenants team limit queued=20 until_reload=False (by anna",
        "tenants team weight weight=5 until_reload=False (by anna",
    ]


async def test_requests_are_searched_and_a_story_is_opened(world: World, window: Window) -> None:
    clients = await crowded(world)
    await window.open(world)
    await window.page.fill("#search-words", "team-a waiting")
    await window.page.keyboard.press("Enter")
    await window.says("2 of 4 requests at ", "#order")
    assert await window.page.text_content('#tabs [aria-pressed="true"]') == "found 2"
    await window.open_groups()
    await window.page.click('#listed tr[data-key="w0"] button[data-verb="explain"]')
    await window.says("Request w0", "#explain-title")
    await window.says("Waits now: all slots it may use are taken", "#explain-story")
    assert await window.page.is_visible("#explain-again")
    await let_go(clients)
    await world.until(lambda: world.picture().waiting == 0)
    await window.page.click("#explain-again")
    await window.says("Ended ", "#explain-story")
    assert not await window.page.is_visible("#explain-again")
    await window.page.keyboard.press("Escape")
    await window.page.fill("#search-words", "no such words")
    await window.page.keyboard.press("Enter")
    await window.says("0 of 4 requests", "#order")
    await window.page.click('#tabs [data-tab="ended"]')
    await window.says("Latest first.", "#order")


async def test_a_test_request_shows_where_it_went(world: World, window: Window) -> None:
    engine = await world.engine()
    await world.gateway(tenants=TENANTS, **ANNA)
    await as_anna(world, window)
    await window.change('#tenants tr[data-key$="team"]', "tenant-try")
    assert await window.page.input_value('#form [name="tenant"]') == "team"
    await window.fill(model="sim", prompt="secret words")
    await window.says("Send a test request to sim as tenant team? It counts as one of theirs.", "#ask-text")
    await window.page.click("#ask-yes")
    await window.says("Answered with 200: “", "#explain-story")
    await window.says(f" to {engine.url.removeprefix('http://')}, one of 1 open", "#explain-story")
    await window.says("as tenant team", "#explain-title")
    await window.page.keyboard.press("Escape")
    await window.control("try")
    await window.fill(tenant="other", model="nothing")
    await window.page.click("#ask-yes")
    await window.says("Refused with 404 (model_not_found): ", "#explain-story")
    said = [line.partition(", 127")[0] for line in noted(world)]
    assert said == ["try model=nothing tenant=other (by anna", "try model=sim tenant=team (by anna"]


async def test_a_link_for_a_wall_does_none_of_it(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(tenants=TENANTS, **ANNA)
    await window.page.goto(f"{world.url}/admin/#wall={for_wall('for-everything')}")
    await window.says("Idle: nothing waits, nothing runs.")
    acts = ":is([data-verb]:not([data-verb='explain']), [data-menu], #search, #keys, #add)"
    assert await window.page.locator(f"{acts}:visible").count() == 0
    await window.page.evaluate("location.hash = '#'")
    await window.page.click("#controls")
    assert await window.page.locator(f"{acts}:visible").count() == 0, "nor beside the wall"


async def test_a_tenant_has_one_colour_everywhere(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(slots=1)
    for name in ("ann", "bob", "ann", "bob"):
        client = await world.client_for(chat(tokens=4_000, stream=True), {"x-tenant-id": name})
    await world.until(lambda: world.picture().waiting == 3)
    await window.open(world)
    await window.says("bob", "#requests")
    colours: dict[str, set[str]] = {}
    marks = await window.page.evaluate(
        """() => [...document.querySelectorAll("#bars li, td[data-shade]")].map((node) => [
          node.querySelector(".name")?.textContent ?? node.textContent,
          getComputedStyle(node).getPropertyValue("--shade")])"""
    )
    for name, colour in marks:
        colours.setdefault(name, set()).add(colour)
    assert (len(colours["ann"]), len(colours["bob"])) == (1, 1)
    assert colours["ann"] != colours["bob"]
    assert sum(name in ("ann", "bob") for name, _ in marks) >= 6, "bars, tenants, and requests"
    client.hang_up()
    for one in world.clients:
        one.hang_up()
