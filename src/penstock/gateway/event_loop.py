"""Which event loop does a process of the gateway run? uvloop's where there is one, for its speed."""

from __future__ import annotations

import asyncio


def event_loop() -> asyncio.AbstractEventLoop:
    """A new loop."""
    try:
        import uvloop  # noqa: PLC0415 - not available on every platform
    except ImportError:  # pragma: no cover
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
