"""The right to one slot of one endpoint, for one request, released exactly once.

A lease is taken in the same step that pops its request from the queue and lasts to the last byte of the answer. It
belongs to an epoch of its endpoint: when the engine restarts, leases of the old epoch no longer use its slots, but
each is still released once by whoever holds it.
"""

from __future__ import annotations

import msgspec

from penstock.core.sources import Source


class Lease(msgspec.Struct, gc=False):
    """One slot in use. `seen` turns true when the engine is known to have taken the request into its batch."""

    serial: int
    endpoint: str
    epoch: int
    request_id: str
    dispatched_s: float
    prompt_tokens: int  #: estimate of the prompt tokens that must be computed
    output_tokens: int  #: estimate
    streamed: bool
    prefill_end_s: float  #: predicted; where the first token can't be seen, the prefill counts as over then
    computed_tokens: int = 0  #: of the prompt, believed to be done with while its first token is awaited
    cached_tokens: int = 0  #: of the prompt, believed to be there already
    source: Source | None = None  #: who says so
    prefix: tuple[int, ...] = ()  #: chain hashes of the prompt's chunks, while they are computed
    twin_computing: bool = False  #: what is believed cached is just being computed there, for another request
    transferred_tokens: int = 0  #: of the prompt, computed elsewhere: they take memory, and nothing else
    pending: bool = False  #: its prompt is still being computed elsewhere, its engine knows nothing of it
    taken_s: float = -1.0  #: when its slot was taken, where it was sent later than that
    cached_told: bool = False  #: of a divided request: whether who computed its prompt told `cached_tokens`
    seen: bool = False
    first_token_s: float | None = None
    progress_s: float = 0.0  #: when its output was last looked at
    progress_tokens: int = 0  #: and how much of it there was

    @property
    def tokens(self) -> int:
        """What it takes of its engine's memory."""
        return self.prompt_tokens + self.transferred_tokens + self.output_tokens

    @property
    def began_s(self) -> float:
        """When its request left the queue."""
        return self.dispatched_s if self.taken_s < 0 else self.taken_s

    def ends_s(self, time_per_output_token_s: float, now: float) -> float:
        """When it is expected to end, at that pace. One that outlasts its estimate is given half of it once more."""
        left: float = self.output_tokens - self.progress_tokens
        if left <= 0:
            left = self.output_tokens / 2
        return max(now, max(self.progress_s, self.prefill_end_s) + left * time_per_output_token_s)
