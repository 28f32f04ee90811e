"""A plain `penstock serve` imports no code of what is off."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

LINES_MAX = 28_600  # with the gate on sessions, which is on; of code: without comments, docstrings and empty lines
OFF = {
    "files and batches": ("penstock.batch.api", "penstock.batch.runner", "penstock.batch.manager"),
    "the store, until something is written": ("penstock.batch.store.sql", "penstock.batch.store.database", "sqlite3"),
    "a ledger, and somebody who looks": (
        *("penstock.gateway.usage.report", "penstock.gateway.admin.picture.picture", "penstock.gateway.admin.headline"),
        *("penstock.gateway.admin.story", "penstock.gateway.admin.routes", "penstock.gateway.telemetry.levels"),
    ),
    "other projects' series": ("penstock.gateway.telemetry.llm_d", "penstock.gateway.telemetry.production_stack"),
    "paths that few callers ask": (
        *("penstock.gateway.builtin.engine_paths", "penstock.gateway.builtin.queue", "penstock.gateway.proxy.direct"),
        "penstock.gateway.proxy.stored_answers",
    ),
    "packed bodies, and headers of load balancers": ("penstock.http.inflate", "penstock.http.server.proxy_header"),
    "dialects of engines that are not there": ("penstock.engines.vllm", "penstock.engines.sglang"),
    "policies of other packages": ("penstock.core.routing.other_packages",),
    "issued keys": ("penstock.gateway.keys",),
    "workers and groups": ("penstock.share", "penstock.gateway.cluster", "penstock.gateway.elect"),
    "the endpoint picker": ("penstock.gateway.epp", "grpc"),
    "tokens of an issuer": ("penstock.gateway.identity.tokens.issuer", "jwt"),
    "discovery": tuple(f"penstock.gateway.endpoints.discovery.{kind}" for kind in ("dns", "file", "kubernetes")),
    "KV events and LMCache": (
        *("penstock.gateway.kv_cache.l", "penstock.gateway.kv_cache.k", "penstock.gateway.kv_cache.c"),
        "penstock.engines.kv",
    ),
    "names that stand for models": ("penstock.gateway.endpoints.splits",),
    "tracing and the access log": (
        "opentelemetry",
        "penstock.gateway.telemetry.access_log",
        "penstock.gateway.telemetry.line_log",
    ),
    "other commands": ("penstock.cli.commands", "penstock.cli.hints"),
    "the drop-in": ("penstock.config.production_stack",),
    "tools": ("penstock.sim", "penstock.conformance"),
}
SERVE = """
import asyncio, json, sys
from penstock.gateway.serve import Gateway
async def listening(gateway):
    await start(gateway)
    names = {name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}
    print(json.dumps(names), flush=True)
    gateway.stop()
start, Gateway.start = Gateway.start, listening
from penstock.cli.main import main
sys.exit(main(["serve", "--listen", "127.0.0.1:0", "--endpoint", sys.argv[1]]))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, str]:
    """The modules of a gateway that listens, with their files."""
    command = [sys.executable, "-c", SERVE, f"http://127.0.0.1:{free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names: dict[str, str] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("what", OFF)
def test_what_is_off_is_not_imported(imported: dict[str, str], what: str) -> None:
    assert [name for name in imported if name.startswith(OFF[what])] == []


def test_a_plain_gateway_imports_little(imported: dict[str, str]) -> None:
    ours = [Path(file) for name, file in imported.items() if name.split(".")[0] == "penstock"]
    assert len(ours) > 100
    assert sum(lines_of_code(file.read_text()) for file in ours if file.suffix == ".py") <= LINES_MAX


def lines_of_code(source: str) -> int:
    """Counts a module's lines without comments, docstrings and empty lines."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(number not in documented and line.strip()[:1] not in ("", "#") for number, line in lines)
