"""The next turn of a conversation has an end of the turn before, whatever its client changes beside what is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.openai.body import peek, read_large
from penstock.gateway.openai.prompt_ends import ends_of
from tests.gateway.conftest import run

SEED = 0x0123456789ABCDEF
LONG = "You are an agent that mends programs. " * 200  # 7,600 bytes
MARK = {"cache_control": {"type": "ephemeral"}}

Message = dict[str, Any]


def ends(body: dict[str, Any], *, seed: int = SEED, **form: Any) -> tuple[int, ...]:
    text = peek(json.dumps({"model": "m", **body}, **form).encode()).text
    assert text is not None
    return ends_of(text, seed)


def follows(later: dict[str, Any], earlier: dict[str, Any], **form: Any) -> bool:
    """Does a later prompt have the end of an earlier one?"""
    before = ends(earlier)
    assert before
    return before[-1] in ends(later, **form)[:-1]


def chat(*turns: str, system: str = LONG) -> dict[str, Any]:
    """What an agent sends after so many tools' results."""
    messages: list[Message] = [{"role": "system", "content": system}, {"role": "user", "content": "mend it"}]
    for number, result in enumerate(turns):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "run", "arguments": f'{{"n": {number}}}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": result},
        ]
    return {"messages": messages}


def anthropic(*turns: str, marks: bool = True, thinking: bool = False) -> dict[str, Any]:
    """The same of Anthropic's client: the last message is marked, and a marked text is a list."""
    messages: list[Message] = [{"role": "user", "content": "mend it"}]
    for number, result in enumerate(turns):
        answer: list[Message] = [{"type": "thinking", "thinking": "hm", "signature": "x"}] if thinking else []
        answer.append({"type": "tool_use", "id": f"t{number}", "name": "run", "input": {"n": number}})
        messages.append({"role": "assistant", "content": answer})
        part: Message = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
        if number % 2:
            part["content"] = [{"type": "text", "text": result}]
        messages.append({"role": "user", "content": [part]})
    if marks:
        last = messages[-1]
        if isinstance(last["content"], str):
            last["content"] = [{"type": "text", "text": last["content"]}]
        last["content"][-1] |= MARK
    billing = {"type": "text", "text": f"x-anthropic-billing-header: cch={len(turns)};"}
    return {"system": [billing, {"type": "text", "text": LONG, **MARK}], "messages": messages}


def responses(*turns: str, reasoning: bool = False) -> dict[str, Any]:
    """The same of a client of OpenAI's responses, with the conversation in each request."""
    items: list[Message] = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "mend it"}]}]
    for number, result in enumerate(turns):
        if reasoning:
            items.append({"type": "reasoning", "id": f"rs{number}", "summary": [], "encrypted_content": "x"})
        items += [
            {"type": "function_call", "call_id": f"c{number}", "name": "run", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": result},
        ]
    return {"instructions": LONG, "input": items}


FORMS: dict[str, Callable[..., dict[str, Any]]] = {"chat": chat, "anthropic": anthropic, "responses": responses}


@pytest.mark.parametrize("form", FORMS)
def test_each_turn_has_the_end_of_the_one_before(form: str) -> None:
    sent = FORMS[form]
    results = ["ok", "line 1\nline 2", 'a "quoted" one', "ok", "ok", "é"]
    for count in range(len(results)):
        assert follows(sent(*results[: count + 1]), sent(*results[:count])), count


@pytest.mark.parametrize("form", FORMS)
def test_another_conversation_has_none_of_them(form: str) -> None:
    sent = FORMS[form]
    one, other = [ends(sent("r", word, "ok")) for word in ("apples", "pears")]
    assert one[-1] not in other
    assert not set(ends(sent("r"))) & set(ends({**sent("r"), **(_other_task(sent("r")))}))


def _other_task(body: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(body).replace("mend it", "break it"))  # type: ignore[no-any-return]


def test_marks_that_move_change_no_end() -> None:
    assert ends(anthropic("a", "b", marks=True)) == ends(anthropic("a", "b", marks=False))
    assert follows(anthropic("a", "b", marks=False), anthropic("a", marks=True))


def test_a_text_is_the_same_in_a_list_of_one() -> None:
    listed = chat("a", "b")
    for message in listed["messages"]:
        if message["content"] is not None:
            message["content"] = [{"type": "text", "text": message["content"]}]
    assert ends(listed) == ends(chat("a", "b"))


@pytest.mark.parametrize("form", FORMS)
def test_spaces_and_the_order_of_fields_change_no_end(form: str) -> None:
    body = FORMS[form]("a", "b")
    for written in ({"separators": (",", ":")}, {"indent": 2}, {"sort_keys": True}):
        assert ends(body, **written) == ends(body)


def test_answers_may_lose_their_reasoning_later() -> None:
    assert follows(anthropic("a", "b", thinking=False), anthropic("a", thinking=True))
    assert follows(responses("a", "b", reasoning=False), responses("a", reasoning=True))


def test_several_results_at_once_are_one_turn() -> None:
    before = chat("a")
    calls = [{"id": f"x{n}", "type": "function", "function": {"name": "run", "arguments": "{}"}} for n in range(20)]
    results = [{"role": "tool", "tool_call_id": f"x{n}", "content": f"result {n}"} for n in range(20)]
    after = {"messages": [*before["messages"], {"role": "assistant", "content": "", "tool_calls": calls}, *results]}
    assert follows(after, before)
    assert follows({"messages": [*after["messages"], {"role": "assistant", "content": "done"}, *results[:1]]}, after)


def test_a_turn_that_is_taken_back_and_asked_otherwise_has_an_earlier_end() -> None:
    assert set(ends(chat("a", "b", "other"))) & set(ends(chat("a", "b"))) != set()
    assert ends(chat("a", "b"))[-1] in ends(chat("a", "b", "other"))
    results = [str(number) for number in range(20)]
    assert ends(chat())[-1] in ends(chat(*results)), "the first end is always there"


def test_pictures_tell_two_prompts_apart() -> None:
    def shown(data: str) -> dict[str, Any]:
        body = chat("a")
        parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": f"data:,{data}"}}]
        body["messages"].append({"role": "user", "content": parts})
        return body

    assert ends(shown("AAAA"))[-1] != ends(shown("BBBB"))[-1]


def test_few_shots_do_not_make_one_conversation_of_all_questions() -> None:
    shots = chat("one", "two")["messages"]
    one, other = [ends({"messages": [*shots, {"role": "user", "content": word}]}) for word in ("x", "y")]
    assert one[-1] not in other
    assert other[-1] not in one


def test_a_text_that_becomes_a_list_goes_on() -> None:
    first = {"input": "mend it", "instructions": LONG}
    assert follows(responses("a"), first)


def test_a_large_body_has_the_same_ends_as_a_small_one() -> None:
    body = chat(*["x" * 40_000] * 10)
    raw = json.dumps({"model": "m", **body}).encode()
    large = run(read_large(raw, pooled=False)).peek.text
    assert large is not None
    assert ends_of(large, SEED) == ends(body)
    assert follows(chat(*["x" * 40_000] * 10, "y"), body)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        {"prompt": LONG},
        {"system": LONG},
        {"instructions": LONG, "prompt": "x"},
        {"system": LONG, "messages": None},
        {"input": [LONG, LONG]},
        {"input": [1, 2, 3] * 3000},
        {"messages": {"role": "user", "content": LONG}},
        {"messages": []},
        {"messages": [[LONG]]},
        {"messages": [{"role": "assistant", "content": LONG}]},
        {"messages": [{"role": 7, "content": LONG}]},
        {},
    ],
)
def test_what_is_no_long_conversation_has_no_ends(body: dict[str, Any]) -> None:
    assert ends(body) == ()


def test_a_prompt_beyond_the_bound_is_not_read() -> None:
    assert ends(chat("x" * (9 << 20))) == ()


def test_a_deep_one_ends_somewhere() -> None:
    content: Any = LONG
    for _ in range(50):
        content = [{"type": "tool_result", "content": content}]
    assert len(ends({"messages": [{"role": "user", "content": content}]})) == 1


def test_other_gateways_have_other_ends_and_the_same_seed_the_same() -> None:
    assert not set(ends(chat("a"), seed=SEED ^ 1)) & set(ends(chat("a")))
    assert len(ends(chat(*"abcdefgh"))) == 6
    assert ends(chat("a")) == (0xF79E931B868637B9, 0x43F32742D9C28086), "whatever the machine"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "content", "type", "role", "x"]), inner)
    ),
    max_leaves=12,
)


@given(st.lists(_JSON, max_size=6), _JSON)
def test_nothing_that_a_client_sends_raises(messages: list[Any], system: Any) -> None:
    raw = json.dumps({"model": "m", "messages": [*messages, {"role": "user", "content": LONG}], "system": system})
    text = peek(raw.encode()).text
    assert text is not None
    assert all(0 <= end < 1 << 64 for end in ends_of(text, SEED))


def test_broken_bytes_in_a_large_body_are_the_engines_business() -> None:
    broken = b'[{"role": "user", "content": "' + b"x" * 5000 + b'"}, nonsense]'
    text = peek(b'{"model": "m"}').text
    assert text is not None
    text.messages = msgspec.Raw(broken)
    assert ends_of(text, SEED) == ()
