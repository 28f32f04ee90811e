"""The quickstart: every command on the page runs as it stands there, and what the page promises happens."""

from __future__ import annotations

import re
from pathlib import Path

from tests.walkthrough.pages import run, script


def test_every_command_of_the_quickstart_runs(tmp_path: Path) -> None:
    out, _ = run(script(Path("docs/quickstart.md")), tmp_path, timeout_s=100)
    assert re.search(r"^ok: 2 endpoints", out, re.MULTILINE)
    assert '"chat.completion.chunk"' in out
    assert re.search(r"Holding \d+ for sim, \d+ from team-\w", out)
    before, after = map(shares, out.split("tenants[team-b].weight 1 → 3", 1))
    assert before["team-a"][1] == 75
    assert before["team-b"][1] == 25
    assert abs(before["team-a"][0] - 75) <= 6, out
    assert after["team-a"][1] == after["team-b"][1] == 50, out
    answers = re.findall(r"^HTTP/1\.1 (\d+)", out, re.MULTILINE)
    assert answers[-3:] == ["200", "200", "429"]
    refusal = out[out.rindex("HTTP/1.1 429") :]
    assert re.search(r"^retry-after: \d+", refusal, re.MULTILINE | re.IGNORECASE)
    assert '"code":"tenant_limit"' in refusal


def shares(text: str) -> dict[str, tuple[int, int]]:
    """What `top` shows of each team's part of its band: got and fair, in percent."""
    rows = re.findall(r"^(team-\w) .* (\d+) ?%, fair (\d+) ?%", text, re.MULTILINE)
    return {team: (int(got), int(fair)) for team, got, fair in rows}
