"""The settings' JSON Schema: as it is printed, and of one mind with what `check` accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from penstock.cli import main as cli
from penstock.config import schema as config_schema
from penstock.config.explain import sections
from penstock.config.load import from_mapping
from tests.gateway.test_reload import EVERYTHING

VALIDATOR = jsonschema.Draft7Validator(config_schema.schema())


def test_the_file_in_the_docs_is_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    assert Path("docs/penstock.schema.json").read_text() == capsys.readouterr().out, "penstock schema > that file"
    jsonschema.Draft7Validator.check_schema(config_schema.schema())


@pytest.mark.parametrize("document", EVERYTHING, ids=range(len(EVERYTHING)))
def test_accepted_values_are_valid(document: dict[str, Any]) -> None:
    from_mapping(document)
    VALIDATOR.validate(document)


def test_all_ways_to_write_a_value_are_valid() -> None:
    text = """
listen: ":8080"
tls:
queue: {max_wait: 500ms, max_bytes: 1GiB, max_requests: "7", enabled: "no", drain_timeout: "${DRAIN}"}
endpoints:
  - {url: "http://h:1", models: [a], slots: auto, kv_events: off, api_key: null, labels: {zone: 3}}
  - {url: "http://h:2", models: auto, slots: 7, engine: "${ENGINE:-vllm}"}
discovery:
  - dns: "engines:8000"
  - file: {path: /x, env: [A]}
  - kubernetes: {service: vllm}
routing: {imbalance_threshold: inf}
bands: {interactive: {deadline: 30s}, batch: {shed_target: 10s}, standard: }
admission: {reserved_slots: 0.1}
tenants:
"""
    VALIDATOR.validate(yaml.load(text, yaml.BaseLoader) | yaml.safe_load(text))


@pytest.mark.parametrize(
    "document",
    [
        {"bandz": []},
        {"queue": {"max_wait": "soon"}},
        {"queue": {"max_requests": -1}},
        {"bands": [{"ceiling": 0.5}]},
        {"bands": {"name": "a"}},
        {"bands": {"urgent": {"deadline": "30s"}}},
        {"bands": {"interactive": {"deadlin": "30s"}}},
        {"routing": {"policy": "fastest"}},
        {"admission": {"max_kv_usage": 2}},
        {"endpoints": [{"url": "http://h:1", "slots": 0}]},
    ],
)
def test_refused_values_are_not_valid(document: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(document)


def test_every_setting_is_there_with_its_meaning() -> None:
    for prefix, section in sections():
        at = config_schema.schema()
        for part in prefix.rstrip(".").replace("[]", ".items").replace("<name>", "additionalProperties").split("."):
            if part:
                at = inside(at, part)
        assert at["properties"].keys() == section.model_fields.keys(), prefix


def inside(at: dict[str, Any], part: str) -> dict[str, Any]:
    if part in ("items", "additionalProperties"):
        found: dict[str, Any] = at[part]
    else:
        found = at["properties"][part]
    return next((option for option in found.get("anyOf", []) if "properties" in option), found)
