"""Limits of keys and models within a tenant: each holds, with the tenant's own, and holds up nobody else."""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.core.queueing.quotas import Quotas, own_account, whose
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.request import Request, Usage
from penstock.core.values.rows import LimitReached
from penstock.core.values.settings import Limits
from tests.core.drive import ends, request, scheduler, sent, the_lease

CI, LLAMA = own_account("team", "key", "ci"), own_account("team", "model", "m")
BOTH = ("team", CI, LLAMA)


def of(name: str, *also: str, tenant: str = "team", **more: Any) -> Request:
    """A request whose flow is as the gateway makes it: one for each set of accounts, within the tenant's."""
    own = " ".join([" ".join(whose(one)[1:]) for one in also])
    made = request(name, tenant=tenant, also=also, **more)
    flow, weights = ((f" {tenant}", f"{tenant} {own}"), (1.0, 1.0)) if tenant == "team" else ((tenant,), (1.0,))
    return made.but(flow=flow, weights=weights)


def test_a_request_is_admitted_if_all_its_accounts_have_room_and_charged_to_all() -> None:
    quotas = Quotas(
        {"team": Limits(requests_per_minute=10), CI: Limits(requests_per_minute=1), LLAMA: Limits(tokens_per_minute=60)}
    )
    assert quotas.admit(BOTH, tokens=50, now=0.0) is None
    refused = quotas.admit(BOTH, tokens=50, now=0.0)
    assert refused == LimitReached("requests_per_minute", 1, 60.0, CI), "the one that takes longest"
    assert quotas.admit(("team", LLAMA), tokens=50, now=0.0) == LimitReached("tokens_per_minute", 60, 40.0, LLAMA)
    assert quotas.admit(("team",), tokens=50, now=0.0) is None
    left = quotas.allowance(("team",), 0.0)
    assert left is not None
    assert left.requests is not None
    assert left.requests.remaining == 8, "what was refused cost nothing anywhere"


def test_the_remainder_that_is_shown_is_the_least() -> None:
    quotas = Quotas({"team": Limits(requests_per_minute=10, tokens_per_day=500), CI: Limits(requests_per_minute=3)})
    left = quotas.allowance(("team", CI), 0.0)
    assert left is not None
    assert left.requests is not None
    assert left.tokens_day is not None
    assert (left.requests.limit, left.tokens, left.tokens_day.limit) == (3, None, 500)


def test_the_queue_of_a_key_is_bounded_apart() -> None:
    made = scheduler(SchedulerSettings(tenants={CI: Limits(queued=1)}), a=1)
    made.arrived(of("runs"), now=0.0)
    assert ends(made.arrived(of("waits", CI), now=0.0)) == []
    (refused,) = made.arrived(of("refused", CI), now=0.0)
    assert ends([refused]) == [("refused", "rejected", "tenant_limit")]
    assert refused.limit == LimitReached("queued", 1, account=CI)  # type: ignore[union-attr]
    assert ends(made.arrived(of("another"), now=0.0)) == []


def test_a_key_at_its_running_limit_waits_alone() -> None:
    """Its requests, more than a look takes in, stand before those of others, and hold up none of them."""
    made = scheduler(SchedulerSettings(tenants={CI: Limits(running=1)}), a=3)
    first = the_lease(made.arrived(of("ci0", CI), now=0.0))
    for at in range(1, 1_200):
        assert sent(made.arrived(of(f"ci{at}", CI), now=0.0)) == []
    others = [sent(made.arrived(one, now=1.0)) for one in (of("own"), of("other", tenant="b"))]
    assert [names for names, *_ in others] == [("own", "a"), ("other", "a")]
    assert sent(made.finished(first, Usage(1, 1), now=2.0)) == [("ci1", "a")]


def test_limits_of_a_key_and_a_model_hold_together_and_with_the_tenants() -> None:
    """Random arrivals and ends, with all invariants checked after each: the work ends, whatever is at its limit."""
    random = Random(7)
    limits = {"team": Limits(running=4), CI: Limits(running=2), LLAMA: Limits(running=3, queued=40)}
    made = scheduler(SchedulerSettings(tenants=limits), a=3, b=3)
    running: dict[int, str] = {}
    done = 0
    for at in range(600):
        now = at / 10
        actions = []
        if random.random() < 0.6:
            also = random.choice([(), (CI,), (LLAMA,), (CI, LLAMA)])
            tenant = "team" if also or random.random() < 0.5 else "b"
            actions = made.arrived(of(f"r{at}", *also, tenant=tenant), now=now)
        elif running:
            lease = random.choice(sorted(running))
            del running[lease]
            done += 1
            actions = made.finished(lease, Usage(5, 5), now=now)
        running |= {action.lease: action.request_id for action in actions if hasattr(action, "lease")}
        if at == 300:
            made.tenants_limited({CI: Limits(running=1), LLAMA: Limits(running=2)}, now=now)
    while running:
        lease = min(running)
        del running[lease]
        done += 1
        actions = made.finished(lease, Usage(5, 5), now=61.0)
        running |= {action.lease: action.request_id for action in actions if hasattr(action, "lease")}
    assert done > 200
    assert made.inspect().queues.waiting == 0


def test_a_key_that_waited_at_its_limit_hoards_no_credit() -> None:
    made = scheduler(SchedulerSettings(tenants={CI: Limits(running=1)}), a=2)
    slow = the_lease(made.arrived(of("ci0", CI), now=0.0))
    turn = the_lease(made.arrived(of("own0"), now=0.0))
    for at in range(1, 20):
        made.arrived(of(f"ci{at}", CI), now=0.0)
        made.arrived(of(f"own{at}"), now=0.0)
    for at in range(1, 11):
        (turn,) = [a.lease for a in made.finished(turn, Usage(10, 50), now=float(at)) if hasattr(a, "lease")]
    freed = [name for name, _ in sent(made.finished(slow, Usage(10, 50), now=20.0))]
    assert freed == ["ci1"]
    assert sent(made.finished(turn, Usage(10, 50), now=21.0)) == [("own11", "a")]
