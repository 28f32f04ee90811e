"""Early requests: those that can't be addressed before engines have listed their models. They wait outside the queue.

These are requests without a model that came before any model was known, and those that never queue: for one endpoint
(`?id=`) that has not listed its models yet, or of a free path while an endpoint may still list their model. That is
rare: an engine that starts after its gateway. Looks are made only meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from penstock.config.model import Queue
from penstock.core.scheduling.waiting import TELLING_S_MAX
from penstock.core.values.catalogue import Reason
from penstock.gateway.proxy.driver import Decides, Driver
from penstock.http.server.server import Exchange

LOOK_S = 0.05  # between two looks whether the models are known

IsKnown = Callable[[], bool]  # whether the models that a request waits for are known
#: Goes on with a request; with a reason, it is refused for it.
GoOn = Callable[[Reason | None], None]


class EarlyRequests:
    """The requests that wait for a list of models."""

    def __init__(self, driver: Driver[Decides], endpoints: Collection[str]) -> None:
        self._driver = driver
        self._endpoints = endpoints
        self._waiting: list[tuple[float, Exchange, IsKnown, GoOn]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_max = 0
        self._wait_s_max = 0.0

    def follow(self, queue: Queue) -> None:
        """Let as many wait, and for as long, as in the queue."""
        self._waiting_max = queue.max_requests
        self._wait_s_max = (queue.empty_pool_wait or queue.max_wait) if queue.enabled else TELLING_S_MAX

    def waits_for_endpoint(self, name: str, exchange: Exchange, go_on: GoOn) -> bool:
        """Whether a request for one endpoint has to wait, and for seconds at most, because it never queues."""
        awaits = self._driver.scheduler.awaits_models
        return self.waits(lambda: not awaits(name), exchange, go_on, min(TELLING_S_MAX, self._wait_s_max))

    def waits_for_model(self, model: str, exchange: Exchange, go_on: GoOn) -> bool:
        """The same for a request of a free path."""

        def is_known() -> bool:
            scheduler = self._driver.scheduler
            known = scheduler.knows(model, now=self._driver.now()) is not None
            return known or not any(map(scheduler.awaits_models, self._endpoints))

        return self.waits(is_known, exchange, go_on, min(TELLING_S_MAX, self._wait_s_max))

    def waits(self, is_known: IsKnown, exchange: Exchange, go_on: GoOn, wait_s_max: float | None = None) -> bool:
        """Whether a request has to wait; `go_on` is called later then. `wait_s_max`: None: as long as in the queue."""
        if is_known():
            return False
        if len(self._waiting) >= self._waiting_max:
            go_on(Reason.QUEUE_FULL)
            return True
        until_s = self._driver.now() + (self._wait_s_max if wait_s_max is None else wait_s_max)
        self._waiting.append((until_s, exchange, is_known, go_on))
        self._look_later()
        return True

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        now = self._driver.now()
        for row in waiting:
            until_s, exchange, is_known, go_on = row
            if exchange.over:
                continue
            if is_known():
                go_on(None)
            elif self._driver.draining:
                go_on(Reason.DRAINING)
            elif now >= until_s:
                go_on(Reason.NO_ENDPOINT)
            else:
                self._waiting.append(row)
        if self._waiting:
            self._look_later()
