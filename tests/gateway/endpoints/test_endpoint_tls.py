"""Engines behind TLS with a private authority: what is trusted and shown, by requests, probes, pages and `doctor`."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.diagnosis import Doctor
from penstock.config.load import ConfigError, from_mapping
from penstock.config.sections.discovery import Dns, Kubernetes
from penstock.config.sections.endpoint_tls import EndpointTls
from penstock.gateway.endpoints.discovery.base import described
from tests.gateway.conftest import World
from tests.gateway.endpoints.test_metrics_pages import LISTED, TEXT, text
from tests.gateway.endpoints.test_not_an_engine import COMPLETION, http
from tests.gateway.raw_engine import Peer, RawEngine

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")


def certificate(folder: Path, name: str, alt: str = "DNS:engine.internal", *more: str) -> Path:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj /CN=x"
    names = ["-addext", f"subjectAltName={alt}"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run([*command.split(), *names, *files, *(more or ("-nodes",))], check=True, capture_output=True)
    return folder / f"{name}.pem"


class Secure(RawEngine):
    """An engine with the certificate `name`; it wants one that `clients` signed, if given."""

    def __init__(self, folder: Path, name: str, *, clients: Path | None = None) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.shows(folder, name)
        if clients is not None:
            self.context.load_verify_locations(clients)
            self.context.verify_mode = ssl.CERT_REQUIRED
        super().__init__(self._answers, tls=self.context)

    def shows(self, folder: Path, name: str) -> None:
        self.context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")

    async def _answers(self, peer: Peer) -> None:
        while True:
            data = await peer.request()
            routes = {b"/v1/models": LISTED, b"/metrics": text(TEXT.replace(b"} 2", b"} 0"))}
            path = data.split(b" ")[1]
            await peer.send(COMPLETION if data.startswith(b"POST") else routes.get(path, http(404)))


async def served(world: World) -> None:
    await world.until(lambda: world.picture().endpoints[0].engine_running == 5.0)
    await world.until(lambda: world.picture().endpoints[0].models == ["m"])
    assert (await world.chat(model="m")).status == 200


async def problems(endpoint: dict[str, Any]) -> list[str]:
    settings = from_mapping({"endpoints": [endpoint]})
    return (await Doctor(timeout_s=5.0, tries=False).examine(settings.endpoints[0])).problems


async def test_an_engine_of_an_own_authority_is_trusted_by_all_that_asks_it(world: World, tmp_path: Path) -> None:
    ca = certificate(tmp_path, "engine")
    engine = await world.beside(Secure(tmp_path, "engine"))
    endpoint = {"url": engine.url, "tls": {"ca": str(ca), "server_name": "engine.internal"}}
    await world.gateway(endpoints=[endpoint])
    await served(world)
    assert await problems(endpoint) == []


@pytest.mark.parametrize("tls", ["none", "another authority", "another name"])
async def test_a_certificate_that_does_not_fit_is_not_trusted(world: World, tmp_path: Path, tls: str) -> None:
    own, other = certificate(tmp_path, "engine"), certificate(tmp_path, "other")
    engine = await world.beside(Secure(tmp_path, "engine"))
    said: dict[str, Any] = {
        "none": {},
        "another authority": {"tls": {"ca": str(other), "server_name": "engine.internal"}},
        "another name": {"tls": {"ca": str(own)}},
    }
    endpoint = {"url": engine.url, **said[tls]}
    await world.gateway(endpoints=[endpoint])
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    assert "CERTIFICATE_VERIFY_FAILED" in (await problems(endpoint))[0]


async def test_an_engine_that_wants_a_certificate_is_shown_one(world: World, tmp_path: Path) -> None:
    ca, own = certificate(tmp_path, "engine"), certificate(tmp_path, "gateway")
    engine = await world.beside(Secure(tmp_path, "engine", clients=own))
    tls = {"ca": str(ca), "server_name": "engine.internal"}
    shown = {**tls, "cert": str(own), "key": str(tmp_path / "gateway.key")}
    await world.gateway(endpoints=[{"url": engine.url, "tls": shown}])
    await served(world)
    assert await problems({"url": engine.url, "tls": shown}) == []
    assert await problems({"url": engine.url, "tls": tls}) != []


async def test_an_unverified_certificate_is_logged(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    certificate(tmp_path, "engine")
    engine = await world.beside(Secure(tmp_path, "engine"))
    await world.gateway(endpoints=[{"url": engine.url, "tls": {"verify": False}}])
    await served(world)
    assert caplog.text.count("its certificate is not checked (`tls.verify: false`)") == 1


async def test_files_and_settings_that_change_are_followed_by_a_reload(world: World, tmp_path: Path) -> None:
    ca = certificate(tmp_path, "engine")
    engine = await world.beside(Secure(tmp_path, "engine"))
    tls = {"ca": str(ca), "server_name": "engine.internal"}
    await world.gateway(endpoints=[{"url": engine.url, "tls": tls}])
    await served(world)
    renewed = certificate(tmp_path, "renewed")
    engine.shows(tmp_path, "renewed")
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    ca.write_bytes(renewed.read_bytes())
    assert (await world.ask("POST", "/admin/reload")).status == 200
    await world.until(lambda: world.picture().endpoints[0].state == "up")
    assert (await world.chat(model="m")).status == 200
    tls["ca"] = str(certificate(tmp_path, "other"))
    assert (await world.ask("POST", "/admin/reload")).status == 200
    await world.until(lambda: world.picture().endpoints[0].state == "down")
    tls["ca"] = str(tmp_path / "nowhere.pem")
    refused = await world.ask("POST", "/admin/reload")
    assert refused.status == 422, refused
    assert "endpoints[0].tls.ca: cannot be read: no such file or directory" in refused.body.decode()


def test_faults_of_the_files_are_reported_at_start(tmp_path: Path) -> None:
    cert, other = str(certificate(tmp_path, "a")), str(certificate(tmp_path, "b"))
    secret = str(certificate(tmp_path, "c", "DNS:x", "-passout", "pass:secret"))
    text_file = tmp_path / "text.pem"
    text_file.write_text("hello")
    nowhere, key = str(tmp_path / "nowhere"), str(tmp_path / "a.key")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"ca": nowhere}, "tls.ca: cannot be read: no such file or directory"),
        ({"ca": str(text_file)}, "tls.ca: is not a PEM file of certificates"),
        ({"cert": cert}, "tls.key: is missing, but `cert` is given"),
        ({"key": key}, "tls.cert: is missing, but `key` is given"),
        ({"cert": cert, "key": nowhere}, "tls.key: cannot be read: no such file or directory"),
        ({"cert": str(text_file), "key": key}, "tls.cert: or `key` is not a PEM file, or is truncated"),
        ({"cert": other, "key": key}, "tls.key: belongs to another certificate"),
        ({"cert": secret, "key": str(tmp_path / "c.key")}, "tls.key: is encrypted; use a key without a passphrase"),
        ({"ca": cert, "verify": False}, "tls.verify: is false, so `ca` is not used"),
        ({"server_name": "https://x"}, "tls.server_name: `https://x` is not a host's name"),
    ]
    for tls, words in wrong:
        with pytest.raises(ConfigError) as error:
            from_mapping({"endpoints": [{"url": "https://gpu-0", "tls": tls}]})
        assert f"endpoints[0].{words}" in str(error.value)
    with pytest.raises(ConfigError, match=r"endpoints\[0\]\.tls: is given, but the endpoint uses `http`"):
        from_mapping({"endpoints": [{"url": "http://gpu-0", "tls": {"ca": cert}}]})
    with pytest.raises(ConfigError, match=r"discovery\[0\]\.dns\.tls\.ca: cannot be read"):
        from_mapping({"discovery": [{"dns": {"name": "x", "port": 1, "scheme": "https", "tls": {"ca": nowhere}}}]})


@pytest.mark.parametrize("template", [Dns, Kubernetes], ids=["dns", "kubernetes"])
def test_what_discovery_finds_is_trusted_alike(template: type[Dns | Kubernetes]) -> None:
    said: dict[str, Any] = {"scheme": "https", "tls": {"server_name": "engine.internal", "verify": False}}
    named = {"name": "engines", "port": 8000} if template is Dns else {"service": "engines"}
    found = described(template.model_validate({**named, **said}), "10.0.0.7", 8000)
    assert found is not None
    assert (found.url, found.tls) == (
        "https://10.0.0.7:8000",
        EndpointTls(server_name="engine.internal", verify=False),
    )
