"""Checking the sources of cached prefixes. Compares predictions with engines' reports.

An engine that reports `cached_tokens` shows after each answer how much of the prompt it had. A source that promises
too much too often is not asked about that endpoint for a while, and then gets another try. Promising too little costs
only the hit, so it is no fault. A prompt from which a source learns does not count either: our history can't see what
an engine drops, so a prompt that is gone makes it believe that the engine holds less (`Router.answered`). It is at
fault only when it can't believe in less any more: where prompts are gone at once, nothing is cached, or not by who
answers.
"""

from __future__ import annotations

import math

from penstock.core.values.located import Source
from penstock.core.values.rows import SourceSnapshot

WRONG_TOKENS_SHARE = 0.2  # of the prompt: promised, and not there
WRONG_SHARE_MAX = 0.4  # of the last predictions or so
CHECKS_MIN = 10  # fewer are no evidence
LEARNING_RATE = 0.1  # about the last twenty predictions
OFF_S = 60.0  # time for an index to be rebuilt, or forgotten


class _Record:
    __slots__ = ("checks", "off_until_s", "wrong")

    def __init__(self) -> None:
        self.checks = 0
        self.wrong = 0.0
        self.off_until_s = 0.0


class HitPredictions:
    """The records of all sources, per endpoint."""

    def __init__(self) -> None:
        self._records: dict[tuple[Source, int], _Record] = {}  # bounded by the number of endpoints
        self._totals: dict[Source, list[int]] = {source: [0, 0, 0, 0] for source in Source}
        self.off_until_s = -math.inf  # until then one or the other of them is not asked about some endpoint

    def trusted(self, source: Source, endpoint: int, now: float) -> bool:
        """True if `source` is trusted about an endpoint."""
        if now >= self.off_until_s:
            return True
        record = self._records.get((source, endpoint))
        return record is None or now >= record.off_until_s

    def check(
        self,
        source: Source,
        endpoint: int,
        *,
        predicted: int,
        cached: int,
        prompt_tokens: int,
        now: float,
        learns: bool = False,
    ) -> bool:
        """Compare how many tokens were promised with how many were there. Returns True if the promise was right.

        `learns`: if it was not, the source promises less from now on, and that is all.
        """
        totals = self._totals[source]
        totals[0] += predicted
        totals[1] += min(predicted, cached)
        if predicted <= 0:
            return True
        wrong = predicted - cached > WRONG_TOKENS_SHARE * prompt_tokens
        totals[2] += 1
        totals[3] += wrong
        if wrong and learns:
            return False
        record = self._records.setdefault((source, endpoint), _Record())
        record.checks += 1
        record.wrong += LEARNING_RATE * (wrong - record.wrong)
        if record.checks >= CHECKS_MIN and record.wrong > WRONG_SHARE_MAX:
            record.checks, record.wrong = 0, 0.0
            record.off_until_s = self.off_until_s = now + OFF_S
        return not wrong

    def forget(self, endpoint: int) -> None:
        """Forget an `endpoint` that is gone, or another process now."""
        for source in Source:
            self._records.pop((source, endpoint), None)

    def snapshot(self, now: float) -> list[SourceSnapshot]:
        """Returns how often each source was right, and about how many endpoints it is not asked now."""
        off = dict.fromkeys(Source, 0)
        for (source, _), record in self._records.items():
            off[source] += now < record.off_until_s
        return [
            SourceSnapshot(source, predicted, hit, checks, wrong, off[source])
            for source, (predicted, hit, checks, wrong) in self._totals.items()
        ]
