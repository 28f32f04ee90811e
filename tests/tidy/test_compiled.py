"""What is compiled (pyproject.toml) and what is left: msgspec structs and dataclasses would not stay what they are."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from importlib import machinery, metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
HOOK = BUILD["targets"]["wheel"]["hooks"]["custom"]
# What takes all of a generator, or (any, all, next) is compiled to a loop that ends where it would.
CONSUMERS = {
    "all",
    "any",
    "next",
    "sum",
    "min",
    "max",
    "sorted",
    "tuple",
    "list",
    "set",
    "frozenset",
    "dict",
    "join",
    "extend",
    "update",
}


def _matching(patterns: list[str]) -> set[Path]:
    return {path for pattern in patterns for path in (ROOT / "src").glob(pattern)}


def _defines_values(path: Path) -> bool:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    if any(isinstance(node, ast.FunctionDef) and node.name == "__new__" for node in nodes):
        return True  # members of an enum that are rows
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    told = [ast.unparse(part) for node in classes for part in (*node.bases, *node.keywords, *node.decorator_list)]
    words = (
        "Struct",
        "frozen",
        "dataclass",
        "socket.socket",
    )  # the last one has slots, which no compiled class may have
    return any(word in part for part in told for word in words)


def test_a_file_is_left_if_and_only_if_it_defines_values() -> None:
    chosen = _matching(HOOK["compile"])
    assert {path for path in chosen if _defines_values(path)} == _matching(HOOK["leave"])
    assert len(chosen) > 50


def test_the_list_stands_on_files_that_are_there() -> None:
    for pattern in (*HOOK["compile"], *HOOK["leave"]):
        assert _matching([pattern]), pattern


@pytest.mark.static
@pytest.mark.timeout(400)  # 14 s of work, which on a busy machine was seen to take minutes
def test_mypyc_accepts_the_compiled_modules(tmp_path: Path) -> None:
    """All but the C compiler's part: what passes mypy may still be something that mypyc has no representation for.

    It sees the packages that a build sees, which has no stubs of the development environment.
    """
    pytest.importorskip("setuptools", reason="mypyc builds with setuptools")
    files = sorted(_matching(HOOK["compile"]) - _matching(HOOK["leave"]))
    told = [str(path.relative_to(ROOT)) for path in files if path.name != "__init__.py"]
    program = "import sys; from mypyc.build import mypycify; mypycify(sys.argv[2:], target_dir=sys.argv[1])"
    seen = f"--python-executable={_with_runtime_packages_only(tmp_path / 'seen')}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "c"), seen, *told],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning:" not in done.stdout, done.stdout


PAIRS_COMPARED = """
import sys
from mypy import build
from mypy.main import process_options
from mypy.nodes import ComparisonExpr
from mypy.types import TupleType, UnionType, get_proper_type

sources, options = process_options(sys.argv[1:])
options.export_types, options.incremental = True, False
types = build.build(sources, options).types

def may_be_unboxed(operand):
    kind = get_proper_type(types.get(operand))
    for one in map(get_proper_type, kind.items if isinstance(kind, UnionType) else [kind]):
        if isinstance(one, TupleType) and one.partial_fallback.type.fullname == "builtins.tuple":
            return True

for node in types:
    if isinstance(node, ComparisonExpr):
        for at, operator in enumerate(node.operators):
            if operator in ("is", "is not") and all(map(may_be_unboxed, node.operands[at : at + 2])):
                print(node.line, *[getattr(operand, "name", "?") for operand in node.operands])
"""


@pytest.mark.static
@pytest.mark.timeout(400)
def test_no_tuple_is_told_by_its_identity(tmp_path: Path) -> None:
    """Compiled, a tuple of known length is its items: it is boxed anew for each look, and never the same object."""
    one_that_is = tmp_path / "one_that_is.py"
    one_that_is.write_text(
        "def f(one: tuple[int, str], other: tuple[int, str] | None) -> bool:\n    return one is other\n"
    )
    files = sorted(_matching(HOOK["compile"]) - _matching(HOOK["leave"]))
    program = [sys.executable, "-c", PAIRS_COMPARED, str(one_that_is), *map(str, files)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 one other"]


def _with_runtime_packages_only(where: Path) -> Path:
    """Make an environment of the packages that are locked for `penstock` itself. Returns its Python."""
    venv.create(where, with_pip=False)
    python = where / "bin" / "python"
    (site,) = where.glob("lib/python*/site-packages")
    names = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for name in names:
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    return python


def test_no_tuple_of_numbers_is_final() -> None:
    """Compiled, each is taken for one without a value, which is marked by a number: NameError."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in _matching(HOOK["compile"]) - _matching(HOOK["leave"])
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign) and "Final" in ast.unparse(node.annotation)
        if isinstance(node.value, ast.Tuple) and all(map(_is_number, node.value.elts))
    ]
    assert found == []


def _is_number(node: ast.expr) -> bool:
    return ast.unparse(node).lstrip("-") in ("math.inf", "INF", "inf") or (
        isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    )


#: Small steps of which readers are made. Compiled, each does what it does in Python, for all that it may be given.
PROBES = """
from __future__ import annotations


def cut_bytes(value: bytes, begin: int, end: int) -> bytes:
    return value[begin:end]


def cut_array(value: bytearray, begin: int, end: int) -> bytearray:
    return value[begin:end]


def cut_text(value: str, begin: int, end: int) -> str:
    return value[begin:end]


def cut_list(value: list[int], begin: int, end: int) -> list[int]:
    return value[begin:end]


def cut_tuple(value: tuple[int, ...], begin: int, end: int) -> tuple[int, ...]:
    return value[begin:end]


def begin_of(value: bytes, end: int) -> bytes:
    return value[:end]


def rest_of(value: bytes, begin: int) -> bytes:
    return value[begin:]


def byte_at(value: bytes, at: int) -> int:
    return value[at]


def letter_at(value: str, at: int) -> str:
    return value[at]


def item_at(value: list[int], at: int) -> int:
    return value[at]


def place(value: bytes, begin: int, end: int) -> tuple[int, int, int]:
    return value.find(b"c", begin, end), value.rfind(b"c", begin, end), value.count(b"c", begin, end)


def place_in_text(value: str, begin: int, end: int) -> tuple[int, int, bool]:
    return value.find("c", begin, end), value.rfind("c", begin, end), value.startswith("c", begin, end)


def calculated(one: int, other: int) -> tuple[int, int, int, int, int]:
    return one + other, one - other, one * other, one // other, one % other


def divided(one: int, other: int) -> float:
    return one / other


def shifted(one: int, other: int) -> tuple[int, int, int, int]:
    return one << other, one >> other, one & other, one | other


def repeated(value: bytes, times: int) -> bytes:
    return value * times


def counted(begin: int, end: int) -> list[int]:
    return [at for at in range(begin, end)]


def smaller(one: int, other: int) -> tuple[bool, int, int]:
    return one < other, min(one, other), max(one, other)
"""


@pytest.mark.static
@pytest.mark.timeout(400)
def test_what_is_compiled_does_as_python_does(
    hook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("setuptools", reason="mypyc builds with setuptools")
    if missing := hook["missing_compiler"]():
        pytest.skip(missing)
    (tmp_path / "probes.py").write_text(PROBES)
    monkeypatch.chdir(tmp_path)
    hook["to_machine_code"](hook["to_c"](["probes.py"], tmp_path / "c"), tmp_path)
    found = machinery.PathFinder.find_spec("probes", [str(tmp_path / "lib")])
    assert found is not None
    assert found.loader is not None
    built = util.module_from_spec(found)
    found.loader.exec_module(built)
    plain: dict[str, Any] = {}
    exec(PROBES, plain)
    small = list(range(-8, 9))
    large = [2**62 - 1, -(2**62), 2**63, -(2**63) - 1]
    values: dict[str, list[Any]] = {
        "bytes": [b"abcabc", b""],
        "bytearray": [bytearray(b"abcabc")],
        "str": ["abcabc", "a\u20acc"],
        "list[int]": [[1, 2, 3, 4, 5, 6]],
        "tuple[int, ...]": [(1, 2, 3, 4, 5, 6)],
    }
    for name in [name for name, probe in plain.items() if callable(probe)]:
        # No index comes near 2**62; compiled, one beyond that raises OverflowError.
        numbers = small + large if name.startswith(("cut", "begin", "rest", "calc", "div", "small")) else small
        *takes, _ = plain[name].__annotations__.values()
        for given in itertools.product(*[values.get(kind, numbers) for kind in takes]):
            assert (name, given, _outcome(vars(built)[name], given)) == (name, given, _outcome(plain[name], given))


def _outcome(probe: Callable[..., object], given: tuple[object, ...]) -> object:
    try:
        made = probe(*given)
    except Exception as error:
        return type(error)
    return type(made), made


def test_no_generator_expression_is_handed_on() -> None:
    """Compiled it would be a list, made whole before anybody asks for its first element; the build refuses it too."""
    for path in _matching(HOOK["compile"]) - _matching(HOOK["leave"]):
        tree = ast.parse(path.read_text())
        consumed = {
            id(call.args[0])
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and call.args and _name(call.func) in CONSUMERS
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.GeneratorExp):
                assert id(node) in consumed, f"{path}:{node.lineno}"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    interface = "hatchling.builders.hooks.plugin.interface"  # of the build's own environment
    stub = ModuleType(interface)
    stub.BuildHookInterface = list  # type: ignore[attr-defined]  # any generic class
    monkeypatch.setitem(sys.modules, interface, stub)
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def test_a_missing_compiler_is_reported_in_one_line(hook: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    told = hook["missing_compiler"]()
    assert "`no-such-compiler`" in told
    assert "\n" not in told
    monkeypatch.setenv("CC", sys.executable)
    assert hook["missing_compiler"]() is None


@pytest.mark.skipif(os.name == "nt", reason="the compiler is started in another way there")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("starts_by", ["spawn", "call"])  # setuptools before 84, and since
def test_an_interrupt_ends_the_compilers_at_once(tmp_path: Path, starts_by: str) -> None:
    pytest.importorskip("setuptools", reason="the hook compiles with setuptools")
    compiler, began = tmp_path / "cc", tmp_path / "began"
    os.mkfifo(began)
    compiler.write_text(f"#!/bin/sh\necho began > {began}\nexec sleep 3600\n")
    compiler.chmod(0o755)
    for at in range(20):
        (tmp_path / f"{at}.c").write_text("int x;")
    build = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is inherited as ignored where the tests run in background
import sys, types
from pathlib import Path
from setuptools import Extension
from distutils.unixccompiler import UnixCCompiler
start = lambda self, command, **_: __import__("subprocess").check_call(command)
UnixCCompiler.{starts_by} = start
UnixCCompiler._compile = lambda self, obj, src, ext, flags, after, _: self.{starts_by}(
    [*self.compiler_so, *flags, src, "-o", obj, *after]
)
stub = types.ModuleType("hatchling.builders.hooks.plugin.interface")
stub.BuildHookInterface = list
sys.modules[stub.__name__] = stub
import runpy
files = sorted(str(path) for path in Path({str(tmp_path)!r}).glob("*.c"))
made = [Extension("a", files[:10]), *[Extension(f"e{{at}}", [file]) for at, file in enumerate(files[10:])]]
runpy.run_path({str(ROOT / "hatch_build.py")!r})["to_machine_code"](made, Path({str(tmp_path)!r}))
"""
    with (tmp_path / "said").open("w+") as said:
        running = subprocess.Popen(
            [sys.executable, "-c", build], env={**os.environ, "CC": str(compiler)}, stderr=said, start_new_session=True
        )
        try:
            _wait_for_word(began, running)
            running.send_signal(signal.SIGINT)
            running.wait(timeout=300)  # a file takes an hour, and there are twenty
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # compilers that were left, too
        said.seek(0)
        assert "KeyboardInterrupt" in said.read()
    assert running.returncode != 0


def test_a_compiler_that_fails_is_named_without_its_hundred_flags(hook: dict[str, Any], tmp_path: Path) -> None:
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\nexit 3\n")
    failing.chmod(0o755)
    with pytest.raises(RuntimeError) as raised:
        hook["Children"]().run([str(failing), "-O2", "-c", "a.c"])
    assert str(raised.value) == f"`{failing}` ended with 3, its output stands above (pip install -v)"


def _wait_for_word(fifo: Path, running: subprocess.Popen[bytes]) -> None:
    """Wait until something is written to `fifo`. Fails if `running` ends before."""
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while not select.select([reader], [], [], 1.0)[0]:
            assert running.poll() is None, "it ended before it started a compiler"
    finally:
        os.close(reader)
