"""What the guides tell in tables is what the code, the alerts and the results have."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai

from penstock.core.values.catalogue import Reason

DOCS = Path("docs")
IN_THE_STREAM = {Reason.STREAM_BROKEN}
NOBODY_IS_TOLD = {Reason.CANCELLED, Reason.CLIENT_GONE}


def rows(page: str, table: str) -> list[list[str]]:
    found = re.search(rf"<!-- checked: {table} -->\n((?:\|.*\n)+)", (DOCS / page).read_text())
    assert found is not None, f"{page} has no table {table}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def test_each_error_has_its_status_and_the_exception_that_openai_raises() -> None:
    told = {
        code.strip("`"): (status, raised.strip("`"))
        for status, code, raised, _ in rows("applications.md", "exceptions")
    }
    assert set(told) == set(Reason) - NOBODY_IS_TOLD
    client: Any = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none")
    for reason, (status, raised) in told.items():
        if reason in IN_THE_STREAM:
            assert (status, raised) == ("in the stream", "APIError")
            continue
        assert int(status) == Reason(reason).status, reason
        answer = SimpleNamespace(status_code=int(status), request=None, headers={})
        assert type(client._make_status_error("", body=None, response=answer)).__name__ == raised, reason


def test_series_that_are_watched_exist() -> None:
    source = "".join(path.read_text() for path in Path("src/penstock/gateway/telemetry").glob("*.py"))
    names = [
        name for row in rows("watching.md", "series") for name in re.findall(r"`penstock_(\w+?)(?:_total)?`", row[0])
    ]
    assert len(names) > 10
    assert [name for name in names if not re.search(rf'"(?:penstock_)?{name}(?:_total)?"', source)] == []


def test_settings_that_directives_become_exist() -> None:
    known = (DOCS / "configuration.md").read_text()
    told = [
        name for row in rows("coming-from-nginx.md", "settings") for name in re.findall(r"`([a-z_.\[\]]+)`", row[2])
    ]
    settings = [name for name in told if "." in name or name == "workers"]
    assert len(settings) > 20
    assert [name for name in settings if f"`{name}`" not in known] == []


def test_results_have_scenarios_and_commands_that_are_there() -> None:
    results = (DOCS / "results.md").read_text()
    named = {*re.findall(r"^\| `(\w+)`[^|]*\|", results.partition("## Routing")[0], re.MULTILINE)}
    named -= {"weighted_tokens", "fcfs", "round_robin"}  # fairness policies, which have rows too
    known = "".join(path.read_text() for path in Path("bench/scenarios").glob("*.py"))
    assert len(named) > 15
    assert [name for name in sorted(named) if f'"{name}"' not in known] == []
    commands = re.findall(r"benchmarks/\w+\.py", results)
    assert [file for file in commands if not Path(file).is_file()] == []
