"""One request, two endpoints: both leases at once, one report at a time, and one outcome for each failure."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.endpoints.concurrency import ConcurrencyLimit
from penstock.core.endpoints.ledger import Ledger
from penstock.core.endpoints.roles import Role, bootstrap_port_of, role_of
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Decode, Dispatch
from penstock.core.values.catalogue import Cause, Failure
from penstock.core.values.observation import Observation
from penstock.core.values.request import Usage
from penstock.core.values.settings import AdmissionSettings, EndpointSpec
from tests.core.drive import ends, lease, request, requeued, scheduler, sent, the_lease

SETTINGS = SchedulerSettings(admission=AdmissionSettings(prefill_tokens_max=1000, reserved_share=0.0))


def pairs(settings: SchedulerSettings = SETTINGS, **slots: int) -> CheckedScheduler:
    """Endpoints by the first letter of their names: p prefill, m prefill where they meet, d decode, others both."""
    made = scheduler(settings)
    for name, count in slots.items():
        add(made, name, count)
    return made


def add(made: CheckedScheduler, name: str, slots: int, *, now: float = 0.0) -> list[Action]:
    role = {"p": "prefill", "m": "prefill", "d": "decode"}.get(name[0])
    labels = {} if role is None else {"role": role}
    if name[0] == "m":
        labels["bootstrap_port"] = "8998"
    spec = EndpointSpec(name=name, slots=slots, models=frozenset({"m"}), labels=labels)
    return made.endpoint_added(spec, now=now)


def the_pair(actions: list[Action]) -> tuple[str, str | None]:
    (dispatch,) = [a for a in actions if isinstance(a, Dispatch)]
    return dispatch.endpoint, dispatch.decode


def handed_over(actions: list[Action]) -> Decode:
    (decode,) = [a for a in actions if isinstance(a, Decode)]
    return decode


def held(made: CheckedScheduler, now: float = 0.0) -> dict[str, tuple[int, int]]:
    """Leases, and how many of them are pending, by endpoint."""
    return {e.name: (e.leases, e.pending) for e in made.snapshot(now=now).endpoints}


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        ({}, Role.BOTH),
        ({"role": "prefill"}, Role.PREFILL),
        ({"llm-d.ai/role": "decode"}, Role.DECODE),
        ({"role": "both", "llm-d.ai/role": "decode"}, Role.BOTH),
        ({"role": "gateway"}, Role.BOTH),
    ],
)
def test_a_role_is_that_of_the_label_and_unlabelled_is_both(labels: dict[str, str], role: Role) -> None:
    assert role_of(labels) is role


@pytest.mark.parametrize(
    ("labels", "port"),
    [
        ({"role": "prefill", "bootstrap_port": "8998"}, 8998),
        ({"role": "prefill", "bootstrap_port": "65535"}, 65535),
        ({"role": "prefill"}, None),
        ({"role": "decode", "bootstrap_port": "8998"}, None),
        ({"bootstrap_port": "8998"}, None),
        *(({"role": "prefill", "bootstrap_port": said}, None) for said in ("", "0", "65536", "-1", "x", "²", "9" * 99)),
    ],
)
def test_engines_meet_where_the_one_that_computes_prompts_says_so(labels: dict[str, str], port: int | None) -> None:
    assert bootstrap_port_of(labels) == port


# --- both leases at once ----------------------------------------------------------------------------------------


def test_a_request_is_leased_on_both_at_once_and_its_decode_begins_when_its_prompt_is_computed() -> None:
    made = pairs(p=2, d=2)
    first = made.arrived(request("r", prompt_tokens=100, streamed=True), now=0.0)
    assert the_pair(first) == ("p", "d")
    assert held(made) == {"p": (1, 0), "d": (1, 1)}
    decode = handed_over(made.prefilled(the_lease(first), Usage(100, 1), now=1.0))
    assert decode.endpoint == "d"
    assert held(made) == {"p": (0, 0), "d": (1, 0)}
    made.first_token(decode.lease, now=1.1)
    made.finished(decode.lease, Usage(100, 50), now=2.0)
    assert held(made) == {"p": (0, 0), "d": (0, 0)}


def test_no_prompt_is_computed_while_no_decode_slot_is_free() -> None:
    made = pairs(p=8, d=1)
    first = made.arrived(request("first"), now=0.0)
    assert made.arrived(request("second"), now=0.0) == []
    assert made.snapshot(now=0.0).models[0].cause is Cause.SLOTS_FULL
    decode = handed_over(made.prefilled(the_lease(first), now=1.0))
    assert sent(made.finished(decode.lease, now=2.0)) == [("second", "p")]


def test_a_prefill_endpoint_is_limited_by_its_prompts_and_a_decode_endpoint_is_not() -> None:
    made = pairs(p=8, d=8)
    first = made.arrived(request("first", prompt_tokens=900), now=0.0)
    assert made.arrived(request("second", prompt_tokens=900), now=0.0) == []
    assert made.snapshot(now=0.0).models[0].cause is Cause.PREFILL_FULL
    second = made.prefilled(the_lease(first), now=1.0)
    assert sent(second) == [("second", "p")]
    made.prefilled(the_lease(second), now=2.0)
    assert held(made) == {"p": (0, 0), "d": (2, 0)}


def test_a_decode_endpoint_is_asked_again_when_its_engine_is_sent_the_request() -> None:
    """The last token of the prompt is computed there: it has no room for a whole one of any size any more."""
    made = pairs(p=2, d=8)
    first = made.arrived(request("first", prompt_tokens=100, streamed=True), now=0.0)
    made.paused("m", now=0.1)
    made.arrived(request("looks"), now=0.1)  # so it is known to be open, and to compute nothing
    made.cancelled("looks", now=0.1)
    made.resumed("m", now=0.1)
    handed_over(made.prefilled(the_lease(first), now=1.0))
    assert made.arrived(request("large", prompt_tokens=1500, divisible=False), now=1.0) == []
    assert made.snapshot(now=1.0).models[0].cause is Cause.PREFILL_FULL


def test_a_decode_endpoint_without_memory_for_the_whole_keeps_the_prompt_from_being_computed() -> None:
    made = pairs(p=8, d=8)
    made.observed("d", Observation(0.0, 1, 0, kv_usage=0.5, kv_capacity_tokens=1000), now=0.0)
    first = made.arrived(request("first", prompt_tokens=300), now=0.0)
    assert the_pair(first) == ("p", "d")
    assert made.arrived(request("second", prompt_tokens=300), now=0.0) == [], "what is pending there takes memory too"
    assert made.snapshot(now=0.0).models[0].cause is Cause.KV_FULL
    assert sent(made.cancelled("first", now=0.1)) == [("second", "p")]


def test_decode_endpoints_are_chosen_by_load_and_prefill_endpoints_by_the_policy() -> None:
    made = pairs(replace(SETTINGS, routing="prefix"), p1=4, p2=4, d1=4, d2=4)
    chosen = [
        the_pair(made.arrived(request(f"r{at}", prompt_tokens=400, prefix=(1, 2, 3)), now=at * 10.0)) for at in range(2)
    ]
    assert chosen[0][0] == chosen[1][0]
    assert {decode for _, decode in chosen} == {"d1", "d2"}


def test_requests_that_are_not_divided_go_whole_to_decode_endpoints() -> None:
    made = pairs(replace(SETTINGS, divided_tokens_min=50), p=2, d=2)
    assert the_pair(made.arrived(request("indivisible", divisible=False, prompt_tokens=100), now=0.0)) == ("d", None)
    assert the_pair(made.arrived(request("short", prompt_tokens=20), now=0.0)) == ("d", None)
    made = pairs(p=2, d=2)
    assert the_pair(made.arrived(request("pinned", pinned="p"), now=0.0)) == ("p", None)


def test_endpoints_without_a_role_take_whole_requests_beside_the_pairs() -> None:
    made = pairs(p=1, d=4, u=1)
    chosen = {the_pair(made.arrived(request(f"r{at}"), now=0.0)) for at in range(2)}
    assert chosen == {("p", "d"), ("u", None)}


def test_what_is_paid_is_what_the_prefill_found_cached_and_not_what_came_over() -> None:
    made = pairs(p=1, d=1)
    first = made.arrived(request("r", prompt_tokens=100), now=0.0)
    decode = handed_over(made.prefilled(the_lease(first), Usage(100, 1, 40, cached_told=True), now=1.0))
    made.finished(decode.lease, Usage(100, 10, 99, cached_told=True), now=2.0)
    told = made.explain("r", now=2.0)
    assert told is not None
    assert (told.sent and told.sent.decode_endpoint, told.sent and told.sent.decode_at_s) == ("d", 1.0)
    (ended,) = made.snapshot(now=2.0).requests.ended
    assert ended.endpoint == "d"
    entry = made.inspect().recorder.find("r")
    assert entry is not None
    assert entry.charged == (100 - 40) * 1.0 + 10 * 2.0


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_prefill_that_fails_gives_both_back_and_goes_elsewhere() -> None:
    made = pairs(p1=2, p2=2, d=2)
    first = made.arrived(request("r"), now=0.0)
    actions = made.failed(the_lease(first), Failure.SERVER_ERROR, now=1.0)
    assert requeued(actions) == ["r"]
    assert {the_pair(first)[0], the_pair(actions)[0]} == {"p1", "p2"}
    assert held(made)["d"] == (1, 1)


def test_a_refused_prefill_costs_no_attempt_and_comes_back_when_it_may() -> None:
    made = pairs(replace(SETTINGS, attempts_max=1), p=2, d=2)
    first = made.arrived(request("r"), now=0.0)
    assert requeued(made.failed(the_lease(first), Failure.BUSY, now=1.0)) == ["r"]
    assert held(made, now=1.0) == {"p": (0, 0), "d": (0, 0)}
    due_s = made.next_deadline()
    assert due_s is not None
    assert sent(made.expire(now=due_s)) == [("r", "p")]


def test_a_decode_that_fails_before_its_first_byte_is_prefilled_again() -> None:
    made = pairs(p=2, d1=2, d2=2)
    first = made.arrived(request("r"), now=0.0)
    decode = handed_over(made.prefilled(the_lease(first), now=1.0))
    actions = made.failed(decode.lease, Failure.CONNECT, now=1.1)
    assert requeued(actions) == ["r"]
    assert the_pair(actions) == ("p", "d2" if decode.endpoint == "d1" else "d1")


def test_attempts_are_counted_over_both_phases() -> None:
    made = pairs(replace(SETTINGS, attempts_max=2), p=2, d1=2, d2=2)
    again = made.failed(the_lease(made.arrived(request("r"), now=0.0)), Failure.RESET, now=1.0)
    due_s = made.next_deadline()
    assert (requeued(again), due_s) == (["r"], 2.0)
    decode = handed_over(made.prefilled(the_lease(made.expire(now=2.0)), now=3.0))
    assert ends(made.failed(decode.lease, Failure.RESET, now=3.1)) == [("r", "failed", "upstream_error")]
    assert held(made, now=3.1) == {"p": (0, 0), "d1": (0, 0), "d2": (0, 0)}


def test_a_decode_endpoint_lost_during_the_prefill_is_replaced_and_what_was_computed_used() -> None:
    made = pairs(p=2, d1=2, d2=2)
    first = made.arrived(request("r"), now=0.0)
    lost = the_pair(first)[1]
    assert lost is not None
    made.endpoint_down(lost, now=0.5)
    decode = handed_over(made.prefilled(the_lease(first), now=1.0))
    assert {lost, decode.endpoint} == {"d1", "d2"}
    assert held(made, now=1.0) == {"p": (0, 0), decode.endpoint: (1, 0), lost: (0, 0)}


@pytest.mark.parametrize("gone", ["removed", "down"])
def test_with_no_other_decode_endpoint_it_is_sent_there_and_fails(gone: str) -> None:
    made = pairs(p=2, d=2)
    first = made.arrived(request("r"), now=0.0)
    if gone == "removed":
        made.endpoint_removed("d", now=0.5)
    else:
        made.endpoint_down("d", now=0.5)
    decode = handed_over(made.prefilled(the_lease(first), now=1.0))
    assert requeued(made.failed(decode.lease, Failure.CONNECT, now=1.0)) == ["r"]
    assert made.snapshot(now=1.0).models[0].cause is Cause.NO_BACKEND
    assert the_pair(add(made, "d3", 2, now=1.5)) == ("p", "d3"), "the prefill endpoint did not fail"


def test_where_they_meet_the_one_that_answers_can_fail_first_and_is_the_one_that_is_blamed() -> None:
    made = pairs(m=2, d1=2, d2=2)
    lease = the_lease(first := made.arrived(request("r", prompt_tokens=100, streamed=True), now=0.0))
    assert the_pair(first) == ("m", "d1")
    again = made.failed(lease, Failure.RESET, answering=True, now=1.0)
    assert requeued(again) == ["r"]
    assert the_pair(again) == ("m", "d2"), "away from it, and not from who computes the prompt"
    assert [made.inspect().pool[name].failure for name in ("m", "d1", "d2")] == [None, Failure.RESET, None]
    assert held(made, 1.0) == {"m": (1, 0), "d1": (0, 0), "d2": (1, 1)}


def test_where_they_meet_nobody_can_take_over_who_was_not_asked() -> None:
    made = pairs(m=2, d1=2, d2=2)
    lease = the_lease(made.arrived(request("r", prompt_tokens=100, streamed=True), now=0.0))
    made.endpoint_down("d1", now=0.5)
    assert handed_over(made.prefilled(lease, Usage(100, 1), now=1.0)).endpoint == "d1"


def test_who_answers_may_be_gone_when_its_failure_is_told() -> None:
    made = pairs(m=2, d1=2, d2=2)
    lease = the_lease(made.arrived(request("r", prompt_tokens=100, streamed=True), now=0.0))
    made.endpoint_removed("d1", now=0.5)
    assert the_pair(made.failed(lease, Failure.RESET, answering=True, now=1.0)) == ("m", "d2")


def test_a_cancel_in_either_phase_gives_everything_back() -> None:
    made = pairs(p=2, d=2)
    made.arrived(request("first"), now=0.0)
    second = made.arrived(request("second"), now=0.0)
    made.prefilled(the_lease(second), now=1.0)
    made.cancelled("first", now=1.0)
    made.cancelled("second", now=1.0)
    assert held(made, now=1.0) == {"p": (0, 0), "d": (0, 0)}


def test_without_a_prefill_endpoint_in_service_decode_endpoints_compute_prompts_themselves() -> None:
    made = pairs(p=2, d=2)
    made.endpoint_down("p", now=0.0)
    assert the_pair(made.arrived(request("r"), now=0.0)) == ("d", None)
    made.endpoint_up("p", now=1.0)
    assert the_pair(made.arrived(request("next"), now=1.0)) == ("p", "d")


def test_without_an_endpoint_to_answer_nothing_is_computed() -> None:
    made = pairs(replace(SETTINGS, wait_s_max=5.0), p=2)
    assert made.arrived(request("r"), now=0.0) == []
    assert made.snapshot(now=0.0).models[0].cause is Cause.NO_BACKEND
    assert ends(made.expire(now=5.0)) == [("r", "evicted", "no_endpoint")]


def test_slots_are_counted_where_requests_are_answered() -> None:
    made = pairs(p=50, d=3)
    assert made.snapshot(now=0.0).models[0].slots == 3


# --- the ledger of a decode endpoint ----------------------------------------------------------------------------


def test_a_pending_lease_takes_its_slot_whatever_the_engine_says_of_itself() -> None:
    own = Ledger(ConcurrencyLimit(4), stale_after_s=5.0)
    pending = lease(1, at=0.0)
    own.reserve(pending)
    own.observe(Observation(1.0, 2, 0, progress=1.0))
    assert own.load(1.0) == 3, "two of others, and ours, which is not there yet"
    assert own.engine_queue(1.0) == 0, "it does not wait inside the engine"
    own.begin(pending, 1.5)
    assert own.load(1.5) == 3
    own.observe(Observation(2.0, 3, 0, progress=2.0))
    assert own.load(2.0) == 3
    own.remove(pending, 3.0)
    assert own.load(3.0) == 2


def test_a_pending_lease_outlives_a_restart_for_it_was_never_sent() -> None:
    own = Ledger(ConcurrencyLimit(4), stale_after_s=5.0)
    own.reserve(lease(1, at=0.0))
    own.observe(Observation(1.0, 1, 0, progress=9.0))
    assert own.observe(Observation(2.0, 1, 0, progress=1.0)), "another process"
    assert (list(own.leases), own.pending) == ([1], 1)
