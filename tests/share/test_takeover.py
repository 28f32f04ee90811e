"""What was on its way when a decider ended or a link broke: each crossing by itself, and who decides when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.conformance.invariants import CheckedScheduler
from penstock.core.scheduler import SchedulerSettings
from penstock.core.values.actions import Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.request import Request, Usage
from penstock.core.values.settings import BandSettings
from penstock.core.values.takeover import Underway
from penstock.share.decider import Peer, Phase
from penstock.share.edge import Edge
from penstock.share.frames import LinkError
from penstock.share.messages import (
    Announced,
    Announcing,
    Arrived,
    Cancelled,
    Down,
    EndpointRow,
    Endpoints,
    Finished,
    FirstToken,
    Frame,
    RunsHere,
    Told,
    Up,
    WaitsHere,
    WireRequest,
)
from tests.share.virtual import BANDS, Chances, Parent, SharedWorld

CUT_S = 3.0


class House:
    """Two parents that may decide, one endpoint of two slots, and edges whose every word can be lost."""

    def __init__(self, edges: str = "a") -> None:
        settings = SchedulerSettings(bands=tuple(BandSettings(name) for name in BANDS))
        self.world = SharedWorld(seed=1, edges=0, engines={"e": 2}, chances=Chances(), settings=settings)
        self.one = self.world.parent
        self.two = Parent(self.world, "two", leads=False)
        self.edges = {name: Edge() for name in edges}
        self.peers: dict[str, Peer] = {}
        self.up: dict[str, list[Up]] = {name: [] for name in edges}
        self.down: dict[str, list[Down]] = {name: [] for name in edges}
        self.did: dict[str, list[Action]] = {name: [] for name in edges}
        for name in edges:
            self.edges[name].bands = BANDS
            self.link(name, self.one)

    @property
    def now(self) -> float:
        return self.world.now

    def link(self, name: str, to: Parent, *, deliver: bool = True) -> None:
        """A link to a parent begins, and the edge has said all on it."""
        self.up[name], self.down[name] = [], []
        self.peers[name] = peer = Peer(name, self.down[name].append, BANDS)
        to.decider.opened(peer)
        done = self.edges[name].linked(self.up[name].append, to.decider.epoch, now=self.now)
        rows = Endpoints([EndpointRow("e", "http://e", "vllm", models=["m"])])
        self.edges[name].take(Frame(to.decider.epoch, [rows]), now=self.now)
        self.did[name] += done
        if deliver:
            self.hear(name, to)

    def hear(self, name: str, parent: Parent) -> None:
        """What the edge said arrives."""
        said, self.up[name][:] = list(self.up[name]), []
        for message in said:
            parent.fact(self.peers[name], message)

    def tell(self, name: str, parent: Parent) -> list[Action]:
        """What the parent said arrives. Returns what the edge does."""
        said, self.down[name][:] = list(self.down[name]), []
        actions, _ = self.edges[name].take(Frame(parent.decider.epoch, said), now=self.now)
        self.did[name] += actions
        return actions

    def arrives(self, edge: str, request: str, **more: object) -> None:
        made = Request(request, "m", 0, streamed=True, **more)  # type: ignore[arg-type]
        self.did[edge] += self.edges[edge].arrived(made, now=self.now)

    def sent(self, edge: str, request: str) -> int:
        """A request that was sent by the first parent. Returns its lease."""
        self.arrives(edge, request)
        self.hear(edge, self.one)
        (dispatch,) = self.tell(edge, self.one)
        assert isinstance(dispatch, Dispatch)
        return dispatch.lease

    def succeeds(self, *edges: str, epoch: int = 2) -> None:
        """The first parent dies; the second one hears these edges, and begins."""
        self.one.alive = False
        self.two.decider.lead(epoch, edges)
        for name in edges:
            self.link(name, self.two)

    def phase(self) -> Phase:
        return self.two.decider.phase

    def running(self, parent: Parent) -> int:
        return parent.scheduler.snapshot(now=self.now).running

    def waiting(self, parent: Parent) -> int:
        return parent.scheduler.snapshot(now=self.now).waiting


def _dispatched(actions: list[Action]) -> list[str]:
    return [action.request_id for action in actions if isinstance(action, Dispatch)]


# --- crossings --------------------------------------------------------------------------------------------------------


def test_an_arrival_that_was_never_processed_waits_at_the_next_decider() -> None:
    house = House()
    house.arrives("a", "r")  # its word is lost
    house.succeeds("a")
    assert _dispatched(house.tell("a", house.two)) == ["r"]


def test_a_dispatch_that_was_never_received_is_given_again_with_its_age_kept() -> None:
    house = House()
    house.arrives("a", "r")
    house.hear("a", house.one)  # and its dispatch is lost
    house.world.now = 3.0
    house.succeeds("a")
    (dispatch,) = house.tell("a", house.two)
    assert isinstance(dispatch, Dispatch)
    assert dispatch.queue_s == pytest.approx(3.0)
    assert dispatch.lease > 2 << 32
    assert house.edges["a"].take(Frame(1, [Told(1, Dispatch("r", "e", 1, 0.0))]), now=3.0) == ([], [])


def test_a_stream_goes_on_and_its_end_is_booked_by_the_number_that_the_edge_knows() -> None:
    house = House()
    lease = house.sent("a", "r")
    house.edges["a"].first_token(lease, now=1.0)
    house.succeeds("a")
    assert house.tell("a", house.two) == []
    assert house.running(house.two) == 1
    house.edges["a"].progressed(lease, 200, now=2.0)
    house.edges["a"].finished(lease, Usage(10, 201), now=3.0)
    house.hear("a", house.two)
    assert house.running(house.two) == 0
    assert house.peers["a"].stale == 0


def test_an_end_that_was_never_received_leaves_nothing() -> None:
    house = House()
    lease = house.sent("a", "r")
    house.edges["a"].finished(lease, Usage(1, 1), now=1.0)
    house.succeeds("a")
    assert (house.running(house.two), house.waiting(house.two)) == (0, 0)


def test_a_failure_without_an_answer_to_it_waits_again_or_has_broken() -> None:
    house = House()
    first, second = house.sent("a", "before"), house.sent("a", "after")
    house.edges["a"].first_token(second, now=1.0)
    house.edges["a"].failed(first, Failure.RESET, now=1.0)
    house.edges["a"].failed(second, Failure.BROKEN, now=1.0)
    house.did["a"].clear()
    house.succeeds("a")
    assert house.did["a"] == [Requeue("before", "reset"), Fail("after", Reason.STREAM_BROKEN)]
    assert _dispatched(house.tell("a", house.two)) == ["before"]


def test_a_take_back_that_was_never_received_did_not_happen() -> None:
    house = House()
    lease = house.sent("a", "r")
    house.one.tell(house.one.scheduler.failed(lease, Failure.BUSY, now=0.0))  # as where an engine stands still
    house.succeeds("a")
    assert house.tell("a", house.two) == []
    assert house.running(house.two) == 1


def test_an_eviction_that_was_never_received_is_decided_again_by_the_age() -> None:
    house = House()
    for name in ("x", "y"):
        house.sent("a", name)
    house.arrives("a", "r")
    house.hear("a", house.one)
    house.world.now = 61.0
    house.one.let_time_pass()  # its time is over, and the word is lost
    house.succeeds("a")
    house.two.let_time_pass()
    (evict,) = house.tell("a", house.two)
    assert isinstance(evict, Evict)
    assert evict.reason is Reason.QUEUE_TIMEOUT


def test_a_client_that_disconnected_meanwhile_is_not_announced() -> None:
    house = House()
    house.sent("a", "r")
    house.edges["a"].cancelled("r", now=1.0)
    house.succeeds("a")
    assert house.running(house.two) == 0


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_link_that_breaks_and_comes_back_costs_nothing() -> None:
    house = House("ab")
    lease = house.sent("a", "r")
    house.sent("b", "other")
    for name in ("w1", "w2"):
        house.arrives("a", name)
    house.hear("a", house.one)
    house.one.tell(house.one.decider.cut(house.peers["a"]))
    assert (house.running(house.one), house.waiting(house.one)) == (2, 0)
    house.edges["a"].unlinked(now=1.0)
    house.world.now = 1.0
    house.link("a", house.one)
    assert (house.running(house.one), house.waiting(house.one)) == (2, 2)
    house.edges["a"].finished(lease, Usage(1, 1), now=1.0)
    house.hear("a", house.one)
    assert _dispatched(house.tell("a", house.one)) == ["w1"]


def test_leases_of_a_link_that_does_not_come_back_are_given_to_others_after_a_while() -> None:
    house = House("ab")
    house.sent("a", "r1")
    house.sent("a", "r2")
    house.arrives("b", "w")
    house.hear("b", house.one)
    house.one.tell(house.one.decider.cut(house.peers["a"]))
    assert house.one.decider.next_deadline() == CUT_S
    house.world.now = CUT_S - 0.1
    house.one.let_time_pass()
    assert _dispatched(house.tell("b", house.one)) == []
    house.world.now = CUT_S
    house.one.let_time_pass()
    assert _dispatched(house.tell("b", house.one)) == ["w"]


def test_an_edge_that_is_back_before_its_broken_link_is_noticed_replaces_it() -> None:
    house = House()
    house.sent("a", "r")
    before = house.peers["a"]
    house.edges["a"].unlinked(now=0.0)
    house.link("a", house.one)
    assert before.gone
    assert house.running(house.one) == 1
    assert house.one.decider.cut(before) == house.one.decider.lost(before) == []
    assert house.running(house.one) == 1
    assert [peer.name for peer in house.one.decider.peers] == ["a"]


def test_an_edge_that_is_started_again_under_its_name_frees_what_the_dead_one_held() -> None:
    house = House("ab")
    house.sent("a", "r1")
    house.sent("a", "r2")
    house.arrives("b", "w")
    house.hear("b", house.one)
    house.one.tell(house.one.decider.cut(house.peers["a"]))
    house.edges["a"] = Edge()
    house.link("a", house.one)
    house.world.now = 0.2  # the engine ends what was abandoned with its next step
    house.one.let_time_pass()
    assert _dispatched(house.tell("b", house.one)) == ["w"]


def test_a_newcomer_without_a_link_waits_within_a_bound() -> None:
    house = House()
    edge = house.edges["a"]
    edge.unlinked(now=0.0)
    edge.waiting_max = 2
    for name in ("w1", "w2", "w3"):
        house.arrives("a", name)
    (reject,) = house.did["a"]
    assert isinstance(reject, Reject)
    assert (reject.request_id, reject.reason) == ("w3", Reason.QUEUE_FULL)
    house.link("a", house.one)
    assert _dispatched(house.tell("a", house.one)) == ["w1", "w2"]


def test_without_a_link_answers_break_and_failures_wait_without_asking() -> None:
    house = House()
    first, second = house.sent("a", "before"), house.sent("a", "after")
    edge = house.edges["a"]
    assert edge.unlinked(now=0.0) == []
    edge.first_token(second, now=1.0)
    assert edge.failed(first, Failure.BUSY, now=1.0) == [Requeue("before", "busy")]
    assert edge.failed(second, Failure.BROKEN, now=1.0) == [Fail("after", Reason.STREAM_BROKEN)]


# --- gathering --------------------------------------------------------------------------------------------------------


def test_a_new_decider_waits_for_all_known_edges_half_a_second_at_most() -> None:
    house = House("ab")
    for name in "ab":
        house.arrives(name, f"of {name}")
        house.hear(name, house.one)
        house.tell(name, house.one)
    assert list(house.edges["a"].edges) == ["a", "b"]
    house.two.decider.lead(2, ["a"])
    house.link("a", house.two)  # which names b
    assert house.phase() is Phase.GATHERING
    house.world.now = 0.5
    house.two.let_time_pass()
    assert house.phase() is Phase.DECIDING
    house.link("b", house.two)  # late
    assert house.running(house.two) == 2


def test_a_decider_waits_for_no_edge_of_a_leader_that_died() -> None:
    house = House("ab")
    for name in "ab":
        house.arrives(name, f"of {name}")
        house.hear(name, house.one)
        house.tell(name, house.one)
    house.two.decider.lead(2, ["a", "b"], silent=["b"])
    house.link("a", house.two)  # which names b
    assert house.phase() is Phase.DECIDING
    assert house.running(house.two) == 1


def test_facts_while_it_gathers_are_told_when_it_begins_and_in_their_order() -> None:
    house = House("ab")
    lease = house.sent("a", "r")
    house.sent("b", "other")
    house.arrives("b", "w")
    house.hear("b", house.one)
    house.tell("b", house.one)
    house.two.decider.lead(2, "ab")
    house.link("a", house.two)
    house.arrives("a", "new")
    house.arrives("a", "gone")
    house.edges["a"].cancelled("gone", now=0.1)
    house.edges["a"].finished(lease, Usage(1, 1), now=0.1)
    house.hear("a", house.two)
    assert house.two.decider.phase is Phase.GATHERING
    house.link("b", house.two)
    assert _dispatched(house.tell("b", house.two)) == ["w"]
    assert house.waiting(house.two) == 1
    assert {remote.request.id for remote in house.peers["a"].requests.values()} == {"new"}


def test_a_leader_that_could_not_renew_sends_nothing_and_puts_newcomers_off() -> None:
    house = House()
    lease = house.sent("a", "r")
    decider = house.one.decider
    decider.hold()
    assert decider.phase is Phase.HOLDING
    house.arrives("a", "w")
    house.edges["a"].finished(lease, Usage(1, 1), now=0.1)
    house.hear("a", house.one)
    assert house.running(house.one) == 0  # facts about what is here are heard
    assert house.tell("a", house.one) == []
    decider.go_on()
    assert _dispatched(house.tell("a", house.one)) == ["w"]


def test_a_former_leader_holds_nothing() -> None:
    house = House()
    house.sent("a", "r")
    house.arrives("a", "w1")
    house.arrives("a", "w2")
    house.hear("a", house.one)
    house.one.decider.step_down()
    assert not house.one.journeys
    assert (house.running(house.one), house.waiting(house.one)) == (0, 0)
    assert isinstance(house.one.scheduler, CheckedScheduler)
    assert not house.one.scheduler.books.requests
    house.one.decider.lead(5, ["a"])
    house.link("a", house.one)
    assert house.running(house.one) == 2


def test_alone_it_decides_with_its_part_and_with_all_when_it_leads() -> None:
    house = House()
    for name in ("r1", "r2", "r3"):
        house.arrives("a", name)
    house.two.decider.lead(2, ["a"], alone=2)
    house.link("a", house.two)
    assert _dispatched(house.tell("a", house.two)) == ["r1"]  # one slot of two
    house.two.decider.step_down()
    house.two.decider.lead(3, ["a"])
    house.link("a", house.two)
    assert _dispatched(house.tell("a", house.two)) == ["r2"]


def test_members_are_logged_when_they_come_and_go() -> None:
    house = House("ab")
    house.tell("a", house.one)
    assert list(house.edges["a"].edges) == ["a", "b"]
    house.one.tell(house.one.decider.lost(house.peers["b"]))
    house.tell("a", house.one)
    assert list(house.edges["a"].edges) == ["a"]


# --- what may not be said ---------------------------------------------------------------------------------------------

REQUEST = WireRequest.of(Request("r", "m", 0))
RUNS = RunsHere(1, REQUEST, 1.0, 0.0, Underway(5, "e", 1.0))


@pytest.mark.parametrize(
    "messages",
    [
        [Arrived(1, WireRequest.of(Request("r", "m", 0)))],
        [Announcing([]), FirstToken(1, 1)],
        [Announcing([]), Announcing([])],
        [Announcing([]), Announced([]), Announcing([])],
        [Announcing([]), RUNS, WaitsHere(1, WireRequest.of(Request("r2", "m", 0)), 1.0, 0.0)],
        [Announcing([]), WaitsHere(1, WireRequest.of(Request("r", "m", 9)), 1.0, 0.0)],
        [Announcing([]), WaitsHere(1, REQUEST, float("nan"), 0.0)],
        [Announcing([]), WaitsHere(0, REQUEST, 1.0, 0.0)],
        [Announcing([]), RunsHere(1, WireRequest.of(Request("r", "m", 0)), 1.0, 0.0, Underway(5, "e", -1.0))],
        [
            Announcing([]),
            RunsHere(1, WireRequest.of(Request("r", "m", 0)), 1.0, 0.0, Underway(5, "e", 1.0, decode="d")),
        ],
        [Announcing([]), RUNS, Announced([]), Arrived(1, WireRequest.of(Request("r2", "m", 0)))],
    ],
)
def test_what_no_edge_announces_ends_the_link_and_books_nothing(messages: list[Up]) -> None:
    house = House("")
    peer = Peer("x", lambda _message: None, BANDS)
    house.one.decider.opened(peer)

    def say_all() -> None:
        for message in messages:
            house.one.fact(peer, message)

    with pytest.raises(LinkError):
        say_all()
    house.one.tell(house.one.decider.cut(peer))
    house.world.now = CUT_S
    house.one.let_time_pass()
    assert (house.running(house.one), house.waiting(house.one)) == (0, 0)


def test_what_an_edge_remembers_is_bounded() -> None:
    house = House()
    edge = house.edges["a"]
    for number in range(300):
        request = Request(f"r{number}", "m", 0, prefix=tuple(range(number, number + 400)), session=f"s{number}")
        edge.arrived(request, now=0.0)
        edge.take(Frame(1, [Told(number + 1, Dispatch(f"r{number}", "e", number + 1, 0.0))]), now=0.0)
        edge.finished(number + 1, Usage(1, 1), now=0.0)
    sessions, prefixes = edge.memory.homes() if edge.memory else ([], [])
    assert len(sessions) == 300
    assert len(prefixes) == 125
    assert prefixes[-1][1][0] == 299
    said: list[Up] = []
    done: Callable[[Up], None] = said.append
    edge.linked(done, 1, now=60.0)
    assert not any(isinstance(message, WaitsHere | RunsHere | Cancelled | Finished) for message in said)
