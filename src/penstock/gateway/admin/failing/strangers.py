"""Does somebody else send requests to these engines, as another gateway would that shares nothing with this one?

Each of two such gateways gives away all slots, so every limit is doubled, and nobody sees it but in engines' gauges,
which count more than our requests. Load at most endpoints at once, for a minute on end, is no single user of one
engine, but something that spreads its requests as we do. It is reported once, and again when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.core.explain.snapshot import EndpointSnapshot
from penstock.gateway.admin.phrases import seconds

LASTS_S: Final = 60.0
FEW: Final = 2.0  # at one endpoint: gauges and our own books may be so far apart for a moment
SHARE: Final = 0.1  # of its slots, likewise


class Strangers:
    """The load on the engines that is not ours, at each look."""

    def __init__(self) -> None:
        self._since_s: float | None = None  # there has been some at every look
        self._quiet_since_s: float | None = None
        self._places = ""
        self._number = 0.0
        self.said = False

    def look(self, endpoints: Iterable[EndpointSnapshot], now: float) -> str | None:
        """Returns a line to note, if any."""
        told = [endpoint for endpoint in endpoints if endpoint.observed_s_ago is not None and endpoint.state == "up"]
        beside = [e for e in told if e.others >= max(FEW, SHARE * e.slots)]
        if not beside or 2 * len(beside) < len(told):
            return self._none(now)
        self._quiet_since_s = None
        self._since_s = now if self._since_s is None else self._since_s
        self._places, self._number = f"{len(beside)} of {len(told)}", sum(e.others for e in beside)
        if self.said or now - self._since_s < LASTS_S:
            return None
        self.said = True
        return self.sentence(now)

    def sentence(self, now: float) -> str:
        """What is seen, for people; empty: nothing, or not for long enough."""
        if not self.said or self._since_s is None:
            return ""
        return (
            f"Something else has sent requests to {self._places} endpoints for {seconds(now - self._since_s)}, "
            f"{self._number:.0f} at a time. If it is another Penstock, let them share (docs/scale.md): "
            "otherwise each hands out all slots."
        )

    def _none(self, now: float) -> str | None:
        if not self.said:
            self._since_s = None
            return None
        self._quiet_since_s = now if self._quiet_since_s is None else self._quiet_since_s
        if now - self._quiet_since_s < LASTS_S:
            return None
        self.said, self._since_s, self._quiet_since_s = False, None, None
        return "nothing else sends requests to these endpoints any more"
