"""Heartbeats tell the client of a queued stream its position.

A queued stream gets SSE comments with its position and an estimate after `queue.heartbeat_after`, or earlier if its
client's own time-out would pass (`x-stainless-read-timeout`, or `x-stainless-timeout`, in which a head has to come).
The first one commits status 200, so a later refusal is an error event. They go on until the answer's first token,
requeues included. A client that would time out also gets them while an engine works on its answer; `heartbeat_after` is
about the queue only.

One timer serves all streams, at most every `TICK_S`, and asks the scheduler once for the positions of all that are due.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import Protocol

from penstock.config.model import Settings
from penstock.core.queueing.position import QueuePosition
from penstock.core.util.timers import Timers
from penstock.gateway.openai.errors import Api
from penstock.gateway.proxy.driver import Decides, Driver

TICK_S = 0.1
TOLD_PER_TICK_MAX = 500  # some milliseconds of work; the others follow a tick later
INTERVAL_S_MIN = 1.0  # unless the client's own time-out is shorter
INTERVAL_S_MAX = 15.0  # proxies cut a connection that was quiet for 30 or 60 s
OF_TIMEOUT = 0.5  # this share may pass in silence: a late heartbeat still comes in time
ENGINE_S = 60.0  # nearly all first tokens take less: clients that wait twice as long get no heartbeats
READ_TIMEOUT_HEADER = b"x-stainless-read-timeout"  # of Python, between two reads
HEAD_TIMEOUT_HEADER = b"x-stainless-timeout"  # of Node.js, until the head
_SECONDS = re.compile(rb"\d{1,6}(\.\d{1,9})?")
_PATIENCE_S_MIN = 0.2  # a client that times out sooner can't be helped


class Waiter(Protocol):
    """A journey, as heartbeats know it."""

    @property
    def beating(self) -> bool: ...
    def heartbeat(self, place: QueuePosition | None, /) -> None: ...


class _Pulse:
    __slots__ = ("asked", "due_s", "interval_s", "patience_s", "waiter")

    def __init__(self, waiter: Waiter, interval_s: float, patience_s: float, now: float) -> None:
        self.waiter = waiter
        self.interval_s = interval_s
        self.patience_s = patience_s  # how long the client may get nothing, queued or not
        self.due_s = now + patience_s  # when that is over
        self.asked = False  # its position was asked for, and follows


class Heartbeats:
    """Sends heartbeats to all streams that wait, by one timer."""

    def __init__(self, driver: Driver[Decides], *, asks_ahead_s: float = 0.0) -> None:
        self._driver = driver
        self._asks_ahead_s = asks_ahead_s  # if positions come from elsewhere: how long before they are needed
        self._pulses: dict[str, _Pulse] = {}
        self._timers: Timers[str] = Timers()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def follow(self, settings: Settings) -> None:
        """Serve new streams by `settings`."""
        queue = settings.queue
        self._after_s = queue.heartbeat_after  # 0: only for clients that would time out
        # A client that waits longer by itself needs none.
        empty_s = queue.empty_pool_wait or 0.0
        self._wait_s_max = max([ENGINE_S, *[empty_s + (band.max_wait or queue.max_wait) for band in settings.bands]])

    def watch(self, name: str, waiter: Waiter, timeouts: tuple[bytes | None, ...], since_s: float) -> None:
        """Send heartbeats to a stream that arrived at `since_s`, until its answer begins.

        `timeouts`: those of its client, as its headers say.
        """
        after_s, patience_s = self._after_s or math.inf, min(map(_patience_s, timeouts), default=math.inf)
        if patience_s >= self._wait_s_max:
            patience_s = math.inf
        if after_s == patience_s == math.inf:
            return
        interval_s = min(max(after_s, INTERVAL_S_MIN), patience_s, INTERVAL_S_MAX)
        self._pulses[name] = _Pulse(waiter, interval_s, patience_s, since_s)
        self._timers.set(name, since_s + min(after_s, patience_s) - self._asks_ahead_s)
        self._arm()

    def leave(self, name: str) -> None:
        """Forget the stream `name`: its answer begins, or it has ended."""
        if self._pulses.pop(name, None) is not None:
            self._timers.cancel(name)
            if not self._pulses and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _arm(self) -> None:
        due = self._timers.next()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return  # it will look again when it fires
        if self._timer is not None:
            self._timer.cancel()
        now = self._driver.now()
        self._timer_at = max(due, now + TICK_S)
        self._timer = asyncio.get_running_loop().call_later(self._timer_at - now, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = max(self._driver.now(), self._timer_at)
        due = self._timers.due(now, limit=TOLD_PER_TICK_MAX)
        places = self._driver.scheduler.places(due, now=now)
        for name in due:
            pulse = self._pulses.get(name)
            if pulse is None:
                continue
            if self._asks_ahead_s and not pulse.asked:
                pulse.asked = True
                self._timers.set(name, now + self._asks_ahead_s)
                continue
            pulse.asked = False
            place = places.get(name)
            if place is not None or pulse.waiter.beating or now >= pulse.due_s:
                pulse.waiter.heartbeat(place)
                pulse.due_s = now + pulse.patience_s
            self._timers.set(name, min(now + pulse.interval_s, pulse.due_s) - self._asks_ahead_s)
        self._arm()


def heartbeat_event(api: Api, place: QueuePosition | None) -> bytes:
    """Returns a comment, which every client skips, and for Anthropic's API its `ping` event."""
    if place is None:
        told = b": an engine has it"
    elif place.eta_s is None:
        told = b": queued position=%d" % place.position
    else:
        told = b": queued position=%d eta=%.1fs" % (place.position, place.eta_s)
    return told + (b'\nevent: ping\ndata: {"type": "ping"}\n\n' if api is Api.ANTHROPIC else b"\n\n")


def _patience_s(timeout: bytes | None) -> float:
    """How long a client may get nothing; infinity: any time."""
    if timeout is None or not _SECONDS.fullmatch(timeout.strip()):
        return math.inf
    return max(float(timeout) * OF_TIMEOUT, _PATIENCE_S_MIN)
