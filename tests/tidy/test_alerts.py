"""Each alert is complete: what to do about it, when it fires and when not, and what brings it about for real."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALERTS = [
    rule["alert"]
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_section_a_unit_both_ways_and_an_incident(alert: str) -> None:
    assert f"\n### {alert}\n" in (ROOT / "docs/operations.md").read_text(), "what to do: docs/operations.md"
    units = yaml.safe_load((ROOT / "tests/deploy/alerts_test.yml").read_text())["tests"]
    asked = [each["exp_alerts"] for unit in units for each in unit["alert_rule_test"] if each["alertname"] == alert]
    assert any(asked), "when it fires: tests/deploy/alerts_test.yml"
    assert not all(asked), "when it does not: tests/deploy/alerts_test.yml"
    assert alert in (ROOT / "tests/deploy/rehearsal.py").read_text(), "what brings it about: tests/deploy/rehearsal.py"
