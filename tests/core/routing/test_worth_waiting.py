"""Waiting for what is cached elsewhere as long as it is worth it (docs/decisions/0043), settings at their defaults."""

from __future__ import annotations

import math
from time import process_time
from typing import Any

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.queueing.entry import Entry
from penstock.core.routing.last_sent import LastSent
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.located import Sought
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, RoutingSettings
from tests.core.drive import request, scheduler, sent, the_lease

FOUND = 0.5
KEYS_MAX = 128 * 1024
COLD = 2.0

KEYS = 100  # of a long prompt: 12,800 tokens, 3.2 s at the speed that is assumed until another one is learned
LONG_S = 3.2
TALK = tuple(range(KEYS))


def settings(**more: Any) -> SchedulerSettings:
    """What is outstanding does not close an endpoint: slots do."""
    admission = AdmissionSettings(prefill_tokens_max=10**9, reserved_share=0.0)
    return SchedulerSettings(routing="predicted_ttft", admission=admission, wait_s_max=1e6, **more)


def prompt(name: str, *keys: int, tenant: str = "t", **more: Any) -> Any:
    """A request whose prompt is made of these chunks, of 128 tokens each."""
    given: dict[str, Any] = {"output_tokens_max": 40, "streamed": True, "flow": (tenant,)}
    return request(name, tenant=tenant, body_bytes=512 * len(keys), prefix=keys, **given | more)


def talk_at(made: CheckedScheduler) -> tuple[str, int]:
    """A conversation's first turn, whose prompt is computed and whose answer takes long: where, and its lease."""
    actions = made.arrived(prompt("first", *TALK), now=0.0)
    ((_, home),) = sent(actions)
    made.first_token(the_lease(actions), now=LONG_S)
    return home, the_lease(actions)


def test_it_waits_while_that_costs_less_than_to_compute_it_anew_and_no_longer() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, _ = talk_at(made)
    assert sent(made.arrived(prompt("second", *TALK, 1), now=4.0)) == [], "the other endpoint is free, and cold"
    assert sent(made.arrived(prompt("passer", 2, 3), now=4.0)) == [("passer", "b" if home == "a" else "a")]
    until_s = made.inspect().entries["second"].affinity.until_s
    assert 4.0 + LONG_S < until_s <= 4.0 + 2 * COLD * LONG_S, "the time saved, for itself and who else it keeps waiting"


def test_it_goes_where_its_prompt_is_cached_when_a_slot_is_free_there() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, lease = talk_at(made)
    assert sent(made.arrived(prompt("second", *TALK, 1), now=4.0)) == []
    assert sent(made.finished(lease, Usage(12_800, 40, 0), now=5.0)) == [("second", home)]


def test_when_its_wait_is_over_scores_are_compared_again() -> None:
    made = scheduler(settings(), a=1, b=1)
    talk_at(made)
    made.arrived(prompt("second", *TALK, 1), now=4.0)
    entry = made.inspect().entries["second"]
    until_s = entry.affinity.until_s
    assert sent(made.expire(now=until_s)) == [], "the endpoint with its prefix still has the least"
    assert entry.affinity.until_s > until_s


def test_a_slot_that_does_not_free_is_not_waited_for_without_end() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, _ = talk_at(made)
    made.arrived(prompt("second", *TALK, 1), now=4.0)
    entry = made.inspect().entries["second"]
    first_s = entry.affinity.until_s - 4.0
    now, gone = 4.0, list[tuple[str, str]]()
    while not gone and now < 1_000.0:
        due_s = made.next_deadline()
        assert due_s is not None
        now = max(due_s, now + 0.01)
        gone = sent(made.expire(now=now))
    assert gone == [("second", "b" if home == "a" else "a")], "to the endpoint that idles beside the warm one"
    assert now <= 4.0 + 2.0 * first_s + 0.01


def test_what_was_reckoned_holds_for_a_moment_and_then_it_is_looked_at_again() -> None:
    made = scheduler(settings(), a=1, b=1)
    talk_at(made)
    made.arrived(prompt("second", *TALK, 1), now=4.0)
    entry = made.inspect().entries["second"]
    passer = made.arrived(prompt("passer", 2, 3), now=4.01)
    assert sent(passer), "it passes the one that is held, beside an endpoint that computes nothing"
    assert entry.affinity.weighed_s == 4.0
    due_s = made.next_deadline()
    assert due_s is not None
    assert due_s <= 4.05, "whoever was passed unasked is asked soon, though nothing happens"
    made.finished(the_lease(passer), Usage(256, 40, 0), now=4.2)
    assert entry.affinity.weighed_s == 4.2


def test_a_short_prompt_is_not_worth_a_wait() -> None:
    made = scheduler(settings(), a=1, b=1)
    ((_, home),) = sent(made.arrived(prompt("first", 1, 2), now=0.0))
    cold = "b" if home == "a" else "a"
    assert sent(made.arrived(prompt("second", 1, 2, 3), now=1.0)) == [("second", cold)]


def priced(weight_s: float, **slots: int) -> CheckedScheduler:
    """Endpoints that cost 0, 1, 2 and so on, in this order."""
    made = scheduler(settings(router=RoutingSettings(price_weight_s=weight_s)), **slots)
    for price, name in enumerate(slots):
        made.endpoint_changed(name, price=float(price), now=0.0)
    return made


@pytest.mark.parametrize(("weight_s", "waited_s"), [(5.0, 4.2), (1.0, 0.2), (0.5, 0.0), (math.inf, 0.0), (0.0, 0.0)])
def test_a_full_endpoint_is_waited_for_as_long_as_its_price_is_worth_and_no_longer(
    weight_s: float, waited_s: float
) -> None:
    """The time waited and the 0.8 s that an answer of 40 tokens is expected to take are compared with the price."""
    made = priced(weight_s, own=1, paid=4)
    assert sent(made.arrived(prompt("first", 1, pinned="own"), now=0.0)) == [("first", "own")]
    gone, now = sent(made.arrived(prompt("second", 2), now=1.0)), 1.0
    while not gone:
        due_s = made.next_deadline()
        assert due_s is not None
        now = max(due_s, now + 0.001)
        gone = sent(made.expire(now=now))
    assert gone == [("second", "paid")]
    assert now - 1.0 == pytest.approx(waited_s, abs=0.1)


def test_a_slot_that_frees_in_time_spares_the_price() -> None:
    made = priced(5.0, own=1, paid=4)
    first = made.arrived(prompt("first", 1, pinned="own"), now=0.0)
    assert sent(made.arrived(prompt("second", 2), now=1.0)) == []
    assert sent(made.finished(the_lease(first), Usage(128, 40, 0), now=3.0)) == [("second", "own")]


def test_what_would_wait_longer_than_the_price_is_worth_goes_at_once() -> None:
    made = priced(5.0, own=1, paid=20)
    made.arrived(prompt("first", 1, pinned="own"), now=0.0)
    long = [made.arrived(prompt(f"w{at}", at, output_tokens_max=4_000), now=1.0) for at in range(20)]
    went = [place for actions in long for _, place in sent(actions)]
    assert set(went) == {"paid"}
    assert 10 <= len(went) < 20, "the first ones wait, the others see them before them"


def test_a_dearer_endpoint_is_not_waited_for_and_the_cheapest_of_three_is_first() -> None:
    made = priced(5.0, own=1, paid=1, dear=1)
    made.arrived(prompt("first", 1, pinned="paid"), now=0.0)
    assert sent(made.arrived(prompt("second", 2), now=1.0)) == [("second", "own")]
    assert sent(made.arrived(prompt("third", 3), now=1.0)) == [], "for either of the cheaper two"
    assert {e.name for e in made.inspect().entries["third"].affinity.preferred} <= {"own", "paid"}


def test_the_wait_that_is_worth_it_grows_with_the_backlog() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, _ = talk_at(made)
    other = made.arrived(prompt("other", 900, pinned="b" if home == "a" else "a"), now=3.5)
    held_s: list[float] = []
    for waiting in (0, 40):
        for at in range(waiting):
            made.arrived(prompt(f"w{at}", 1_000 + at), now=4.0)
        made.arrived(prompt(f"second-{waiting}", *TALK, 1, priority=-1), now=4.0)
        freed = made.finished(the_lease(other), now=5.0 + waiting)
        entry = made.inspect().entries[f"second-{waiting}"]
        held_s.append(entry.affinity.until_s - entry.affinity.since_s)
        made.cancelled(f"second-{waiting}", now=5.0 + waiting)
        assert len(sent(freed)) == (waiting > 0), "a free slot is not kept for it where others wait"
        if not waiting:
            other = made.arrived(prompt("another", 901, pinned="b" if home == "a" else "a"), now=6.0)
    assert held_s[1] > 5 * held_s[0]


@pytest.mark.interpreted
def test_the_wait_that_is_worth_it_grows_with_the_share_of_endpoints_that_compute() -> None:
    """A second of computing delays those, too, who come before they idle again."""
    pressures = [pressure_of((0.0, 0), busy=busy) for busy in (0, 1, 2)]
    assert pressures[0] == 0.0, "all idle"
    assert pressures[1] == pytest.approx((1 + 1 / 2) * 3 / 2 - 1), "one of two computes one prompt"
    assert pressures[2] == pytest.approx((1 + 2 / 2) * 3 / 1 - 1), "nobody idles"


@pytest.mark.interpreted
def test_what_others_keep_busy_is_not_this_request_s_affair() -> None:
    assert pressure_of((1.0, 1), busy=2) > 2 * pressure_of((1.0, 100), busy=2)
    assert pressure_of((1.0, 10**9), busy=2) == pytest.approx(3 / 2), "who waits and is computed now, as before"


def pressure_of(backlog: tuple[float, int], *, busy: int) -> float:
    """What the policy is told while so many of two endpoints compute a prompt each."""
    made = scheduler(settings(), a=8, b=8)
    home, _ = talk_at(made)
    for name in ("a", "b")[:busy]:
        made.arrived(prompt(f"at-{name}", 900, pinned=name), now=4.0)
    cold = made.inspect().pool["b" if home == "a" else "a"]
    entry = Entry(prompt("second", *TALK, 1), 99)
    entry.prompt_tokens, entry.output_tokens = 12_928, 40
    told: list[float] = []

    def seconds(endpoints: Any, _context: Any, _ahead: Any, pressure: float) -> list[float]:
        told.append(pressure)
        return [0.0 for _ in endpoints]

    made.inspect().router._policy.seconds = seconds  # type: ignore[method-assign, assignment]
    made.inspect().router.better(entry, [cold], {}, backlog, 4.0)
    return told[0]


@pytest.mark.interpreted
def test_scores_are_compared_only_if_an_endpoint_with_the_prompt_is_closed() -> None:
    made = scheduler(settings(), a=8, b=8)
    home, _ = talk_at(made)
    pool, router = made.inspect().pool, made.inspect().router
    entry = Entry(prompt("second", *TALK, 1), 99)
    entry.prompt_tokens, entry.output_tokens = 12_928, 40
    asked: list[list[str]] = []

    def seconds(endpoints: Any, _context: Any, _ahead: Any, _pressure: float) -> list[float]:
        asked.append([endpoint.name for endpoint in endpoints])
        return [0.0 if endpoint.name == home else 1.0 for endpoint in endpoints]

    router._policy.seconds = seconds  # type: ignore[method-assign, assignment]
    cold = pool["b" if home == "a" else "a"]
    assert router.better(entry, [pool[home], cold], {}, (0.0, 0), 4.0) == ((), 0.0)
    assert not asked
    assert router.better(entry, [cold], {}, (0.0, 0), 4.0)[0] == [pool[home]]
    assert asked == [[cold.name], [home]]


def test_a_flow_with_little_to_wait_for_does_not_wait_for_the_sake_of_others() -> None:
    """The light tenant's own backlog is what counts, not the flood's."""
    made = scheduler(settings(), a=1, b=1)
    home, _ = talk_at(made)
    other = made.arrived(prompt("other", 900, pinned="b" if home == "a" else "a"), now=3.5)
    for at in range(100):
        made.arrived(prompt(f"w{at}", 1_000 + at, tenant="flood"), now=4.0)
    made.arrived(prompt("light", *TALK, 1, tenant="light"), now=4.0)
    assert made.inspect().queues.backlog(made.inspect().entries["light"])[0] <= 3
    assert made.inspect().queues.backlog(made.inspect().entries["w50"]) == (101, 101)
    made.finished(the_lease(other), now=5.0)
    assert made.inspect().entries["light"].affinity.until_s <= 5.0 + 3 * COLD * LONG_S


def test_nobody_gets_further_ahead_of_one_that_is_held_than_fairness_allows() -> None:
    """It is let go, and computes its prompt anew."""
    made = scheduler(settings(), a=1, b=1)
    home, _ = talk_at(made)
    cold = "b" if home == "a" else "a"
    lease = the_lease(made.arrived(prompt("other", 900, pinned=cold), now=3.5))
    for at in range(3):
        made.arrived(prompt(f"held{at}", *TALK, at, tenant="held"), now=4.0)
    for at in range(200):
        made.arrived(prompt(f"w{at}", 1_000 + at, 5_000 + at, tenant="w"), now=4.0)
    order: list[str] = []
    now = 4.0
    while "held0" not in order:
        now += 0.001
        ((name, _),) = sent(made.finished(lease, now=now))
        order.append(name)
        lease = next(serial for serial, at in made.books.leases.items() if at.endpoint == cold)
    assert now < made.inspect().entries["held0"].affinity.since_s + 1.0, "long before its wait was over"
    assert order == [*(f"w{at}" for at in range(32)), "held0"]


def test_a_home_that_died_is_not_waited_for() -> None:
    made = scheduler(settings(), a=1, b=1)
    home, _ = talk_at(made)
    made.arrived(prompt("second", *TALK, 1), now=4.0)
    assert sent(made.endpoint_down(home, now=4.5)) == [("second", "b" if home == "a" else "a")]


def test_what_history_has_forgotten_is_still_looked_for_where_it_was() -> None:
    made = scheduler(settings(), a=8, b=8)
    actions = made.arrived(prompt("first", *TALK), now=0.0)
    ((_, home),) = sent(actions)
    made.finished(the_lease(actions), Usage(12_800, 40, 0, cached_told=True), now=4.0)
    made.inspect().router._history.clear(made.inspect().pool[home].index)
    for at in range(3):
        made.arrived(prompt(f"load{at}", 1_000 + at, pinned=home), now=5.0)
    sought = made.inspect().router._last_sent.last(TALK)
    assert sought is not None
    actions = made.arrived(prompt("second", *TALK, 1), now=6.0)
    assert sent(actions) == [("second", home)], "though it is the one with more to do"
    made.finished(the_lease(actions), Usage(12_928, 40, 0, cached_told=True), now=9.0)
    assert made.inspect().router._last_sent.found[sought.age] < FOUND, "it was not there"


# --- whereabouts ------------------------------------------------------------------------------------------------------


def place(known: LastSent, *keys: int) -> tuple[int, int]:
    found = known.last(keys)
    assert found is not None
    return found.endpoint, found.amount


def test_the_last_endpoint_of_the_deepest_known_part_counts() -> None:
    known = LastSent()
    known.sent(range(10), 1)
    known.sent(range(5), 2)
    assert place(known, *range(12)) == (1, 10)
    assert place(known, *range(5), 77, 78) == (2, 5)
    assert known.last((0, 77, 78)) is None, "less than two keys tell nothing"
    assert known.last(()) is None


@pytest.mark.parametrize("cause", ["cleared", "failed"])
def test_what_can_be_nowhere_any_more_is_not_looked_for(cause: str) -> None:
    known = LastSent()
    known.sent(range(10), 1)
    known.cleared(1) if cause == "cleared" else known.failed(range(10), 1)
    assert known.last(range(10)) is None
    known.sent(range(10), 2)
    assert place(known, *range(10)) == (2, 10)


@pytest.mark.timing
def test_whereabouts_that_are_full_cost_what_they_cost_while_they_filled() -> None:
    """To find the oldest key took up to a millisecond per prompt, because a dict passes all that were deleted."""
    known, took = LastSent(), []
    for round_ in range(4):
        began_s = process_time()
        for at in range(KEYS_MAX // 8):
            known.sent([(round_, at, depth) for depth in range(9)], 0)
        took.append(process_time() - began_s)
    assert max(took[1:]) < 5 * took[0]  # it was fifty times and more


def test_whereabouts_are_bounded() -> None:
    known = LastSent()
    for at in range(KEYS_MAX):
        known.sent((at, -at - 1, at, -at - 1), 0)
    assert KEYS_MAX - 1024 <= len(known) <= KEYS_MAX
    assert place(known, KEYS_MAX - 1, -KEYS_MAX) == (0, 2)
    assert known.last((0, -1)) is None, "the oldest ones go"


def test_what_is_found_is_learned_by_how_much_was_sent_there_since() -> None:
    """An engine drops what rested longest."""
    known = LastSent()
    known.sent(range(10), 0)
    soon = known.last(range(10))
    for at in range(1000):
        known.sent(range(100 * at + 100, 100 * at + 150), 0)
    late = known.last(range(10))
    assert soon is not None
    assert late is not None
    assert soon.age < late.age
    for _ in range(200):
        known.learn(Sought(0, 1000, soon.age), 900)
        known.learn(Sought(0, 1000, late.age), 250)
    assert known.expected(Sought(0, 2000, soon.age)) == pytest.approx(1800, abs=40)
    assert known.expected(Sought(0, 2000, late.age)) == pytest.approx(500, abs=40)
    assert known.expected(Sought(0, 2000, late.age + 1)) == 2000 * FOUND, "nothing is known of that yet"


def test_32_requests_wait_for_one_endpoint_and_no_more() -> None:
    """However much longer it takes to compute the prompt elsewhere: here, minutes."""
    made = scheduler(settings(), a=1, b=1)
    long = tuple(range(10_000))
    actions = made.arrived(prompt("first", *long), now=0.0)
    ((_, home),) = sent(actions)
    made.first_token(the_lease(actions), now=320.0)
    for at in range(40):
        made.arrived(prompt(f"later-{at}", *long, at), now=321.0)
    held = [entry for entry in made.inspect().entries.values() if [e.name for e in entry.affinity.preferred] == [home]]
    assert len(held) == 32
