"""The picker's port with `tls`: who is served, and which certificate is shown."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.config.load import ConfigError
from tests.gateway.conftest import World
from tests.gateway.endpoints.test_endpoint_tls import certificate
from tests.gateway.epp.test_messages import Pool, another, places, whole
from tests.gateway.test_shutdown import penstock
from tests.patience import WAIT_S
from tests.ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")

SERVING = b"\x08\x01"


def renew(folder: Path) -> bytes:
    """A new certificate and key in the files of the gateway. Returns the certificate, which is its own authority."""
    return certificate(folder, "picker", "IP:127.0.0.1").read_bytes()


def files(folder: Path) -> dict[str, str]:
    return {"cert": str(folder / "picker.pem"), "key": str(folder / "picker.key")}


async def picker(world: World, folder: Path) -> int:
    """A picker with TLS before one engine. Returns its port."""
    port = free_port()
    await world.engine()
    await world.gateway(epp={"listen": f"127.0.0.1:{port}"}, tls=files(folder))
    return port


@asynccontextmanager
async def proxy(world: World, port: int, ca: bytes | None) -> AsyncIterator[Pool]:
    """A proxy with a connection of its own, which trusts `ca`; None: without TLS."""
    async with another(world, port, None if ca is None else grpc.ssl_channel_credentials(ca)) as made:
        yield made


async def refused(world: World, port: int, ca: bytes | None) -> bool:
    async with proxy(world, port, ca) as its:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await its.health("liveness")
        return caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_over_tls_is_answered_and_one_without_is_refused(world: World, tmp_path: Path) -> None:
    ca = renew(tmp_path)
    port = await picker(world, tmp_path)
    async with proxy(world, port, ca) as its:
        assert await whole(its.stream()) == places(world)[0]
        assert await refused(world, port, None)
        assert await refused(world, port, certificate(tmp_path, "other", "IP:127.0.0.1").read_bytes())
        assert await whole(its.stream()) == places(world)[0]


async def test_a_renewed_certificate_is_shown_to_new_connections_without_a_reload(world: World, tmp_path: Path) -> None:
    first = renew(tmp_path)
    port = await picker(world, tmp_path)
    async with proxy(world, port, first) as before:
        assert await whole(before.stream()) == places(world)[0]
        second = renew(tmp_path)
        async with proxy(world, port, second) as after:
            assert await whole(after.stream()) == places(world)[0]
        assert await refused(world, port, first)
        assert await whole(before.stream()) == places(world)[0], "its connection goes on"


@pytest.mark.parametrize("ending", ["pem", "key"])
@pytest.mark.parametrize("content", ["another's", "half", "none"])
async def test_files_that_do_not_fit_leave_the_certificate_before(
    world: World, tmp_path: Path, ending: str, content: str
) -> None:
    first = renew(tmp_path)
    port = await picker(world, tmp_path)
    certificate(tmp_path, "other", "IP:127.0.0.1")
    file, other = tmp_path / f"picker.{ending}", (tmp_path / f"other.{ending}").read_bytes()
    if content == "none":
        file.unlink()
    else:
        file.write_bytes(other if content == "another's" else other[:60])
    for _ in range(2):
        async with proxy(world, port, first) as its:
            assert await its.health("liveness") == SERVING
    second = renew(tmp_path)
    async with proxy(world, port, second) as its:
        assert await its.health("liveness") == SERVING


async def test_a_missing_or_wrong_key_is_an_error_of_the_settings_at_the_start(world: World, tmp_path: Path) -> None:
    renew(tmp_path)
    key = tmp_path / "picker.key"
    key.write_bytes(certificate(tmp_path, "other").with_suffix(".key").read_bytes())
    with pytest.raises(ConfigError, match=r"tls: .* the key belongs to another certificate"):
        await picker(world, tmp_path)
    await world.end_gateway()
    key.write_text("hello")
    with pytest.raises(ConfigError, match=r"tls: .* is not a PEM file"):
        await picker(world, tmp_path)
    await world.end_gateway()
    key.unlink()
    given: dict[str, Any] = {"epp": {"listen": "127.0.0.1:9"}}
    with pytest.raises(ConfigError, match=r"tls\.key: cannot read .*: no such file or directory"):
        await world.gateway(tls=files(tmp_path), **given)
    with pytest.raises(ConfigError, match=r"tls\.key: is missing, but `tls.cert` is given"):
        await world.gateway(tls={"cert": files(tmp_path)["cert"]}, **given)


async def test_strangers_write_nothing_past_the_log(tmp_path: Path) -> None:
    """gRPC's core wrote a line to standard error for each handshake that failed."""
    renew(tmp_path)
    port, its = free_port(), files(tmp_path)
    listen = ("--endpoint", "http://127.0.0.1:9", "--listen", "127.0.0.1:0")
    process = await penstock(
        *("epp", *listen),
        PENSTOCK__EPP__LISTEN=f"127.0.0.1:{port}",
        PENSTOCK__TLS__CERT=its["cert"],
        PENSTOCK__TLS__KEY=its["key"],
    )
    await process.line(b"listening on")
    for _ in range(40):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            await reader.read()
        writer.close()
    process.signal()
    assert await process.left() == 0
    assert b"andshake" not in process.log
