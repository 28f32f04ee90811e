"""No single body of any shape stops every stream. At full size: `python -m tests.hostile.bodies`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.hostile.bodies import HELD_MS_MAX, NAMES, gateway, send
from tests.hostile.probed import Probed

SIZE = int(os.environ.get("PENSTOCK_HOSTILE_BYTES", 3 * 1024 * 1024))


@pytest.fixture(scope="module", name="gate")
def _gate() -> Iterator[Probed]:
    with gateway() as gate:
        yield gate


@pytest.mark.timing
@pytest.mark.parametrize("shape", NAMES)
def test_no_body_holds_up_the_loop(gate: Probed, shape: str) -> None:
    gate.look()
    assert send(shape, SIZE, gate.port) in (200, 400, 404, 413)
    assert gate.look()["held_ms"] <= HELD_MS_MAX
