"""Requests without a model that came before any model was known. They wait for the first list of models.

Asked only while such a request waits, which is rare: an engine that starts after its gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.config.model import Queue
from penstock.core.scheduling.waiting import TELLING_S_MAX
from penstock.core.values.catalogue import Reason
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.http.server.server import Exchange

LOOK_S = 0.05  # between two looks whether a model is known

#: Goes on with a request; with a reason, it is refused for it.
GoOn = Callable[[Reason | None], None]


class Unnamed:
    """The requests that wait for a name."""

    def __init__(self, driver: Driver[Decides], is_known: Callable[[], bool]) -> None:
        self._driver = driver
        self._is_known = is_known  # which models there are
        self._waiting: list[tuple[float, Exchange, GoOn]] = []
        self._waiting_max = 0
        self._wait_s_max = 0.0

    def follow(self, queue: Queue) -> None:
        """Let as many wait, and for as long, as in the queue."""
        self._waiting_max = queue.max_requests
        self._wait_s_max = (queue.empty_pool_wait or queue.max_wait) if queue.enabled else TELLING_S_MAX

    def waits(self, exchange: Exchange, go_on: GoOn) -> bool:
        """Whether a request has to wait; `go_on` is called later then."""
        if self._is_known():
            return False
        if len(self._waiting) >= self._waiting_max:
            go_on(Reason.QUEUE_FULL)
            return True
        if not self._waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
        self._waiting.append((self._driver.now() + self._wait_s_max, exchange, go_on))
        return True

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        known, now = self._is_known(), self._driver.now()
        for until_s, exchange, go_on in waiting:
            if exchange.over:
                continue
            if known:
                go_on(None)
            elif self._driver.draining:
                go_on(Reason.DRAINING)
            elif now >= until_s:
                go_on(Reason.NO_ENDPOINT)
            else:
                self._waiting.append((until_s, exchange, go_on))
        if self._waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
