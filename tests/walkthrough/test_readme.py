"""README: every command runs as it stands there, and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.cli.commands import parser
from tests.walkthrough.pages import run, script

README = Path("README.md")


def test_every_command_runs_as_it_stands_there(tmp_path: Path) -> None:
    out, complaints = run(f"{script(README)}\npenstock check penstock.yaml", tmp_path, timeout_s=60)
    assert '"chat.completion.chunk"' in out
    assert "data: [DONE]" in out
    assert re.search(r"^ok: 2 endpoints, 3 bands", out, re.MULTILINE), out
    assert "by the header x-tenant-id, otherwise address + key + user" in complaints


def test_commands_in_the_text_are_there() -> None:
    known = next(a.choices for a in parser("")._actions if isinstance(a.choices, dict))
    named = re.findall(r"`penstock ([a-z-]+)", README.read_text())
    assert len(named) >= 5
    assert set(named) <= set(known)


def test_the_python_line_is_the_clients_own() -> None:
    openai = pytest.importorskip("openai")
    (line,) = re.findall(r"`(OpenAI\(.*\))`", README.read_text())
    client = eval(line, {"OpenAI": openai.OpenAI})
    assert client.default_headers["x-tenant-id"] == "chat"


def test_it_is_read_in_two_minutes() -> None:
    text = re.sub(r"```.*?```|<!--.*?-->|\]\([^)]*\)", "", README.read_text(), flags=re.DOTALL)
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 610


def test_it_answers_what_a_reader_asks_first() -> None:
    text = README.read_text()
    for word in (
        "x-tenant-id",
        "penstock keys new",
        "client_address",
        "On no\nGPU yet",
        "## What it is not",
        "## Coming from",
    ):
        assert word in text, word
