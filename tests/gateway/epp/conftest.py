"""Real Envoy by the project's own configuration (`deploy/envoy`), and a proxy that is only a gRPC client."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import World, pytest_asyncio_loop_factories, world
from tests.patience import WAIT_S
from tests.ports import free_port

__all__ = ["pytest_asyncio_loop_factories", "world"]

CONFIG = Path("deploy/envoy/envoy.yaml")


class Envoy:
    """One Envoy process, before a picker's port."""

    def __init__(self, *, bodies: str = "FULL_DUPLEX_STREAMED", **changes: str) -> None:
        self.port, self.picker, admin = free_port(), free_port(), free_port()
        text = CONFIG.read_text().replace("port_value: 9901", f"port_value: {admin}")
        text = text.replace("port_value: 8081", f"port_value: {self.port}")
        text = text.replace("port_value: 9002", f"port_value: {self.picker}")
        text = text.replace("response_body_mode: FULL_DUPLEX_STREAMED", f"response_body_mode: {bodies}")
        for key, value in changes.items():
            before = next(line for line in text.splitlines() if line.strip().startswith(f"{key}:"))
            text = text.replace(before, before[: before.index(key)] + f"{key}: {value}")
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name, "envoy.yaml")
        path.write_text(text)
        self._ready = f"http://127.0.0.1:{admin}/ready"
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("envoy"), "-c", path, "--concurrency", "1", "--use-dynamic-base-id"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Until it listens."""
        for _ in range(round(WAIT_S / 0.05)):
            try:
                with urllib.request.urlopen(self._ready, timeout=WAIT_S):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError("Envoy does not start")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


@pytest.fixture(scope="module")
def envoy() -> Iterator[Envoy]:
    """Envoy that shows the picker all bodies."""
    yield from _running(Envoy())


@pytest.fixture(scope="module")
def blind_envoy() -> Iterator[Envoy]:
    """Envoy that keeps the bodies of answers to itself."""
    yield from _running(Envoy(bodies="NONE"))


def _running(made: Envoy) -> Iterator[Envoy]:
    try:
        made.wait()
        yield made
    finally:
        made.close()


async def behind(world: World, envoy: Envoy, **settings: Any) -> None:
    """A picker before the world's engines; what the world asks goes through Envoy."""
    await world.gateway(epp={"listen": f"127.0.0.1:{envoy.picker}"}, **settings)
    world.port = envoy.port
    for _ in range(600):  # Envoy comes back to a picker that was away within a second
        if (await world.ask("GET", "/v1/models")).status == 200:
            return
    raise AssertionError("Envoy does not reach the picker")
