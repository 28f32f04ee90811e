"""When does a file say something else than before? By its content, for a mounted ConfigMap is a link that is turned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from penstock.config.source import FILE_BYTES_MAX

LOOK_S = 2.0  # production-stack's router looks every ten


async def changes(file: Path, changed: Callable[[], None], *, look_s: float = LOOK_S) -> None:
    """Call back at every change, for ever. Reading happens beside the loop."""
    before = await asyncio.to_thread(_content, file)
    while True:
        await asyncio.sleep(look_s)
        now = await asyncio.to_thread(_content, file)
        if now is not None and now != before:  # a file that is away is being replaced
            before = now
            changed()


def _content(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            return opened.read(FILE_BYTES_MAX + 1)
    except OSError:
        return None
