"""The same seed gives the same actions, each at the same time and with the same numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.core.chaos import Chaos
from tests.core.test_scheduler_properties import THREE_BANDS

ROOT = Path(__file__).parents[2]
DIGEST = "import hashlib; from tests.core.test_determinism import trace; print(hashlib.md5(trace(7).encode()).digest())"


def trace(seed: int) -> str:
    chaos = Chaos(seed, THREE_BANDS, requests=300)
    chaos.run()
    return "\n".join(map(repr, chaos.trace))


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


def test_nothing_depends_on_the_order_of_hashes() -> None:
    """Two interpreters with different string hashes agree."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
