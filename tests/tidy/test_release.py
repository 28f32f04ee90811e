"""The release workflow: what it runs is there, nothing is published unchecked, no job has more rights than it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tidy.test_docs import ROOT

TEXT = (ROOT / ".github/workflows/release.yml").read_text()
FLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, dict[str, Any]] = FLOW["jobs"]
PUBLISH = {"index": {"id-token"}, "image": {"id-token", "packages"}, "page": {"contents", "id-token"}}


def needs(name: str) -> set[str]:
    """The jobs that have to be good before this one."""
    given = JOBS[name].get("needs", [])
    direct = {given} if isinstance(given, str) else set(given)
    return direct.union(*map(needs, direct))


def test_it_runs_for_a_tag_and_for_a_trial_by_hand() -> None:
    assert FLOW[True] == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}  # YAML reads `on` as true


def test_every_script_that_it_runs_is_there() -> None:
    scripts = set(re.findall(r"\bscripts/deploy/[a-z-]+", TEXT))
    assert {"scripts/deploy/wheels", "scripts/deploy/release-check", "scripts/deploy/image"} <= scripts
    assert [name for name in sorted(scripts) if not os.access(ROOT / name, os.X_OK)] == []


def test_what_publishes_needs_a_tag_and_the_check_and_has_no_other_rights() -> None:
    assert FLOW["permissions"] == {"contents": "read"}
    writing = {
        name: {right for right, level in job.get("permissions", {}).items() if level == "write"}
        for name, job in JOBS.items()
    }
    assert {name: rights for name, rights in writing.items() if rights} == PUBLISH
    for name in PUBLISH:
        assert JOBS[name]["if"] == "github.ref_type == 'tag'"
        assert {"sources", "wheels", "check"} <= needs(name)
    assert {"index", "image"} <= needs("page")


def test_wheels_are_made_for_two_architectures_and_signed_without_a_kept_key() -> None:
    assert JOBS["wheels"]["strategy"]["matrix"]["runner"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert "linux/amd64,linux/arm64" in TEXT
    assert re.findall(r"secrets\.(\w+)", TEXT) == ["GITHUB_TOKEN", "GITHUB_TOKEN"]
    assert re.findall(r"cosign (sign|attest|sign-blob) --yes", TEXT) == ["sign", "attest", "sign", "sign-blob"]


def test_actions_are_pinned_to_a_commit_whose_version_is_named() -> None:
    used = re.findall(r"uses: (.+)", TEXT)
    assert len(used) > 10
    assert [
        action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action)
    ] == []
    assert len({action.partition("@")[0] for action in used}) == len(set(used)), "one commit of each action"


CHANGES = """\
# Changes

## Unreleased

### Added

- Soon ([how](docs/usage.md)).

## v1.2.0 (2030-01-02)

### Fixed

- A fault ([page](docs/spill.md), [elsewhere](https://x.example/)).

## v1.1.0 (2029-01-02)

- Old.
"""


@pytest.mark.parametrize(
    ("asked", "code", "told"),
    [
        (
            ["v1.2.0"],
            0,
            "### Fixed\n\n- A fault ([page](https://forge.example/us/ours/blob/v1.2.0/docs/spill.md), ",
        ),
        (["1.1.0"], 0, "- Old.\n"),
        (["1.2"], 1, ""),
        (["9.9.9"], 1, ""),
    ],
)
def test_the_notes_are_the_versions_own_section(tmp_path: Path, asked: list[str], code: int, told: str) -> None:
    script = tmp_path / "scripts/deploy/notes"
    script.parent.mkdir(parents=True)
    script.write_text((ROOT / "scripts/deploy/notes").read_text())
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://forge.example/us/ours"\n')
    done = subprocess.run([sys.executable, script, *asked], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith(told)) == (code, True), done
    assert "Soon" not in done.stdout
    assert ("has no section" in done.stderr) == bool(code)
