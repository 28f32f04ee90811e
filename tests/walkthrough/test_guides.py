"""The guides: commands that need this machine alone run as they stand there, and what is promised happens."""

from __future__ import annotations

import re
from pathlib import Path

from tests.walkthrough.pages import run, script


def guide(name: str, folder: Path) -> str:
    return run(script(Path("docs", name)), folder, timeout_s=60)[0]


def test_before_vllm(tmp_path: Path) -> None:
    out = guide("before-vllm.md", tmp_path)
    assert len(re.findall(r"^127\.0\.0\.1:\d+ +vLLM", out, re.MULTILINE)) == 2, out
    assert re.search(r"^ok: 2 endpoints", out, re.MULTILINE)
    assert '"object":"chat.completion"' in out.replace(" ", "")
    assert len(re.findall(r": up, .*, slots 64,", out)) == 2, out
    assert '"object":"text_completion"' in out.replace(" ", ""), out


def test_three_teams(tmp_path: Path) -> None:
    out = guide("three-teams.md", tmp_path)
    shares = {
        team: (int(got), int(fair))
        for team, got, fair in re.findall(r"^(chat|research) .* (\d+) ?%, fair (\d+) ?%", out, re.MULTILINE)
    }
    assert (shares["chat"][1], shares["research"][1]) == (75, 25), out
    assert abs(shares["chat"][0] - 75) <= 10, out
    waits = re.search(r"^req-\S+ +(?:\+\d+ +)?nightly +([\d.]+) (m?)s +turn", out, re.MULTILINE)
    assert waits is not None, out
    assert "x-penstock-band: interactive" in out
    waited = re.search(r"x-penstock-queue-ms: ([\d.]+)", out)
    assert waited is not None
    assert float(waited[1]) < float(waits[1]) * (1 if waits[2] else 1_000), out
    assert '"tenant":"nightly"' in out
    assert out.count('"id":"sim"') == 1
    assert re.search(r"^401$", out, re.MULTILINE)
    assert "tenants[research].weight 1 → 3" in out
    assert "`max_tokens` is 501; this key may ask for 500 tokens at most." in out
    assert "may not use the model `large`" in out
    assert "notebook: research, issued, models sim*, prompts of 8,000 tokens, answers of 500 tokens, until" in out
    assert "notebook: revoked" in out
    assert "Incorrect API key" in out.partition("notebook: revoked")[2]


def test_applications(tmp_path: Path) -> None:
    out = guide("applications.md", tmp_path)
    assert "5 tokens\nmodel_not_found\n" in out, out
    assert '"tenant":"mine"' in out


def test_agents(tmp_path: Path) -> None:
    out = guide("agents.md", tmp_path)
    assert "event: message_stop" in out, out
    assert re.search(r'^\{"input_tokens": ?\d+\}$', out, re.MULTILINE), out
    assert re.search(r"^event: response\.(completed|incomplete)$", out, re.MULTILINE), out


def test_paths(tmp_path: Path) -> None:
    out = guide("paths.md", tmp_path)
    assert out.startswith("ok: 1 endpoint"), out
    asked = re.findall(r"^(/\S+) (\d+) (\S*)$", out, re.MULTILINE)
    assert [(path, status, bool(endpoint)) for path, status, endpoint in asked] == [
        ("/ping", "200", True),
        ("/tokenizer_info?model=sim", "404", True),
        ("/pong", "404", False),
    ], out


def test_litellm_behind(tmp_path: Path) -> None:
    out = guide("litellm.md", tmp_path)
    assert re.findall(r"^HTTP/1\.1 (\d+)", out, re.MULTILINE) == ["200", "200"], out
    assert out.count("x-penstock-endpoint: litellm") == 1, out


def test_coming_from_nginx(tmp_path: Path) -> None:
    out = guide("coming-from-nginx.md", tmp_path)
    assert '"id":"sim"' in out
    assert re.findall(r"^(gpu-\d): up", out, re.MULTILINE) == ["gpu-0", "gpu-1"], out


def test_watching(tmp_path: Path) -> None:
    out = guide("watching.md", tmp_path)
    assert re.search(r'^penstock_endpoint_up\{endpoint="127\.0\.0\.1:\d+"\} 1', out, re.MULTILINE), out
    assert "completed" in out or "answered" in out, out


def test_fallback(tmp_path: Path) -> None:
    out = guide("fallback.md", tmp_path)
    assert re.findall(r"^HTTP/1\.1 (\d+)", out, re.MULTILINE) == ["200"], out
    assert "x-penstock-model: small" in out, out


def test_spill(tmp_path: Path) -> None:
    out = guide("spill.md", tmp_path)
    assert "x-penstock-endpoint: paid" in out, out
    assert "meta-llama" not in out.rpartition("x-penstock-endpoint")[2]
    assert '"model":"llama-70b"' in out
    waited = re.search(r"x-penstock-queue-ms: (\d+)", out)
    assert waited is not None
    assert int(waited[1]) > 3_000, out


def test_tokens(tmp_path: Path) -> None:
    out = guide("tokens.md", tmp_path)
    assert re.findall(r'"code":"(\w+)"', out) == ["identity_unavailable", "unauthorized"], out
