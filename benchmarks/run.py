"""The benchmarks that need only the project: `make bench`, or `make bench ARGS="--steps 5000"` for a quick look."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("scheduler.py",)


def main() -> int:
    """Run each in a process of its own, so that none warms another's caches."""
    here = Path(__file__).parent
    return max(
        subprocess.run([sys.executable, here / name, *sys.argv[1:]], check=False).returncode for name in BENCHMARKS
    )


if __name__ == "__main__":
    sys.exit(main())
