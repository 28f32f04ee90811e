"""An engine that stops while others go on is stuck; a slow one is not."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

import pytest
from msgspec.structs import replace

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Requeue
from penstock.core.values.observation import Observation
from penstock.core.values.settings import EndpointSpec
from tests.core.drive import request, scheduler

STEP_S = 0.02
PATIENCE_S = 1.0  # for a first token, where nothing is known of the engine
CHECK_S = 0.25
ANSWERS_MIN = 8


class Shop:
    """Two endpoints, `a` and `b`, that make tokens unless stopped."""

    def __init__(self, settings: SchedulerSettings | None = None, *, slots: int = 8, warm: bool = True) -> None:
        self.made = scheduler(settings or SchedulerSettings(routing="round_robin"), a=slots, b=slots)
        self.now = 0.0
        self.names = 0
        self.at: dict[str, Dispatch] = {}  # where requests are
        self.begun: dict[str, set[str]] = {"a": set(), "b": set()}
        self.moved: list[str] = []
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
                self.moved.append(action.request_id)
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


def test_an_engine_whose_streams_stall_is_stuck_and_its_unstarted_requests_move() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.go_on(5.0, "a", "b")
    waits = shop.ask_at("a")
    shop.go_on(PATIENCE_S + 2 * CHECK_S, "b")
    assert shop.state() == "stuck"
    assert shop.moved == [waits]
    assert shop.at[waits].endpoint == "b"
    assert {shop.at[shop.ask()].endpoint for _ in range(4)} == {"b"}
    shop.go_on(1.0, "a", "b")
    assert shop.state() == "up"


def test_a_slow_engine_has_twenty_steps_for_its_next_token() -> None:
    shop = Shop()
    name = streams(shop)
    streams(shop, "b")
    step_s = 0.2
    for tokens in range(1, 60):
        shop.go_on(step_s, "a", "b")
        shop.made.progressed(shop.at[name].lease, tokens, now=shop.now)
    shop.go_on(20 * step_s - 0.5, "b")
    assert shop.state() == "up"
    shop.go_on(0.5 + 2 * CHECK_S, "b")
    assert shop.state() == "stuck"


def test_an_engine_that_begins_nothing_is_stuck_although_its_streams_go_on() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    waits = shop.ask_at("a")
    shop.go_on(PATIENCE_S / 2, "a", "b")
    assert shop.state() == "up"
    shop.go_on(PATIENCE_S + 2 * CHECK_S, "a", "b")
    assert shop.moved == [waits]
    assert shop.at[waits].endpoint == "b"
    shop.go_on(0.5, "a", "b")
    assert shop.state() == "stuck", "tokens of old streams are no evidence of a new one"


def test_a_lone_engine_is_not_stuck_within_half_a_minute() -> None:
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


def test_no_engine_is_stuck_if_all_fall_silent_at_once() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.go_on(3.0, "a", "b")
    shop.ask()
    shop.ask()
    shop.go_on(20.0)
    assert [shop.state("a"), shop.state("b")] == ["up", "up"]


def test_a_pause_of_our_own_process_makes_no_engine_stuck() -> None:
    shop = Shop()
    streams(shop)
    shop.go_on(3.0, "a")
    shop.now += 4.0  # no timer fired, no socket was read; `b` has nothing to do
    assert shop.made.expire(now=shop.now) == []
    assert shop.state() == "up"
    shop.go_on(PATIENCE_S + 2 * CHECK_S)
    assert shop.state() == "stuck", "silence counts from then on"


def test_a_long_prompt_has_three_times_its_predicted_prefill() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    shop.ask_at("a", prompt_tokens=20_000)
    shop.go_on(8.0, "b")
    assert shop.moved == []


def seen(*, prompt_tokens: int, first_token_s: float, answers: int = ANSWERS_MIN) -> Shop:
    """Each engine has given that many answers: too few to know its speed by."""
    shop = Shop(warm=False)
    for _ in range(2 * answers):
        name = shop.ask(prompt_tokens=prompt_tokens)
        shop.now += first_token_s - STEP_S
        shop.begin(name)
        shop.now += STEP_S
        shop.finish(name)
    return shop


@pytest.mark.parametrize(
    ("seen_tokens", "tokens", "within_s"), [(110, 110, 1.0), (10, 110, 2.0), (110, 600, 1.0), (600, 110, 1.0)]
)
def test_eight_answers_bound_the_patience_for_the_next_prompt(seen_tokens: int, tokens: int, within_s: float) -> None:
    shop = seen(prompt_tokens=seen_tokens, first_token_s=0.06)
    waits = shop.ask_at("a", prompt_tokens=tokens)
    shop.go_on(within_s + 2 * CHECK_S)
    assert shop.moved == [waits]


@pytest.mark.parametrize(("tokens", "takes_s"), [(11_000, 15.0), (4_000, 6.0), (400, 1.0)])
def test_a_long_prompt_after_short_ones_has_time_in_proportion(tokens: int, takes_s: float) -> None:
    shop = seen(prompt_tokens=100, first_token_s=0.06)
    shop.ask_at("a", prompt_tokens=tokens)
    shop.go_on(takes_s)
    assert shop.moved == []


@pytest.mark.parametrize(("answers", "patience_s"), [(1, 8.0), (2, 4.0), (5, 1.6)])
def test_an_engine_of_few_answers_has_more_time_because_it_may_compile(answers: int, patience_s: float) -> None:
    shop = seen(prompt_tokens=110, first_token_s=0.06, answers=answers)
    waits = shop.ask_at("a", prompt_tokens=110)
    shop.go_on(patience_s - CHECK_S)
    assert shop.moved == []
    shop.go_on(3 * CHECK_S)
    assert shop.moved == [waits]


def test_whole_answers_side_by_side_are_not_expected_one_after_the_other() -> None:
    shop = Whole(tells="", answer_s=0.5, prompt_tokens=110)
    shop.serve(20.0, "a", "b", every_s=0.05)
    shop.serve(2.5, "b", every_s=0.05)
    assert shop.state() == "stuck"
    assert shop.moved


def test_an_engine_is_not_judged_by_its_first_requests() -> None:
    shop = Shop(warm=False)
    names = [shop.ask() for _ in range(4)]
    for name in names:
        if shop.at[name].endpoint == "b":
            shop.begin(name)
    shop.go_on(20.0, "b")
    assert shop.moved == []
    assert shop.state() == "up"


def test_the_first_request_after_an_idle_minute_is_not_judged() -> None:
    shop = Shop()
    shop.now += 61.0
    shop.ask_at("a")
    shop.go_on(20.0, "b")
    assert shop.moved == []


def test_a_moving_page_keeps_an_engine_up() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    for second in range(1, 20):
        shop.go_on(0.5, "b")
        reading = Observation(asked_s=shop.now, running=1, waiting=0, progress=float(second))
        shop.made.observed("a", reading, now=shop.now)
    assert shop.state() == "up"


def test_a_stuck_engine_gets_one_probe_at_a_time_with_growing_pauses() -> None:
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
    assert apart_s[0] >= 1.0


def test_a_request_moves_at_most_twice_and_a_pinned_one_never() -> None:
    shop = Shop()
    pinned = shop.ask(pinned="a")
    waits = shop.ask_at("a")
    shop.go_on(60.0, "b")
    assert pinned not in shop.moved
    assert shop.moved.count(waits) == 1


def test_a_request_that_a_proxy_carries_does_not_move() -> None:
    shop = Shop()
    carried = shop.ask_at("a", carried=True)
    shop.go_on(60.0, "b")
    assert carried not in shop.moved


def test_a_request_whose_client_has_a_part_of_the_answer_does_not_move() -> None:
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
    assert whole not in shop.moved


def test_a_request_that_ran_for_long_gets_as_long_again_before_it_moves() -> None:
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
    assert whole not in shop.moved
    shop.go_on(1.5, "b")
    assert whole in shop.moved


def test_a_wrong_verdict_doubles_the_patience() -> None:
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
def test_requests_move_with_queueing_off_too(enabled: bool) -> None:
    shop = Shop(SchedulerSettings(routing="round_robin", queue_enabled=enabled))
    waits = shop.ask_at("a")
    shop.go_on(PATIENCE_S + 2 * CHECK_S, "b")
    assert shop.moved == [waits]
    assert shop.at[waits].endpoint == "b"


def test_an_idle_pool_sets_no_timer() -> None:
    shop = Shop()
    shop.go_on(5.0)
    assert shop.made.next_deadline() in (None, math.inf)


# --- answers that do not stream -----------------------------------------------------------------------------------

ANSWER_S = 1.0


class Whole(Shop):
    """The same with answers that do not stream: each takes `answer_s`. `tells`: whose gauges move while they work."""

    def __init__(self, *, answer_s: float = ANSWER_S, tells: str = "ab", prompt_tokens: int = 0) -> None:
        super().__init__(warm=False)
        self.answer_s, self.tells, self.prompt_tokens = answer_s, tells, prompt_tokens
        self.steps = Counter[str]()
        self.sent_s: dict[str, float] = {}
        self.first_tokens = Counter[str]()
        self.begun_leases: set[int] = set()
        self.lost: set[int] = set()  # leases whose requests no engine has
        self.serve(10.0, "a", "b")

    def serve(
        self,
        for_s: float,
        *moving: str,
        every_s: float = 0.25,
        gauges: str = "ab",
        hangs: str = "",
        absent: str = "",
        denies: str = "",
    ) -> None:
        """Requests come; who moves answers them, and shows it once a second, if its page is to be had at all.

        Who `hangs` never begins what is sent to it now; where a page is `absent`, something else answers in its place;
        one that `denies` says that nothing is there, whatever is, and counts nothing further.
        """
        until_s, ask_s, read_s = self.now + for_s, self.now, self.now
        while self.now < until_s:
            self.now = round(self.now + 0.05, 6)
            if self.now >= ask_s:
                name = self.ask(streamed=False, prompt_tokens=self.prompt_tokens)
                self.sent_s[name], ask_s = self.now, ask_s + every_s
            for name, dispatch in list(self.at.items()):
                if dispatch.lease not in self.begun_leases | self.lost:
                    (self.lost if dispatch.endpoint in hangs else self.begun_leases).add(dispatch.lease)
                    self.first_tokens[dispatch.endpoint] += dispatch.endpoint not in hangs
                    self.sent_s[name] = self.now
                if dispatch.lease in self.lost:
                    continue
                if dispatch.endpoint in moving and self.now >= self.sent_s[name] + self.answer_s:
                    self.finish(name)
            if self.now >= read_s:
                read_s += 1.0
                for endpoint in absent:
                    self.carry_out(self.made.observed(endpoint, None, answered=True, now=self.now))
                for endpoint in sorted((set(self.tells) & set(gauges)) - set(absent)):
                    here = sum(d.endpoint == endpoint and d.lease not in self.lost for d in self.at.values())
                    self.steps[endpoint] += here > 0
                    reading = Observation(
                        self.now, here, 0, progress=float(self.steps[endpoint]),
                        first_token_s_total=0.0, first_tokens_total=float(self.first_tokens[endpoint]),
                    )  # fmt: skip
                    if endpoint in denies:
                        reading = replace(self.last[endpoint], asked_s=self.now, running=0.0)
                    elif endpoint in moving or self.last.get(endpoint) is None:
                        self.last[endpoint] = reading
                    else:
                        reading = replace(self.last[endpoint], asked_s=self.now)
                    self.carry_out(self.made.observed(endpoint, reading, now=self.now))
            while (due_s := self.made.next_deadline()) is not None and due_s <= self.now:
                self.carry_out(self.made.expire(now=self.now))

    @functools.cached_property
    def last(self) -> dict[str, Observation]:
        return {}


@pytest.mark.parametrize("gauges", ["ab", "b"], ids=["its page stands still", "its page is not to be had"])
def test_whole_answers_and_page_that_stop_make_an_engine_stuck_within_two_seconds(gauges: str) -> None:
    shop = Whole()
    shop.serve(2.5, "b", gauges=gauges)
    assert shop.state() == "stuck"
    assert shop.moved
    assert {dispatch.endpoint for name, dispatch in shop.at.items() if name in shop.moved} <= {"b"}
    shop.serve(3.0, "a", "b")
    assert shop.state() == "up"


def test_a_moving_page_protects_whole_answers_longer_than_any_before() -> None:
    shop = Whole()
    shop.answer_s = 40.0
    shop.serve(60.0, "a", "b", every_s=5.0)
    assert shop.moved == []


def test_without_a_page_a_whole_answer_has_twice_the_longest_recent_one() -> None:
    shop = Whole(tells="", answer_s=6.0)
    shop.serve(5.0, "b")  # the last ones ended three or four seconds before that
    assert shop.state() == "up"
    shop.serve(10.0, "b")
    assert shop.state() == "stuck"


def test_no_engine_is_stuck_if_all_whole_answers_stop_at_once() -> None:
    shop = Whole()
    shop.serve(20.0)
    assert [shop.state("a"), shop.state("b"), shop.moved] == ["up", "up", []]


def test_a_page_that_never_moved_with_answers_is_no_evidence() -> None:
    shop = Whole(answer_s=3.0)
    shop.serve(30.0, "a", "b", gauges="")
    assert shop.moved == []


def test_a_long_prompt_of_a_whole_answer_has_its_prefill_time() -> None:
    shop = Whole()
    shop.serve(2.0, "a", "b", every_s=100.0)  # nothing else is under way
    shop.prompt_tokens = 50_000
    shop.serve(8.0, every_s=100.0)
    assert shop.moved == []


def test_whole_answers_under_way_stay_at_an_engine_that_begins_no_new_ones() -> None:
    shop = Whole(answer_s=5.0)
    old = {name for name, dispatch in shop.at.items() if dispatch.endpoint == "a"}
    shop.serve(3.5, "a", "b", hangs="a")
    assert old
    assert not old & set(shop.moved)


def test_a_page_that_counts_first_tokens_late_is_no_evidence_twice() -> None:
    """Requests stand for 1.2 s where no gauge sees them, now and then: at most once that looks like no beginning."""
    shop = Whole(answer_s=2.0)
    moved = []
    for _ in range(6):
        shop.serve(1.2, "a", "b", hangs="a", every_s=0.6)
        shop.begun_leases |= shop.lost
        shop.lost.clear()
        shop.first_tokens["a"] += 1
        shop.serve(4.0, "a", "b", every_s=0.6)
        moved.append(len(shop.moved))
    assert moved[-1] == moved[1]


def test_a_page_replaced_by_something_else_is_no_evidence() -> None:
    shop = Whole(answer_s=1.5)
    shop.serve(1.4, "a", "b", every_s=1.5, absent="a")
    shop.answer_s = 2.5  # and nothing ends for a while
    shop.serve(10.0, "a", "b", every_s=1.5, absent="a")
    assert shop.moved == []


@pytest.mark.parametrize("answer_s", [1.2, 2.0, 4.0])
def test_a_page_that_denies_requests_under_way_is_no_evidence(answer_s: float) -> None:
    shop = Whole(answer_s=answer_s)
    shop.serve(8.0, "a", "b", every_s=0.5, denies="a")
    assert shop.moved == []
    assert shop.state() == "up"


def test_a_growing_queue_on_the_page_does_not_show_progress() -> None:
    shop = Shop()
    streams(shop)
    streams(shop, "b")
    for waiting in range(1, 6):
        shop.go_on(0.5, "b")
        shop.made.observed("a", Observation(shop.now, 1, waiting, progress=7.0), now=shop.now)
    assert shop.state() == "stuck"


def test_a_page_without_progress_is_read_often_until_it_moves() -> None:
    shop = Whole()
    watches = [shop.made.watches]
    shop.serve(1.1, "b", every_s=0.25)
    watches.append(shop.made.watches)
    assert [shop.made.wanted(name, now=shop.now) for name in "ab"] == [True, False]
    shop.serve(3.0, "a", "b")
    assert [*watches, shop.made.watches] == [False, True, False]
