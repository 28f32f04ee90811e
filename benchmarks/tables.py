"""Which tables of a gateway grow? `penstock …`, and on SIGUSR1 the sizes of its large containers, by owner.

    python benchmarks/tables.py serve -c penstock.yaml 2> log; kill -USR1 PID

Walks the collector's objects, so that a new table is seen without being listed anywhere; a walk stops the gateway for
some hundred milliseconds. `benchmarks/soak.py --tables` runs its gateway so, and prints what stands there at the end.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
from collections import Counter, deque
from pathlib import Path

from penstock.cli.main import main

SHOWN_FROM = 200  # entries
STATM = Path("/proc/self/statm")
PAGE_BYTES = 4096


def sizes() -> Counter[str]:
    """The entries of the largest container of each attribute of each class of ours."""
    found: Counter[str] = Counter()
    for one in gc.get_objects():
        kind = type(one)
        if not str(kind.__module__).startswith("penstock."):
            continue
        names = {name for base in kind.__mro__ for name in _slots(base)} | set(getattr(one, "__dict__", ()))
        for name in names:
            its = getattr(one, name, None)
            if isinstance(its, dict | list | set | deque | bytearray) and len(its) >= SHOWN_FROM:
                place = f"{kind.__module__.removeprefix('penstock.')}.{kind.__qualname__}.{name}"
                found[place] = max(found[place], len(its))
    return found


def _slots(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") else name for name in names)


def tell(_number: int, _frame: object) -> None:
    rss_mb = int(STATM.read_text().split()[1]) * PAGE_BYTES / 1e6
    print(
        json.dumps({"rss_mb": round(rss_mb, 1), "tables": dict(sizes().most_common(40))}), file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    gc.freeze = lambda: None  # type: ignore[assignment]  # frozen objects are not walked
    sys.exit(main())
