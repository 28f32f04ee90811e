"""Seven situations at three widths: is it fine, who suffers, whose doing? All stands there, and nothing overflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.gateway.conftest import World, chat, request
from tests.page.conftest import Window

SIZES = {1400: 1000, 1920: 1080, 390: 844}
FIVE = [
    "waiting here",
    "waiting inside engines",
    "first token p99, streams of all",
    "tokens in and out / s",
    "went wrong",
]
Situation = Callable[[World, Window], Awaitable[tuple[str, str, str]]]


async def stream(world: World, tenant: str, tokens: int = 4_000) -> None:
    await world.client(request(body=chat(tokens=tokens, stream=True), headers={"x-tenant-id": tenant}))


async def idle(world: World, window: Window) -> tuple[str, str, str]:
    await world.engine()
    await world.gateway(tenants=[{"name": "nightly", "limits": {"running": 4, "requests_per_minute": 60}}])
    await window.open(world)
    await window.says("left: 60 of 60 requests / min, 4 of 4 running", "#bars")
    await window.says("60 of 60 requests / min", "#tenants")
    return "● ok", "Idle: nothing waits, nothing runs.", "nightly"


async def saturated(world: World, window: Window) -> tuple[str, str, str]:
    await world.engine()
    await world.gateway(slots=2)
    for at in range(9):
        await stream(world, "nightly" if at < 8 else "chat")
    await window.open(world)
    await window.says("▸ 6 requests", "#requests")
    assert await window.page.locator("#listed tbody tr").count() == 2, "six requests are one row"
    await window.page.click('#listed button:text-is("Explain oldest")')
    await window.says("all slots it may use are taken", "#explain-story")
    await window.page.keyboard.press("Escape")
    return "▲ busy", "all slots are taken, 2 of 2", "nightly"


async def engine_dead(world: World, window: Window) -> tuple[str, str, str]:
    engines = [await world.engine() for _ in range(2)]
    await world.gateway()
    await stream(world, "chat")
    await window.open(world)
    await world.until(lambda: world.picture().running == 1)
    await engines[1].close()
    world.engines.remove(engines[1])
    await window.says("is down")
    return "■ attention", "is down", "chat"


async def flood(world: World, window: Window) -> tuple[str, str, str]:
    await world.engine()
    await world.gateway(slots=1, queue={"max_requests": 2})
    for at in range(12):
        await stream(world, "chat" if at == 0 else "crawler")
    await window.open(world)
    await window.says("refused", "#curves .failures:not([hidden])")
    return "■ attention", "were refused: the queue is full (of crawler)", "crawler"


async def drained(world: World, window: Window) -> tuple[str, str, str]:
    await world.engine()
    await world.gateway()
    await stream(world, "chat")
    await window.open(world)
    await world.until(lambda: world.picture().running == 1)
    await window.control("drain")
    await window.page.click("#ask-yes")
    return "◆ stopped", "nothing new is let in", "chat"


async def own_limit(world: World, window: Window) -> tuple[str, str, str]:
    await world.engine()
    await world.gateway(tenants=[{"name": "reports", "limits": {"requests_per_minute": 2}}])
    for _ in range(5):
        await world.ask(body=chat(tokens=2), headers={"x-tenant-id": "reports"})
    await window.open(world)
    return (
        "● ok",
        "Refused by their own limit in the last minute: 3 requests of reports (requests_per_minute).",
        "reports",
    )


async def queueing_off(world: World, window: Window) -> tuple[str, str, str]:
    await world.engine()
    await world.gateway(queue={"enabled": False})
    await stream(world, "chat")
    await window.open(world)
    return "▲ busy", "First tokens come late: half of the streams waited", "chat"


SITUATIONS: dict[str, Situation] = {
    f.__name__: f for f in (idle, saturated, engine_dead, flood, drained, own_limit, queueing_off)
}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_it_is_seen_at_each_width_and_on_a_wall(world: World, window: Window, name: str) -> None:
    tone, sentence, tenant = await SITUATIONS[name](world, window)
    page = window.page
    for width, height in SIZES.items():
        await page.set_viewport_size({"width": width, "height": height})
        for place in ("#", "#wall"):
            if name == "queueing_off":
                world.gate.metrics.failures.first_token(12.0)  # counts for ten seconds
            await page.evaluate("(place) => { location.hash = place; }", place)
            await window.says(sentence)
            await window.says(tone, "#tone")
            await window.says(tenant, "#bars")
            where = f"{name} at {width} pixels, {place}"
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), where
            five = await page.locator("#five dt").all_inner_texts()
            assert [text.split(",")[0] for text in five] == [text.split(",")[0] for text in FIVE], where
            assert all(await page.locator("#five dd").all_inner_texts()), where
            top = await page.evaluate("document.querySelector('#sentence').getBoundingClientRect().top")
            assert top < 110, f"the sentence is first: {where}"
            if place == "#wall":
                assert await page.locator(":is(button, input):visible").count() == 0, "a wall changes nothing"
    await page.set_viewport_size({"width": 1920, "height": 1080})
    sizes = await page.evaluate(
        "['#lead', '#five dd'].map((where) => getComputedStyle(document.querySelector(where)).fontSize)"
    )
    assert sizes == ["44px", "68px"]
    for client in world.clients:
        client.hang_up()


async def test_keyboard_and_screen_reader_reach_everything(world: World, window: Window) -> None:
    """A menu opens by keyboard, its items have roles, Escape returns; the sentence is live, each picture has a name."""
    await world.engine()
    await world.gateway()
    await window.open(world)
    await window.says("Idle")
    await window.says("Idle", "#spoken")
    page = window.page
    assert await page.get_attribute("#spoken", "aria-live") == "polite"
    await page.focus("#endpoints button[data-menu]")
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.getAttribute('role')") == "menuitem"
    await page.keyboard.press("ArrowDown")
    assert await page.evaluate("document.activeElement.textContent") == "Slots"
    await page.keyboard.press("Escape")
    await page.wait_for_function("() => document.activeElement.matches('#endpoints button[data-menu]')")
    nameless = await page.evaluate(
        """() => [...document.querySelectorAll(":is(section, canvas, button, input):not([hidden])")].filter((node) =>
          !node.getAttribute("aria-label") && !node.getAttribute("aria-labelledby") && !node.textContent.trim()
          && !node.labels?.length).map((node) => node.outerHTML)"""
    )
    assert nameless == []
    roles = await page.evaluate("[...document.querySelectorAll('canvas')].map((node) => node.getAttribute('role'))")
    assert set(roles) == {"img"}
