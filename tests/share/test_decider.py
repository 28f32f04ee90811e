"""Between edges and the scheduler: whose request is whose, which facts still hold, and what an edge may not say."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.catalogue import Failure
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings, Limits
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
    Told,
    WherePlaced,
)
from penstock.share.peer import Peer
from tests.share.virtual import BANDS, Chances, SharedWorld


class Office:
    """A decider, two edges, one endpoint of two slots, and what the edges were told."""

    def __init__(self, **settings: object) -> None:
        bands = tuple(BandSettings(name) for name in BANDS)
        made = SchedulerSettings(bands=bands, **settings)  # type: ignore[arg-type]
        self.world = SharedWorld(seed=1, edges=0, engines={"e": 2}, chances=Chances(), settings=made)
        self.decider = self.world.decider
        self.told: dict[str, list[Down]] = {"a": [], "b": []}
        self.peers = {name: Peer(name, told.append, self.decider.bands) for name, told in self.told.items()}
        for peer in self.peers.values():
            self.decider.opened(peer)
            self.world.tell(self.decider.take(peer, Announcing([])))
            self.world.tell(self.decider.take(peer, Announced([], 1)))

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


def _request(name: str = "r", **more: object) -> Request:
    return Request(name, "m", 0, **more)  # type: ignore[arg-type]


def test_requests_of_two_edges_stand_in_one_queue_and_share_the_slots() -> None:
    office = Office()
    first = _lease(office.says("a", Arrived(1, _request("x"))))
    _lease(office.says("b", Arrived(1, _request("y"))))
    assert office.says("b", Arrived(2, _request("z"))) == []  # it waits: both slots are taken
    office.told["b"].clear()
    office.says("a", Finished(1, first, Usage(1, 1)))
    (told,) = office.told["b"]
    assert isinstance(told, Told)
    assert told.number == 2


def test_the_same_id_at_two_edges_is_two_requests() -> None:
    office = Office()
    one, two = _lease(office.says("a", Arrived(1, _request()))), _lease(office.says("b", Arrived(1, _request())))
    assert one != two
    office.says("a", Finished(1, one))
    assert office.running() == 1
    office.says("b", Finished(1, two))
    assert office.running() == 0


def test_a_dead_edges_leases_come_back_and_what_waited_there_is_dropped() -> None:
    office = Office()
    office.says("a", *(Arrived(n, _request(f"a{n}")) for n in range(1, 6)))
    office.says("b", Arrived(1, _request("b")))
    office.told["b"].clear()
    office.world.tell(office.decider.lost(office.peers["a"]))
    assert [type(m.action) for m in office.told["b"] if isinstance(m, Told)] == [Dispatch]
    assert office.running() == 1
    assert office.world.scheduler.snapshot(now=0.0).waiting == 0
    assert [peer.name for peer in office.decider.peers] == ["b"]


def test_an_answer_that_is_complete_ends_the_request_though_its_lease_was_taken_back() -> None:
    office = Office()
    lease = _lease(office.says("a", Arrived(1, _request())))
    remote = office.peers["a"].requests[1]
    # as a requeue for an engine that stands still would, while `finished` is on its way:
    office.world.tell(office.world.scheduler.failed(lease, Failure.BUSY, now=0.0))
    assert remote.lease != lease
    office.says("a", Finished(1, lease, Usage(1, 1)))
    assert not office.peers["a"].requests
    assert office.running() == 0
    assert not office.world.journeys


@pytest.mark.parametrize("fact", [FirstToken(1, 99), Failed(1, 99, Failure.RESET)], ids=lambda f: type(f).__name__)
def test_a_fact_about_another_lease_changes_nothing(fact: Fact) -> None:
    office = Office()
    lease = _lease(office.says("a", Arrived(1, _request(streamed=True))))
    assert office.says("a", fact) == []
    assert office.peers["a"].stale == 1
    assert office.peers["a"].requests[1].lease == lease


def test_a_request_that_is_over_is_not_over_twice() -> None:
    office = Office()
    lease = _lease(office.says("a", Arrived(1, _request())))
    assert office.says("a", Cancelled(1), Cancelled(1), Finished(1, lease)) == []
    assert office.peers["a"].stale == 2
    assert office.running() == 0


def test_a_deadline_counts_from_when_it_is_heard() -> None:
    office = Office()
    office.world.now = 500.0
    office.says("a", Arrived(1, _request(deadline_s=2.0)))
    assert office.peers["a"].requests[1].request.deadline_s == 502.0


def test_a_band_means_what_the_edge_knew_it_as() -> None:
    office = Office()
    office.decider.bands = ("first", "standard", "interactive", "batch")
    assert office.decider._checked(office.peers["a"], _request()).band == 2  # `interactive`, the edge's highest
    lowest = msgspec.structs.replace(_request(), band=2)
    assert office.decider._checked(office.peers["a"], lowest).band == 3
    office.decider.bands = ("first",)
    assert office.decider._checked(office.peers["a"], lowest).band == 0


@pytest.mark.parametrize(
    ("number", "request_", "word"),
    [
        (0, _request(), "request 0 comes after 0"),
        (1, msgspec.structs.replace(_request(), band=3), "in band 3, where there are 3"),
        (1, msgspec.structs.replace(_request(), band=-1), "in band -1"),
        (1, _request(flow=("a", "b", "c"), weights=(1.0, 1.0, 1.0)), "3 fairness levels, where there are 1"),
        (1, _request(flow=("a",), weights=(1.0, 1.0)), "fairness levels"),
        (1, _request(flow=("a",), weights=(0.0,)), "a weight, a size or a time that is none"),
        (1, _request(body_bytes=-1), "a weight, a size or a time that is none"),
        (1, _request(flow=("a",), weights=(float("nan"),)), "a weight, a size or a time that is none"),
        (1, _request(deadline_s=float("inf")), "a weight, a size or a time that is none"),
        (1, _request("x" * 5000), "a name that is too long"),
    ],
)
def test_what_no_edge_of_ours_says_is_refused_before_the_scheduler_hears_it(
    number: int, request_: Request, word: str
) -> None:
    office = Office()
    with pytest.raises(LinkError, match=word):
        office.says("a", Arrived(number, request_))
    assert not office.world.journeys


def test_a_number_is_never_used_again() -> None:
    office = Office()
    office.says("a", Arrived(1, _request()), Cancelled(1))
    with pytest.raises(LinkError, match="request 1 comes after 1"):
        office.says("a", Arrived(1, _request()))


def test_who_has_rates_is_told_what_is_left_before_the_action() -> None:
    office = Office(tenants={"t": Limits(requests_per_minute=10)})
    told = office.says("a", Arrived(1, _request(tenant="t")))
    assert [type(message) for message in told] == [Allowed, Told]
    assert isinstance(told[0], Allowed)
    assert told[0].allowance.requests is not None
    assert told[0].allowance.requests.remaining == 9


def test_places_are_told_of_those_who_wait() -> None:
    office = Office()
    office.says("a", *(Arrived(n, _request(f"{n}")) for n in range(1, 5)))
    (told,) = office.says("a", WherePlaced([1, 3, 4, 77]))
    assert isinstance(told, Places)
    assert [(number, place[0]) for number, place in told.rows] == [(3, 1), (4, 2)]


def test_an_action_is_told_after_its_endpoint() -> None:
    office = Office()
    asked: list[tuple[str, str]] = []
    office.decider.before_dispatch = lambda peer, endpoint: asked.append((peer.name, endpoint))
    actions: list[Action] = office.decider.take(office.peers["a"], Arrived(1, _request()))
    assert asked == []
    office.world.tell(actions)
    assert asked == [("a", "e")]
