"""The right to one slot of one endpoint, for one request, released exactly once.

A lease is taken in the same step that pops its request from the queue and lasts to the last byte of the answer. It
belongs to an epoch of its endpoint: when the engine restarts, leases of the old epoch no longer use its slots, but each
is still released once by its holder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.values.located import Sought, Source
    from penstock.core.values.request import Key


NO_EPOCH = -1  # of an endpoint that is not known, so that the lease counts at none


class Lease:
    """One slot in use."""

    __slots__ = (
        "began_s", "beside", "cached_tokens", "cached_told", "computed_tokens", "dispatched_s", "endpoint", "epoch",
        "first_token_s", "keys_since", "output_tokens", "passed_on", "pending", "prefill_end_s", "prefix",
        "progress_computed", "progress_s", "progress_tokens", "prompt_tokens", "queued_tokens", "request_id", "serial",
        "sought", "source", "streamed", "tokens", "transferred_tokens", "tries", "twin_computing", "within_proven",
    )  # fmt: skip

    def __init__(
        self,
        serial: int,
        *,
        endpoint: str,
        epoch: int,
        request_id: str,
        now: float,
        prompt_tokens: int,
        output_tokens: int,
        streamed: bool,
        transferred_tokens: int = 0,
        cached_tokens: int = 0,
        source: Source | None = None,
        keys_since: int = 0,
        sought: Sought | None = None,
        prefix: tuple[Key, ...] = (),
        twin_computing: bool = False,
    ) -> None:
        self.serial = serial
        self.endpoint = endpoint
        self.epoch = epoch
        self.request_id = request_id
        self.began_s = self.dispatched_s = now  #: when its slot was taken, and when it was sent, maybe later
        self.tokens = prompt_tokens + transferred_tokens + output_tokens  #: its use of its engine's memory
        self.prompt_tokens = prompt_tokens  #: estimate of the prompt tokens that must be computed
        self.output_tokens = output_tokens  #: estimate
        self.streamed = streamed
        self.prefill_end_s = now  #: predicted; if the first token is invisible, the prefill counts as over then
        self.queued_tokens = 0  #: of prompts, its own among them, that were believed to be before its engine then
        self.computed_tokens = 0  #: of the prompt, believed to be done with while its first token is awaited
        self.cached_tokens = cached_tokens  #: of the prompt, believed to be there already
        self.source = source  #: of that belief
        self.prefix = prefix  #: chain hashes of the prompt's chunks, while they are computed
        self.sought = sought  #: cached tokens assumed only because a similar prompt was sent there
        self.keys_since = keys_since  #: the most sent to its endpoint, by history, since the cached prefix was used
        self.twin_computing = twin_computing  #: the prefix is just being computed there, for another request
        self.transferred_tokens = transferred_tokens  #: of the prompt, computed elsewhere: they only take memory
        self.pending = False  #: its prompt is still being computed elsewhere, its engine knows nothing of it
        self.cached_told = False  #: of a divided request: whether the prefill engine reported `cached_tokens`
        self.passed_on = False  #: its client has some of an answer that does not stream
        self.tries = False  #: it was sent against its engine's gauges
        self.beside = 1  #: as many were there when it was sent, itself among them
        self.within_proven = False  #: at its dispatch the engine had at most its proven concurrency
        self.first_token_s: float | None = None
        self.progress_s = 0.0  #: when its output was last looked at
        self.progress_tokens = 0  #: and how much of it there was
        self.progress_computed = 0  #: and how many prompt tokens its endpoint had computed for all by then

    def takes_over(self, cached_tokens: int, *, told: bool) -> None:
        """Note that the prompt was computed elsewhere, with `cached_tokens` cached there.

        `told`: reported by the engine there.
        """
        self.cached_tokens, self.cached_told = cached_tokens, told

    def reached_client(self) -> None:
        """A part of an answer that does not stream was passed on."""
        self.passed_on = True

    def detoured(self) -> None:
        """Note that when it was sent there is not known, so that its first token shows no speed."""
        self.within_proven = False

    def ends_s(self, time_per_output_token_s: float, now: float) -> float:
        """Returns when the answer is expected to end.

        One that outlasts its estimate is given half of the estimate again.
        """
        left = float(self.output_tokens - self.progress_tokens)
        if left <= 0:
            left = self.output_tokens / 2
        return max(now, max(self.progress_s, self.prefill_end_s) + left * time_per_output_token_s)
