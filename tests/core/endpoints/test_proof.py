"""Only an engine is an engine: strikes, the door closed and opened again (core/endpoints/proof.py), in virtual time."""

from __future__ import annotations

import pytest

from penstock.core.endpoints.proof import Proof
from penstock.core.scheduler import Scheduler
from penstock.core.values.actions import Action, Dispatch
from penstock.core.values.catalogue import Failure, Reason
from penstock.core.values.request import Usage
from penstock.core.values.settings import EndpointSpec
from tests.core.drive import ends, request, scheduler, sent

CLOSED_S = 300.0
STRIKES_MAX = 3
WORD_S = 1.0

GOOD = Usage(1, 1)


def leases(actions: list[Action]) -> list[int]:
    return [action.lease for action in actions if isinstance(action, Dispatch)]


def stranger(made: Scheduler, name: str, models: frozenset[str] | None = frozenset("m"), *, slots: int = 8) -> None:
    """An endpoint that nothing vouches for; None as `models`: it may serve any."""
    made.endpoint_added(EndpointSpec(name=name, slots=slots, models=models, vouched=False), now=0.0)
    if models is None:
        made.endpoint_changed(name, tells_models=False, vouched=False, now=0.0)


def ask(made: Scheduler, number: int, now: float, **bad: Failure) -> list[str]:
    """One request, answered badly by the endpoints in `bad` and well by the others: where it went."""
    went = []
    made.expire(now=now)
    actions = made.arrived(request(f"r{now}-{number}"), now=now)
    while found := [action for action in actions if isinstance(action, Dispatch)]:
        (action,) = found
        went.append(action.endpoint)
        if (failure := bad.get(action.endpoint)) is not None:
            actions = made.failed(action.lease, failure, now=now)
        else:
            actions = made.finished(action.lease, GOOD, now=now)
    return went


def test_a_file_server_beside_an_engine_is_tried_three_times_and_never_again() -> None:
    made = scheduler(a=8)
    stranger(made, "files")
    went = [ask(made, at, at * 0.1, files=Failure.NOT_AN_ENGINE) for at in range(500)]
    assert all(visits[-1] == "a" for visits in went), "each request is answered by the engine"
    tried = [at for at, visits in enumerate(went) if "files" in visits]
    assert len(tried) == STRIKES_MAX
    assert {e.name: e.state for e in made.snapshot(now=50.0).endpoints} == {"a": "up", "files": "unproven"}


def test_a_stranger_gets_one_request_at_a_time_until_it_answers_one_well() -> None:
    made = scheduler()
    stranger(made, "new")
    first = made.arrived(request("r0"), now=0.0)
    for at in range(1, 5):
        assert made.arrived(request(f"r{at}"), now=0.1) == []
    actions = made.first_token(leases(first)[0], now=0.2)
    assert len(sent(actions)) == 4, "the first token is proof enough"


def by_word(made: Scheduler, name: str, *, slots: int = 8) -> None:
    """An endpoint that the operator alone vouches for."""
    spec = EndpointSpec(name=name, slots=slots, models=frozenset("m"), vouched=True, by_word=True)
    made.endpoint_added(spec, now=0.0)


def test_a_file_server_that_the_operator_took_for_an_engine_gets_no_more_requests_than_a_stranger() -> None:
    """It got as many as it had slots, before the first was answered."""
    made = scheduler(a=2)
    by_word(made, "files")
    actions = [action for at in range(12) for action in made.arrived(request(f"r{at}"), now=0.0)]
    got = 0
    while actions:
        action = actions.pop(0)
        if isinstance(action, Dispatch) and action.endpoint == "files":
            got += 1
            actions += made.failed(action.lease, Failure.NOT_AN_ENGINE, now=0.01)
        elif isinstance(action, Dispatch):
            actions += made.finished(action.lease, GOOD, now=0.02)
    assert got == STRIKES_MAX
    assert not made.proven("files")


@pytest.mark.parametrize("sign", ["an answer", "a first token", "a list", "a moment"])
def test_an_engine_that_the_operator_vouches_for_has_all_its_slots_with_the_first_sign(sign: str) -> None:
    made = scheduler()
    by_word(made, "mine")
    first = [action for at in range(8) for action in made.arrived(request(f"r{at}"), now=0.0)]
    assert len(sent(first)) == STRIKES_MAX
    if sign == "an answer":
        assert len(sent(made.finished(leases(first)[0], GOOD, now=0.1))) == 5
    elif sign == "a first token":
        assert len(sent(made.first_token(leases(first)[0], now=0.1))) == 5
    elif sign == "a list":
        assert len(sent(made.endpoint_changed("mine", models=["m"], vouched=True, now=0.1))) == 5
    else:
        now, went = 0.0, list[tuple[str, str]]()
        while not went:
            now = made.next_deadline() or 2 * WORD_S
            went = sent(made.expire(now=now))
        assert (now, len(went)) == (WORD_S, 5), "what takes so long is no file server"


def test_an_error_that_streams_is_no_proof() -> None:
    made = scheduler()
    stranger(made, "new")
    (lease,) = leases(made.arrived(request("r0"), now=0.0))
    made.arrived(request("r1"), now=0.0)
    assert sent(made.first_token(lease, well=False, now=0.1)) == []


def test_an_engine_that_was_judged_too_early_gets_another_chance_and_takes_it() -> None:
    made = scheduler(a=8)
    stranger(made, "late")
    for at in range(20):
        ask(made, at, float(at), late=Failure.NOT_AN_ENGINE)
    made.endpoint_up("late", now=CLOSED_S / 2)
    assert not any("late" in ask(made, at, CLOSED_S / 2) for at in range(20))
    made.endpoint_up("late", now=2 * CLOSED_S)
    assert any("late" in ask(made, at, 2 * CLOSED_S) for at in range(20)), "it serves by now"
    assert made.proven("late")


def test_each_chance_that_fails_makes_the_next_one_later() -> None:
    made = scheduler(a=8)
    stranger(made, "files")
    tries, now = [], 0.0
    while now < 10 * CLOSED_S:
        now += 10.0
        made.endpoint_up("files", now=now)
        tries += [now] * sum("files" in ask(made, at, now, files=Failure.NOT_AN_ENGINE) for at in range(2))
    assert len(tries) == STRIKES_MAX + 3, "after 5, 15 and 35 minutes"


@pytest.mark.parametrize("proof", ["list", "resumed", "restarted"])
def test_a_list_a_restart_and_an_operator_forgive_at_once(proof: str) -> None:
    made = scheduler(a=8)
    stranger(made, "late")
    for at in range(20):
        ask(made, at, float(at), late=Failure.NOT_AN_ENGINE)
    if proof == "list":
        made.endpoint_changed("late", models=["m"], vouched=True, now=30.0)
    elif proof == "resumed":
        made.endpoint_resumed("late", now=30.0)
    else:
        made.endpoint_down("late", now=30.0)
        made.endpoint_up("late", now=31.0)
    assert any("late" in ask(made, at, 32.0) for at in range(20))


def test_what_only_a_stranger_may_serve_is_tried_there_again_and_again() -> None:
    """An engine that is loading behind a proxy: everything is answered 404 for a minute, then served."""
    made = scheduler()
    stranger(made, "only", None)
    now, tries = 0.0, 0
    while now < 60.0:
        made.expire(now=now)
        actions = made.arrived(request(f"r{now}"), now=now)
        if found := leases(actions):
            tries += 1
            (end,) = ends(made.failed(found[0], Failure.NOT_AN_ENGINE, now=now))
        else:
            (end,) = ends(actions)
        assert end[1:] in {("failed", Reason.MODEL_NOT_FOUND), ("rejected", Reason.MODEL_NOT_FOUND)}
        now += 0.25
    assert 8 <= tries <= 12, "with pauses, and none longer than eight seconds"
    now += 8.0
    made.expire(now=now)
    made.finished(leases(made.arrived(request("good"), now=now))[0], GOOD, now=now)
    assert made.proven("only")
    assert len(leases(made.arrived(request("next"), now=now))) == 1


def test_what_waits_behind_a_failed_trial_is_told_that_nobody_serves_it() -> None:
    made = scheduler()
    stranger(made, "only", None)
    (lease,) = leases(made.arrived(request("r0"), now=0.0))
    assert made.arrived(request("r1"), now=0.0) == []
    told = ends(made.failed(lease, Failure.NOT_AN_ENGINE, now=0.1))
    assert told == [("r0", "failed", "model_not_found"), ("r1", "evicted", "model_not_found")]


def test_a_model_that_the_settings_name_waits_for_the_next_trial() -> None:
    made = scheduler()
    stranger(made, "only")
    (lease,) = leases(made.arrived(request("r0"), now=0.0))
    assert made.arrived(request("r1"), now=0.0) == []
    assert ends(made.failed(lease, Failure.NOT_AN_ENGINE, now=0.0)) == [("r0", "failed", "upstream_error")]
    assert sent(made.expire(now=1.0)) == [("r1", "only")]


def test_while_others_have_yet_to_tell_what_they_serve_a_failed_trial_is_not_the_end() -> None:
    made = scheduler()
    stranger(made, "files")
    made.endpoint_added(EndpointSpec(name="a", slots=1), now=0.0)
    (lease,) = leases(made.arrived(request("r0"), now=0.0))
    assert ends(made.failed(lease, Failure.NOT_AN_ENGINE, now=0.1)) == []
    assert sent(made.endpoint_changed("a", models=["m"], now=0.2)) == [("r0", "a")]


def test_where_all_are_strangers_all_are_tried() -> None:
    made = scheduler()
    stranger(made, "x")
    stranger(made, "y")
    assert ask(made, 0, 0.0, x=Failure.NOT_AN_ENGINE, y=Failure.NOT_AN_ENGINE)[:2] == ["x", "y"]


def test_callers_that_ask_an_honest_engine_for_models_it_lacks_do_not_close_it() -> None:
    """Nobody knows what it serves; most callers ask for an adapter that is not there."""
    made = scheduler()
    stranger(made, "honest", None)
    for at in range(100):
        (lease,) = leases(made.arrived(request(f"bad{at}", model="lora"), now=at * 0.1))
        made.failed(lease, Failure.MODEL_GONE, now=at * 0.1)
    (lease,) = leases(made.arrived(request("good"), now=10.0))
    made.finished(lease, GOOD, now=10.1)
    for at in range(100):
        (lease,) = leases(made.arrived(request(f"worse{at}", model="lora"), now=11 + at * 0.1))
        made.failed(lease, Failure.MODEL_GONE, now=11 + at * 0.1)
    assert made.proven("honest")


def test_a_stranger_that_lacks_what_others_serve_is_closed_like_one_that_serves_nothing() -> None:
    made = scheduler(a=8)
    stranger(made, "other", None)
    went = [ask(made, at, at * 0.1, other=Failure.MODEL_GONE) for at in range(100)]
    assert sum("other" in visits for visits in went) == STRIKES_MAX


def test_when_the_engine_dies_the_stranger_is_asked_again_and_when_it_returns_no_more() -> None:
    made = scheduler(a=8)
    stranger(made, "other")
    for at in range(20):
        ask(made, at, float(at), other=Failure.NOT_AN_ENGINE)
    made.endpoint_down("a", now=40.0)
    assert ask(made, 0, 60.0, other=Failure.NOT_AN_ENGINE) == ["other"]
    made.endpoint_up("a", now=70.0)
    assert all(ask(made, at, 80.0 + at, other=Failure.NOT_AN_ENGINE) == ["a"] for at in range(10))


def test_a_pinned_request_reaches_a_closed_endpoint_and_may_prove_it() -> None:
    made = scheduler(a=8)
    stranger(made, "late")
    for at in range(20):
        ask(made, at, float(at), late=Failure.NOT_AN_ENGINE)
    (lease,) = leases(made.arrived(request("test", pinned="late"), now=30.0))
    made.finished(lease, GOOD, now=30.1)
    assert made.proven("late")


def test_names_that_callers_made_up_are_no_rows_and_hide_no_real_one() -> None:
    made = scheduler(a=4)
    made.endpoint_added(EndpointSpec(name="any", slots=4, models=None), now=0.0)
    made.endpoint_changed("any", tells_models=False, now=0.0)
    for at in range(2000):
        (lease,) = leases(made.arrived(request(f"r{at}", model=f"made-up-{at}"), now=at * 0.01))
        made.finished(lease, Usage(0, 0), refused=True, now=at * 0.01 + 0.005)
    (lease,) = leases(made.arrived(request("real", model="real"), now=30.0))
    made.finished(lease, Usage(5, 5), now=30.1)
    assert {row.name for row in made.snapshot(now=31.0).models} == {"m", "real"}


def refuse(made: Scheduler, turns: int, *, took_s: float, from_s: float = 0.0, sink: str = "b") -> int:
    """Requests, which `sink` answers with errors and all others well: how many it got."""
    got = 0
    for at in range(turns):
        now = from_s + at
        (action,) = [x for x in made.arrived(request(f"r{now}"), now=now) if isinstance(x, Dispatch)]
        got += action.endpoint == sink
        made.finished(action.lease, GOOD, refused=action.endpoint == sink, now=now + took_s)
    return got


def test_errors_that_are_too_fast_to_be_true_close_an_endpoint_whose_peers_answer_well() -> None:
    made = scheduler(a=1, b=1)
    assert refuse(made, 100, took_s=0.001) <= 17
    assert not made.proven("b")


def test_errors_that_took_their_time_close_nothing() -> None:
    made = scheduler(a=1, b=1)
    refuse(made, 100, took_s=0.5)
    assert made.proven("b")


def test_a_caller_whose_requests_are_all_wrong_closes_nothing() -> None:
    """All endpoints refuse, or the only one that has the model: it is the callers."""
    made = scheduler(a=1)
    for at in range(100):
        (lease,) = leases(made.arrived(request(f"r{at}"), now=float(at)))
        made.finished(lease, Usage(0, 0), refused=True, now=at + 0.001)
    made.endpoint_added(EndpointSpec(name="b", slots=1, models=frozenset("n")), now=100.0)
    for at in range(100):
        for model in ("m", "n"):
            (lease,) = leases(made.arrived(request(f"{model}{at}", model=model), now=101.0 + at))
            made.finished(lease, GOOD, refused=model == "m", now=101.001 + at)
    assert made.proven("a")


def test_a_refused_key_is_tried_again_every_ten_seconds_and_ends_with_a_good_answer() -> None:
    proof = Proof()
    proof.refuses_key(100.0)
    assert (proof.stands, proof.left_to_others, proof.waits(5, 100.0)) == (False, True, False)
    assert not proof.chance(109.9)
    assert proof.chance(110.0)
    assert (proof.key_refused, proof.left_to_others) == (True, False)
    proof.refuses_key(111.0)
    assert proof.left_to_others
    proof.succeeded()
    assert (proof.stands, proof.key_refused, proof.left_to_others) == (True, False, False)
