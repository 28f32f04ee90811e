"""Requests whose caller has another model to go to: they wait for a turn, but for no endpoint to come."""

from __future__ import annotations

from penstock.core.values.catalogue import Failure, Outcome, Reason
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
