"""The alerts, by promtool: the files are valid, and each alert fires when it has to and not when it has not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.deploy.programs import program, ran, said

ALERTS = Path("deploy/prometheus/alerts.yml")
UNITS = Path("tests/deploy/alerts_test.yml")


def alerts() -> list[str]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"]]


def test_prometheus_takes_the_files() -> None:
    said_of_config = ran(program("promtool"), "check", "config", ALERTS.parent / "prometheus.yml")
    assert f"{len(alerts())} rules found" in said_of_config
    ran(program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", ALERTS)


def test_the_alerts_fire_then_and_only_then(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(UNITS, tmp_path)
    ran(program("promtool"), "test", "rules", tmp_path / UNITS.name)


@pytest.mark.parametrize("alert", alerts())
def test_the_units_see_an_alert_that_never_fires_and_one_that_always_does(tmp_path: Path, alert: str) -> None:
    """What would pass whatever the rule says tests nothing."""
    shutil.copy(UNITS, tmp_path)
    for expression in ("vector(1) < 0", "vector(1)"):
        changed = yaml.safe_load(ALERTS.read_text())
        for rule in changed["groups"][0]["rules"]:
            if rule["alert"] == alert:
                rule["expr"] = expression
        (tmp_path / ALERTS.name).write_text(yaml.safe_dump(changed))
        done = said(program("promtool"), "test", "rules", tmp_path / UNITS.name)
        assert done.returncode != 0, expression
        assert alert in done.stderr + done.stdout
