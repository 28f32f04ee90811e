"""Requests whose caller has another model to go to: they wait for a turn, but for no endpoint to come."""

from __future__ import annotations

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.values.actions import Evict, Reject
from penstock.core.values.catalogue import Failure, Outcome, Reason
from penstock.core.values.request import Request
from penstock.core.values.settings import EndpointSpec
from tests.core import drive

NONE = (Outcome.REJECTED, Reason.NO_ENDPOINT)
OUT = (Outcome.EVICTED, Reason.NO_ENDPOINT)


def test_where_no_endpoint_is_in_service_it_is_refused_at_once_and_others_wait() -> None:
    made = drive.scheduler(a=1)
    made.endpoint_down("a", now=0.0)
    assert drive.ends(made.arrived(drive.request("r", falls_back=True), now=1.0)) == [("r", *NONE)]
    assert made.arrived(drive.request("patient"), now=1.0) == []
    assert drive.sent(made.endpoint_up("a", now=2.0)) == [("patient", "a")]


def test_where_slots_are_full_it_waits_like_any_other() -> None:
    made = drive.scheduler(a=1)
    lease = drive.the_lease(made.arrived(drive.request("first"), now=0.0))
    assert made.arrived(drive.request("r", falls_back=True), now=0.0) == []
    assert drive.sent(made.finished(lease, now=1.0)) == [("r", "a")]


def test_the_last_endpoint_that_goes_releases_requests_with_a_fallback() -> None:
    for goes in ("down", "drained", "removed", "another model"):
        made = drive.scheduler(a=1, b=1)
        for at in range(2):
            made.arrived(drive.request(f"runs {at}"), now=0.0)
        made.arrived(drive.request("r", falls_back=True), now=0.0)
        made.arrived(drive.request("patient"), now=0.0)
        assert drive.ends(made.endpoint_down("b", now=1.0)) == []
        if goes == "down":
            actions = made.endpoint_down("a", now=2.0)
        elif goes == "drained":
            actions = made.endpoint_drained("a", now=2.0)
        elif goes == "removed":
            actions = made.endpoint_removed("a", now=2.0)
        else:
            actions = made.endpoint_changed("a", models=["other"], now=2.0)
        assert drive.ends(actions) == [("r", *OUT)], goes


def test_one_that_is_sent_back_by_an_endpoint_that_then_goes_is_sent_away_too() -> None:
    made = drive.scheduler(a=1)
    lease = drive.the_lease(made.arrived(drive.request("r", falls_back=True), now=0.0))
    made.endpoint_down("a", now=0.1)
    actions = made.failed(lease, Failure.RESET, now=0.2)
    assert drive.requeued(actions) == ["r"]
    assert drive.ends(actions) == [("r", *OUT)]


# --- a split: other models serve the request as well ---------------------------------------------------------------


def _two_models() -> CheckedScheduler:
    made = drive.scheduler(a=1)
    made.endpoint_added(EndpointSpec(name="b", slots=1, models=frozenset({"n"})), now=0.0)
    return made


def _of(name: str, model: str = "n", *, others: tuple[str, ...] = ("m",)) -> Request:
    return drive.request(name, model=model, others=others)


def test_a_request_waits_for_its_own_model_only_while_no_other_works() -> None:
    made = _two_models()
    made.endpoint_down("b", now=0.0)
    made.endpoint_down("a", now=0.0)
    assert made.arrived(_of("r"), now=1.0) == []
    assert drive.ends(made.endpoint_up("a", now=2.0)) == [("r", *OUT)]
    (refused,) = made.arrived(_of("s"), now=3.0)
    assert isinstance(refused, Reject)
    assert (refused.reason, refused.elsewhere) == (Reason.NO_ENDPOINT, True)


def test_the_end_of_a_wait_says_that_no_other_model_works() -> None:
    made = _two_models()
    for name in "ab":
        made.endpoint_down(name, now=0.0)
    made.arrived(_of("r"), now=1.0)
    deadline = made.next_deadline()
    assert deadline is not None
    (evicted,) = made.expire(now=deadline)
    assert isinstance(evicted, Evict)
    assert (evicted.reason, evicted.elsewhere) == (Reason.NO_ENDPOINT, False)


def test_queued_requests_leave_a_model_whatever_stops_it() -> None:
    for stop in ("down", "drained", "removed", "paused", "ejected"):
        made = _two_models()
        lease = drive.the_lease(made.arrived(_of("runs"), now=0.0))
        assert made.arrived(_of("r"), now=0.0) == []
        assert made.arrived(_of("alone", others=()), now=0.0) == []
        if stop == "down":
            actions = made.endpoint_down("b", now=1.0)
        elif stop == "drained":
            actions = made.endpoint_drained("b", now=1.0)
        elif stop == "removed":
            actions = made.endpoint_removed("b", now=1.0)
        elif stop == "paused":
            actions = made.paused("n", now=1.0)
        else:
            actions = []
            for at in range(20):
                actions = made.failed(lease, Failure.SERVER_ERROR, now=1.0 + at)
                if made.snapshot(now=1.0 + at).endpoints[1].state == "ejected":
                    break
                made.arrived(_of(f"more {at}"), now=1.0 + at)
                lease = next(iter(made.inspect().leases))
        gone = [name for name, *end in drive.ends(actions) if end == [*OUT]]
        assert "alone" not in gone, stop
        assert not {"r"} - set(gone) or stop == "ejected", stop
        assert gone, stop


def test_a_busy_or_held_endpoint_works_and_keeps_its_requests() -> None:
    made = _two_models()
    lease = drive.the_lease(made.arrived(_of("runs"), now=0.0))
    assert made.arrived(_of("r"), now=0.0) == []
    actions = made.failed(lease, Failure.BUSY, retry_after_s=5.0, now=1.0)
    assert drive.ends(actions) == []
    assert made.snapshot(now=1.0).endpoints[1].state == "held"
    assert made.works("n", now=1.0)


def test_a_drained_model_does_not_work_and_neither_does_one_whose_key_is_refused() -> None:
    made = _two_models()
    made.drained("n", now=0.0)
    assert (made.works("n", now=0.0), made.works("m", now=0.0)) == (False, True)
    made.resumed("n", now=1.0)
    assert made.works("n", now=1.0)
    made.endpoint_changed("b", key_refused=True, now=2.0)
    assert not made.works("n", now=2.0)
