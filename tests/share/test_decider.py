"""Between edges and the scheduler: whose request is whose, which facts still hold, and what an edge may not say."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.lifecycle import State
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings, Limits
from penstock.share.decider import Peer
from penstock.share.frames import LinkError
from penstock.share.messages import (
    Allowed,
    Announced,
    Announcing,
    Arrived,
    Cancelled,
    Down,
    Fact,
    Failed,
    Finished,
    FirstToken,
    Places,
    Rerouted,
    Told,
    WherePlaced,
    WireRequest,
)
from tests.share.virtual import BANDS, Chances, SharedWorld


class Beside:
    """A decider, two edges, one endpoint of two slots, and what the edges were told."""

    def __init__(self, engines: dict[str, int] | None = None, **settings: object) -> None:
        bands = tuple(BandSettings(name) for name in BANDS)
        made = SchedulerSettings(bands=bands, **settings)  # type: ignore[arg-type]
        self.world = SharedWorld(seed=1, edges=0, engines=engines or {"e": 2}, chances=Chances(), settings=made)
        self.decider = self.world.decider
        self.told: dict[str, list[Down]] = {"a": [], "b": []}
        self.peers = {name: Peer(name, told.append, self.decider.bands) for name, told in self.told.items()}
        for peer in self.peers.values():
            self.decider.opened(peer)
            self.world.tell(self.decider.take(peer, Announcing([])))
            self.world.tell(self.decider.take(peer, Announced([])))

    def says(self, name: str, *facts: Fact) -> list[Down]:
        """Returns what that edge is told of it."""
        self.told[name].clear()
        for fact in facts:
            self.world.tell(self.decider.take(self.peers[name], fact))
        return self.told[name]

    def running(self) -> int:
        return self.world.scheduler.snapshot(now=self.world.now).running


def _lease(told: list[Down]) -> int:
    (found,) = [m.action.lease for m in told if isinstance(m, Told) and isinstance(m.action, Dispatch)]
    return found


def _request(name: str = "r", **more: object) -> WireRequest:
    return WireRequest.of(Request(name, "m", 0, **more))  # type: ignore[arg-type]


def test_requests_of_two_edges_stand_in_one_queue_and_share_the_slots() -> None:
    beside = Beside()
    first = _lease(beside.says("a", Arrived(1, _request("x"))))
    _lease(beside.says("b", Arrived(1, _request("y"))))
    assert beside.says("b", Arrived(2, _request("z"))) == []  # it waits: both slots are taken
    beside.told["b"].clear()
    beside.says("a", Finished(1, first, Usage(1, 1).row()))
    (told,) = beside.told["b"]
    assert isinstance(told, Told)
    assert told.number == 2


def test_the_same_id_at_two_edges_is_two_requests() -> None:
    beside = Beside()
    one, two = _lease(beside.says("a", Arrived(1, _request()))), _lease(beside.says("b", Arrived(1, _request())))
    assert one != two
    beside.says("a", Finished(1, one))
    assert beside.running() == 1
    beside.says("b", Finished(1, two))
    assert beside.running() == 0


def test_a_dead_edges_leases_come_back_and_what_waited_there_is_dropped() -> None:
    beside = Beside()
    beside.says("a", *(Arrived(n, _request(f"a{n}")) for n in range(1, 6)))
    beside.says("b", Arrived(1, _request("b")))
    beside.told["b"].clear()
    beside.world.tell(beside.decider.lost(beside.peers["a"]))
    assert [type(m.action) for m in beside.told["b"] if isinstance(m, Told)] == [Dispatch]
    assert beside.running() == 1
    assert beside.world.scheduler.snapshot(now=0.0).waiting == 0
    assert [peer.name for peer in beside.decider.peers] == ["b"]


def test_an_answer_that_is_complete_ends_the_request_though_its_lease_was_taken_back() -> None:
    beside = Beside()
    lease = _lease(beside.says("a", Arrived(1, _request())))
    remote = beside.peers["a"].requests[1]
    # as a requeue for an engine that stands still would, while `finished` is on its way:
    beside.world.tell(beside.world.scheduler.failed(lease, Failure.BUSY, now=0.0))
    assert remote.lease != lease
    beside.says("a", Finished(1, lease, Usage(1, 1).row()))
    assert not beside.peers["a"].requests
    assert beside.running() == 0
    assert not beside.world.journeys


@pytest.mark.parametrize("since", ["queued again", "sent to another engine"])
@pytest.mark.parametrize("usage", [Usage(100, 900), None], ids=["told", "not told"])
def test_an_answer_whose_lease_was_taken_back_is_charged_as_it_is_billed(since: str, usage: Usage | None) -> None:
    engines = {"e": 1} if since == "queued again" else {"e": 1, "f": 1}
    beside = Beside(engines, tenants={"t": Limits(tokens_per_minute=10_000)})
    scheduler = beside.world.scheduler
    request = _request(tenant="t", flow=("t",), weights=(1.0,), body_bytes=400)
    lease = _lease(beside.says("a", Arrived(1, request)))
    beside.world.tell(scheduler.failed(lease, Failure.BUSY, now=0.0))
    assert (scheduler.snapshot(now=0.0).waiting == 1) is (since == "queued again")
    told = scheduler.explain("r", now=0.0)
    assert told is not None
    tokens = 1_000 if usage is not None else told.prompt_tokens + told.output_tokens
    beside.says("a", Finished(1, lease, None if usage is None else usage.row()))
    told = scheduler.explain("r", now=0.0)
    assert told is not None
    assert (told.state, told.reason) == (State.COMPLETED, None)
    left = scheduler.allowance(("t",), now=0.0)
    assert left is not None
    assert left.tokens is not None
    assert left.tokens.remaining == 10_000 - tokens
    assert [flow.share for flow in scheduler.snapshot(now=0.0).flows] == [1.0]
    assert all((row.leases, row.given_up) == (0, 0) for row in scheduler.snapshot(now=0.0).endpoints)


@pytest.mark.parametrize("fact", [FirstToken(1, 99), Failed(1, 99, Failure.RESET)], ids=lambda f: type(f).__name__)
def test_a_fact_about_another_lease_changes_nothing(fact: Fact) -> None:
    beside = Beside()
    lease = _lease(beside.says("a", Arrived(1, _request(streamed=True))))
    assert beside.says("a", fact) == []
    assert beside.peers["a"].stale == 1
    assert beside.peers["a"].requests[1].lease == lease


def test_a_request_that_is_over_is_not_over_twice() -> None:
    beside = Beside()
    lease = _lease(beside.says("a", Arrived(1, _request())))
    assert beside.says("a", Cancelled(1), Cancelled(1), Finished(1, lease)) == []
    assert beside.peers["a"].stale == 2
    assert beside.running() == 0


def test_a_dispatch_that_meets_a_hang_up_in_the_queue_costs_nothing() -> None:
    beside = Beside(tenants={"t": Limits(tokens_per_minute=10_000)})
    _lease(beside.says("a", Arrived(1, _request(tenant="t"))))
    beside.says("a", Cancelled(1, queued=True))
    scheduler = beside.world.scheduler
    told = scheduler.explain("r", now=0.0)
    assert told is not None
    assert (told.state, told.reason, told.sent) == (State.EVICTED, Reason.CANCELLED, None)
    left = scheduler.allowance(("t",), now=0.0)
    assert left is not None
    assert left.tokens is not None
    assert left.tokens.remaining == 10_000
    assert beside.running() == 0
    endpoint = scheduler.snapshot(now=0.0).endpoints[0]
    assert (endpoint.leases, endpoint.given_up) == (0, 0)


def test_a_dispatch_that_is_carried_out_when_its_client_hangs_up_is_charged() -> None:
    beside = Beside(tenants={"t": Limits(tokens_per_minute=10_000)})
    _lease(beside.says("a", Arrived(1, _request(tenant="t"))))
    beside.says("a", Cancelled(1))
    told = beside.world.scheduler.explain("r", now=0.0)
    assert told is not None
    assert (told.state, told.reason) == (State.FAILED, Reason.CLIENT_GONE)
    left = beside.world.scheduler.allowance(("t",), now=0.0)
    assert left is not None
    assert left.tokens is not None
    assert left.tokens.remaining < 10_000


def test_a_deadline_counts_from_when_it_is_heard() -> None:
    beside = Beside()
    beside.world.now = 500.0
    beside.says("a", Arrived(1, _request(deadline_s=2.0)))
    assert beside.peers["a"].requests[1].request.deadline_s == 502.0


def test_a_band_means_what_the_edge_knew_it_as() -> None:
    beside = Beside()
    beside.decider.bands = ("first", "standard", "interactive", "batch")
    assert beside.decider._checked(beside.peers["a"], _request()).band == 2  # `interactive`, the edge's highest
    lowest = msgspec.structs.replace(_request(), band=2)
    assert beside.decider._checked(beside.peers["a"], lowest).band == 3
    beside.decider.bands = ("first",)
    assert beside.decider._checked(beside.peers["a"], lowest).band == 0


@pytest.mark.parametrize(
    ("number", "request_", "word"),
    [
        (0, _request(), "request 0 comes after 0"),
        (1, msgspec.structs.replace(_request(), band=3), "in band 3 of 3"),
        (1, msgspec.structs.replace(_request(), band=-1), "in band -1"),
        (1, _request(flow=("a", "b", "c"), weights=(1.0, 1.0, 1.0)), "3 fairness levels instead of 1"),
        (1, _request(flow=("a",), weights=(1.0, 1.0)), "fairness levels"),
        (1, _request(flow=("a",), weights=(0.0,)), "an invalid weight, size or time"),
        (1, _request(body_bytes=-1), "an invalid weight, size or time"),
        (1, _request(flow=("a",), weights=(float("nan"),)), "an invalid weight, size or time"),
        (1, _request(deadline_s=float("inf")), "an invalid weight, size or time"),
        (1, _request("x" * 5000), "a name that is too long"),
    ],
)
def test_what_no_edge_of_ours_says_is_refused_before_the_scheduler_hears_it(
    number: int, request_: WireRequest, word: str
) -> None:
    beside = Beside()
    with pytest.raises(LinkError, match=word):
        beside.says("a", Arrived(number, request_))
    assert not beside.world.journeys


def test_a_number_is_never_used_again() -> None:
    beside = Beside()
    beside.says("a", Arrived(1, _request()), Cancelled(1))
    with pytest.raises(LinkError, match="request 1 comes after 1"):
        beside.says("a", Arrived(1, _request()))


def test_a_tenant_with_rates_gets_the_remainder_before_the_action() -> None:
    beside = Beside(tenants={"t": Limits(requests_per_minute=10)})
    told = beside.says("a", Arrived(1, _request(tenant="t")))
    assert [type(message) for message in told] == [Allowed, Told]
    assert isinstance(told[0], Allowed)
    assert told[0].allowance.requests is not None
    assert told[0].allowance.requests.remaining == 9


def test_queued_requests_have_positions() -> None:
    beside = Beside()
    beside.says("a", *(Arrived(n, _request(f"{n}")) for n in range(1, 5)))
    (told,) = beside.says("a", WherePlaced([1, 3, 4, 77]))
    assert isinstance(told, Places)
    assert [(number, place[0]) for number, place in told.rows] == [(3, 1), (4, 2)]


def test_an_action_is_told_after_its_endpoint() -> None:
    beside = Beside()
    asked: list[tuple[str, str]] = []
    beside.decider.before_dispatch = lambda peer, endpoint: asked.append((peer.name, endpoint))
    actions: list[Action] = beside.decider.take(beside.peers["a"], Arrived(1, _request()))
    assert asked == []
    beside.world.tell(actions)
    assert asked == [("a", "e")]


def test_a_lease_moves_to_the_endpoint_that_an_edges_proxy_used() -> None:
    beside = Beside(engines={"e": 2, "f": 2})
    lease = _lease(beside.says("a", Arrived(1, _request())))
    remote = beside.peers["a"].requests[1]
    other = "f" if remote.endpoint == "e" else "e"
    beside.says("a", Rerouted(1, lease, other))
    assert remote.endpoint == other
    assert {e.name: e.leases for e in beside.world.scheduler.snapshot(now=beside.world.now).endpoints}[other] == 1
    beside.says("a", Finished(1, lease, Usage(1, 1).row()))
    assert beside.running() == 0
