"""One scheduler goes on where another ended: what is announced to it is booked, and nothing is sent until it begins."""

from __future__ import annotations

from random import Random

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Decode, Dispatch, Evict
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings, EndpointSpec, Limits, QueueBounds, part_of
from penstock.core.values.takeover import ServiceGot, Underway

BANDS = (BandSettings("high"), BandSettings("low"))


def scheduler(slots: int = 2, *, labels: dict[str, str] | None = None, **settings: object) -> CheckedScheduler:
    made = CheckedScheduler(SchedulerSettings(bands=BANDS, **settings), random=Random(1))  # type: ignore[arg-type]
    made.endpoint_added(EndpointSpec("e", slots, frozenset({"m"}), labels=labels or {}), now=0.0)
    made.halted(afresh=True, now=0.0)
    return made


def request(name: str, tenant: str = "t", **more: object) -> Request:
    return Request(name, "m", 0, tenant=tenant, flow=(tenant,), **more)  # type: ignore[arg-type]


def sent(actions: list[Action]) -> list[str]:
    assert all(isinstance(action, Dispatch) for action in actions)
    return [action.request_id for action in actions]


def waits(core: CheckedScheduler, name: str, age_s: float, tenant: str = "t", **more: object) -> None:
    core.adopted(request(name, tenant, **more), came_s=age_s, waited_s=age_s, now=100.0)


def runs(core: CheckedScheduler, name: str, lease: int, tenant: str = "t", **more: object) -> None:
    underway = Underway(lease, "e", 1.0, **more)  # type: ignore[arg-type]
    core.adopted(request(name, tenant, streamed=True), came_s=2.0, waited_s=1.0, underway=underway, now=100.0)


def test_nothing_is_sent_while_halted_and_all_that_fits_when_it_begins() -> None:
    core = scheduler()
    assert core.arrived(request("a"), now=1.0) == []
    assert core.arrived(request("b"), now=1.0) == []
    assert core.expire(now=2.0) == []
    assert sent(core.begun(now=3.0)) == ["a", "b"]
    core.halted(now=4.0)
    assert core.finished(core.books.lease_of["a"], Usage(1, 1), now=4.0) == []
    assert core.arrived(request("c"), now=4.0) == []
    assert sent(core.begun(now=5.0)) == ["c"]


def test_requests_that_waited_elsewhere_go_in_order_of_arrival() -> None:
    core = scheduler(slots=1)
    for name, age_s in (("young", 1.0), ("old", 9.0), ("middle", 5.0)):
        waits(core, name, age_s)
    order = sent(core.begun(now=100.0))
    for _ in range(2):
        order += sent(core.finished(core.books.lease_of[order[-1]], Usage(1, 1), now=101.0))
    assert order == ["old", "middle", "young"]


def test_a_late_announcer_is_taken_in_between() -> None:
    core = scheduler(slots=1)
    waits(core, "one", 9.0)
    waits(core, "three", 5.0)
    assert sent(core.begun(now=100.0)) == ["one"]
    core.arrived(request("four"), now=100.0)
    core.halted(now=100.0)
    waits(core, "two", 7.0)
    assert core.begun(now=100.0) == []
    order = ["one"]
    for _ in range(3):
        order += sent(core.finished(core.books.lease_of[order[-1]], Usage(1, 1), now=101.0))
    assert order == ["one", "two", "three", "four"]


def test_a_lease_that_goes_on_takes_its_slot_also_one_too_many() -> None:
    core = scheduler(slots=2)
    for number in (-1, -2, -3):
        runs(core, f"r{-number}", number, begun=True, output_tokens=10)
    waits(core, "w", 3.0)
    assert core.begun(now=100.0) == []
    assert core.finished(-1, Usage(1, 20), now=101.0) == []
    assert sent(core.finished(-2, Usage(1, 20), now=102.0)) == ["w"]
    core.progressed(-3, 50, now=102.0)
    assert core.failed(-3, Failure.BROKEN, now=103.0)[0].request_id == "r3"


def test_a_lease_without_a_first_token_may_be_taken_back() -> None:
    core = scheduler()
    runs(core, "r", -1)
    core.begun(lease_from=1 << 32, now=100.0)
    requeue, dispatch = core.failed(-1, Failure.BUSY, now=100.5)[0], core.expire(now=101.5)[0]
    assert requeue.request_id == "r"
    assert isinstance(dispatch, Dispatch)
    assert dispatch.lease > 1 << 32
    assert dispatch.queue_s == pytest.approx(2.0)  # one second before, one now


def test_a_lease_at_an_endpoint_that_is_not_known_ends_as_any_other() -> None:
    core = scheduler()
    gone = Underway(-1, "gone", 1.0, begun=True)
    core.adopted(request("r", streamed=True), came_s=1.0, waited_s=0.0, underway=gone, now=100.0)
    core.begun(now=100.0)
    core.endpoint_added(EndpointSpec("gone", 1, frozenset({"m"})), now=100.0)
    assert core.inspect().pool["gone"].ledger.load(100.0) == 0
    core.finished(-1, Usage(1, 1), now=101.0)
    assert not core.inspect().leases


def test_a_divided_request_goes_on_to_the_endpoint_that_was_chosen() -> None:
    core = scheduler(labels={"role": "prefill"})
    core.endpoint_added(EndpointSpec("d", 1, frozenset({"m"}), labels={"role": "decode"}), now=0.0)
    runs(core, "r", -1, decode="d", decode_lease=-2)
    core.begun(now=100.0)
    assert core.inspect().pool["d"].ledger.pending == 1
    decode = core.prefilled(-1, Usage(10, 1), now=101.0)[0]
    assert decode == Decode("r", "d", -2)
    core.finished(-2, Usage(10, 5), now=102.0)
    assert core.inspect().pool["d"].ledger.load(102.0) == 0


def test_ages_count_against_what_a_request_may_wait() -> None:
    core = scheduler(slots=1, wait_s_max=10.0)
    runs(core, "r", -1)
    waits(core, "long", 9.0)
    waits(core, "longer", 11.0)
    waits(core, "late", 1.0, deadline_s=99.0)
    core.begun(now=100.0)
    assert {(a.request_id, a.reason) for a in core.expire(now=100.0) if isinstance(a, Evict)} == {
        ("longer", Reason.QUEUE_TIMEOUT),
        ("late", Reason.DEADLINE_MISSED),
    }
    assert [a.request_id for a in core.expire(now=101.0)] == ["long"]


def test_what_was_let_in_elsewhere_is_refused_by_no_bound_and_holds_others_to_it() -> None:
    core = scheduler(
        slots=1, bounds=QueueBounds(requests_max=2), tenants={"t": Limits(running=1, queued=1, tokens_per_minute=1000)}
    )
    runs(core, "r1", -1)
    runs(core, "r2", -2)
    for number in range(4):
        waits(core, f"w{number}", 1.0)
    assert core.begun(now=100.0) == []
    (refused,) = core.arrived(request("new"), now=100.0)
    assert getattr(refused, "reason", None) is Reason.TENANT_LIMIT
    core.finished(-1, Usage(1, 1), now=101.0)
    assert core.inspect().quotas.at_limit(("t",))  # one still runs
    assert sent(core.finished(-2, Usage(1, 1), now=101.0)) == ["w0"]


def test_forgotten_requests_leave_nothing() -> None:
    core = scheduler(slots=1, tenants={"t": Limits(running=1, queued=5, tokens_per_minute=100_000)})
    runs(core, "r", -1, begun=True, output_tokens=500)
    waits(core, "w", 1.0)
    core.begun(now=100.0)
    core.halted(now=100.0)
    assert core.forgotten(["r", "w", "nobody"], now=100.0) == []
    state = core.inspect()
    assert not state.entries
    assert not state.leases
    assert state.pool["e"].ledger.load(100.0) == 0
    assert state.quotas.snapshot(100.0)[0].tokens_left == pytest.approx(100_000)
    assert core.snapshot(now=100.0).models[0].running == 0
    core.halted(afresh=True, now=100.0)
    runs(core, "r", -1)
    core.begun(now=100.0)


def _turns(core: CheckedScheduler, count: int, now: float) -> dict[str, int]:
    """Whose requests are sent, one slot, each taking as many tokens as estimated."""
    got = {"a": 0, "b": 0}
    for _ in range(count):
        (lease, entry) = next(iter(core.inspect().leases.items()))
        got[entry.tenant] += 1
        core.finished(lease, Usage(entry.prompt_tokens, entry.output_tokens), now=now)
    return got


def _service(tenant: str, tokens: float, weight: float = 1.0) -> ServiceGot:
    return ServiceGot(0, (tenant,), (weight,), (tenant,), None, 10.0, tokens, 0.0, 0.0)


@pytest.mark.parametrize("tokens", [{"a": 5000.0, "b": 5000.0}, {"a": 90_000.0, "b": 10.0}, {}])
def test_turns_begin_with_nobody_further_behind_than_by_a_request(tokens: dict[str, float]) -> None:
    """Whatever flows got: who was idle hoards no credit, and who waited was kept close by the one who decided."""
    core = scheduler(slots=1)
    core.credited([_service(name, got) for name, got in tokens.items()], now=100.0)
    runs(core, "r", -1, "a")
    for number in range(60):
        for tenant in "ab":
            waits(core, f"{tenant}{number}", 5.0, tenant, output_tokens_max=50)
    core.begun(afresh=True, now=100.0)
    got = _turns(core, 41, 100.0)
    assert abs(got["a"] - got["b"]) <= 2, got


def test_a_newcomer_gets_no_credit_for_not_having_been_there() -> None:
    core = scheduler(slots=1)
    core.credited([_service("a", 50_000.0)], now=100.0)
    runs(core, "r", -1, "a")
    for number in range(30):
        waits(core, f"a{number}", 5.0, "a", output_tokens_max=50)
    core.begun(afresh=True, now=100.0)
    for number in range(30):
        core.arrived(request(f"b{number}", "b", output_tokens_max=50), now=100.0)
    got = _turns(core, 21, 100.0)
    assert abs(got["a"] - got["b"]) <= 2, got


def test_what_was_spent_elsewhere_counts_against_rates() -> None:
    core = scheduler(tenants={"t": Limits(tokens_per_minute=1000)})
    core.credited([_service("t", 1000.0)], now=100.0)
    core.begun(now=100.0)
    (refused,) = core.arrived(request("r", output_tokens_max=200), now=100.0)
    assert getattr(refused, "reason", None) is Reason.TENANT_LIMIT


def test_sessions_and_prefixes_go_where_they_went() -> None:
    core = scheduler(slots=4, routing="session")
    core.endpoint_added(EndpointSpec("f", 4, frozenset({"m"})), now=0.0)
    core.remembered([("m", "s1", "e"), ("m", "s2", "f")], [("f", (1, 2, 3))], now=0.0)
    core.begun(now=1.0)
    for session, home in (("s1", "e"), ("s2", "f")):
        (action,) = core.arrived(request(f"r{session}", session=session), now=1.0)
        assert isinstance(action, Dispatch)
        assert action.endpoint == home


def test_alone_a_gateway_has_its_part_and_then_all_again() -> None:
    core = scheduler(slots=9, tenants={"t": Limits(running=4, requests_per_minute=2, queued=0)})
    core.begun(now=0.0)
    core.apportioned(4, now=1.0)
    core.endpoint_added(EndpointSpec("f", 3, frozenset({"m"})), now=1.0)
    state = core.inspect()
    assert [e.slots for e in state.pool] == [2, 1]
    assert state.settings.tenants["t"] == Limits(running=1, requests_per_minute=1, queued=0)
    core.endpoint_changed("e", slots=16, now=2.0)
    core.tenants_limited({"t": Limits(running=8)}, now=2.0)
    assert [e.slots for e in state.pool] == [4, 1]
    assert state.settings.tenants["t"] == Limits(running=2)
    core.apportioned(2, now=3.0)
    assert [e.slots for e in state.pool] == [8, 1]
    core.reconfigured(SchedulerSettings(bands=BANDS, bounds=QueueBounds(requests_max=100)), now=3.0)
    assert state.settings.bounds.requests_max == 50
    core.apportioned(1, now=4.0)
    assert [e.slots for e in state.pool] == [16, 3]
    assert state.settings.bounds.requests_max == 100


def test_what_is_learned_of_an_engines_size_is_set_aside_while_alone() -> None:
    core = scheduler()
    core.endpoint_added(EndpointSpec("auto", 32, frozenset({"m"}), adaptive_slots=True), now=0.0)
    endpoint = core.inspect().pool["auto"]
    learned = endpoint.ledger.limit
    core.apportioned(3, now=1.0)
    assert (endpoint.slots, endpoint.finds_slots) == (10, False)
    core.apportioned(1, now=2.0)
    assert (endpoint.slots, endpoint.ledger.limit) == (32, learned)


def test_a_part_is_never_nothing_and_nothing_stays_nothing() -> None:
    whole = SchedulerSettings(bands=BANDS, tenants={"t": Limits(running=0, queued=2), "u": Limits()})
    parts = part_of(whole, 5)
    assert parts.tenants == {"t": Limits(running=0, queued=1), "u": Limits()}
    assert parts.bounds.requests_max == whole.bounds.requests_max // 5
    assert part_of(whole, 1) is whole
