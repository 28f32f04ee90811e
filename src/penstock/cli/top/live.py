"""`penstock top` while it runs: a picture a second, and a new one at each key.

A thread asks the gateway, so keys work while it does not answer. While it is away the last picture stays, with the
error above it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from penstock.cli.admin_client import GatewayError
from penstock.cli.top import views
from penstock.cli.top.keyboard import Keyboard
from penstock.cli.top.wishes import KEYS, State, Wishes

INTERVAL_S = 1.0
NAME_CHARS_MAX = 24
LOOK_S = 0.05  # between two checks for a new picture; keys work at once


class Asker:
    """Asks for the state once a second, in a daemon thread."""

    def __init__(self, ask: Callable[[], State]) -> None:
        self._ask = ask
        self._over = threading.Event()
        self.answers = 0  #: and failures
        self.state: State | None = None  #: the last one
        self.error: Exception | None = None  #: why there is no newer one
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Ask no more, and drop an answer under way."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.state, self.error = self._ask(), None
            except Exception as error:  # noqa: BLE001 - raised or shown by `live`
                self.error = error
            self.answers += 1
            self._over.wait(INTERVAL_S)


def live(ask: Callable[[], State], console: Console, keyboard: Keyboard) -> None:
    """Draw until `q`. Raises errors of asking, except for a gateway that is away for now."""
    asker, wishes = Asker(ask), Wishes()
    shown: State | None = None
    seen = 0
    try:
        with keyboard, Live(console=console, screen=True, auto_refresh=False) as screen:
            while True:
                keys = keyboard.keys(LOOK_S)
                if "q" in keys or "Q" in keys:
                    return
                answers, error = asker.answers, asker.error
                if error is not None and (asker.state is None or not isinstance(error, GatewayError)):
                    raise error
                if asker.state is None or (not keys and answers == seen):
                    continue
                seen = answers
                shown = asker.state if shown is None or not wishes.is_still else shown
                for key in keys:
                    wishes.pressed(key, shown)
                trouble = "" if error is None else f"trying again: {error}"
                screen.update(picture(shown, wishes, console, trouble, keyboard.heard), refresh=True)
    finally:
        asker.close()


def picture(
    state: State,
    wishes: Wishes,
    console: Console,
    trouble: str = "",
    has_keys: bool = True,  # noqa: FBT001, FBT002 - the last of a row
) -> RenderableType:
    parts: list[RenderableType] = []
    if trouble:
        parts.append(_line(trouble, "bold red"))
    if wishes.shows_keys:
        parts += [_line(f"{key:6} {meaning}", "cyan") for key, meaning in KEYS]
    height = console.height - len(parts) - 1
    foot = _line(_foot(state, wishes) if has_keys else "Ctrl-C leaves", "dim")
    return Group(*parts, views.screen(wishes.seen(state), console.width, height), foot)


def _foot(state: State, wishes: Wishes) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(state["at"]))
    still = f"STILL since {at}, p go on" if wishes.is_still else "p stop"
    tenant, endpoint = (views.short(name or "all", NAME_CHARS_MAX) for name in (wishes.tenant, wishes.endpoint))
    return f"q leave · ? keys · {still} · s sort: {wishes.order} · t tenant: {tenant} · e endpoint: {endpoint}"


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
