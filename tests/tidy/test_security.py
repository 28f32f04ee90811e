"""docs/security.md says what is done: each line names the tests that hold it, and they are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from penstock.config.load import from_mapping
from penstock.gateway.builtin.own_paths import OwnPaths

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
_NAMED = re.compile(r"`([a-z0-9_/]+\.py)::(test_\w+)`")


def rows(name: str = "done") -> list[list[str]]:
    (table,) = re.findall(rf"<!-- checked: {name} -->\n((?:\|.*\n)+)", PAGE)
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()[2:]]


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_each_line_of_the_security_page_names_existing_tests() -> None:
    assert len(rows()) > 20
    for done, held_by in rows():
        named = _NAMED.findall(held_by)
        assert named, f"nothing holds: {done}"
        assert _NAMED.sub("", held_by).strip(", ") == "", f"unreadable: {held_by}"


def test_each_cell_of_the_pickers_port_names_its_tests_or_says_nothing() -> None:
    assert len(rows("picker")) >= 6
    for who, *cells in rows("picker"):
        assert len(cells) == 4
        for cell in cells:
            assert cell == "nothing" or _NAMED.search(cell), f"{who}: {cell}"


@pytest.mark.parametrize(("file", "name"), sorted(set(_NAMED.findall(PAGE))))
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    assert name in names_in(ROOT / "tests" / file)


def test_each_rule_for_logs_and_metrics_names_its_test() -> None:
    (text,) = re.findall(r"## Logs and metrics, as rules\n(.*?)\n## ", PAGE, re.DOTALL)
    rules = re.split(r"^\d\. ", text, flags=re.MULTILINE)[1:]
    assert len(rules) == 5
    assert all(_NAMED.search(rule) for rule in rules)


def test_the_hardened_example_is_accepted(tmp_path: Path) -> None:
    (text,) = re.findall(r"<!-- checked: example -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    for name in ("cert", "key"):
        (tmp_path / f"{name}.pem").write_text("")
    text = re.sub(r"\$\{(\w+)\}", r"\1-of-some-length", text).replace("/etc/penstock", str(tmp_path))
    settings = from_mapping(yaml.safe_load(text))
    assert settings.identity.require_key
    assert settings.admin.token is not None


def test_every_path_of_its_own_is_among_the_entrances() -> None:
    (text,) = re.findall(r"## Entrances\n(.*?)\n## ", PAGE, re.DOTALL)
    source = (ROOT / "src/penstock/gateway/builtin/own_paths.py").read_text()
    paths = re.findall(r'^            "(/[a-z0-9/]+)": self\._', source, re.MULTILINE)
    assert OwnPaths.__name__
    assert len(paths) >= 9
    for path in paths:
        assert f"`{path}`" in text, path
