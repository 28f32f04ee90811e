"""Does the proxy's filter show us what a lease needs? Its first message has its modes of bodies.

The lease ends with the stream, so a filter that closes it early gives slots back while engines still work. Modes that
can't work are refused, with the line to change; the one that shows only by its effect (trailers skipped) is recognized
by streams that end at once. Each problem is logged once and stands in `penstock status` until ten minutes after it was
seen last. Messages that make no sense are one line a minute, however many there are.
"""

from __future__ import annotations

import logging

from penstock import clock

logger = logging.getLogger(__name__)

NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX = range(5)
_NAMES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED")
SEEN_S = 600.0
EARLY_S = 0.02  # from our answer to the head until the stream's end: the filter asked for nothing more
STRANGE_S = 60.0  # between two lines about streams that make no sense
EARLY_MIN = 3  # such streams in a row: an answer may be that short

TRAILERS_SKIPPED = (
    "Envoy ends the ext_proc stream at the first byte of answers, so slots are given back too early: set "
    "`processing_mode.response_trailer_mode: SEND` in the filter."
)


class Modes:
    """The body modes of one stream's filter."""

    def __init__(self, request: int = FULL_DUPLEX, response: int = FULL_DUPLEX) -> None:
        self.buffered = request == BUFFERED
        self.unseen = response == NONE
        self.problem: str | None = None
        if request not in (BUFFERED, FULL_DUPLEX):
            self.problem = (
                f"The proxy's ext_proc filter has `processing_mode.request_body_mode: {_name(request)}`: set it to "
                "FULL_DUPLEX_STREAMED or BUFFERED."
            )
        elif response not in (NONE, FULL_DUPLEX):
            self.problem = (
                f"The proxy's ext_proc filter has `processing_mode.response_body_mode: {_name(response)}`: set it to "
                "FULL_DUPLEX_STREAMED or NONE."
            )


def _name(mode: int) -> str:
    return _NAMES[mode] if 0 <= mode < len(_NAMES) else str(mode)


class Filters:
    """The problems of proxies' filters that were seen."""

    def __init__(self) -> None:
        self._seen_s: dict[str, float] = {}
        self._early = 0
        self._strange_due_s = 0.0
        self._strange = 0  # since the last line

    def strange(self, peer: str, problem: str) -> None:
        """Note a stream that was ended for what it is."""
        now = clock.now()
        self._strange += 1
        if now >= self._strange_due_s:
            logger.warning("epp: ended a stream of %s: %s (%d since the last such line)", peer, problem, self._strange)
            self._strange_due_s, self._strange = now + STRANGE_S, 0

    def found(self, problem: str) -> None:
        """Note a problem; the first time it is logged."""
        if problem not in self._seen_s:
            logger.error("epp: %s", problem)
        self._seen_s[problem] = clock.now()

    def ended(self, seconds: float, *, streamed: bool) -> None:
        """Note how long after the head of an answer, whose body does not come, its stream ended."""
        if not streamed:
            return
        self._early = self._early + 1 if seconds < EARLY_S else 0
        if self._early >= EARLY_MIN:
            self.found(TRAILERS_SKIPPED)

    def problems(self) -> list[str]:
        """Returns the problems seen lately."""
        now = clock.now()
        return [problem for problem, at_s in self._seen_s.items() if now - at_s < SEEN_S]
