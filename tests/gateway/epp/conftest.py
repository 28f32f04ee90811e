"""Real Envoy by the project's own configuration (`deploy/envoy`), and a proxy that is only a gRPC client."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway.conftest import World, pytest_asyncio_loop_factories, world
from tests.patience import WAIT_S
from tests.ports import free_port

__all__ = ["pytest_asyncio_loop_factories", "world"]

CONFIG, FALLBACKS, MTLS = (Path("deploy/envoy", f"{name}.yaml") for name in ("envoy", "fallbacks", "mtls"))
DOCS = Path("docs/epp.md")


class Envoy:
    """One Envoy process, before a picker's port."""

    def __init__(
        self,
        *,
        bodies: str = "FULL_DUPLEX_STREAMED",
        engines: Sequence[str] = (),
        picker: int = 0,
        also: int = 0,
        files: Path | None = None,
        secret: str = "",
        **changes: str,
    ) -> None:
        """`engines`: their `ip:port`, if it should know them and try fallbacks (`deploy/envoy/fallbacks.yaml`).

        `picker`: its port, or a free one; `also`: that of a second one, with what docs/epp.md has for several.
        `files`: a folder with its certificate and the picker's authority (`deploy/envoy/mtls.yaml`). `secret`: sent to
        the picker with the line of docs/epp.md.
        """
        self.port, self.picker, admin = free_port(), picker or free_port(), free_port()
        text = CONFIG.read_text().replace("port_value: 9901", f"port_value: {admin}")
        text = text.replace("port_value: 8081", f"port_value: {self.port}")
        text = text.replace("port_value: 9002", f"port_value: {self.picker}")
        text = text.replace("response_body_mode: FULL_DUPLEX_STREAMED", f"response_body_mode: {bodies}")
        if also:
            text = several(text, self.picker, also)
        for key, value in changes.items():
            before = next(line for line in text.splitlines() if line.strip().startswith(f"{key}:"))
            text = text.replace(before, before[: before.index(key)] + f"{key}: {value}")
        if engines:
            text = _with_fallbacks(text, engines)
        if files is not None:
            text = _with_certificate(text, files)
        if secret:
            text = _with_secret(text, secret)
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


def _with_fallbacks(text: str, engines: Sequence[str]) -> str:
    whole, parts = yaml.safe_load(text), yaml.safe_load(FALLBACKS.read_text())
    resources = whole["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["virtual_hosts"][0]["routes"] = [parts["route"]]
    places = [place.rpartition(":") for place in engines]
    parts["cluster"]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, _, port in places
    ]
    resources["clusters"][0] = parts["cluster"]
    return yaml.safe_dump(whole)


def _with_certificate(text: str, files: Path) -> str:
    whole = yaml.safe_load(text)
    socket = yaml.safe_load(MTLS.read_text().replace("/etc/envoy", str(files)))
    next(one for one in whole["static_resources"]["clusters"] if one["name"] == "penstock").update(socket)
    return yaml.safe_dump(whole)


def _with_secret(text: str, secret: str) -> str:
    (line,) = (line.strip() for line in DOCS.read_text().splitlines() if line.startswith("initial_metadata:"))
    whole = yaml.safe_load(text)
    manager = whole["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    its = manager["http_filters"][0]["typed_config"]["grpc_service"]
    its |= yaml.safe_load(line.replace("THE_SECRET", secret))
    return yaml.safe_dump(whole)


def several(text: str, *ports: int) -> str:
    """Returns the configuration for several pickers: the pieces of docs/epp.md are put into it."""
    docs = DOCS.read_text()
    retry, checks = (line.strip() for line in docs.splitlines() if line.startswith(("retry_policy:", "health_checks:")))
    text = text.replace("{cluster_name: penstock}, timeout: 0s}", f"{{cluster_name: penstock}}, timeout: 0s, {retry}}}")
    text = text.replace("    - name: penstock\n", f"    - name: penstock\n      {checks}\n")
    *before, last = text.rstrip().splitlines()
    return "\n".join([*before, *(last.replace(f"port_value: {ports[0]}", f"port_value: {port}") for port in ports), ""])


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


async def behind(
    world: World,
    envoy: Envoy,
    *,
    fallbacks: int = 0,
    sample_every: int = 0,
    epp: dict[str, Any] | None = None,
    **settings: Any,
) -> None:
    """A picker before the world's engines; what the world asks goes through Envoy."""
    own = {"listen": f"127.0.0.1:{envoy.picker}", "fallbacks": fallbacks, "sample_every": sample_every, **(epp or {})}
    await world.gateway(epp=own, **settings)
    world.port = envoy.port
    for _ in range(600):  # Envoy comes back to a picker that was away within a second
        if (await world.ask("GET", "/v1/models")).status == 200:
            return
    raise AssertionError("Envoy does not reach the picker")
