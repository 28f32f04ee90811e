"""The commands of a page, run one after another as they stand there, on ports of this test's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

_BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n)?```(sh|yaml)\n(.*?)```", re.DOTALL)
_FILE = re.compile(r"# ([a-z-]+\.yaml)\n")
_LOCAL = re.compile(r"127\.0\.0\.1:(\d+)")
_READY = "for i in $(seq 100); do curl -sf http://127.0.0.1:8080/ready > /dev/null && break; sleep 0.1; done"


def script(page: Path) -> str:
    """A page's blocks as one script: `sh` that is not marked as not run, and `yaml` that opens with a file's name."""
    lines = ["set -e"]
    for not_run, kind, text in _BLOCK.findall(page.read_text()):
        if not_run:
            continue
        if kind == "sh":
            lines += [text, _READY if "penstock serve" in text else ""]
        elif (file := _FILE.match(text)) is not None:
            lines.append(f"cat > {file[1]} <<'YAML'\n{text}YAML")
    return "\n".join(lines)


def run(text: str, folder: Path, *, timeout_s: float) -> tuple[str, str]:
    """What a script that has the ports of our pages says and complains of. It has to end well."""
    ports = {*_LOCAL.findall(text), *re.findall(r"--port (\d+)", text), "8080"}
    own = {port: str(free_port()) for port in ports}
    text = re.sub(r"(?<=127\.0\.0\.1:)\d+|(?<=--port )\d+", lambda found: own[found[0]], text)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PENSTOCK__LISTEN": f"127.0.0.1:{own['8080']}",
        "PENSTOCK_URL": f"http://127.0.0.1:{own['8080']}",
        "XDG_STATE_HOME": str(folder / "state"),
    }
    out, err = folder / "out.txt", folder / "err.txt"
    with (
        out.open("w") as said,
        err.open("w") as complained,
        subprocess.Popen(
            ["bash", "-c", text], cwd=folder, env=environment, stdout=said, stderr=complained, start_new_session=True
        ) as shell,
    ):
        try:
            shell.wait(timeout_s)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)  # what it started, too
    assert shell.returncode == 0, err.read_text()[-2000:]
    return out.read_text(), err.read_text()
