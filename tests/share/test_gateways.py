"""Deciders and edges die, links break, gateways are cut off: streams go on, requests wait, nothing is lost or doubled.

A failing seed is run again by `python -m tests.share.long_gateways --each 120 --seed SEED --kind KIND`.
"""

from __future__ import annotations

import pytest

from tests.share.long_gateways import KINDS, tried


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(KINDS, 1)))
def test_nothing_is_lost_or_doubled_whatever_ends(seed: int, kind: str) -> None:
    world = tried(kind, seed, requests=120)
    assert world.outcomes["completed"] > 60
    assert world.seen["elected"] > 0
    assert len(world.seen) > 1
