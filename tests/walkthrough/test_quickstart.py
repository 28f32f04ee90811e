"""The quickstart: every command on the page runs as it stands there, and what the page promises happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

PAGE = Path("docs/quickstart.md")
_BLOCK = re.compile(r"```(sh|yaml)\n(.*?)```", re.DOTALL)
CHECKS = """
for i in $(seq 100); do curl -sf http://127.0.0.1:8080/ready > /dev/null && break; sleep 0.1; done
"""


def script() -> str:
    """The page's blocks, one after another; what is not a command is what it says it is."""
    lines = ["set -e", "trap 'kill $(jobs -p) 2> /dev/null' EXIT"]
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        if kind == "yaml":
            lines.append(f"cat > penstock.yaml <<'YAML'\n{text}YAML")
        elif not text.startswith("pip install"):  # it is installed
            lines += [text, CHECKS if "penstock serve" in text else ""]
    return "\n".join(lines)


def test_every_command_of_the_quickstart_runs(tmp_path: Path) -> None:
    # Other ports than the page's, which somebody on this machine may use.
    text = script()
    for port in ("8080", "9001", "9002"):
        text = text.replace(port, str(free_port()))
    listen = re.search(r"http://127\.0\.0\.1:(\d+)/ready", text)
    assert listen is not None
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PENSTOCK__LISTEN": f"127.0.0.1:{listen[1]}",
        "PENSTOCK_URL": f"http://127.0.0.1:{listen[1]}",
    }
    with subprocess.Popen(
        ["bash", "-c", text], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            out, err = shell.communicate(timeout=100)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, err[-2000:]
    assert re.search(r"^ok: 2 endpoints", out, re.MULTILINE)
    assert '"chat.completion.chunk"' in out
    assert re.search(r"Holding \d+, \d+ from team-\w: sim ", out)
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
    rows = re.findall(r"^(team-\w) .* (\d+)%, fair (\d+)%", text, re.MULTILINE)
    return {team: (int(got), int(fair)) for team, got, fair in rows}


def free_port() -> int:
    import socket  # noqa: PLC0415

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
