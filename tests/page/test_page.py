"""The live page in a browser: it shows a flood, explains, acts, comes back after a restart, and stays quick."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from playwright.async_api import Page

from penstock.gateway.admin.own_token import for_wall
from tests.gateway.admin.test_admin_state import crowded, let_go
from tests.gateway.conftest import World, chat, fault, request
from tests.page.conftest import Window
from tests.ports import free_port

FRAME_MS_MAX = 100
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
FRAMES = 6


async def cpu_ms_per_frame(page: Page) -> float:
    """All the page's thread does for a frame, in its CPU time: what else the machine has to do does not count."""
    browser = await page.context.new_cdp_session(page)
    await browser.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def spent() -> tuple[float, int]:
        told = await browser.send("Performance.getMetrics")
        metrics = {metric["name"]: metric["value"] for metric in told["metrics"]}
        return metrics["TaskDuration"] * 1000, await page.evaluate("window.penstockFrame.count")

    before_ms, first = await spent()
    await page.wait_for_function("(last) => window.penstockFrame.count >= last", arg=first + FRAMES)
    after_ms, last = await spent()
    return (after_ms - before_ms) / (last - first)


async def test_it_shows_a_flood_as_it_comes_and_goes(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(slots=2)
    await window.open(world)
    await window.says("Idle: nothing waits, nothing runs.")
    clients = [
        await world.client(request(body=chat(tokens=4000, stream=True), headers={"x-tenant-id": f"team-{at % 2}"}))
        for at in range(9)
    ]
    await window.says("Holding 7")
    await window.says("all slots are taken, 2 of 2 on 1 engine")
    await window.says("team-1", "#tenants")
    await window.says("all slots it may use are taken", "#requests")
    await let_go(clients)
    await window.says("Idle: nothing waits, nothing runs.")


async def test_it_explains_a_waiting_request(world: World, window: Window) -> None:
    clients = await crowded(world)
    await window.open(world)
    await window.open_groups()
    await window.page.click('#requests tr[data-key="w1"] button[data-verb="explain"]')
    await window.says("all slots it may use are taken (slots_full)", "#explain-story")
    await window.page.keyboard.press("Escape")
    await window.page.click("#controls")
    await window.page.fill("#find-id", "w2")
    await window.page.keyboard.press("Enter")
    await window.says("Request w2", "#explain-title")
    await let_go(clients)


async def test_it_drains_an_endpoint_and_cancels_a_request(world: World, window: Window) -> None:
    clients = await crowded(world)
    await window.open(world)
    await window.change("#endpoints", "endpoint-drain")
    await window.page.click("#ask-yes")
    await window.says("◆ draining", "#endpoints")
    assert world.picture().endpoints[0].state == "draining"
    await window.says("drain (by 127.0.0.1)", "#events")
    await window.open_groups()
    await window.change('#requests tr[data-key="w0"]', "cancel")
    await window.page.click("#ask-yes")
    assert (await clients[1].answer()).error()["code"] == "operator"
    await window.change("#endpoints", "endpoint-resume")
    await window.says("● up", "#endpoints")
    await let_go(clients)


async def test_it_pauses_everything_and_resumes(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway()
    await window.open(world)
    await window.control("pause")
    await window.page.click("#ask-yes")
    await window.says("ago): everything.")
    await window.page.click("#resume")
    await window.says("Idle: nothing waits, nothing runs.")


async def test_it_begins_with_the_drain_of_everything_and_its_remedy(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(slots=2)
    for tenant in ("team-a", "team-b"):
        running = await world.client_for(chat(tokens=4_000, stream=True), {"x-tenant-id": tenant})
        await running.begun()
    await window.open(world)
    await window.says("all it asks for", '#tenants tr[data-key$="team-a"]')
    await window.control("drain")
    await window.page.click("#ask-yes")
    await window.says("Being drained by an operator (127.0.0.1, ")
    await window.says("ago): nothing new is let in.")
    assert (await world.chat_with({"x-tenant-id": "team-a"})).error()["code"] == "draining"
    await window.says("ago): nothing new is let in, 1 request refused for it in the last minute.", "#lead")
    await window.says("2 requests still run.", "#rest")
    await window.says("◆ stopped", "#tone")
    await window.says("penstock resume", "#advice code")
    assert await window.page.locator("#models button[data-menu]").count() == 0, "only Resume, above, takes it back"
    assert await window.page.locator("#resume:visible").text_content() == "Resume"
    await window.says("all it asks for", '#tenants tr[data-key$="team-b"]')
    told = await window.page.text_content('#tenants tr[data-key$="team-a"]') or ""
    assert "all it asks for" not in told, "one of its requests was just refused"


async def test_it_shows_failures_with_whose_they_are(world: World, window: Window) -> None:
    engine = await world.engine()
    await world.gateway(queue={"max_wait": 0.2})
    await window.open(world)
    await window.says("Nothing went wrong in the last minute.", "#failures")
    fault(engine, "die", count=1, after_bytes=600)
    broken = await world.ask(body=chat(tokens=50, stream=True), headers={"x-tenant-id": "nightly"})
    assert b"stream_broken" in broken.body
    name = engine.url.removeprefix("http://")
    await window.says("■ attention", "#tone")
    await window.says(f"Last minute: 1 stream of nightly broken at {name}.")
    await window.says("the log", "#advice")
    await window.says("broken", "#failures")
    await window.says(f"{name} broke 1 stream of nightly", "#events")
    await window.says("1 broken", "#numbers")
    await window.says("1 broken", '#tenants tr[data-key$="nightly"]')
    await window.page.wait_for_function(
        "() => /broken .*max 1/.test(document.querySelector('#curves .failures:not([hidden])')?.textContent)"
    )


async def test_an_operators_word_looks_other_than_a_fault_in_both_themes(world: World, window: Window) -> None:
    """Both were orange; a row of a model was red for either."""
    engines = [await world.engine() for _ in range(2)]
    await world.gateway()
    await window.open(world)
    shade = "(where) => getComputedStyle(document.querySelector(where)).color"
    rows = [f'#endpoints tr[data-key="{engine.url.removeprefix("http://")}"]' for engine in engines]
    away = "#models td:nth-child(7)"
    await window.change(rows[0], "endpoint-drain")
    await window.page.click("#ask-yes")
    await window.says("◆ drained", rows[0])
    await window.says("1 of 2", away)
    drained: dict[Literal["light", "dark"], str] = {}
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for theme in themes:
        await window.page.emulate_media(color_scheme=theme)
        drained[theme] = await window.page.evaluate(shade, f"{rows[0]} td.hand")
        assert await window.page.evaluate(shade, f"{away}.hand") == drained[theme]
    await engines[1].close()
    world.engines.remove(engines[1])
    await window.says("■ down", rows[1])
    down = engines[1].url.removeprefix("http://")
    assert await window.page.locator("#endpoints tbody tr").first.get_attribute("data-key") == down
    await window.says("0 of 2", away)
    for theme, by_hand in drained.items():
        await window.page.emulate_media(color_scheme=theme)
        fault = await window.page.evaluate(shade, f"{rows[1]} td.bad")
        assert fault != by_hand
        assert await window.page.evaluate(shade, f"{away}.bad") == fault
    await window.says("■ attention", "#tone")


async def test_a_number_and_its_unit_stay_on_one_line(world: World, window: Window) -> None:
    """At 390 pixels "%" and "ago" began lines."""
    await world.engine()
    await world.gateway()
    await window.open(world)
    shown = await window.page.evaluate(
        """async () => {
          const { percent, seconds, whole } = await import("./tables.js");
          return [percent(0.5), seconds(14.2), seconds(0.02), whole("down (for 14.2 s), 3 ms ago, 90 % of 5 slots")];
        }"""
    )
    assert shown == ["50\xa0%", "14.2\xa0s", "20\xa0ms", "down (for 14.2\xa0s), 3\xa0ms\xa0ago, 90\xa0% of 5 slots"]


async def test_a_range_with_less_history_reports_its_beginning(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway()
    await window.open(world)
    await window.page.wait_for_function(
        "() => /^there is only .* of it yet, since \\d\\d:/.test(document.querySelector('#span').textContent)"
    )


async def test_curves_have_ranges_and_show_the_values_under_the_pointer(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway()
    running = await world.streaming(tokens=4_000)
    await running.begun()
    await window.open(world)
    curve = "#curves figure:nth-child(4)"  # what runs, and the slots
    await window.says("1 · slots 4", curve)
    for label, pressed in (("1 h", "3600"), ("1 min", "60")):
        await window.page.click(f'#ranges button:text-is("{label}")')
        assert await window.page.evaluate("localStorage.getItem('penstock-range')") == pressed
        assert await window.page.locator("#ranges button[aria-pressed=true]").text_content() == label
    await window.page.wait_for_function("() => window.penstockFrame.count >= 4")
    box = await window.page.locator(f"{curve} canvas").bounding_box()
    assert box is not None
    await window.page.mouse.move(box["x"] + box["width"] * 0.85, box["y"] + 30)
    await window.says("running1 · slots 4 (−", curve)  # so many seconds ago
    await window.says("0 (−", "#curves figure:nth-child(1)")  # all curves show the same moment
    await window.page.mouse.move(5, 5)
    await window.page.focus("#curves")
    await window.page.keyboard.press("ArrowLeft")
    await window.says("(now)", curve)
    await window.page.keyboard.press("Escape")
    gone = "(where) => !document.querySelector(where).textContent.includes('(now)')"
    await window.page.wait_for_function(gone, arg=curve)
    told = await window.page.get_attribute(f"{curve} canvas", "aria-label")
    assert told == "running: 1 · slots 4", "for who does not see it"
    running.hang_up()


async def test_words_numbers_and_lines_are_explained(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway()
    await window.open(world)
    await window.says("1 of 1 engines is up.", "#rest")
    await window.says("–", "#models tbody td:nth-child(6)")  # nothing was ever sent, so nothing waited for 0 ms
    assert await window.page.locator(":is(#numbers > div, #curves figure):not([title])").all_text_contents() == []
    assert await window.page.locator("#curves figure:visible .piece.p1").count() == 2, "slots, and p99"
    assert not await window.page.is_visible("#legend dl")
    await window.page.click("#legend summary")
    assert await window.page.is_visible("#legend dl")
    await window.says("Of answers that stream they count as they come", "#legend")
    await window.page.set_viewport_size({"width": 390, "height": 844})
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_what_the_curves_keep_is_bounded(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway()
    await window.open(world)
    await window.says("Idle")
    kept = await window.page.evaluate(
        """async () => {
          const { Curve } = await import("./curves.js");
          const curve = new Curve(document.createElement("div"), "x", { x: "" }, String);
          for (let at = 0; at < 10000; at++) curve.lines[0].add(at, at === 7000 ? 99 : 1);
          const { points } = curve.lines[0];
          return [points.length, Math.max(...points.map((p) => p[1])), points[0][0]];
        }"""
    )
    assert kept[0] <= 1_000
    assert kept[1] == 99, "no spike is lost"
    assert kept[2] <= 10_000 - 3_600, "an hour is there"


async def test_it_comes_back_after_a_restart(world: World, window: Window) -> None:
    await world.engine()
    listen = f"127.0.0.1:{free_port()}"
    gate = await world.gateway(listen=listen)
    await window.open(world)
    await window.says("live", "#link")
    await gate.close()
    await window.says("reconnecting", "#link")
    await world.gateway(listen=listen)
    await window.says("live", "#link")
    await window.says("Idle: nothing waits, nothing runs.")


async def test_this_machine_looks_and_sees_no_button_until_it_has_typed_the_token(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway()
    await window.open(world, with_token=False)
    await window.says("Idle: nothing waits, nothing runs.")
    assert await window.page.locator(":is(button[data-verb], button[data-menu]):visible").count() == 0
    await window.page.fill("#token", world.gate.own_token.token)
    await window.page.keyboard.press("Enter")
    await window.change("#endpoints", "endpoint-drain")
    assert world.picture().endpoints[0].state == "up"
    await window.page.click("#ask-yes")
    await window.says("◆ drained", "#endpoints")


async def test_a_tenant_is_paused_limited_and_cleared_after_a_question(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "nightly"}])
    client = await world.client_for(chat(tokens=4000, stream=True), {"x-tenant-id": "nightly"})
    await world.until(lambda: world.picture().running == 1)
    await window.open(world)
    await window.change("#tenants", "tenant-pause")
    await window.says("Pause tenant nightly?", "#ask-text")
    assert world.picture().paused_tenants == []
    await window.page.click("#ask-yes")
    await window.says("Paused by an operator: tenant nightly.")
    waits = await world.client_for(chat(), {"x-tenant-id": "nightly"})
    await world.until(lambda: world.picture().waiting == 1)
    await window.change("#tenants", "tenant-cancel")
    await window.page.click("#ask-yes")
    assert (await waits.answer()).header("x-penstock-reason") == "operator"
    await window.change("#tenants", "tenant-steer")
    await window.fill(running="2", weight="3")
    await window.says("Set for tenant nightly: weight 1 → 3, running none → 2?", "#ask-text")
    await window.page.click("#ask-yes")
    await window.change("#tenants", "tenant-resume")
    await world.until(lambda: world.picture().tenants and world.picture().tenants[0].limits.running == 2)
    client.hang_up()


async def test_it_asks_for_a_token_and_shows_nothing_without_one(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(admin={"token": "all-of-it", "read_token": "only-look"})
    await window.open(world)
    await window.says("admin token", "#notice")
    assert await window.page.text_content("#sentence") == "…"
    assert await window.page.locator("main section:visible").count() == 0
    await window.says("The token is admin.token in the settings", "#door")
    assert await window.page.is_visible("#door")
    await window.page.fill("#token", "only-look")
    await window.page.keyboard.press("Enter")
    await window.says("Idle: nothing waits, nothing runs.")
    assert await window.page.locator(":is(button[data-verb], button[data-menu]):visible").count() == 0
    assert not await window.page.is_visible("#add")
    await window.page.fill("#token", "all-of-it")
    await window.page.keyboard.press("Enter")
    await window.change("#endpoints", "endpoint-drain")
    await window.page.click("#ask-yes")
    await window.says("◆ drained", "#endpoints")


async def test_names_stay_names(world: World, window: Window) -> None:
    names = (EVIL, "x" * 10_000, "\u05de\u05e1\u05e4\u05e8\u202eevil", "tab\there")
    clients = await crowded(world, tenants=tuple(n.encode().decode("latin-1") for n in names), waiting=4)
    await window.open(world)
    await window.says(EVIL, "#tenants")
    await window.says("x" * 60, "#tenants")
    assert await window.page.locator("main script, main img").count() == 0
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await window.page.set_viewport_size({"width": 390, "height": 844})
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await let_go(clients)


async def test_a_thousand_tenants_and_256_endpoints_stay_quick(world: World, window: Window) -> None:
    away: list[dict[str, Any]] = [
        {"url": f"http://127.0.0.1:{port}", "engine": "openai", "models": ["sim"]} for port in range(1, 257)
    ]
    await world.gateway(endpoints=away, health={"probe_interval": 30}, observe={"interval": 30, "fast_interval": 30})
    clients = []
    for at in range(1_000):
        clients.append(await world.client(request(body=chat(stream=True), headers={"x-tenant-id": f"tenant-{at:04}"})))
        if at % 50 == 0:
            await asyncio.sleep(0)
    await world.until(lambda: world.picture().waiting == 1_000)
    await window.open(world)
    await window.says("Holding 1,000")
    await window.says("and 985 more", "#tenants")
    for section in ("#tenants", "#endpoints", "#listed"):
        await window.page.click(f"{section} > button")
    assert await window.page.locator("#endpoints tbody tr").count() == 256
    frame_ms = await cpu_ms_per_frame(window.page)
    print(f"a frame takes {frame_ms:.0f} ms: script, layout and paint of the page's thread")  # shown by ARGS=-rP
    assert frame_ms < FRAME_MS_MAX
    await let_go(clients)
    await world.until(lambda: world.picture().waiting == 0)


async def test_a_gateway_that_is_gone_is_said_in_red_with_the_time_of_its_last_word(
    world: World, window: Window
) -> None:
    """It said "Is something wrong? No. ● ok" for ever, dimmed."""
    await world.engine()
    await world.gateway()
    await window.open(world)
    await window.says("Idle: nothing waits")
    await window.says("as of now", "#age")
    world.gate.watch.tick = lambda: None  # type: ignore[method-assign]
    await window.says("No word from the gateway since ", "#lead")
    await window.says("■ lost", "#tone")
    await window.says("Nobody knows.", "#verdict")
    assert await window.page.title() == "lost – Penstock"
    assert await window.page.evaluate("document.body.classList.contains('lost')")


async def test_a_link_for_a_wall_is_kept_by_the_browser_and_shows_endpoints_as_tiles(
    world: World, window: Window
) -> None:
    await world.engine()
    await world.gateway(admin={"token": "admins-0123456789"})
    token = for_wall("admins-0123456789")
    await window.page.goto(f"{world.url}/admin/#wall={token}")
    await window.says("● up", "#tiles li .state")
    assert window.page.url.endswith("/admin/#wall"), "the address shows the token no more"
    assert not await window.page.locator("#controls").is_visible()
    await window.page.goto("about:blank")
    await window.page.goto(f"{world.url}/admin/#wall")
    await window.says("● up", "#tiles li .state")
    assert await window.page.evaluate("document.body.classList.contains('writes')") is False


async def test_a_wall_without_a_valid_token_says_how_to_get_one(world: World, window: Window) -> None:
    await world.engine()
    await world.gateway(admin={"token": "admins-0123456789"})
    await window.page.goto(f"{world.url}/admin/#wall=wrong")
    await window.says("This is not an admin token.", "#notice")
    await window.says("penstock admin wall-link", "#door")
    assert await window.page.locator("#notice").is_visible()
    assert not await window.page.evaluate("document.body.classList.contains('lost')")
