"""The gateway's own world, for what is tried over HTTP."""

from __future__ import annotations

from tests.gateway.conftest import pytest_asyncio_loop_factories, world

__all__ = ["pytest_asyncio_loop_factories", "world"]
