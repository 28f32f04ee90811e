"""How long was an answer whose body did not come? Its time by the pace of its endpoint.

The pace, seconds per token of one stream, is learned from streams whose bodies came, a sample among them that the
filter is asked for: an average that forgets, weighted by tokens, because a long answer shows it better. Until one came
it is not known, and the scheduler's own estimate of the answer counts.
"""

from __future__ import annotations

ENDPOINTS_MAX = 4_096
KEPT_TOKENS = 20_000.0  # about a hundred answers


class Paces:
    """The pace of each endpoint."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}  # seconds and tokens

    def learn(self, endpoint: str, seconds: float, tokens: int) -> None:
        """Note a stream whose tokens were counted: `seconds` from its first one to its end."""
        if tokens < 2 or seconds <= 0.0 or (endpoint not in self._sums and len(self._sums) >= ENDPOINTS_MAX):
            return
        before_s, before = self._sums.get(endpoint, (0.0, 0.0))
        keep = max(0.0, 1.0 - tokens / KEPT_TOKENS)
        self._sums[endpoint] = (before_s * keep + seconds, before * keep + tokens - 1)

    def tokens(self, endpoint: str, seconds: float) -> int | None:
        """Returns the tokens of a stream that took `seconds`; None: no pace is known."""
        known = self._sums.get(endpoint)
        if known is None:
            return None
        return 1 + round(seconds * known[1] / known[0])


paces = Paces()
