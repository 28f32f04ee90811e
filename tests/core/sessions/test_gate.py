"""Sessions before a bounded KV memory: who waits, for how long, and who makes room."""

from __future__ import annotations

from random import Random

import pytest

from penstock.core.sessions.gate import SessionGate


class Bench:
    """A gate before one or more endpoints, and a clock. A turn is named by its session and a number."""

    def __init__(self, *kv_tokens: int, **settings: float) -> None:
        self.gate = SessionGate(**settings)
        for number, tokens in enumerate(kv_tokens):
            self.gate.ledger.add_endpoint(f"e{number}", tokens)
        self.now = 0.0
        self.at: dict[str, str] = {}  # turns under way -> endpoint
        self.tokens: dict[str, int] = {}
        self.count = 0

    def turn(self, session: str, tokens: int, *, tenant: str = "t", part: str = "", weight: float = 1.0) -> str:
        self.count += 1
        turn = f"{session}#{self.count}"
        self.tokens[turn] = tokens
        endpoint = self.gate.arrived(turn, session, tenant, tokens, part=part, weight=weight, now=self.now)
        if endpoint is not None:
            self.at[turn] = endpoint
        self.look()
        return turn

    def end(self, turn: str, answer: int = 0) -> None:
        self.at.pop(turn, None)
        self.gate.ended(turn, self.tokens[turn] + answer, now=self.now)
        self.look()

    def whole(self, session: str, tokens: int, *, tenant: str = "t", weight: float = 1.0) -> None:
        """A turn that begins and ends at this moment."""
        turn = self.turn(session, tokens, tenant=tenant, weight=weight)
        assert turn in self.at, f"{turn} waits"
        self.end(turn)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    def look(self) -> None:
        for turn, endpoint in self.gate.released(self.now):
            self.at[turn] = endpoint

    def held(self, tenant: str) -> int:
        return self.gate.ledger.by_tenant.get(tenant, 0)


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


def test_a_new_session_goes_where_most_room_is() -> None:
    bench = Bench(1000, 1000)
    first, second = bench.turn("a", 400), bench.turn("b", 300)
    assert {bench.at[first], bench.at[second]} == {"e0", "e1"}
    third = bench.turn("c", 300)
    assert bench.at[third] == bench.at[second]


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


# --- tenants ----------------------------------------------------------------------------------------------------


def test_who_is_under_his_share_gets_room_at_once_from_who_is_over_his() -> None:
    bench = Bench(1000, lease_s=1e9)
    for name in ("a", "b", "c"):
        bench.whole(name, 300, tenant="big")
    bench.later(1.0)
    assert bench.turn("z", 200, tenant="small") in bench.at
    assert bench.turn("a", 300, tenant="big") not in bench.at, "the longest idle one"


def test_who_is_over_his_share_waits() -> None:
    bench = Bench(1000, lease_s=1e9)
    bench.whole("z", 300, tenant="small")
    for name in ("a", "b"):
        bench.whole(name, 300, tenant="big")
    assert bench.turn("c", 300, tenant="big") not in bench.at
    bench.later(200.0)
    assert bench.turn("z", 300, tenant="small") in bench.at


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


def test_two_tenants_cannot_name_each_others_session() -> None:
    bench = Bench(1000)
    bench.whole("same", 400, tenant="one")
    bench.whole("same", 100, tenant="two")
    assert (bench.held("one"), bench.held("two")) == (400, 100)


@pytest.mark.parametrize(("weights", "expected"), [((1.0, 1.0), 1.0), ((1.0, 2.0), 2.0)])
def test_memory_held_over_time_is_by_weight(weights: tuple[float, float], expected: float) -> None:
    by_name = dict(zip(("one", "two"), weights, strict=True))
    held, _, _ = loop(sessions={"one": 45, "two": 45}, weights=by_name, memory=2000, seconds=600)
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


def test_no_wait_is_longer_than_w_and_the_turn_under_way() -> None:
    _, waits, gate = loop(sessions={"one": 40}, weights={"one": 1.0}, seconds=1200, wait_s=120.0)
    assert gate.forced > 0
    assert max(waits) > 100.0, "the memory is short"
    assert max(waits) <= 120.0 + 20.0 + 5.0  # a turn takes up to 20 s


def test_a_session_comes_back_to_where_it_was() -> None:
    bench = Bench(1000, 1000, lease_s=30.0, worth_s=1000.0)
    bench.whole("a", 800)
    origin = bench.gate.ledger.session("a", "t").origin
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


# --- bad input --------------------------------------------------------------------------------------------------


def test_a_client_that_gives_up_while_it_waits_leaves_nothing() -> None:
    bench = Bench(1000)
    running = bench.turn("a", 900)
    waiting = bench.turn("b", 900)
    bench.end(waiting)
    bench.end(running)
    assert (bench.gate.waiting, bench.held("t")) == (0, 900)


def test_a_footprint_larger_than_the_engine_is_served_alone() -> None:
    bench = Bench(1000, lease_s=10.0)
    bench.whole("a", 600)
    huge = bench.turn("huge", 5000)
    assert huge not in bench.at
    bench.later(10.0)
    assert huge in bench.at


def test_an_endpoint_that_leaves_takes_its_residents_along() -> None:
    bench = Bench(1000, 1000)
    bench.whole("a", 800)
    bench.whole("b", 800)
    bench.gate.ledger.remove_endpoint("e0")
    assert bench.held("t") == 800
    left = bench.gate.ledger.session("a", "t"), bench.gate.ledger.session("b", "t")
    assert sorted(str(session.home) for session in left) == ["None", "e1"]


# --- a loop -----------------------------------------------------------------------------------------------------


def loop(
    *,
    sessions: dict[str, int],
    weights: dict[str, float],
    seconds: int,
    memory: int = 1000,
    seed: int = 1,
    **settings: float,
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
        if second > 200:
            for tenant in sessions:
                held[tenant] += bench.held(tenant)
        ledger = bench.gate.ledger
        assert sum(ledger.by_tenant.values()) == sum(ledger.held.values())
        assert all(ledger.held[name] <= 1.1 * tokens for name, tokens in ledger.capacity.items())
    return held, waits, bench.gate
