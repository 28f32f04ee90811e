"""Failures are told with whose they are: in the sentence, in events that stay few, in the minute's rows, as curves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.values.catalogue import Cause, Outcome, Reason
from penstock.core.values.catalogue import Failure as Retry
from penstock.core.values.request import Usage
from penstock.core.values.rows import LimitReached
from penstock.gateway.admin.event_log import EventLog
from penstock.gateway.admin.failing.advice import advice
from penstock.gateway.admin.failing.incidents import Incidents
from penstock.gateway.admin.failing.lately import FailureWindow
from penstock.gateway.admin.headline import Around, headline, sentences, tone
from penstock.gateway.admin.history import CURVES, History
from penstock.gateway.telemetry.failures import Failures
from tests.core.drive import request, scheduler, the_lease
from tests.gateway.admin.test_admin_state import state
from tests.gateway.conftest import World, chat, fault, hurry
from tests.patience import WAIT_S, looks

QUIET_S = 30.0
ROWS_SHOWN = 20
WINDOW_S = 60.0


class Minute:
    """Failures that happen, and everything that tells of them."""

    def __init__(self, made: CheckedScheduler | None = None) -> None:
        self.made = made or scheduler(None, **{"gpu-0": 8, "gpu-1": 8})
        self.failures = Failures()
        self.events = EventLog(wall=lambda: 7.0)
        self.last = FailureWindow(self.failures)
        self.incidents = Incidents(self.events)

    def happens(
        self,
        count: int,
        tenant: str,
        outcome: Outcome,
        reason: Reason | None,
        endpoint: str = "",
        limit: LimitReached | None = None,
    ) -> None:
        for _ in range(count):
            self.failures.note(tenant, endpoint, outcome, reason, limit)

    def look(self, now: float) -> None:
        self.incidents.look(self.last.look(now), self.made.snapshot(now=now), now)

    def texts(self) -> list[str]:
        return [event.text for event in self.events.latest()]


def test_a_killed_engine_is_one_event_with_whose_streams_it_broke() -> None:
    minute = Minute()
    minute.happens(9, "nightly", Outcome.FAILED, Reason.STREAM_BROKEN, "gpu-0")
    minute.look(1.0)
    assert minute.texts() == ["gpu-0 broke 9 streams of nightly"]
    minute.happens(6, "team-a", Outcome.FAILED, Reason.STREAM_BROKEN, "gpu-0")
    minute.made.endpoint_down("gpu-0", now=1.5)
    minute.look(2.0)
    assert minute.texts() == ["gpu-0 (down) broke 15 streams: 9 of nightly, 6 of team-a, in 1.0 s"]


def test_a_flood_that_times_out_is_one_event_that_counts_on_until_it_is_quiet() -> None:
    minute = Minute()
    for at in range(275):
        minute.happens(1, "nightly", Outcome.EVICTED, Reason.QUEUE_TIMEOUT)
        minute.look(at / 10)
    assert minute.texts() == ["275 requests of nightly evicted: the request timed out in the queue, in 27.4 s"]
    minute.look(27.4 + QUIET_S)
    minute.happens(1, "nightly", Outcome.EVICTED, Reason.QUEUE_TIMEOUT)
    minute.look(90.0)
    assert minute.texts() == [
        "1 request of nightly evicted: the request timed out in the queue",
        "275 requests of nightly evicted: the request timed out in the queue, in 27.4 s",
    ]


def test_the_log_hears_of_an_incident_twice_at_its_begin_and_in_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    minute = Minute()
    for at in range(20):
        minute.happens(1, "a", Outcome.REJECTED, Reason.QUEUE_FULL)
        minute.look(float(at))
    minute.look(19.0 + QUIET_S)
    assert [record.message for record in caplog.records] == [
        "failure: 1 request of a refused: the queue is full",
        "failure, total: 20 requests of a refused: the queue is full, in 19.0 s",
    ]


def test_events_stay_few_however_much_fails_where_and_whose_it_is() -> None:
    minute = Minute()
    for at in range(100):
        for tenant in range(100):
            minute.happens(1, f"t{tenant}", Outcome.FAILED, Reason.STREAM_BROKEN, f"gpu-{at}")
            minute.happens(1, f"t{tenant}", Outcome.REJECTED, Reason.QUEUE_FULL)
        minute.look(at / 10)
    texts = minute.texts()
    assert len(texts) == 25, "and one for all endpoints beyond that"
    broken = [int(text.split(" broke ")[1].split()[0].replace(",", "")) for text in texts if " broke " in text]
    assert sum(broken) == 10_000
    assert any(text.startswith("10,000 requests refused: the queue is full: 100 of t0, ") for text in texts)
    assert all(len(text) < 300 for text in texts)


def test_an_incident_without_end_begins_again_so_that_it_is_seen() -> None:
    minute = Minute()
    for at in range(750):
        minute.happens(1, "a", Outcome.REJECTED, Reason.QUEUE_FULL)
        minute.look(float(at))
    assert len(minute.texts()) == 3


def test_reading_makes_no_events() -> None:
    minute = Minute()
    minute.happens(50, "", Outcome.REJECTED, Reason.PATH_NOT_FOUND)
    minute.happens(2, "", Outcome.REJECTED, Reason.UNAUTHORIZED)
    minute.look(1.0)
    assert minute.texts() == ["2 requests refused: the key is missing or wrong"]


# --- the sentence -----------------------------------------------------------------------------------------------------


def test_what_broke_and_what_was_refused_stands_in_the_sentence_with_whose_it_was() -> None:
    minute = Minute()
    minute.happens(15, "nightly", Outcome.FAILED, Reason.STREAM_BROKEN, "gpu-0")
    minute.happens(30, "nightly", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.happens(10, "team-a", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.made.endpoint_down("gpu-0", now=0.5)
    minute.look(1.0)
    picture, lately = minute.made.snapshot(now=1.0), minute.last.now(1.0)
    assert headline(picture, Around(lately=lately)) == (
        "gpu-0 is down. Last minute: 15 streams of nightly broken at gpu-0."
        " 40 of 55 requests in the last minute were refused: the queue is full (30 of nightly, 10 of team-a)."
        " Idle: nothing waits, nothing runs. 1 of 2 engines is up."
    )
    assert tone(picture, Around(lately=lately)) == "bad"
    look = "See whether gpu-0 runs, and what its log says."
    assert advice(picture, lately) == f"{look} The others are not enough: many requests get no answer."
    quiet = FailureWindow(Failures()).now(1.0)
    assert advice(picture, quiet) == f"{look} The others carry its load."
    full = Cause.SLOTS_FULL
    models = [msgspec.structs.replace(model, waiting=3, cause=full) for model in picture.models]
    waits = msgspec.structs.replace(picture, waiting=3, models=models)
    assert advice(waits, quiet) == f"{look} The others are not enough: requests wait."
    assert "Last minute" not in headline(picture, Around(lately=quiet))


def test_a_part_of_the_last_minute_has_only_what_later_looks_found() -> None:
    minute = Minute()
    minute.happens(15, "flood", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.look(10.0)
    minute.happens(3, "team-a", Outcome.EVICTED, Reason.QUEUE_TIMEOUT)
    minute.happens(4, "team-a", Outcome.COMPLETED, None)
    minute.look(11.0)
    later = minute.last.now(12.0, within_s=2.0)
    assert (later.ended, later.refused, later.evicted, len(later.rows)) == (7, 0, 3, 1)
    all_of_it = minute.last.now(12.0)
    assert (all_of_it.ended, all_of_it.refused, all_of_it.evicted) == (22, 15, 3)
    assert minute.last.now(12.0, within_s=0.0).groups == []


async def test_whether_the_others_are_enough_is_judged_by_what_followed_the_death(world: World) -> None:
    first, second = await world.engine(step_s=0.001), await world.engine(step_s=0.001)
    hurry(first)
    hurry(second)
    await world.gateway(slots=1, queue={"max_requests": 1})
    answers = await asyncio.gather(*[world.chat(tokens=200) for _ in range(20)])
    assert sum(answer.status == 429 for answer in answers) > 10, "a flood that both engines were too few for"
    await until_said(world, lambda told: told["lately"]["refused"] > 10)
    await second.close()
    await until_said(world, lambda told: "is down (for" in told["lead"])
    told = await state(world)
    assert told["lately"]["refused"] > 10
    assert told["advice"].endswith("The others carry its load.")
    answers = await asyncio.gather(*[world.chat(tokens=200) for _ in range(20)])
    assert sum(answer.status == 429 for answer in answers) > 10
    await until_said(
        world, lambda told: told["advice"].endswith("The others are not enough: many requests get no answer.")
    )


async def until_said(world: World, claim: Callable[[dict[str, Any]], bool]) -> None:
    async for _ in looks(WAIT_S):
        if claim(await state(world)):
            return


@pytest.mark.parametrize(
    ("outcome", "reason", "expected"),
    [
        (Outcome.FAILED, Reason.STREAM_BROKEN, "bad"),
        (Outcome.EVICTED, Reason.QUEUE_TIMEOUT, "bad"),
        (Outcome.REJECTED, Reason.QUEUE_FULL, "bad"),
        (Outcome.EVICTED, Reason.DISPLACED, "busy"),  # that is what bands are for
        (Outcome.REJECTED, Reason.BAD_REQUEST, "ok"),  # its caller can mend it, and nobody else
        (Outcome.REJECTED, Reason.TENANT_LIMIT, "ok"),  # an operator set it
    ],
)
def test_failures_change_the_tone_where_somebody_should_look(outcome: Outcome, reason: Reason, expected: str) -> None:
    minute = Minute()
    minute.happens(10, "a", outcome, reason, "gpu-0")
    minute.look(1.0)
    picture = minute.made.snapshot(now=1.0)
    assert tone(picture, Around(lately=minute.last.now(1.0))) == expected
    minute.happens(2_000, "a", Outcome.COMPLETED, None)
    minute.look(2.0)
    assert tone(picture, Around(lately=minute.last.now(2.0))) == "ok", "next to nothing of what was served"


def test_refusals_lead_the_sentence_where_they_are_the_matter_and_follow_it_where_they_are_few() -> None:
    """It said "busy: Holding 40" where 95 of 100 requests were refused."""
    minute = Minute()
    minute.happens(90, "crawler", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.happens(10, "nightly", Outcome.COMPLETED, None)
    minute.look(1.0)
    picture, lately = minute.made.snapshot(now=1.0), minute.last.now(1.0)
    lead, *_ = sentences(picture, Around(lately=lately))
    assert lead == "90 of 100 requests in the last minute were refused: the queue is full (of crawler)."
    minute.happens(900, "nightly", Outcome.COMPLETED, None)
    minute.look(2.0)
    lead, *_, last = sentences(picture, Around(lately=minute.last.now(2.0)))
    assert lead == "Idle: nothing waits, nothing runs."
    assert last == "Last minute: 90 requests of crawler refused: the queue is full."
    assert tone(picture, Around(lately=minute.last.now(2.0))) == "busy", "9 of 100"


def test_whose_requests_went_wrong_is_known_for_each_tenant_that_is_shown() -> None:
    minute = Minute()
    minute.happens(3, "victim", Outcome.FAILED, Reason.STREAM_BROKEN, "gpu-0")
    minute.happens(2, "victim", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.happens(9, "unseen", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.look(1.0)
    assert minute.last.by_tenant({"victim", "well"}) == {"victim": {"broken": 3, "refused": 2}}
    minute.look(1.0 + WINDOW_S)
    assert minute.last.by_tenant({"victim"}) == {}


def test_the_heaviest_sender_of_a_flood_is_named_with_the_verb_that_holds_it() -> None:
    minute = Minute()
    minute.happens(30, "crawler's", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.happens(10, "team-a", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.look(1.0)
    picture = minute.made.snapshot(now=1.0)
    verb = """`penstock tenant limit 'crawler'"'"'s' --queued N`"""
    told = advice(picture, minute.last.now(1.0))
    assert told.startswith(
        f"Most requests that were refused come from crawler's: {verb} lets fewer of its requests wait, so that others"
        " find room."
    )
    minute.happens(20, "team-a", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.look(2.0)
    assert "Most requests" not in advice(picture, minute.last.now(2.0)), "half each"


def test_fewer_that_wait_are_no_room_for_others_where_the_wait_was_too_long_and_not_the_queue() -> None:
    minute = Minute()
    minute.happens(30, "nightly", Outcome.EVICTED, Reason.QUEUE_TIMEOUT)
    minute.look(1.0)
    assert advice(minute.made.snapshot(now=1.0), minute.last.now(1.0)).startswith(
        "Most requests that were evicted come from nightly: `penstock tenant limit nightly --queued N` lets fewer of"
        " its requests wait, so that those are refused at once that would wait in vain."
    )


def test_a_drain_leads_the_sentence_with_how_many_it_turned_away() -> None:
    """It said "busy. Nothing waits", with what every caller was refused for at the end."""
    minute = Minute()
    minute.made.drained(None, now=0.5)
    minute.happens(12, "team-a", Outcome.REJECTED, Reason.DRAINING)
    minute.look(1.0)
    picture, lately = minute.made.snapshot(now=1.0), minute.last.now(1.0)
    assert headline(picture, Around(lately=lately)) == (
        "Drained by an operator: nothing new is let in, 12 requests refused for it in the last minute."
        " Nothing waits, nothing runs: the drain is complete. 2 of 2 engines are up."
    )
    assert tone(picture, Around(lately=lately)) == "bad", "no caller gets an answer"
    told = advice(picture, lately)
    assert (
        told == "`penstock resume`, or the page's button Resume, ends the drain; until then new requests are refused."
    )


def test_the_last_failure_of_an_endpoint_that_is_missing_is_told_in_words() -> None:
    made = scheduler(a=1, b=1)
    made.failed(the_lease(made.arrived(request("r"), now=0.0)), Retry.CONNECT, now=0.5)
    made.endpoint_down("a", now=0.5)
    told = advice(made.snapshot(now=1.0), FailureWindow(Failures()).now(1.0))
    assert told.startswith("See whether a runs, and what its log says: the endpoint could not be reached.")


def test_tokens_count_as_they_come_and_not_when_their_answers_end() -> None:
    """The rate rose as an engine died, for what its streams had made was counted at their ends."""
    history, made = History(), scheduler(a=4)

    def rate(now: float) -> float:
        history.add(made.snapshot(now=now), Failures(), now, made.tokens_under_way())
        return history.latest()["tokens_per_s"]

    leases = [the_lease(made.arrived(request(f"r{at}", prompt_tokens=40), now=0.0)) for at in range(2)]
    assert rate(0.0) == 0.0
    assert rate(1.0) == 0.0, "nothing came yet"
    for lease in leases:
        made.first_token(lease, now=1.0)
        made.progressed(lease, 160, now=1.5)
    assert rate(2.0) == pytest.approx(2 * (40 + 160) / 2.0)
    made.failed(leases[0], Retry.BROKEN, now=2.5)
    made.finished(leases[1], Usage(40, 200), now=2.5)
    assert made.tokens_under_way() == 0
    assert rate(4.0) == pytest.approx((2 * (40 + 160) + 40) / 4.0), "of all that, the end told of 40 more"


def test_tokens_that_come_in_lumps_are_a_rate_over_ten_samples() -> None:
    """As those of answers that do not stream do: it said "0 tokens/s" while 15 requests ran."""
    history, made = History(), scheduler(a=4)
    rates = []
    for at in range(14):
        if at == 3:
            lease = the_lease(made.arrived(request("r"), now=3.0))
            made.finished(lease, Usage(100, 100), now=3.0)
        history.add(made.snapshot(now=float(at)), Failures(), float(at))
        rates.append(history.latest()["tokens_per_s"])
    assert rates[2] == 0.0
    assert rates[12] == pytest.approx(20.0)
    assert rates[13] == 0.0


def test_a_drain_that_makes_requests_wait_is_what_can_be_taken_back() -> None:
    made = scheduler(a=1, b=1)
    made.endpoint_drained("b", now=0.0)
    for at in range(2):
        made.arrived(request(f"r{at}"), now=0.0)
    quiet = FailureWindow(Failures()).now(1.0)
    assert advice(made.snapshot(now=1.0), quiet) == "`penstock endpoint resume b` gives its slots back."
    made.endpoint_resumed("b", now=1.0)
    assert advice(made.snapshot(now=1.0), quiet) == "", "nothing waits any more"


def test_limits_of_a_tenant_have_rows_and_events_of_their_own() -> None:
    minute = Minute()
    minute.happens(3, "nightly", Outcome.REJECTED, Reason.TENANT_LIMIT, limit=LimitReached("queued", 4))
    minute.happens(2, "nightly", Outcome.REJECTED, Reason.TENANT_LIMIT, limit=LimitReached("tokens_per_minute", 900))
    minute.look(1.0)
    lately = minute.last.now(1.0)
    assert [(row.limit, row.count, row.what) for row in lately.rows] == [
        ("queued", 3, "refused: a limit of the tenant is reached (queued)"),
        ("tokens_per_minute", 2, "refused: a limit of the tenant is reached (tokens_per_minute)"),
    ]
    assert [(group.reason, group.count) for group in lately.groups] == [("tenant_limit", 3), ("tenant_limit", 2)]
    assert sorted(minute.texts()) == [
        "2 requests of nightly refused: a limit of the tenant is reached (tokens_per_minute)",
        "3 requests of nightly refused: a limit of the tenant is reached (queued)",
    ]
    minute.happens(1, "nightly", Outcome.REJECTED, Reason.TENANT_LIMIT, limit=LimitReached("queued", 4))
    minute.look(2.0)
    assert len(minute.texts()) == 2, "a line for each limit, that counts on"


def test_a_minute_later_it_is_over() -> None:
    minute = Minute()
    minute.happens(10, "a", Outcome.EVICTED, Reason.QUEUE_TIMEOUT)
    for at in range(int(WINDOW_S) + 1):
        minute.look(float(at))
        assert minute.last.now(float(at)).evicted == (10 if at < WINDOW_S else 0)
    assert minute.last.now(60.0).rows == []
    assert minute.last.now(60.0).ended == 0
    assert not minute.last._sum


def test_the_minutes_rows_are_the_most_frequent_and_few() -> None:
    minute = Minute()
    for at in range(100):
        minute.happens(at + 1, f"t{at}", Outcome.REJECTED, Reason.QUEUE_FULL)
    minute.look(1.0)
    lately = minute.last.now(1.0)
    assert (len(lately.rows), lately.rows_more, lately.refused) == (ROWS_SHOWN, 100 - ROWS_SHOWN, 5_050)
    assert (lately.rows[0].tenant, lately.rows[0].count) == ("t99", 100)


def test_what_left_the_queue_unsent_has_one_word() -> None:
    """It was "waited in vain" above, "lost their place" beside, and "displaced" behind."""
    minute = Minute()
    for at, reason in enumerate((Reason.QUEUE_TIMEOUT, Reason.DISPLACED, Reason.OVERLOAD)):
        minute.happens(3 - at, "a", Outcome.EVICTED, reason)
    minute.happens(1, "a", Outcome.REJECTED, Reason.OVERLOAD)
    minute.look(1.0)
    lately = minute.last.now(1.0)
    assert [(row.kind, row.what) for row in lately.rows] == [
        ("evicted", "evicted: the request timed out in the queue"),
        ("evicted", "evicted: a request of a higher band took the place"),
        ("evicted", "evicted: the service is overloaded"),
        ("refused", "refused: the service is overloaded"),
    ]


# --- curves, and over HTTP --------------------------------------------------------------------------------------------


def test_failures_and_first_tokens_are_curves() -> None:
    minute, history = Minute(), History()
    history.add(minute.made.snapshot(now=0.0), minute.failures, 0.0)
    minute.happens(6, "a", Outcome.EVICTED, Reason.QUEUE_TIMEOUT)
    minute.happens(4, "a", Outcome.FAILED, Reason.STREAM_BROKEN, "gpu-0")
    minute.failures.first_token(0.25)
    history.add(minute.made.snapshot(now=2.0), minute.failures, 2.0)
    history.add(minute.made.snapshot(now=60.0), minute.failures, 60.0)
    fine = msgspec.json.decode(msgspec.json.encode(history.curves()))["fine"]
    assert fine.keys() == set(CURVES)
    assert fine["evicted_per_s"] == [0, 3, 0]
    assert fine["broken_per_s"] == [0, 2, 0]
    assert fine["first_token_p50_s"] == [None, 0.25, None], "no stream is no time of nothing"


async def test_a_broken_stream_is_seen_with_its_tenant_and_its_endpoint(world: World) -> None:
    engine = await world.engine()
    await world.gateway()
    fault(engine, "die", count=1, after_bytes=600)
    await world.ask(body=chat(tokens=50, stream=True), headers={"X-Tenant-Id": "nightly"})
    world.gate.watch.tick()
    name = engine.url.removeprefix("http://")
    seen = await state(world)
    assert f"Last minute: 1 stream of nightly broken at {name}." in seen["headline"]
    assert seen["events"][0]["text"].startswith(f"{name} broke 1 stream of nightly")
    assert seen["tone"] == "bad"
    assert name in seen["advice"]
    assert (seen["lately"]["broken"], seen["lately"]["ended"]) == (1, 1)
    assert seen["lately"]["rows"][0]["tenant"] == "nightly"
    assert seen["lately"]["first_token_p50_s"] > 0


async def test_a_retry_that_no_client_sees_is_seen_here(world: World) -> None:
    first, second = await world.engine(), await world.engine()
    await world.gateway()
    fault(first, "error", count=1)
    fault(second, "error", count=1)
    assert (await world.chat()).status == 200
    world.gate.watch.tick()
    seen = await state(world)
    assert seen["lately"]["retried"] >= 1
    assert any("retried: the endpoint answered with an error" in event["text"] for event in seen["events"])
