"""What comes of an input, as text: the same in a compiled build as in plain Python.

`Plain` is a process that runs the sources, also where compiled modules stand beside them. It is asked for the outcomes
of inputs by name and seed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import machinery
from pathlib import Path
from types import TracebackType

from tests.fuzz.mutate import mutated

CORPUS = Path(__file__).parent / "corpus"


def corpus(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def outcome(name: str, data: bytes) -> str:
    """A digest of what a target returns; it begins with `!` if the target raises instead."""
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - after `prefer_sources`

    mark = ""
    try:
        text = repr(TARGETS[name](data))
    except Exception as error:
        mark, text = "!", f"{type(error).__name__}: {error}"
    return mark + hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def outcomes(name: str, begin: int, end: int) -> list[str]:
    """The outcomes of the inputs that these seeds make."""
    kept = corpus(name)
    return [outcome(name, mutated(kept, name, seed)) for seed in range(begin, end)]


class Plain:
    """The sources, in a process of their own."""

    def __init__(self) -> None:
        program = "from tests.fuzz.outcomes import answer; answer()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def outcomes(self, name: str, begin: int, end: int) -> list[str]:
        """The same as `outcomes`, of the sources."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, begin, end, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().split()

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()


def answer() -> None:
    """Answer questions on standard input, one a line, with the sources."""
    prefer_sources()
    from penstock.build import compiled  # noqa: PLC0415

    assert not compiled()
    for line in sys.stdin:
        name, begin, end = line.split()
        print(*outcomes(name, int(begin), int(end)), flush=True)


def prefer_sources() -> None:
    """Import a module from its source where a compiled one stands beside it."""
    kinds = [
        (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
    ]
    sys.path_hooks.insert(0, machinery.FileFinder.path_hook(*kinds))
    sys.path_importer_cache.clear()
