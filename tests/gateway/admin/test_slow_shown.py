"""Green never stands over late first tokens or queues inside engines; a shown cause is held for some seconds."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.explain.snapshot import Snapshot
from penstock.core.values.catalogue import Cause, Outcome, Reason
from penstock.core.values.rows import LimitReached
from penstock.gateway.admin.failing.advice import advice
from penstock.gateway.admin.failing.lately import FailureWindow, Lately
from penstock.gateway.admin.headline import Around, headline, sentences, tone
from penstock.gateway.admin.history import History
from penstock.gateway.admin.picture.steady import Steady
from penstock.gateway.telemetry.failures import Failures
from tests.core.drive import request, scheduler


def running(*queued: float | None) -> Snapshot:
    """As many engines as numbers, each with that many requests in its own queue; 8 of 9 requests are a crawler's."""
    made = scheduler(None, **{f"gpu-{at}": 16 for at in range(len(queued))})
    for at in range(9):
        made.arrived(request(f"r{at}", tenant="crawler" if at < 8 else "chat"), now=0.0)
    picture = made.snapshot(now=1.0)
    endpoints = [
        msgspec.structs.replace(endpoint, engine_waiting=number)
        for endpoint, number in zip(picture.endpoints, queued, strict=True)
    ]
    return msgspec.structs.replace(picture, endpoints=endpoints)


def minute(*first_tokens_s: float, refused: int = 0) -> Lately:
    failures = Failures()
    for after_s in first_tokens_s:
        failures.first_token(after_s)
    for _ in range(refused):
        limit = LimitReached("requests_per_minute", 60)
        failures.note("crawler", "", Outcome.REJECTED, Reason.TENANT_LIMIT, limit)
    window = FailureWindow(failures)
    window.look(1.0)
    return window.now(1.0)


def test_a_first_token_after_ten_seconds_is_never_green() -> None:
    picture = running(None)
    assert tone(picture, Around(lately=minute(0.2, 9.9))) == "ok"
    late = Around(lately=minute(0.2, 0.3, 10.0))
    assert tone(picture, late) == "busy"
    assert sentences(picture, late)[0] == (
        "First tokens come late: half of the streams waited 300 ms, the slowest 10.0 s."
    )


def test_a_queue_inside_the_engines_is_told_with_whose_it_is_and_what_helps() -> None:
    picture = running(40.0, 3.0)
    assert tone(picture, Around()) == "busy"
    assert sentences(picture)[0] == (
        "43 requests wait inside the engines, 40 of them at gpu-0; 8 of the 9 running are from crawler."
    )
    assert advice(picture, minute()).startswith("Give the endpoints fewer `slots`")
    assert advice(picture, minute(), queueing=False).startswith("Turn queueing on (`queue.enabled: true`)")


def test_the_few_that_keep_engines_busy_are_no_queue() -> None:
    for few in ((4.0, 4.0), (None, 4.0), (None, None)):
        assert tone(running(*few), Around()) == "ok"
        assert "inside" not in headline(running(*few))


def test_curves_have_the_queue_inside_engines_and_nothing_if_none_is_reported() -> None:
    history = History()
    for at, queued in enumerate([(5.0, None), (None, None)]):
        history.add(running(*queued), Failures(), float(at))
    told: Any = history.curves()
    assert told["fine"]["inside"][0] == 5.0
    assert msgspec.json.decode(msgspec.json.encode(told))["fine"]["inside"] == [5.0, None]


def test_refusals_by_a_tenants_own_limit_stand_in_the_sentence_and_alarm_nobody() -> None:
    picture, around = running(None), Around(lately=minute(refused=52))
    expected = "Refused by their own limit in the last minute: 52 requests of crawler (requests_per_minute)."
    assert expected in sentences(picture, around)[1:]
    assert tone(picture, around) == "ok"


def caused(cause: Cause | None, waiting: int = 3, closed: dict[Cause, int] | None = None) -> Snapshot:
    picture = running(None)
    return msgspec.structs.replace(
        picture, models=[msgspec.structs.replace(picture.models[0], cause=cause, closed=closed or {}, waiting=waiting)]
    )


BOTH = {Cause.SLOTS_FULL: 1, Cause.KV_FULL: 1}


def shown(steady: Steady, cause: Cause | None, now: float, closed: dict[Cause, int] | None = None) -> Cause | None:
    return steady.look(caused(cause, closed=BOTH if closed is None else closed), now).models[0].cause


def test_two_causes_that_alternate_are_shown_as_one() -> None:
    steady = Steady()
    seen = [shown(steady, (Cause.SLOTS_FULL, Cause.KV_FULL)[at % 2], float(at)) for at in range(60)]
    assert set(seen) == {Cause.SLOTS_FULL}
    steady = Steady()
    seen = [shown(steady, (Cause.CLASS_SHARE, Cause.TURN)[at % 2], float(at), {}) for at in range(60)]
    assert set(seen) == {Cause.CLASS_SHARE}


def test_a_cause_that_holds_nowhere_any_more_is_not_shown_beside_numbers_of_this_moment() -> None:
    """It said "all slots are taken, 6 of 8" for four seconds."""
    steady = Steady()
    assert shown(steady, Cause.SLOTS_FULL, 0.0, {Cause.SLOTS_FULL: 2}) is Cause.SLOTS_FULL
    assert shown(steady, Cause.KV_FULL, 1.0, {Cause.KV_FULL: 2}) is Cause.KV_FULL
    assert shown(steady, Cause.TURN, 2.0, {Cause.KV_FULL: 1}) is Cause.TURN, "one endpoint is open"


def test_a_cause_that_stays_is_shown_after_four_seconds_and_an_order_or_fault_at_once() -> None:
    steady = Steady()
    assert shown(steady, Cause.SLOTS_FULL, 0.0) is Cause.SLOTS_FULL
    assert [shown(steady, Cause.KV_FULL, at) for at in (1.0, 3.0, 4.0)] == [
        *(Cause.SLOTS_FULL, Cause.SLOTS_FULL),
        Cause.KV_FULL,
    ]
    assert shown(steady, Cause.PAUSED, 4.5) is Cause.PAUSED
    assert shown(steady, Cause.KV_FULL, 5.0) is Cause.KV_FULL
    assert shown(steady, None, 5.5) is None
    assert shown(steady, Cause.TURN, 6.0) is Cause.TURN, "nothing is held over a queue that was empty"
