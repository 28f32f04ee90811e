"""Long prompts are computed by turns: one endpoint is soon done with its own, for the light requests that come."""

from __future__ import annotations

import math

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.dispatch.prefill_stagger import PrefillStagger
from penstock.core.endpoints.endpoint import Endpoint
from penstock.core.endpoints.pool import Pool
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.request import Request
from penstock.core.values.settings import AdmissionSettings, EndpointSpec, HealthSettings
from tests.core.drive import lease, request, scheduler, sent, waiting_entry

STEP_S = 0.005

SECOND = 4000  # the tokens that take one, while nothing was learned of an endpoint's speed


class Case:
    """Two endpoints, and prompts of two seconds as those of heavy flows."""

    def __init__(self, *, endpoints: int = 2, seen_s: tuple[float, ...] = (2.0,)) -> None:
        self.pool = Pool(HealthSettings(), stale_after_s=5.0)
        specs = [EndpointSpec(f"e{at}", slots=64, models=frozenset({"m"})) for at in range(endpoints)]
        self.endpoints: list[Endpoint] = [self.pool.add(spec) for spec in specs]
        self.looks: list[tuple[str, float]] = []
        self.stagger = PrefillStagger(self.pool, lambda endpoint, when: self.looks.append((endpoint.name, when)))
        for seconds in seen_s:
            self.stagger.sent(seconds)

    def compute(self, at: int, seconds: float, *, now: float = 0.0, streamed: bool = True) -> None:
        """An endpoint is sent a prompt that takes so long."""
        ledger = self.endpoints[at].ledger
        ledger.add(lease(len(ledger.leases), at=now, prompt=round(seconds * SECOND), streamed=streamed))

    def allowed(self, seconds: float, now: float) -> list[str]:
        self.stagger.begin()
        entry = waiting_entry("heavy", prompt_tokens=round(seconds * SECOND))
        return [endpoint.name for endpoint in self.stagger.allowed(entry, self.endpoints, now)]


def test_a_long_prompt_waits_until_the_other_endpoint_is_soon_done() -> None:
    case = Case()
    assert case.stagger.patience_s == pytest.approx(1.0)
    case.compute(1, 2.0)
    assert case.allowed(2.0, 0.0) == ["e1"], "at the other one it would leave the first free"
    assert dict(case.looks) == pytest.approx({"e0": 1.0})
    assert case.stagger.made_wait
    assert case.allowed(2.0, 0.99) == ["e1"]
    assert case.allowed(2.0, 1.0) == ["e0", "e1"]
    assert not case.stagger.made_wait


def test_a_prompt_that_takes_no_longer_than_that_waits_for_nobody() -> None:
    case = Case()
    case.compute(1, 2.0)
    assert case.allowed(1.0, 0.0) == ["e0", "e1"]


def test_of_several_endpoints_one_has_to_be_soon_done() -> None:
    case = Case(endpoints=4)
    for at in (0, 1, 2):
        case.compute(at, 2.0)
    assert case.allowed(2.0, 0.0) == ["e0", "e1", "e2"], "the last free one is for light requests"
    case.compute(3, 0.5)
    assert case.allowed(2.0, 0.0) == ["e0", "e1", "e2"]


def test_where_huge_prompts_are_most_of_the_work_two_of_them_may_be_computed_at_once() -> None:
    """Held until another one is done within half of a mean prompt, only one endpoint would ever work on them."""
    case = Case(seen_s=(0.1,) * 9 + (5.0,))
    assert case.stagger.patience_s > 2.0
    case.compute(1, 5.0)
    assert case.allowed(5.0, 3.0) == ["e0", "e1"]


def test_nobody_waits_for_an_endpoint_that_is_alone_or_not_well_or_takes_far_longer_than_was_predicted() -> None:
    assert Case(endpoints=1).allowed(2.0, 0.0) == ["e0"]
    case = Case()
    case.compute(1, 2.0)
    case.compute(1, 2.0)
    assert case.allowed(2.0, 4.0) == ["e1"], "the second prompt is there, although the first should be done"
    assert case.allowed(2.0, 4.2) == ["e0", "e1"]
    case = Case()
    case.compute(1, 2.0)
    case.endpoints[1].drained = True
    assert case.allowed(2.0, 0.0) == ["e0", "e1"]


def test_what_shows_no_first_token_gets_further_at_an_endpoint_that_nobody_else_asks() -> None:
    """As one whose slots are all taken: admission does not look at it before a lease ends."""
    case = Case()
    case.compute(1, 2.0, streamed=False)
    case.compute(1, 2.0, streamed=False)
    assert case.allowed(2.0, 2.9) == ["e1"]
    assert case.allowed(2.0, 3.0) == ["e0", "e1"], "the first should be computed, the second half"


def test_a_prompt_that_shows_no_first_token_is_waited_for_no_longer_than_it_counts() -> None:
    """That is 4.05, although the first token of the one before it came late and shows a lower speed."""
    case = Case()
    case.compute(1, 2.0)
    case.compute(1, 2.0, streamed=False)
    ledger = case.endpoints[1].ledger
    ledger.first_token(ledger.leases[0], 3.5)
    assert ledger.prefill.left(3.6) / ledger.speed.rate > 3.0, "by speed it takes until 6.6 at least"
    assert case.allowed(2.0, 3.6) == ["e1"]
    assert dict(case.looks) == pytest.approx({"e0": 4.05})
    assert case.allowed(2.0, 4.05) == ["e0", "e1"]


def test_it_is_looked_at_again_no_sooner_than_a_step_takes() -> None:
    case = Case()
    case.compute(1, 2.0)
    case.allowed(2.0, 1.0 - STEP_S / 10)
    assert dict(case.looks) == pytest.approx({"e0": 1.0 - STEP_S / 10 + STEP_S})


def test_while_nothing_is_known_of_heavy_prompts_nobody_waits() -> None:
    case = Case(seen_s=())
    assert case.stagger.patience_s == math.inf
    case.compute(1, 2.0)
    assert case.allowed(2.0, 0.0) == ["e0", "e1"]


# --- in a scheduler -----------------------------------------------------------------------------------------------


def heavy(name: str, seconds: float = 2.0) -> Request:
    return request(name, tenant="heavy", prompt_tokens=round(seconds * SECOND))


def flooded(*, b_slots: int = 64, b_s: float = 2.0) -> CheckedScheduler:
    """Prompts of one tenant are computed at both of two endpoints, at `b` for that long; 40 more of two seconds wait,
    and light requests come.
    """
    one_at_a_time = AdmissionSettings(prefill_tokens_max=round(2.5 * SECOND))
    made = scheduler(SchedulerSettings(admission=one_at_a_time), a=64, b=b_slots)
    assert sent(made.arrived(heavy("at a"), now=0.0)) == [("at a", "a")]
    assert sent(made.arrived(heavy("at b", b_s), now=0.0)) == [("at b", "b")]
    for at in range(40):
        made.arrived(heavy(f"h{at}"), now=0.0)
    for at in range(8):
        made.arrived(request(f"l{at}", tenant=f"light{at}"), now=0.0)
    return made


def computed(made: CheckedScheduler, endpoint: str, now: float) -> list[tuple[str, str]]:
    """All prompts that an endpoint was sent are computed. Who is sent?"""
    return [
        who
        for lease in list(made.inspect().pool[endpoint].ledger.prefill.leases)
        for who in sent(made.first_token(lease, now=now))
    ]


def test_in_a_flood_of_long_prompts_two_endpoints_take_turns() -> None:
    made = flooded()
    assert computed(made, "a", 2.05) == [("h0", "a")]
    assert computed(made, "b", 2.1) == [], "both would be in the midst of two seconds"
    now = 2.1
    following: list[tuple[str, str]] = []
    while not following:
        now = max(now, made.next_deadline() or math.inf)
        following = sent(made.expire(now=now))
    assert following == [("h1", "b")]
    assert now == pytest.approx(3.05, abs=0.1), "half of the prompt at the other one is done"


def test_a_request_overtaken_the_most_times_does_not_wait_for_its_turn() -> None:
    made = flooded()
    assert computed(made, "a", 2.05) == [("h0", "a")]
    made.inspect().entries["h1"].backfilled = 32
    assert computed(made, "b", 2.1) == [("h1", "b")]


def test_a_light_request_goes_where_it_pleases() -> None:
    made = flooded()
    computed(made, "a", 2.05)
    computed(made, "b", 2.1)
    long = request("long", tenant="light0", prompt_tokens=round(1.2 * SECOND))
    assert sent(made.arrived(long, now=2.2)) == [("long", "b")]


def test_the_first_token_of_a_full_endpoint_lets_others_begin() -> None:
    made = flooded(b_slots=1, b_s=6.0)
    # Nobody knew yet how long such prompts take, so the next one follows at once.
    assert computed(made, "a", 2.05) == [("h0", "a")]
    assert computed(made, "a", 4.1) == []
    assert computed(made, "b", 4.5) == [("h1", "a")]
