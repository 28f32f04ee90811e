"""Compiles the hot modules of a wheel to C by mypyc. build_backend.py decides whether; `make compiled` says yes.

What is compiled stands in pyproject.toml, with this hook's settings. The same sources run as plain Python, so nothing
may depend on what mypyc does otherwise: its warnings (a generator that it would make a list) end the build. Where its
own C does otherwise, that is corrected here (`CORRECTIONS`), so that no source has to be written around it.

Each module becomes a C file of its own, and all cores compile. In one file, which is what mypyc makes by default, they
are half a million lines, for which gcc takes twice the time on one core and a gigabyte. What is given up is that gcc
inlines a function of one module in another; calls between them stay direct, for no name is seen outside the library.
One mypyc for each room costs more: without mypy's cache all rooms in one call take 21 s of CPU, one room of the gateway
alone 19, because its imports are checked too. A precompiled header saves 5 % of the C compiler's time. -O1 saves 38 %,
but what it costs per request was not measured.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src"
NEVER = "__init__.py"  # a package's own module has to stay a file: its path is where the package is looked for
#: By file of mypyc's runtime: C that differs from Python, and what it has to be. A slice of bytes that ends before it
#: begins is empty; mypyc asks for a negative size, which raises SystemError.
CORRECTIONS = {
    "bytes_ops.c": (
        "Py_ssize_t slice_len = endn - startn;",
        "Py_ssize_t slice_len = endn > startn ? endn - startn : 0;",
    )
}
TOLD_S = 5.0  # how often it is told how far the compiler is


class CompilingHook(BuildHookInterface[Any]):
    """Compiles, and puts what came of it into the wheel beside the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return  # an editable install runs the sources
        if missing := missing_compiler():
            sys.exit(missing)
        root = Path(self.root)
        target = Path(tempfile.mkdtemp(prefix="penstock-mypyc-"))
        atexit.register(shutil.rmtree, target, ignore_errors=True)  # also where the compiler fails or is interrupted
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for built in compiled(root, self.config["compile"], self.config["leave"], target):
            build_data["force_include"][str(built)] = built.relative_to(target / "lib").as_posix()


def missing_compiler() -> str | None:
    """What this machine lacks to compile, as a line that says what to do; None where it can."""
    if os.name == "nt":
        return None  # setuptools looks for Microsoft's where they are installed
    name = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(name) is None:
        return f"no C compiler: `{name}` is not there. Debian: apt-get install gcc; or set CC. Plain Python needs none"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "a C compiler, but no Python.h. Debian: apt-get install python3-dev. Plain Python needs none"
    return None


def compiled(root: Path, patterns: list[str], leave: list[str], target: Path) -> list[Path]:
    """The extension modules of all sources that match, but for those to `leave`, below `target`/lib."""
    found = {pattern: sorted((root / SOURCE).glob(pattern)) for pattern in (*patterns, *leave)}
    if unused := [pattern for pattern, paths in found.items() if not paths]:
        raise ValueError(f"pyproject.toml: no source matches {unused}")
    left = {path for pattern in leave for path in found[pattern]}
    files = [path for pattern in patterns for path in found[pattern] if path.name != NEVER and path not in left]
    _tell(f"{len(files)} modules to C by mypyc, which checks all types first: half a minute and more without a word")
    with contextlib.chdir(root):
        extensions = to_c([str(path.relative_to(root)) for path in files], target / "c")
        to_machine_code(extensions, target)
    built = sorted((target / "lib").rglob("*.so")) + sorted((target / "lib").rglob("*.pyd"))
    _tell(f"done, {len(built)} extension modules; now the wheel")
    return built


def to_c(files: list[str], target: Path) -> list[Any]:
    """The modules as C, and how to compile them."""
    from mypyc.build import mypycify  # noqa: PLC0415  # installed only where this is asked for

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            made: list[Any] = mypycify(files, opt_level="2", debug_level="0", multi_file=True, target_dir=str(target))
    finally:
        print(said.getvalue(), end="")
    if "warning:" in said.getvalue():
        raise ValueError("mypyc warned: compiled, this would not behave as it does interpreted")
    correct(target)
    return made


def correct(target: Path) -> None:
    """Corrects mypyc's runtime, of which `target` has a copy. Raises ValueError if it is another than was looked at."""
    for name, (theirs, ours) in CORRECTIONS.items():
        source = (target / name).read_text(encoding="utf-8")
        if source.count(theirs) != 1:
            raise ValueError(f"mypyc's {name} has changed: look whether CORRECTIONS of hatch_build.py still holds")
        (target / name).write_text(source.replace(theirs, ours), encoding="utf-8")


def to_machine_code(extensions: list[Any], target: Path) -> None:
    """All of it compiled, on all cores."""
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    progress = Progress(sum(len(extension.sources) for extension in extensions), cores)
    children = Children()

    class OnAllCores(build_ext):
        def build_extensions(self) -> None:
            in_turn = self.compiler.compile

            def at_once(sources: list[str], **options: Any) -> list[str]:
                def one(source: str) -> list[str]:
                    made: list[str] = in_turn([source], **options)
                    progress.one_more()
                    return made

                largest_first = sorted(sources, key=lambda source: -Path(source).stat().st_size)
                with ThreadPoolExecutor(cores) as pool:
                    return [path for made in pool.map(one, largest_first) for path in made]

            self.compiler.compile = at_once
            if os.name != "nt":  # there it is found and started in a way of its own
                self.compiler.spawn = self.compiler.call = children.run  # setuptools before 84, and since
            super().build_extensions()

    if os.name != "nt":
        for extension in extensions:
            # Calls between modules need no table then. All extensions share one list, which is not to be appended to.
            extension.extra_compile_args = [*extension.extra_compile_args, "-fvisibility=hidden"]
    command = OnAllCores(Distribution({"name": "penstock", "ext_modules": extensions}))
    command.build_lib, command.build_temp, command.parallel = str(target / "lib"), str(target / "o"), cores
    command.ensure_finalized()
    with children.ended_by_interrupt():
        command.run()


class Children:
    """The compilers that run: an interrupt ends them, and no more are started.

    Without that, Ctrl-C takes minutes: the pools of threads wait for all files that stand in line.
    """

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(self, command: Sequence[str], **options: Any) -> None:
        """Run a compiler to its end, in any thread. Raises where it fails, and once `end` was called."""
        if self._ended:
            raise InterruptedError("interrupted")
        with subprocess.Popen(command, env=options.get("env")) as child:  # noqa: S603 - as setuptools gives it
            self._running.add(child)
            try:
                if self._ended:  # since it was looked at
                    child.kill()
                code = child.wait()
            finally:
                self._running.discard(child)
        if code:
            raise RuntimeError(f"`{command[0]}` ended with {code}, its output stands above (pip install -v)")

    def end(self) -> None:
        """End those that run."""
        self._ended = True
        for child in list(self._running):
            child.kill()

    @contextlib.contextmanager
    def ended_by_interrupt(self) -> Iterator[None]:
        """SIGINT ends all of them, and is raised as `KeyboardInterrupt`.

        A thread ends them. The handler runs in the main thread, and sleeps with it if the signal comes just before that
        thread waits for a lock; compilers that end wake both.
        """

        def end_when_told() -> None:
            if ear.recv(1):
                self.end()

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        ear, mouth = socket.socketpair()
        with ear, mouth:
            mouth.settimeout(0)
            threading.Thread(target=end_when_told, daemon=True).start()
            before, woken = signal.signal(signal.SIGINT, interrupted), signal.set_wakeup_fd(mouth.fileno())
            try:
                yield
            finally:
                signal.set_wakeup_fd(woken)
                signal.signal(signal.SIGINT, before)
                mouth.shutdown(socket.SHUT_RDWR)


class Progress:
    """Tells how far the compiler is, every few seconds."""

    def __init__(self, files: int, cores: int) -> None:
        self._files = files
        self._done = 0
        self._began_s = self._told_s = time.monotonic()
        _tell(f"{files} C files, {cores} at a time")

    def one_more(self) -> None:
        self._done += 1
        now_s = time.monotonic()
        if self._done == self._files or now_s - self._told_s >= TOLD_S:
            self._told_s = now_s
            _tell(f"{self._done} of {self._files} C files, {now_s - self._began_s:.0f} s")


def _tell(what: str) -> None:
    print(f"compiling: {what}", file=sys.stderr, flush=True)
