"""The same seed gives the same actions, each at the same time and with the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import Scheduler
from penstock.core.values.settings import AdmissionSettings
from tests.core.chaos import Chaos
from tests.core.shop import PATIENT, Customer, Shop
from tests.core.test_scheduler_properties import THREE_BANDS
from tests.patience import WAIT_S

ROOT = Path(__file__).parents[2]
DIGEST = "import hashlib; from tests.core.test_determinism import trace; print(hashlib.md5(trace(7).encode()).digest())"


def trace(seed: int) -> str:
    chaos = Chaos(seed, THREE_BANDS, requests=300)
    chaos.run()
    return "\n".join(map(repr, chaos.trace))


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert trace(7) == trace(7)
    assert trace(7) != trace(8)


@pytest.mark.slow
def test_nothing_depends_on_the_order_of_hashes() -> None:
    """Two interpreters with different string hashes agree."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
            timeout=10 * WAIT_S,  # it computes for two seconds
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_the_checkers_change_nothing() -> None:
    """What a checked run decides is what an unchecked one would have decided."""
    customers = [Customer(name, weight, output_tokens=(5, 90), waiting=30) for name, weight in (("a", 1.0), ("b", 3.0))]
    customers.append(Customer("light", waiting=1, times_s=tuple((float(at), at + 0.05) for at in range(20))))
    settings = structs.replace(PATIENT, admission=AdmissionSettings())
    runs = [
        Shop(customers, slots=(16, 9), settings=settings, kind=kind).run(8.0) for kind in (Scheduler, CheckedScheduler)
    ]
    plain, checked = ([(job.request.id, job.lease, job.sent_s) for job in run.dispatched] for run in runs)
    assert plain == checked
    assert len(plain) > 150
