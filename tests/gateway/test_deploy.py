"""What stands in deploy/ fits the gateway: series, labels, reasons, settings, probes; and the docs have it all."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock.config.load import ConfigError, from_mapping, load
from penstock.config.sections.tenancy import OwnLimits
from penstock.config.values import TOKENS_KNOWN
from penstock.core.values.catalogue import Cause, EndpointState, Failure, Outcome, Reason
from tests.gateway.conftest import World

DEPLOY, DOCS = Path("deploy"), Path("docs")
_SERIES = re.compile(r"\b(penstock_[a-z_]+)(?:\{([^}]*)\})?")
_MATCH = re.compile(r'([a-z]+)(=~|!~|!=|=)"([^"]*)"')
_BY = re.compile(r"\b(?:by|ignoring) \(([^)]*)\)")
FROM_PROMETHEUS = {"instance", "job", "le"}


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/penstock.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [*panels, *(rule["expr"] for rule in rules())]


async def test_every_series_and_label_that_dashboard_and_alerts_use_is_exported(world: World) -> None:
    await world.engine()
    await world.gateway(tenants=[{"name": "team", "limits": {"tokens_per_day": 1_000_000}}])
    await world.chat()
    await world.ask("GET", "/admin/usage")  # from then on there is a ledger
    page = (await world.ask("GET", "/metrics")).body.decode()
    exported = {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(page) for sample in family.samples
    }
    # Series whose first sample comes with the first event of their kind.
    exported |= {"penstock_prefix_hit_tokens_total": {"source"}, "penstock_prefix_predicted_tokens_total": {"source"}}
    # Those of gateways that share (tests/gateway/share), which one alone has not.
    exported["penstock_share_alone"] = set()
    used = queries()
    assert len(used) > 40
    for query in used:
        labels: set[str] = set()
        for name, selector in _SERIES.findall(query):
            assert name in exported, f"{name} in {query}"
            labels |= exported[name] | FROM_PROMETHEUS
            assert {label for label, _, _ in _MATCH.findall(selector)} <= labels, query
        if "penstock_" in query:
            grouped = {label.strip() for group in _BY.findall(query) for label in group.split(",")}
            assert grouped <= labels, query


async def test_every_value_that_docs_dashboard_and_alerts_look_for_can_count(world: World) -> None:
    """These families have all series that can count from the start, so what is not there stays 0 for ever."""
    await world.engine()
    await world.gateway()
    page = (await world.ask("GET", "/metrics")).body.decode()
    families = ("penstock_rejections_total", "penstock_requeues_total", "penstock_queue_wait_seconds")
    can_count = {
        name: {
            value
            for line in page.splitlines()
            if line.startswith(name)
            for value in re.findall(r'(?:reason|outcome)="([a-z_]+)"', line)
        }
        for name in families
    }
    assert "queue_full" in can_count["penstock_rejections_total"]
    assert not {"queue_timeout", "client_gone", "stream_broken"} & can_count["penstock_rejections_total"]
    assert {"stale", "busy", "stuck", "engine_queue"} <= can_count["penstock_requeues_total"]
    assert "broken" not in can_count["penstock_requeues_total"]
    assert can_count["penstock_queue_wait_seconds"] == {"evicted", "failed", "completed"}
    texts = [*queries(), *[path.read_text() for path in DOCS.rglob("*.md")]]
    looked_for = [match for text in texts for match in _SERIES.findall(text) if match[0].startswith(families)]
    assert len(looked_for) > 5
    for series, selector in looked_for:
        name = next(family for family in families if series.startswith(family))
        for label, _, value in _MATCH.findall(selector):
            if label in ("reason", "outcome"):
                assert set(value.split("|")) <= can_count[name], (series, selector)


def test_every_word_that_dashboard_and_alerts_look_for_exists() -> None:
    words = {
        "reason": {*Reason, *Failure, Cause.ENGINE_QUEUE, Cause.PREEMPTED, Cause.STUCK},
        "outcome": set(Outcome),
        "state": set(EndpointState),
        "limit": set(OwnLimits.model_fields),
        "instance": {"$instance"},
        "job": {"penstock"},
    }
    for query in queries():
        for label, _, value in _MATCH.findall(query):
            assert set(value.split("|")) <= words[label], query


def test_every_alert_has_a_section_in_the_operations_page() -> None:
    text = (DOCS / "operations.md").read_text()
    told = re.findall(r"^### (\w+)$", text, re.MULTILINE)
    assert told == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_every_cause_is_reported_with_its_remedy() -> None:
    text = (DOCS / "live-page.md").read_text()
    for cause in Cause:
        assert re.search(rf"^\| `{cause}` \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE), cause


def test_every_panel_has_a_title_a_unit_and_a_place_of_its_own() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/penstock.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["title"]
        assert panel["type"] == "row" or panel["fieldConfig"]["defaults"]["unit"]


def test_the_settings_that_are_shipped_are_good() -> None:
    load(str(DEPLOY / "penstock.yaml"), {})
    values = yaml.safe_load((DEPLOY / "helm/penstock/values.yaml").read_text())
    from_mapping(values["settings"])
    grace_s = values["terminationGracePeriodSeconds"]
    assert grace_s > from_mapping({}).queue.stop_timeout


def test_compose_names_files_that_are_there() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), volume
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    engines = {endpoint.url for endpoint in load(str(DEPLOY / "penstock.yaml"), {}).endpoints}
    assert engines == {f"http://{name}:9001" for name in compose["services"] if name.startswith("engine")}


def test_the_image_is_built_of_files_that_are_there_and_that_are_sent_to_the_builder() -> None:
    sent = {line[1:] for line in Path(".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        word
        for line in (DEPLOY / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert set(copied) == sent
    assert all(Path(name).exists() for name in copied)
    project = tomllib.loads(Path("pyproject.toml").read_text())
    build = {"build_backend.py", "hatch_build.py"}
    assert {project["project"]["readme"], *project["project"]["license-files"], *build} <= set(copied)


def test_compose_is_there_for_this_machine_only_and_has_no_token_that_others_know() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    compose = yaml.safe_load(text)
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports), ports
    assert compose["services"]["penstock"]["environment"]["PENSTOCK_ADMIN_TOKEN"].startswith("${PENSTOCK_ADMIN_TOKEN:?")
    for token in TOKENS_KNOWN:
        assert f":-{token}" not in text
    with pytest.raises(ConfigError, match="attackers try"):
        from_mapping({"admin": {"token": "change-me"}})


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_paths_that_probes_ask_answer(world: World, path: str) -> None:
    asked = "".join(file.read_text() for file in DEPLOY.rglob("*") if file.is_file() and file.suffix != ".json")
    assert path in asked
    await world.gateway(endpoints=[{"url": "http://127.0.0.1:9"}])
    assert (await world.ask("GET", path)).status == 200
