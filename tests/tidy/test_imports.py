"""Who may import whom, and who may read a clock: the direction of dependency, kept by walking the imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = sorted((SOURCE / "penstock").rglob("*.py"))
BENCH = sorted((SOURCE.parent / "bench").rglob("*.py"))

# What the core may use. `random` is there for the type of the generator that the scheduler is handed.
CORE = {"__future__", "bisect", "collections", "dataclasses", "enum", "heapq", "itertools", "math", "msgspec", "typing"}
CORE_RANDOM = "penstock.core.scheduler"

# A folder or file of the package, and what of the package it must not import.
FORBIDDEN = {
    "core": ("batch", "cli", "clock", "config", "engines", "gateway", "http", "share", "sim"),
    "config": ("cli", "gateway", "http", "sim"),
    "engines": ("cli", "gateway", "http", "sim"),
    "http": ("batch", "cli", "config", "core", "engines", "gateway", "share", "sim"),
    "batch": ("cli", "sim"),
    "gateway": ("cli", "sim"),
    "gateway/telemetry": ("gateway.cluster", "gateway.endpoints", "gateway.epp", "gateway.proxy"),  # it reads values
    "gateway/usage": ("gateway.cluster", "gateway.endpoints", "gateway.epp", "gateway.proxy"),
    "share": ("batch", "cli", "clock", "config", "engines", "gateway", "http", "sim"),
    "sim": ("batch", "cli", "gateway", "http"),
    "conformance": ("batch", "cli", "gateway", "http", "sim"),
}
CLOCKLESS = (
    "core",
    "share",
    "sim/engine/model.py",
    "sim/engine/blocks.py",
    "conformance",
    "sim/world/world.py",
    "sim/world/workload.py",
)
LOCAL_IDS = ("penstock.cli.demo",)  # `id()` as a key inside one process
CLOCKS = {"time", "datetime"}
IMPURE = {"asyncio", "logging", "os", "random", "socket", "sys", "threading", "time"}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE if SOURCE in path.parents else SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Each import as (module, name taken from it or empty), those inside functions too."""
    return tuple(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def inside(place: str) -> list[Path]:
    base = SOURCE / "penstock" / place
    return [path for path in MODULES if path == base or base in path.parents or path == base.with_suffix(".py")]


def full_names(path: Path) -> list[str]:
    return [f"{module}.{name}".rstrip(".") for module, name in imports(path)]


@pytest.mark.parametrize("place", FORBIDDEN)
def test_dependencies_point_inward(place: str) -> None:
    for path in inside(place):
        for imported in full_names(path):
            for other in FORBIDDEN[place]:
                target = f"penstock.{other}"
                assert imported != target, f"{name_of(path)} imports {imported}"
                assert not imported.startswith(target + "."), f"{name_of(path)} imports {imported}"


def test_the_package_imports_only_modules_of_the_wheel() -> None:
    for path in MODULES:
        for module, _ in imports(path):
            assert module.split(".")[0] not in {"bench", "benchmarks", "tests"}, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", BENCH, ids=name_of)
def test_the_bench_imports_no_gateway(path: Path) -> None:
    for imported in full_names(path):
        assert not imported.startswith(("penstock.cli", "penstock.gateway", "tests")), f"imports {imported}"


def test_batches_know_no_http_but_for_their_api() -> None:
    for path in inside("batch"):
        if "api" not in path.parts:
            for module, _ in imports(path):
                assert not module.startswith(("penstock.gateway", "penstock.http")), f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", inside("core"), ids=name_of)
def test_the_core_imports_a_short_list(path: Path) -> None:
    for module, name in imports(path):
        if module.startswith("penstock."):
            assert module.startswith("penstock.core")
        elif module == "random":
            assert (name_of(path), name) == (CORE_RANDOM, "Random")
        else:
            assert module.split(".")[0] in CORE, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", inside("core"), ids=name_of)
def test_the_core_names_no_clock_no_loop_and_no_log(path: Path) -> None:
    used = {
        node.value.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not used & (IMPURE - {"random"})


def test_the_scheduler_draws_no_randomness_but_from_its_generator() -> None:
    tree = ast.parse((SOURCE / "penstock/core/scheduler.py").read_text())
    calls = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert "Random" not in calls


def _outside_of_parameters(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yields the nodes below, without functions that have a parameter of that name."""
    if isinstance(node, ast.FunctionDef) and any(each.arg == name for each in node.args.args):
        return
    yield node
    for inner in ast.iter_child_nodes(node):
        yield from _outside_of_parameters(inner, name)


def test_no_decision_depends_on_hash_or_id() -> None:
    """They differ in each process, and what is keyed by them would mean nothing to another one."""
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in MODULES
        if name_of(path) not in LOCAL_IDS
        for node in _outside_of_parameters(ast.parse(path.read_text()), "id")
        if isinstance(node, ast.Name) and node.id in ("hash", "id") and isinstance(node.ctx, ast.Load)
    ]
    assert not found


@pytest.mark.parametrize("place", CLOCKLESS)
def test_only_the_clock_reads_a_clock(place: str) -> None:
    for path in inside(place):
        for module, _ in imports(path):
            assert module.split(".")[0] not in CLOCKS, f"{name_of(path)} imports {module}"


def test_the_walk_sees_what_it_should() -> None:
    """A test that looks at nothing passes too."""
    assert len(inside("core")) > 20
    assert ("penstock.core.queueing.entry", "Entry") in imports(SOURCE / "penstock/core/scheduling/waiting.py")
    assert list(_imports(ast.parse("def f():\n import os.path\n from time import sleep"))) == [
        ("os.path", ""),
        ("time", "sleep"),
    ]


def test_a_test_states_the_number_that_it_means() -> None:
    """A limit that a test imports moves with the code, so the test could not see that the limit is wrong."""
    imported = {
        (module, name)
        for path in sorted((SOURCE.parent / "tests").rglob("*.py"))
        for module, name in imports(path)
        if module.startswith("penstock.") and name.isupper() and name != "PROTOCOL"
    }
    numbers = [names for names in imported if isinstance(getattr(import_module(names[0]), names[1], None), int | float)]
    assert numbers == []
