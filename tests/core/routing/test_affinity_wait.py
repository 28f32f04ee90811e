"""Waiting for the right endpoint, and not too long (docs/design.md#s1, points 3 and 4)."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from msgspec import structs

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.routing.hot_prefixes import HotPrefixes
from penstock.core.routing.session_table import SessionTable
from penstock.core.scheduler import Scheduler, SchedulerSettings
from penstock.core.values.catalogue import Cause, Failure
from penstock.core.values.located import Source
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, EndpointSpec, RoutingSettings
from tests.core.drive import request, scheduler, sent, the_lease

PREFIXES_MAX = 4 * 1024
SESSIONS_MAX = 100_000

WAIT_S = 2.0


def settings(policy: str = "session", *, wait_s: float = WAIT_S, **router: Any) -> SchedulerSettings:
    return SchedulerSettings(routing=policy, router=RoutingSettings(affinity_wait_s=wait_s, **router))


def at_home(made: CheckedScheduler, session: str, *, now: float = 0.0) -> tuple[str, int]:
    """Send a first request of a session; where it lives now, and the lease it still holds."""
    actions = made.arrived(request(f"{session}-first", session=session), now=now)
    ((_, home),) = sent(actions)
    return home, the_lease(actions)


def test_a_session_waits_for_its_home_while_others_pass_it() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, lease = at_home(made, "s")
    other = "b" if home == "a" else "a"
    assert sent(made.arrived(request("second", session="s"), now=1.0)) == []
    assert sent(made.arrived(request("passer"), now=1.5)) == [("passer", other)]
    assert sent(made.finished(lease, now=2.0)) == [("second", home)]


def test_after_affinity_wait_it_goes_elsewhere_and_its_session_moves_with_it() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, lease = at_home(made, "s")
    assert sent(made.arrived(request("second", session="s"), now=1.0)) == []
    assert made.next_deadline() == 1.0 + WAIT_S
    ((_, moved),) = sent(made.expire(now=1.0 + WAIT_S))
    assert moved != home
    made.finished(lease, now=4.0)
    assert sent(made.arrived(request("third", session="s"), now=4.5)) == [], "it waits for its new home, not the old"
    assert sent(made.expire(now=4.5 + WAIT_S)) == [("third", home)]


def test_without_affinity_wait_nobody_is_held() -> None:
    made = scheduler(settings(wait_s=0.0), a=1, b=1)
    home, _ = at_home(made, "s")
    assert sent(made.arrived(request("second", session="s"), now=1.0)) == [("second", "b" if home == "a" else "a")]


def test_however_many_are_held_an_open_endpoint_is_spared_no_longer_than_affinity_wait() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, lease = at_home(made, "s")
    made.arrived(request("second", session="s"), now=1.0)
    made.arrived(request("third", session="s"), now=2.5)
    assert [name for name, _ in sent(made.finished(lease, now=2.9))] == ["second"]
    assert made.next_deadline() == 1.0 + WAIT_S, "the other one has been idle since then"
    ((name, at),) = sent(made.expire(now=1.0 + WAIT_S))
    assert (name, at) == ("third", "b" if home == "a" else "a")


def test_a_held_request_is_not_overtaken_in_the_sense_of_the_window() -> None:
    """Nothing is kept for it, and any number of held requests hide nobody."""
    homes = ((session, scheduler(settings(), a=1, b=64)) for session in "stuvwxyz")
    made, session = next((made, session) for session, made in homes if at_home(made, session)[0] == "a")
    for at in range(100):
        assert sent(made.arrived(request(f"held{at}", session=session), now=1.0)) == []
    for at in range(60):
        assert sent(made.arrived(request(f"passer{at}"), now=1.5)) == [(f"passer{at}", "b")]


def test_who_is_held_when_the_policy_changes_to_one_without_homes_waits_like_all_others() -> None:
    """It is held no more: what keeps it is named for what it is, and who overtakes it then is counted."""
    small = AdmissionSettings(prefill_tokens_max=1000)
    known = structs.replace(settings(), admission=small)
    homes = ((session, scheduler(known, a=1, b=64)) for session in "stuvwxyz")
    made, session = next((made, session) for session, made in homes if at_home(made, session)[0] == "a")
    assert sent(made.arrived(request("second", session=session, prompt_tokens=500), now=1.0)) == []
    assert sent(made.arrived(request("passer", prompt_tokens=900, streamed=True), now=1.0)) == [("passer", "b")]
    assert made.snapshot(now=1.0).models[0].cause is Cause.AFFINITY
    assert made.inspect().entries["second"].backfilled == 0
    assert made.reconfigured(structs.replace(settings("round_robin"), admission=small), now=1.5) == []
    assert made.snapshot(now=1.5).models[0].cause is Cause.PREFILL_FULL
    assert sent(made.arrived(request("overtakes", prompt_tokens=10), now=1.5)) == [("overtakes", "b")]
    assert made.inspect().entries["second"].backfilled == 1


def test_a_policy_that_comes_back_holds_queued_requests_again() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, lease = at_home(made, "s")
    other = made.arrived(request("other", pinned="b" if home == "a" else "a"), now=0.0)
    made.arrived(request("second", session="s"), now=0.5)
    freed = made.finished(the_lease(other), now=1.0)
    assert sent(freed) == [], "it is held"
    made.arrived(request("passer"), now=1.0)
    for policy in ("round_robin", "session"):
        assert made.reconfigured(settings(policy), now=1.5) == []
    (passer,) = (serial for serial, at in made.books.leases.items() if at.request_id == "passer")
    assert sent(made.finished(passer, now=2.0)) == []
    assert sent(made.expire(now=1.0 + WAIT_S)) == [], "since then it waited for any"
    assert sent(made.finished(lease, now=3.5)) == [("second", home)]


def test_a_home_that_died_is_not_waited_for() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, _ = at_home(made, "s")
    made.arrived(request("second", session="s"), now=1.0)
    ((name, at),) = sent(made.endpoint_down(home, now=1.5))
    assert (name, at) == ("second", "b" if home == "a" else "a")


def test_a_strict_session_goes_nowhere_but_home_while_that_lives() -> None:
    made = scheduler(settings(wait_s=0.0, strict_sessions=True), a=1, b=1)
    home, lease = at_home(made, "s")
    assert sent(made.arrived(request("second", session="s"), now=1.0)) == []
    assert sent(made.arrived(request("passer"), now=1.0)) != []
    assert sent(made.expire(now=50.0)) == []
    assert sent(made.finished(lease, now=51.0)) == [("second", home)]
    assert sent(made.arrived(request("third", session="s"), now=52.0)) == []
    passer = next(serial for serial, at in made.books.leases.items() if at.endpoint != home)
    made.finished(passer, now=52.5)
    assert [name for name, _ in sent(made.endpoint_removed(home, now=53.0))] == ["third"]


def test_what_refers_to_an_earlier_answer_waits_for_the_endpoint_that_made_it_whatever_the_policy() -> None:
    made = scheduler(settings("round_robin", wait_s=0.0), a=1, b=1)
    lease = the_lease(made.arrived(request("first", home="b"), now=0.0))
    assert made.books.leases[lease].endpoint == "b"
    assert sent(made.arrived(request("second", home="b"), now=1.0)) == []
    assert sent(made.finished(lease, now=5.0)) == [("second", "b")]
    assert sent(made.arrived(request("third", home="gone"), now=6.0)) == [("third", "a")]


def test_a_request_waits_for_its_look_up_and_not_longer() -> None:
    made = scheduler(settings("kv", wait_s=0.0), a=4, b=4)
    assert sent(made.arrived(request("told", locate_s=0.1), now=0.0)) == []
    assert sent(made.cached("told", {"b": 900}, now=0.05)) == [("told", "b")]
    assert sent(made.arrived(request("late", locate_s=0.1), now=1.0)) == []
    assert sent(made.arrived(request("passer"), now=1.0)) != []
    assert sent(made.expire(now=1.05)) == []
    assert [name for name, _ in sent(made.expire(now=1.1))] == ["late"]
    assert made.cached("late", {"b": 900}, now=1.2) == [], "it has gone"
    assert made.located("nobody", (1,), 16, now=1.2) == []


def test_token_blocks_are_matched_against_what_engines_say_they_hold() -> None:
    made = scheduler(settings("kv", wait_s=0.0), a=4, b=4)
    made.kv_stored("a", (1, 2, 3), now=0.0)
    made.kv_stored("b", (1, 2), now=0.0)
    made.kv_stored("unknown", (1, 2), now=0.0)

    def goes(name: str) -> str:
        made.arrived(request(name, prompt_tokens=64, locate_s=1.0), now=1.0)
        actions = made.located(name, (1, 2, 3, 4), 16, now=1.0)
        ((_, endpoint),) = sent(actions)
        held = made.books.leases[the_lease(actions)]
        entry = made.inspect().leases[held.lease]
        assert entry.leased().source is Source.KV_EVENTS
        made.finished(held.lease, Usage(64, 5, entry.cached_tokens, cached_told=True), now=1.0)
        return f"{endpoint} {entry.cached_tokens}"

    assert goes("x") == "a 48"
    made.kv_removed("a", (2,), now=1.0)
    assert goes("y") == "b 32"
    made.kv_cleared("b", now=1.0)
    assert goes("z") == "a 16"
    told = {seen.source: seen.hit_tokens for seen in made.snapshot(now=1.0).sources}
    assert told == {"history": 0, "kv_events": 48 + 32 + 16, "lmcache": 0}


def test_an_endpoint_whose_events_are_lost_is_judged_by_history_and_one_that_cleared_its_cache_holds_nothing() -> None:
    for lost, expected in ((False, 0), (True, 384)):
        made = scheduler(settings("kv", wait_s=0.0), a=8)
        first = the_lease(made.arrived(prompt("first", 1, 2, 3), now=0.0))
        made.finished(first, Usage(384, 5), now=0.5)
        made.kv_stored("a", (11, 12, 13), now=1.0)
        (made.kv_lost if lost else made.kv_cleared)("a", now=2.0)
        made.arrived(hold := prompt("second", 1, 2, 3, 4, locate_s=1.0), now=3.0)
        lease = the_lease(made.located(hold.id, (11, 12, 13, 14), 128, now=3.0))
        assert made.inspect().leases[lease].cached_tokens == expected


def test_history_is_believed_over_events_for_what_is_being_computed_and_for_nothing_else() -> None:
    """An engine computes one prompt; another one, sent long ago, was dropped since, as its events say."""
    made = scheduler(settings("kv", wait_s=0.0), a=8)
    long_ago = the_lease(made.arrived(prompt("old", 1, 2, 3), now=0.0))
    made.finished(long_ago, Usage(384, 5), now=0.5)
    made.kv_stored("a", (99,), now=1.0)
    made.arrived(prompt("computing", 5, 6, 7, 8, streamed=True), now=2.0)

    def believed(name: str, *keys: int) -> int:
        made.arrived(prompt(name, *keys, locate_s=1.0), now=3.0)
        lease = the_lease(made.located(name, [1_000 + key for key in keys], 128, now=3.0))
        tokens = made.inspect().leases[lease].cached_tokens
        made.cancelled(name, now=3.0)
        return tokens

    assert believed("gone", 1, 2, 3, 4) == 0
    assert believed("sibling", 5, 6, 7, 9) == 384


# --- what is cached ---------------------------------------------------------------------------------------------------


def prompt(name: str, *keys: int, **more: Any) -> Any:
    """A request whose prompt is made of these chunks, of 128 tokens each."""
    return request(name, body_bytes=512 * len(keys), prefix=keys, **more)


def test_a_cached_prompt_costs_its_flow_and_the_prefill_budget_only_what_is_computed() -> None:
    made = scheduler(settings("kv", wait_s=0.0), a=8)
    first = the_lease(made.arrived(prompt("first", *range(100)), now=0.0))
    entry = made.inspect().leases[first]
    assert (entry.charged, entry.leased().prompt_tokens) == (12_800 + 2 * 50, 12_800)
    second = the_lease(made.arrived(prompt("second", *range(100), 200), now=0.0))
    entry = made.inspect().leases[second]
    assert (entry.charged, entry.leased().prompt_tokens) == (128 + 2 * 50, 128), "siblings count as one prefill"
    assert made.inspect().pool["a"].ledger.prefill.outstanding_tokens == 12_800 + 128
    assert sent(made.arrived(prompt("other", *range(300, 400)), now=0.0)) == [], "that one does not fit the budget"
    assert sent(made.arrived(prompt("third", *range(100), 201), now=0.0)) == [("third", "a")], "this one does"


def test_what_failed_was_not_cached_and_what_restarted_holds_nothing() -> None:
    made = scheduler(settings("kv", wait_s=0.0), a=8)
    lease = the_lease(made.arrived(prompt("first", 1, 2, 3), now=0.0))
    made.failed(lease, Failure.BUSY, now=0.1)
    assert made.inspect().router._history.match((1, 2, 3)) == {}
    lease = the_lease(made.expire(now=1.0))
    assert made.inspect().router._history.match((1, 2, 3)) == {0: 3}
    made.finished(lease, now=2.0)
    made.endpoint_removed("a", now=3.0)
    assert len(made.inspect().router._history) == 0


@pytest.mark.parametrize("same", [True, False])
def test_an_endpoint_that_was_away_holds_nothing_until_its_gauges_tell_that_it_is_the_same(*, same: bool) -> None:
    made = scheduler(settings("kv", wait_s=0.0), a=8, b=1)

    def goes(name: str, now: float) -> str:
        actions = made.arrived(prompt(name, 1, 2, 3), now=now)
        made.finished(the_lease(actions), now=now)
        return sent(actions)[0][1]

    made.observed("a", Observation(0.0, 0, 0, progress=100.0), now=0.0)
    assert [goes("first", 0.5), goes("second", 0.5)] == ["a", "a"]
    made.endpoint_down("a", now=1.0)
    assert goes("third", 1.5) == "b"
    made.endpoint_up("a", now=2.0)
    assert goes("fourth", 2.5) == "b", "b holds it; of a that is not known"
    made.observed("a", Observation(3.0, 0, 0, progress=200.0 if same else 5.0), now=3.0)
    assert set(made.inspect().router._history.match((1, 2, 3))) == ({0, 1} if same else {1})
    made.endpoint_down("b", now=4.0)
    made.endpoint_up("b", now=5.0)
    assert set(made.inspect().router._history.match((1, 2, 3))) == ({0} if same else set()), "b has no gauges to tell"


def test_an_engine_that_holds_less_than_believed_is_believed_to_hold_less() -> None:
    made = scheduler(settings("kv", wait_s=0.0), a=8)
    for at in range(200):
        lease = the_lease(made.arrived(prompt(str(at), *range(at * 10, at * 10 + 10)), now=float(at)))
        made.finished(lease, Usage(1280, 5, 0, cached_told=True), now=at + 0.5)
    held = made.inspect().router._history.held(0)
    assert held == 2_000
    for at in range(10):  # the second one twice: it was gone, and is gone again after seven others
        which = at % 8 * 10
        lease = the_lease(made.arrived(prompt(f"again{at}", *range(which, which + 10)), now=300.0 + at))
        made.finished(lease, Usage(1280, 5, 0, cached_told=True), now=300.5 + at)
        assert made.inspect().router._history.limit_of(0) == (1_800 if at < 9 else 72), "nine tenths of what came since"
    wrong = next(seen.wrong for seen in made.snapshot(now=310.0).sources if seen.source == "history")
    assert wrong == 10


def test_a_prompt_that_all_share_is_spread_over_both_endpoints() -> None:
    """One after the other and several at a time: whoever had it first does not get it all."""
    for at_a_time in (1, 8):
        made = scheduler(structs.replace(settings("predicted_ttft", wait_s=0.0)), a=64, b=64)
        got: Counter[str] = Counter()
        for at in range(200 // at_a_time):
            now = at * 0.2
            leases: list[int] = []
            for n in range(at_a_time):
                actions = made.arrived(prompt(f"{at}-{n}", *range(20), 1_000 + at * 10 + n), now=now)
                ((_, endpoint),) = sent(actions)
                got[endpoint] += 1
                leases.append(the_lease(actions))
            for lease in leases:
                made.first_token(lease, now=now + 0.1)
                made.finished(lease, Usage(2_688, 20, 0), now=now + 0.15)
        assert max(got.values()) / (sum(got.values()) / 2) <= 1.3, (at_a_time, got)


@pytest.mark.parametrize("policy", ["predicted_ttft", "prefix", "kv"])
def test_conversations_go_where_they_were(policy: str) -> None:
    made = scheduler(settings(policy, wait_s=0.0), a=64, b=64, c=64, d=64)
    where: dict[int, str] = {}
    moved = total = 0
    for turn in range(1, 9):
        for who in range(20):
            keys = (*range(4), *range(10_000 * (who + 1), 10_000 * (who + 1) + 8 * turn))
            now = 20.0 * turn + who
            actions = made.arrived(prompt(f"{who}-{turn}", *keys), now=now)
            ((_, endpoint),) = sent(actions)
            if who in where:
                total += 1
                moved += where[who] != endpoint
            where[who] = endpoint
            made.first_token(the_lease(actions), now=now + 0.3)
            made.finished(the_lease(actions), Usage(128 * len(keys), 20, 0), now=now + 0.9)
    assert moved <= 0.01 * total
    if policy == "predicted_ttft":
        assert max(Counter(where.values()).values()) <= 10, "and they live everywhere"


def test_sessions_stay_and_when_an_endpoint_leaves_only_its_own_move() -> None:
    names = [f"e{at}" for at in range(8)]
    made = scheduler(settings(wait_s=0.0), **dict.fromkeys(names, 32))
    sessions = [f"session-{at}" for at in range(400)]

    def round_trip(now: float) -> dict[str, str]:
        lives: dict[str, str] = {}
        for at, session in enumerate(sessions):
            actions = made.arrived(request(f"{session}-{now}", session=session), now=now + at * 0.01)
            lives[session] = sent(actions)[0][1]
            made.finished(the_lease(actions), now=now + at * 0.01)
        return lives

    first = round_trip(0.0)
    second = round_trip(10.0)
    assert sum(first[x] == second[x] for x in sessions) >= 0.99 * len(sessions)
    made.endpoint_down("e3", now=19.0)
    third = round_trip(20.0)
    moved = [x for x in sessions if third[x] != second[x]]
    assert set(moved) == {x for x in sessions if second[x] == "e3"}
    assert max(Counter(third[x] for x in moved).values()) <= 0.5 * len(moved), "they spread over the others"
    made.endpoint_up("e3", now=29.0)
    assert round_trip(30.0) == third, "no stampede back"
    fresh = Counter(sent(made.arrived(request(f"new{at}", session=f"new{at}"), now=40.0))[0][1] for at in range(80))
    assert 1 <= fresh["e3"] <= 2 * 80 / 8


def test_when_an_endpoint_leaves_at_most_1_2_of_its_part_of_the_sessions_move() -> None:
    """Ten thousand sessions on eight endpoints, some of them at work all the time: whoever leaves, few move."""
    names = [f"gpu-{at}:8000" for at in range(8)]
    made = Scheduler(structs.replace(settings(wait_s=0.0), wait_s_max=1e6), random=Random(1))
    for name in names:
        made.endpoint_added(EndpointSpec(name=name, slots=32, models=frozenset({"m"})), now=0.0)
    lives: dict[str, str] = {}
    running: deque[int] = deque()
    for at in range(10_000):
        actions = made.arrived(request(f"r{at}", session=f"session-{at}"), now=at * 0.01)
        lives[f"session-{at}"] = sent(actions)[0][1]
        running.append(the_lease(actions))
        if len(running) > 3:
            made.finished(running.popleft(), now=at * 0.01)
    assert max(Counter(lives.values()).values()) <= 1.2 * len(lives) / 8
    gone = max(names, key=list(lives.values()).count)
    made.endpoint_down(gone, now=200.0)
    left = [session for session, home in lives.items() if home == gone]
    assert len(left) <= 1.2 * len(lives) / 8
    for at, session in enumerate([*left, *list(lives)[::20]]):
        actions = made.arrived(request(f"again{at}", session=session), now=200.0 + at * 0.01)
        assert (sent(actions)[0][1] != lives[session]) == (lives[session] == gone)
        made.finished(the_lease(actions), now=200.0 + at * 0.01)


def test_a_cold_endpoint_gets_its_part_and_no_more() -> None:
    made = scheduler(settings("predicted_ttft", wait_s=0.0), a=64, b=64, c=64)
    serial = 0

    def traffic(now: float, until: float) -> Counter[str]:
        nonlocal serial
        got: Counter[str] = Counter()
        while now < until:
            serial += 1
            keys = (*range(8), *range(1_000 * serial, 1_000 * serial + 4))
            actions = made.arrived(prompt(str(serial), *keys), now=now)
            got[sent(actions)[0][1]] += 1
            made.first_token(the_lease(actions), now=now + 0.05)
            made.finished(the_lease(actions), Usage(1_536, 20, 0), now=now + 0.06)
            now += 0.1
        return got

    made.endpoint_down("c", now=0.0)
    traffic(1.0, 30.0)
    made.endpoint_up("c", now=31.0)
    assert 20 <= traffic(32.0, 62.0)["c"] <= 150


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_sessions_and_heat_are_bounded() -> None:
    homes = SessionTable()
    for at in range(SESSIONS_MAX + 10):
        homes.moved("m", str(at), "a")
    assert SESSIONS_MAX // 2 <= len(homes) <= SESSIONS_MAX
    assert homes.get("m", "0") is None
    assert homes.get("m", str(SESSIONS_MAX // 2 + 10)) == "a"
    heat = HotPrefixes()
    for at in range(PREFIXES_MAX + 10):
        heat.used(at, 0.0)
    assert PREFIXES_MAX // 2 <= len(heat._uses) <= PREFIXES_MAX
    assert heat.uses(PREFIXES_MAX, 0.0) == 1.0
    assert heat.uses(PREFIXES_MAX, 30.0) == pytest.approx(0.3679, abs=1e-3)
