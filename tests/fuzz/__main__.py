"""`make fuzz`: follow the branches of each reader with libFuzzer (atheris), for so many seconds each.

    python -m tests.fuzz [NAME …] [--seconds 60] [--keep | --seed N]

With `--seed` inputs are made of the kept ones instead (tests/fuzz/mutate.py), from that number on, which a compiled
build can run, too: each outcome is compared with that of the sources.

What breaks a target is written to `tests/fuzz/corpus/NAME/`, as small as it goes; it stays there and is tried with
every test run. `--keep` also keeps inputs that reach code that no kept one reaches (else they are used and forgotten).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FunctionType

from tests.fuzz.mutate import mutated, smallest
from tests.fuzz.outcomes import CORPUS, Plain, corpus, outcomes
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import breaks

BYTES_MAX = 4096
BROKEN_MAX = 20  # then it is mended first
ROUND = 500  # seeds of one target, before the next one
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
    parser.add_argument("--seed", type=int, help="make inputs of the kept ones, from this number on")
    parser.add_argument("--in", dest="folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.names) - TARGETS.keys()
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if args.folder:
        fuzz_one(args.names[0], args.seconds, args.folder)
        return 0
    if args.seed is not None:
        return mutate(args.names or list(TARGETS), args.seconds, args.seed)
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
                broken.append(keep(name, crash.read_bytes()))
    print(f"{len(broken)} broke" if broken else "nothing broke")
    return 1 if broken else 0


def keep(name: str, data: bytes) -> str:
    """Keep an input that breaks a target, as small as it goes. Returns its path."""
    if breaks(TARGETS[name], data):
        data = smallest(data, lambda shorter: breaks(TARGETS[name], shorter))
    kept = CORPUS / name / f"broke-{hashlib.blake2b(data, digest_size=6).hexdigest()}"
    kept.write_bytes(data)
    print(f"BROKE: {kept}: {data!r}", flush=True)
    return str(kept)


def mutate(names: list[str], seconds: float, seed: int) -> int:
    """Try the inputs of one seed after the other, for so many seconds for each target."""
    began_s, tried, broken = time.monotonic(), 0, []
    with Plain() as plain:
        while time.monotonic() - began_s < seconds * len(names):
            for name in names:
                kept = corpus(name)
                made, meant = outcomes(name, seed, seed + ROUND), plain.outcomes(name, seed, seed + ROUND)
                for at in range(ROUND):
                    if made[at] != meant[at] or made[at].startswith("!"):
                        broken.append(keep(name, mutated(kept, name, seed + at)))
                tried += ROUND
            seed += ROUND
            if len(broken) > BROKEN_MAX:
                break
    print(f"{tried} inputs, {len(broken)} broke; the next seed is {seed}")
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
