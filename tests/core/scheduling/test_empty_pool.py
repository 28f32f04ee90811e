"""A wait of its own while no endpoint for the model is in service: from when that is so, and bounded in all."""

from __future__ import annotations

import msgspec

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.settings import BandSettings, EndpointSpec
from tests.core.drive import ends, request, scheduler, sent, the_lease

M = frozenset({"m"})
SHORT = SchedulerSettings(wait_s_max=60.0, empty_wait_s_max=5.0)
LONG = SchedulerSettings(wait_s_max=10.0, empty_wait_s_max=300.0)


def test_a_newcomer_to_an_empty_pool_waits_so_long() -> None:
    made = scheduler(SHORT, a=1)
    made.endpoint_down("a", now=0.0)
    made.arrived(request("r"), now=1.0)
    assert ends(made.expire(now=5.9)) == []
    assert ends(made.expire(now=6.0)) == [("r", "evicted", "no_endpoint")]


def test_a_shorter_wait_begins_when_the_last_endpoint_goes() -> None:
    made = scheduler(SHORT, a=1, b=1)
    for name in ("runs", "runs-too", "waits"):
        made.arrived(request(name), now=0.0)
    made.endpoint_drained("a", now=20.0)
    assert ends(made.expire(now=30.0)) == []
    made.endpoint_removed("b", now=30.0)
    assert made.next_deadline() == 35.0
    assert ends(made.expire(now=35.0)) == [("waits", "evicted", "no_endpoint")]


def test_a_longer_wait_outlasts_the_usual_one_until_an_engine_has_started() -> None:
    made = scheduler(LONG, a=1)
    made.endpoint_down("a", now=0.0)
    made.arrived(request("r"), now=0.0)
    assert ends(made.expire(now=200.0)) == []
    assert sent(made.endpoint_up("a", now=200.0)) == [("r", "a")]


def test_with_the_first_endpoint_the_usual_wait_begins_anew() -> None:
    made = scheduler(LONG, a=1)
    made.endpoint_down("a", now=0.0)
    for at in range(2):
        made.arrived(request(f"r{at}"), now=0.0)
    assert sent(made.endpoint_up("a", now=100.0)) == [("r0", "a")]
    assert ends(made.expire(now=109.9)) == []
    assert ends(made.expire(now=110.0)) == [("r1", "evicted", "queue_timeout")]


def test_a_pool_that_comes_and_goes_holds_a_request_no_longer_than_both_times() -> None:
    made = scheduler(SchedulerSettings(wait_s_max=10.0, empty_wait_s_max=5.0), a=1)
    running = the_lease(made.arrived(request("runs", streamed=True), now=0.0))
    made.first_token(running, now=0.0)
    made.arrived(request("waits"), now=0.0)
    ended: list[tuple[str, str, str]] = []
    now = 0.0
    while not ended and now < 60.0:
        now += 1.0
        (made.endpoint_drained if now % 2 else made.endpoint_resumed)("a", now=now)
        ended = ends(made.expire(now=now))
    assert (now, ended) == (15.0, [("waits", "evicted", "no_endpoint")])


def test_only_the_models_of_the_gone_endpoint_are_concerned_and_a_bands_own_wait_counts() -> None:
    bands = (BandSettings("one"), BandSettings("two", wait_s_max=20.0))
    made = scheduler(SchedulerSettings(bands=bands, wait_s_max=60.0, empty_wait_s_max=5.0), a=1)
    made.endpoint_added(EndpointSpec("n", 1, frozenset({"n"})), now=0.0)
    made.arrived(request("runs"), now=0.0)
    made.arrived(request("runs-n", model="n"), now=0.0)
    made.arrived(request("m", band=1), now=0.0)
    made.arrived(request("n", model="n", band=1), now=0.0)
    made.endpoint_down("a", now=1.0)
    assert ends(made.expire(now=6.0)) == [("m", "evicted", "no_endpoint")]
    assert ends(made.expire(now=20.0)) == [("n", "evicted", "queue_timeout")]


def test_a_model_whose_last_endpoint_was_removed_is_known_as_long_as_requests_may_wait_for_it() -> None:
    made = scheduler(LONG, a=1)
    made.endpoint_added(EndpointSpec("other", 1, frozenset("n")), now=0.0)
    made.endpoint_removed("a", now=0.0)
    assert made.knows("m", now=299.0) is None
    assert made.knows("m", now=301.0) is False


def test_a_model_whose_last_endpoint_leaves_for_good_is_unknown_from_then_on() -> None:
    made = scheduler(LONG, a=1)
    made.endpoint_added(EndpointSpec("other", 1, frozenset("n")), now=0.0)
    made.arrived(request("runs"), now=0.0)
    made.arrived(request("waits"), now=0.0)
    made.endpoint_drained("a", leaves=True, now=1.0)
    assert made.knows("m", now=1.0) is False
    assert ends(made.reconfigured(LONG, now=1.0)) == [("waits", "evicted", "model_not_found")]
    made.endpoint_resumed("a", now=2.0)
    assert made.knows("m", now=2.0) is True, "it stays after all"
    made.endpoint_drained("a", leaves=True, now=3.0)
    made.endpoint_removed("a", now=3.0)
    assert made.knows("m", now=3.0) is False


def test_a_named_model_is_waited_for_beside_endpoints_of_others() -> None:
    made = scheduler(msgspec.structs.replace(LONG, named_models=frozenset({"named"})), a=1)
    assert ends(made.arrived(request("unknown", model="x"), now=0.0)) == [("unknown", "rejected", "model_not_found")]
    assert ends(made.arrived(request("r", model="named"), now=0.0)) == []
    made.endpoint_changed("a", models=["m"], now=1.0)
    assert ends(made.expire(now=299.0)) == []
    assert sent(made.endpoint_added(EndpointSpec("b", 1, frozenset({"named"})), now=299.0)) == [("r", "b")]
    made.arrived(request("r2", model="named"), now=299.0)
    made.reconfigured(LONG, now=300.0)
    made.endpoint_removed("b", now=300.0)
    made.endpoint_changed("a", models=["m"], now=601.0)
    assert made.knows("named", now=601.0) is False
