"""An engine that stands still while others go on is found by its own streams; one that only takes long is not."""

from __future__ import annotations

import itertools
import math

import pytest

from penstock.core.endpoints.movement import ANSWERS_MIN, CHECK_S, IDLE_S, PATIENCE_S, STEPS, TRY_S
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Requeue
from penstock.core.values.observation import Observation
from penstock.core.values.settings import EndpointSpec
from tests.core.drive import request, scheduler

STEP_S = 0.02


class Shop:
    """Two endpoints, `a` and `b`, that make tokens unless they are told to stand still."""

    def __init__(self, settings: SchedulerSettings | None = None, *, slots: int = 8, warm: bool = True) -> None:
        self.made = scheduler(settings or SchedulerSettings(routing="round_robin"), a=slots, b=slots)
        self.now = 0.0
        self.names = 0
        self.at: dict[str, Dispatch] = {}  # where requests are
        self.begun: dict[str, set[str]] = {"a": set(), "b": set()}
        self.taken_back: list[str] = []
        if warm:
            for _ in range(2 * ANSWERS_MIN):
                name = self.ask()
                self.begin(name)
                self.now += STEP_S  # what ends as it begins looks like an answer that does not stream
                self.finish(name)

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.at[action.request_id] = action
            elif isinstance(action, Requeue):
                assert action.cause == "stuck"
                self.taken_back.append(action.request_id)
                del self.at[action.request_id]

    def ask(self, **more: object) -> str:
        self.names += 1
        name = f"r{self.names}"
        self.carry_out(self.made.arrived(request(name, **{"streamed": True, **more}), now=self.now))  # type: ignore[arg-type]
        return name

    def ask_at(self, endpoint: str, **more: object) -> str:
        """A request that is sent there, and another one elsewhere."""
        names = [self.ask(**more), self.ask(**more)]
        here, other = sorted(names, key=lambda name: self.at[name].endpoint != endpoint)
        assert self.at[here].endpoint == endpoint
        self.begin(other)
        self.finish(other)
        return here

    def begin(self, name: str) -> None:
        dispatch = self.at[name]
        self.now += STEP_S
        self.begun[dispatch.endpoint].add(name)
        self.carry_out(self.made.first_token(dispatch.lease, now=self.now))

    def finish(self, name: str) -> None:
        dispatch = self.at.pop(name)
        self.begun[dispatch.endpoint].discard(name)
        self.carry_out(self.made.finished(dispatch.lease, now=self.now))

    def go_on(self, for_s: float, *moving: str) -> None:
        """Time passes, in which these make tokens."""
        until_s = self.now + for_s
        while (due_s := self.made.next_deadline()) is not None and due_s <= until_s:
            self.now = max(self.now, due_s)
            self.carry_out(self.made.moved(moving, now=self.now))
            self.carry_out(self.made.expire(now=self.now))
        self.now = until_s

    def state(self, endpoint: str = "a") -> str:
        return next(e.state for e in self.made.snapshot(now=self.now).endpoints if e.name == endpoint)


def streams(shop: Shop, endpoint: str = "a", **more: object) -> str:
    name = shop.ask_at(endpoint, **more)
    shop.begin(name)
    return name


def test_streams_that_stand_still_while_others_go_on_close_their_endpoint_and_what_waits_there_goes_elsewhere() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.go_on(5.0, "a", "b")
    waits = shop.ask_at("a")
    shop.go_on(PATIENCE_S + 2 * CHECK_S, "b")
    assert shop.state() == "stuck"
    assert shop.taken_back == [waits]
    assert shop.at[waits].endpoint == "b"
    assert {shop.at[shop.ask()].endpoint for _ in range(4)} == {"b"}
    shop.go_on(1.0, "a", "b")
    assert shop.state() == "up"


def test_twenty_steps_are_waited_for_where_these_take_longer_than_a_second() -> None:
    shop = Shop()
    name = streams(shop)
    streams(shop, "b")
    step_s = 0.2
    for tokens in range(1, 60):
        shop.go_on(step_s, "a", "b")
        shop.made.progressed(shop.at[name].lease, tokens, now=shop.now)
    shop.go_on(STEPS * step_s - 0.5, "b")
    assert shop.state() == "up"
    shop.go_on(0.5 + 2 * CHECK_S, "b")
    assert shop.state() == "stuck"


def test_an_engine_that_begins_nothing_is_found_although_what_it_has_begun_goes_on() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    waits = shop.ask_at("a")
    shop.go_on(PATIENCE_S, "a", "b")
    assert shop.state() == "up"
    shop.go_on(PATIENCE_S + 2 * CHECK_S, "a", "b")
    assert shop.taken_back == [waits]
    assert shop.at[waits].endpoint == "b"
    shop.go_on(0.5, "a", "b")
    assert shop.state() == "stuck", "tokens of old streams say nothing of that"


def test_a_lone_engine_is_waited_for() -> None:
    made = scheduler(a=8)
    made.endpoint_added(EndpointSpec(name="x", slots=8, models=frozenset({"other"})), now=0.0)
    for number in range(ANSWERS_MIN):
        (dispatch,) = made.arrived(request(f"w{number}", streamed=True), now=0.0)
        assert isinstance(dispatch, Dispatch)
        made.first_token(dispatch.lease, now=0.01)
        made.finished(dispatch.lease, now=0.02)
    made.arrived(request("r", streamed=True), now=1.0)
    for tick in range(100):
        assert made.expire(now=1.0 + tick * CHECK_S) == []
    assert made.snapshot(now=26.0).endpoints[0].state == "up"


def test_where_all_fall_silent_at_once_nobody_is_blamed() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.go_on(3.0, "a", "b")
    shop.ask()
    shop.ask()
    shop.go_on(20.0)
    assert [shop.state("a"), shop.state("b")] == ["up", "up"]


def test_where_we_stood_still_ourselves_nobody_is_blamed() -> None:
    shop = Shop()
    streams(shop)
    shop.go_on(3.0, "a")
    shop.now += 4.0  # no timer fired, no socket was read; `b` has nothing to do
    assert shop.made.expire(now=shop.now) == []
    assert shop.state() == "up"
    shop.go_on(PATIENCE_S + 2 * CHECK_S)
    assert shop.state() == "stuck", "but from then on it counts"


def test_a_long_prompt_takes_its_time() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.ask_at("a", prompt_tokens=20_000)
    shop.go_on(8.0, "b")
    assert shop.taken_back == []


def test_silences_of_late_are_expected_to_come_again() -> None:
    """An engine that computes whole prompts between tokens, as llama.cpp does, for others than us."""
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    for _ in range(5):
        shop.go_on(0.9, "b")
        shop.go_on(0.1, "a", "b")
    shop.go_on(2.4, "b")
    assert shop.state() == "up"


def test_what_compiles_for_the_first_few_is_not_judged() -> None:
    shop = Shop(warm=False)
    names = [shop.ask() for _ in range(4)]
    for name in names:
        if shop.at[name].endpoint == "b":
            shop.begin(name)
    shop.go_on(20.0, "b")
    assert shop.taken_back == []
    assert shop.state() == "up"


def test_what_had_nothing_to_do_for_long_may_have_to_load_its_model() -> None:
    shop = Shop()
    shop.now += IDLE_S + 1.0
    shop.ask_at("a")
    shop.go_on(20.0, "b")
    assert shop.taken_back == []


def test_gauges_that_move_show_that_it_works() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    for second in range(1, 20):
        shop.go_on(0.5, "b")
        reading = Observation(asked_s=shop.now, running=1, waiting=0, progress=float(second))
        shop.made.observed("a", reading, now=shop.now)
    assert shop.state() == "up"


def test_while_it_is_stuck_one_request_at_a_time_is_tried_each_later_than_the_one_before() -> None:
    shop = Shop(slots=64)
    streams(shop, "b")
    shop.ask_at("a")
    tried_s: list[float] = []
    for _ in range(200):
        shop.go_on(0.1, "b")
        if shop.state() == "stuck":
            name = shop.ask()
            if shop.at[name].endpoint == "a":
                tried_s.append(shop.now)
            else:
                shop.begin(name)
                shop.finish(name)
    assert sum(dispatch.endpoint == "a" for dispatch in shop.at.values()) <= 1
    apart_s = [later - earlier for earlier, later in itertools.pairwise(tried_s)]
    assert len(tried_s) >= 3
    assert apart_s == sorted(apart_s), "each later than the one before"
    assert apart_s[0] >= TRY_S


def test_a_request_is_taken_back_twice_at_most_and_what_is_pinned_never() -> None:
    shop = Shop()
    pinned = shop.ask(pinned="a")
    waits = shop.ask_at("a")
    shop.go_on(60.0, "b")
    assert pinned not in shop.taken_back
    assert shop.taken_back.count(waits) == 1


def test_a_part_that_was_passed_on_is_never_asked_for_again() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.go_on(2.0, "a", "b")
    whole = shop.ask(streamed=False)
    if shop.at[whole].endpoint != "a":
        shop.finish(whole)
        whole = shop.ask(streamed=False)
    shop.made.passed_on(shop.at[whole].lease, now=shop.now)
    shop.go_on(10.0, "b")
    assert shop.state() == "stuck"
    assert whole not in shop.taken_back


def test_what_was_worked_on_for_long_is_waited_for_as_long_again() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    whole = shop.ask(streamed=False)
    if shop.at[whole].endpoint != "a":
        shop.finish(whole)
        whole = shop.ask(streamed=False)
    shop.go_on(6.0, "a", "b")
    shop.go_on(5.5, "b")
    assert shop.state() == "stuck"
    assert whole not in shop.taken_back
    shop.go_on(1.5, "b")
    assert whole in shop.taken_back


def test_who_was_wrongly_suspected_is_given_twice_the_time() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.go_on(3.0, "a", "b")
    shop.go_on(PATIENCE_S + 2 * CHECK_S, "b")
    assert shop.state() == "stuck"
    shop.go_on(1.0, "a", "b")
    shop.go_on(1.5 * PATIENCE_S, "b")
    assert shop.state() == "up"
    shop.go_on(PATIENCE_S, "b")
    assert shop.state() == "stuck"


@pytest.mark.parametrize("enabled", [True, False])
def test_with_queueing_off_too_others_are_asked(enabled: bool) -> None:
    shop = Shop(SchedulerSettings(routing="round_robin", queue_enabled=enabled))
    waits = shop.ask_at("a")
    shop.go_on(PATIENCE_S + 2 * CHECK_S, "b")
    assert shop.taken_back == [waits]
    assert shop.at[waits].endpoint == "b"


def test_nothing_is_looked_at_while_nothing_runs() -> None:
    shop = Shop()
    shop.go_on(5.0)
    assert shop.made.next_deadline() in (None, math.inf)
