"""What stands before an engine, in a guard or a router, is no prompt that others wait for."""

from __future__ import annotations

import heapq

import pytest

from penstock.core.endpoints.lease import Lease
from penstock.core.endpoints.prefill_backlog import PrefillBacklog
from penstock.core.endpoints.speed import Speed

OVER_SHARE_PREFILL_TOKENS = 2048

PROMPT = 100
STEP_S = 0.05
TICK_S = 0.01


class Line:
    """A door of some seconds, and an engine behind it that computes one prompt after the other."""

    def __init__(self, *, door_s: float, tokens_per_s: float) -> None:
        self.made = PrefillBacklog(Speed())
        self.made.speed.step_s = STEP_S
        self.door_s = door_s
        self.tokens_per_s = tokens_per_s
        self.now = 0.0
        self.computed = 0
        self.most_on_the_way = 0.0
        self._free_s = 0.0
        self._ends: list[tuple[float, int, Lease]] = []
        self._serial = 0

    def send(self, tokens: int) -> None:
        self._serial += 1
        asked = {"endpoint": "e", "epoch": 0, "request_id": "r", "output_tokens": 1, "streamed": True}
        lease = Lease(self._serial, now=self.now, prompt_tokens=tokens, **asked)  # type: ignore[arg-type]
        lease.within_proven = True
        self.made.add(lease)
        self._free_s = max(self._free_s, self.now + self.door_s) + tokens / self.tokens_per_s
        heapq.heappush(self._ends, (self._free_s + 2 * STEP_S, self._serial, lease))

    def run(self, until_s: float) -> None:
        while self.now < until_s:
            self._compute()
            self.now += TICK_S

    def _compute(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            _, _, lease = heapq.heappop(self._ends)
            self.made.first_token(lease, self.now, teaches=True)
            self.computed += lease.prompt_tokens
        self.made.advance(self.now)

    def flood(self, until_s: float) -> None:
        """As many as may be there of a flow that is over its share."""
        while self.now < until_s:
            self._compute()
            on_the_way = self.made.speed.on_the_way_tokens()
            self.most_on_the_way = max(self.most_on_the_way, on_the_way)
            while self.made.outstanding_tokens + PROMPT <= OVER_SHARE_PREFILL_TOKENS + on_the_way:
                self.send(PROMPT)
            self.now += TICK_S


@pytest.mark.parametrize("door_s", [0.5, 1.0, 3.0])
def test_behind_a_door_an_engine_is_kept_at_work(door_s: float) -> None:
    line = Line(door_s=door_s, tokens_per_s=10_000.0)
    line.flood(60.0)
    before = line.computed
    line.flood(70.0)
    assert (line.computed - before) / 10.0 > 0.6 * line.tokens_per_s
    assert OVER_SHARE_PREFILL_TOKENS / door_s < 0.5 * line.tokens_per_s, "a step's budget would do"


@pytest.mark.parametrize("tokens_per_s", [500.0, 2_000.0, 10_000.0, 40_000.0])
def test_an_engine_that_computes_slowly_is_not_taken_for_a_door(tokens_per_s: float) -> None:
    line = Line(door_s=0.0, tokens_per_s=tokens_per_s)
    line.flood(60.0)
    assert line.most_on_the_way < OVER_SHARE_PREFILL_TOKENS / 2


def test_a_first_one_that_took_long_is_forgotten_with_the_next_that_does_not() -> None:
    """As the first one of a process, which compiles or loads."""
    line = Line(door_s=20.0, tokens_per_s=10_000.0)
    line.send(PROMPT)
    line.run(25.0)
    line.door_s = 0.0
    line.send(PROMPT)
    line.run(30.0)
    line.flood(60.0)
    assert line.most_on_the_way < OVER_SHARE_PREFILL_TOKENS
