"""How long will a request wait: against a drain that is simulated; and what refused callers are told."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from msgspec import structs

from penstock.core.queueing.wait_forecast import WaitForecast, retry_after_s
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Dispatch, Reject
from penstock.core.values.catalogue import Reason
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings, Limits, QueueBounds
from tests.core.drive import ends, request, scheduler, sent, the_lease, until, waiting_entry
from tests.core.shop import PATIENT, Customer, Shop, ShopJob

MODELS_MAX = 1000


def test_retry_after_is_spread_and_bounded() -> None:
    assert retry_after_s(None, 0.0) == 5.0
    assert retry_after_s(10.0, 0.0) == 10.0
    assert retry_after_s(10.0, 1.0) == 12.5
    assert retry_after_s(0.0, 0.5) == 1.0
    assert retry_after_s(1e9, 0.5) == 60.0
    assert retry_after_s(7_200.0, 1.0, 86_400.0) == 7_215.0, "hours are not put off by hours"
    assert retry_after_s(1e9, 0.5, 86_400.0) == 86_400.0


def test_the_time_to_first_token_is_learned_per_model() -> None:
    forecast = WaitForecast()
    assert forecast.first_token_s(waiting_entry("r"), 0.0) == 0.0
    for _ in range(100):
        forecast.first_token("m", 1, 2.0, 0.0)
    assert forecast.first_token_s(waiting_entry("r"), 0.0) == 2.0
    assert forecast.first_token_s(waiting_entry("r", model="n"), 0.0) == 0.0


def test_an_answer_that_does_not_stream_says_nothing_of_first_tokens() -> None:
    made = scheduler(a=1)
    for at in range(20):
        lease = the_lease(made.arrived(request(f"r{at}"), now=100.0 * at))
        made.finished(lease, Usage(10, 50), now=100.0 * at + 90.0)
    assert made.inspect().forecast.soonest_s(waiting_entry("r"), 1_990.0) == 0.0
    assert not made.inspect().pool["a"].ledger.speed.rate_known
    assert made.moved_s("a") == 1_990.0, "but that its engine works"


def test_callers_who_invent_models_cost_a_bounded_amount_of_memory() -> None:
    forecast = WaitForecast()
    for at in range(3 * MODELS_MAX):
        entry = waiting_entry(str(at), model=f"m{at}")
        forecast.dispatched(entry, queued=True, now=0.0)
        forecast.lease_ended(entry, 0.0, 0.0)
    assert len(forecast._models) <= MODELS_MAX


# --- against the truth --------------------------------------------------------------------------------------------


class Truth:
    """Notes what was foretold when each request came, and how long it did wait."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.foretold: dict[str, tuple[float, float]] = {}
        self.errors: dict[str, list[float]] = {}
        shop.watch = self.event

    def event(self, job: ShopJob | None) -> None:
        now = self.shop.now
        if job is not None:
            at, foretold_s = self.foretold.pop(job.request.id, (0.0, 0.0))
            if foretold_s and now > 20.0 and 5.0 <= now - at <= 60.0:
                self.errors.setdefault(job.customer.name, []).append(foretold_s / (now - at) - 1.0)
            return
        for name, waiting in self.shop.jobs.items():
            if waiting.lease is None and name not in self.foretold:
                wait_s = self.shop.scheduler.wait_s(name, now=now)
                self.foretold[name] = (now, wait_s or 0.0)

    def error(self, name: str) -> float:
        """The median of the errors' sizes."""
        assert len(self.errors[name]) > 20
        return median(abs(error) for error in self.errors[name])


@pytest.mark.parametrize(("fairness", "error_max"), [("weighted_tokens", 0.15), ("fcfs", 0.15), ("round_robin", 0.2)])
def test_waits_are_foretold_within_fifteen_percent(fairness: str, error_max: float) -> None:
    """By turns the number of requests decides, and on twelve slots a few long ones make that rate uneven."""
    customers = [
        Customer("light", 1.0, waiting=10),
        Customer("heavy", 3.0, waiting=60),
        Customer("long", 2.0, waiting=20, output_tokens=(150, 250)),
    ]
    truth = Truth(Shop(customers, slots=(6, 6), settings=structs.replace(PATIENT, fairness=fairness)))
    truth.shop.run(120.0)
    overall = median(abs(error) for errors in truth.errors.values() for error in errors)
    assert overall <= error_max


@pytest.mark.parametrize("running", [1, 4])
@pytest.mark.parametrize("slots", [6, 40])
def test_waits_of_a_tenant_at_its_limit_are_foretold_by_it(running: int, slots: int) -> None:
    customers = [Customer("light", 1.0, waiting=4), Customer("capped", 1.0, waiting=12)]
    settings = structs.replace(PATIENT, tenants={"capped": Limits(running=running)})
    truth = Truth(Shop(customers, slots=(slots, slots), settings=settings))
    truth.shop.run(120.0)
    assert truth.error("capped") <= 0.15


@pytest.mark.parametrize("account", ["tenant", "a key of it"])
def test_a_refusal_of_a_tenant_at_its_limit_says_when_its_line_has_moved(account: str) -> None:
    limits = Limits(running=1, queued=1)
    tenants = {"t": limits} if account == "tenant" else {"t": Limits(queued=1), "t\nkey\nk": Limits(running=1)}
    also = () if account == "tenant" else ("t\nkey\nk",)
    made = scheduler(SchedulerSettings(tenants=tenants), a=100)

    def one(name: str) -> Request:
        return request(name, tenant="t", also=also)

    lease = the_lease(made.arrived(one("first"), now=0.0))
    made.finished(lease, Usage(10, 50), now=20.0)
    made.arrived(one("runs"), now=20.0)
    made.arrived(one("waits"), now=20.0)
    (refused,) = made.arrived(one("refused"), now=20.0)
    assert isinstance(refused, Reject)
    assert refused.reason is Reason.TENANT_LIMIT
    assert refused.retry_after_s is not None
    assert 40.0 <= refused.retry_after_s <= 50.0, "two answers of 20 s, and up to a quarter more"


def test_requests_ahead_that_leave_unsent_shorten_the_wait_of_those_behind() -> None:
    """Ten come each second, five are sent and five give up: the line moves up by ten, not by five."""
    made = scheduler(SchedulerSettings(wait_s_max=10.0), a=5)
    running: list[int] = []
    for tenth in range(400):
        now = tenth / 10
        actions = until(made, now) + made.arrived(request(f"r{tenth}"), now=now)
        if tenth % 2 and len(running) >= 5:
            actions += made.finished(running.pop(0), Usage(10, 50), now=now)
        running += [action.lease for action in actions if isinstance(action, Dispatch)]
    foretold_s = made.wait_s("r399", now=39.9)
    assert foretold_s == pytest.approx(10.0, rel=0.15), "all leave by then, sent or not"
    made.arrived(request("light", tenant="light"), now=39.9)
    assert (made.wait_s("light", now=39.9) or 0.0) < 1.0, "who leaves another's line does not shorten one's own"


def test_work_of_higher_bands_comes_first_and_lower_bands_do_not_count() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("high"), BandSettings("low"))), a=1)
    lease = the_lease(made.arrived(request("first"), now=0.0))
    for name, band in (("high", 0), ("low", 1)):
        made.arrived(request(name, band=band), now=0.0)
    made.finished(lease, Usage(1, 50), now=2.0)
    assert made.wait_s("low", now=2.0) == 0.0
    made.arrived(request("high too"), now=2.0)
    assert made.wait_s("low", now=2.0) == pytest.approx(2.0, rel=0.3)
    assert made.wait_s("high too", now=2.0) == 0.0
    assert made.wait_s("nobody", now=2.0) is None


# --- deadlines ----------------------------------------------------------------------------------------------------


def test_what_can_never_be_in_time_is_refused_at_once() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("first", streamed=True), now=0.0))
    made.first_token(lease, now=0.1)
    lease = the_lease(made.finished(lease, Usage(1, 50), now=10.0) or made.arrived(request("next"), now=10.0))
    for at in range(3):
        made.arrived(request(str(at)), now=10.0)
    actions = made.arrived(request("late", deadline_s=15.0), now=10.0)
    assert ends(actions) == [("late", "rejected", "deadline_infeasible")]
    assert actions[0].retry_after_s >= 15.0  # type: ignore[union-attr,operator]


def test_what_cannot_be_in_time_any_more_is_not_sent() -> None:
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("first"), now=0.0))
    made.arrived(request("late", deadline_s=5.0), now=0.0)
    made.arrived(request("in time", deadline_s=50.0), now=0.0)
    for _ in range(3):
        made.inspect().forecast.first_token("m", 1, 0.5, 4.9)
    actions = made.finished(lease, now=4.9)
    assert ends(actions) == [("late", "evicted", "deadline_missed")]
    assert sent(actions) == [("in time", "a")]


def test_what_is_probably_late_is_sent_where_nobody_else_waits_for_the_slot() -> None:
    """After a stall most of the last first tokens took seconds, and deadlines were refused for want of room."""
    for others in (False, True):
        made = scheduler(a=1)
        lease = the_lease(made.arrived(request("first"), now=0.0))
        made.arrived(request("r", deadline_s=10.0), now=0.0)
        if others:
            made.arrived(request("other"), now=0.0)
        for took_s in [5.0] * 9 + [0.1]:
            made.inspect().forecast.first_token("m", 1, took_s, 6.0)
        made.inspect().forecast.refused("m", 20.0, 6.0)
        actions = made.finished(lease, now=6.0)
        assert sent(actions) == [("other" if others else "r", "a")]


def test_a_stall_while_a_queue_was_measured_refuses_nobody_whom_the_slots_would_serve() -> None:
    """Leases last 0.1 s, and a queue was sent from three times in ten seconds, for the engine stood still meanwhile."""
    made = scheduler(a=10)
    for at in range(10):
        made.inspect().forecast.lease_ended(waiting_entry(str(at)), 0.1, 9.0 + at / 10)
    for at in range(10):
        made.arrived(request(f"first{at}"), now=9.9)
    for at in range(3):
        made.inspect().forecast.dispatched(waiting_entry(f"w{at}"), queued=True, now=5.0 * at)
    for at in range(20):
        made.arrived(request(f"ahead{at}"), now=10.0)
    assert ends(made.arrived(request("r", deadline_s=12.0), now=10.0)) == []


def test_a_request_past_its_deadline_is_refused_at_once() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("b", deadline_s=5.0),)), a=1)
    made.arrived(request("first"), now=0.0)
    made.arrived(request("late"), now=1.0)
    assert made.next_deadline() == pytest.approx(6.0)
    assert ends(made.expire(now=6.0)) == [("late", "evicted", "deadline_missed")]


def test_a_hopeless_request_waits_on_when_first_tokens_come_sooner() -> None:
    """It was armed when they took 5 s; at that time they take 0.1 s, and it has neither waited nor missed anything."""
    made = scheduler(a=1)
    for _ in range(20):
        made.inspect().forecast.first_token("m", 1, 5.0, 0.0)
    lease = the_lease(made.arrived(request("first"), now=0.0))
    made.arrived(request("patient", deadline_s=10.0), now=0.0)
    assert made.next_deadline() == pytest.approx(5.0)
    for _ in range(300):
        made.inspect().forecast.first_token("m", 1, 0.1, 4.0)
    assert made.expire(now=5.0) == []
    assert made.next_deadline() == pytest.approx(9.9)
    assert sent(made.finished(lease, now=9.0)) == [("patient", "a")]


def test_the_shortest_of_the_deadlines_of_request_and_band_counts() -> None:
    made = scheduler(SchedulerSettings(bands=(BandSettings("b", deadline_s=9.0),)), a=1)
    made.arrived(request("first"), now=0.0)
    for name, own in (("own", 4.0), ("band's", 20.0)):
        made.arrived(request(name, deadline_s=own), now=0.0)
    assert [made.inspect().entries[name].deadline_s for name in ("own", "band's")] == [4.0, 9.0]


class Answers:
    """One roomy endpoint that answers each request as late as is said at the time; nothing else happens."""

    def __init__(self, slots: int = 64, settings: SchedulerSettings | None = None) -> None:
        self.made = scheduler(settings, a=slots)
        self.due: list[tuple[float, int, str]] = []
        self.refused: list[str] = []

    def ask(self, name: str, now: float, takes_s: float, **more: Any) -> bool:
        """Whether it is sent at once."""
        while self.due and self.due[0][0] <= now:
            at, lease, what = heappop(self.due)
            if what == "first":
                self.made.first_token(lease, now=at)
                heappush(self.due, (at + 0.01, lease, "end"))
            else:
                self.made.finished(lease, Usage(10, 5), now=at)
        until(self.made, now)
        actions = self.made.arrived(request(name, streamed=True, **more), now=now)
        for action in actions:
            if isinstance(action, Dispatch):
                heappush(self.due, (now + takes_s, action.lease, "first"))
        return bool(sent(actions))


@pytest.mark.parametrize("within_s", [0.05, 0.4, 5.0])
def test_a_fresh_gateway_refuses_no_deadline(within_s: float) -> None:
    answers = Answers()
    assert all(answers.ask(str(at), at / 10, 0.04, deadline_s=at / 10 + within_s) for at in range(100))


def test_after_a_slow_spell_an_idle_engine_is_not_condemned() -> None:
    """Ten seconds in which first tokens take 5 s, then a fast engine again: who may have 1 s is served."""
    answers = Answers(settings=SchedulerSettings(bands=(BandSettings("b", deadline_s=1.0),)))
    for at in range(100):
        answers.ask(f"slow {at}", at / 10, 5.0)
    served = [answers.ask(f"well {at}", 15.0 + at / 9, 0.04) for at in range(536)]
    assert served.count(False) <= 536 * 0.01


def test_what_cannot_be_met_is_refused_but_for_a_few_that_are_told_of() -> None:
    """First tokens take 3 s for a minute, and ten a second have only one: two a second find out whether it is so."""
    answers = Answers()
    served = [at for at in range(600) if answers.ask(str(at), at / 10, 3.0, deadline_s=at / 10 + 1.0)]
    later = [at for at in served if at >= 100]
    assert 50 <= len(later) <= 100
    (model,) = answers.made.snapshot(now=60.0).models
    assert len(later) <= model.deadline_tries_total <= len(served)
    explained = answers.made.explain(str(later[-1]), now=60.0)
    assert explained is not None
    assert explained.tried


def test_long_prompts_that_take_long_do_not_condemn_short_ones() -> None:
    answers, sent_short = Answers(), []
    for at in range(600):
        now = at / 10
        if at % 12 == 0:
            answers.ask(f"long {at}", now, 4.0, prompt_tokens=8000)
        else:
            sent_short.append(answers.ask(f"short {at}", now, 0.1, prompt_tokens=100, deadline_s=now + 1.0))
    assert all(sent_short)


# --- making room --------------------------------------------------------------------------------------------------

TWO_BANDS = SchedulerSettings(bands=(BandSettings("high"), BandSettings("low"), BandSettings("lowest")))


def full(bounds: QueueBounds, *waiting: tuple[str, int, int]) -> list[tuple[str, str, str]]:
    """A newcomer of the highest band, where these wait already (name, band, prompt tokens)."""
    made = scheduler(structs.replace(TWO_BANDS, bounds=bounds), a=1)
    made.arrived(request("first"), now=0.0)
    for name, band, tokens in waiting:
        made.arrived(request(name, band=band, prompt_tokens=tokens), now=0.0)
    return ends(made.arrived(request("new", prompt_tokens=100), now=1.0))


def test_a_newcomer_displaces_the_youngest_of_the_lowest_band() -> None:
    waiting = (("a", 2, 1), ("b", 2, 1), ("c", 1, 1))
    assert full(QueueBounds(requests_max=3), *waiting) == [("b", "evicted", "displaced")]


def test_it_displaces_nobody_of_its_own_band() -> None:
    assert full(QueueBounds(requests_max=2), ("a", 0, 1), ("b", 0, 1)) == [("new", "rejected", "queue_full")]


@pytest.mark.parametrize("bounds", [QueueBounds(bytes_max=800), QueueBounds(tokens_max=200)])
def test_it_displaces_as_many_as_it_takes(bounds: QueueBounds) -> None:
    waiting = [(name, 2, 50) for name in "abcd"]
    assert full(bounds, *waiting) == [("d", "evicted", "displaced"), ("c", "evicted", "displaced")]


def test_where_it_would_not_help_nobody_is_displaced() -> None:
    waiting = [(name, 2, 5) for name in "abcd"]
    assert full(QueueBounds(tokens_max=99), *waiting) == [("new", "rejected", "queue_full")]


def test_heavier_waits_are_longer_in_proportion() -> None:
    """Of a flow's own requests, each waits one turn longer than the one before."""
    made = scheduler(a=1)
    lease = the_lease(made.arrived(request("first"), now=0.0))
    for at in range(5):
        made.arrived(request(str(at)), now=0.0)
    made.finished(lease, Usage(1, 50), now=2.0)
    waits = [made.wait_s(str(at), now=2.0) or 0.0 for at in range(1, 5)]
    assert all(after >= before for before, after in pairwise(waits))
