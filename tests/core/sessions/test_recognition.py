"""Which session does a request continue? By names, by the ends of prompts, and never another caller's."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.sessions.recognition import SessionNames
from penstock.core.values.request import Request, Turn

DAY_S = 86_400.0


def ask(
    *ends: int, session: str = "", part: str = "", tenant: str = "t", model: str = "m", flow: tuple[str, ...] = ("t",)
) -> Request:
    return Request("r", model, 0, tenant=tenant, flow=flow, weights=(1.0,) * len(flow), turn=Turn(session, part, ends))


def test_a_request_without_a_turn_is_of_no_session() -> None:
    names = SessionNames()
    assert names.find(Request("r", "m", 0), 0.0) is None
    assert names.find(ask(), 0.0) is None
    assert len(names) == 0


def test_a_prompt_that_goes_on_from_a_whole_prompt_continues_its_session() -> None:
    names = SessionNames()
    first = names.find(ask(1), 0.0)
    assert first == ("~0000000000000001", "")
    assert names.find(ask(1, 2), 1.0) == first
    assert names.find(ask(1, 2, 3), 2.0) == first
    assert names.find(ask(3, 4), 3.0) == first, "of its ends one is enough"
    assert names.find(ask(2, 5), 4.0) == first, "an older one, too: a branch"
    assert names.find(ask(5), 5.0) == first, "or the same again: a client that tries once more"


def test_an_end_that_was_no_whole_prompt_continues_nothing() -> None:
    names = SessionNames()
    examples = 7  # of few shots: each request has them, and then its own question
    one, other = names.find(ask(examples, 1), 0.0), names.find(ask(examples, 2), 0.0)
    assert one != other
    assert names.find(ask(examples, 1, 3), 1.0) == one


def test_of_two_sessions_the_one_with_the_latest_end_goes_on() -> None:
    names = SessionNames()
    short, long = names.find(ask(1), 0.0), names.find(ask(9), 0.0)
    names.find(ask(9, 2), 1.0)
    assert names.find(ask(1, 2, 3), 2.0) == long != short


def test_callers_do_not_meet() -> None:
    names = SessionNames()
    names.find(ask(1), 0.0)
    for other in (ask(1, 2, tenant="u"), ask(1, 3, model="n"), ask(1, 4, flow=("t", "user"))):
        assert names.find(other, 1.0) != ("~0000000000000001", "")


def test_a_sub_agent_is_a_part_of_the_root_however_deep() -> None:
    names = SessionNames()
    assert names.find(ask(session="root"), 0.0) == ("root", "")
    assert names.find(ask(session="root", part="child"), 0.0) == ("root", "child")
    assert names.find(ask(session="child", part="grandchild"), 0.0) == ("root", "grandchild")
    assert names.find(ask(session="grandchild", part="last"), 0.0) == ("root", "last")
    assert names.find(ask(session="child"), 0.0) == ("root", "child"), "its parent was named before"
    assert names.find(ask(session="root", part="root"), 0.0) == ("root", "")


def test_parents_in_a_circle_end_somewhere() -> None:
    names = SessionNames()
    names.find(ask(session="a", part="b"), 0.0)
    names.find(ask(session="b", part="a"), 0.0)
    found = names.find(ask(session="a"), 0.0)
    assert found is not None
    assert set(found) <= {"a", "b", ""}


def test_nobody_adopts_the_session_of_another_user_or_tenant() -> None:
    names = SessionNames()
    names.find(ask(session="mine", part="theirs"), 0.0)
    assert names.find(ask(session="theirs", tenant="u"), 0.0) == ("theirs", "")
    assert names.find(ask(session="theirs", flow=("t", "user")), 0.0) == ("theirs", "")


def test_a_session_of_yesterday_is_forgotten() -> None:
    names = SessionNames()
    names.find(ask(1), 0.0)
    names.find(ask(2), DAY_S)
    assert len(names) == 1


def test_a_clock_that_jumps_back_forgets_nothing() -> None:
    names = SessionNames()
    first = names.find(ask(1), 2 * DAY_S)
    assert names.find(ask(1, 2), 0.0) == first


def test_who_makes_up_prompts_pushes_out_only_his_own() -> None:
    names = SessionNames(entries_max=1000)
    steady = [names.find(ask(n, tenant="steady"), 0.0) for n in range(250)]
    for n in range(20_000):
        names.find(ask(n, tenant="flood"), 1.0)
        names.find(ask(session="s", part=f"p{n}", tenant="names"), 1.0)
        assert len(names) <= 1000
    assert [names.find(ask(249 - n, 10_000 + n, tenant="steady"), 2.0) for n in range(50)] == steady[:-51:-1]


_REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(0, 12), max_size=4).map(tuple),
        st.sampled_from(["", "", "x", "y", "z"]),
        st.sampled_from(["", "x", "y", "w"]),
    ),
    max_size=60,
)


@given(_REQUESTS)
@settings(max_examples=300, deadline=None)
def test_what_a_tenant_finds_is_the_same_whatever_others_send(
    requests: list[tuple[str, tuple[int, ...], str, str]],
) -> None:
    together, alone = SessionNames(), {tenant: SessionNames() for tenant in "abc"}
    for at, (tenant, ends, session, part) in enumerate(requests):
        sent = ask(*ends, session=session, part=part if session else "", tenant=tenant)
        assert together.find(sent, float(at)) == alone[tenant].find(sent, float(at))
    assert len(together) == sum(map(len, alone.values()))


@given(_REQUESTS, st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_the_tables_are_bounded_and_counted(
    requests: list[tuple[str, tuple[int, ...], str, str]], entries_max: int
) -> None:
    names = SessionNames(entries_max)
    for at, (tenant, ends, session, part) in enumerate(requests):
        names.find(ask(*ends, session=session, part=part, tenant=tenant), at * 5000.0)
        assert len(names) <= entries_max
        assert len(names) == sum(map(len, names._of.values()))
