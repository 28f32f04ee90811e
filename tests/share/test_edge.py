"""At an edge: facts go up, actions come down, and what crosses on the way is settled without doubling or losing it."""

from __future__ import annotations

from penstock.core.values.actions import Action, Dispatch, Evict, Fail, Reject, Requeue
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.request import Request, Usage
from penstock.core.values.rows import Allowance, Left
from penstock.share.edge import Edge
from penstock.share.messages import (
    Allowed,
    Arrived,
    Cancelled,
    Down,
    EndpointRow,
    Endpoints,
    Failed,
    Finished,
    FirstToken,
    Frame,
    Loads,
    Moved,
    Places,
    Progressed,
    Rerouted,
    RunsHere,
    Stop,
    Told,
    Up,
    WaitsHere,
    WherePlaced,
    WireRequest,
)


class Desk:
    """An edge, and what it said."""

    def __init__(self) -> None:
        self.said: list[Up] = []
        self.edge = Edge()
        self.edge.linked(self.said.append, 1, now=0.0)
        self.said.clear()
        self.hear(Endpoints([EndpointRow("e", "http://e", "vllm", models=["m"])]), Loads([0.5]))

    def hear(self, *messages: Down, epoch: int = 1) -> list[Action]:
        return self.edge.take(Frame(epoch, list(messages)), now=0.0)[0]

    def sent(self, name: str = "r", *, lease: int = 5) -> int:
        """A request that was sent to the engine. Returns its number."""
        self.edge.arrived(Request(name, "m", 0), now=0.0)
        number = self.said[-1].number  # type: ignore[union-attr]
        assert self.hear(Told(number, Dispatch(name, "e", lease, 0.1))) == [Dispatch(name, "e", lease, 0.1)]
        self.said.clear()
        return number


def test_a_deadline_travels_as_what_is_left_of_it() -> None:
    desk = Desk()
    desk.edge.arrived(Request("r", "m", 0, deadline_s=107.0), now=100.0)
    assert desk.said == [Arrived(1, WireRequest.of(Request("r", "m", 0, deadline_s=7.0)))]


def test_an_action_for_a_request_that_is_over_is_dropped_though_another_has_its_name() -> None:
    desk = Desk()
    desk.edge.arrived(Request("r", "m", 0), now=0.0)
    desk.edge.cancelled("r", now=0.1)
    desk.edge.arrived(Request("r", "m", 0), now=0.2)
    assert desk.hear(Told(1, Dispatch("r", "e", 5, 0.1))) == []
    assert desk.said[1:] == [Cancelled(1, queued=True), Arrived(2, WireRequest.of(Request("r", "m", 0)))]
    assert desk.hear(Told(2, Evict("r", Reason.QUEUE_TIMEOUT))) == [Evict("r", Reason.QUEUE_TIMEOUT)]
    assert not desk.edge.requests


def test_what_a_client_has_of_an_answer_is_reported_before_it_hangs_up_or_the_answer_breaks() -> None:
    for ends in ("hangs up", "breaks"):
        desk = Desk()
        number = desk.sent()
        desk.edge.first_token(5, now=0.2)
        desk.edge.progressed(5, 14, now=0.3)
        if ends == "breaks":
            desk.edge.failed(5, Failure.BROKEN, now=0.4)
        else:
            desk.edge.cancelled("r", now=0.4)
        last = Failed(number, 5, Failure.BROKEN) if ends == "breaks" else Cancelled(number)
        assert desk.said == [FirstToken(number, 5), Progressed(number, 5, 14), last]


def test_a_request_that_cannot_be_written_is_refused_and_its_end_is_reported_where_that_cannot() -> None:
    desk = Desk()
    desk.edge.arrived(Request("r", "m", 0), now=0.0)
    (arrived,) = desk.said
    assert desk.edge.unsent(arrived) == [Reject("r", Reason.BAD_REQUEST)]
    assert not desk.edge.requests
    number = desk.sent()
    desk.edge.finished(5, Usage(2**70, 1), now=0.2)
    (finished,) = desk.said
    assert desk.edge.unsent(finished) == []
    assert desk.said == [finished, Cancelled(number)]
    assert desk.edge.unsent(Cancelled(number)) == []
    assert desk.edge.unsent(object()) == []
    assert desk.said == [finished, Cancelled(number)]


def test_an_action_names_the_request_as_its_edge_does() -> None:
    desk = Desk()
    desk.edge.arrived(Request("r", "m", 0), now=0.0)
    assert desk.hear(Told(1, Dispatch("r~w2~1", "e", 5, 0.1))) == [Dispatch("r", "e", 5, 0.1)]


def test_what_is_taken_back_before_its_first_byte_waits_again() -> None:
    desk = Desk()
    number = desk.sent()
    assert desk.hear(Told(number, Requeue("r", "stuck"))) == [Requeue("r", "stuck")]
    assert desk.hear(Told(number, Dispatch("r", "e", 6, 0.1))) == [Dispatch("r", "e", 6, 0.1)]
    desk.edge.finished(6, Usage(1, 2), now=1.0)
    assert desk.said == [Finished(number, 6, Usage(1, 2).row())]


def test_an_answer_that_a_client_reads_is_not_revoked_and_the_decider_learns_it() -> None:
    desk = Desk()
    number = desk.sent()
    desk.edge.first_token(5, now=0.2)
    assert desk.hear(Told(number, Requeue("r", "stuck")), Told(number, Dispatch("r", "e", 6, 0.1))) == []
    assert desk.said == [FirstToken(number, 5), Finished(number, 5)]  # so it is charged by its estimate
    desk.edge.progressed(5, 40, now=0.3)
    desk.edge.finished(5, None, now=0.4)
    assert desk.said[2:] == []
    assert not desk.edge.requests


def test_an_answer_without_a_lease_that_breaks_ends_here() -> None:
    desk = Desk()
    number = desk.sent()
    desk.edge.first_token(5, now=0.2)
    desk.hear(Told(number, Requeue("r", "stuck")))
    assert desk.edge.failed(5, Failure.BROKEN, now=0.3) == [Fail("r", Reason.STREAM_BROKEN)]
    assert not desk.edge.requests


def test_an_answer_that_broke_while_it_was_taken_back_ends_here() -> None:
    desk = Desk()
    number = desk.sent()
    desk.edge.first_token(5, now=0.2)
    desk.edge.failed(5, Failure.BROKEN, now=0.3)
    assert desk.hear(Told(number, Requeue("r", "stuck"))) == [Fail("r", Reason.STREAM_BROKEN)]
    assert desk.said == [FirstToken(number, 5), Failed(number, 5, Failure.BROKEN), Cancelled(number)]
    assert not desk.edge.requests


def test_a_dispatch_to_an_endpoint_that_is_not_known_here_fails_there_and_is_tried_elsewhere() -> None:
    desk = Desk()
    desk.edge.arrived(Request("r", "m", 0), now=0.0)
    assert desk.hear(Told(1, Dispatch("r", "new", 5, 0.1))) == []
    assert desk.said[1:] == [Failed(1, 5, Failure.CONNECT)]


def test_a_decider_that_another_has_followed_is_not_heard() -> None:
    desk = Desk()
    desk.edge.arrived(Request("r", "m", 0), now=0.0)
    desk.hear(epoch=4)
    assert desk.hear(Told(1, Dispatch("r", "e", 5, 0.1)), epoch=3) == []
    assert desk.edge.stale == 1
    assert desk.hear(Told(1, Dispatch("r", "e", 5, 0.1)), epoch=4) != []


def test_places_are_those_of_the_last_answer_and_asked_for_again() -> None:
    desk = Desk()
    desk.edge.arrived(Request("r", "m", 0), now=0.0)
    assert desk.edge.places(["r", "unknown"], now=1.0) == {}
    assert desk.said[1:] == [WherePlaced([1])]
    desk.hear(Places([(1, (3, 2.5, 1.0))]))
    place = desk.edge.places(["r"], now=2.0)["r"]
    assert (place.position, place.eta_s, place.waited_s) == (3, 2.5, 1.0)
    desk.hear(Told(1, Dispatch("r", "e", 5, 0.1)))
    assert desk.edge.places(["r"], now=3.0) == {}


def test_what_is_asked_at_once_is_answered_from_what_was_said_last() -> None:
    desk = Desk()
    edge = desk.edge
    rows = [
        EndpointRow("a", "http://a", "vllm", models=["m", "n"]),
        EndpointRow("b", "http://b", "vllm", models=["m"]),
        EndpointRow("c", "http://c", "vllm"),
    ]
    desk.hear(Endpoints(rows, divides=True), Loads([0.5, 0.51, 0.0], paced=True))
    assert (edge.divides, edge.paced) == (True, True)
    assert (edge.knows("m", now=0.0), edge.knows("x", now=0.0)) == (True, None)  # c has not told yet
    assert edge.serving("m", now=0.0) == ["a", "b"]
    assert [edge.least_loaded("m", now=0.0) for _ in range(3)] == ["a", "b", "a"]
    assert edge.least_loaded("m", but=["a", "b"], now=0.0) is None
    desk.hear(Loads([None, 0.9, 0.0]))
    assert edge.serving("m", now=0.0) == ["b"]
    desk.hear(Endpoints(rows[:2]))
    assert edge.knows("x", now=0.0) is False
    allowance = Allowance(Left(10, 3, 2.0), None)
    desk.hear(Allowed(("t",), allowance))
    assert edge.allowance(("t",), now=0.0) == allowance


def test_what_is_not_about_requests_is_for_whoever_runs_the_edge() -> None:
    assert Desk().edge.take(Frame(1, [Stop()]), now=0.0) == ([], [Stop()])


def test_growth_is_told_in_steps_with_what_moved_and_to_the_token_where_nothing_else_tells_it() -> None:
    desk = Desk()
    number = desk.sent()
    for tokens in (33, 65, 80):
        desk.edge.progressed(5, tokens, now=0.1)
    assert desk.said == []  # nobody is woken for it
    desk.edge.moved(["e"], now=0.1)
    assert desk.said == [Progressed(number, 5, 80), Moved(["e"])]
    desk.edge.progressed(5, 143, now=0.2)
    desk.edge.moved([], now=0.2)
    assert desk.said[2:] == []
    desk.edge.progressed(5, 144, now=0.3)
    desk.edge.finished(5, None, now=0.3)
    assert desk.said[2:] == [Progressed(number, 5, 144), Finished(number, 5, None)]
    desk.edge.moved([], now=0.4)
    assert desk.said[4:] == []


def test_growth_is_told_at_once_where_a_limit_on_the_pace_is_held_against_it() -> None:
    desk = Desk()
    desk.hear(Loads([0.5], paced=True))
    number = desk.sent()
    desk.edge.progressed(5, 9, now=0.3)
    desk.edge.finished(5, Usage(1, 9), now=0.4)
    assert desk.said == [Progressed(number, 5, 9), Finished(number, 5, Usage(1, 9).row())]


def test_growth_of_a_revoked_answer_is_not_reported() -> None:
    desk = Desk()
    number = desk.sent()
    desk.edge.progressed(5, 70, now=0.1)
    assert desk.hear(Told(number, Requeue("r", "stuck"))) == [Requeue("r", "stuck")]
    desk.hear(Told(number, Dispatch("r", "e", 6, 0.1)))
    desk.edge.progressed(6, 10, now=0.2)
    desk.edge.moved(["e"], now=0.2)
    assert desk.said == [Moved(["e"])]


def test_a_retry_after_travels_with_the_failure() -> None:
    desk = Desk()
    number = desk.sent(lease=5)
    desk.edge.failed(5, Failure.BUSY, retry_after_s=4.0, now=0.0)
    assert desk.said == [Failed(number, 5, Failure.BUSY, retry_after_s=4.0)]


def test_a_request_that_no_decider_has_had_yet_is_announced_as_that() -> None:
    desk = Desk()
    desk.edge.arrived(Request("before", "m", 0), now=0.0)
    desk.edge.unlinked(now=1.0)
    desk.edge.arrived(Request("meanwhile", "m", 0), now=2.0)

    def announced() -> dict[str, bool]:
        said: list[Up] = []
        desk.edge.linked(said.append, 2, now=3.0)
        return {row.request.id: row.decided for row in said if isinstance(row, WaitsHere)}

    assert announced() == {"before": True, "meanwhile": False}
    assert announced() == {"before": True, "meanwhile": True}


def test_a_proxys_detour_goes_up_and_is_announced_to_the_next_decider() -> None:
    desk = Desk()
    number = desk.sent()
    desk.edge.rerouted(5, "f", now=0.0)
    assert desk.said == [Rerouted(number, 5, "f")]
    desk.said.clear()
    desk.edge.linked(desk.said.append, 2, now=0.0)
    (runs,) = [message for message in desk.said if isinstance(message, RunsHere)]
    assert runs.underway.endpoint == "f"
