"""The systemd unit and the compose file, by the programs that read them; gateways' objects by their definitions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.kinds import SPECS
from tests.deploy.programs import DEPLOY, program, ran, said

UNIT = DEPLOY / "systemd/penstock.service"
COMPOSE = DEPLOY / "compose.yaml"
TOKEN = "a-token-of-ones-own"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit as on a machine where the gateway is installed."""
    file = tmp_path / UNIT.name
    file.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", "/bin/true"))
    return file


def test_systemd_takes_the_unit_without_a_word(unit: Path) -> None:
    done = said(program("systemd-analyze", "systemd"), "verify", "--man=no", unit)
    if "Failed to" in done.stderr and "manager" in done.stderr:
        pytest.skip(f"systemd-analyze verify does not run here: {done.stderr.strip()[:200]}")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_has_next_to_no_rights(unit: Path) -> None:
    """Exposure 2.0 at most, of 10: what is left is the network, and the host's files to read."""
    command = program("systemd-analyze", "systemd")
    if "--offline" not in ran(command, "--help"):
        pytest.skip("systemd-analyze is older than 250: it looks at no files")
    done = said(command, "security", "--offline=true", "--no-pager", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout


def config(**environment: str) -> Any:
    """What compose makes of the file."""
    given = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environment}
    return said(program("docker-compose"), "-f", COMPOSE, "config", env=given)


def test_compose_takes_the_file_and_every_mount_is_there() -> None:
    done = config(PENSTOCK_ADMIN_TOKEN=TOKEN)
    assert (done.returncode, done.stderr) == (0, "")
    services = yaml.safe_load(done.stdout)["services"]
    assert services.keys() == {"engine-0", "engine-1", "penstock", "prometheus", "grafana"}
    mounts = [volume for service in services.values() for volume in service.get("volumes", [])]
    kept = [mount for mount in mounts if mount["type"] == "volume"]
    assert [(mount["source"], mount["target"]) for mount in kept] == [("state", "/var/lib/penstock")]
    binds = [mount for mount in mounts if mount["type"] == "bind"]
    assert len(binds) + 1 == len(mounts)
    assert all(Path(mount["source"]).is_dir() and mount["read_only"] for mount in binds)
    ours = [service for service in services.values() if service["image"] == "penstock"]
    assert len(ours) == 3
    assert all(service["read_only"] and service["cap_drop"] == ["ALL"] for service in ours)
    assert services["penstock"]["environment"]["PENSTOCK_ADMIN_TOKEN"] == TOKEN


def test_compose_requires_a_token_and_explains_how_to_make_one() -> None:
    done = config()
    assert done.returncode != 0
    assert "PENSTOCK_ADMIN_TOKEN is missing a value: set it to a token of your own: openssl rand -hex 32" in done.stderr


GATEWAYS = sorted((DEPLOY / "gateways").glob("*.yaml"))


@pytest.mark.parametrize("file", GATEWAYS, ids=lambda file: file.stem)
def test_a_gateways_objects_are_as_their_definitions_want(file: Path) -> None:
    for made in yaml.safe_load_all(file.read_text()):
        jsonschema.validate(made["spec"], SPECS[made["apiVersion"], made["kind"]])


@pytest.mark.parametrize("file", [file for file in GATEWAYS if file.stem != "pool"], ids=lambda file: file.stem)
def test_every_gateway_routes_to_the_pool_whose_picker_is_the_charts_service(file: Path) -> None:
    (pool,) = [
        made
        for made in yaml.safe_load_all((DEPLOY / "gateways/pool.yaml").read_text())
        if made["kind"] == "InferencePool"
    ]
    objects = list(yaml.safe_load_all(file.read_text()))
    (route,) = [made for made in objects if made["kind"].endswith("Route")]
    (backend,) = [backend for rule in route["spec"]["rules"] for backend in rule["backendRefs"]]
    assert (backend["name"], route["metadata"]["namespace"]) == (
        pool["metadata"]["name"],
        pool["metadata"]["namespace"],
    )
    assert [ref["name"] for ref in route["spec"]["parentRefs"]] == [
        made["metadata"]["name"] for made in objects if made["kind"] == "Gateway"
    ]
    assert pool["spec"]["endpointPickerRef"]["port"]["number"] == 9002
    if file.stem == "istio":
        (rule,) = [made for made in objects if made["kind"] == "DestinationRule"]
        assert rule["spec"]["host"].startswith(f"{pool['spec']['endpointPickerRef']['name']}.inference.svc")
