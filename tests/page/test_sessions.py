"""Agents' sessions on the page: who holds the memory, who waits, and an operator's verbs."""

from __future__ import annotations

from tests.gateway.conftest import World, chat, request
from tests.page.conftest import Window

PROMPT = "word " * 400  # some 500 tokens


async def test_sessions_are_shown_while_they_hold_memory_and_can_be_paused(world: World, window: Window) -> None:
    await world.engine(kv_blocks=50, block_size=16, step_s=0.05)  # 800 tokens
    await world.gateway(slots=8, sessions={"wait": "60s"})
    await world.until(lambda: (its := world.picture().sessions) is not None and its.memory[0].kv_tokens == 800)
    await window.open(world)
    await window.says("Idle")
    assert not await window.page.locator("#sessions").is_visible()
    clients = []
    for session, tenant in (("first", "search"), ("second", "nightly")):
        headers = {"x-claude-code-session-id": session, "x-tenant-id": tenant}
        clients.append(await world.client(request(body=chat(PROMPT, tokens=200, stream=True), headers=headers)))
    await window.says("1 hold KV memory, of them 0 idle · 1 wait", "#sessions-said")
    await window.says("of 800 tokens, 1 session · search 100", "#memory")
    await window.says("▲ waiting for", "#sessions")
    await window.change('#sessions tr[data-key="nightly\\a second"]', "session-pause")
    await window.page.click("#ask-yes")
    await window.says("◆ paused by an operator", "#sessions")
    found = world.gate.driver.scheduler.session("nightly", "second", now=world.gate.driver.now())
    assert found is not None
    assert found.stopped
    await window.page.set_viewport_size({"width": 390, "height": 844})
    assert await window.page.evaluate("document.documentElement.scrollWidth") <= 390
    await window.page.set_viewport_size({"width": 1400, "height": 1000})
    await window.change('#sessions tr[data-key="nightly\\a second"]', "session-resume")
    await window.says("▲ waiting for", "#sessions")
    for client in clients:
        client.hang_up()
