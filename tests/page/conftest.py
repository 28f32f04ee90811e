"""A browser that looks at the gateway of the server tests' world. Run by `make test-page`, which gets the browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import ConsoleMessage, Page, async_playwright

from tests.gateway.conftest import World, pytest_asyncio_loop_factories, world

__all__ = ["pytest_asyncio_loop_factories", "world"]

WAIT_MS = 20_000


class Window:
    """A page that is open, and what went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        page.on("console", self._said)

    def _said(self, message: ConsoleMessage) -> None:
        """What the browser refuses is a fault, and so is a question that the gateway cannot answer (409)."""
        if any(word in message.text for word in ("Content Security", "status of 409")):
            self.errors.append(message.text)

    async def open(self, world: World, *, with_token: bool = True) -> None:
        """As somebody sees it who has typed in the gateway's own token, where none is set."""
        if with_token and not world.gate.reload.settings.admin.has_token:
            token = world.gate.own_token.token
            await self.page.add_init_script(f"sessionStorage.setItem('penstock-token', '{token}')")
        await self.page.goto(f"{world.url}/admin/")

    async def says(self, text: str, where: str = "#sentence") -> None:
        """Wait until a text stands somewhere."""
        await self.page.wait_for_function(
            "([where, text]) => document.querySelector(where)?.textContent.includes(text)", arg=[where, text]
        )

    async def change(self, row: str, verb: str) -> None:
        """Choose a verb of a row's menu."""
        await self.page.click(f"{row} button[data-menu]")
        await self.page.click(f'#menu button[data-verb="{verb}"]')

    async def fill(self, **fields: str) -> None:
        """Fill fields of the form that is open, and send it. A question follows."""
        for name, value in fields.items():
            await self.page.fill(f'#form [name="{name}"]', value)
        await self.page.click("#form-yes")

    async def open_groups(self) -> None:
        """Open all groups of requests that are closed."""
        while await self.page.locator('#listed button[aria-expanded="false"]').count():
            await self.page.locator('#listed button[aria-expanded="false"]').first.click()

    async def control(self, verb: str) -> None:
        """Choose a verb of the page's controls."""
        await self.page.click("#controls")
        await self.page.click(f'#stops button[data-verb="{verb}"]')


@pytest.fixture
async def window(world: World) -> AsyncIterator[Window]:
    """Closed before the gateway is, as `world` looks that no connection is left."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1400, "height": 1000})
        shown = Window(page)
        yield shown
        await browser.close()
    assert shown.errors == []
