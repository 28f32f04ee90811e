"""Attacks on a real gateway, on real sockets: each test is one row of what once held it up."""

from __future__ import annotations

from tests.gateway.conftest import pytest_asyncio_loop_factories, world

__all__ = ["pytest_asyncio_loop_factories", "world"]
