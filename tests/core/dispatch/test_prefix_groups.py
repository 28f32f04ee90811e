"""Prefix groups (docs/design.md#s4, point 11): those whose prompts begin alike go together, and turns stay fair."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import PREFIX_CHUNK_BYTES, Request, Usage
from penstock.core.values.settings import AdmissionSettings, BandSettings, Limits, QueueBounds, RoutingSettings
from tests.core.chaos import Chaos
from tests.core.drive import scheduler, sent, the_lease

TWO_BANDS = (BandSettings("high"), BandSettings("low"))
TOKENS = 1_024  # eight keys of 128
A, B = range(100, 110), range(200, 210)  # two documents


def settings(*, group: int = 4, prefill_tokens: int = 10**9, policy: str = "predicted_ttft", **more: Any) -> Any:
    return SchedulerSettings(
        bands=TWO_BANDS,
        routing=policy,
        router=RoutingSettings(prefix_group=group, prefix_group_tokens=TOKENS, **more.pop("router", {})),
        admission=AdmissionSettings(prefill_tokens_max=prefill_tokens, reserved_share=0.0),
        wait_s_max=1e6,
        **more,
    )


def prompt(name: str, document: range, *, tenant: str = "", band: int = 1, **more: Any) -> Request:
    """A document, and one key that is the request's own."""
    keys = (*document, 1_000_000 + abs(int.from_bytes(name.encode(), "big")))
    size = PREFIX_CHUNK_BYTES * len(keys)
    tenant = tenant or name
    given: dict[str, Any] = {"tenant": tenant, "flow": (tenant,), "output_tokens_max": 50, "streamed": True}
    return Request(id=name, model="m", band=band, body_bytes=size, prefix=keys, **given | more)


def busy(made: CheckedScheduler, first: str = "leader", document: range = A) -> int:
    """One endpoint of one slot, taken: the lease."""
    return the_lease(made.arrived(prompt(first, document), now=0.0))


def drained_in_order(made: CheckedScheduler, lease: int, *, now: float = 10.0) -> list[str]:
    """End one request after the other; who was sent, in order."""
    order: list[str] = []
    while True:
        now += 1.0
        made.first_token(lease, now=now)
        actions = sent(made.finished(lease, Usage(1_408, 50, 0), now=now + 0.5))
        if not actions:
            return order
        order += [name for name, _ in actions]
        lease = next(iter(made.books.leases))


def test_those_with_the_same_prefix_follow_before_others_turn_comes() -> None:
    for group, expected in ((4, ["a1", "a2", "b1", "b2"]), (0, ["b1", "a1", "b2", "a2"])):
        made = scheduler(settings(group=group), a=1)
        lease = busy(made)
        for name, document in (("b1", B), ("a1", A), ("b2", B), ("a2", A)):
            assert sent(made.arrived(prompt(name, document), now=1.0)) == []
        assert drained_in_order(made, lease) == expected


def test_no_more_than_k_follow_and_then_the_next_in_turn_leads() -> None:
    made = scheduler(settings(group=2), a=1)
    lease = busy(made)
    for name, document in (("b1", B), ("a1", A), ("a2", A), ("a3", A), ("b2", B)):
        made.arrived(prompt(name, document), now=1.0)
    assert drained_in_order(made, lease) == ["a1", "a2", "b1", "b2", "a3"]


def test_too_little_in_common_is_no_reason_to_follow() -> None:
    made = scheduler(settings(), a=1)
    lease = busy(made)
    made.arrived(prompt("b1", B), now=1.0)
    made.arrived(prompt("a1", range(100, 107)), now=1.0)  # 7 keys of A, then its own: 8 keys, one not shared
    assert drained_in_order(made, lease) == ["b1", "a1"]


def test_who_shares_most_follows_first() -> None:
    made = scheduler(settings(group=1), a=1)
    lease = busy(made, document=range(100, 140))
    made.arrived(prompt("little", range(100, 110)), now=1.0)
    made.arrived(prompt("most", range(100, 138)), now=1.0)
    assert drained_in_order(made, lease)[0] == "most"


def test_a_flow_gets_ahead_by_k_of_its_requests_and_no_more() -> None:
    """One tenant has nothing but siblings, and leads itself; the other one's turn comes all the same."""
    made = scheduler(settings(group=3), a=1)
    lease = busy(made)
    for at in range(30):
        made.arrived(prompt(f"a{at}", A, tenant="many"), now=1.0)
        made.arrived(prompt(f"b{at}", range(1_000 * at, 1_000 * at + 10), tenant="other"), now=1.0)
    order = drained_in_order(made, lease)
    assert len(order) == 60
    for end in range(1, 50):
        many = sum(name.startswith("a") for name in order[:end])
        assert 2 * many - end <= 3 + 1, order[:end]


def test_a_higher_band_goes_first_whoever_has_the_same_prefix() -> None:
    made = scheduler(settings(), a=1)
    lease = busy(made)
    made.arrived(prompt("a1", A), now=1.0)
    made.arrived(prompt("high", B, band=0), now=1.0)
    assert drained_in_order(made, lease) == ["high", "a1"]


def test_in_its_own_flow_nobody_is_overtaken_but_where_arrival_is_the_order() -> None:
    for ordering, expected in (("fcfs", ["a1", "b1"]), ("deadline", ["b1", "a1"])):
        made = scheduler(settings(ordering=ordering), a=1)
        lease = busy(made)
        made.arrived(prompt("b1", B, tenant="t", deadline_s=500.0), now=1.0)
        made.arrived(prompt("a1", A, tenant="t", deadline_s=600.0), now=1.0)
        assert drained_in_order(made, lease) == expected
    made = scheduler(settings(), a=1)
    lease = busy(made)
    made.arrived(prompt("b1", B, tenant="t", priority=0), now=1.0)
    made.arrived(prompt("a1", A, tenant="t", priority=1), now=1.0)
    assert drained_in_order(made, lease) == ["b1", "a1"], "its caller wants the other one first"


def test_in_its_own_flow_a_request_is_overtaken_32_times_at_most() -> None:
    made = scheduler(settings(group=64), a=1)
    lease = busy(made)
    made.arrived(prompt("b1", B, tenant="t"), now=1.0)
    for at in range(60):
        made.arrived(prompt(f"a{at}", A, tenant="t"), now=1.0)
        made.arrived(prompt(f"z{at}", range(1_000 * at, 1_000 * at + 10), tenant="z", output_tokens_max=5_000), now=1.0)
    order = [name for name in drained_in_order(made, lease) if name[0] in "ab"]
    assert order.index("b1") <= 32


def test_a_tenant_at_its_limit_does_not_follow() -> None:
    made = scheduler(settings(tenants={"capped": Limits(running=1)}), a=2)
    made.arrived(prompt("own", B, tenant="capped"), now=0.0)
    lease = busy(made)
    made.arrived(prompt("a1", A, tenant="capped"), now=1.0)
    made.arrived(prompt("b1", range(7_000, 7_010)), now=1.0)
    made.first_token(lease, now=2.0)
    assert sent(made.finished(lease, now=3.0)) == [("b1", "a")]


def test_who_was_just_refused_there_does_not_follow() -> None:
    made = scheduler(settings(), a=2)
    other = the_lease(made.arrived(prompt("other", range(7_000, 7_010)), now=0.0))
    refused = the_lease(made.arrived(prompt("a1", A), now=0.0))
    made.failed(refused, Failure.BUSY, now=1.0)
    made.arrived(prompt("b1", B), now=1.05)
    assert "a1" not in [name for name, _ in sent(made.finished(other, now=1.06))]


def test_who_has_its_cache_or_its_session_elsewhere_does_not_follow() -> None:
    made = scheduler(settings(policy="prefix"), a=1, b=1)
    one, other = busy(made, "leader"), the_lease(made.arrived(prompt("c0", range(300, 320)), now=0.0))
    where = {held.request_id: held.endpoint for held in made.books.leases.values()}
    assert where["leader"] != where["c0"]
    session = prompt("s0", range(7_000, 7_010), session="s")
    made.finished(other, now=0.5)
    home = the_lease(made.arrived(session, now=0.6))
    made.arrived(prompt("b1", B), now=1.0)
    made.arrived(prompt("s1", range(7_000, 7_010), session="s"), now=1.0)
    made.first_token(one, now=1.5)
    assert sent(made.finished(one, now=2.0)) == [("b1", where["leader"])]
    assert sent(made.finished(home, now=3.0)) == [("s1", where["c0"])]


def test_an_explanation_says_whom_it_followed() -> None:
    made = scheduler(settings(), a=1)
    lease = busy(made)
    made.arrived(prompt("b1", B), now=1.0)
    made.arrived(prompt("a1", A), now=1.0)
    made.finished(lease, now=2.0)
    told, passed = made.explain("a1", now=2.0), made.explain("b1", now=2.0)
    assert told is not None
    assert told.sent is not None
    assert told.sent.followed == "leader"
    assert passed is not None
    assert [(one.tenant, one.why) for one in passed.before] == [("a1", "followed")]


def test_settings_may_change_while_siblings_wait() -> None:
    made = scheduler(settings(), a=1)
    lease = busy(made)
    for name, document in (("b1", B), ("a1", A), ("b2", B), ("a2", A)):
        made.arrived(prompt(name, document), now=1.0)
    made.reconfigured(settings(group=0, fairness="round_robin"), now=2.0)
    made.reconfigured(settings(group=1), now=3.0)
    assert drained_in_order(made, lease) == ["b1", "b2", "a1", "a2"], "the leader was forgotten; then one each"
    assert not made.inspect().groups._waiting


# --- siblings whose prefix is being computed --------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["predicted_ttft", "prefix", "kv", "lmetric"])
def test_a_burst_of_siblings_of_a_cold_prefix_counts_as_one_prefill(policy: str) -> None:
    """Sixteen requests, 8,000 tokens in common, 128 of their own: one prefill and what is each one's own."""
    document = range(500, 563)
    made = scheduler(settings(policy=policy, prefill_tokens=16_384), a=32)
    for at in range(16):
        assert sent(made.arrived(prompt(f"r{at}", document), now=0.001 * at)) == [(f"r{at}", "a")]
    assert made.inspect().pool["a"].ledger.prefill.outstanding_tokens <= 8_192 + 15 * 128
    assert sent(made.arrived(prompt("cold", range(9_000, 9_063)), now=0.1)) == [], "a second one does not fit beside it"


# --- under trouble ----------------------------------------------------------------------------------------------------


def test_followers_keep_what_the_checkers_ask_for_under_trouble() -> None:
    made = structs.replace(
        settings(prefill_tokens=4_000),
        router=RoutingSettings(prefix_group=3, prefix_group_tokens=256),
        wait_s_max=4.0,
        bounds=QueueBounds(requests_max=40),
    )
    followed = 0
    for seed in range(4):
        chaos = Chaos(seed, made, requests=200, trouble=0.1, operators=seed > 0)
        chaos.run()
        trails = [
            chaos.scheduler.inspect().recorder.trail(entry) for entry in chaos.scheduler.inspect().recorder.latest()
        ]
        followed += sum(trail.sent is not None and trail.sent.followed is not None for trail in trails)
    assert followed >= 5
