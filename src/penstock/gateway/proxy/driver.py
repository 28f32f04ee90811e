"""The driver owns the scheduler, the clock and one timer, and carries out what the scheduler decides.

The actions that a fact leads to are carried out at once, in order. An action may bring the next fact (a journey that
ends at its dispatch): its actions join the end of the line, so the scheduler is never entered from within itself.

In a gateway of one process, and in the one that decides, `scheduler` is the `Scheduler` itself: a fact returns what it
leads to, for whichever requests. In a worker, and in a gateway that another one leads, it is an `Edge`
(`share/edge.py`): it passes facts on and returns nothing of what is decided elsewhere; those actions come over the link
and to `tell` a little later. Questions (`allowance`, `proven`, `places`) it answers by what it was sent last.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, Protocol

from typing_extensions import TypeVar

from penstock import clock
from penstock.core.queueing.position import QueuePosition
from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Abort, Action, Decode, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Request, Usage
from penstock.core.values.rows import Allowance


class Journey(Protocol):
    """One request on its way, as the driver knows it."""

    def dispatched(self, action: Dispatch, /) -> None: ...
    def decoding(self, action: Decode, /) -> None: ...
    def requeued(self, action: Requeue, /) -> None: ...
    def ended(self, action: Reject | Evict | Fail, /) -> None: ...
    def aborted(self, action: Abort, /) -> None: ...


class Decides(Protocol):
    """What journeys need of a scheduler: facts and a few questions. `share.edge.Edge` is one, too."""

    @property
    def paced(self) -> bool: ...
    @property
    def divides(self) -> bool: ...
    @property
    def watches(self) -> bool: ...

    def arrived(self, request: Request, *, now: float) -> list[Action]: ...
    def first_token(self, lease: int, *, well: bool = True, now: float) -> list[Action]: ...
    def passed_on(self, lease: int, *, now: float) -> list[Action]: ...
    def rerouted(self, lease: int, endpoint: str, *, now: float) -> list[Action]: ...
    def progressed(self, lease: int, output_tokens: int, *, now: float) -> list[Action]: ...
    def prefilled(self, lease: int, usage: Usage | None = None, *, now: float) -> list[Action]: ...
    def finished(
        self, lease: int, usage: Usage | None = None, *, refused: bool = False, now: float
    ) -> list[Action]: ...
    def failed(
        self, lease: int, failure: Failure, *, now: float, answering: bool = False, retry_after_s: float = 0.0
    ) -> list[Action]: ...
    def cancelled(self, request_id: str, *, now: float) -> list[Action]: ...
    def endpoint_down(self, name: str, *, now: float) -> list[Action]: ...
    def moved(self, names: Iterable[str], *, now: float) -> list[Action]: ...
    def expire(self, *, now: float) -> list[Action]: ...
    def next_deadline(self) -> float | None: ...
    def changes_driver(self, armed_s: float, *, watched: bool) -> bool: ...
    def least_loaded(self, model: str, *, but: Collection[str] = (), now: float) -> str | None: ...
    def knows(self, model: str, *, now: float) -> bool | None: ...
    def awaits_models(self, name: str) -> bool: ...
    def works(self, model: str, *, now: float) -> bool: ...
    def proven(self, name: str) -> bool: ...
    def refuses_key(self, name: str) -> bool: ...
    def allowance(self, accounts: tuple[str, ...], *, now: float) -> Allowance | None: ...
    def places(self, request_ids: Iterable[str], *, now: float) -> dict[str, QueuePosition]: ...
    def drain(self, *, queue_until_s: float, stop_at_s: float, now: float) -> list[Action]: ...


S_co = TypeVar("S_co", bound=Decides, default=Scheduler, covariant=True)


class Driver(Generic[S_co]):
    """Runs a scheduler, or an edge of one, on an event loop."""

    def __init__(self, scheduler: S_co, *, now: Callable[[], float] = clock.now) -> None:
        self.scheduler = scheduler
        self.now = now
        self.leaving = False  #: the gateway is about to stop: callers should go elsewhere, and are still served
        self.draining = False
        self.wakes: set[Callable[[], None]] = set()  #: called when gauges become worth reading often
        self._watched = False
        self.took_movement: Callable[[], list[str]] = list  #: endpoints whose answers made progress since the last call
        self._loop = asyncio.get_running_loop()
        self.under_way: dict[str, Journey] = {}  #: by request, the oldest first
        self._line: deque[Action] = deque()
        self._carrying_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # not armed
        self._idle: asyncio.Event | None = None  # if somebody waits for it

    def join(self, request_id: str, journey: Journey) -> None:
        """Pass decisions about a request to `journey`, until it leaves."""
        self.under_way[request_id] = journey

    def leave(self, request_id: str) -> None:
        """Forget the journey of a request that has ended."""
        del self.under_way[request_id]
        if self._idle is not None and not self.under_way:
            self._idle.set()

    def knows(self, request_id: str) -> bool:
        """True if a request of that id is under way."""
        return request_id in self.under_way

    def journeys(self) -> Iterator[Journey]:
        """Returns all journeys that are under way, the oldest first."""
        return iter(self.under_way.values())

    async def idle(self) -> None:
        """Wait until no journey is under way."""
        while self.under_way:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def tell(self, actions: list[Action]) -> None:
        """Carry out the `actions` that a fact led to.

        Call it as `driver.tell(driver.scheduler.finished(..., now=driver.now()))`.
        """
        if self._carrying_out:
            self._line.extend(actions)
            return
        if actions:
            self._line.extend(actions)
            self._carrying_out = True
            try:
                while self._line:
                    action = self._line.popleft()
                    journey = self.under_way.get(action.request_id)
                    if journey is None:
                        continue  # it ended while this action was in the line
                    if isinstance(action, Dispatch):
                        journey.dispatched(action)
                    else:
                        _carry_out(journey, action)
            finally:
                self._carrying_out = False
        if self.scheduler.changes_driver(self._timer_at, watched=self._watched):
            self._follow()

    def drain(self, *, queue_s: float, run_s: float) -> None:
        """Admit nothing more; serve queued requests for `queue_s`, running ones for `run_s`."""
        self.draining = True
        now = self.now()
        self.tell(self.scheduler.drain(queue_until_s=now + queue_s, stop_at_s=now + run_s, now=now))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = math.inf

    def _follow(self) -> None:
        """Wake who reads gauges, if these are worth reading often from now on, and set the timer.

        Earlier, if there is a deadline before it. A timer that fires for nothing is set again.
        """
        if self.scheduler.watches != self._watched:
            self._watched = not self._watched
            for wake in self.wakes if self._watched else ():
                wake()
        deadline = self.scheduler.next_deadline()
        if deadline is None or deadline >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self.now()) + 0.001, self._fire)

    def _fire(self) -> None:
        now = max(self.now(), self._timer_at)
        self._timer, self._timer_at = None, math.inf
        self.tell(self.scheduler.moved(self.took_movement(), now=now))
        self.tell(self.scheduler.expire(now=now))


def _carry_out(journey: Journey, action: Decode | Requeue | Abort | Reject | Evict | Fail) -> None:
    if isinstance(action, Decode):
        journey.decoding(action)
    elif isinstance(action, Requeue):
        journey.requeued(action)
    elif isinstance(action, Abort):
        journey.aborted(action)
    else:
        journey.ended(action)
