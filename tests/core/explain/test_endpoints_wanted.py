"""How many endpoints are wanted: for what is served, for a queue, for what is coming, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec import structs

from penstock.core.explain.endpoints_wanted import EndpointsWanted, ModelLoad, ScalingTargets

TARGETS = ScalingTargets(target_wait_s=60.0, saturation=0.85, start_s=60.0, keep_s=300.0)
SLOTS = 8
TURN_S = 8.0
NOBODY = ModelLoad(waiting=0, running=0, slots=0, endpoints=0, arrived_total=0, ended_total=0, served_s_total=0.0)


class Hall:
    """Requests come at a rate, each is served `TURN_S`; endpoints are as many as are told. A second at a time."""

    def __init__(self, endpoints: int, targets: ScalingTargets = TARGETS) -> None:
        self.rule = EndpointsWanted(targets)
        self.endpoints = endpoints
        self.now = 0.0
        self._load = NOBODY
        self._waiting = self._running = self._come = self._gone = 0.0

    def go(self, seconds: int, rate: Callable[[float], float]) -> list[int]:
        """What was wanted each second."""
        wanted = []
        for _ in range(seconds):
            self.now += 1.0
            came = rate(self.now)
            ended = min(self._running, self._running / TURN_S)
            room = self.endpoints * SLOTS - (self._running - ended)
            sent = max(0.0, min(self._waiting + came, room))
            self._waiting += came - sent
            self._running += sent - ended
            self._come, self._gone = self._come + came, self._gone + ended
            load = ModelLoad(
                waiting=round(self._waiting),
                running=round(self._running),
                slots=self.endpoints * SLOTS,
                endpoints=self.endpoints,
                arrived_total=round(self._come),
                ended_total=round(self._gone),
                served_s_total=self._gone * TURN_S,
            )
            self.rule.note(load, self.now)
            wanted.append(self.rule.wanted)
        return wanted


def steady(per_s: float) -> Callable[[float], float]:
    return lambda _: per_s


def worth(endpoints: float) -> float:
    """Requests per second that so many endpoints can do with all their slots."""
    return endpoints * SLOTS / TURN_S


def test_nothing_is_wanted_for_nobody() -> None:
    rule = EndpointsWanted(TARGETS)
    assert (rule.wanted, rule.backlog_s, rule.wait_s, rule.saturation) == (0, 0.0, 0.0, 0.0)
    rule.note(NOBODY, 1.0)
    assert rule.wanted == 0


@pytest.mark.parametrize(("load", "wanted"), [(0.5, 1), (1.5, 2), (3.0, 4), (6.0, 8)])
def test_a_steady_load_wants_what_fills_so_much_of_the_slots(load: float, wanted: int) -> None:
    hall = Hall(8)
    assert set(hall.go(900, steady(worth(load)))[-200:]) == {wanted}


def test_one_that_waits_where_there_is_no_endpoint_wakes_one() -> None:
    rule = EndpointsWanted(TARGETS)
    rule.note(structs.replace(NOBODY, waiting=1, arrived_total=1), 1.0)
    assert rule.wanted == 1
    assert rule.saturation == 1.0
    assert rule.backlog_s > 0
    assert rule.wait_s > rule.backlog_s


def test_a_flash_crowd_is_answered_before_the_first_new_endpoint_serves_and_not_again_and_again() -> None:
    hall = Hall(2)
    hall.go(300, steady(worth(1.5)))
    crowd = hall.go(60, steady(worth(6.0)))
    assert crowd[15] >= 8, "within a look of a controller"
    assert max(crowd) == crowd[-1] <= 14, "the queue that forms meanwhile is reckoned with once"
    hall.endpoints = crowd[-1]
    after = hall.go(400, steady(worth(6.0)))
    assert max(after) == crowd[-1], "what was asked for is enough"


def test_a_ramp_is_seen_coming() -> None:
    """An endpoint that is asked for now serves a minute later: by then so much more comes."""

    def ramp(now: float) -> float:
        return worth(2.0 + (now - 300.0) / 15.0)

    wanted = {}
    for start_s in (0.0, 60.0):
        hall = Hall(60, structs.replace(TARGETS, start_s=start_s))
        hall.go(300, steady(worth(2.0)))
        wanted[start_s] = hall.go(120, ramp)[-1]
    assert wanted[60.0] >= wanted[0.0] + 2, "each 15 s it takes one more; what is within the noise is not looked ahead"


def test_what_falls_is_believed_slowly_and_silence_wants_nothing_in_the_end() -> None:
    hall = Hall(4)
    before = hall.go(600, steady(worth(3.0)))[-1]
    after = hall.go(900, steady(0.0))
    assert after[290] == before
    assert after[340] < before
    assert after[-1] == 0
    assert sorted(after, reverse=True) == after, "it never rises again"


def test_noise_makes_no_waves() -> None:
    """One more or less in every few seconds changes nothing."""
    hall = Hall(4)
    noise: Iterable[float] = [0.4, 1.9, 0.9, 1.6, 1.2] * 400
    rates = iter(noise)
    wanted = hall.go(1500, lambda _: worth(2.0) * next(rates) / 1.2)
    assert len(set(wanted[400:])) == 1


def test_waits_are_reported_in_seconds() -> None:
    hall = Hall(2)
    hall.go(300, steady(worth(1.0)))
    assert hall.rule.backlog_s == 0.0
    assert hall.rule.wait_s == 0.0
    hall.go(60, steady(worth(4.0)))
    waiting = 60 * worth(2.0)
    assert hall.rule.backlog_s == pytest.approx(waiting / worth(2.0), rel=0.25)
    assert hall.rule.turn_s == pytest.approx(TURN_S, rel=0.05)


def test_the_same_is_wanted_however_often_it_is_looked() -> None:
    """A look that is late says as much as many."""
    often, rarely = EndpointsWanted(TARGETS), EndpointsWanted(TARGETS)
    for second in range(1, 601):
        load = ModelLoad(
            waiting=0,
            running=16,
            slots=32,
            endpoints=4,
            arrived_total=2 * second,
            ended_total=2 * second,
            served_s_total=16.0 * second,
        )
        often.note(load, float(second))
        if second % 5 == 0:
            rarely.note(load, float(second))
    assert often.wanted == rarely.wanted == 3
    assert often.turn_s == pytest.approx(rarely.turn_s)


class SmallHall:
    """One endpoint. So many requests come in each second, and each is served for `turn_s`."""

    def __init__(self, slots: int = 2, turn_s: int = 2) -> None:
        self.rule = EndpointsWanted(TARGETS)
        self.now = 0.0
        self._slots, self._turn_s = slots, turn_s
        self._waiting = self._come = self._gone = 0
        self._left_s: list[int] = []

    def go(self, arrivals: Iterable[int]) -> list[int]:
        """What was wanted each second."""
        wanted = []
        for came in arrivals:
            self.now += 1.0
            ended = self._left_s.count(1)
            self._left_s = [left_s - 1 for left_s in self._left_s if left_s > 1]
            sent = min(self._slots - len(self._left_s), self._waiting + came)
            self._left_s += [self._turn_s] * sent
            self._waiting += came - sent
            self._come, self._gone = self._come + came, self._gone + ended
            load = ModelLoad(
                waiting=self._waiting,
                running=len(self._left_s),
                slots=self._slots,
                endpoints=1,
                arrived_total=self._come,
                ended_total=self._gone,
                served_s_total=float(self._gone * self._turn_s),
            )
            self.rule.note(load, self.now)
            wanted.append(self.rule.wanted)
        return wanted


@pytest.mark.parametrize("burst", [[9], [5, 4], [3, 3, 3]])
@pytest.mark.parametrize("idle_s", [0, 1, 15, 40, 3600])
def test_a_burst_that_the_slots_serve_soon_is_no_growth(idle_s: int, burst: list[int]) -> None:
    """However young or old the gateway is, and wherever in a burst it looks."""
    hall = SmallHall()
    assert max(hall.go([0] * idle_s + burst + [0] * 120)) <= 2


def test_a_large_burst_wants_what_serves_its_queue_in_time_and_no_more() -> None:
    hall = SmallHall(slots=8, turn_s=8)
    hall.go([0] * 600)
    assert max(hall.go([240] + [0] * 400)) <= 6, "some 180 are left in a minute: 24 slots' worth, and 8 run"


@pytest.mark.parametrize("turn_s", [2, 8, 60])
def test_after_a_restart_under_steady_load_as_much_is_wanted_as_before(turn_s: int) -> None:
    """Callers that were cut off all come back in the first second."""
    hall = SmallHall(slots=16, turn_s=turn_s)
    per_turn = 12
    arrivals = [per_turn if second % turn_s == 0 else 0 for second in range(240)]
    wanted = hall.go(arrivals)
    assert max(wanted) <= 2
    crowd = SmallHall(slots=16, turn_s=turn_s)
    assert max(crowd.go([2 * per_turn, *arrivals[1:]])) <= 2


def test_a_young_gateway_sees_a_crowd_that_goes_on() -> None:
    hall = SmallHall(slots=8, turn_s=8)
    wanted = hall.go([6] * 30)
    assert max(wanted[:4]) <= 2, "four seconds are no evidence"
    assert 7 <= wanted[29] <= 20, "48 slots' worth comes, and a queue of 300 in a minute"


def test_a_queue_wants_no_more_slots_than_it_has_requests() -> None:
    """Answers of ten minutes: more endpoints than requests would serve nobody sooner."""
    hall = SmallHall(slots=8, turn_s=600)
    hall.go([8, 0] + [0] * 700)
    assert max(hall.go([8, 8] + [0] * 300)) <= 4
