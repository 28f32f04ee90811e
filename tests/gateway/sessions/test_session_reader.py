"""By which name is a request's session known? One test a client, and the order of names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config.sections.routing import SessionSection
from penstock.core.values.request import Turn
from penstock.gateway.openai.body import Peek, peek, read_large
from penstock.gateway.openai.splice import Body
from penstock.gateway.sessions.session_names import HEADERS, KNOWN
from penstock.gateway.sessions.session_reader import Turns, user_of
from tests.gateway.conftest import run

LONG = "You are an agent that mends programs. " * 200


def read(body: dict[str, Any], *, large: bool) -> tuple[Peek, Body]:
    raw = json.dumps({"model": "m", **body}).encode()
    if large:
        found = run(read_large(raw, pooled=False))
        return found.peek, found.body
    return peek(raw), raw


def turn(
    body: dict[str, Any] | None = None,
    *,
    settings: dict[str, Any] | None = None,
    previous: str = "",
    large: bool = False,
    **headers: Any,
) -> Turn | None:
    """The turn of a request with these headers, `_` for `-` and `__` for `_`."""
    given = {name.replace("__", "%").replace("_", "-").replace("%", "_"): value for name, value in headers.items()}
    peeked, raw = read(body or {}, large=large)
    turns = Turns(SessionSection.model_validate(settings or {}), 7)
    assert peeked.text is not None
    named = turns.named({name.encode(): value.encode() for name, value in given.items()}, raw, peeked, previous)
    return named or turns.by_prompt(peeked.text)


def test_claude_code() -> None:
    assert turn(x_claude_code_session_id="s") == Turn("s")
    assert turn(x_claude_code_session_id="s", x_claude_code_agent_id="a") == Turn("s", "a")
    assert turn(x_claude_code_session_id="s", x_claude_code_agent_id="b", x_claude_code_parent_agent_id="a") == Turn(
        "s", "b"
    ), "an agent's agent"
    assert turn(x_claude_code_agent_id="a") is None


def test_claude_code_before_it_had_a_header() -> None:
    user = "user_" + "5d" * 32
    old = {"metadata": {"user_id": f"{user}_account__session_d2e70091-3007-41a3-a916-cb8b0d3098de"}}
    new = {"device_id": "5d" * 32, "account_uuid": "", "session_id": "54c1eb09"}
    for large in (False, True):
        assert turn(old, large=large) == Turn("d2e70091-3007-41a3-a916-cb8b0d3098de")
        assert turn({"metadata": {"user_id": json.dumps(new)}}, large=large) == Turn("54c1eb09")
    child = json.dumps({**new, "parent_session_id": "p"})
    assert turn({"metadata": {"user_id": child}}) == Turn("p", "54c1eb09")
    assert turn({"metadata": {"user_id": "somebody"}}) is None


def test_opencode() -> None:
    assert turn(x_session_affinity="ses_1") == Turn("ses_1")
    assert turn(x_session_affinity="ses_2", x_parent_session_id="ses_1") == Turn("ses_1", "ses_2")
    assert turn(x_session_affinity="ses_2", x_session_id="ses_2", x_parent_session_id="ses_1") == Turn("ses_1", "ses_2")


def test_codex() -> None:
    assert turn({"prompt_cache_key": "s"}, session_id="s", thread_id="s") == Turn("s")
    assert turn({"prompt_cache_key": "s"}, session_id="s", thread_id="t", x_codex_parent_thread_id="s") == Turn(
        "s", "t"
    )
    assert turn(session_id="s", thread_id="fork") == Turn("s"), "without a parent it is no sub-agent"
    assert turn(session__id="s") == Turn("s")
    assert turn(session__id="t", x_codex_parent_thread_id="s") == Turn("s", "t")
    assert turn(thread_id="t", x_codex_parent_thread_id="s") == Turn("s", "t")
    assert turn({"prompt_cache_key": "s"}) == Turn("s")


def test_dynamos_clients() -> None:
    assert turn(x_dynamo_session_id="s") == Turn("s")
    assert turn(x_dynamo_session_id="c", x_dynamo_parent_session_id="s") == Turn("s", "c")
    assert turn(x_dynamo_session_id="s", x_dynamo_session_final="true") == Turn("s", last=True)
    assert turn(x_dynamo_session_id="s", x_dynamo_session_final="false") == Turn("s")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"session_id": "s"}, "s"),
        ({"session_id": 7}, "7"),
        ({"conversation": "c"}, "c"),
        ({"conversation": {"id": "c"}}, "c"),
        ({"session_id": "s", "conversation": "c", "prompt_cache_key": "k"}, "s"),
        ({"session_id": None, "prompt_cache_key": "k"}, "k"),
        ({"session_id": "", "conversation": {"id": None}, "prompt_cache_key": "k"}, "k"),
        ({"session_id": ["s"], "prompt_cache_key": True}, None),
    ],
)
@pytest.mark.parametrize("large", [False, True])
def test_fields_of_the_body(body: dict[str, Any], name: str | None, *, large: bool) -> None:
    assert turn(body, large=large) == (None if name is None else Turn(name))


def test_an_answer_that_goes_on_belongs_to_the_session_of_the_one_before() -> None:
    assert turn(previous="s") == Turn("s")
    assert turn({"session_id": "x"}, previous="s") == Turn("x")


def test_a_long_prompt_without_a_name_has_ends() -> None:
    body = {"messages": [{"role": "user", "content": LONG}]}
    found = turn(body)
    assert found is not None
    assert (found.session, len(found.ends)) == ("", 1)
    assert turn(body, x_session_id="s") == Turn("s"), "one with a name needs none"


def test_the_order_is_own_names_then_the_settings_then_known_ones() -> None:
    everything: dict[str, Any] = {
        "x_claude_code_session_id": "claude",
        "x_session_id": "common",
        "x_own": "own",
        "x_other": "other",
    }
    body = {"thread": "thread", "session_id": "body"}
    names = {"names": [{"header": "X-Own"}, {"body": "thread"}], "header": "x-other"}
    assert turn(body, settings=names, **everything) == Turn("own")
    del everything["x_own"]
    assert turn(body, settings=names, **everything) == Turn("thread")
    assert turn({}, settings=names, **everything) == Turn("other")
    assert turn({}, settings={"header": "x-session-id"}, **everything) == Turn("claude"), "a known one has its place"
    assert turn({}, settings={"header": None}, x_session_id="common") == Turn("common")
    assert turn({}, settings={"cookie": "sid"}, cookie="a=b; sid=1", x_session_affinity="x") == Turn("1")


@pytest.mark.parametrize("large", [False, True])
def test_own_names_may_have_a_parent(*, large: bool) -> None:
    headers = {"names": [{"header": "x-job", "parent": "X-Root-Job"}]}
    assert turn(settings=headers, x_job="j") == Turn("j")
    assert turn(settings=headers, x_job="j", x_root_job="r") == Turn("r", "j")
    fields = {"names": [{"body": "job", "parent": "root"}]}
    assert turn({"job": 3, "root": "r"}, settings=fields, large=large) == Turn("r", "3")
    assert turn({"job": 3, "root": 3}, settings=fields, large=large) == Turn("3")


def test_long_names_stay_different_and_short() -> None:
    for place in ("x_session_id", "x_claude_code_session_id"):
        long: list[dict[str, Any]] = [{place: "n" * 65_536 + end} for end in "12"]
        one, other = turn(**long[0]), turn(**long[1])
        assert one is not None
        assert other is not None
        assert one.session != other.session
        assert len(one.session) <= 128
    for large in (False, True):
        found = [turn({"session_id": "n" * size + end}, large=large) for size in (64_000, 100_000) for end in "12"]
        assert len({each.session for each in found if each is not None}) == 4
        assert all(each is not None and len(each.session) <= 128 for each in found)


def test_names_are_printable() -> None:
    found = turn(x_session_id="a\u202eb")
    assert found is not None
    assert found.session.isprintable()


@pytest.mark.parametrize(
    ("body", "user"),
    [
        ({"safety_identifier": "anna"}, "anna"),
        ({"safety_identifier": "anna", "metadata": {"user_id": "bert"}}, "anna"),
        ({"metadata": {"user_id": "bert"}}, "bert"),
        ({"metadata": {"user_id": "user_ab_account__session_1"}}, "user_ab"),
        ({"metadata": {"user_id": "user_ab_account_0c-1_session_1"}}, "0c-1"),
        ({"metadata": {"user_id": '{"device_id": "d", "account_uuid": "", "session_id": "1"}'}}, "d"),
        ({"metadata": {"user_id": '{"device_id": "d", "account_uuid": "u", "session_id": "1"}'}}, "u"),
        ({"metadata": {"user_id": "{broken"}}, "{broken"),
        ({"metadata": {"user_id": 7}}, None),
        ({"metadata": {"topic": "x"}}, None),
        ({"metadata": "text"}, None),
        ({"safety_identifier": ["x"]}, None),
    ],
)
def test_users_otherwise_than_by_user(body: dict[str, Any], user: str | None) -> None:
    text = read(body, large=False)[0].text
    assert text is not None
    assert user_of(text) == user


def test_the_table_names_each_place_once_with_its_source() -> None:
    places = [row[1] for row in KNOWN]
    assert len(set(places)) == len(places)
    assert all(client and source for client, _, _, _, source in KNOWN)
    assert len(HEADERS) == 7
