"""Sessions before a bounded KV memory: who waits, for how long, and who makes room."""

from __future__ import annotations

import math
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.explain.endpoints_wanted import EndpointsWanted, ScalingTargets
from penstock.core.scheduler import Scheduler
from penstock.core.sessions.gate import SessionGate, price
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.catalogue import Cause, Failure, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.observation import Observation
from penstock.core.values.request import Contents, Request, Turn, Usage
from penstock.core.values.settings import (
    AdmissionSettings,
    BandSettings,
    EndpointSpec,
    Limits,
    QueueBounds,
    SchedulerSettings,
    SessionSettings,
)
from penstock.core.values.takeover import Underway


class Bench:
    """A scheduler before one or more endpoints whose memory alone is scarce, and a clock. All invariants are checked
    after each fact. A turn is named by its session and a number."""

    def __init__(
        self,
        *kv_tokens: int | None,
        wait_s: float = 300.0,
        bands: tuple[str, ...] = ("standard",),
        checked: bool = True,
        **more: Any,
    ) -> None:
        gate: dict[str, Any] = {name: more.pop(name) for name in ("lease_s", "slice_s", "worth_s") if name in more}
        gate["worth"] = more.pop("worth", math.inf)  # prompts of these tests would be computed in milliseconds
        self.settings = SchedulerSettings(
            bands=tuple(BandSettings(name) for name in bands),
            wait_s_max=math.inf,
            admission=AdmissionSettings(prefill_tokens_max=1_000_000, kv_usage_max=1.0),
            sessions=SessionSettings(memory=True, wait_s=wait_s, wait_s_max=0.0, corrected=False),
            **more,
        )
        self.scheduler: Scheduler = (CheckedScheduler if checked else Scheduler)(self.settings, random=Random(1))
        for name, value in gate.items():
            setattr(self.gate, f"_{name}", value)
        for number, tokens in enumerate(kv_tokens):
            self.add(f"e{number}", tokens)
        self.now = 0.0
        self.at: dict[str, str] = {}  # turns under way -> endpoint
        self.leases: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.tokens: dict[str, int] = {}
        self.count = 0

    @property
    def gate(self) -> SessionGate:
        return self.scheduler.inspect().gate

    def add(self, name: str, kv_tokens: int | None, model: str = "m", slots: int = 1000) -> None:
        spec = EndpointSpec(name, slots=slots, models=frozenset({model}), kv_tokens=kv_tokens)
        self.scheduler.endpoint_added(spec, now=getattr(self, "now", 0.0))

    def turn(
        self,
        session: str,
        tokens: int,
        *,
        tenant: str = "t",
        part: str = "",
        weight: float = 1.0,
        band: int = 0,
        last: bool = False,
        model: str = "m",
        keys: tuple[int, ...] = (),
    ) -> str:
        """`keys`: of its prompt's token blocks, which are found out a moment later."""
        self.count += 1
        turn = f"{session}#{self.count}"
        self.tokens[turn] = tokens
        request = Request(
            turn,
            model,
            band,
            tenant=tenant,
            flow=(tenant,),
            weights=(weight,),
            contents=Contents(0, token_ids=tokens),
            output_tokens_max=1,
            streamed=True,
            prefix=(hash_of(session), hash_of(session)),
            prefix_chunk_bytes=tokens * 4,
            turn=Turn(ends=(hash_of(session),)) if session.startswith("~") else Turn(session, part, last=last),
            locate_s=0.1 if keys else 0.0,
        )
        self.do(self.scheduler.arrived(request, now=self.now))
        if keys:
            self.do(self.scheduler.located(turn, keys, tokens // len(keys), now=self.now))
        return turn

    def gave_up(self, *keys: int, endpoint: str = "e0") -> None:
        """An engine's events say that it removed token blocks."""
        self.do(self.scheduler.kv_removed(endpoint, keys, now=self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self.at[action.request_id], self.leases[action.request_id] = action.endpoint, action.lease
            else:
                self.refused[action.request_id] = str(getattr(action, "reason", action))

    def end(self, turn: str, answer: int = 0, *, cached: int | None = None) -> None:
        usage = Usage(self.tokens[turn], answer, cached or 0, cached_told=cached is not None)
        del self.at[turn]
        self.do(self.scheduler.finished(self.leases.pop(turn), usage, now=self.now))

    def give_up(self, turn: str) -> None:
        self.at.pop(turn, None)
        self.leases.pop(turn, None)
        self.do(self.scheduler.cancelled(turn, now=self.now))

    def whole(self, session: str, tokens: int, *, tenant: str = "t", weight: float = 1.0) -> None:
        """A turn that begins and ends at this moment."""
        turn = self.turn(session, tokens, tenant=tenant, weight=weight)
        assert turn in self.at, f"{turn} waits"
        self.end(turn)

    def later(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.scheduler.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(self.scheduler.expire(now=self.now))
        self.now = until
        self.do(self.scheduler.expire(now=self.now))

    def held(self, tenant: str) -> int:
        return sum(x.booked for x in self.gate.ledger.holders.values() if x.name == tenant)

    def home(self, session: str, tenant: str = "t") -> str | None:
        found = self.scheduler.session(tenant, session, now=self.now)
        return None if found is None else found.endpoint

    def idle(self) -> bool:
        """True if nothing is left of any turn."""
        gate = self.gate
        return not (gate.turns or gate.waiting or self.scheduler.inspect().queues.in_all)


# --- while all fit ----------------------------------------------------------------------------------------------


def test_sessions_that_fit_never_wait() -> None:
    bench = Bench(1000)
    for _ in range(5):
        for name in ("a", "b", "c"):
            bench.whole(name, 200)
            bench.later(60.0)
    assert (bench.gate.pauses, bench.gate.waiting) == (0, 0)


def test_a_turn_of_a_resident_passes_though_others_wait() -> None:
    bench = Bench(1000)
    running = bench.turn("a", 900)
    waiting = bench.turn("b", 900)
    assert waiting not in bench.at
    bench.end(running)
    assert bench.turn("a", 950) in bench.at
    assert waiting not in bench.at


def test_a_new_session_goes_where_there_is_room_for_it() -> None:
    bench = Bench(1000, 1000)
    first, second = bench.turn("a", 700), bench.turn("b", 400)
    assert {bench.at[first], bench.at[second]} == {"e0", "e1"}
    third = bench.turn("c", 500)
    assert bench.at[third] == bench.at[second]


def test_while_all_fit_routing_alone_decides_where_a_resident_goes() -> None:
    bench = Bench()
    bench.add("e0", 10_000, slots=1)
    bench.add("e1", 10_000, slots=1)
    bench.whole("shared", 500)
    first, second = bench.turn("shared", 500), bench.turn("shared", 500)
    assert {bench.at[first], bench.at[second]} == {"e0", "e1"}, "many clients may send one name"


def test_where_memory_is_scarce_a_turn_waits_for_its_home_no_longer_than_that_is_worth() -> None:
    bench = Bench()
    bench.add("e0", 1_000, slots=1)
    bench.whole("a", 950)
    bench.add("e1", 1_000, slots=1)
    rate = bench.scheduler.inspect().pool["e0"].ledger.speed.rate
    first, second = bench.turn("a", 950), bench.turn("a", 950)
    assert bench.at[first] == "e0"
    bench.later(1.9 * 950 / rate)
    assert second not in bench.at
    bench.later(0.2 * 950 / rate)
    assert bench.at[second] == "e1"


# --- room -------------------------------------------------------------------------------------------------------


def test_a_session_idle_for_a_lease_makes_room_and_a_shorter_idle_one_does_not() -> None:
    bench = Bench(1000, lease_s=30.0)
    bench.whole("a", 800)
    waiting = bench.turn("b", 800)
    bench.later(29.0)
    assert waiting not in bench.at
    bench.later(1.0)
    assert waiting in bench.at
    assert bench.turn("a", 800) not in bench.at, "it is paused"


def test_no_session_is_paused_in_vain() -> None:
    bench = Bench(1000, lease_s=30.0)
    bench.whole("a", 300)
    bench.turn("b", 600)
    bench.later(100.0)
    assert bench.turn("c", 500) not in bench.at
    assert bench.gate.pauses == 0, "a's room would not be enough"


def test_a_running_session_is_never_paused() -> None:
    bench = Bench(1000, lease_s=30.0, wait_s=60.0)
    bench.turn("a", 800)
    waiting = bench.turn("b", 800)
    bench.later(500.0)
    assert waiting not in bench.at


def test_residents_that_grow_beyond_the_memory_cost_an_idle_one_its_place() -> None:
    bench = Bench(1000)
    bench.whole("a", 500)
    bench.later(1.0)
    bench.whole("b", 350)
    bench.whole("b", 490)
    assert bench.gate.pauses == 0
    bench.whole("b", 600)
    assert bench.turn("a", 500) not in bench.at


@pytest.mark.parametrize(
    ("grows_to", "left"), [(480, "abcd"), (500, "abd"), (600, "bcd"), (690, "acd"), (720, "ad"), (980, "d")]
)
def test_the_smallest_idle_session_that_makes_up_for_growth_loses_its_place(grows_to: int, left: str) -> None:
    bench = Bench(1000, lease_s=1e9)
    for name, tokens in (("a", 200), ("b", 220), ("c", 100), ("d", 300)):
        bench.whole(name, tokens)
        bench.later(1.0)
    bench.whole("d", grows_to)
    assert "".join(name for name in "abcd" if bench.home(name) is not None) == left


def test_sub_agents_hold_memory_for_their_session_and_keep_it_awake() -> None:
    bench = Bench(1000, lease_s=10.0)
    bench.whole("a", 300)
    helper = bench.turn("a", 400, part="helper")
    assert bench.held("t") == 700
    bench.later(100.0)
    waiting = bench.turn("b", 500)
    assert waiting not in bench.at, "a is not idle"
    bench.end(helper)
    assert waiting in bench.at, "beside the 300 tokens of a alone"
    assert bench.held("t") == 800


def test_a_session_of_sub_agents_alone_holds_what_the_last_one_left() -> None:
    bench = Bench(1000)
    bench.end(bench.turn("a", 300, part="x"), answer=50)
    assert (bench.home("a"), bench.held("t")) == ("e0", 350)
    first, second = bench.turn("a", 400, part="x"), bench.turn("a", 100, part="y")
    assert bench.held("t") == 500
    bench.end(first)
    assert bench.held("t") == 500, "what x left, and y"
    bench.end(second)
    assert bench.held("t") == 400
    bench.end(bench.turn("a", 600))
    bench.end(bench.turn("a", 200, part="x"))
    assert bench.held("t") == 600, "its own turn, as ever"


def test_a_session_that_leaves_nothing_is_not_resident() -> None:
    bench = Bench(1000)
    bench.end(bench.turn("a", 300, part="x"))
    turn = bench.turn("a", 400, part="x")
    del bench.at[turn]
    bench.do(bench.scheduler.finished(bench.leases.pop(turn), Usage(0, 0), refused=True, now=bench.now))
    assert (bench.home("a"), bench.held("t")) == (None, 0)


def test_many_small_sessions_that_are_idle_hide_no_large_one() -> None:
    bench = Bench(1000, lease_s=30.0)
    for number in range(100):
        bench.whole(f"small {number}", 3)
    bench.whole("large", 600)
    waiting = bench.turn("b", 800)
    bench.later(29.0)
    assert waiting not in bench.at
    bench.later(2.0)
    assert waiting in bench.at


# --- tenants ----------------------------------------------------------------------------------------------------


def test_who_is_under_his_share_gets_room_at_once_from_who_is_over_his() -> None:
    bench = Bench(1000, lease_s=1e9)
    for name in ("a", "b", "c"):
        bench.whole(name, 300, tenant="big")
    bench.later(1.0)
    assert bench.turn("z", 200, tenant="small") in bench.at
    assert bench.turn("a", 300, tenant="big") not in bench.at, "the longest idle one"


def test_who_is_under_his_share_does_not_wait_where_he_was_if_room_is_elsewhere() -> None:
    bench = Bench(2000, 500, lease_s=1e9)
    for name in ("a", "b", "c"):
        bench.whole(name, 600, tenant="big")
    bench.whole("z", 300, tenant="small")
    assert bench.home("z", "small") == "e1"
    bench.scheduler.session_paused("small", "z", now=bench.now)
    bench.turn("y", 450, tenant="small")
    bench.scheduler.session_resumed("small", "z", now=bench.now)
    assert bench.at[bench.turn("z", 300, tenant="small")] == "e0", "its origin is taken, by its own tenant"


def test_who_is_over_his_share_waits() -> None:
    bench = Bench(1000, lease_s=1e9)
    bench.whole("z", 300, tenant="small")
    for name in ("a", "b"):
        bench.whole(name, 300, tenant="big")
    assert bench.turn("c", 300, tenant="big") not in bench.at
    bench.later(200.0)
    assert bench.turn("z", 300, tenant="small") in bench.at


@pytest.mark.parametrize(("band", "ended"), [(0, 5), (1, 5), (1, 9)])
def test_sessions_that_ended_without_a_word_are_no_share_for_ever(band: int, ended: int) -> None:
    """`band`: of the tenant that waits; the `ended` ones are another's, of the highest band."""
    bench = Bench(1000, bands=("high", "low"), wait_s=300.0)
    for number in range(ended):
        bench.whole(f"ended{number}", 100, tenant="morning")
    bench.later(100.0)
    waiting = [bench.turn(f"s{number}", 100, tenant="afternoon", band=band) for number in range(9)]
    bench.later(100.0)
    assert bench.held("morning") >= 400, "they may only think"
    bench.later(101.0)
    assert [turn for turn in waiting if turn not in bench.at] == []


def test_room_is_made_when_a_turn_of_the_one_over_his_share_ends() -> None:
    bench = Bench(1000, lease_s=1e9)
    turns = [bench.turn(name, 300, tenant="big") for name in ("a", "b", "c")]
    waiting = bench.turn("z", 300, tenant="small")
    assert waiting not in bench.at
    bench.later(5.0)
    bench.end(turns[1])
    assert waiting in bench.at


def test_a_tenant_without_memory_gets_one_session_whatever_its_size() -> None:
    bench = Bench(1000, lease_s=1e9)
    for name in ("a", "b", "c"):
        bench.whole(name, 300, tenant=name)
    waiting = bench.turn("z", 300, tenant="late")
    assert waiting not in bench.at
    bench.later(120.0)
    assert waiting in bench.at


def test_equal_tenants_do_not_take_each_others_place_with_each_turn() -> None:
    bench = Bench(1000, slice_s=120.0, lease_s=1000.0)
    bench.whole("a", 600, tenant="one")
    waiting = bench.turn("b", 600, tenant="two")
    bench.end(bench.turn("a", 610, tenant="one"), answer=40)
    assert waiting not in bench.at, "650 tokens are no more than the other would hold"
    bench.later(120.0)
    assert waiting in bench.at, "who holds nothing gets his first one in after a slice"
    bench.end(waiting, answer=40)
    again = bench.turn("a", 650, tenant="one")
    bench.later(100.0)
    assert again not in bench.at


def test_a_sessions_question_to_another_model_leaves_its_place_alone() -> None:
    bench = Bench(1000)
    bench.add("small", 1000, model="n")
    bench.whole("a", 600)
    bench.end(bench.turn("a", 300, model="n"))
    assert bench.gate.pauses == 0
    assert bench.at[bench.turn("a", 650)] == "e0"
    found = [(row.model, row.endpoint, row.tokens) for row in bench.scheduler.sessions(now=bench.now)]
    assert sorted(found) == [("m", "e0", 650), ("n", "small", 300)]
    assert bench.held("t") == 950


def test_two_tenants_cannot_name_each_others_session() -> None:
    bench = Bench(1000)
    bench.whole("same", 400, tenant="one")
    bench.whole("same", 100, tenant="two")
    assert (bench.held("one"), bench.held("two")) == (400, 100)


@pytest.mark.parametrize(("weights", "expected"), [((1.0, 1.0), 1.0), ((1.0, 2.0), 2.0)])
def test_memory_held_over_time_is_by_weight(weights: tuple[float, float], expected: float) -> None:
    by_name = dict(zip(("one", "two"), weights, strict=True))
    held, _, _ = loop(sessions={"one": 45, "two": 45}, weights=by_name, memory=2000, seconds=300)
    assert held["two"] / held["one"] == pytest.approx(expected, rel=0.08)


# --- waits ------------------------------------------------------------------------------------------------------


def test_a_wait_ends_by_pausing_a_session_of_the_same_tenant() -> None:
    bench = Bench(1000, lease_s=1e9, wait_s=100.0)
    bench.whole("z", 300, tenant="other")
    bench.whole("a", 300)
    bench.later(1.0)
    bench.whole("b", 300)
    waiting = bench.turn("c", 300)
    bench.later(94.0)
    assert waiting not in bench.at
    bench.later(1.0)
    assert waiting in bench.at
    assert bench.turn("z", 300, tenant="other") in bench.at, "another tenant's is left alone"
    assert bench.turn("a", 300) not in bench.at, "the longest resident one"


@pytest.mark.parametrize("kv_tokens", [(1020,), (1020, 400)])
def test_a_session_larger_than_all_that_its_tenant_holds_gets_in_after_w(kv_tokens: tuple[int, ...]) -> None:
    """No share is large enough for it, and its tenant's only resident goes on for ever, as the others do."""
    bench = Bench(*kv_tokens, wait_s=100.0)
    mine, others = ("a", 150, "one"), [(f"z{number}", 190, "two") for number in range(4)]
    for name, tokens, tenant in (mine, *others):
        bench.whole(name, tokens, tenant=tenant)
    waiting = bench.turn("large", 900, tenant="one")
    while waiting not in bench.at and bench.now < 1000.0:
        for name, tokens, tenant in (mine, *others):
            bench.later(0.5)
            if bench.home(name, tenant) is not None:
                bench.whole(name, tokens, tenant=tenant)
    assert 90.0 < bench.now <= 105.0
    bench.end(waiting)
    back = bench.turn("z0", 190, tenant="two")
    bench.later(30.0)
    assert back in bench.at, "who is below his share has his room back within a lease"


def test_no_wait_is_longer_than_w_and_the_turn_under_way() -> None:
    _, waits, gate = loop(sessions={"one": 40}, weights={"one": 1.0}, seconds=600, wait_s=120.0)
    assert gate.forced > 0
    assert max(waits) > 100.0, "the memory is short"
    assert max(waits) <= 120.0 + 20.0 + 5.0  # a turn takes up to 20 s


def test_a_session_comes_back_to_where_it_was() -> None:
    bench = Bench(1000, 1000, lease_s=30.0, worth_s=1000.0)
    bench.whole("a", 800)
    origin = bench.home("a")
    bench.later(40.0)
    busy = bench.turn("b", 900), bench.turn("c", 900)
    assert [bench.at[turn] != origin for turn in busy].count(True) == 1
    waiting = bench.turn("a", 800)
    elsewhere = next(turn for turn in busy if bench.at[turn] != origin)
    bench.end(elsewhere)
    bench.later(31.0)
    assert waiting not in bench.at, "there is room, but not at its origin"
    bench.end(next(turn for turn in busy if turn != elsewhere))
    bench.later(31.0)
    assert bench.at[waiting] == origin
    assert bench.gate.moves == 0


def test_a_session_behind_a_large_one_goes_elsewhere_after_the_same_time() -> None:
    bench = Bench(1000, 500, worth_s=30.0, lease_s=1e9)
    bench.whole("a", 600)
    assert bench.home("a") == "e0"
    bench.scheduler.session_paused("t", "a", now=bench.now)
    bench.turn("b", 900)
    bench.turn("c", 100)
    bench.turn("large", 950)
    bench.scheduler.session_resumed("t", "a", now=bench.now)
    waiting = bench.turn("a", 300)
    bench.later(29.0)
    assert waiting not in bench.at, "its origin is worth the wait"
    bench.later(2.0)
    assert bench.at.get(waiting) == "e1"


def test_sub_agents_that_waited_with_their_session_count_when_it_comes_in() -> None:
    bench = Bench(1000, lease_s=1e9)
    bench.whole("idle", 400)
    running = bench.turn("b", 500, last=True)
    bench.turn("c", 500)
    for part in ("x", "y"):
        bench.turn("c", 300, part=part)
    bench.end(running)
    assert bench.home("c") == "e0"
    assert bench.home("idle") is None, "1,500 tokens of 1,000"


# --- bad input --------------------------------------------------------------------------------------------------


def test_a_client_that_gives_up_while_it_waits_leaves_nothing() -> None:
    bench = Bench(1000)
    running = bench.turn("a", 900)
    waiting = bench.turn("b", 900)
    bench.give_up(waiting)
    bench.end(running)
    assert (bench.idle(), bench.held("t")) == (True, 900)


def test_a_footprint_larger_than_the_engine_is_served_alone() -> None:
    bench = Bench(1000, lease_s=10.0)
    bench.whole("a", 600)
    huge = bench.turn("huge", 5000)
    assert huge not in bench.at
    bench.later(10.0)
    assert huge in bench.at


@pytest.mark.parametrize("kept", [False, True])
def test_sessions_larger_than_the_engine_take_turns_between_tenants(*, kept: bool) -> None:
    """None of them stays resident, so no tenant holds anything. `kept`: one also has a small session, which does."""
    bench = Bench(1000, wait_s=60.0)
    if kept:
        bench.whole("small", 20, tenant="b")
    turns = {(name, tenant): bench.turn(name, 1500, tenant=tenant) for name in "xyz" for tenant in "ab"}
    had = dict.fromkeys(turns, 0)
    while bench.now < 300.0:
        bench.later(2.0)
        for who, turn in turns.items():
            if turn in bench.at:
                bench.end(turn, 10)
                had[who] += 1
                turns[who] = bench.turn(who[0], 1500, tenant=who[1])
    assert min(had.values()) >= 4, "each 60 s"


def test_a_session_that_an_operator_prefers_is_the_next_of_all_tenants() -> None:
    bench = Bench(1000)
    running = bench.turn("r", 1500, tenant="c")
    waiting = [bench.turn("x", 800, tenant=tenant) for tenant in "ab"]
    bench.do(bench.scheduler.session_preferred("b", "x", now=bench.now))
    bench.end(running)
    assert [turn in bench.at for turn in waiting] == [False, True]


def test_a_session_whose_first_turn_its_engine_refuses_holds_nothing() -> None:
    bench = Bench(1000)
    turn = bench.turn("a", 900)
    bench.do(bench.scheduler.finished(bench.leases.pop(turn), Usage(0, 0), refused=True, now=bench.now))
    assert bench.held("t") == 0
    bench.whole("b", 600)
    assert [(row.session, row.turns) for row in bench.scheduler.sessions(now=bench.now)] == [("b", 1), ("a", 0)]


@pytest.mark.parametrize("drained", [False, True])
def test_while_no_endpoint_works_nobody_comes_in(*, drained: bool) -> None:
    """A restarted engine would get all of them at once. Turns of residents wait in the queue, and keep their places."""
    bench = Bench(1000)
    running = [bench.turn(f"r{number}", 180) for number in range(4)]
    bench.whole("idle", 150)
    for number in range(30):
        bench.turn(f"w{number}", 200)
    assert (len(bench.at), bench.gate.waiting) == (4, 30)
    leaves = bench.scheduler.endpoint_drained if drained else bench.scheduler.endpoint_down
    bench.do(leaves("e0", now=bench.now))
    for turn in running:
        del bench.at[turn]
        bench.do(bench.scheduler.failed(bench.leases.pop(turn), Failure.RESET, now=bench.now))
    later = [bench.turn("idle", 160), bench.turn("new", 160)]
    bench.later(20.0)
    assert (bench.at, bench.gate.waiting) == ({}, 31)
    told = [bench.scheduler.explain(turn, now=bench.now) for turn in later]
    cause = Cause.PAUSED if drained else Cause.NO_BACKEND
    assert [one and (one.waits_for, one.session) for one in told] == [(cause, None)] * 2
    returns = bench.scheduler.endpoint_resumed if drained else bench.scheduler.endpoint_up
    bench.do(returns("e0", now=bench.now))
    bench.later(20.0)
    assert set(bench.at) >= {*running, later[0]}
    assert sum(bench.tokens[turn] for turn in bench.at) <= bench.held("t") <= 1000


def test_a_session_comes_in_at_the_last_endpoint_though_that_is_ejected() -> None:
    bench = Bench(1000)
    turn = bench.turn("a", 400)
    waiting = [bench.turn(f"w{number}", 600) for number in range(9)]
    endpoint = bench.scheduler.inspect().pool["e0"]
    while not endpoint.health.ejected(bench.now):
        del bench.at[turn]
        bench.do(bench.scheduler.failed(bench.leases.pop(turn), Failure.BROKEN, now=bench.now))
        turn = bench.turn("a", 400)
    assert not any(one in bench.at for one in waiting)
    bench.give_up(turn)
    bench.end(bench.turn("a", 400, last=True))
    assert [one in bench.at for one in waiting] == [True] + [False] * 8


def test_a_held_request_waits_for_an_endpoint_no_longer_than_others_do() -> None:
    bench = Bench(1000, empty_wait_s_max=10.0)
    bench.turn("a", 900)
    bench.do(bench.scheduler.endpoint_down("e0", now=bench.now))
    waiting = bench.turn("b", 900)
    bench.later(9.0)
    assert waiting not in bench.refused
    bench.later(1.0)
    assert bench.refused[waiting] == Reason.NO_ENDPOINT


def test_an_endpoint_that_leaves_takes_its_residents_along() -> None:
    bench = Bench(1000, 1000)
    bench.whole("a", 800)
    bench.whole("b", 800)
    bench.scheduler.endpoint_removed("e0", now=bench.now)
    assert bench.held("t") == 800
    assert sorted(str(bench.home(name)) for name in ("a", "b")) == ["None", "e1"]


# --- settings and facts -----------------------------------------------------------------------------------------


def test_switched_off_it_lets_all_go_and_books_nothing() -> None:
    bench = Bench(1000)
    running, waiting = bench.turn("a", 900), bench.turn("b", 900)
    assert waiting not in bench.at
    off = msgspec.structs.replace(bench.settings, sessions=SessionSettings(memory=False))
    bench.do(bench.scheduler.reconfigured(off, now=bench.now))
    assert waiting in bench.at
    assert bench.turn("c", 900) in bench.at
    assert (bench.held("t"), bench.scheduler.snapshot(now=bench.now).sessions) == (0, None)
    bench.do(bench.scheduler.reconfigured(bench.settings, now=bench.now))
    bench.end(running)
    assert bench.turn("d", 900) in bench.at, "what ran before is not known"
    assert bench.turn("e", 900) not in bench.at


def test_the_memory_that_is_set_counts_before_what_the_page_says() -> None:
    bench = Bench(1000)
    page = Observation(asked_s=0.5, running=0, waiting=0, kv_capacity_tokens=5000.0)
    bench.later(1.0)
    bench.do(bench.scheduler.observed("e0", page, now=bench.now))
    waits = bench.turn("a", 900), bench.turn("b", 900)
    assert [turn in bench.at for turn in waits] == [True, False]
    bench.do(bench.scheduler.endpoint_changed("e0", kv_tokens=0, now=bench.now))
    assert waits[1] in bench.at, "the page alone counts now"


def test_an_endpoint_that_tells_no_memory_holds_nobody_up() -> None:
    bench = Bench(1000, None)
    turns = [bench.turn(name, 900) for name in "abcd"]
    assert all(turn in bench.at for turn in turns)
    rows = bench.scheduler.snapshot(now=bench.now).sessions
    assert rows is not None
    assert [row.kv_tokens for row in rows.memory] == [1000, None]


@pytest.mark.parametrize("kv_tokens", [1000, None])
def test_an_engine_that_keeps_no_prefixes_holds_nobody_up(kv_tokens: int | None) -> None:
    bench = Bench(kv_tokens)
    page = Observation(asked_s=0.5, running=0, waiting=0, kv_capacity_tokens=1000.0)
    bench.later(1.0)
    bench.do(bench.scheduler.observed("e0", page, now=bench.now))
    waits = bench.turn("a", 900), bench.turn("b", 900)
    assert [turn in bench.at for turn in waits] == [True, False]
    bench.do(bench.scheduler.endpoint_changed("e0", keeps_prefixes=False, now=bench.now))
    assert waits[1] in bench.at
    bench.do(bench.scheduler.observed("e0", msgspec.structs.replace(page, asked_s=1.5), now=bench.now))
    assert bench.turn("c", 900) in bench.at, "though its page tells its memory"
    rows = bench.scheduler.snapshot(now=bench.now).sessions
    assert rows is not None
    assert [(row.kv_tokens, row.keeps_prefixes) for row in rows.memory] == [(None, False)]
    bench.do(bench.scheduler.endpoint_changed("e0", keeps_prefixes=True, now=bench.now))
    assert [bench.turn(name, 900) in bench.at for name in "de"] == [True, False]


def test_a_held_request_says_why_it_waits_and_how_long() -> None:
    bench = Bench(1000)
    bench.turn("a", 900)
    waiting = bench.turn("b", 900)
    bench.later(10.0)
    told = bench.scheduler.explain(waiting, now=bench.now)
    assert told is not None
    assert (told.waits_for, told.waited_s, told.estimated_wait_s) == (Cause.SESSION_MEMORY, 10.0, 290.0)
    assert {(w.cause, w.seconds) for w in told.waits} == {(Cause.SESSION_MEMORY, 10.0)}
    shown = bench.scheduler.snapshot(now=bench.now)
    assert (shown.waiting, shown.bands[0].waiting, shown.queues[0].requests, shown.models[0].waiting) == (1, 1, 1, 1)
    assert bench.scheduler.loads(now=bench.now)["m"].waiting == 1, "held demand is demand"
    assert bench.scheduler.places([waiting], now=bench.now)[waiting].position == 1


def test_a_paused_session_waits_for_its_operator_and_not_for_memory() -> None:
    bench = Bench(1000)
    bench.turn("a", 900)
    waiting = bench.turn("b", 900)
    bench.later(10.0)
    bench.scheduler.session_paused("t", "b", now=bench.now)
    told = bench.scheduler.explain(waiting, now=bench.now)
    assert told is not None
    assert told.waits_for is Cause.SESSION_PAUSED
    assert bench.scheduler.snapshot(now=bench.now).models[0].cause is Cause.SESSION_PAUSED
    other = bench.turn("c", 900)
    assert bench.scheduler.snapshot(now=bench.now).models[0].cause is Cause.SESSION_MEMORY, "it comes in before"
    bench.later(5.0)
    bench.scheduler.session_resumed("t", "b", now=bench.now)
    for request, seconds in ((waiting, {Cause.SESSION_MEMORY: 10.0, Cause.SESSION_PAUSED: 5.0}), (other, {})):
        told = bench.scheduler.explain(request, now=bench.now)
        assert told is not None
        assert told.waits_for is Cause.SESSION_MEMORY
        assert {w.cause: w.seconds for w in told.waits} == (seconds or {Cause.SESSION_MEMORY: 5.0})


def wanted(bench: Bench) -> int:
    rule = EndpointsWanted(ScalingTargets())
    rule.note(bench.scheduler.loads(now=bench.now)["m"], bench.now)
    return rule.wanted


def test_a_held_session_wants_an_endpoint_though_slots_are_free() -> None:
    bench = Bench(1000)
    first = bench.turn("a", 900)
    assert wanted(bench) == 1, "it fits alone"
    bench.turn("b", 900)
    assert wanted(bench) == 2
    for name in "cde":
        bench.turn(name, 450)
    assert wanted(bench) == 4, "3,150 tokens of 920 each"
    bench.add("e1", 1000)
    assert wanted(bench) == 4
    assert first in bench.at


def test_a_held_session_that_is_small_wants_an_endpoint_if_the_gate_leaves_no_more_room() -> None:
    bench = Bench(1000)
    bench.turn("a", 900)
    bench.turn("b", 50)
    assert bench.scheduler.snapshot(now=bench.now).waiting == 1
    assert wanted(bench) == 2, "950 of the 920 that residents may fill"


def test_idle_sessions_want_an_endpoint_as_long_as_they_are_in_use() -> None:
    bench = Bench(1000, 1000, 1000)
    bench.whole("a", 900)
    bench.whole("b", 900)
    bench.turn("c", 900)
    assert wanted(bench) == 3, "with fewer, the next turns of two would have no room"
    bench.later(31.0)
    assert wanted(bench) == 1


def test_a_session_larger_than_any_endpoint_wants_one() -> None:
    bench = Bench(1000)
    bench.turn("a", 5000)
    assert wanted(bench) == 1


def test_memory_says_nothing_where_an_endpoint_tells_none() -> None:
    bench = Bench(1000, None)
    for name in "abcd":
        bench.turn(name, 900)
    assert wanted(bench) == 1


def test_held_requests_count_in_the_bounds_of_the_queue() -> None:
    bench = Bench(1000, bounds=QueueBounds(requests_max=2))
    bench.turn("a", 900)
    turns = [bench.turn(name, 900) for name in "bcd"]
    assert bench.refused == {turns[2]: "queue_full"}


def test_a_session_that_an_operator_paused_waits_until_it_is_resumed() -> None:
    bench = Bench(1000)
    bench.whole("a", 500)
    bench.do(bench.scheduler.session_paused("t", "a", now=bench.now))
    assert bench.held("t") == 0
    waiting = bench.turn("a", 500)
    bench.later(1000.0)
    assert waiting not in bench.at
    bench.do(bench.scheduler.session_resumed("t", "a", now=bench.now))
    assert waiting in bench.at


def test_a_pause_holds_for_a_session_that_is_not_known_yet_and_for_no_other_tenants() -> None:
    bench = Bench(1000)
    bench.do(bench.scheduler.session_paused("t", "a", now=bench.now))
    bench.do(bench.scheduler.session_paused("other", "b", now=bench.now))
    assert set(bench.scheduler.stopped_sessions()) == {("t", "a"), ("other", "b")}
    waiting, beside = bench.turn("a", 500), bench.turn("b", 500)
    bench.later(1000.0)
    assert (waiting in bench.at, beside in bench.at) == (False, True)
    bench.do(bench.scheduler.session_resumed("t", "a", now=bench.now))
    assert waiting in bench.at
    assert bench.scheduler.stopped_sessions() == [("other", "b")]


def test_pauses_of_sessions_are_bounded() -> None:
    bench = Bench(1000)
    for at in range(1_001):
        bench.do(bench.scheduler.session_paused("t", f"s{at}", now=bench.now))
    stopped = bench.scheduler.stopped_sessions()
    assert (len(stopped), stopped[0], stopped[-1]) == (1_000, ("t", "s1"), ("t", "s1000"))


def test_only_a_session_that_gave_its_place_to_others_is_paused() -> None:
    bench = Bench(1_000_000, lease_s=30.0)

    def state(session: str) -> str:
        found = bench.scheduler.session("t", session, now=bench.now)
        assert found is not None
        return found.state

    small = bench.turn("small", 1_000)
    assert state("small") == "passing", "it holds no memory while its turn is under way"
    bench.end(small)
    bench.later(1000.0)
    assert state("small") == "passing", "and was never refused any"
    over = bench.turn("over", 300_000, last=True)
    assert state("over") == "resident"
    bench.end(over)
    assert state("over") == "passing", "it has ended"
    bench.whole("a", 800_000)
    assert state("a") == "idle"
    waits = bench.turn("b", 800_000)
    assert state("b") == "waiting"
    bench.later(30.0)
    assert (state("a"), state("b"), waits in bench.at) == ("paused", "resident", True)
    bench.end(bench.turn("a", 1_000))
    assert state("a") == "passing", "its next turn began a small conversation"
    bench.end(waits)
    bench.do(bench.scheduler.endpoint_down("e0", now=bench.now))
    bench.do(bench.scheduler.endpoint_up("e0", now=bench.now))
    assert state("b") == "passing", "nobody paused it"
    bench.do(bench.scheduler.session_paused("t", "small", now=bench.now))
    assert state("small") == "paused"
    bench.do(bench.scheduler.session_resumed("t", "small", now=bench.now))
    assert state("small") == "passing"
    paused = bench.scheduler.sessions(now=bench.now, most=10, like={"state": "paused"})
    assert [row.session for row in paused] == []


def test_an_operator_lets_a_session_in_next() -> None:
    bench = Bench(1000, lease_s=1e9)
    bench.whole("a", 900)
    first, second = bench.turn("b", 900), bench.turn("c", 900)
    bench.do(bench.scheduler.session_preferred("t", "c", now=bench.now))
    assert (first in bench.at, second in bench.at) == (False, True)


def test_a_restarted_endpoint_has_no_residents() -> None:
    bench = Bench(1000)
    bench.whole("a", 900)
    waiting = bench.turn("b", 900)
    bench.do(bench.scheduler.endpoint_down("e0", now=bench.now))
    bench.do(bench.scheduler.endpoint_up("e0", now=bench.now))
    assert waiting in bench.at
    assert bench.turn("a", 900) not in bench.at


def test_an_engine_that_cleared_its_cache_has_no_residents() -> None:
    bench = Bench(1000)
    bench.whole("a", 900)
    waiting = bench.turn("b", 900)
    bench.do(bench.scheduler.kv_cleared("e0", now=bench.now))
    assert waiting in bench.at


def test_a_session_whose_blocks_the_engine_removed_is_not_resident() -> None:
    bench = Bench(1000)
    bench.end(bench.turn("a", 400, keys=(1, 2, 3, 4)))
    bench.end(bench.turn("b", 500, keys=(5, 6, 7, 8)))
    waiting = bench.turn("c", 400)
    bench.gave_up(4, 8)
    assert (bench.home("a"), bench.home("b")) == ("e0", "e0"), "more than half is there"
    bench.gave_up(3, endpoint="elsewhere")
    bench.gave_up(3, 3)
    assert (bench.home("a"), bench.home("b"), bench.home("c")) == (None, "e0", "e0")
    assert waiting in bench.at, "it has the room at once"
    assert bench.turn("a", 450, keys=(1, 2, 3, 4)) not in bench.at
    assert bench.gate.ledger.memories["e0"].usable == 1000, "uncorrected"


def test_blocks_that_two_sessions_share_are_both_sessions_and_later_ones_of_a_session_count() -> None:
    bench = Bench(2000)
    for name in ("a", "b"):
        bench.end(bench.turn(name, 400, keys=(1, 2, 3, ord(name))))
    bench.end(bench.turn("a", 800, keys=(1, 2, 3, ord("a"), 11, 12, 13, 14)))
    bench.gave_up(3)
    assert (bench.home("a"), bench.home("b")) == ("e0", None), "a's mark has moved on"
    bench.gave_up(11)
    assert bench.home("a") is None
    for name in ("a", "b"):
        bench.end(bench.turn(name, 400, keys=(1, 2, 3, ord(name))))
    bench.gave_up(3)
    assert (bench.home("a"), bench.home("b")) == (None, None)
    assert bench.gate.ledger.memories["e0"].marks == {}


def test_blocks_that_are_removed_during_a_turn_do_not_end_it() -> None:
    bench = Bench(1000)
    bench.end(bench.turn("a", 400, keys=(1, 2, 3, 4)))
    running = bench.turn("a", 500, keys=(1, 2, 3, 4, 5))
    agent = bench.turn("a", 100, part="x", keys=(21, 22))
    bench.gave_up(3, 22)
    assert bench.home("a") == "e0"
    bench.end(running)
    bench.gave_up(3)
    assert bench.home("a") == "e0", "a sub-agent runs"
    bench.end(agent)
    bench.gave_up(3)
    assert bench.home("a") is None


def test_an_engine_that_gives_up_a_session_in_use_has_less_memory_than_it_says() -> None:
    bench = Bench(1000, lease_s=30.0)
    corrected = msgspec.structs.replace(bench.settings.sessions, corrected=True)
    bench.do(bench.scheduler.reconfigured(msgspec.structs.replace(bench.settings, sessions=corrected), now=bench.now))
    memory = bench.gate.ledger.memories["e0"]
    for name, tokens, keys in (("a", 300, (1, 2)), ("b", 600, (3, 4))):
        bench.end(bench.turn(name, tokens, keys=keys))
        bench.later(20.0)
    bench.gave_up(2)
    assert (memory.usable, memory.booked) == (1000, 600), "a was idle for 40 s"
    bench.gave_up(4)
    assert (memory.usable, memory.booked) == (588, 0), "600 did not fit"


def test_time_at_the_gate_does_not_count_as_a_standing_queue() -> None:
    bench = Bench(1000, lease_s=1e9, wait_s=100.0)
    shed = BandSettings("standard", shed_target_s=2.0, shed_interval_s=1.0)
    settings = msgspec.structs.replace(bench.settings, bands=(shed,))
    bench.do(bench.scheduler.reconfigured(settings, now=bench.now))
    bench.whole("a", 900)
    waiting = bench.turn("b", 900)
    bench.do(bench.scheduler.endpoint_changed("e0", slots=1, now=bench.now))
    chat = bench.turn("", 1)
    bench.later(97.0)
    assert bench.gate.waiting == 0, "it came in, and waits for the slot"
    assert waiting not in bench.refused
    bench.end(chat)
    assert waiting in bench.at


def test_answers_that_find_less_than_was_left_show_that_less_fits() -> None:
    bench = Bench(1000)
    bench.scheduler.reconfigured(
        msgspec.structs.replace(
            bench.settings, sessions=msgspec.structs.replace(bench.settings.sessions, corrected=True)
        ),
        now=bench.now,
    )
    memory = bench.gate.ledger.memories["e0"]
    for name in ("a", "b"):
        bench.whole(name, 400)
    bench.end(bench.turn("b", 400), cached=10)
    assert memory.usable == 784, "800 booked tokens did not fit"
    assert bench.home("a") is None
    for _ in range(5):
        bench.end(bench.turn("b", 750), cached=400)
    assert memory.usable == 794, "750 did"
    for _ in range(100):
        bench.end(bench.turn("b", 490), cached=0)
    assert memory.usable == 500, "never less than half"


@pytest.mark.parametrize(
    ("wait_s", "share"), [(60.0, 0.40), (120.0, 0.20), (300.0, 0.08)], ids=["60 s", "120 s", "300 s"]
)
def test_the_price_of_a_bound_is_told_beforehand(wait_s: float, share: float) -> None:
    assert price(7, 85_000, 25_000, wait_s) == pytest.approx(share, abs=0.005)


def test_a_session_whose_request_comes_in_another_band_keeps_its_place() -> None:
    bench = Bench(1000, bands=("high", "low"))
    running = bench.turn("a", 900)
    low = bench.turn("b", 900, band=1)
    bench.later(5.0)
    high = bench.turn("b", 900, part="agent")
    row = bench.scheduler.session("t", "b", now=bench.now)
    assert row is not None
    assert (row.band, row.waits_s) == (0, 5.0)
    bench.give_up(low)
    bench.give_up(high)
    bench.end(running)
    assert bench.idle()


def test_single_prompts_without_a_name_neither_wait_nor_count() -> None:
    bench = Bench(1000)
    for number in range(20):
        bench.whole(f"~{number}", 900)
    assert (bench.held("t"), bench.gate.pauses) == (0, 0)
    bench.whole("~0", 900)
    assert bench.held("t") == 900, "its second turn: it is a session"
    assert bench.turn("~new", 900) in bench.at
    assert bench.turn("named", 900) not in bench.at


def test_a_context_that_is_computed_in_a_moment_keeps_its_place_for_a_moment() -> None:
    bench = Bench(1000, lease_s=30.0, worth=10.0)
    rate = bench.scheduler.inspect().pool["e0"].ledger.speed.rate
    bench.whole("a", 800)
    waiting = bench.turn("b", 800)
    bench.later(10.0 * 800 / rate - 0.01)
    assert waiting not in bench.at
    bench.later(1.1)
    assert waiting in bench.at


@pytest.mark.parametrize("idle", [900, 100], ids=["of others", "free"])
def test_a_paused_tenants_sessions_take_no_memory_until_it_is_resumed(idle: int) -> None:
    bench = Bench(1000)
    bench.whole("a", idle)
    bench.do(bench.scheduler.tenants_limited({"u": Limits(running=0)}, now=bench.now))
    waiting = bench.turn("b", 400, tenant="u")
    bench.later(400.0)
    assert (bench.held("t"), bench.held("u")) == (idle, 0)
    told = bench.scheduler.explain(waiting, now=bench.now)
    assert told is not None
    assert told.waits_for is Cause.TENANT_PAUSED
    bench.do(bench.scheduler.tenants_limited({}, now=bench.now))
    bench.later(1.0)
    assert waiting in bench.at


def test_a_held_turn_of_a_paused_tenant_waits_for_the_operator() -> None:
    bench = Bench(1000)
    bench.turn("a", 700)
    waiting = bench.turn("b", 400)

    def why() -> tuple[Cause | None, bool]:
        told = bench.scheduler.explain(waiting, now=bench.now)
        assert told is not None
        return told.waits_for, told.estimated_wait_s is not None

    assert why() == (Cause.SESSION_MEMORY, True)
    for limits, cause in (
        (Limits(running=0), (Cause.TENANT_PAUSED, False)),
        (Limits(running=1), (Cause.SESSION_MEMORY, True)),  # room would not help, but neither would a place
        (Limits(), (Cause.SESSION_MEMORY, True)),
    ):
        bench.later(1.0)
        bench.do(bench.scheduler.tenants_limited({"t": limits}, now=bench.now))
        assert why() == cause


# --- a change of leader -------------------------------------------------------------------------------------


def followed(bench: Bench, *, sent: dict[str, str], new: tuple[str, ...] = ()) -> Bench:
    """Another scheduler after the one of `bench`, whose requests are as their edges know them; `sent`: idle sessions'
    prompts, and where. `new`: turns that came while there was no scheduler."""
    other = Bench(*[x.capacity for x in bench.gate.ledger.memories.values()], routing="predicted_ttft")
    other.now, other.tokens, other.count = bench.now, dict(bench.tokens), bench.count
    other.scheduler.halted(afresh=True, now=bench.now)
    other.scheduler.remembered([], [(at, (hash_of(name),) * 2) for name, at in sent.items()], now=bench.now)
    entries = bench.scheduler.inspect().entries.values()
    for entry in sorted(entries, key=lambda each: each.state is State.WAITING):
        underway = None
        if entry.state is not State.WAITING:
            underway = Underway(-bench.leases[entry.id], bench.at[entry.id], 1.0, begun=True)
            other.at[entry.id], other.leases[entry.id] = underway.endpoint, underway.lease
        waited_s = bench.now - entry.waits_since_s if underway is None else entry.waited_s
        age: dict[str, Any] = {"came_s": waited_s, "waited_s": waited_s, "decided": entry.id not in new}
        other.scheduler.adopted(entry.request, **age, underway=underway, now=bench.now)
    other.do(other.scheduler.begun(afresh=True, now=bench.now))
    return other


def test_after_a_change_of_leader_sessions_keep_their_places() -> None:
    bench = Bench(1000, lease_s=1e9, routing="predicted_ttft")
    running = bench.turn("a", 500)
    bench.whole("b", 400)
    bench.later(1.0)
    waiting = bench.turn("c", 300)
    bench.later(5.0)
    other = followed(bench, sent={"b": "e0"})
    assert other.home("a") == "e0"
    assert waiting not in other.at, "b may come back"
    assert other.turn("b", 400) in other.at
    assert other.held("t") == 900
    other.later(20.0)
    assert waiting not in other.at
    row = other.scheduler.session("t", "c", now=other.now)
    assert row is not None
    assert row.waits_s == pytest.approx(25.0)
    other.end(running)


def test_paused_sessions_that_waited_are_not_all_resident_because_the_leader_changed() -> None:
    bench = Bench(1000, lease_s=1e9, routing="predicted_ttft")
    running = [bench.turn(name, 300) for name in "abc"]
    bench.later(1.0)
    waiting = [bench.turn(name, 300, tenant="u") for name in "defg"]
    bench.later(5.0)
    other = followed(bench, sent=dict.fromkeys("defg", "e0"))  # each had a turn there before it was paused
    assert [turn for turn in waiting if turn in other.at] == []
    assert other.held("t") == 900
    for turn in running:
        other.end(turn)
    other.later(11.0)
    assert [turn for turn in waiting if turn in other.at] == waiting[:1], "who waited longest, by the ordinary rules"
    assert other.gate.ledger.memories["e0"].booked <= 1000


def test_a_residents_turn_that_came_while_nobody_led_finds_its_session_resident() -> None:
    bench = Bench(1000, lease_s=1e9, routing="predicted_ttft")
    bench.turn("a", 700)
    bench.later(1.0)
    paused, back = bench.turn("b", 400), bench.turn("c", 400)  # what the edges hold: `c` was idle, and came in the gap
    bench.later(1.0)
    other = followed(bench, sent={"b": "e0", "c": "e0"}, new=(back,))
    assert paused not in other.at
    assert back in other.at


def test_a_turn_that_waited_for_a_slot_goes_on_after_a_change_of_leader_where_its_session_fits() -> None:
    bench = Bench(1000, lease_s=1e9, routing="predicted_ttft")
    running = bench.turn("a", 300)
    bench.later(1.0)
    bench.do(bench.scheduler.tenants_limited({"t": Limits(running=1)}, now=bench.now))
    waiting = bench.turn("b", 300)
    bench.later(2.0)
    assert waiting not in bench.at
    other = followed(bench, sent={"b": "e0"})
    assert running in other.at
    assert waiting in other.at
    assert other.held("t") == 600


def test_a_session_that_does_not_come_back_loses_its_place_to_who_waits() -> None:
    bench = Bench(1000, lease_s=1e9, routing="predicted_ttft")
    bench.turn("a", 500)
    bench.whole("b", 400)
    waiting = bench.turn("c", 300)
    other = followed(bench, sent={"b": "e0"})
    other.later(11.0)
    assert waiting in other.at


# --- a loop -----------------------------------------------------------------------------------------------------


def hash_of(session: str) -> int:
    """The key of a session's prompt."""
    return crc32(session.encode())


def loop(
    *,
    sessions: dict[str, int],
    weights: dict[str, float],
    seconds: int,
    memory: int = 1000,
    seed: int = 1,
    **settings: Any,
) -> tuple[dict[str, float], list[float], SessionGate]:
    """Sessions of 60 to 120 tokens before two endpoints: a turn takes up to 20 s, then 1 to 10 s of thinking. Returns
    the tokens held by tenant, added up over the seconds, all waits, and the gate. The books are checked all along."""
    random = Random(seed)
    bench = Bench(memory, memory, **settings)
    sizes = {(tenant, n): random.randint(60, 120) for tenant, count in sessions.items() for n in range(count)}
    due = {who: random.uniform(0.0, 10.0) for who in sizes}  # when the next thing happens to a session
    turns: dict[tuple[str, int], tuple[str, float]] = {}
    held = dict.fromkeys(sessions, 0.0)
    waits: list[float] = []
    for second in range(seconds):
        bench.later(1.0)
        for who, (turn, since) in list(turns.items()):
            if turn in bench.at and who not in due:
                waits.append(bench.now - since)
                due[who] = bench.now + random.uniform(2.0, 20.0)
        for who in [who for who, at in due.items() if at <= bench.now]:
            if who in turns:
                bench.end(turns.pop(who)[0])
                due[who] = bench.now + random.uniform(1.0, 10.0)
            else:
                del due[who]
                turn = bench.turn(f"s{who[1]}", sizes[who], tenant=who[0], weight=weights[who[0]])
                turns[who] = (turn, bench.now)
        if second > 100:
            for tenant in sessions:
                held[tenant] += bench.held(tenant)
        memories = bench.gate.ledger.memories.values()
        assert all(memory.booked <= 1.1 * memory.capacity for memory in memories)
    return held, waits, bench.gate
