"""`share.elect`: what is refused before a gateway starts, and in which words."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.config.sections.elect import KubernetesElection, PostgresElection, ValkeyElection, elect_checks


def problems(elect: dict[str, Any]) -> list[str]:
    document = {"share": {"elect": elect}}
    return [
        f"{problem.path}: {problem.message}; {problem.suggestion}"
        for _, problem in elect_checks(elect, ("share", "elect"), document)
    ]


@pytest.mark.parametrize(
    "elect",
    [
        {"kubernetes": {}},
        {"kubernetes": {"lease": "gate", "namespace": "prod"}},
        {"kubernetes": {"server": "https://10.0.0.1:6443"}},
        {"valkey": {"url": "valkey://:secret@store:6379/0"}},
        {"valkey": {"url": "rediss://user:secret@store:6379", "key": "prod"}},
        {"valkey": {"url": "unix:///run/valkey.sock"}},
        {"postgres": {"url": "postgresql://gate:secret@db/gate"}},
        {"postgres": {"url": "postgres://gate@db/gate", "name": "eu"}},
        {"static": "10.0.0.1:8081"},
        {},
        None,
    ],
)
def test_what_is_taken(elect: Any) -> None:
    assert problems(elect) == []


@pytest.mark.parametrize(
    ("elect", "said"),
    [
        (
            {"valkey": {"url": "http://store:6379"}},
            "share.elect.valkey.url: expected a URL that begins with valkey://, valkeys://, redis://, rediss",
        ),
        ({"valkey": {"url": "valkey://[half"}}, "share.elect.valkey.url: expected a URL that begins with"),
        (
            {"postgres": {"url": "mysql://db/gate"}},
            "share.elect.postgres.url: expected a URL that begins with postgresql:// or postgres://",
        ),
        ({"kubernetes": {"token_file": __file__}}, "share.elect.kubernetes.token_file: is given, but `server` is not"),
        ({"valkey": {"url": "valkeys://a", "ca_file": "/nowhere/ca.pem"}}, "share.elect.valkey.ca_file: cannot read"),
    ],
)
def test_what_is_refused(elect: Any, said: str) -> None:
    (problem,) = problems(elect)
    assert problem.startswith(said)


@pytest.mark.parametrize(
    ("elect", "package", "extra"),
    [
        ({"valkey": {"url": "valkey://store"}}, "redis", "valkey"),
        ({"postgres": {"url": "postgresql://db/gate"}}, "psycopg", "postgres"),
    ],
)
def test_a_package_that_is_not_installed(elect: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    (problem,) = problems(elect)
    assert problem.startswith(f"share.elect.{next(iter(elect))}: needs {package}, which is not installed")
    assert f"pip install 'penstock-gateway[{extra}]'" in problem


@pytest.mark.parametrize(
    ("section", "given"),
    [
        (ValkeyElection, {}),
        (ValkeyElection, {"url": "valkey://store", "key": ""}),
        (ValkeyElection, {"url": "valkey://store", "key": "two words"}),
        (PostgresElection, {"url": "postgresql://db", "name": "x" * 300}),
        (KubernetesElection, {"lease": "No_Lease"}),
        (KubernetesElection, {"lease": "gate", "ttl": 3}),
    ],
)
def test_what_is_no_setting(section: Any, given: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, ValueError)):
        section.model_validate(given)


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    valkey = ValkeyElection.model_validate({"url": "valkey://:open-sesame@store"})
    postgres = PostgresElection.model_validate({"url": "postgresql://gate:open-sesame@db/gate"})
    assert "open-sesame" not in f"{valkey!r} {postgres!r}"
    assert "open-sesame" not in "".join(problems({"valkey": {"url": "http://:open-sesame@store"}}))
