"""How many endpoints does a model need to serve its requests in time? For autoscalers.

Model: Little's law. The slots needed are the requests served concurrently (arrivals per second times service time),
plus enough to serve, within `target_wait_s`, the queue that will stand when a new engine is up `start_s` from now.
Growth is extrapolated that far along the present slope, as far as it exceeds the noise. Decreases count late: the
largest need within `keep_s` holds, because an engine that is let go costs `start_s` to get back.

    slots = running(now + start) + queue(now + start) · min(1, turn / target_wait)
    wanted = ceil(max(slots / (slots of one · saturation), endpoints whose KV memory agents' sessions fill))

A session that waits for memory asks for no slot, and engines may have slots left when their memory is full. So what
sessions hold that are in use, and what the waiting ones would hold, counts as a need of its own.

Only a gateway knows the input: the queue before the engines, and the arrivals. An engine's own queue is kept short,
its utilisation is full as soon as there is any load; neither shows how many engines are missing.

A forecast needs evidence. Arrivals count at the rate of the weaker half of the last `RATE_WINDOW_S`, so a burst is no
rate; and nothing grows before `SLOW_S` of history. Until then only facts count: running requests, and the queue that
the present slots leave over. A queue never wants more slots than it has requests.

Bound: a number per second of `keep_s`. Pure: one `ModelLoad` a second, no clock. The road not taken: a threshold on
the queue length (HPA on `num_requests_waiting`) asks for engines by the age of the shortage, also while they start.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import msgspec

from penstock.core.endpoints.pool import Pool
from penstock.core.endpoints.roles import Role
from penstock.core.explain.shares import Shares
from penstock.core.queueing.band import Band

RATE_WINDOW_S = 20.0  # of arrivals: longer than a burst, and a few dozen looks at most
TURN_WINDOW_S = 120.0  # of how long one is served: some answers' worth
FAST_S, SLOW_S = 15.0, 90.0  # of the concurrently served: their difference is the slope
SHORT_S = 5.0  # of shortage: after that, arrivals since its beginning show a flash crowd better than earlier ones
RATE_MIN = 1e-6  # of ends per second: below, the estimate has faded
TURN_UNKNOWN_S = 10.0  # of a model that nobody was served by yet
SLOTS_UNKNOWN = 16  # of an endpoint of which none was seen yet (`admission.slots_initial`)
GROWTH_MAX = 1.0  # looked ahead at most: as much again as there is now


class ModelLoad(msgspec.Struct, frozen=True):
    """A model at one moment. Totals only grow."""

    waiting: int
    running: int
    slots: int  #: of the endpoints in service
    endpoints: int  #: in service
    arrived_total: int
    ended_total: int  #: that were sent to an endpoint
    served_s_total: float  #: that these were there, all together
    filled: float = 0.0  #: endpoints whose KV memory agents' sessions in use fill, those that wait for it too


def loads_now(bands: Sequence[Band], pool: Pool, shares: Shares, filled: Mapping[str, float]) -> dict[str, ModelLoad]:
    """Every model's, by name: those that engines serve, and those that were asked for. `filled`: as in `ModelLoad`."""
    waiting: Counter[str] = Counter()
    for band in bands:
        waiting.update({model: band.waiting(model) for model in band.models()})
    serving: dict[str, tuple[int, int]] = {}
    of_all = (0, 0)  # endpoints that serve whatever is asked for, and their slots
    for endpoint in pool:
        up = (1, endpoint.slots) if endpoint.in_service and endpoint.role is not Role.PREFILL else (0, 0)
        if not endpoint.tells_models:
            of_all = (of_all[0] + up[0], of_all[1] + up[1])
        for name in sorted(endpoint.models or ()) if endpoint.tells_models else ():
            endpoints, slots = serving.get(name, (0, 0))
            serving[name] = (endpoints + up[0], slots + up[1])
    found = {}
    for name in dict.fromkeys((*serving, *waiting, *shares.models())):
        meter, (endpoints, slots) = shares.model(name), serving.get(name, (0, 0))
        found[name] = ModelLoad(
            waiting=waiting[name],
            running=meter.running,
            slots=slots + of_all[1],
            endpoints=endpoints + of_all[0],
            arrived_total=waiting[name] + meter.running + meter.ended + meter.refused,
            ended_total=meter.ended,
            served_s_total=meter.served_s,
            filled=filled.get(name, 0.0),
        )
    return found


class ScalingTargets(msgspec.Struct, frozen=True):
    """Targets for the number of engines."""

    target_wait_s: float = 60.0  #: the queue that stands when new endpoints serve is to be gone within
    saturation: float = 0.85  #: the share of the slots that is to be in use
    start_s: float = 60.0  #: from asking for an endpoint to its first request
    keep_s: float = 300.0  #: how long the largest need holds


class _Mean:
    """A mean that forgets, fair from its first moment on."""

    __slots__ = ("_sum", "_weight", "_window_s")

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._sum = self._weight = 0.0

    def add(self, value: float, for_s: float) -> None:
        """It was that much for so long."""
        kept = math.exp(-for_s / self._window_s)
        self._sum = self._sum * kept + value * (1.0 - kept)
        self._weight = self._weight * kept + 1.0 - kept

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0


class EndpointsWanted:
    """The rule, for one model."""

    def __init__(self, targets: ScalingTargets) -> None:
        self.targets = targets
        self.needed = 0.0  #: at this moment, not rounded: what several gateways' shares add up by
        self._load: ModelLoad | None = None
        self._at_s = 0.0
        self._arrived: deque[tuple[float, int]] = deque()  # when looked, and how many had come: over `RATE_WINDOW_S`
        self._served_s = _Mean(TURN_WINDOW_S)  # of those that ended, per second
        self._ends = _Mean(TURN_WINDOW_S)  # per second
        self._fast, self._slow = _Mean(FAST_S), _Mean(SLOW_S)
        self._slots_of_one = float(SLOTS_UNKNOWN)
        self._asked_s: float | None = None  # since when more are wanted than are there
        self._short_s: float | None = None  # since when requests wait
        self._since_s: float | None = None  # since when the model is followed
        self._came_s = -math.inf  # when a request was there last
        self._peaks: deque[tuple[float, float]] = deque()  # falling: each wanted, and when

    def note(self, load: ModelLoad, now: float) -> None:
        """This is how it stands now. Once a second or so."""
        before, for_s = self._load, now - self._at_s
        self._load, self._at_s = load, now
        if load.endpoints:
            self._slots_of_one = max(1.0, load.slots / load.endpoints)
        if load.waiting or load.running or (before is not None and load.arrived_total > before.arrived_total):
            self._came_s = now
        if not load.waiting:
            self._short_s = None
        elif self._short_s is None:
            self._short_s = now - for_s if before is not None else now
        if self._since_s is None:
            self._since_s = now
        self._arrived.append((now, load.arrived_total))
        while self._arrived[0][0] < now - RATE_WINDOW_S:
            self._arrived.popleft()
        if before is not None and for_s > 0:
            self._served_s.add((load.served_s_total - before.served_s_total) / for_s, for_s)
            self._ends.add((load.ended_total - before.ended_total) / for_s, for_s)
            served = self._served(load)
            self._fast.add(served, for_s)
            self._slow.add(served, for_s)
        self.needed = self._needed(load, now)
        while self._peaks and self._peaks[-1][1] <= self.needed:
            self._peaks.pop()
        self._peaks.append((now, self.needed))
        while self._peaks[0][0] < now - self.targets.keep_s:
            self._peaks.popleft()
        if load.endpoints >= self.wanted:
            self._asked_s = None
        elif self._asked_s is None:
            self._asked_s = now

    @property
    def wanted(self) -> int:
        """How many endpoints it takes, held for a while."""
        return math.ceil(self.wanted_share - 1e-9)

    @property
    def wanted_share(self) -> float:
        """The same, not rounded."""
        return self._peaks[0][1] if self._peaks else 0.0

    @property
    def turn_s(self) -> float | None:
        """How long a request is served, on average; None while nobody knows."""
        ends = self._ends.value
        return self._served_s.value / ends if ends > RATE_MIN else None

    @property
    def backlog_s(self) -> float:
        """Time until the present queue is sent, as slots turn over (one slot, if there are none)."""
        load = self._load
        if load is None or not load.waiting:
            return 0.0
        return load.waiting * (self.turn_s or TURN_UNKNOWN_S) / max(load.slots, 1)

    @property
    def wait_s(self) -> float:
        """The expected wait of a new request, served in turn."""
        load = self._load
        if load is None or (not load.waiting and load.running < load.slots):
            return 0.0
        return self.backlog_s + (self.turn_s or TURN_UNKNOWN_S) / max(load.slots, 1)

    @property
    def saturation(self) -> float:
        """The share of the slots in use; 1 if requests wait and there are none."""
        load = self._load
        if load is None or not load.slots:
            return 1.0 if load is not None and load.waiting else 0.0
        return load.running / load.slots

    def _served(self, load: ModelLoad) -> float:
        """How many would be served at a time, if nobody had to wait."""
        if not load.waiting:
            return float(load.running)
        turn_s = self.turn_s
        if turn_s is not None:  # those that run say nothing now: as many as there are slots, whoever comes
            return self._arriving() * turn_s
        return max(load.running, self._arriving() * TURN_UNKNOWN_S)

    def _arriving(self) -> float:
        """Requests per second in the weaker half of the window; 0 if that is too short."""
        now, seen = self._at_s, list(self._arrived)
        if self._short_s is not None and now - self._short_s >= SHORT_S:
            seen = [look for look in seen if look[0] >= self._short_s]
        if len(seen) < 3 or now - seen[0][0] < SHORT_S:
            return 0.0
        first, last = seen[0], seen[-1]
        middle = min(seen[1:-1], key=lambda look: abs(look[0] - (first[0] + last[0]) / 2))
        return min(_rate(first, middle), _rate(middle, last))

    def _needed(self, load: ModelLoad, now: float) -> float:
        targets = self.targets
        if now - self._came_s > targets.keep_s:
            return 0.0
        served = max(self._fast.value, self._served(load)) if load.waiting else self._fast.value
        if self._since_s is not None and now - self._since_s >= SLOW_S:
            slope = max(0.0, self._fast.value - self._slow.value - math.sqrt(served)) / (SLOW_S - FAST_S)
            served += min(slope * targets.start_s, GROWTH_MAX * served)
        if load.waiting:
            turn_s = self.turn_s or TURN_UNKNOWN_S
            served += self._queue_then(load, turn_s, now) * min(1.0, turn_s / targets.target_wait_s)
        least = 1.0 if load.waiting or load.running else 0.0
        return max(least, load.filled, served / (self._slots_of_one * targets.saturation))

    def _queue_then(self, load: ModelLoad, turn_s: float, now: float) -> float:
        """How many will wait when an endpoint that is asked for now serves, though those come that were asked for."""
        start_s, arriving = self.targets.start_s, self._arriving()
        first_s = start_s if self._asked_s is None else max(0.0, self._asked_s + start_s - now)
        asked_for = self.wanted * self._slots_of_one
        queue = load.waiting + (arriving - load.slots / turn_s) * first_s
        return max(0.0, queue + (arriving - max(asked_for, load.slots) / turn_s) * (start_s - first_s))


def _rate(one: tuple[float, int], other: tuple[float, int]) -> float:
    """How many came per second between two looks."""
    return (other[1] - one[1]) / (other[0] - one[0])
