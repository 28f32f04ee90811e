"""A few kills under a little load; `python -m tests.gateway.share.kills` is the same for as long as is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.share.kills import killed
from tests.patience import WAIT_S

pytestmark = pytest.mark.slow


async def test_kills_lose_nothing_but_what_the_killed_one_carried(tmp_path: Path) -> None:
    tally = await killed(2, streams=12, waiting=6, gateways=2, workers=1, folder=tmp_path)
    assert [kill.kind for kill in tally.kills] == ["decider", "gateway"]
    assert tally.callers.whole.total() > 12
    assert tally.callers.cut > 0
    assert tally.wrong(extra_wait_s_max=WAIT_S) == []
