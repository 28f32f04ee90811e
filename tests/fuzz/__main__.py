"""`make fuzz`: follow the branches of each reader with libFuzzer (atheris), for so many seconds each.

    python -m tests.fuzz [NAME …] [--seconds 60] [--keep]

What breaks a target is written to `tests/fuzz/corpus/NAME/`, as small as it goes; it stays there and is tried with
every test run. `--keep` also keeps inputs that reach code that no kept one reaches (else they are used and forgotten).
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FunctionType

from tests.fuzz.mutate import smallest
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import CORPUS, breaks

BYTES_MAX = 4096
FOLLOWED = ("penstock.", "yaml.")  # all that is imported are ten thousand functions: minutes before the first input


def follow() -> None:
    """Let libFuzzer see which branches of the readers are taken."""
    import atheris  # noqa: PLC0415 - `make fuzz` installs it

    for one in gc.get_objects():
        if isinstance(one, FunctionType) and (one.__module__ or "").startswith(FOLLOWED):
            atheris.instrument_func(one)


def fuzz_one(name: str, seconds: int, folder: str) -> None:
    """In a process of its own: libFuzzer ends it."""
    import atheris  # noqa: PLC0415

    follow()
    flags = [f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", f"-artifact_prefix={folder}/crash-", "-timeout=30"]
    atheris.Setup([sys.argv[0], *flags, "-print_final_stats=1", folder, str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each (60)")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code to the corpus")
    parser.add_argument("--in", dest="folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.names) - TARGETS.keys()
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if args.folder:
        fuzz_one(args.names[0], args.seconds, args.folder)
        return 0
    broken = []
    for name in args.names or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"--- {name}, {args.seconds} s", flush=True)
            command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(args.seconds), "--in", folder]
            subprocess.run(command, check=False)
            if args.keep:
                merge = [sys.executable, "-c", "from tests.fuzz.__main__ import merge; merge()", name, folder]
                subprocess.run(merge, check=False)
            for crash in sorted(Path(folder).glob("crash-*")):
                data = crash.read_bytes()
                if breaks(TARGETS[name], data):
                    data = smallest(data, lambda shorter, name=name: breaks(TARGETS[name], shorter))  # type: ignore[misc]
                kept = CORPUS / name / crash.name.replace("crash-", "broke-")[:24]
                kept.write_bytes(data)
                broken.append(str(kept))
                print(f"BROKE: {kept}: {data!r}", flush=True)
    print(f"{len(broken)} broke" if broken else "nothing broke")
    return 1 if broken else 0


def merge() -> None:
    """Of the inputs that were found, keep those that reach new code."""
    import atheris  # noqa: PLC0415

    name, folder = sys.argv[1:]
    follow()
    atheris.Setup([sys.argv[0], "-merge=1", str(CORPUS / name), folder], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
